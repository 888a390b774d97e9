/// \file
/// The forward suite lets right kernels through and catches broken ones.

#include <string>
#include <vector>

#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/forward_suite.hpp"
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

}  // namespace

TEST_CASE("a right kernel with barriers passes the suite and the hard cases", "[suite_can_fail]") {
  check_right(broken::shared_attention_kernel());
}

TEST_CASE("right kernels with sums in different orders pass the suite and the hard cases", "[suite_can_fail]") {
  check_right(broken::row_attention_kernel(Variant::right, "right"));
  check_right(broken::row_attention_kernel(Variant::sums_backwards, "sums_backwards"));
  check_right(broken::row_attention_kernel(Variant::sums_in_four_parts, "sums_in_four_parts"));
}

TEST_CASE("the suite catches broken kernels", "[suite_can_fail]") {
  for (const Broken& entry : broken_kernels()) {
    const stage::ForwardKernel kernel = broken::row_attention_kernel(entry.variant, entry.name);
    INFO(entry.name);
    CHECK_FALSE(failures_of(kernel, "").empty());
    for (const std::string& id : entry.caught_by) {
      INFO(id);
      CHECK_FALSE(failures_of(kernel, id).empty());
    }
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

TEST_CASE("C10 catches offsets in 32 bits", "[suite_can_fail][C10]") {
  // In the checking build the emulator knows only its own allocations, and none of them is that long.
  if (gpu::device().checked) return;
  CHECK_FALSE(
      failures_of(broken::row_attention_kernel(Variant::offsets_in_32_bits, "offsets_in_32_bits"), "C10").empty());
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
  const Failures failures = failures_of(broken::row_attention_kernel(Variant::counts_wrong_bytes, "wrong_bytes"), "");
  REQUIRE_FALSE(failures.empty());
  CHECK(failures.front().find("bytes stored") != std::string::npos);
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

  const gpu::EmulatorOptions saved = gpu::emulator_options();
  for (const gpu::SourceLine& barrier : barriers) {
    INFO(barrier.file << ":" << barrier.line);
    gpu::EmulatorOptions options = saved;
    options.without = {barrier};
    gpu::set_emulator_options(options);
    const Failures failures = failures_of(kernel, "");
    gpu::set_emulator_options(saved);
    CHECK_FALSE(failures.empty());
  }
}
