/// \file
/// The forward suite lets right kernels through and catches broken ones.

#include <cmath>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/forward_suite.hpp"
#include "tests/common/suite/guarded_array.hpp"
#include "tests/common/suite/hard_cases.hpp"
#include "tests/common/suite_can_fail/broken_attention.cuh"

namespace {

using broken::Variant;
using suite::Failures;

/// The covering array serves on a GPU too: broken kernels are to be caught early.
suite::Depth depth() { return gpu::device().checked ? suite::Depth::checking : suite::Depth::plain; }

std::string joined(const Failures& failures) {
  std::string text;
  for (const std::string& sentence : failures) text += sentence + "\n";
  return text;
}

/// Failures of the hard case with this id; of the suite if it is empty.
Failures failures_of(const stage::ForwardKernel& kernel, const std::string& id) {
  if (id.empty()) return suite::forward_suite_failures(kernel, depth(), 1);
  for (const suite::HardCase& hard_case : suite::hard_cases()) {
    if (hard_case.id == id) return hard_case.failures(kernel);
  }
  FAIL("there is no hard case " + id);
  return {};
}

void check_right(const stage::ForwardKernel& kernel) {
  INFO(kernel.name);
  CHECK(joined(suite::forward_suite_failures(kernel, depth())) == "");
  for (const suite::HardCase& hard_case : suite::hard_cases()) {
    INFO(hard_case.id);
    CHECK(joined(hard_case.failures(kernel)) == "");
  }
}

struct Broken {
  Variant variant;
  const char* name;
  std::vector<std::string> caught_by;  ///< hard cases that must catch it, besides the suite
};

void check_caught(const stage::ForwardKernel& kernel, const std::vector<std::string>& caught_by) {
  INFO(kernel.name);
  CHECK_FALSE(failures_of(kernel, "").empty());
  for (const std::string& id : caught_by) {
    INFO(id);
    CHECK_FALSE(failures_of(kernel, id).empty());
  }
}

const std::vector<Broken>& broken_kernels() {
  static const std::vector<Broken> kernels = {
      {Variant::ignores_k, "ignores_k", {"C08", "C30"}},
      {Variant::drops_last_key, "drops_last_key", {"C03", "C05"}},
      {Variant::forgets_rescale, "forgets_rescale", {}},
      {Variant::top_left_causal, "top_left_causal", {"C01", "C03"}},
      {Variant::window_left_off_by_one, "window_left_off_by_one", {"C05"}},
      {Variant::window_right_off_by_one, "window_right_off_by_one", {"C05"}},
      {Variant::head_modulo, "head_modulo", {"C21"}},
      {Variant::first_batch_only, "first_batch_only", {"C18"}},
      {Variant::lse_base_2, "lse_base_2", {"C30"}},
      {Variant::finite_minus_infinity, "finite_minus_infinity", {"C08"}},
      {Variant::no_maximum, "no_maximum", {"C08"}},
      {Variant::padding_gets_weight, "padding_gets_weight", {"C06"}},
      {Variant::writes_past_end, "writes_past_end", {}},
      {Variant::writes_into_gap, "writes_into_gap", {"C18"}},
      {Variant::reads_past_end, "reads_past_end", {}},
      {Variant::uses_raw_workspace, "uses_raw_workspace", {}},
      {Variant::writes_past_workspace, "writes_past_workspace", {}},
      {Variant::k_with_v_strides, "k_with_v_strides", {"C18"}},
      {Variant::o_as_if_dense, "o_as_if_dense", {"C18"}},
      {Variant::default_scale_always, "default_scale_always", {"C28"}},
      {Variant::scale_of_padded_head, "scale_of_padded_head", {"C28"}},
      {Variant::nan_for_empty_rows, "nan_for_empty_rows", {"C01", "C16"}},
      {Variant::zero_lse_for_empty_rows, "zero_lse_for_empty_rows", {"C01", "C16"}},
      {Variant::skips_empty_rows, "skips_empty_rows", {"C01", "C16"}},
      {Variant::skips_last_row, "skips_last_row", {"C01"}},
      {Variant::depends_on_launch, "depends_on_launch", {}},
      {Variant::takes_any_head_dim, "takes_any_head_dim", {}},
  };
  return kernels;
}

const std::vector<Broken>& broken_kernels_16_bits() {
  static const std::vector<Broken> kernels = {
      {Variant::reads_bf16_as_fp16, "reads_bf16_as_fp16", {"C01", "C29"}},
      {Variant::reads_fp16_as_bf16, "reads_fp16_as_bf16", {"C01", "C29"}},
      {Variant::keeps_maximum_in_16_bits, "keeps_maximum_in_16_bits", {}},
      {Variant::scores_in_16_bits, "scores_in_16_bits", {"C08"}},
      {Variant::lse_in_16_bits, "lse_in_16_bits", {"C08", "C29", "C30"}},
      {Variant::scales_q_in_16_bits, "scales_q_in_16_bits", {"C29"}},
      {Variant::scales_k_in_16_bits, "scales_k_in_16_bits", {"C29"}},
      {Variant::p_of_first_maximum, "p_of_first_maximum", {}},
      {Variant::no_maximum, "no_maximum", {"C08", "C29"}},
      {Variant::forgets_rescale, "forgets_rescale", {}},
      {Variant::drops_last_key, "drops_last_key", {"C03", "C05"}},
      {Variant::top_left_causal, "top_left_causal", {"C01", "C03"}},
      {Variant::window_left_off_by_one, "window_left_off_by_one", {"C05"}},
      {Variant::window_right_off_by_one, "window_right_off_by_one", {"C05"}},
      {Variant::padding_gets_weight, "padding_gets_weight", {"C06"}},
      {Variant::head_modulo, "head_modulo", {"C21"}},
      {Variant::lse_base_2, "lse_base_2", {"C30"}},
      {Variant::scale_of_padded_head, "scale_of_padded_head", {"C28"}},
      {Variant::nan_for_empty_rows, "nan_for_empty_rows", {"C01", "C16"}},
      {Variant::skips_last_row, "skips_last_row", {"C01"}},
      {Variant::o_as_if_dense, "o_as_if_dense", {"C18"}},
      {Variant::writes_past_end, "writes_past_end", {}},
      {Variant::writes_into_gap, "writes_into_gap", {"C18"}},
      {Variant::reads_past_end, "reads_past_end", {}},
      {Variant::uses_raw_workspace, "uses_raw_workspace", {}},
      {Variant::writes_past_workspace, "writes_past_workspace", {}},
      {Variant::depends_on_launch, "depends_on_launch", {}},
  };
  return kernels;
}

}  // namespace

