#include "chapters/02_naive_gpu/naive_attention.cuh"
#include "chapters/library/kernel_lists.hpp"

namespace library {

std::vector<ListedKernel> chapter_02() { return listed("02_naive_gpu", std::vector{naive_gpu::three_kernels()}); }

}  // namespace library
