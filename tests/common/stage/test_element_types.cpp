/// \file
/// Chapters in fp16 and bf16: --dtype, what kernels are given and how it is judged, memory, roofs, refusals.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "common/attention/reference.hpp"
#include "common/gpu/device.hpp"
#include "common/stage/backward_run.hpp"
#include "common/stage/forward_run.hpp"
#include "common/stage/kernel_bench.hpp"
#include "common/stage/memory.hpp"
#include "common/stage/table.hpp"
#include "common/stage/timing.hpp"
#include "tests/catch.hpp"
#include "tests/common/stage/program_under_test.hpp"

namespace {

using namespace stage_test;
using attention::ElementType;
using attention::Problem;
using Launch = stage::LaunchByType<attention::ForwardArgs>;

Problem small_problem(ElementType type) {
  Problem p = chapter_with({}).emulator_problem;
  p.element_type = type;
  return p;
}

/// A chapter whose default is bf16.
stage::Chapter bf16_chapter(std::vector<stage::ForwardKernel> kernels) {
  stage::Chapter chapter = chapter_with(std::move(kernels));
  chapter.gpu_problem.element_type = chapter.emulator_problem.element_type = ElementType::bf16;
  return chapter;
}

stage::Row row_of(const stage::AnyKernel& kernel, const Problem& p) {
  return stage::run_admitted(kernel, *stage::make_case(kernel.pass, p, 1));
}

std::string refusal(const stage::AnyKernel& kernel, const Problem& p) {
  try {
    stage::admit(kernel, p);
  } catch (const stage::Refused& refused) {
    return refused.what();
  }
  return "";
}

void check_refused(const Outcome& outcome, const std::string& sentence) {
  CHECK(outcome.code == 2);
  CHECK(outcome.out == "");
  CHECK(outcome.err == "testing: " + sentence + "\n");
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The kernel, and then two bytes of 0 written `elements` after the first element of O.
stage::ForwardKernel writing(stage::ForwardKernel kernel, std::ptrdiff_t elements) {
  kernel.run = [run = kernel.run, elements]<stage::SixteenBits T>(const attention::ForwardArgs<T>& args, void* space) {
    run(args, space);
    std::memset(reinterpret_cast<std::byte*>(args.o_gmem) + 2 * elements, 0, 2);
  };
  return kernel;
}

}  // namespace

TEST_CASE("A chapter runs in its own element type, or in the one that --dtype names", "[stage][types]") {
  const auto chapter = bf16_chapter({host_kernel_in_16_bits("plain"), device_kernel_in_16_bits("threads")});
  const Outcome by_default = run(chapter, {});
  CHECK(by_default.code == 0);
  CHECK(by_default.err == "");
  CHECK_THAT(by_default.out, ContainsText("problem:  batch 1, heads 4/2, seqlen 9/12, head_dim 32, no mask, bf16, "
                                          "scale 0.176777, seed 1\n"));
  CHECK_FALSE(contains(by_default.out, "fp32,"));

  double error = 0;
  for (const char* type : {"bf16", "fp16"}) {
    const Outcome outcome = run(chapter, {"--dtype", type, "--causal", "--json", "-"});
    CAPTURE(type, outcome.err);
    CHECK(outcome.code == 0);
    const auto json = nlohmann::json::parse(outcome.out);
    CHECK(json["problem"]["dtype"] == type);
    CHECK_THAT(json["problem"]["text"].get<std::string>(), ContainsText(std::string(", causal, ") + type));
    REQUIRE(json["rows"].size() == 2);
    for (const auto& row : json["rows"]) {
      CHECK(row["verdict"] == "right");
      CHECK(row["error"].get<double>() > 1e-5);  // as of no kernel in fp32
      CHECK(row["error"].get<double>() < row["allowed"].get<double>());
    }
    const double now = json["rows"][1]["error"].get<double>();
    if (error > 0) CHECK(now < error / 3);  // fp16 has three bits more than bf16
    error = now;
  }

  // Chapters in fp32 say so as before.
  const Outcome in_fp32 = run(chapter_with({host_kernel("plain")}), {"--dtype", "fp32"});
  CHECK_THAT(in_fp32.out, ContainsText("head_dim 32, no mask, scale 0.176777, fp32, seed 1\n"));
}

TEST_CASE("Element types that a chapter or a kernel does not take are refused", "[stage][types]") {
  const auto sixteen = bf16_chapter({host_kernel_in_16_bits("half")});
  const auto mixed = chapter_with({host_kernel("plain"), host_kernel_in_16_bits("half")});
  for (const std::string type : {"fp8", "BF16", "float", "", "fp"}) {
    check_refused(run(sixteen, {"--dtype", type}),
                  "--dtype '" + type + "' is not taken by this chapter; allowed: fp16, bf16");
  }
  check_refused(run(sixteen, {"--dtype", "fp32"}), "--dtype 'fp32' is not taken by this chapter; allowed: fp16, bf16");
  check_refused(run(backward_chapter_with({host_backward_in_16_bits("half")}), {"--dtype", "fp32"}),
                "--dtype 'fp32' is not taken by this chapter; allowed: fp16, bf16");
  check_refused(run(mixed, {"--dtype", "fp64"}),
                "--dtype 'fp64' is not taken by this chapter; allowed: fp32, fp16, bf16");
  check_refused(run(mixed, {"--dtype", "bf16", "--kernel", "plain"}),
                "plain does not take bf16 elements; allowed: fp32");
  check_refused(run(mixed, {"--kernel", "half"}), "half does not take fp32 elements; allowed: fp16, bf16");

  const Outcome among = run(mixed, {});
  CHECK(among.code == 0);
  CHECK_THAT(among.out, ContainsText("half (CPU): refused: half does not take fp32 elements; allowed: fp16, bf16\n"));
  CHECK(run(mixed, {"--dtype", "fp16"}).code == 0);

  stage::Chapter without_problem = chapter_with({});
  without_problem.takes_problem = false;
  CHECK_THAT(run(without_problem, {"--dtype", "fp32"}).err, ContainsText("--dtype means nothing here"));
}

TEST_CASE("--help names the element types and the default", "[stage][types]") {
  CHECK_THAT(run(bf16_chapter({host_kernel_in_16_bits("half")}), {"--help"}).out,
             ContainsText("Element type: fp16, bf16\n") && ContainsText("head_dim 32, no mask, bf16\n"));
  CHECK_THAT(run(chapter_with({host_kernel("plain")}), {"--help"}).out, ContainsText("Element type: fp32\n"));
}

TEST_CASE("A kernel in 16 bits is given encoded inputs and an fp32 LSE", "[stage][types]") {
  const ElementType type = GENERATE(ElementType::fp32, ElementType::fp16, ElementType::bf16);
  const auto element = static_cast<std::size_t>(attention::element_bytes(type));
  const Problem p = small_problem(type);
  const std::size_t q = 9 * 4 * 32, kv = 12 * 2 * 32, lse = 4 * 9;
  CAPTURE(attention::name(type));

  const stage::ForwardCase forward(p, 1);
  const auto inputs = forward.inputs_in_order();
  REQUIRE(inputs.size() == 3);
  CHECK(inputs[0].bytes.size() == element * q);
  CHECK(inputs[2].bytes.size() == element * kv);
  CHECK(attention::decode(inputs[0].bytes, type) == forward.inputs().q);
  CHECK(attention::decode(inputs[1].bytes, type) == forward.inputs().k);
  CHECK(attention::decode(inputs[2].bytes, type) == forward.inputs().v);
  CHECK(inputs[0].bytes.data() == forward.inputs_in_order()[0].bytes.data());
  const auto outputs = forward.outputs_in_order();
  CHECK(outputs[0].bytes == element * q);
  CHECK(outputs[1].bytes == 4 * lse);

  const auto reference = attention::reference_forward(p, forward.inputs().q, forward.inputs().k, forward.inputs().v);
  for (const bool sampled : {false, true}) {
    const stage::BackwardCase backward(p, 1, sampled);
    const auto given = backward.inputs_in_order();
    REQUIRE(given.size() == 6);
    const auto o = attention::decode(given[3].bytes, type);
    REQUIRE(o.size() == q);
    for (std::size_t i = 0; i < q; ++i) CHECK(o[i] == attention::rounded(static_cast<float>(reference.o[i]), type));
    const auto given_lse = attention::decode(given[4].bytes, ElementType::fp32);
    REQUIRE(given_lse.size() == lse);
    for (std::size_t i = 0; i < lse; ++i) CHECK(std::abs(given_lse[i] - reference.lse[i]) < 1e-6);
    CHECK(given[5].bytes.size() == element * q);
    const auto gradients = backward.outputs_in_order();
    CHECK(gradients[0].bytes == element * q);
    CHECK(gradients[1].bytes == element * kv);
    CHECK(gradients[2].bytes == element * kv);
  }
}

TEST_CASE("Sums in 16 bits are wrong, sums in fp32 right", "[stage][types]") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  Problem p = small_problem(type);
  p.seqlen_kv = 1000;  // sums that outgrow what is added
  CAPTURE(attention::name(type));
  const stage::Row right = row_of(device_kernel_in_16_bits("threads"), p);
  CHECK(right.verdict == "right");
  const stage::Row wrong = row_of(device_kernel_in_16_bits("imprecise", Sums::in_elements), p);
  CHECK_FALSE(wrong.right);
  CHECK_THAT(wrong.verdict, ContainsText("wrong: relative error of a row of O"));
  CHECK(wrong.allowed == right.allowed);
  const Outcome outcome = run(bf16_chapter({device_kernel_in_16_bits("imprecise", Sums::in_elements)}),
                              {"--dtype", attention::name(type), "--seqlen-kv", "1000"});
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, ContainsText("testing: imprecise: wrong"));
}