TEST_CASE("a right kernel with barriers passes the suite and the hard cases", "[suite_can_fail]") {
  check_right(broken::shared_attention_kernel());
}

TEST_CASE("right kernels with sums in different orders pass the suite and the hard cases", "[suite_can_fail]") {
  check_right(broken::row_attention_kernel(Variant::right, "right"));
  check_right(broken::row_attention_kernel(Variant::sums_backwards, "sums_backwards"));
  check_right(broken::row_attention_kernel(Variant::sums_in_four_parts, "sums_in_four_parts"));
}

TEST_CASE("right kernels in 16 bits pass the suite and the hard cases", "[suite_can_fail]") {
  check_right(broken::row_attention_kernel_16_bits(Variant::right, "right"));
  check_right(broken::row_attention_kernel_16_bits(Variant::sums_in_four_parts, "sums_in_four_parts"));
}

TEST_CASE("the suite catches broken kernels in 16 bits", "[suite_can_fail]") {
  for (const Broken& entry : broken_kernels_16_bits()) {
    check_caught(broken::row_attention_kernel_16_bits(entry.variant, entry.name), entry.caught_by);
  }
}

TEST_CASE("the suite catches broken kernels", "[suite_can_fail]") {
  for (const Broken& entry : broken_kernels()) {
    check_caught(broken::row_attention_kernel(entry.variant, entry.name), entry.caught_by);
  }
}

TEST_CASE("C08 catches a finite maximum that lies below the scores of ordinary inputs", "[suite_can_fail][C08]") {
  const Failures failures =
      failures_of(broken::row_attention_kernel(Variant::finite_scaled_minimum, "finite_scaled_minimum"), "C08");
  // The scores times 1/√128 lie above −50000 and come out right; the others do not, neither O nor LSE.
  REQUIRE(failures.size() == 2);
  CHECK(failures[0].find("times 1: O is 0.0") != std::string::npos);
  CHECK(failures[1].find("times 1: LSE is -inf") != std::string::npos);
}

