#pragma once
/// \file
/// The chapter's kernels, as the programs and tests see them.

#include <vector>

#include "chapters/10_wgmma/step1_one_warpgroup.cuh"
#include "chapters/10_wgmma/step2_shared_tiles.cuh"

namespace wgmma {

/// The two steps.
inline std::vector<stage::ForwardKernel> wgmma_kernels() {
  return {stage::by_head_dim({{64, one_warpgroup<64>()}, {128, one_warpgroup<128>()}, {256, one_warpgroup<256>()}}),
          stage::by_head_dim({{64, shared_tiles<64>()}, {128, shared_tiles<128>()}, {256, shared_tiles<256>()}})};
}

}  // namespace wgmma
