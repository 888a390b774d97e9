/// \file
/// The forward suite on the three steps.

#include "chapters/08_async_copy/kernels.hpp"
#include "tests/common/suite/forward_tests.hpp"

std::vector<stage::ForwardKernel> suite::kernels_under_test() { return async_copy::async_copy_kernels(); }
