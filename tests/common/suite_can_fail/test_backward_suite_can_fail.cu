/// \file
/// The backward suite lets right kernels through and catches broken ones.

#include <set>
#include <string>
#include <vector>

#include "common/gpu/device.hpp"
#include "common/gpu/launch.cuh"
#include "tests/catch.hpp"
#include "tests/common/suite/backward_hard_cases.hpp"
#include "tests/common/suite/backward_suite.hpp"
#include "tests/common/suite_can_fail/broken_backward.cuh"

namespace {

using broken_backward::backward_kernel;
using broken_backward::backward_kernel_16_bits;
using broken_backward::Variant;
using suite::Failures;

/// The covering array serves on a GPU too: broken kernels are to be caught early.
suite::Depth depth() { return gpu::device().checked ? suite::Depth::checking : suite::Depth::plain; }

std::string joined(const Failures& failures) {
  std::string text;
  for (const std::string& sentence : failures) text += sentence + "\n";
  return text;
}

/// Failures of the hard case with this id; of the suite if it is empty.
Failures failures_of(const stage::BackwardKernel& kernel, const std::string& id) {
  const suite::DepthLimit quick(suite::Depth::plain);
  if (id.empty()) return suite::backward_suite_failures(kernel, depth(), 1);
  for (const suite::BackwardHardCase& hard_case : suite::backward_hard_cases()) {
    if (hard_case.id == id) return hard_case.failures(kernel);
  }
  FAIL("there is no hard case " + id);
  return {};
}

void check_right(const stage::BackwardKernel& kernel) {
  const suite::DepthLimit quick(suite::Depth::plain);
  INFO(kernel.name);
  CHECK(joined(suite::backward_suite_failures(kernel, depth())) == "");
  for (const suite::BackwardHardCase& hard_case : suite::backward_hard_cases()) {
    INFO(hard_case.id);
    CHECK(joined(hard_case.failures(kernel)) == "");
  }
}

struct Broken {
  Variant variant;
  const char* name;
  std::vector<std::string> caught_by;  ///< hard cases that must catch it, besides the suite
};

const std::vector<Broken>& broken_kernels() {
  static const std::vector<Broken> kernels = {
      {Variant::partial_o, "partial_o", {"C51", "C01"}},
      {Variant::last_head_of_group, "last_head_of_group", {"C21"}},
      {Variant::padding_not_masked, "padding_not_masked", {"C23"}},
      {Variant::no_scale_in_dq, "no_scale_in_dq", {"C25", "C28"}},
      {Variant::no_scale_in_dk, "no_scale_in_dk", {"C28"}},
      {Variant::default_scale_always, "default_scale_always", {"C28"}},
      {Variant::dout_with_o_strides, "dout_with_o_strides", {"C18"}},
      {Variant::dk_with_k_strides, "dk_with_k_strides", {"C18"}},
      {Variant::ignores_dlse, "ignores_dlse", {"LSE"}},
      {Variant::wrong_sign_of_dlse, "wrong_sign_of_dlse", {"LSE"}},
      {Variant::dk_from_p, "dk_from_p", {"C01", "C21"}},
      {Variant::no_zeroing, "no_zeroing", {"C16"}},
      {Variant::head_modulo, "head_modulo", {"C21"}},
      {Variant::top_left_causal, "top_left_causal", {"C01"}},
      {Variant::drops_last_key, "drops_last_key", {"C23"}},
      {Variant::nan_for_empty_rows, "nan_for_empty_rows", {"C01", "C16"}},
      {Variant::dout_of_empty_rows, "dout_of_empty_rows", {"C01"}},
      {Variant::skips_empty_rows, "skips_empty_rows", {"C01", "C16"}},
      {Variant::skips_unseen_keys, "skips_unseen_keys", {"C16"}},
      {Variant::first_batch_only, "first_batch_only", {"C18"}},
      {Variant::writes_past_end, "writes_past_end", {}},
      {Variant::writes_into_gap, "writes_into_gap", {"C18"}},
      {Variant::writes_past_workspace, "writes_past_workspace", {}},
      {Variant::reads_past_end, "reads_past_end", {}},
      {Variant::uses_raw_workspace, "uses_raw_workspace", {}},
      {Variant::changes_input, "changes_input", {}},
      {Variant::spoils_preparation, "spoils_preparation", {"C26"}},
      {Variant::depends_on_launch, "depends_on_launch", {"C26"}},
      {Variant::takes_any_head_dim, "takes_any_head_dim", {}},
  };
  return kernels;
}

const std::vector<Broken>& broken_kernels_16_bits() {
  static const std::vector<Broken> kernels = {
      {Variant::reads_bf16_as_fp16, "reads_bf16_as_fp16", {"C01", "C25", "C29"}},
      {Variant::scales_k_in_16_bits, "scales_k_in_16_bits", {"C29"}},
      {Variant::lse_in_16_bits, "lse_in_16_bits", {"C29"}},
      {Variant::d_in_16_bits, "d_in_16_bits", {}},
      {Variant::last_head_of_group, "last_head_of_group", {"C21"}},
      {Variant::padding_not_masked, "padding_not_masked", {"C23"}},
      {Variant::no_scale_in_dq, "no_scale_in_dq", {"C25", "C28"}},
      {Variant::dout_with_o_strides, "dout_with_o_strides", {"C18"}},
      {Variant::ignores_dlse, "ignores_dlse", {"LSE"}},
      {Variant::dk_from_p, "dk_from_p", {"C01", "C21"}},
      {Variant::top_left_causal, "top_left_causal", {"C01"}},
      {Variant::drops_last_key, "drops_last_key", {"C23"}},
      {Variant::nan_for_empty_rows, "nan_for_empty_rows", {"C01", "C16"}},
      {Variant::skips_unseen_keys, "skips_unseen_keys", {"C16"}},
      {Variant::writes_past_end, "writes_past_end", {}},
      {Variant::writes_into_gap, "writes_into_gap", {"C18"}},
      {Variant::writes_past_workspace, "writes_past_workspace", {}},
      {Variant::reads_past_end, "reads_past_end", {}},
      {Variant::uses_raw_workspace, "uses_raw_workspace", {}},
      {Variant::changes_input, "changes_input", {}},
      {Variant::spoils_preparation, "spoils_preparation", {"C26"}},
      {Variant::depends_on_launch, "depends_on_launch", {"C26"}},
  };
  return kernels;
}

void check_caught(const stage::BackwardKernel& kernel, const std::vector<std::string>& caught_by) {
  INFO(kernel.name);
  CHECK_FALSE(failures_of(kernel, "").empty());
  for (const std::string& id : caught_by) {
    INFO(id);
    CHECK_FALSE(failures_of(kernel, id).empty());
  }
}

}  // namespace

