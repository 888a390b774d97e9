#include "chapters/10_wgmma/kernels.hpp"
#include "chapters/library/kernel_lists.hpp"

namespace library {

std::vector<ListedKernel> chapter_10() { return listed("10_wgmma", wgmma::wgmma_kernels()); }

}  // namespace library
