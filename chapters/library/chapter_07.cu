#include "chapters/07_tensor_cores/kernels.hpp"
#include "chapters/library/kernel_lists.hpp"

namespace library {

std::vector<ListedKernel> chapter_07() { return listed("07_tensor_cores", tensor_cores::tensor_core_kernels()); }

}  // namespace library
