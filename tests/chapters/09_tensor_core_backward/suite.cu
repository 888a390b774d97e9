/// \file
/// The backward suite on both steps.

#include "chapters/09_tensor_core_backward/kernels.hpp"
#include "tests/common/suite/backward_tests.hpp"

std::vector<stage::BackwardKernel> suite::backward_kernels_under_test() {
  return tensor_core_backward::backward_kernels();
}
