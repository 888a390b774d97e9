/// \file
/// The emulator's counts and a GPU's: collected in files, compared, tabled. All figures here are made up.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/stage/counts_file.hpp"
#include "common/stage/counts_markdown.hpp"
#include "tests/catch.hpp"
#include "tests/common/stage/program_under_test.hpp"

namespace {

using namespace stage_test;
using Json = nlohmann::ordered_json;

const std::string kHashA(64, 'a'), kHashB(64, 'b');

Json kernel_counts(const std::string& kernel, int sectors) {
  return {{"kernel", kernel},
          {"launches", 1},
          {"blocks", 8},
          {"global_loads", {{"bytes", 30 * sectors}, {"requests", 100}, {"sectors", sectors}}},
          {"global_stores", {{"bytes", 3200}, {"requests", 50}, {"sectors", 200}}},
          {"shared_loads", {{"bytes", 0}, {"requests", 10}, {"wavefronts", 12}, {"conflicts", 2}}},
          {"shared_stores", {{"bytes", 0}, {"requests", 0}, {"wavefronts", 0}, {"conflicts", 0}}},
          {"barriers", 16}};
}

/// What a chapter's program writes with --count --json.
Json chapter(const std::string& number, bool emulated, Json kernels) {
  Json machine = {{"name", emulated ? "emulator" : "NVIDIA Test (9000)"},
                  {"emulated", emulated},
                  {"checked", emulated},
                  {"multiprocessors", 7}};
  if (!emulated) {
    machine["driver"] = "1.2";
    machine["cuda"] = "13.0";
    machine["clock_khz"] = 1500000;
    machine["built_for"] = "sm_" + number;
  }
  return {{"format", 1},        {"chapter", {{"number", number}, {"name", "test"}}},
          {"machine", machine}, {"problem", {{"text", "batch 1, small"}}},
          {"right", true},      {"kernel_counts", kernels}};
}

std::string header() {
  std::string line = "\"ID\",\"Kernel Name\"", units = "\"\",\"\"";
  for (const auto& quantity : stage::counted_quantities()) {
    line += ",\"" + std::string(quantity.metric) + "\"";
    units += ",\"\"";
  }
  for (const char* unit : {"requests", "sectors"}) {
    for (const char* operation : {"red", "atom"}) {
      line += std::string(",\"l1tex__t_") + unit + "_pipe_lsu_mem_global_op_" + operation + ".sum\"";
      units += ",\"\"";
    }
  }
  return line + "\n" + units + "\n";
}

/// A row of ncu's; the order of the quantities is that of stage::counted_quantities, and the atomics' counters follow.
std::string launch(const std::string& kernel, const std::string& sectors, const std::string& atomic_sectors = "0") {
  return "\"0\",\"" + kernel + "\",\"100\",\"" + sectors +
         "\",\"50\",\"200\",\"10\",\"12\",\"3\",\"0\",\"0\",\"n/a\",\"0\",\"0\",\"" + atomic_sectors + "\",\"0\"\n";
}

class Files {
 public:
  Files() {
    std::filesystem::create_directories(file("results"));
    write(file("hashes"), kHashA + "  chapters/02_test/a.cuh\n" + kHashA + "  common/gpu/a.cuh\n");
    write(file("2.json"),
          chapter("02", true, Json::array({kernel_counts("f<64>", 1000), kernel_counts("g", 400)})).dump());
    write(file("1.json"), chapter("01", true, Json::array()).dump());
    write(file("gpu.json"), chapter("02", false, Json::array()).dump());
    write(file("gpu.csv"), header() + launch("void a::f<(int)64>(int)", "600") + launch("g(int)", "395", "10") +
                               launch("void a::f<(int)64>(int)", "4,00"));
  }
  std::string file(const std::string& name) const { return folder_.file(name); }
  std::string emulated() const { return file("results/emulator-counts.json"); }
  std::string measured() const { return file("results/nvidia-test-9000-counts.json"); }
  Outcome emulator(const std::vector<std::string>& more = {}, const std::string& json = "2.json") const {
    std::vector<std::string> words = {"emulator", emulated()};
    words.insert(words.end(), more.begin(), more.end());
    words.push_back(file("1.json"));
    words.push_back(file(json));
    return run_counts(words);
  }
  Outcome gpu(const std::string& json = "gpu.json", const std::string& csv = "gpu.csv") const {
    return run_counts({"gpu", file("results"), "--date", "2001-02-03", "--commit", "abc", "--hashes", file("hashes"),
                       file(json), file(csv)});
  }

