/// \file
/// The forward suite on the two steps.

#include "chapters/07_tensor_cores/kernels.hpp"
#include "tests/common/suite/forward_tests.hpp"

std::vector<stage::ForwardKernel> suite::kernels_under_test() { return tensor_cores::tensor_core_kernels(); }
