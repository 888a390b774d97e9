/// \file
/// The suite catches tensor-core kernels with a fault: lanes, rows, quarters and halves in each other's places, masks
/// that are not there.

#include <limits>
#include <string>
#include <vector>

#include "broken_mma.cuh"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/forward_suite.hpp"

namespace {

using broken_mma::Fault, broken_mma::kernel_with;

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

TEST_CASE("the suite lets the unbroken tensor-core kernel through", "[suite_can_fail]") {
  for (const std::string& sentence : suite_failures(kernel_with<Fault::none>("right"), 12)) FAIL_CHECK(sentence);
}

TEST_CASE("the suite catches fragments in the wrong places, and forgotten masks", "[suite_can_fail]") {
  for (const stage::ForwardKernel& kernel :
       {kernel_with<Fault::padding_not_masked>("padding_not_masked"),
        kernel_with<Fault::mask_of_other_half>("mask_of_other_half"),
        kernel_with<Fault::maximum_of_two_lanes>("maximum_of_two_lanes"),
        kernel_with<Fault::sum_of_two_lanes>("sum_of_two_lanes"), kernel_with<Fault::rows_swapped>("rows_swapped"),
        kernel_with<Fault::quarters_swapped>("quarters_swapped"),
        kernel_with<Fault::keys_not_transposed>("keys_not_transposed"),
        kernel_with<Fault::key_halves_swapped>("key_halves_swapped"),
        kernel_with<Fault::lower_half_not_rescaled>("lower_half_not_rescaled")}) {
    const suite::Failures failures = suite_failures(kernel, std::numeric_limits<int>::max());
    INFO(kernel.name);
    REQUIRE_FALSE(failures.empty());
    INFO(failures.front());
    CHECK(failures.front().find("query") != std::string::npos);  // a wrong row, not a refusal
  }
}
