/// \file
/// The ladder on results as chapters write them, and on files that are none.

#include <nlohmann/json.hpp>
#include <sstream>

#include "common/stage/json.hpp"
#include "tests/catch.hpp"
#include "tests/common/stage/program_under_test.hpp"

namespace {

using namespace stage_test;

stage::Results step(const std::string& number, const std::string& name, int seqlen, double bytes) {
  stage::Results results;
  results.chapter_number = number;
  results.chapter_name = name;
  results.machine.name = "emulator";
  results.machine.emulated = true;
  attention::Problem p;
  p.seqlen_q = p.seqlen_kv = seqlen;
  p.head_dim = 64;
  results.problem = p;
  stage::Row row;
  row.kernel = name + "_kernel";
  row.verdict = "right";
  row.bytes_counted = bytes;
  results.rows = {row};
  return results;
}

}  // namespace

TEST_CASE("The ladder tables several chapters", "[stage]") {
  TemporaryFolder folder;
  stage::Results none = step("00", "first_kernel", 1, 1);
  none.problem.reset();  // a row of something else than attention
  write(folder.file("0"), stage::to_json(none));
  write(folder.file("1"), stage::to_json(step("02", "naive_gpu", 100, 8000)));
  write(folder.file("2"), stage::to_json(step("04", "sram_tiling", 100, 2000)));
  write(folder.file("3"), stage::to_json(step("05", "warp_shuffle", 200, 1000)));
  const Outcome outcome = run_ladder({folder.file("0"), folder.file("1"), folder.file("2"), folder.file("3")});
  CHECK(outcome.code == 0);
  CHECK(outcome.err == "");
  CHECK_THAT(outcome.out, ContainsText("02 naive_gpu"));
  CHECK_THAT(outcome.out, ContainsText("8,000"));
  CHECK_THAT(outcome.out, ContainsText("4.00x"));
  CHECK_THAT(outcome.out, ContainsText("seqlen 200/200"));
  CHECK(outcome.out.find("2.00x") == std::string::npos);  // another problem
  CHECK(outcome.out.find("first_kernel") == std::string::npos);
}

TEST_CASE("The ladder compares within an element type, and each has its roof", "[stage][types]") {
  TemporaryFolder folder;
  auto fp32 = step("05", "warp_shuffle", 100, 4000), bf16 = step("07", "tensor_cores", 100, 2000), ceiling = fp32;
  ceiling.chapter_number = "00";
  ceiling.problem.reset();
  ceiling.figures = {{"fp32_flops_per_second", 2.5e12}};
  for (stage::Results* results : {&fp32, &bf16}) {
    results->rows[0].seconds = 1e-3;
    results->rows[0].flops = 1e9;
    results->rows[0].peak_flops = 4e12;
  }
  bf16.problem->element_type = attention::ElementType::bf16;
  auto fp16 = bf16, faster = bf16;
  fp16.problem->element_type = attention::ElementType::fp16;
  faster.rows[0].kernel = "faster_kernel";
  faster.rows[0].seconds = 5e-4;
  const std::vector<stage::Results> all = {ceiling, fp32, fp16, bf16, faster};
  std::vector<std::string> files;
  for (std::size_t i = 0; i < all.size(); ++i) {
    files.push_back(folder.file(std::to_string(i)));
    write(files.back(), stage::to_json(all[i]));
  }
  const Outcome outcome = run_ladder(files);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, ContainsText("mask, fp16") && ContainsText("mask, bf16"));
  std::string words;  // whatever the lines' ends are
  std::istringstream text(outcome.out);
  for (std::string word; text >> word;) words += word + " ";
  CHECK_THAT(words, ContainsText("The roof is in fp32 the datasheet's peak of the fp32 units, in 16 bits that of the "
                                 "tensor cores, or what device memory allows. "));
  const auto times = [&](const std::string& part) {
    std::size_t count = 0;
    for (auto at = words.find(part); at != std::string::npos; at = words.find(part, at + 1)) ++count;
    return count;
  };
  CHECK(times("40.0 %") == 1);  // of the fp32 ceiling, the kernel in fp32 alone
  CHECK(times("1.00x") == 0);   // between types
  CHECK(times("2.00x") == 1);

  const Outcome in_fp32 = run_ladder({files[1]});
  CHECK(in_fp32.out.find("The roof") == std::string::npos);
  auto unknown = nlohmann::json::parse(read(files[1]));
  unknown["problem"]["dtype"] = "fp7";
  write(folder.file("unknown"), unknown.dump());
  CHECK_THAT(run_ladder({folder.file("unknown")}).err, ContainsText("its dtype 'fp7' is none"));
  unknown["problem"].erase("dtype");  // an older file
  write(folder.file("unknown"), unknown.dump());
  CHECK(run_ladder({folder.file("unknown")}).code == 0);
}

TEST_CASE("A ladder without attention says so", "[stage]") {
  TemporaryFolder folder;
  stage::Results no_problem = step("00", "first_kernel", 1, 1), no_rows = step("01", "naive_cpu", 1, 1);
  no_problem.problem.reset();
  no_rows.rows.clear();
  write(folder.file("0"), stage::to_json(no_problem));
  write(folder.file("1"), stage::to_json(no_rows));
  const Outcome outcome = run_ladder({folder.file("0"), folder.file("1")});
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, ContainsText("The ladder has no rows"));
}