TEST_CASE("Writes beside an O in 16 bits, and an O that is not written, are wrong", "[stage][types]") {
  const Problem p = small_problem(ElementType::fp16);
  const auto plain = host_kernel_in_16_bits("broken");
  CHECK(row_of(writing(plain, 9 * 4 * 32 - 1), p).verdict.starts_with("wrong: "));
  CHECK_THAT(row_of(writing(plain, 9 * 4 * 32), p).verdict, ContainsText("wrote past the last element of O"));
  CHECK_THAT(row_of(writing(plain, -1), p).verdict, ContainsText("wrote before the first element of O"));
  auto idle = plain;
  idle.run = []<stage::SixteenBits T>(const attention::ForwardArgs<T>&, void*) {};
  CHECK_FALSE(row_of(idle, p).right);
}

TEST_CASE("Gradients in 16 bits are judged, all rows or a sample", "[stage][types][backward]") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  Problem p = small_problem(type);
  p.batch = 2;
  p.seqlen_q = p.seqlen_kv = 40;
  p.mask = attention::Mask::causal();
  CAPTURE(attention::name(type));
  auto half_dv = host_backward_in_16_bits("half_dv");
  half_dv.run = [run = half_dv.run]<stage::SixteenBits T>(const attention::BackwardArgs<T>& args, void* space) {
    run(args, space);
    const auto size = static_cast<std::size_t>(2 * args.batch * args.dv_strides.batch);
    std::memset(reinterpret_cast<std::byte*>(args.dv_gmem) + size / 2, 0, size / 2);
  };
  for (const bool sampled : {false, true}) {
    stage::BackwardCase backward(p, 1, sampled);
    const stage::Row right = stage::run_admitted(host_backward_in_16_bits("plain"), backward);
    CHECK(right.verdict == (sampled ? "right (sample: 64 rows each)" : "right"));
    CHECK(*right.error > 1e-5);
    const stage::Row wrong = stage::run_admitted(half_dv, backward);
    CHECK_FALSE(wrong.right);
    CHECK_THAT(wrong.verdict, ContainsText("row of dV"));
  }
  CHECK(run(backward_chapter_with({host_backward_in_16_bits("plain")}), {"--dtype", attention::name(type)}).code == 0);
  CHECK(refusal(host_backward_in_16_bits("half"), small_problem(ElementType::fp32)) ==
        "half does not take fp32 elements; allowed: fp16, bf16");
}