TEST_CASE("C25 catches sums in 16 bits", "[suite_can_fail][C25]") {
  // Over the few keys of the suite's cases, their errors stay within those of P.
  const Failures failures = failures_of(
      broken::row_attention_kernel_16_bits(Variant::accumulates_in_16_bits, "accumulates_in_16_bits"), "C25");
  REQUIRE(failures.size() == 4);
  CHECK(failures[0].find("fp16: O of equal values is inf") != std::string::npos);
  CHECK(failures[1].find("fp16: O of a large value and ones") != std::string::npos);
  CHECK(failures[2].find("bf16: O of equal values") != std::string::npos);
  CHECK(failures[3].find("bf16: O of a large value and ones") != std::string::npos);
}

TEST_CASE("C10 catches offsets in 32 bits", "[suite_can_fail][C10]") {
  // In the checking build the emulator knows only its own allocations, and none of them is that long.
  if (gpu::device().checked) return;
  for (const auto kernel : {broken::row_attention_kernel, broken::row_attention_kernel_16_bits}) {
    CHECK_FALSE(failures_of(kernel(Variant::offsets_in_32_bits, "offsets_in_32_bits"), "C10").empty());
  }
}

TEST_CASE("C12 catches batch entries or heads that are counted along y or z", "[suite_can_fail][C12]") {
  for (const bool heads : {false, true}) {
    stage::ForwardKernel kernel =
        broken::row_attention_kernel(Variant::right, heads ? "heads_along_y" : "batch_along_z");
    kernel.run = [heads, right = kernel.run](const attention::ForwardArgs<float>& args, void* workspace) {
      const gpu::Extent grid(1, heads ? args.heads_q : 1, heads ? 1 : args.batch);
      gpu::launch(broken::no_attention, {.grid = grid, .block = 1});
      right(args, workspace);
    };
    CHECK_FALSE(failures_of(kernel, "C12").empty());
  }
}

TEST_CASE("the checking build catches a wrong prediction of bytes", "[suite_can_fail]") {
  if (!gpu::device().checked) return;
  for (const auto kernel : {broken::row_attention_kernel, broken::row_attention_kernel_16_bits}) {
    const Failures failures = failures_of(kernel(Variant::counts_wrong_bytes, "wrong_bytes"), "");
    REQUIRE_FALSE(failures.empty());
    CHECK(failures.front().find("bytes stored") != std::string::npos);
  }
}

TEST_CASE("the suite catches each missing barrier", "[suite_can_fail]") {
  if (!gpu::device().emulated) return;
  const stage::ForwardKernel kernel = broken::shared_attention_kernel();
  gpu::reset_synchronisations_seen();
  suite::SuiteCase tiles;
  tiles.problem = {.seqlen_q = 2, .seqlen_kv = 70, .head_dim = 32};
  REQUIRE(joined(suite::case_failures(kernel, tiles)) == "");
  const std::vector<gpu::SourceLine> barriers = gpu::synchronisations_seen();
  REQUIRE(barriers.size() == 2);

  for (const gpu::SourceLine& barrier : barriers) {
    INFO(barrier.file << ":" << barrier.line);
    gpu::EmulatorOptions options = gpu::emulator_options();
    options.without = {barrier};
    const gpu::EmulatorOptionsScope scope(options);
    CHECK_FALSE(failures_of(kernel, "").empty());
  }
}

