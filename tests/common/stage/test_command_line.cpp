/// \file
/// What the command line takes, and every argument that it refuses: one line, exit code 2, nothing written.

#include <sstream>
#include <string>

#include "common/gpu/device.hpp"
#include "common/stage/command_line.hpp"
#include "tests/catch.hpp"
#include "tests/common/stage/program_under_test.hpp"

namespace {

using namespace stage_test;
using attention::kUnlimited;
using attention::Mask;

stage::Chapter two_kernels() { return chapter_with({host_kernel("plain"), host_kernel("other")}); }

/// The problem that the arguments make of the chapter's default.
attention::Problem problem_of(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"testing"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  const stage::Chapter chapter = two_kernels();
  const auto line = stage::parse_command_line(static_cast<int>(argv.size()), argv.data(), chapter);
  return stage::resolve(line, chapter, gpu::device()).problem;
}

/// The program refuses the arguments with one line that contains `sentence`, and leaves nothing behind.
void check_refused(const stage::Chapter& chapter, std::vector<std::string> arguments, const std::string& sentence) {
  TemporaryFolder folder;
  write(folder.file("results.json"), "as it was");
  arguments.insert(arguments.end(), {"--json", folder.file("results.json")});
  const Outcome outcome = run(chapter, arguments);
  INFO("arguments: " << stage::join(arguments));
  CHECK(outcome.code == 2);
  CHECK(outcome.out == "");
  CHECK(lines(outcome.err) == 1);
  CHECK_THAT(outcome.err, ContainsText("testing: "));
  CHECK_THAT(outcome.err, ContainsText(sentence));
  CHECK(read(folder.file("results.json")) == "as it was");
  CHECK(folder.names() == std::vector<std::string>{"results.json"});
}

void check_refused(const std::vector<std::string>& arguments, const std::string& sentence) {
  check_refused(two_kernels(), arguments, sentence);
}

}  // namespace

TEST_CASE("Sizes not given keep the chapter's default", "[stage]") {
  const auto p = problem_of({"--seqlen-q", "100"});
  CHECK(p.seqlen_q == 100);
  CHECK(p.seqlen_kv == 12);
  CHECK(p.heads_q == 4);
  CHECK(p.heads_kv == 2);
  CHECK(problem_of({"--seqlen-kv=7"}).seqlen_q == 9);
  CHECK(problem_of({"--batch", "3", "--head-dim", "5"}).describe().find("batch 3") == 0);
}

TEST_CASE("heads-kv follows heads-q where its default does not divide", "[stage]") {
  CHECK(problem_of({"--heads-q", "6"}).heads_kv == 2);
  CHECK(problem_of({"--heads-q", "5"}).heads_kv == 5);
  CHECK(problem_of({"--heads-q", "6", "--heads-kv", "3"}).heads_kv == 3);
}

TEST_CASE("The mask of --causal and --window", "[stage]") {
  CHECK(problem_of({}).mask == Mask::none());
  CHECK(problem_of({"--causal"}).mask == Mask::causal());
  CHECK(problem_of({"--window", "3"}).mask == Mask::window(3, kUnlimited));
  CHECK(problem_of({"--window", "3,4"}).mask == Mask::window(3, 4));
  CHECK(problem_of({"--window", "inf,4"}).mask == Mask::window(kUnlimited, 4));
  CHECK(problem_of({"--window", "0,inf"}).mask == Mask::window(0, kUnlimited));
  CHECK(problem_of({"--window", "inf"}).mask == Mask::none());
  CHECK(problem_of({"--causal", "--window", "3"}).mask == Mask::window(3, 0));
  CHECK(problem_of({"--window", "3,0", "--causal"}).mask == Mask::window(3, 0));
  CHECK(problem_of({"--window", "inf", "--causal"}).mask == Mask::causal());

  // The program says which mask it made of the two.
  CHECK_THAT(run(two_kernels(), {"--causal", "--window", "3"}).out, ContainsText("window(3,0)"));
  CHECK_THAT(run(two_kernels(), {"--window", "3"}).out, ContainsText("window(3,inf)"));
}

