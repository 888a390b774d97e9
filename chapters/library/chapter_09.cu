#include "chapters/09_tensor_core_backward/kernels.hpp"
#include "chapters/library/kernel_lists.hpp"

namespace library {

std::vector<ListedKernel> chapter_09() {
  return listed("09_tensor_core_backward", tensor_core_backward::backward_kernels());
}

}  // namespace library
