/// \file
/// The forward suite on the three kernels.

#include "chapters/02_naive_gpu/naive_attention.cuh"
#include "tests/common/suite/forward_tests.hpp"

std::vector<stage::ForwardKernel> suite::kernels_under_test() { return {naive_gpu::three_kernels()}; }