TEST_CASE("A literal scale of 0 is a 0", "[stage][C28]") {
  CHECK_FALSE(problem_of({}).softmax_scale.has_value());
  CHECK(problem_of({"--scale", "0"}).softmax_scale == 0.0f);
  CHECK(problem_of({"--scale", "-0.5"}).softmax_scale == -0.5f);
  CHECK(problem_of({"--scale", "1e-3"}).softmax_scale == 1e-3f);
}

TEST_CASE("Numbers that are none are refused", "[stage]") {
  const std::string option =
      GENERATE(as<std::string>{}, "--batch", "--heads-q", "--heads-kv", "--seqlen-q", "--seqlen-kv", "--head-dim",
               "--window", "--seed", "--schedule-seed", "--workers");
  for (const char* value : {"", "x", "12x", "1.5", "1e3", "0x10", "+5", " 5", "5 ", "-", "--5"}) {
    check_refused({option, value}, option + " '" + value + "' is not a whole number; allowed: ");
  }
  check_refused({option, "-1"}, option + " -1 is out of range; allowed: ");
  check_refused({option, "99999999999999999999999"}, "is out of range; allowed: ");
}

TEST_CASE("Sizes out of range are refused", "[stage]") {
  for (const char* option : {"--batch", "--heads-q", "--heads-kv", "--head-dim"}) {
    check_refused({option, "0"}, "0 is out of range; allowed: 1 to ");
  }
  for (const char* option : {"--batch", "--seqlen-q", "--seqlen-kv", "--window"}) {
    check_refused({option, "1073741824"}, "1073741824 is out of range; allowed: ");
  }
  CHECK(problem_of({"--seqlen-q", "0"}).seqlen_q == 0);
}

TEST_CASE("Windows that are none are refused", "[stage]") {
  check_refused({"--window", "3,"}, "--window '' is not a whole number");
  check_refused({"--window", ",3"}, "--window '' is not a whole number");
  check_refused({"--window", "3,4,5"}, "--window '4,5' is not a whole number");
  check_refused({"--window", "3,-1"}, "--window -1 is out of range");
  check_refused({"--window", "infinite"},
                "--window 'infinite' is not a whole number; allowed: 0 to 1073741823, or inf");
  check_refused({"--causal", "--window", "3,1"}, "--causal rules out; allowed: --window L or L,0");
}

TEST_CASE("Scales that are none are refused", "[stage]") {
  for (const char* value : {"", "x", "1x", "nan", "inf", "-inf", "1e50", "0,5"}) {
    check_refused({"--scale", value}, std::string("--scale '") + value + "' is no fp32 number; allowed: ");
  }
}

TEST_CASE("Scales that take scores out of fp32 are refused", "[stage][C28]") {
  for (const char* value : {"1e38", "-1e38"}) {
    check_refused({"--scale", value, "--head-dim", "64"}, "can leave the range of fp32; allowed: -5.3e+34 to 5.3e+34");
  }
  CHECK(problem_of({"--scale", "5e34", "--head-dim", "64"}).softmax_scale == 5e34f);
}

TEST_CASE("Heads that do not divide are refused", "[stage][C21]") {
  check_refused({"--heads-q", "6", "--heads-kv", "4"}, "heads_q 6 is not a multiple of heads_kv 4; allowed: ");
  check_refused({"--heads-kv", "3"}, "heads_q 4 is not a multiple of heads_kv 3");
}

TEST_CASE("Unknown words are refused with what is known", "[stage]") {
  check_refused({"--dtype", "bf16"}, "--dtype 'bf16' is not taken by this chapter; allowed: fp32");
  check_refused({"--kernel", "fastest"}, "--kernel 'fastest' is unknown; allowed: plain, other");
  check_refused({"--delivery", "later"}, "--delivery 'later' is unknown; allowed: on-wait, immediately");
  check_refused({"--sequence", "4"}, "unknown argument '--sequence'; allowed: --help, --batch");
  check_refused({"-x"}, "unknown argument '-x'; allowed: ");
  check_refused({"stray"}, "unknown argument 'stray'; allowed: ");
  check_refused({"--without", "kernel.cuh"}, "--without 'kernel.cuh' is no source line; allowed: FILE:LINE");
  check_refused({"--without", "a.cuh:1", "b.cuh:2"}, "unknown argument 'b.cuh:2'");
}

