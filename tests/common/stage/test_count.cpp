/// \file
/// `--count`: which parts run, on which problem, and what is printed and recorded; `--shared-memory-limit`.

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/shared_memory.hpp"
#include "tests/catch.hpp"
#include "tests/common/stage/program_under_test.hpp"
#include "tests/common/stage/rewrite_kernel.hpp"

namespace {

using namespace stage_test;
using Args = attention::ForwardArgs<float>;

constexpr int kElements = 4 * 9 * 32;  // of O in chapter_with's problem
constexpr int kBlocks = kElements / 32;

/// A right kernel that also launches `rewrite` on all of O.
stage::ForwardKernel rewriting(const std::string& name, void (*launch)(float*, int)) {
  auto kernel = damaged(device_kernel(name), [launch](const Args& args) {
    launch(args.o_gmem, args.heads_q * args.seqlen_q * args.head_dim);
  });
  kernel.traffic = [](const attention::Problem& p) {
    const auto bytes = 4.0 * static_cast<double>(p.elements_o());
    return attention::Traffic{bytes, bytes};
  };
  return kernel;
}

void launch_in_section(stage::Program&) {
  gpu::DeviceBuffer<float> x_gmem(std::vector<float>(64, 1.0f), "x");
  launch_rewrite(x_gmem.data(), 64);
  gpu::synchronize();
}

/// Two kernels, a section that is counted and one that is not.
stage::Chapter counted_chapter() {
  auto chapter = chapter_with({rewriting("first", launch_rewrite), rewriting("second", launch_other_rewrite)});
  chapter.gpu_problem.seqlen_kv = 100;  // on a GPU, but not with --count
  chapter.sections = {{.title = "Counted part", .run = launch_in_section, .counted = true},
                      {.title = "Another part", .run = launch_in_section}};
  return chapter;
}

/// The refusal, one line, with exit code 2.
std::string refusal(const stage::Chapter& chapter, const std::vector<std::string>& arguments) {
  const Outcome outcome = run(chapter, arguments);
  CHECK(outcome.code == 2);
  CHECK(outcome.out == "");
  CHECK(lines(outcome.err) == 1);
  return outcome.err;
}

stage::ForwardKernel wanting_shared_memory(std::size_t bytes) {
  auto kernel = host_kernel("large");
  kernel.require = [bytes](const attention::Problem&) { stage::require_shared_memory("large", bytes); };
  return kernel;
}

}  // namespace

TEST_CASE("--count runs each kernel and the counted sections on the emulator's problem", "[stage][counts]") {
  const Outcome outcome = run(counted_chapter(), {"--count"});
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.out, ContainsText("seqlen 9/12"));
  CHECK_THAT(outcome.out, ContainsText("first: plain attention"));
  CHECK_THAT(outcome.out, ContainsText("second: plain attention"));
  CHECK_THAT(outcome.out, ContainsText("Counted part"));
  CHECK(outcome.out.find("Another part") == std::string::npos);
  CHECK_THAT(outcome.out, ContainsText("\nCounts by kernel\n----------------\n"));
  const auto says = [&](const char* text) { return outcome.out.find(text) != std::string::npos; };
  CHECK(says("./learn count reads them") == !gpu::device().emulated);
  CHECK(says("the checking build of the emulator counts") == (gpu::device().emulated && !gpu::device().checked));
  for (const char* text : {"rewrite<1>", "rewrite<2>", "sectors / load", "conflicts: ", "barriers: "}) {
    CAPTURE(text);
    CHECK(says(text) == gpu::device().checked);
  }

  const Outcome given = run(counted_chapter(), {"--count", "--seqlen-kv", "20", "--kernel", "second"});
  CHECK_THAT(given.out, ContainsText("seqlen 9/20"));
  CHECK(given.out.find("first: plain") == std::string::npos);
  CHECK(given.out.find("Counted part") == std::string::npos);
}

TEST_CASE("A kernel that a counted section runs is counted once", "[stage][counts]") {
  if (!gpu::device().checked) return;
  auto chapter = chapter_with({rewriting("first", launch_rewrite)});
  chapter.sections = {
      {.title = "Counted part",
       .run = [](stage::Program& program) { program.check_forward(rewriting("in a section", launch_other_rewrite)); },
       .counted = true}};
  const auto json = nlohmann::json::parse(run(chapter, {"--count", "--json", "-"}).out);
  REQUIRE(json["kernel_counts"].size() == 2);
  for (const auto& counts : json["kernel_counts"]) CHECK(counts["launches"] == 1);
}