TEST_CASE("A sample of a forward in 16 bits takes what is right and catches what is not", "[stage][types]") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  Problem p = small_problem(type);
  p.seqlen_q = p.seqlen_kv = 200;
  const auto inputs = attention::make_inputs(p, attention::InputKind::normal, 3);
  const auto plain = attention::plain_forward(p, inputs.q, inputs.k, inputs.v);
  const auto right = stage::ForwardSample(p, inputs).judge(plain.o, plain.lse);
  CHECK(right.sentence == "right (sample of 64 rows)");
  CHECK(right.error.relative > 1e-5);
  Problem in_fp32 = p;
  in_fp32.element_type = ElementType::fp32;  // is held to fp32's rule
  CHECK_FALSE(stage::ForwardSample(in_fp32, inputs).judge(plain.o, plain.lse).right);
  auto wrong = plain.o;
  for (float& x : wrong) x *= 1.1f;
  CHECK_FALSE(stage::ForwardSample(p, inputs).judge(wrong, plain.lse).right);
}

TEST_CASE("What 16 bits need in memory", "[stage][types]") {
  const double q = 4 * 9 * 32, kv = 2 * 12 * 32, lse = 4 * 9;
  const Problem p = small_problem(ElementType::bf16);
  CHECK(stage::array_bytes(p, stage::Pass::forward) == 2 * (2 * q + 2 * kv) + 4 * lse);
  CHECK(stage::array_bytes(p, stage::Pass::backward) == 2 * (4 * q + 4 * kv) + 4 * lse);
  // On the host also the numbers that are encoded and decoded.
  for (const auto pass : {stage::Pass::forward, stage::Pass::backward}) {
    CHECK(stage::host_bytes(p, false, pass) ==
          stage::host_bytes(small_problem(ElementType::fp32), false, pass) + stage::array_bytes(p, pass) - 4 * lse);
  }
  auto greedy = device_kernel_in_16_bits("greedy");
  greedy.workspace_bytes = [](const Problem&) { return std::size_t{1} << 50; };
  const double needed = 2 * (2 * q + 2 * kv) + 4 * lse + 2 * 512 + 0x1p50;
  CHECK_THAT(refusal(greedy, p), ContainsText("greedy needs " + std::to_string(static_cast<long long>(needed)) + " "));
}