TEST_CASE("A missing or second value is refused", "[stage]") {
  const Outcome missing = run(two_kernels(), {"--batch"});
  CHECK(missing.code == 2);
  CHECK(missing.err == "testing: --batch takes one value, once; allowed: as --help says\n");
  check_refused({"--batch", "1", "--batch", "2"}, "--batch takes one value, once; allowed: ");
  check_refused({"--causal=maybe"}, "--causal is a flag; allowed: it alone, without a value");
  check_refused({"--json", "elsewhere"}, "--json takes one value, once");
}

TEST_CASE("What does not fit in memory is refused", "[stage]") {
  check_refused({"--seqlen-q", "1000000000", "--head-dim", "1024"}, "of host memory; allowed: what fits in the ");
  check_refused({"--batch", "1073741823", "--seqlen-kv", "1073741823"}, "");
  check_refused({"--batch", "1073741823", "--seqlen-kv", "1073741823", "--head-dim", "1073741823"}, "");
}

TEST_CASE("Each machine refuses the other's options", "[stage]") {
  if (gpu::device().emulated) {
    check_refused({"--bench"}, "--bench times nothing on the emulator; allowed: --bench on a GPU");
  } else {
    check_refused({"--schedule-seed", "1"}, "steer the emulator");
    check_refused({"--delivery", "immediately"}, "steer the emulator");
    check_refused({"--without", "a.cuh:1"}, "steer the emulator");
    check_refused({"--workers", "1"}, "steer the emulator");
  }
}

TEST_CASE("A JSON path that cannot be written is refused before anything runs", "[stage]") {
  TemporaryFolder folder;
  write(folder.file("file"), "");
  int launches = 0;
  const auto chapter = chapter_with({damaged(host_kernel("plain"), [&](const auto&) { ++launches; })});
  for (const std::string& path : {std::string(), folder.file("no/such/folder.json"), folder.file(""),
                                  folder.file("file/below.json"), std::string("/dev/null")}) {
    const Outcome outcome = run(chapter, {"--json", path});
    CAPTURE(path);
    CHECK(outcome.code == 2);
    CHECK(outcome.out == "");
    CHECK(lines(outcome.err) == 1);
    CHECK_THAT(outcome.err, ContainsText("--json"));
    CHECK_THAT(outcome.err, ContainsText("allowed: "));
  }
  CHECK(launches == 0);
  CHECK(folder.names() == std::vector<std::string>{"file"});
}

TEST_CASE("A chapter without a problem refuses sizes and names what it takes", "[stage]") {
  stage::Chapter chapter = chapter_with({});
  chapter.takes_problem = false;
  check_refused(chapter, {"--batch", "2"}, "--batch means nothing here");
  check_refused(chapter, {"--causal"}, "--causal means nothing here");
  check_refused(chapter, {"--kernel", "plain"}, "--kernel 'plain' is unknown; allowed: none");
  check_refused(chapter, {"--batches"}, "unknown argument '--batches'; allowed: --help, --kernel, --seed");
}

TEST_CASE("--help names the options, the kernels and the defaults", "[stage]") {
  const Outcome outcome = run(two_kernels(), {"--help"});
  CHECK(outcome.code == 0);
  CHECK(outcome.err == "");
  for (const char* text : {"--heads-kv", "--window", "--without", "plain, other", "seqlen 9/12"}) {
    CHECK_THAT(outcome.out, ContainsText(text));
  }
  std::string words;  // whatever the lines' ends are
  std::istringstream text(outcome.out);
  for (std::string word; text >> word;) words += word + " ";
  CHECK_THAT(words, ContainsText("Without R: no limit, or 0 with --causal"));
}

TEST_CASE("A source line is found by its last path components", "[stage]") {
  const gpu::SourceLine seen{"/book/chapters/02_naive_gpu/softmax.cuh", 41};
  CHECK(stage::is_line({"softmax.cuh", 41}, seen));
  CHECK(stage::is_line({"02_naive_gpu/softmax.cuh", 41}, seen));
  CHECK(stage::is_line({"/book/chapters/02_naive_gpu/softmax.cuh", 41}, seen));
  CHECK_FALSE(stage::is_line({"softmax.cuh", 42}, seen));
  CHECK_FALSE(stage::is_line({"max.cuh", 41}, seen));
  CHECK_FALSE(stage::is_line({"03_online_softmax/softmax.cuh", 41}, seen));
}