TEST_CASE("Without --count all sections run, and nothing is said of counts by kernel", "[stage][counts]") {
  const Outcome outcome = run(counted_chapter(), {});
  CHECK_THAT(outcome.out, ContainsText("Counted part"));
  CHECK_THAT(outcome.out, ContainsText("Another part"));
  CHECK(outcome.out.find("Counts by kernel") == std::string::npos);
  const Outcome json = run(counted_chapter(), {"--json", "-"});
  CHECK_FALSE(nlohmann::json::parse(json.out).contains("kernel_counts"));
}

TEST_CASE("The counts by kernel are in the JSON", "[stage][counts]") {
  const Outcome outcome = run(counted_chapter(), {"--count", "--json", "-"});
  CHECK(outcome.code == 0);
  const auto json = nlohmann::json::parse(outcome.out);
  const auto& counts = json["kernel_counts"];
  if (!gpu::device().checked) {
    CHECK(counts == nlohmann::json::array());
    return;
  }
  const auto expected = [](const char* kernel, int launches, int blocks) {
    const nlohmann::json global = {{"bytes", 128 * blocks}, {"requests", blocks}, {"sectors", 4 * blocks}};
    const nlohmann::json shared = {
        {"bytes", 128 * blocks}, {"requests", blocks}, {"wavefronts", blocks}, {"conflicts", 0}};
    return nlohmann::json{{"kernel", kernel},        {"launches", launches},    {"blocks", blocks},
                          {"global_loads", global},  {"global_stores", global}, {"shared_loads", shared},
                          {"shared_stores", shared}, {"barriers", blocks}};
  };
  REQUIRE(counts.size() == 2);
  CHECK(counts[0] == expected("rewrite<1>", 2, kBlocks + 2));  // the kernel and the section
  CHECK(counts[1] == expected("rewrite<2>", 1, kBlocks));
  CHECK(json["tables"]["counts"]["rows"][1][0] == "rewrite<2>");
}

TEST_CASE("A chapter that launches no kernel has nothing to count", "[stage][counts]") {
  const Outcome outcome = run(chapter_with({host_kernel("plain")}), {"--count"});
  CHECK(outcome.code == 0);
  if (gpu::device().checked) CHECK_THAT(outcome.out, ContainsText("No kernel was launched."));
}

TEST_CASE("--count and --bench exclude each other", "[stage][counts]") {
  CHECK_THAT(refusal(counted_chapter(), {"--count", "--bench"}), ContainsText("allowed: one of the two"));
}

TEST_CASE("--shared-memory-limit is honoured by what a kernel requires", "[stage][C44]") {
  const stage::Chapter chapter = chapter_with({wanting_shared_memory(131072)});
  if (!gpu::device().emulated) {
    CHECK_THAT(refusal(chapter, {"--shared-memory-limit", "49152"}), ContainsText("allowed: on the emulator"));
    return;
  }
  for (const char* limit : {"1", "49152", "101376", "131071"}) {
    CHECK_THAT(refusal(chapter, {"--shared-memory-limit", limit}),
               ContainsText(std::string("large needs 131072 bytes of shared memory a block; allowed on emulator: ") +
                            limit + "\n"));
  }
  CHECK(run(chapter, {}).code == 0);
  const Outcome enough = run(chapter, {"--shared-memory-limit", "166912"});
  CHECK(enough.code == 0);
  CHECK_THAT(enough.out, ContainsText("166912 bytes of shared memory a block"));
  CHECK(gpu::shared_memory_limit() == 232448);
  const auto json = nlohmann::json::parse(run(chapter, {"--shared-memory-limit", "232448", "--json", "-"}).out);
  CHECK(json["machine"]["shared_memory_limit"] == 232448);
}

TEST_CASE("--shared-memory-limit holds for every launch of the run", "[stage][C44]") {
  if (!gpu::device().emulated) return;
  const auto chapter = chapter_with({rewriting("first", launch_rewrite)});
  const Outcome outcome = run(chapter, {"--shared-memory-limit", "127"});
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, ContainsText("needs 128 bytes of shared memory a block; emulator allows 127"));
  CHECK(run(chapter, {"--shared-memory-limit", "128"}).code == 0);
}

TEST_CASE("Limits of shared memory that are none are refused", "[stage]") {
  const stage::Chapter chapter = chapter_with({host_kernel("plain")});
  for (const char* value : {"0", "232449", "-1", "99999999999999999999999"}) {
    CHECK_THAT(refusal(chapter, {"--shared-memory-limit", value}), ContainsText("out of range; allowed: 1 to 232448"));
  }
  for (const char* value : {"", "x", "48K", "1e5"}) {
    CHECK_THAT(refusal(chapter, {"--shared-memory-limit", value}), ContainsText("is not a whole number"));
  }
}

