/// \file
/// Results of a GPU: merged from what chapters write, tabled between markers, marked stale, refused when malformed.
///
/// The figures here are made up, and appear in temporary folders only.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/stage/json.hpp"
#include "common/stage/results.hpp"
#include "common/stage/results_markdown.hpp"
#include "tests/catch.hpp"
#include "tests/common/stage/program_under_test.hpp"

namespace {

using namespace stage_test;

const std::string kHashA(64, 'a'), kHashB(64, 'b');

stage::Results measured(const std::string& number, const std::string& name, double seconds) {
  stage::Results results;
  results.chapter_number = number;
  results.chapter_name = name;
  results.machine.name = "NVIDIA Test (9000)";
  results.machine.driver = "1.2";
  results.machine.cuda = "13.0";
  results.machine.clock_khz = 1500000;
  results.machine.multiprocessors = 7;
  results.machine.built_for = "sm_" + number;
  results.problem = attention::Problem{};
  stage::Row row;
  row.kernel = name + "_kernel";
  row.summary = "a kernel | with a bar";
  row.verdict = "right";
  row.error = 1e-7;
  row.seconds = seconds;
  row.flops = 1e9;
  row.peak_flops = 4e12;
  row.bytes_predicted = 2e6;
  for (int i = 0; i <= 10; ++i) row.samples.push_back(seconds * (0.95 + 0.01 * i));
  results.rows = {row};
  results.tables = {{"ceilings", {"ceiling", "rate"}, {{"L2 | read", "5 TB/s"}}}};
  return results;
}

/// A book of two chapters, and the files that their programs wrote.
class Book {
 public:
  Book() {
    std::filesystem::create_directories(folder_.file("docs/results"));
    for (const std::string name : {"00_first", "02_second"}) {
      std::filesystem::create_directories(folder_.file("chapters/" + name));
      write(file("chapters/" + name + "/stage.cu"), "");
      write(file("chapters/" + name + "/README.md"), readme(name == "00_first" ? "00 ceilings" : "02"));
    }
    std::filesystem::create_directories(folder_.file("chapters/04_not_written_yet"));
    write(file("README.md"), readme("ladder"));
    write(file("0.json"), stage::to_json(measured("00", "first", 1e-3)));
    write(file("2.json"), stage::to_json(measured("02", "second", 5e-4)));
    hash(kHashA);
  }
  std::string file(const std::string& name) const { return folder_.file(name); }
  static std::string readme(const std::string& marker, const std::string& body = "") {
    return "before\n\n<!-- results:" + marker + " -->\n" + body + "<!-- /results -->\n\nafter, no newline";
  }
  void hash(const std::string& of_second) const {
    write(file("hashes"), kHashA + "  chapters/00_first/a.cuh\n" + of_second + " *chapters/02_second/b.hpp\n");
  }
  Outcome merge(const std::vector<std::string>& files, const std::string& commit = "0123456789abcdef-dirty") const {
    std::vector<std::string> words = {"merge", file("docs/results"), "--date",      "2001-02-03", "--commit",
                                      commit,  "--hashes",           file("hashes")};
    for (const std::string& name : files) words.push_back(name.ends_with(".json") ? file(name) : name);
    return run_results(words);
  }
  Outcome tables(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"tables", file(""), "--hashes", file("hashes")};
    words.insert(words.end(), more.begin(), more.end());
    return run_results(words);
  }
  std::string ladder() const { return read(file("README.md")); }
  std::string chapter(const std::string& name) const { return read(file("chapters/" + name + "/README.md")); }

 private:
  TemporaryFolder folder_;
};