TEST_CASE("right backward kernels pass the suite and the hard cases", "[suite_can_fail]") {
  check_right(backward_kernel(Variant::right, "right"));
  check_right(backward_kernel(Variant::sums_backwards, "sums_backwards"));
}

TEST_CASE("a right backward kernel with atomics passes the suite and the hard cases", "[suite_can_fail]") {
  check_right(backward_kernel(Variant::atomics, "atomics"));
}

TEST_CASE("a right backward kernel with a preparation passes the suite and the hard cases", "[suite_can_fail]") {
  check_right(backward_kernel(Variant::prepares_d, "prepares_d"));
}

TEST_CASE("right backward kernels in 16 bits pass the suite and the hard cases", "[suite_can_fail]") {
  check_right(backward_kernel_16_bits(Variant::right, "right"));
  check_right(backward_kernel_16_bits(Variant::prepares_d, "prepares_d"));
}

TEST_CASE("the backward suite catches broken kernels", "[suite_can_fail]") {
  for (const Broken& entry : broken_kernels()) {
    check_caught(backward_kernel(entry.variant, entry.name), entry.caught_by);
  }
}

TEST_CASE("the backward suite catches broken kernels in 16 bits", "[suite_can_fail]") {
  for (const Broken& entry : broken_kernels_16_bits()) {
    check_caught(backward_kernel_16_bits(entry.variant, entry.name), entry.caught_by);
  }
}

TEST_CASE("the backward suite catches a nondeterministic order that is declared deterministic", "[suite_can_fail]") {
  const stage::BackwardKernel kernel = backward_kernel(Variant::claims_determinism, "claims_determinism");
  const Failures of_c26 = failures_of(kernel, "C26");
  REQUIRE_FALSE(of_c26.empty());
  CHECK(joined(of_c26).find("differs from the first launch") != std::string::npos);
  // A GPU may well give small cases the same order twice.
  if (gpu::device().emulated) CHECK_FALSE(failures_of(kernel, "").empty());
}

TEST_CASE("C25 catches sums of gradients in 16 bits", "[suite_can_fail][C25]") {
  const stage::BackwardKernel kernel =
      backward_kernel_16_bits(Variant::accumulates_in_16_bits, "accumulates_in_16_bits");
  CHECK_FALSE(failures_of(kernel, "C25").empty());
  // The checking build's cases have too few rows for it.
  if (!gpu::device().checked) CHECK_FALSE(failures_of(kernel, "").empty());
}

