#pragma once
/// \file
/// The chapter's kernels, as the programs and tests see them.

#include <vector>

#include "chapters/05_warp_shuffle/split_keys.cuh"
#include "chapters/05_warp_shuffle/step1_shuffle.cuh"
#include "chapters/05_warp_shuffle/step2_register_tiles.cuh"
#include "chapters/05_warp_shuffle/step3_exp2.cuh"

namespace warp_shuffle {

/// The three steps; before step 2 the variant that divides its work in the other way.
inline std::vector<stage::ForwardKernel> shuffle_kernels() {
  return {stage::by_head_dim({{32, shuffle<32>()}, {64, shuffle<64>()}, {128, shuffle<128>()}}),
          stage::by_head_dim({{32, split_keys<32>()}, {64, split_keys<64>()}, {128, split_keys<128>()}}),
          stage::by_head_dim({{32, register_tiles<32>()}, {64, register_tiles<64>()}, {128, register_tiles<128>()}}),
          stage::by_head_dim({{32, exp2_tiles<32>()}, {64, exp2_tiles<64>()}, {128, exp2_tiles<128>()}})};
}

}  // namespace warp_shuffle
