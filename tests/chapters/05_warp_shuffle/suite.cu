/// \file
/// The forward suite on the three steps and the variant beside them.

#include "chapters/05_warp_shuffle/kernels.hpp"
#include "tests/common/suite/forward_tests.hpp"

std::vector<stage::ForwardKernel> suite::kernels_under_test() { return warp_shuffle::shuffle_kernels(); }
