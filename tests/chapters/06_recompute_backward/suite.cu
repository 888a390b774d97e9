/// \file
/// The backward suite on the four steps and the variant beside them.

#include "chapters/06_recompute_backward/kernels.hpp"
#include "tests/common/suite/backward_tests.hpp"

std::vector<stage::BackwardKernel> suite::backward_kernels_under_test() {
  return recompute_backward::backward_kernels();
}
