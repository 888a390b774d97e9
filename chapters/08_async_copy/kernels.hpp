#pragma once
/// \file
/// The chapter's kernels, as the programs and tests see them.

#include <vector>

#include "chapters/08_async_copy/step1_double_buffer.cuh"
#include "chapters/08_async_copy/step2_row_tiles.cuh"
#include "chapters/08_async_copy/step3_lazy_rescale.cuh"

namespace async_copy {

/// The three steps.
inline std::vector<stage::ForwardKernel> async_copy_kernels() {
  return {stage::by_head_dim({{64, double_buffer<64>()}, {128, double_buffer<128>()}, {256, double_buffer<256>()}}),
          stage::by_head_dim({{64, row_tiles<64>()}, {128, row_tiles<128>()}, {256, row_tiles<256>()}}),
          stage::by_head_dim({{64, lazy_rescale<64>()}, {128, lazy_rescale<128>()}, {256, lazy_rescale<256>()}})};
}

}  // namespace async_copy
