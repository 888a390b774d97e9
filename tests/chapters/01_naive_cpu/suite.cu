/// \file
/// The forward suite on the three loops.

#include "chapters/01_naive_cpu/naive_attention.hpp"
#include "tests/common/suite/forward_tests.hpp"

std::vector<stage::ForwardKernel> suite::kernels_under_test() { return {naive_cpu::naive_forward()}; }