 private:
  TemporaryFolder folder_;
};

void check_refused(const Outcome& outcome, const std::string& sentence) {
  CHECK(outcome.code == 2);
  CHECK(outcome.out == "");
  CHECK(lines(outcome.err) == 1);
  CHECK_THAT(outcome.err, ContainsText(sentence));
  CHECK_THAT(outcome.err, ContainsText("allowed: "));
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("The emulator's counts become a file that --check compares", "[stage]") {
  const Files files;
  Outcome check = files.emulator({"--check"});
  CHECK(check.code == 1);
  CHECK(lines(check.err) == 1);
  CHECK_THAT(check.err, ContainsText("./learn count writes it"));
  CHECK(!std::filesystem::exists(files.emulated()));

  CHECK(files.emulator().code == 0);
  CHECK(files.emulator({"--check"}).code == 0);
  const Json written = Json::parse(read(files.emulated()));
  REQUIRE(written["chapters"].size() == 1);  // chapter 01 has no kernels
  CHECK(written["chapters"][0]["kernels"][0]["global_loads"]["sectors"] == 1000);
  CHECK(written["chapters"][0]["kernels"][0]["barriers"] == 16);
  CHECK(!written.contains("date"));

  const std::string before = read(files.emulated());
  write(files.file("2.json"), chapter("02", true, Json::array({kernel_counts("f<64>", 1001)})).dump());
  CHECK(files.emulator({"--check"}).code == 1);
  CHECK(read(files.emulated()) == before);
  CHECK(files.emulator().code == 0);
  CHECK(read(files.emulated()) != before);
}

TEST_CASE("What is no count of the emulator is refused", "[stage]") {
  const Files files;
  const auto check = [&](const Json& object, const std::string& sentence) {
    write(files.file("bad.json"), object.dump());
    check_refused(files.emulator({}, "bad.json"), sentence);
    CHECK(!std::filesystem::exists(files.emulated()));
  };
  const Json good = chapter("02", true, Json::array({kernel_counts("f", 1)}));
  check(Json::object(), "holds no counts");
  Json bad = good;
  bad.erase("kernel_counts");
  check(bad, "holds no counts");
  bad = good;
  bad["kernel_counts"][0]["shared_loads"].erase("conflicts");
  check(bad, "holds no counts");
  bad = good;
  bad["machine"]["checked"] = false;
  check(bad, "the checking emulator");
  bad = good;
  bad["right"] = false;
  check(bad, "not right");
  write(files.file("1.json"), good.dump());
  check(good, "second file of 02_test");
  check_refused(run_counts({"emulator", files.emulated()}), "a file to read");
  check_refused(run_counts({}), "no command ''");
}

TEST_CASE("A GPU's counters are added up by kernel", "[stage]") {
  const Files files;
  CHECK(files.gpu().code == 0);
  const Json written = Json::parse(read(files.measured()));
  CHECK(written["date"] == "2001-02-03");
  CHECK(written["machine"]["driver"] == "1.2");
  CHECK(written["common"]["gpu/a.cuh"] == kHashA);
  const Json& here = written["chapters"][0];
  CHECK(here["hashes"]["a.cuh"] == kHashA);
  REQUIRE(here["kernels"].size() == 2);
  CHECK(here["kernels"][0]["kernel"] == "f<64>");
  CHECK(here["kernels"][0]["launches"] == 2);
  CHECK(here["kernels"][0]["global_loads"]["sectors"] == 1000);
  CHECK(here["kernels"][0]["shared_loads"]["conflicts"] == 6);
  CHECK(here["kernels"][0]["shared_stores"]["conflicts"].is_null());
  CHECK(here["kernels"][1]["global_loads"]["sectors"] == 395 + 10);   // an atomic loads
  CHECK(here["kernels"][1]["global_stores"]["sectors"] == 200 + 10);  // and stores

  const auto counts = stage::read_counts(files.measured());
  CHECK(counts.chapters[0].kernels[0].value({"global_loads", "sectors", ""}).value() == 1000);
  CHECK(!counts.chapters[0].kernels[0].value({"shared_stores", "conflicts", ""}));
}

TEST_CASE("What is no count of a GPU is refused", "[stage]") {
  const Files files;
  check_refused(files.gpu("2.json"), "comes from the emulator");
  check_refused(files.gpu("absent.json"), "cannot be read");
  check_refused(files.gpu("gpu.json", "hashes"), "no header");
  write(files.file("3.json"), chapter("03", false, Json::array()).dump());
  check_refused(files.gpu("3.json"), "no hash");
  check_refused(run_counts({"gpu", files.file("results"), files.file("gpu.json"), files.file("gpu.csv")}),
                "is missing");
  check_refused(run_counts({"gpu", files.file("absent"), "--date", "d", "--commit", "c", "--hashes",
                            files.file("hashes"), files.file("gpu.json"), files.file("gpu.csv")}),
                "is no folder");
  CHECK(std::filesystem::is_empty(files.file("results")));
}

TEST_CASE("The counts' table sets both sides beside each other", "[stage]") {
  const Files files;
  REQUIRE(files.emulator().code == 0);
  REQUIRE(files.gpu().code == 0);
  const auto emulator = stage::read_counts(files.emulated()), gpu = stage::read_counts(files.measured());
  stage::KernelHashes present = {{"02_test", {{"a.cuh", kHashA}}}, {stage::kCommon, {{"gpu/a.cuh", kHashA}}}};
  const std::string text = stage::counts_markdown(emulator, {gpu}, present);
  CHECK_THAT(text, ContainsText("NVIDIA Test (9000)"));
  CHECK_THAT(text, ContainsText("### 02_test\n\nProblem: batch 1, small.\n"));
  // Sectors as bytes, then requests; the GPU's f ran twice.
  CHECK_THAT(text, ContainsText("| `f<64>` | loads | 32,000 | 32,000 | 0 % | 100 | 200 | +100.00 % |"));
  CHECK_THAT(text, ContainsText("| `g` | loads | 12,800 | 12,960 | **+1.25 %** | 100 | 100 | 0 % |"));
  // Wavefronts, conflicts, requests; conflicts are never marked.
  CHECK_THAT(text, ContainsText("| `g` | loads | 12 | 12 | 0 % | 2 | 3 | +50.00 % | 10 | 10 | 0 % |"));
  CHECK_THAT(text, ContainsText("- `f<64>` was launched 1 times on the emulator and 2 times on the GPU"));
  CHECK(!contains(text, "stale"));

  present["02_test"]["a.cuh"] = kHashB;
  CHECK_THAT(stage::counts_markdown(emulator, {gpu}, present), ContainsText("| `g` (stale) |"));
  present["02_test"]["a.cuh"] = kHashA;
  present[stage::kCommon]["gpu/a.cuh"] = kHashB;
  CHECK_THAT(stage::counts_markdown(emulator, {gpu}, present), ContainsText("| `g` (stale) |"));
}

TEST_CASE("A difference of one per cent in sectors is not marked", "[stage]") {
  const Files files;
  write(files.file("gpu.csv"), header() + launch("f<64>(int)", "1010") + launch("h(int)", "1"));
  REQUIRE(files.emulator().code == 0);
  REQUIRE(files.gpu().code == 0);
  const std::string text =
      stage::counts_markdown(stage::read_counts(files.emulated()), {stage::read_counts(files.measured())}, {});
  CHECK_THAT(text, ContainsText("| +1.00 % |"));
  CHECK(!contains(text, "**+1"));
  CHECK_THAT(text, ContainsText("- `g` did not run on the GPU"));
  CHECK_THAT(text, ContainsText("- `h` did not run on the emulator"));
}

TEST_CASE("Without a GPU the emulator's counts stand alone", "[stage]") {
  const Files files;
  CHECK_THAT(stage::counts_markdown({}, {}, {}), ContainsText("appear after `./learn count`"));
  REQUIRE(files.emulator().code == 0);
  const std::string text = stage::counts_markdown(stage::read_counts(files.emulated()), {}, {});
  CHECK_THAT(text, ContainsText("No GPU has been asked yet"));
  CHECK_THAT(text, ContainsText("| kernel | device memory | 32 bytes a sector | requests |\n"));
  CHECK_THAT(text, ContainsText("| `f<64>` | loads | 32,000 | 100 |"));
}

TEST_CASE("The results program fills docs/counting.md, and takes counts and peers for no results", "[stage]") {
  const Files files;
  std::filesystem::create_directories(files.file("docs/results"));
  write(files.file("README.md"), "<!-- results:ladder -->\n<!-- /results -->\n");
  write(files.file("docs/counting.md"), "before\n<!-- results:counts -->\n<!-- /results -->\nafter\n");
  REQUIRE(files.emulator().code == 0);
  std::filesystem::copy(files.emulated(), files.file("docs/results/emulator-counts.json"));
  write(files.file("docs/results/nvidia-test-9000-peers.json"), "of chapters/library/peers.py");
  const std::vector<std::string> words = {"tables", files.file(""), "--hashes", files.file("hashes")};
  const Outcome outcome = run_results(words);
  CHECK(outcome.err == "");
  CHECK(outcome.code == 0);
  CHECK_THAT(read(files.file("docs/counting.md")), ContainsText("| `f<64>` | loads | 32,000 | 100 |"));
  CHECK_THAT(read(files.file("docs/counting.md")), ContainsText("<!-- /results -->\nafter\n"));
}

TEST_CASE("Two element types of a chapter are counted apart", "[stage][types]") {
  const Files files;
  const auto in_type = [](Json chapter, const char* type) {
    chapter["problem"] = {{"text", std::string("batch 1, small, ") + type}, {"dtype", type}};
    return chapter.dump();
  };
  const Json emulated = chapter("02", true, Json::array({kernel_counts("f<half>", 700)}));
  write(files.file("bf16.json"), in_type(emulated, "bf16"));
  write(files.file("again.json"), in_type(emulated, "bf16"));
  write(files.file("gpu16.json"), in_type(chapter("02", false, Json::array()), "bf16"));
  write(files.file("gpu16.csv"), header() + launch("f<half>(int)", "700"));
  const auto emulator = [&](std::vector<std::string> names) {
    std::vector<std::string> words = {"emulator", files.emulated()};
    for (const std::string& name : names) words.push_back(files.file(name));
    return run_counts(words);
  };
  check_refused(emulator({"bf16.json", "again.json"}), "is the second file of 02_test, bf16");
  REQUIRE(emulator({"bf16.json", "2.json"}).code == 0);
  REQUIRE(run_counts({"gpu", files.file("results"), "--date", "2001-02-03", "--commit", "abc", "--hashes",
                      files.file("hashes"), files.file("gpu16.json"), files.file("gpu16.csv"), files.file("gpu.json"),
                      files.file("gpu.csv")})
              .code == 0);
  for (const std::string& path : {files.emulated(), files.measured()}) {
    const Json written = Json::parse(read(path));
    REQUIRE(written["chapters"].size() == 2);
    CHECK(!written["chapters"][0].contains("dtype"));  // as before there were several
    CHECK(written["chapters"][1]["dtype"] == "bf16");
    const auto counts = stage::read_counts(path);
    CHECK(counts.chapters[0].element_type == attention::ElementType::fp32);
    CHECK(counts.chapters[1].element_type == attention::ElementType::bf16);
  }
  const auto here = stage::read_counts(files.emulated());
  for (const std::string& text : {stage::counts_markdown(here, {stage::read_counts(files.measured())}, {}),
                                  stage::counts_markdown(here, {}, {})}) {
    const auto fp32 = text.find("### 02_test\n\nProblem: batch 1, small.\n");
    const auto bf16 = text.find("### 02_test, bf16\n\nProblem: batch 1, small, bf16.\n");
    REQUIRE(bf16 != std::string::npos);
    CHECK(fp32 < bf16);
    CHECK(text.find("`f<half>`") > bf16);
    CHECK(text.find("`f<64>`") < bf16);
    CHECK(!contains(text, "another problem"));
  }
}
