#pragma once
/// \file
/// The chapter's kernels, as the programs and tests see them.

#include <vector>

#include "chapters/04_sram_tiling/step1_kv_outer.cuh"
#include "chapters/04_sram_tiling/step2_q_outer.cuh"

namespace sram_tiling {

/// 64 queries, and as many keys as leave room for several blocks on a multiprocessor of an H100 or H200.
template <int kHeadDim, int kPadding = 1>
using DefaultTile = TileShape<kHeadDim, 64, kHeadDim == 128 ? 32 : 64, kPadding>;

/// Step 1, step 2, and step 2 without the padding.
inline std::vector<stage::ForwardKernel> tiled_kernels() {
  return {stage::by_head_dim({{32, kv_outer<DefaultTile<32>>("kv_outer")},
                              {64, kv_outer<DefaultTile<64>>("kv_outer")},
                              {128, kv_outer<DefaultTile<128>>("kv_outer")}}),
          stage::by_head_dim({{32, q_outer<DefaultTile<32, 0>>("q_outer_unpadded")},
                              {64, q_outer<DefaultTile<64, 0>>("q_outer_unpadded")},
                              {128, q_outer<DefaultTile<128, 0>>("q_outer_unpadded")}}),
          stage::by_head_dim({{32, q_outer<DefaultTile<32>>("q_outer")},
                              {64, q_outer<DefaultTile<64>>("q_outer")},
                              {128, q_outer<DefaultTile<128>>("q_outer")}})};
}

}  // namespace sram_tiling
