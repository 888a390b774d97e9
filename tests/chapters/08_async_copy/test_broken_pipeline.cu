/// \file
/// The suite catches the chapter's loop with a fault: waits and barriers that are short, buffers in each other's
/// places, masks that are not there, sums in two units.

#include <limits>
#include <string>
#include <vector>

#include "broken_pipeline.cuh"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/forward_suite.hpp"

namespace {

using broken_pipeline::Fault, broken_pipeline::kernel_with;

/// What the suite says in its cases (no more than so many), up to the first complaint.
suite::Failures suite_failures(const stage::ForwardKernel& kernel, int most) {
  const suite::Depth depth = gpu::device().checked ? suite::Depth::checking : suite::Depth::plain;
  for (const suite::SuiteCase& c : suite::forward_cases(depth, suite::taken_by(kernel))) {
    if (most-- == 0) break;
    const suite::Failures failures = suite::case_failures(kernel, c);
    if (!failures.empty()) return failures;
  }
  return {};
}

}  // namespace

TEST_CASE("the suite lets the unbroken pipeline through", "[suite_can_fail]") {
  for (const std::string& sentence : suite_failures(kernel_with<Fault::none>("right"), 12)) FAIL_CHECK(sentence);
}

TEST_CASE("the suite catches forgotten masks, and sums in two units", "[suite_can_fail]") {
  for (const stage::ForwardKernel& kernel :
       {kernel_with<Fault::stage_not_toggled>("stage_not_toggled"),
        kernel_with<Fault::padding_not_masked>("padding_not_masked"),
        kernel_with<Fault::mask_a_tile_late>("mask_a_tile_late"),
        kernel_with<Fault::growth_not_applied>("growth_not_applied"),
        kernel_with<Fault::l_not_rescaled>("l_not_rescaled"), kernel_with<Fault::o_not_rescaled>("o_not_rescaled"),
        kernel_with<Fault::maximum_moves>("maximum_moves"), kernel_with<Fault::tile_passed_over>("tile_passed_over")}) {
    const suite::Failures failures = suite_failures(kernel, std::numeric_limits<int>::max());
    INFO(kernel.name);
    REQUIRE_FALSE(failures.empty());
  }
}

TEST_CASE("the emulator catches waits and barriers that are short", "[suite_can_fail]") {
  if (!gpu::device().emulated) return;  // what a GPU does with these is chance
  for (const stage::ForwardKernel& kernel : {kernel_with<Fault::wait_one_group_short>("wait_one_group_short"),
                                             kernel_with<Fault::barrier_before_wait>("barrier_before_wait"),
                                             kernel_with<Fault::loaded_before_barrier>("loaded_before_barrier")}) {
    const suite::Failures failures = suite_failures(kernel, std::numeric_limits<int>::max());
    INFO(kernel.name);
    REQUIRE_FALSE(failures.empty());
    INFO(failures.front());
    if (gpu::device().checked) CHECK(failures.front().find(".cuh:") != std::string::npos);  // the lines, by name
  }
}
