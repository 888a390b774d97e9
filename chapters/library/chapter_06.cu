#include "chapters/06_recompute_backward/kernels.hpp"
#include "chapters/library/kernel_lists.hpp"

namespace library {

std::vector<ListedKernel> chapter_06() {
  return listed("06_recompute_backward", recompute_backward::backward_kernels());
}

}  // namespace library
