#pragma once
/// \file
/// The forward suite and the hard cases as Catch2 tests.
///
/// A chapter's suite.cu includes this file once and defines `suite::kernels_under_test()`:
///
///     std::vector<stage::ForwardKernel> suite::kernels_under_test() { return {naive_gpu::three_kernels()}; }

#include <vector>

#include "common/stage/kernel.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/check_none.hpp"
#include "tests/common/suite/forward_suite.hpp"
#include "tests/common/suite/hard_cases.hpp"
#include "tests/common/suite/preparations.hpp"

namespace suite {

/// The kernels of the chapter, defined by its suite.cu.
std::vector<stage::ForwardKernel> kernels_under_test();

/// Checks kernels on all cases of the depth that fits each.
inline void run_forward_suite(const std::vector<stage::ForwardKernel>& kernels) {
  for (const stage::ForwardKernel& kernel : kernels) {
    check_none(too_little_taken(kernel.name, taken_by(kernel)));
    check_none(refusal_failures(kernel));
  }
  for (const SameCases<stage::ForwardKernel>& group : with_same_cases(kernels))
    for_each_prepared(forward_cases(group.depth, group.taken), [&](const SuiteCase& c) {
      INFO(c.describe());
      for (const stage::ForwardKernel* kernel : group.kernels) check_none(case_failures(*kernel, c));
    });
}

/// Checks every kernel under test on one hard case.
inline void run_hard_case(Failures (*hard_case)(const stage::ForwardKernel&)) {
  for (const stage::ForwardKernel& kernel : kernels_under_test()) check_none(hard_case(kernel));
}

}  // namespace suite

TEST_CASE("the kernels pass the forward suite", "[suite]") { suite::run_forward_suite(suite::kernels_under_test()); }

TEST_CASE("C01: rows that see nothing", "[suite][C01]") { suite::run_hard_case(suite::c01_empty_rows); }
TEST_CASE("C03: causal alignment when Nq and Nk differ", "[suite][C03]") {
  suite::run_hard_case(suite::c03_causal_alignment);
}
TEST_CASE("C05: both edges of a window", "[suite][C05]") { suite::run_hard_case(suite::c05_window_edges); }
TEST_CASE("C06: keys that pad a tile", "[suite][C06]") { suite::run_hard_case(suite::c06_padding_keys); }
TEST_CASE("C08: very low scores", "[suite][C08]") { suite::run_hard_case(suite::c08_very_low_scores); }
TEST_CASE("C10: 64-bit offsets", "[suite][C10]") { suite::run_hard_case(suite::c10_64_bit_offsets); }
TEST_CASE("C12: 65536 batch entries or heads", "[suite][C12]") { suite::run_hard_case(suite::c12_65536_blocks); }
TEST_CASE("C16: no keys, no queries", "[suite][C16]") { suite::run_hard_case(suite::c16_zero_lengths); }
TEST_CASE("C18: strides", "[suite][C18]") { suite::run_hard_case(suite::c18_strides); }
TEST_CASE("C21: head mapping", "[suite][C21]") { suite::run_hard_case(suite::c21_head_mapping); }
TEST_CASE("C25: large sums", "[suite][C25]") { suite::run_hard_case(suite::c25_large_sums); }
TEST_CASE("C28: scale", "[suite][C28]") { suite::run_hard_case(suite::c28_scale); }
TEST_CASE("C29: near-ties of large scores", "[suite][C29]") { suite::run_hard_case(suite::c29_near_ties); }
TEST_CASE("C30: LSE is a natural logarithm", "[suite][C30]") { suite::run_hard_case(suite::c30_lse_base); }
