#pragma once
/// \file
/// What a block works on, and its shared memory: two tiles of K and two of V, one in use and one on its way.

#include <cmath>
#include <cstdint>

#include "common/attention/cost.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/numeric.cuh"
#include "common/gpu/tensor_core.cuh"
#include "common/gpu/uniform.cuh"
#include "common/kernel/folded_scale.cuh"
#include "common/kernel/fragments.cuh"
#include "common/kernel/query_tile.cuh"
#include "common/kernel/row_fragments.cuh"
#include "common/kernel/shared_tile.cuh"
#include "common/kernel/softmax_state.cuh"
#include "common/kernel/tiles.hpp"
#include "common/stage/kernel.hpp"

namespace async_copy {

using attention::ForwardArgs, attention::KeyRange, attention::Problem;
using kernel::apply_sign, kernel::mask_scores, kernel::tiles_of;

/// kWarps warps with kRowTiles times 16 rows each.
template <class T_, int kHeadDim_, int kWarps_, int kRowTiles_, int kBlocks_>
struct AsyncTile {
  using T = T_;  ///< fp16 or bf16
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarps = kWarps_, kThreads = kWarps * gpu::kWarpSize;
  static constexpr int kRowTiles = kRowTiles_, kWarpRows = 16 * kRowTiles;
  static constexpr int kBr = kWarps * kWarpRows, kBc = 64;
  static constexpr int kBlocks = kBlocks_;  ///< of a multiprocessor, for which its registers have to do
  /// Whether Q stays in registers: head_dim / 4 a row tile, beside twice as many for O.
  static constexpr bool kKeepsQ = kHeadDim * kRowTiles <= 128;
  static constexpr int kStages = 2;                                         ///< tiles of K and of V in shared memory
  static constexpr int kKeySteps = kBc / 16, kColumnSteps = kHeadDim / 16;  ///< products of depth 16
  static constexpr int kColumnStepsKept = kKeepsQ ? kColumnSteps : 1;       ///< of Q, at a time
  static constexpr int kKeyTiles = kBc / 8, kColumnTiles = kHeadDim / 8;    ///< results 8 wide
};

template <class Tile>
struct AsyncShared {
  using QTile = kernel::SharedTile<typename Tile::T, Tile::kBr, Tile::kHeadDim, kernel::Swizzled>;
  using KTile = kernel::SharedTile<typename Tile::T, Tile::kBc, Tile::kHeadDim, kernel::Swizzled>;
  QTile q;
  KTile k[Tile::kStages], v[Tile::kStages];
};

/// Whether the mask, or the end of K, cuts the tile: whether some row does not see all of its keys.
template <class Tile>
__host__ __device__ constexpr bool needs_mask(int first_key, KeyRange unmasked) {
  return first_key < unmasked.begin || first_key + Tile::kBc > unmasked.end;
}

}  // namespace async_copy
