#include "chapters/03_online_softmax/blockwise_attention.hpp"
#include "chapters/library/kernel_lists.hpp"

namespace library {

std::vector<ListedKernel> chapter_03() { return listed("03_online_softmax", online_softmax::blockwise_kernels()); }

}  // namespace library
