#pragma once
/// \file
/// The chapter's kernels, as the programs and tests see them.

#include <vector>

#include "chapters/11_tma_pipeline/step1_tma_loads.cuh"
#include "chapters/11_tma_pipeline/step2_ring.cuh"

namespace tma_pipeline {

/// The two steps.
inline std::vector<stage::ForwardKernel> tma_pipeline_kernels() {
  return {stage::by_head_dim({{64, tma_loads<64>()}, {128, tma_loads<128>()}, {256, tma_loads<256>()}}),
          stage::by_head_dim({{64, ring<64>()}, {128, ring<128>()}, {256, ring<256>()}})};
}

}  // namespace tma_pipeline