void check_refused(const Outcome& outcome, const std::string& sentence) {
  CHECK(outcome.code == 2);
  CHECK(outcome.out == "");
  CHECK(lines(outcome.err) == 1);
  CHECK_THAT(outcome.err, ContainsText("results: "));
  CHECK_THAT(outcome.err, ContainsText(sentence));
  CHECK_THAT(outcome.err, ContainsText("allowed: "));
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("Results of several chapters become one file of the GPU", "[stage]") {
  const Book book;
  const Outcome outcome = book.merge({"2.json", "0.json"});
  CHECK(outcome.code == 0);
  CHECK(outcome.err == "");
  const auto merged = nlohmann::json::parse(read(book.file("docs/results/nvidia-test-9000.json")));
  REQUIRE(merged["chapters"].size() == 2);
  for (const auto& chapter : merged["chapters"]) {
    CHECK(chapter["date"] == "2001-02-03");
    CHECK(chapter["commit"] == "0123456789abcdef-dirty");
    CHECK(chapter["machine"]["driver"] == "1.2");
    CHECK(chapter["machine"]["clock_khz"] == 1500000);
  }
  CHECK(merged["chapters"][0]["chapter"]["number"] == "00");  // the book's order
  CHECK(merged["chapters"][1]["hashes"]["b.hpp"] == kHashA);
  CHECK(merged["chapters"][1]["rows"][0]["samples"].size() == 11);
  CHECK(merged["chapters"][1]["problem"]["seqlen_q"] == attention::Problem{}.seqlen_q);
  CHECK(merged["chapters"][0]["tables"]["ceilings"]["rows"][0][1] == "5 TB/s");
}

TEST_CASE("A chapter measured again leaves the others as they are", "[stage]") {
  const Book book;
  const std::string path = book.file("docs/results/nvidia-test-9000.json");
  REQUIRE(book.merge({"2.json"}, "aaaaaaaaaaaa").code == 0);
  REQUIRE(book.merge({"0.json"}, "bbbbbbbbbbbb").code == 0);
  const auto before = nlohmann::ordered_json::parse(read(path));
  REQUIRE(before["chapters"].size() == 2);
  CHECK(before["chapters"][0]["commit"] == "bbbbbbbbbbbb");
  CHECK(before["chapters"][1]["commit"] == "aaaaaaaaaaaa");

  stage::Results again = measured("02", "second", 1e-4);
  again.machine.driver = "1.3";
  write(book.file("2.json"), stage::to_json(again));
  book.hash(kHashB);
  REQUIRE(book.merge({"2.json"}, "cccccccccccc").code == 0);
  const auto after = nlohmann::ordered_json::parse(read(path));
  REQUIRE(after["chapters"].size() == 2);
  CHECK(after["chapters"][0].dump() == before["chapters"][0].dump());
  CHECK(after["chapters"][1]["commit"] == "cccccccccccc");
  CHECK(after["chapters"][1]["machine"]["driver"] == "1.3");
  CHECK(after["chapters"][1]["hashes"]["b.hpp"] == kHashB);

  // The tables say of each where it is from.
  REQUIRE(book.tables().code == 0);
  CHECK_THAT(book.ladder(), ContainsText("- 00: NVIDIA Test (9000), 7 multiprocessors at up to 1500 MHz, driver 1.2,"));
  CHECK_THAT(book.ladder(), ContainsText("- 02: NVIDIA Test (9000), 7 multiprocessors at up to 1500 MHz, driver 1.3,"));
  CHECK_THAT(book.chapter("00_first"), ContainsText("commit `bbbbbbbbbbbb`"));
  CHECK_THAT(book.chapter("02_second"),
             ContainsText("driver 1.3, CUDA 13.0; measured on 2001-02-03, commit `cccccccccccc`"));
  CHECK(!contains(book.ladder(), "tale"));

  // A chapter that is gone takes its results with it, and that is said.
  write(book.file("hashes"), kHashA + "  chapters/02_second/b.hpp\n");
  const Outcome outcome = book.merge({"2.json"});
  REQUIRE(outcome.code == 0);
  CHECK_THAT(outcome.out, ContainsText("Dropped what is no chapter any more: 00_first.\n"));
  CHECK(nlohmann::json::parse(read(path))["chapters"].size() == 1);
  CHECK(!contains(book.merge({"2.json"}).out, "Dropped"));
}

TEST_CASE("Merging changes no byte of the chapters that are not measured", "[stage]") {
  const Book book;
  const std::string path = book.file("docs/results/nvidia-test-9000.json");
  stage::Results third = measured("03", "third", 1e-3 / 3);  // figures whose shortest decimals are long
  third.rows[0].error = 8.182403511963308e-08;
  third.rows[0].samples = {0.0011912960000000001, 5e-324, 1.7976931348623157e308};
  write(book.file("3.json"), stage::to_json(third));
  write(book.file("hashes"), read(book.file("hashes")) + kHashA + "  chapters/03_third/c.cuh\n");
  write(book.file("seen"), "before: clocks.sm: 345 MHz\n");
  REQUIRE(book.merge({"0.json", "2.json", "3.json", "--seen", book.file("seen")}, "aaaaaaaaaaaa").code == 0);
  const std::string before = read(path);

  // The same chapter under another commit: only that line of its entry, the second of three, is another.
  REQUIRE(book.merge({"2.json", "--seen", book.file("seen")}, "cccccccccccc").code == 0);
  std::string wanted = before;
  const std::size_t second = wanted.find("aaaaaaaaaaaa\"", wanted.find("\"number\": \"02\""));
  REQUIRE(second < wanted.find("\"number\": \"03\""));
  CHECK(read(path) == wanted.replace(second, 12, "cccccccccccc"));
}

TEST_CASE("A GPU's file that cannot be read or is of another GPU is left as it is", "[stage]") {
  const Book book;
  const std::string path = book.file("docs/results/nvidia-test-9000.json");
  const auto check_left = [&](const std::string& text, const std::string& sentence) {
    CAPTURE(text.substr(0, 100));
    write(path, text);
    check_refused(book.merge({"2.json"}), sentence);
    CHECK(read(path) == text);
  };
  check_left("{\"format\": 2, \"chapters\": [", "nvidia-test-9000.json' holds no results");
  check_left("", "nvidia-test-9000.json' holds no results");
  check_left("{\"format\": 1}", "its format is another than this program reads");
  check_left("{\"format\": 2, \"chapters\": {}}", "its chapters are no list");

  std::filesystem::remove(path);
  REQUIRE(book.merge({"0.json"}).code == 0);
  auto json = nlohmann::ordered_json::parse(read(path));
  for (const char* key : {"date", "commit", "hashes", "machine", "rows"}) {
    auto without = json;
    without["chapters"][0].erase(key);
    check_left(without.dump(), "nvidia-test-9000.json' holds no results");
  }
  json["chapters"][0]["machine"]["multiprocessors"] = 8;
  check_left(json.dump(), "with 7 multiprocessors, but '");
  json["chapters"][0]["machine"]["multiprocessors"] = 7;
  json["chapters"][0]["machine"]["name"] = "NVIDIA Test 9000";  // the same file name
  check_left(json.dump(), "holds results of NVIDIA Test 9000 with 7: move that file away");
}

TEST_CASE("The ladder's head says what is the same for all chapters once", "[stage]") {
  const Book book;
  REQUIRE(book.merge({"0.json"}, "aaaaaaaaaaaa").code == 0);
  REQUIRE(book.merge({"2.json"}, "bbbbbbbbbbbb").code == 0);
  REQUIRE(book.tables().code == 0);
  CHECK_THAT(
      book.ladder(),
      ContainsText("\nNVIDIA Test (9000), 7 multiprocessors at up to 1500 MHz, driver 1.2, CUDA 13.0; measured:\n\n"
                   "- 00: on 2001-02-03, commit `aaaaaaaaaaaa`.\n- 02: on 2001-02-03, commit `bbbbbbbbbbbb`.\n\n"
                   "A ratio stands"));
}

TEST_CASE("Results of another driver or CUDA are not set in proportion", "[stage]") {
  const Book book;
  stage::Results ceilings = measured("00", "first", 1e-3);
  ceilings.figures = {{"fp32_flops_per_second", 2.5e12}};
  write(book.file("0.json"), stage::to_json(ceilings));
  REQUIRE(book.merge({"0.json", "2.json"}).code == 0);
  REQUIRE(book.tables().code == 0);
  CHECK_THAT(book.ladder(), ContainsText("| 2.00x |"));
  CHECK_THAT(book.ladder(), ContainsText("| 80.0 % |"));
  CHECK_THAT(book.chapter("02_second"), ContainsText("of measured fp32 ceiling"));
  CHECK(!contains(book.ladder(), "| machine |"));

  for (const bool driver : {true, false}) {
    CAPTURE(driver);
    stage::Results other = measured("02", "second", 5e-4);
    (driver ? other.machine.driver : other.machine.cuda) = "13.1";
    write(book.file("2.json"), stage::to_json(other));
    REQUIRE(book.merge({"2.json"}).code == 0);
    REQUIRE(book.tables().code == 0);
    CHECK(!contains(book.ladder(), "2.00x"));
    CHECK(!contains(book.ladder(), "80.0 %"));
    CHECK_THAT(book.ladder(), ContainsText("| driver 1.2, CUDA 13.0 |"));
    CHECK_THAT(book.ladder(), ContainsText(driver ? "| driver 13.1, CUDA 13.0 |" : "| driver 1.2, CUDA 13.1 |"));
    CHECK(!contains(book.chapter("02_second"), "of measured fp32 ceiling"));
  }
}

TEST_CASE("What is no measurement is not merged", "[stage]") {
  const Book book;
  const auto check_merge_refused = [&](const std::string& text, const std::string& sentence) {
    write(book.file("bad.json"), text);
    check_refused(book.merge({"0.json", "bad.json"}), sentence);
    CHECK(std::filesystem::is_empty(book.file("docs/results")));
  };
  const stage::Results good = measured("02", "second", 1);
  check_merge_refused("{", "holds no results");
  check_merge_refused("[]", "holds no results");
  check_merge_refused("{}", "holds no results");
  for (const char* key : {"format", "chapter", "machine", "problem", "right", "rows", "tables"}) {
    auto json = nlohmann::json::parse(stage::to_json(good));
    json.erase(key);
    CAPTURE(key);
    check_merge_refused(json.dump(), "holds no results");
  }
  check_merge_refused(stage::to_json(measured("00", "first", 1)), "second file of 00_first");
  check_merge_refused(stage::to_json(measured("03", "third", 1)), "no hash");
  stage::Results other = good;
  other.machine.driver = "1.3";
  check_merge_refused(stage::to_json(other), "another machine");
  other = good;
  other.machine.emulated = true;
  check_merge_refused(stage::to_json(other), "emulator");
  other = good;
  other.right = false;
  check_merge_refused(stage::to_json(other), "not right");

  check_refused(book.merge({"absent.json"}), "cannot be read");
  check_refused(book.merge({}), "a file are needed");
  write(book.file("hashes"), "abc  chapters/00_first/a.cuh\n");
  check_refused(book.merge({"0.json"}), "no hash of a kernel file");
  for (const std::string path : {"docs/a.cuh", "common/", "common", "chapters/a.cuh"}) {
    write(book.file("hashes"), kHashA + "  " + path + "\n");
    check_refused(book.merge({"0.json"}), "no hash of a kernel file");
  }
  CHECK(std::filesystem::is_empty(book.file("docs/results")));
}

TEST_CASE("Without results the READMEs say how to get them", "[stage]") {
  const Book book;
  CHECK(book.tables({"--check"}).code == 1);
  CHECK(book.tables().code == 0);
  CHECK_THAT(book.ladder(), ContainsText("appears after `./learn bench`"));
  CHECK_THAT(book.chapter("02_second"), ContainsText("appears after `./learn bench`"));
  CHECK(book.tables({"--check"}).code == 0);
  std::filesystem::remove_all(book.file("docs"));
  CHECK(book.tables({"--check"}).code == 0);
}

TEST_CASE("Tables stand between the markers, and only there", "[stage]") {
  const Book book;
  REQUIRE(book.merge({"0.json", "2.json"}).code == 0);
  const std::string before = book.chapter("02_second");
  const Outcome check = book.tables({"--check"});
  CHECK(check.code == 1);
  CHECK(lines(check.err) == 1);
  CHECK_THAT(check.err, ContainsText("README.md, chapters/00_first/README.md, chapters/02_second/README.md"));
  CHECK(book.chapter("02_second") == before);

  CHECK(book.tables().code == 0);
  const std::string second = book.chapter("02_second");
  CHECK(second.starts_with(
      "before\n\n<!-- results:02 -->\n\nNVIDIA Test (9000), 7 multiprocessors at up to 1500 MHz, driver "
      "1.2, CUDA 13.0; measured on 2001-02-03, commit `0123456789ab-dirty`.\n"));
  CHECK(second.ends_with("\n<!-- /results -->\n\nafter, no newline"));
  CHECK_THAT(second, ContainsText("Problem: batch"));
  CHECK_THAT(second,
             ContainsText("| `second_kernel` | right | 1.0e-07 | 500.0 us | 480.0 us … 520.0 us | 2.00 | 50.0 % |"));
  CHECK_THAT(second, ContainsText("- `second_kernel`: a kernel \\| with a bar"));
  CHECK(!contains(second, "ceiling"));  // not named in its marker
  CHECK(!contains(second, "stale"));
  CHECK_THAT(book.chapter("00_first"), ContainsText("| L2 \\| read | 5 TB/s |"));
  CHECK_THAT(book.ladder(), ContainsText("| 02 second | `second_kernel` | right |"));
  CHECK_THAT(book.ladder(), ContainsText("| 2.00x |"));

  // A second time, nothing changes.
  CHECK(book.tables().code == 0);
  CHECK(book.chapter("02_second") == second);
  CHECK(book.tables({"--check"}).code == 0);
}

TEST_CASE("A changed kernel file makes its chapter's rows stale", "[stage]") {
  const Book book;
  REQUIRE(book.merge({"0.json", "2.json"}).code == 0);
  REQUIRE(book.tables().code == 0);
  book.hash(kHashB);
  CHECK(book.tables({"--check"}).code == 1);
  REQUIRE(book.tables().code == 0);
  CHECK_THAT(book.chapter("02_second"), ContainsText("| `second_kernel` (stale) |"));
  CHECK_THAT(book.chapter("02_second"), ContainsText("Stale: "));
  CHECK(!contains(book.chapter("00_first"), "tale"));
  CHECK_THAT(book.ladder(), ContainsText("| `second_kernel` (stale) |"));
  CHECK_THAT(book.ladder(), ContainsText("| `first_kernel` |"));

  // So do a file that came and a file that went.
  write(book.file("hashes"), kHashA + "  chapters/00_first/a.cuh\n" + kHashB + "  chapters/00_first/new.cuh\n");
  REQUIRE(book.tables().code == 0);
  CHECK_THAT(book.chapter("00_first"), ContainsText("| `first_kernel` (stale) |"));
  CHECK_THAT(book.chapter("00_first"), ContainsText("| L2 \\| read (stale) |"));
  CHECK_THAT(book.chapter("02_second"), ContainsText("(stale)"));
}

TEST_CASE("A changed header in common makes all rows stale", "[stage]") {
  const Book book;
  const auto hash_common = [&](const std::string& hash) {
    book.hash(kHashA);
    write(book.file("hashes"), read(book.file("hashes")) + hash + "  common/gpu/launch.cuh\n");
  };
  hash_common(kHashA);
  REQUIRE(book.merge({"0.json", "2.json"}).code == 0);
  const std::string path = book.file("docs/results/nvidia-test-9000.json");
  CHECK(nlohmann::json::parse(read(path))["chapters"][1]["common"]["gpu/launch.cuh"] == kHashA);
  REQUIRE(book.tables().code == 0);
  CHECK(!contains(book.ladder(), "tale"));
  CHECK(book.tables({"--check"}).code == 0);

  hash_common(kHashB);
  CHECK(book.tables({"--check"}).code == 1);
  REQUIRE(book.tables().code == 0);
  CHECK_THAT(book.ladder(), ContainsText("| `first_kernel` (stale) |"));
  CHECK_THAT(book.chapter("02_second"), ContainsText("| `second_kernel` (stale) |"));
  CHECK_THAT(book.chapter("02_second"), ContainsText("headers in common"));

  // One that came since belongs to another chapter; one that is gone tells of a change.
  hash_common(kHashA);
  write(book.file("hashes"), read(book.file("hashes")) + kHashB + "  common/gpu/tma.cuh\n");
  REQUIRE(book.tables().code == 0);
  CHECK(!contains(book.ladder(), "tale"));
  book.hash(kHashA);
  write(book.file("hashes"), read(book.file("hashes")) + kHashB + "  common/gpu/tma.cuh\n");
  REQUIRE(book.tables().code == 0);
  CHECK_THAT(book.ladder(), ContainsText("| `first_kernel` (stale) |"));
}

TEST_CASE("What the GPU said about its clocks is kept", "[stage]") {
  const Book book;
  write(book.file("seen"), "before: clocks.sm: 345 MHz\nafter 00_first: clocks.sm: 1980 MHz\n");
  REQUIRE(book.merge({"0.json", "--seen", book.file("seen")}).code == 0);
  const auto merged = nlohmann::json::parse(read(book.file("docs/results/nvidia-test-9000.json")));
  REQUIRE(merged["chapters"][0]["seen"].size() == 2);
  CHECK(merged["chapters"][0]["seen"][1] == "after 00_first: clocks.sm: 1980 MHz");
}

TEST_CASE("Ratios, peers and chapter 00's measured ceiling are tabled", "[stage]") {
  const Book book;
  stage::Results ceilings = measured("00", "first", 1e-3);
  ceilings.figures = {{"fp32_flops_per_second", 2.5e12}};
  ceilings.figure_samples["fp32_flops_per_second"] = {.work = 2.5e9, .seconds = {1e-3, 0.00123456789}};
  stage::Results results = measured("02", "second", 5e-4);
  stage::Row next = results.rows[0], peer = results.rows[0], on_host = results.rows[0];
  next.kernel = "next_kernel";
  next.step_before = stage::Ratio{1.25, 1.2, 1.3};
  next.best_peer = stage::Ratio{0.8, 0.75, 0.85};
  next.best_peer_name = peer.kernel = "other_library";
  next.workspace_bytes = 4096;
  peer.is_peer = true;
  on_host.kernel = "plain (CPU)";
  on_host.on_host = true;
  on_host.peak_flops.reset();
  results.rows = {on_host, results.rows[0], next, peer};
  results.grid = {{attention::Problem{}, results.rows}};
  write(book.file("0.json"), stage::to_json(ceilings));
  write(book.file("2.json"), stage::to_json(results));
  REQUIRE(book.merge({"0.json", "2.json"}).code == 0);

  const std::string text = read(book.file("docs/results/nvidia-test-9000.json"));
  CHECK_THAT(text, ContainsText("\"seconds\": [0.001,0.001234568]"));  // one line, seven digits
  const auto merged = nlohmann::json::parse(text);
  CHECK(merged["chapters"][0]["figure_samples"]["fp32_flops_per_second"]["work"] == 2.5e9);
  CHECK(merged["chapters"][1]["rows"][2]["best_peer"]["name"] == "other_library");
  CHECK(merged["chapters"][1]["rows"][2]["step_before"]["low"] == 1.2);
  CHECK(merged["chapters"][1]["rows"][3]["is_peer"] == true);
  CHECK(merged["chapters"][1]["grid"][0]["rows"].size() == 4);
  CHECK(merged["chapters"][1]["grid"][0]["problem"]["batch"] == 1);

  REQUIRE(book.tables().code == 0);
  const std::string chapter = book.chapter("02_second");
  CHECK_THAT(chapter, ContainsText("| of roof | of measured fp32 ceiling | × step before | × best peer | workspace |"));
  CHECK_THAT(chapter, ContainsText("| 50.0 % | 80.0 % | 1.25x (1.20 … 1.30) | 0.80x (0.75 … 0.85) | 4.10 KB |"));
  CHECK_THAT(chapter,
             ContainsText("| `plain (CPU)` | right | 1.0e-07 | 500.0 us | 480.0 us … 520.0 us | 2.00 | - | - |"));
  CHECK_THAT(chapter, ContainsText("| `other_library` |"));
  CHECK_THAT(chapter, ContainsText("× best peer: the same with the time of `other_library`"));
  CHECK_THAT(book.ladder(), ContainsText("| 1.25x (1.20 … 1.30) | 0.80x (0.75 … 0.85) |"));
  CHECK(!contains(book.ladder(), "`other_library`"));

  // A file from before there were rounds is read as it was.
  auto older = merged;
  for (auto& of_chapter : older["chapters"]) {
    of_chapter.erase("figure_samples");
    of_chapter.erase("grid");
    for (auto& row : of_chapter["rows"]) {
      for (const char* key : {"on_host", "is_peer", "step_before", "best_peer"}) row.erase(key);
    }
  }
  write(book.file("docs/results/nvidia-test-9000.json"), older.dump());
  REQUIRE(book.tables().code == 0);
  CHECK_THAT(book.chapter("02_second"), ContainsText("| `next_kernel` | right |"));
  CHECK_THAT(book.chapter("02_second"), ContainsText("| 50.0 % | 80.0 % | 1.00x |"));
}

TEST_CASE("Markers or results that are not as they should be change nothing", "[stage]") {
  const Book book;
  REQUIRE(book.merge({"0.json", "2.json"}).code == 0);
  const std::string ladder = book.ladder(), first = book.chapter("00_first");
  const auto check_unchanged = [&](const std::string& sentence) {
    check_refused(book.tables(), sentence);
    check_refused(book.tables({"--check"}), sentence);
    CHECK(book.ladder() == ladder);
    CHECK(book.chapter("00_first") == first);
  };
  const std::string begin = "<!-- results:02 -->\n", end = "<!-- /results -->\n";
  for (const std::string& text : {std::string(), begin, end, end + begin, begin + end + begin + end, begin + end + end,
                                  "<!-- results:03 -->\n" + end, "<!-- results:03 -->\n" + begin + end}) {
    CAPTURE(text);
    write(book.file("chapters/02_second/README.md"), text);
    check_unchanged("chapters/02_second/README.md' has");
  }
  std::filesystem::remove(book.file("chapters/02_second/README.md"));
  check_unchanged("cannot be read");
  write(book.file("chapters/02_second/README.md"), begin + end);

  const std::string path = book.file("docs/results/nvidia-test-9000.json"), good = read(path);
  for (const std::string& text : {std::string(), std::string("[]"), good.substr(0, good.size() / 2)}) {
    write(path, text);
    check_unchanged("nvidia-test-9000.json' holds no results");
  }
  const auto parsed = nlohmann::json::parse(good);
  for (const auto& [key, value] : parsed.items()) {
    CAPTURE(key);
    auto json = parsed;
    json.erase(key);
    write(path, json.dump());
    check_unchanged("nvidia-test-9000.json' holds no results");
  }
  auto json = parsed;
  json["chapters"][1]["rows"][0]["samples"] = "many";
  write(path, json.dump());
  check_unchanged("nvidia-test-9000.json' holds no results");
}

TEST_CASE("The results program answers a wrong command line", "[stage]") {
  const Book book;
  check_refused(run_results({}), "there is no command ''");
  check_refused(run_results({"paint"}), "there is no command 'paint'; allowed: merge, tables, plot, --help");
  check_refused(run_results({"tables", book.file("")}), "--hashes is missing");
  check_refused(run_results({"tables", book.file(""), "--hashes"}), "--hashes needs a value");
  check_refused(book.tables({"--fast"}), "unknown argument '--fast'");
  check_refused(book.tables({"second"}), "one folder is needed");
  check_refused(run_results({"merge", book.file("absent"), book.file("0.json")}), "is no folder");
  const Outcome help = run_results({"--help"});
  CHECK(help.code == 0);
  CHECK_THAT(help.out, ContainsText("results merge"));
}

TEST_CASE("Backward rows stand in tables of their own, in the chapter and in the ladder", "[stage][backward]") {
  const Book book;
  stage::Results both = measured("02", "second", 1e-3);
  stage::Row gradients = both.rows.front();
  gradients.kernel = "gradients";
  gradients.pass = stage::Pass::backward;
  gradients.flops = 5e9;
  both.rows.push_back(gradients);
  write(book.file("both.json"), stage::to_json(both));
  REQUIRE(book.merge({"0.json", "both.json"}).code == 0);
  REQUIRE(book.tables().code == 0);
  const auto parts = [](const std::string& text, const std::string& heading) {
    const auto at = text.find(heading);
    REQUIRE(at != std::string::npos);
    return std::pair(text.substr(0, at), text.substr(at));
  };
  const auto [forward, backward] = parts(book.chapter("02_second"), "\nBackward:\n\n| kernel |");
  CHECK_THAT(forward, ContainsText("\nForward:\n\n| kernel |"));
  CHECK_THAT(forward, ContainsText("| `second_kernel` |"));
  CHECK(!contains(forward, "gradients"));
  CHECK_THAT(backward, ContainsText("| `gradients` | right | 1.0e-07 | 1.000 ms | 960.0 us … 1.040 ms | 5.00 |"));
  CHECK(!contains(backward, "second_kernel"));
  CHECK(!contains(backward, "1.00x"));  // there is no step from a forward

  const auto [ladder, backward_ladder] =
      parts(book.ladder(), "\nBackward, credited with 2.5 times the forward's FLOPs:\n\n| chapter |");
  CHECK_THAT(ladder, ContainsText("| `second_kernel` |"));
  CHECK(!contains(ladder, "gradients"));
  CHECK_THAT(backward_ladder, ContainsText("| 02 second | `gradients` |"));
  CHECK(!contains(backward_ladder, "second_kernel"));

  // A chapter with a backward alone needs no heading, nor does one with a forward alone.
  both.rows.erase(both.rows.begin());
  write(book.file("backward.json"), stage::to_json(both));
  REQUIRE(book.merge({"0.json", "backward.json"}).code == 0);
  REQUIRE(book.tables().code == 0);
  CHECK(!contains(book.chapter("02_second"), "ward:"));
  CHECK_THAT(book.chapter("02_second"), ContainsText("| `gradients` |"));
  CHECK(!contains(book.chapter("00_first"), "ward:"));
}

TEST_CASE("Two element types of a chapter are two results", "[stage][types]") {
  const Book book;
  const auto in_type = [](attention::ElementType type, double seconds) {
    stage::Results results = measured("02", "second", seconds);
    results.problem->element_type = type;
    return stage::to_json(results);
  };
  stage::Results ceilings = measured("00", "first", 1e-3);
  ceilings.figures = {{"fp32_flops_per_second", 2.5e12}};
  write(book.file("0.json"), stage::to_json(ceilings));
  write(book.file("bf16.json"), in_type(attention::ElementType::bf16, 1e-3));
  write(book.file("fp16.json"), in_type(attention::ElementType::fp16, 5e-4));
  write(book.file("again.json"), in_type(attention::ElementType::bf16, 1e-3));
  check_refused(book.merge({"0.json", "bf16.json", "again.json"}), "is the second file of 02_second, bf16");
  CHECK(std::filesystem::is_empty(book.file("docs/results")));

  REQUIRE(book.merge({"bf16.json", "0.json", "fp16.json", "2.json"}).code == 0);
  const auto merged = nlohmann::json::parse(read(book.file("docs/results/nvidia-test-9000.json")));
  REQUIRE(merged["chapters"].size() == 4);
  CHECK(merged["chapters"][1]["problem"]["dtype"] == "fp32");
  CHECK(merged["chapters"][2]["problem"]["dtype"] == "fp16");
  CHECK(merged["chapters"][3]["problem"]["dtype"] == "bf16");
  CHECK(merged["chapters"][3]["hashes"]["b.hpp"] == kHashA);

  REQUIRE(book.tables().code == 0);
  const std::string chapter = book.chapter("02_second");
  const auto at_fp32 = chapter.find("head_dim 0, no mask, fp32.\n"), at_fp16 = chapter.find("no mask, fp16.\n"),
             at_bf16 = chapter.find("no mask, bf16.\n");
  CHECK(at_fp32 < at_fp16);
  CHECK(at_fp16 < at_bf16);
  REQUIRE(at_bf16 != std::string::npos);
  // The measured ceiling is that of fp32, and so is the roof where nothing is said.
  CHECK_THAT(chapter.substr(0, at_fp16), ContainsText("| 50.0 % | 80.0 % |"));
  CHECK(!contains(chapter.substr(0, at_fp16), "of roof: "));
  for (const std::string& part : {chapter.substr(at_fp16, at_bf16 - at_fp16), chapter.substr(at_bf16)}) {
    CHECK(!contains(part, "fp32"));
    CHECK_THAT(part, ContainsText("- of roof: the datasheet's peak of the tensor cores, or what device memory allows"));
  }
  CHECK_THAT(book.ladder(),
             ContainsText("the same problem. The roof is in fp32 the datasheet's peak of the fp32 units,"));
  CHECK_THAT(book.ladder(), ContainsText("no mask, fp16 |"));

  // One hash of the chapter's files makes all of them stale.
  book.hash(kHashB);
  REQUIRE(book.tables().code == 0);
  const std::string stale = book.chapter("02_second");
  std::size_t rows = 0;
  for (auto at = stale.find("| `second_kernel` (stale) |"); at != std::string::npos;
       at = stale.find("| `second_kernel` (stale) |", at + 1)) {
    ++rows;
  }
  CHECK(rows == 3);
}
