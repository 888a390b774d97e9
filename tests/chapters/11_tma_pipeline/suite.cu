/// \file
/// The forward suite on the two steps.

#include "chapters/11_tma_pipeline/kernels.hpp"
#include "tests/common/suite/forward_tests.hpp"

std::vector<stage::ForwardKernel> suite::kernels_under_test() { return tma_pipeline::tma_pipeline_kernels(); }
