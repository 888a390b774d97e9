/// \file
/// The forward suite on the two steps.

#include "chapters/10_wgmma/kernels.hpp"
#include "tests/common/suite/forward_tests.hpp"

std::vector<stage::ForwardKernel> suite::kernels_under_test() { return wgmma::wgmma_kernels(); }
