#include "chapters/08_async_copy/kernels.hpp"
#include "chapters/library/kernel_lists.hpp"

namespace library {

std::vector<ListedKernel> chapter_08() { return listed("08_async_copy", async_copy::async_copy_kernels()); }

}  // namespace library
