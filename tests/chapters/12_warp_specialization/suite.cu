/// \file
/// The forward suite on the steps.

#include "chapters/12_warp_specialization/kernels.hpp"
#include "tests/common/suite/forward_tests.hpp"

std::vector<stage::ForwardKernel> suite::kernels_under_test() {
  return warp_specialization::warp_specialization_kernels();
}
