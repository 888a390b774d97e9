/// \file
/// The forward suite on both loop orders.

#include "chapters/04_sram_tiling/kernels.hpp"
#include "tests/common/suite/forward_tests.hpp"

std::vector<stage::ForwardKernel> suite::kernels_under_test() { return sram_tiling::tiled_kernels(); }
