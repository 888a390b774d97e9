#include "chapters/05_warp_shuffle/kernels.hpp"
#include "chapters/library/kernel_lists.hpp"

namespace library {

std::vector<ListedKernel> chapter_05() { return listed("05_warp_shuffle", warp_shuffle::shuffle_kernels()); }

}  // namespace library
