/// \file
/// Tables as text.

#include <algorithm>
#include <sstream>

#include "common/stage/table.hpp"
#include "tests/catch.hpp"

namespace {

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

stage::Row row(const std::string& kernel, double counted, double seconds = 0) {
  stage::Row row;
  row.kernel = kernel;
  row.verdict = "right";
  row.error = 1.25e-7;
  row.allowed = 4e-7;
  row.bytes_counted = counted;
  row.bytes_predicted = counted;
  if (seconds > 0) {
    row.seconds = seconds;
    row.flops = 2e9;
    row.peak_flops = 4e12;
  }
  return row;
}

}  // namespace

TEST_CASE("Numbers are right-aligned, words left-aligned", "[stage]") {
  CHECK(stage::layout_table({"name", "N"}, {{"a", "1"}, {"bc", "1000"}, {"d", "-"}}) ==
        "name     N\n"
        "----  ----\n"
        "a        1\n"
        "bc    1000\n"
        "d        -\n");
}

TEST_CASE("Figures with units are numbers, numbered names are words", "[stage]") {
  CHECK(stage::layout_table({"chapter", "bytes", "rate"},
                            {{"02 naive_gpu", "1.5 KB", "9 TB/s"}, {"3 x", "12 MB", "10 TB/s"}}) ==
        "chapter        bytes     rate\n"
        "------------  ------  -------\n"
        "02 naive_gpu  1.5 KB   9 TB/s\n"
        "3 x            12 MB  10 TB/s\n");
}

TEST_CASE("A character of several bytes takes one place", "[stage]") {
  CHECK(stage::layout_table({"N²", "x"}, {{"a", "b"}, {"→→", "c"}}) ==
        "N²  x\n"
        "--  -\n"
        "a   b\n"
        "→→  c\n");
}

TEST_CASE("A wide table is wrapped to 120 columns", "[stage]") {
  const std::string words = "a long sentence that goes on for a while and then a little longer";
  const std::string text =
      stage::layout_table({"one", "two", "a header of some words"}, {{words, words, "1"}, {words, "x", "2"}});
  CHECK(longest_line(text) <= 120);
  CHECK_THAT(text, ContainsText("a long sentence"));
  CHECK(longest_line(stage::wrap(words + words + words, 4)) <= 120);
}

TEST_CASE("Rows: ratios to the row before, columns without figures left out", "[stage]") {
  const std::string text = stage::rows_table({row("naive", 4000000), row("tiled", 1000000)});
  CHECK_THAT(text, ContainsText("4,000,000"));
  CHECK_THAT(text, ContainsText("fewer bytes"));
  CHECK_THAT(text, ContainsText("4.00x"));
  CHECK_THAT(text, ContainsText("1.2e-07"));
  CHECK(text.find("time") == std::string::npos);
  CHECK(text.find("workspace") == std::string::npos);
}

TEST_CASE("Rows: times, TFLOP/s and the share of the roof", "[stage]") {
  stage::Row naive = row("naive", 4e6, 2e-3), tiled = row("tiled", 1e6, 1e-3);
  CHECK(stage::times_table({row("naive", 4e6)}).empty());
  naive.samples = {1.9e-3, 2e-3, 2.1e-3};
  const std::string text = stage::times_table({naive, tiled});
  CHECK_THAT(text, ContainsText("naive         3  2.000 ms  1.920 ms … 2.080 ms"));
  CHECK_THAT(text, ContainsText("1.00"));
  CHECK_THAT(text, ContainsText("50.0 %"));
  CHECK_THAT(text, ContainsText("2.00x"));
  CHECK_THAT(text, ContainsText("× step before"));
  CHECK(text.find("round by round") == std::string::npos);  // a ratio of medians
  CHECK(text.find("peer") == std::string::npos);

  tiled.step_before = stage::Ratio{2.1, 2.05, 2.15};
  tiled.best_peer = stage::Ratio{0.98, 0.97, 0.99};
  tiled.best_peer_name = "other_library";
  const std::string rounds = stage::times_table({naive, tiled});
  CHECK_THAT(rounds, ContainsText("2.10x (2.05 … 2.15)"));
  CHECK_THAT(rounds, ContainsText("0.98x (0.97 … 0.99)"));
  CHECK_THAT(rounds, ContainsText("round by round"));
  CHECK_THAT(rounds, ContainsText("× best peer: the same with the time of other_library"));
}

TEST_CASE("Rows: the whole table fits 120 columns", "[stage]") {
  stage::Row emulated = row("three_kernels_long_name", 123456789012);
  stage::Row timed = row("three_kernels_long_name", 123456789012, 2e-3);
  timed.bytes_counted.reset();  // a GPU counts no bytes
  stage::Row refused;
  refused.kernel = "picky";
  refused.verdict = "refused: picky does not take head_dim 48; allowed: 32, 64, 128";
  for (stage::Row* full : {&emulated, &timed}) {
    full->verdict = "right (sample of 64 rows)";
    full->workspace_bytes = full->peak_bytes = 123456789;
    CHECK(longest_line(stage::rows_table({*full, *full, refused})) <= 120);
  }
  timed.samples.assign(40, 2e-3);
  timed.step_before = timed.best_peer = stage::Ratio{12.34, 12.33, 12.35};
  timed.best_peer_name = "pytorch_efficient_fp32";
  const auto width = [](const std::string& line) {  // in characters: an ellipsis is three bytes
    return std::count_if(line.begin(), line.end(),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  };
  std::istringstream lines(stage::times_table({timed, timed}));
  for (std::string line; std::getline(lines, line);) CHECK(width(line) <= 120);
  const std::string text = stage::rows_table({emulated, refused});
  CHECK_THAT(text, ContainsText("picky: refused: picky does not take head_dim 48; allowed: 32, 64, 128\n"));
}

TEST_CASE("No ratio to a row that is wrong or has no figure", "[stage]") {
  stage::Row wrong = row("wrong", 100);
  wrong.right = false;
  CHECK_FALSE(stage::step_ratio(wrong, row("x", 50), false).has_value());
  CHECK_FALSE(stage::step_ratio(row("x", 50), row("x", 50), true).has_value());
  CHECK(stage::step_ratio(row("x", 100), row("x", 50), false) == 2.0);
  stage::Row peer = row("peer", 100);
  peer.is_peer = true;
  CHECK_FALSE(stage::step_ratio(peer, row("x", 50), false).has_value());
}
