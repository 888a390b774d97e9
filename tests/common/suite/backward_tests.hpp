#pragma once
/// \file
/// The backward suite and its hard cases as Catch2 tests.
///
/// A chapter's suite.cu includes this file once and defines `suite::backward_kernels_under_test()`:
///
///     std::vector<stage::BackwardKernel> suite::backward_kernels_under_test() {
///       return recompute_backward::backward_kernels();
///     }

#include <vector>

#include "common/stage/kernel.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/backward_hard_cases.hpp"
#include "tests/common/suite/backward_suite.hpp"
#include "tests/common/suite/check_none.hpp"
#include "tests/common/suite/preparations.hpp"

namespace suite {

/// The kernels of the chapter, defined by its suite.cu.
std::vector<stage::BackwardKernel> backward_kernels_under_test();

/// Checks kernels on all cases of the depth that fits each.
inline void run_backward_suite(const std::vector<stage::BackwardKernel>& kernels) {
  for (const stage::BackwardKernel& kernel : kernels) {
    check_none(too_little_taken(kernel.name, taken_by(kernel)));
    check_none(refusal_failures(kernel));
  }
  for (const SameCases<stage::BackwardKernel>& group : with_same_cases(kernels))
    for_each_prepared(backward_cases(group.depth, group.taken), [&](const BackwardCase& c) {
      INFO(c.describe());
      for (const stage::BackwardKernel* kernel : group.kernels) check_none(case_failures(*kernel, c));
    });
}

/// Checks every kernel under test on one hard case.
inline void run_backward_hard_case(Failures (*hard_case)(const stage::BackwardKernel&)) {
  for (const stage::BackwardKernel& kernel : backward_kernels_under_test()) {
    check_none(hard_case(kernel));
  }
}

}  // namespace suite

TEST_CASE("the backward kernels pass the backward suite", "[backward_suite]") {
  suite::run_backward_suite(suite::backward_kernels_under_test());
}

TEST_CASE("backward C01: rows that see nothing", "[backward_suite][C01]") {
  suite::run_backward_hard_case(suite::backward_c01_empty_rows);
}
TEST_CASE("backward C10: 64-bit offsets", "[backward_suite][C10]") {
  suite::run_backward_hard_case(suite::backward_c10_64_bit_offsets);
}
TEST_CASE("backward C12: 65536 batch entries or heads", "[backward_suite][C12]") {
  suite::run_backward_hard_case(suite::backward_c12_65536_blocks);
}
TEST_CASE("backward C16: no keys, no queries", "[backward_suite][C16]") {
  suite::run_backward_hard_case(suite::backward_c16_zero_lengths);
}
TEST_CASE("backward C18: strides", "[backward_suite][C18]") {
  suite::run_backward_hard_case(suite::backward_c18_strides);
}
TEST_CASE("backward C21: head mapping", "[backward_suite][C21]") {
  suite::run_backward_hard_case(suite::backward_c21_head_mapping);
}
TEST_CASE("backward C23: one to three keys", "[backward_suite][C23]") {
  suite::run_backward_hard_case(suite::backward_c23_few_keys);
}
TEST_CASE("backward C25: large sums", "[backward_suite][C25]") {
  suite::run_backward_hard_case(suite::backward_c25_large_sums);
}
TEST_CASE("backward C26: repeatability", "[backward_suite][C26]") {
  suite::run_backward_hard_case(suite::backward_c26_repeatability);
}
TEST_CASE("backward C28: scale", "[backward_suite][C28]") { suite::run_backward_hard_case(suite::backward_c28_scale); }
TEST_CASE("backward C29: near-ties of large scores", "[backward_suite][C29]") {
  suite::run_backward_hard_case(suite::backward_c29_near_ties);
}
TEST_CASE("backward C51: D of the final O", "[backward_suite][C51]") {
  suite::run_backward_hard_case(suite::backward_c51_final_o);
}
TEST_CASE("backward: the gradient of LSE alone", "[backward_suite][LSE]") {
  suite::run_backward_hard_case(suite::backward_through_lse_alone);
}