TEST_CASE("The roof in 16 bits is that of the tensor cores", "[stage][types]") {
  Problem p;
  p.seqlen_q = p.seqlen_kv = 4096;
  p.head_dim = 64;
  p.element_type = ElementType::fp16;
  gpu::DeviceInfo device;
  device.memory_total = 140'000'000'000;
  device.name = "NVIDIA H200";
  for (const attention::Machine& machine : attention::known_machines()) {
    if (std::string(machine.name) != "H200") continue;
    CHECK(stage::roof(device, p) == machine.tensor_flops);
    CHECK(stage::roof(device, p, stage::Pass::backward) == machine.tensor_flops);
  }
  // Where memory is the limit, half the bytes make twice the rate.
  p.seqlen_q = 1;
  Problem in_fp32 = p;
  in_fp32.element_type = ElementType::fp32;
  for (const auto pass : {stage::Pass::forward, stage::Pass::backward}) {
    const double ratio = *stage::roof(device, p, pass) / *stage::roof(device, in_fp32, pass);
    CHECK(ratio > 1.99);
    CHECK(ratio <= 2);
  }

  stage::Row row;
  row.kernel = "kernel";
  row.seconds = 1e-3;
  row.flops = 1e9;
  row.peak_flops = 4e12;
  row.samples = {1e-3};
  CHECK(stage::roof_meaning({row}) == "");
  CHECK_FALSE(contains(stage::times_table({row}), "of roof: "));
  stage::Row half = row;
  half.element_type = ElementType::bf16;
  CHECK_THAT(stage::times_table({half}),
             ContainsText("of roof: the datasheet's peak of the tensor cores, or what device memory allows\n"));
  CHECK_THAT(stage::roof_meaning({row, half}), ContainsText("in fp32") && ContainsText("in 16 bits"));
  half.peak_flops.reset();
  CHECK(stage::roof_meaning({half}) == "");
}

TEST_CASE("A bench on the host and on the device takes 16 bits", "[stage][types]") {
  const std::vector<stage::AnyKernel> kernels = {host_kernel_in_16_bits("host"), device_kernel_in_16_bits("device")};
  stage::ForwardCase forward(small_problem(ElementType::fp16), 1);
  std::vector<stage::Row> rows;
  for (const auto& kernel : kernels) rows.push_back(stage::run_admitted(kernel, forward));
  const stage::Clock clock = [](const std::function<void()>& launch) {
    launch();
    return 0.1;
  };
  stage::bench(kernels, rows, forward, {.device = clock, .host = clock});
  for (const stage::Row& row : rows) {
    CHECK(row.seconds == 0.1);
    CHECK(row.element_type == ElementType::fp16);
  }
}