TEST_CASE("Kernels that move 16 bytes at once refuse rows that are not aligned to them", "[stage]") {
  attention::Problem p;
  p.heads_q = p.heads_kv = 2;
  p.seqlen_q = p.seqlen_kv = 3;
  p.head_dim = 64;
  CHECK_NOTHROW(stage::require_16_byte_rows("fast", p));
  const auto refused = [&](const char* array, std::int64_t stride) {
    CHECK_THROWS_WITH(
        stage::require_16_byte_rows("fast", p),
        ContainsText("fast moves 16 bytes at once and does not take a stride of " + std::to_string(stride) +
                     " fp32 elements in " + array + "; allowed: multiples of 4"));
  };
  const attention::Problem dense = p;
  p.q_strides = {.batch = 2 * 3 * 64, .seq = 2 * 64 + 2, .head = 64};
  refused("Q", 2 * 64 + 2);
  p = dense;
  p.k_strides = {.batch = 2 * 3 * 65, .seq = 2 * 65, .head = 65};
  refused("K", 2 * 3 * 65);
  p = dense;
  p.v_strides = {.batch = 2 * 3 * 64, .seq = 2 * 64, .head = 63};
  refused("V", 63);
  p = dense;
  p.o_strides = {.batch = 2 * 3 * 64 + 1, .seq = 2 * 64, .head = 64};
  refused("O", 2 * 3 * 64 + 1);
  p.o_strides = {.batch = 2 * 3 * 68, .seq = 2 * 68, .head = 68};
  CHECK_NOTHROW(stage::require_16_byte_rows("fast", p));

  CHECK_NOTHROW(stage::require_16_byte_gradients("fast", p));
  const auto refused_gradient = [&](const char* array, std::optional<attention::Strides> attention::Problem::*strides) {
    attention::Problem odd = p;
    odd.*strides = attention::Strides{.batch = 2 * 3 * 64, .seq = 2 * 64, .head = 65};
    CHECK_THROWS_WITH(stage::require_16_byte_gradients("fast", odd),
                      ContainsText(std::string("a stride of 65 fp32 elements in ") + array + ";"));
  };
  refused_gradient("Q", &attention::Problem::q_strides);
  refused_gradient("dO", &attention::Problem::dout_strides);
  refused_gradient("dQ", &attention::Problem::dq_strides);
  refused_gradient("dK", &attention::Problem::dk_strides);
  refused_gradient("dV", &attention::Problem::dv_strides);
}

TEST_CASE("The table of shared memory has what was counted, and the formula beside it", "[stage][counts]") {
  const std::vector<stage::ForwardKernel> kernels = {rewriting("first", launch_rewrite),
                                                     rewriting("second", launch_other_rewrite)};
  for (const bool by_formula : {false, true}) {
    auto chapter = chapter_with({});
    chapter.sections = {{"Banks", [&](stage::Program& program) {
                           stage::show_shared_memory(program, "07", kernels, "What it costs:",
                                                     by_formula ? std::vector<int>{1, 5} : std::vector<int>());
                           CHECK_FALSE(gpu::emulator_options().count_requests);
                         }}};
    TemporaryFolder folder;
    const Outcome outcome = run(chapter, {"--json", folder.file("results.json")});
    CHECK(outcome.code == 0);
    if (!gpu::device().checked) {
      CHECK_THAT(outcome.out, ContainsText("The checking build of the emulator counts them (./learn run 07)."));
      continue;
    }
    CHECK_THAT(outcome.out, ContainsText("What it costs:"));
    const auto table = nlohmann::json::parse(read(folder.file("results.json")))["tables"]["shared_memory"];
    // A load, a store and a barrier a block, of a warp each: 32 floats that lie side by side are a wavefront.
    const std::string blocks = std::to_string(kBlocks);
    std::vector<std::string> expected = {"second", blocks, "1.00", "0", blocks, "1.00", "0", blocks};
    if (by_formula) expected.insert(expected.begin() + 3, "5");
    REQUIRE(table["rows"].size() == 2);
    CHECK(table["rows"][1].get<std::vector<std::string>>() == expected);
    CHECK(table["header"].size() == expected.size());
    CHECK((table["header"][3] == "by formula") == by_formula);
  }
}

TEST_CASE("The formula is given for each kernel or for none", "[stage][counts]") {
  auto chapter = chapter_with({});
  chapter.sections = {{"Banks", [](stage::Program& program) {
                         CHECK_THROWS_AS(stage::show_shared_memory(program, "07", {device_kernel("first")}, "", {1, 2}),
                                         std::invalid_argument);
                       }}};
  CHECK(run(chapter, {}).code == 0);
}
