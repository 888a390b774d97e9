#include "chapters/04_sram_tiling/kernels.hpp"
#include "chapters/library/kernel_lists.hpp"

namespace library {

std::vector<ListedKernel> chapter_04() { return listed("04_sram_tiling", sram_tiling::tiled_kernels()); }

}  // namespace library