TEST_CASE("A launch by type takes what its function takes", "[stage][types]") {
  std::string called;
  const Launch none, in_fp32 = [&](const attention::ForwardArgs<float>&, void*) { called = "fp32"; };
  const Launch in_16_bits = [&]<stage::SixteenBits T>(const attention::ForwardArgs<T>&, void*) {
    called = std::is_same_v<T, gpu::fp16> ? "fp16" : "bf16";
  };
  const Launch in_all = [&](const auto&, void*) { called = "any"; };
  const auto taken = [](const Launch& launch) {
    std::string types;
    for (const ElementType type : {ElementType::fp32, ElementType::fp16, ElementType::bf16}) {
      if (launch.takes(type)) types += attention::name(type) + " ";
    }
    return types;
  };
  CHECK_FALSE(none);
  CHECK(in_fp32);
  CHECK(taken(none) == "");
  CHECK(taken(in_fp32) == "fp32 ");
  CHECK(taken(in_16_bits) == "fp16 bf16 ");
  CHECK(taken(in_all) == "fp32 fp16 bf16 ");
  CHECK(taken(in_all.limited_to(in_16_bits)) == "fp16 bf16 ");
  CHECK(taken(in_16_bits.limited_to(in_fp32)) == "");
  CHECK_FALSE(in_16_bits.limited_to(none));

  in_fp32(attention::ForwardArgs<float>{}, nullptr);
  CHECK(called == "fp32");
  in_16_bits(attention::ForwardArgs<gpu::fp16>{}, nullptr);
  CHECK(called == "fp16");
  in_16_bits(attention::ForwardArgs<gpu::bf16>{}, nullptr);
  CHECK(called == "bf16");
  in_all.limited_to(in_16_bits)(attention::ForwardArgs<gpu::bf16>{}, nullptr);
  CHECK(called == "any");
  CHECK_THROWS_AS(in_16_bits(attention::ForwardArgs<float>{}, nullptr), std::bad_function_call);
  CHECK_THROWS_AS(in_fp32(attention::ForwardArgs<gpu::bf16>{}, nullptr), std::bad_function_call);
}

TEST_CASE("One kernel out of several by head_dim, in 16 bits", "[stage][types]") {
  const auto both = stage::by_head_dim({{32, device_kernel_in_16_bits("both")}, {64, host_kernel_in_16_bits("both")}});
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  Problem p = small_problem(type);
  CHECK(row_of(both, p).verdict == "right");
  p.head_dim = 48;
  CHECK(refusal(both, p) == "both does not take head_dim 48; allowed: 32, 64");
  CHECK(refusal(both, small_problem(ElementType::fp32)) == "both does not take fp32 elements; allowed: fp16, bf16");

  int prepared = 0;
  auto gradients = host_backward_in_16_bits("gradients");
  gradients.prepare = [&]<stage::SixteenBits T>(const attention::BackwardArgs<T>&, void*) { ++prepared; };
  const auto by_dim = stage::by_head_dim(std::map<int, stage::BackwardKernel>{{32, gradients}});
  CHECK(row_of(by_dim, small_problem(type)).verdict == "right");
  CHECK(prepared == 2);  // it promises equal bits, and runs twice
  CHECK_FALSE(by_dim.prepare.takes(ElementType::fp32));
}

TEST_CASE("16 bytes are 8 elements in 16 bits", "[stage][types]") {
  Problem p = small_problem(ElementType::bf16);
  CHECK_NOTHROW(stage::require_16_byte_rows("fast", p));
  p.k_strides = {.batch = 12 * 2 * 36, .seq = 2 * 36, .head = 36};
  CHECK_THROWS_WITH(stage::require_16_byte_rows("fast", p),
                    "fast moves 16 bytes at once and does not take a stride of 36 bf16 elements in K; allowed: "
                    "multiples of 8");
  CHECK_THROWS_WITH(stage::require_16_byte_gradients("fast", p), ContainsText("36 bf16 elements in K"));
  p.element_type = ElementType::fp32;  // 4 there
  CHECK_NOTHROW(stage::require_16_byte_rows("fast", p));
  p.element_type = ElementType::fp16;
  p.k_strides = {.batch = 12 * 2 * 40, .seq = 2 * 40, .head = 40};
  CHECK_NOTHROW(stage::require_16_byte_gradients("fast", p));
  p.dq_strides = {.batch = 9 * 4 * 44, .seq = 4 * 44, .head = 44};
  CHECK_THROWS_WITH(stage::require_16_byte_gradients("fast", p), ContainsText("of 44 fp16 elements in dQ"));
}
