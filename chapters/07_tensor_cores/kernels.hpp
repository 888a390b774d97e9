#pragma once
/// \file
/// The chapter's kernels, as the programs and tests see them.

#include <vector>

#include "chapters/07_tensor_cores/step1_mma.cuh"
#include "chapters/07_tensor_cores/step2_swizzle.cuh"

namespace tensor_cores {

/// The two steps.
inline std::vector<stage::ForwardKernel> tensor_core_kernels() {
  return {stage::by_head_dim({{64, mma<64>()}, {128, mma<128>()}, {256, mma<256>()}}),
          stage::by_head_dim({{64, swizzled<64>()}, {128, swizzled<128>()}, {256, swizzled<256>()}})};
}

}  // namespace tensor_cores
