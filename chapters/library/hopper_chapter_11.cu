#include "chapters/11_tma_pipeline/kernels.hpp"
#include "chapters/library/kernel_lists.hpp"

namespace library {

std::vector<ListedKernel> chapter_11() { return listed("11_tma_pipeline", tma_pipeline::tma_pipeline_kernels()); }

}  // namespace library
