#include "chapters/12_warp_specialization/kernels.hpp"
#include "chapters/library/kernel_lists.hpp"

namespace library {

std::vector<ListedKernel> chapter_12() {
  return listed("12_warp_specialization", warp_specialization::warp_specialization_kernels());
}

}  // namespace library