TEST_CASE("kernels are asked what they take", "[suite_can_fail]") {
  using attention::ElementType;
  const suite::Taken fp32 = suite::taken_by(broken::row_attention_kernel(Variant::right, "right"));
  CHECK(fp32 == suite::Taken{});
  // 256 is for 16 bits: the cases of fp32 are the same for a kernel that takes any head_dim.
  CHECK(suite::taken_by(broken::row_attention_kernel(Variant::takes_any_head_dim, "any")) == fp32);

  stage::ForwardKernel kernel = broken::row_attention_kernel_16_bits(Variant::right, "right");
  const suite::Taken both{.element_types = {ElementType::fp16, ElementType::bf16}, .head_dims = {64, 128, 256}};
  CHECK(suite::taken_by(kernel) == both);
  CHECK(suite::too_little_taken(kernel.name, both).empty());
  kernel.require = [](const attention::Problem& p) { stage::require_head_dim("right", p, {64}); };
  CHECK(suite::taken_by(kernel).head_dims == std::vector<int>{64});
  CHECK(joined(suite::too_little_taken(kernel.name, suite::taken_by(kernel))) == "right does not take head_dim 128\n");

  kernel.require = [](const attention::Problem&) { throw stage::Refused("right takes nothing"); };
  CHECK(joined(failures_of(kernel, "")) == "right takes no head_dim\n");

  // One type alone: the other is refused, and no case has it.
  kernel = broken::row_attention_kernel_16_bits(Variant::reads_bf16_as_fp16, "fp16_alone");
  kernel.run = [run = kernel.run](const attention::ForwardArgs<gpu::fp16>& args, void* workspace) {
    run(args, workspace);
  };
  CHECK(suite::taken_by(kernel).element_types == std::vector<ElementType>{ElementType::fp16});
  CHECK(joined(failures_of(kernel, "C29")) == "");
  suite::SuiteCase c;
  c.problem = {.seqlen_q = 3, .seqlen_kv = 3, .head_dim = 64, .element_type = ElementType::bf16};
  CHECK(joined(suite::case_failures(kernel, c)).find("fp16_alone does not take bf16") != std::string::npos);
}

TEST_CASE("a head_dim that only one of the types has is missed in the other", "[suite_can_fail]") {
  stage::ForwardKernel kernel = broken::row_attention_kernel_16_bits(Variant::right, "right");
  kernel.require = [](const attention::Problem& p) {
    const bool fp16 = p.element_type == attention::ElementType::fp16;
    stage::require_head_dim("right", p, fp16 ? std::vector{64, 128, 256} : std::vector{64, 128});
  };
  const Failures failures = failures_of(kernel, "");
  REQUIRE_FALSE(failures.empty());
  CHECK(failures.front().find("right does not take head_dim 256") != std::string::npos);
}

TEST_CASE("the forward suite's cases hold what they are for", "[suite_can_fail]") {
  using attention::ElementType;
  const suite::Taken both{.element_types = {ElementType::fp16, ElementType::bf16}, .head_dims = {64, 128, 256}};
  for (const suite::Depth d : {suite::Depth::checking, suite::Depth::plain, suite::Depth::product}) {
    for (const suite::Taken& taken : {suite::Taken{}, both}) {
      std::set<std::string> names, layouts_of_types;
      std::set<std::pair<ElementType, int>> head_dims_of_types;
      bool empty_rows = false, rescheduled = false;
      for (const suite::SuiteCase& c : suite::forward_cases(d, taken)) {
        const attention::Problem& p = c.problem;
        INFO(c.describe());
        CHECK_NOTHROW(p.validate());
        CHECK(names.insert(c.describe()).second);
        head_dims_of_types.insert({p.element_type, p.head_dim});
        layouts_of_types.insert(attention::name(p.element_type) + suite::name(c.layout));
        empty_rows |= p.mask == attention::Mask::causal() && p.seqlen_kv > 0 && p.seqlen_q > p.seqlen_kv;
        rescheduled |= c.reschedule;
      }
      CHECK(head_dims_of_types.size() == taken.element_types.size() * taken.head_dims.size());
      CHECK(layouts_of_types.size() == taken.element_types.size() * 4);
      CHECK(empty_rows);
      CHECK(rescheduled == (d != suite::Depth::product));
    }
  }
}

TEST_CASE("arrays between guards hold only numbers of their type", "[suite_can_fail]") {
  using attention::ElementType;
  const auto array = [](ElementType type, float value) {
    return suite::GuardedArray(stage::Memory::host, "Q", type, {value}, suite::kSentinel);
  };
  for (const ElementType type : {ElementType::fp32, ElementType::fp16, ElementType::bf16}) {
    Failures failures;
    // What gaps and guards hold, and what stands for nothing.
    CHECK(array(type, suite::kSentinel).read(failures) == std::vector<float>{suite::kSentinel});
    CHECK(std::isnan(array(type, NAN).read(failures).front()));
    CHECK(failures.empty());
  }
  CHECK(array(ElementType::fp16, 76.25f).content().front() == 76.25f);
  CHECK_THROWS_AS(array(ElementType::bf16, 76.25f), std::invalid_argument);
  CHECK_THROWS_AS(array(ElementType::fp16, 65536.0f), std::invalid_argument);
  CHECK_THROWS_AS(array(ElementType::fp16, 1 + 0x1p-11f), std::invalid_argument);
}
