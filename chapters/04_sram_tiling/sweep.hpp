#pragma once
/// \file
/// The kernels of the sweep over tile sizes: a kernel each for Br and Bc in {16, 32, 64, 128}, in both loop orders.
///
/// A tile's sizes are template parameters, so every pair of them is code of its own. All of it is compiled in sweep.cu,
/// apart from the rest of the chapter.

#include <cstddef>
#include <string>
#include <vector>

#include "chapters/04_sram_tiling/step1_kv_outer.cuh"
#include "chapters/04_sram_tiling/step2_q_outer.cuh"

namespace sram_tiling {

/// A tile of the sweep, and the two kernels that work on it.
struct SweptTile {
  int br, bc;
  std::size_t shared_bytes;  ///< of a block
  stage::ForwardKernel kv_outer, q_outer;
};

/// The kernels with this tile: "kv_outer_64x32", "q_outer_64x32".
template <int kHeadDim, int kBr, int kBc>
SweptTile swept_tile() {
  using Tile = TileShape<kHeadDim, kBr, kBc>;
  const std::string sizes = "_" + std::to_string(kBr) + "x" + std::to_string(kBc);
  return {kBr, kBc, sizeof(TileShared<Tile>), kv_outer<Tile>("kv_outer" + sizes), q_outer<Tile>("q_outer" + sizes)};
}

/// All tiles of the sweep for a head_dim.
template <int kHeadDim>
std::vector<SweptTile> swept_tiles() {
  return {swept_tile<kHeadDim, 16, 16>(),  swept_tile<kHeadDim, 16, 32>(),  swept_tile<kHeadDim, 16, 64>(),
          swept_tile<kHeadDim, 16, 128>(), swept_tile<kHeadDim, 32, 16>(),  swept_tile<kHeadDim, 32, 32>(),
          swept_tile<kHeadDim, 32, 64>(),  swept_tile<kHeadDim, 32, 128>(), swept_tile<kHeadDim, 64, 16>(),
          swept_tile<kHeadDim, 64, 32>(),  swept_tile<kHeadDim, 64, 64>(),  swept_tile<kHeadDim, 64, 128>(),
          swept_tile<kHeadDim, 128, 16>(), swept_tile<kHeadDim, 128, 32>(), swept_tile<kHeadDim, 128, 64>(),
          swept_tile<kHeadDim, 128, 128>()};
}

/// The same for a head_dim known at run time; empty unless it is 64 or 128.
std::vector<SweptTile> swept_tiles(int head_dim);

}  // namespace sram_tiling