TEST_CASE("C25 catches a sum of dQ that overflows fp16 before it is scaled", "[suite_can_fail][C25]") {
  // Where it does not overflow, and in bf16, it is only rounded once more.
  const Failures failures =
      failures_of(backward_kernel_16_bits(Variant::dq_before_its_scale, "dq_before_its_scale"), "C25");
  REQUIRE(failures.size() == 1);
  CHECK(failures[0].find("fp16") != std::string::npos);
  CHECK(failures[0].find("dQ of batch 0, row 0, head 0, column 0 is inf") != std::string::npos);
}

TEST_CASE("C10 catches a backward workspace whose size is computed in 32 bits", "[suite_can_fail][C10]") {
  CHECK_FALSE(failures_of(backward_kernel(Variant::workspace_in_32_bits, "workspace_in_32_bits"), "C10").empty());
}

TEST_CASE("C10 catches a backward's offsets in 32 bits", "[suite_can_fail][C10]") {
  // In the checking build the emulator knows only its own allocations, and none of them is that long.
  if (gpu::device().checked) return;
  for (const auto kernel : {backward_kernel, backward_kernel_16_bits}) {
    CHECK_FALSE(failures_of(kernel(Variant::offset_in_32_bits, "offset_in_32_bits"), "C10").empty());
  }
}

TEST_CASE("C12 catches batch entries or heads that a backward counts along y or z", "[suite_can_fail][C12]") {
  for (const bool heads : {false, true}) {
    stage::BackwardKernel kernel = backward_kernel(Variant::right, heads ? "heads_along_y" : "batch_along_z");
    kernel.run = [heads, right = kernel.run](const attention::BackwardArgs<float>& args, void* workspace) {
      // spoil_rows of no rows: a launch of which only the grid matters.
      const gpu::Extent grid(1, heads ? args.heads_q : 1, heads ? 1 : args.batch);
      gpu::launch(broken_backward::spoil_rows, {.grid = grid, .block = 1}, static_cast<float*>(nullptr),
                  std::int64_t{0});
      right(args, workspace);
    };
    CHECK_FALSE(failures_of(kernel, "C12").empty());
  }
}

TEST_CASE("the checking build catches a wrong prediction of a backward's bytes", "[suite_can_fail]") {
  if (!gpu::device().checked) return;
  const Failures of_d = failures_of(backward_kernel(Variant::counts_wrong_bytes, "wrong_bytes"), "");
  REQUIRE_FALSE(of_d.empty());
  CHECK(of_d.front().find("bytes stored") != std::string::npos);
  const Failures of_pairs = failures_of(backward_kernel(Variant::counts_no_pairs_of_mask, "all_pairs"), "");
  REQUIRE_FALSE(of_pairs.empty());
  CHECK(of_pairs.front().find("bytes loaded") != std::string::npos);
}

TEST_CASE("the backward suite's cases hold what they are for", "[suite_can_fail]") {
  using attention::ElementType;
  const suite::Taken both{.element_types = {ElementType::fp16, ElementType::bf16}, .head_dims = {64, 128}};
  CHECK(suite::taken_by(backward_kernel(Variant::right, "right")) == suite::Taken{});
  CHECK(suite::taken_by(backward_kernel_16_bits(Variant::right, "right")) == both);
  for (const suite::Depth d : {suite::Depth::checking, suite::Depth::plain, suite::Depth::product}) {
    for (const suite::Taken& taken : {suite::Taken{}, both}) {
      std::set<std::pair<ElementType, int>> head_dims_of_types;
      const std::vector<suite::BackwardCase> cases = suite::backward_cases(d, taken);
      std::set<std::string> names;
      bool repeated = false, empty_rows = false, expanded = false, with_dlse = false, rescheduled = false;
      for (const suite::BackwardCase& c : cases) {
        const attention::Problem& p = c.problem;
        INFO(c.describe());
        CHECK_NOTHROW(p.validate());
        names.insert(c.describe());
        head_dims_of_types.insert({p.element_type, p.head_dim});
        repeated |= c.repeat;
        rescheduled |= c.reschedule;
        with_dlse |= c.with_dlse;
        empty_rows |= p.mask == attention::Mask::causal() && p.seqlen_kv > 0 && p.seqlen_q > p.seqlen_kv;
        expanded |= p.strides_dout().seq == 0 && p.seqlen_q > 1;
      }
      CHECK(names.size() == cases.size());
      CHECK(head_dims_of_types.size() == taken.element_types.size() * taken.head_dims.size());
      CHECK(repeated);
      CHECK(empty_rows);
      CHECK(expanded);
      CHECK(with_dlse);
      CHECK(rescheduled == (d != suite::Depth::product));
    }
  }
}
