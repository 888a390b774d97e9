#pragma once
/// \file
/// What a block works on, and its shared memory.

#include <cmath>
#include <cstdint>

#include "common/attention/cost.hpp"
#include "common/gpu/async_copy.cuh"
#include "common/gpu/async_proxy.cuh"
#include "common/gpu/barrier.cuh"
#include "common/gpu/wgmma.cuh"
#include "common/kernel/folded_scale.cuh"
#include "common/kernel/panel_tile.cuh"
#include "common/kernel/query_tile.cuh"
#include "common/kernel/row_fragments.cuh"
#include "common/kernel/tiles.hpp"
#include "common/kernel/warpgroup.cuh"
#include "common/stage/hopper.hpp"
#include "common/stage/kernel.hpp"

namespace wgmma {

using attention::ForwardArgs, attention::KeyRange, attention::Problem;
using kernel::tiles_of;

/// kWarpgroups warpgroups of 64 queries each, which share tiles of keys.
template <class T_, int kHeadDim_, int kWarpgroups_, int kStages_, int kBlocks_>
struct WgmmaTile {
  using T = T_;  ///< fp16 or bf16
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarpgroups = kWarpgroups_, kThreads = kWarpgroups * kernel::kWarpgroupThreads;
  static constexpr int kBr = kWarpgroups * kernel::kWarpgroupRows;
  static constexpr int kBc = kHeadDim == 256 ? 64 : 128;  ///< O takes head_dim / 2 registers of a lane, S Bc / 2
  static constexpr int kStages = kStages_;                ///< tiles of K and of V in shared memory
  static constexpr int kBlocks = kBlocks_;                ///< of a multiprocessor, for which its registers have to do
  static constexpr int kColumnSteps = kHeadDim / 16, kKeySteps = kBc / 16;  ///< products of depth 16
  static constexpr int kColumnTiles = kHeadDim / 8, kKeyTiles = kBc / 8;    ///< fragments of results, 8 wide
};

template <class Tile>
struct WgmmaShared {
  using QTile = kernel::PanelTile<typename Tile::T, Tile::kBr, Tile::kHeadDim>;
  using KTile = kernel::PanelTile<typename Tile::T, Tile::kBc, Tile::kHeadDim>;
  QTile q;
  KTile k[Tile::kStages], v[Tile::kStages];
};

/// What a lane holds of a warpgroup's S (64 queries × Bc), of P as an operand, and of O (64 × head_dim).
template <class Tile>
using Scores = float[Tile::kKeyTiles][4];
template <class Tile>
using Probabilities = std::uint32_t[Tile::kKeySteps][4];
template <class Tile>
using Out = float[Tile::kColumnTiles][4];

/// Whether the mask, or the end of K, cuts the tile: whether some row does not see all of its keys.
template <class Tile>
__host__ __device__ constexpr bool needs_mask(int first_key, KeyRange unmasked) {
  return first_key < unmasked.begin || first_key + Tile::kBc > unmasked.end;
}

}  // namespace wgmma
