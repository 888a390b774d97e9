/// \file
/// The forward suite on block-wise attention, for each order of the blocks.

#include "chapters/03_online_softmax/blockwise_attention.hpp"
#include "tests/common/suite/forward_tests.hpp"

std::vector<stage::ForwardKernel> suite::kernels_under_test() { return online_softmax::blockwise_kernels(); }