TEST_CASE("The ladder reads what a program writes", "[stage]") {
  TemporaryFolder folder;
  CHECK(run(chapter_with({device_kernel("copied")}), {"--json", folder.file("a")}).code == 0);
  const Outcome outcome = run_ladder({folder.file("a")});
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, ContainsText("07 testing"));
  CHECK_THAT(outcome.out, ContainsText("copied"));
}

TEST_CASE("The ladder compares times where there are some", "[stage]") {
  TemporaryFolder folder;
  auto slow = step("02", "naive_gpu", 100, 8000), fast = step("04", "sram_tiling", 100, 2000);
  slow.rows[0].seconds = 3e-3;
  fast.rows[0].seconds = 1e-3;
  slow.rows[0].flops = fast.rows[0].flops = 1e9;
  write(folder.file("1"), stage::to_json(slow));
  write(folder.file("2"), stage::to_json(fast));
  const Outcome outcome = run_ladder({folder.file("1"), folder.file("2")});
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, ContainsText("3.00x"));
  CHECK_THAT(outcome.out, ContainsText("TFLOP/s"));
}

TEST_CASE("The ladder refuses what holds no results", "[stage]") {
  TemporaryFolder folder;
  const std::string good = stage::to_json(step("02", "naive_gpu", 100, 8000));
  const auto check_refused = [&](const std::vector<std::string>& arguments, const std::string& sentence) {
    const Outcome outcome = run_ladder(arguments);
    CHECK(outcome.code == 2);
    CHECK(outcome.out == "");
    CHECK(lines(outcome.err) == 1);
    CHECK_THAT(outcome.err, ContainsText("ladder: "));
    CHECK_THAT(outcome.err, ContainsText(sentence));
    CHECK_THAT(outcome.err, ContainsText("allowed: "));
  };
  write(folder.file("good"), good);
  check_refused({}, "no file given");
  check_refused({"--fast"}, "unknown argument '--fast'");
  check_refused({folder.file("good"), folder.file("absent")}, "absent' cannot be read");
  check_refused({folder.file("")}, "cannot be read");

  int tried = 0;
  const auto check_malformed = [&](const std::string& text) {
    const std::string path = folder.file("bad");
    write(path, text);
    CAPTURE(text);
    check_refused({folder.file("good"), path}, "holds no results of a chapter");
    ++tried;
  };
  check_malformed("");
  check_malformed("{");
  check_malformed("[]");
  check_malformed("3");
  check_malformed("not\njson");
  check_malformed(good.substr(0, good.size() / 2));
  const auto json = nlohmann::json::parse(good);
  for (const auto& [key, value] : json.items()) {
    if (key == "seed" || key == "right" || key == "figures" || key == "tables") continue;  // not the ladder's business
    auto without = json;
    without.erase(key);
    check_malformed(without.dump());
    auto other = json;
    other[key] = "text";
    check_malformed(other.dump());
  }
  auto other_row = json;
  other_row["rows"][0]["seconds"] = "fast";
  check_malformed(other_row.dump());
  other_row = json;
  other_row["format"] = 2;
  check_malformed(other_row.dump());
  CHECK(tried == 18);
}

TEST_CASE("The ladder shows backward kernels apart", "[stage][backward]") {
  TemporaryFolder folder;
  stage::Results both = step("06", "recompute_backward", 100, 4000);
  both.rows.push_back(both.rows.front());
  both.rows.back().kernel = "gradients";
  both.rows.back().pass = stage::Pass::backward;
  both.rows.back().bytes_counted = 1000;
  stage::Results backward = step("09", "later", 100, 500);
  backward.rows.front().pass = stage::Pass::backward;
  write(folder.file("6"), stage::to_json(both));
  write(folder.file("9"), stage::to_json(backward));
  const Outcome outcome = run_ladder({folder.file("6"), folder.file("9")});
  CHECK(outcome.code == 0);
  const auto split = outcome.out.find("\nBackward, credited with 2.5 times the forward's FLOPs:\n\n");
  REQUIRE(split != std::string::npos);
  const std::string first = outcome.out.substr(0, split), second = outcome.out.substr(split);
  CHECK_THAT(first, ContainsText("recompute_backward_kernel"));
  CHECK(first.find("gradients") == std::string::npos);
  CHECK(first.find("4.00x") == std::string::npos);  // of the other pass
  CHECK_THAT(second, ContainsText("gradients"));
  CHECK_THAT(second, ContainsText("2.00x"));
  CHECK(second.find("recompute_backward_kernel") == std::string::npos);

  // Without forward kernels there is one table; and results from before there was a backward are forward ones.
  const Outcome alone = run_ladder({folder.file("9")});
  CHECK(alone.code == 0);
  CHECK_THAT(alone.out, ContainsText("solved the same problem.\n\nBackward, "));
  auto older = nlohmann::json::parse(read(folder.file("9")));
  older["rows"][0].erase("pass");
  write(folder.file("9"), older.dump());
  CHECK(run_ladder({folder.file("9")}).out.find("Backward") == std::string::npos);
}
