#pragma once
/// \file
/// What a warpgroup works on, its products, and the softmax between them.
///
///     multiply_scores    S = Q Kᵀ     64 queries × keys, operands from shared memory ("SS")
///     softmax            P over S
///     add_output         O += P V     64 queries × columns, P from registers ("RS")

#include <cmath>
#include <cstdint>

#include "common/attention/cost.hpp"
#include "common/gpu/async_copy.cuh"
#include "common/gpu/async_proxy.cuh"
#include "common/gpu/barrier.cuh"
#include "common/gpu/numeric.cuh"
#include "common/gpu/wgmma.cuh"
#include "common/kernel/folded_scale.cuh"
#include "common/kernel/fragments.cuh"
#include "common/kernel/panel_tile.cuh"
#include "common/kernel/row_fragments.cuh"
#include "common/kernel/tiles.hpp"
#include "common/stage/kernel.hpp"

namespace wgmma {

using attention::ForwardArgs, attention::KeyRange, attention::Problem;
using kernel::tiles_of;

/// A warpgroup: four warps.
inline constexpr int kWarpgroupThreads = 4 * gpu::kWarpSize;
/// Rows of a product of a warpgroup.
inline constexpr int kWarpgroupRows = 64;

/// kWarpgroups warpgroups of 64 queries each, which share tiles of keys.
template <class T_, int kHeadDim_, int kWarpgroups_, int kStages_, int kBlocks_>
struct WgmmaTile {
  using T = T_;  ///< fp16 or bf16
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarpgroups = kWarpgroups_, kThreads = kWarpgroups * kWarpgroupThreads;
  static constexpr int kBr = kWarpgroups * kWarpgroupRows;
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

/// What a lane holds of S (64 queries × Bc) and of O (64 × head_dim).
template <class Tile>
using Scores = float[Tile::kKeyTiles][4];
template <class Tile>
using Out = float[Tile::kColumnTiles][4];

/// Whether the mask, or the end of K, cuts the tile: whether some row does not see all of its keys.
template <class Tile>
__host__ __device__ constexpr bool needs_mask(int first_key, KeyRange unmasked) {
  return first_key < unmasked.begin || first_key + Tile::kBc > unmasked.end;
}

/// S = Q Kᵀ for the 64 queries from `first_row` of the tile on. Returns when it is there.
template <class Tile>
__device__ void multiply_scores(Scores<Tile>& s_reg, const typename WgmmaShared<Tile>::QTile& q_smem, int first_row,
                                const typename WgmmaShared<Tile>::KTile& k_smem) {
  using QTile = typename WgmmaShared<Tile>::QTile;
  using KTile = typename WgmmaShared<Tile>::KTile;
  const gpu::MatrixDescriptor q = q_smem.along_rows(first_row), k = k_smem.along_rows();
  gpu::keep(s_reg);
  gpu::wgmma_fence();
#pragma unroll
  for (int i = 0; i < Tile::kColumnSteps; ++i) {
    gpu::wgmma<typename Tile::T, Tile::kBc>(s_reg, q + QTile::column_step(i), k + KTile::column_step(i), i > 0);
  }
  gpu::wgmma_commit();
  gpu::wgmma_wait<0>();
  gpu::keep(s_reg);
}

/// P over S, unrounded; m and l of the lane's two rows go on, and O follows them.
///
/// \param m the largest score so far, not scaled; \param l the lane's part of the sum of P
template <class Tile>
__device__ void softmax(Scores<Tile>& s_reg, float (&m)[2], float (&l)[2], Out<Tile>& o_reg,
                        const kernel::FoldedScale& scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = m[half];
#pragma unroll
    for (int n = 0; n < Tile::kKeyTiles; ++n) {
      largest = fmaxf(largest, fmaxf(s_reg[n][2 * half], s_reg[n][2 * half + 1]));
    }
    largest = kernel::max_of_row(largest);
    const float shift = largest == -INFINITY ? 0.0f : largest * scale.factor_log2;
    const float rescale = gpu::exp2_approximate(m[half] * scale.factor_log2 - shift);
    m[half] = largest;
    l[half] *= rescale;
#pragma unroll
    for (int n = 0; n < Tile::kKeyTiles; ++n)
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        s_reg[n][e] = gpu::exp2_approximate(s_reg[n][e] * scale.factor_log2 - shift);
        l[half] += s_reg[n][e];
      }
#pragma unroll
    for (int c = 0; c < Tile::kColumnTiles; ++c) {
      o_reg[c][2 * half] *= rescale;
      o_reg[c][2 * half + 1] *= rescale;
    }
  }
}

/// O += P V. Returns when it is done.
template <class Tile>
__device__ void add_output(Out<Tile>& o_reg, const Scores<Tile>& p_reg,
                           const typename WgmmaShared<Tile>::KTile& v_smem) {
  using KTile = typename WgmmaShared<Tile>::KTile;
  using T = typename Tile::T;
  std::uint32_t a_reg[Tile::kKeySteps][4];
#pragma unroll
  for (int i = 0; i < Tile::kKeySteps; ++i) kernel::pack_a<T>(a_reg[i], p_reg[2 * i], p_reg[2 * i + 1]);
  const gpu::MatrixDescriptor v = v_smem.down_columns();
  gpu::keep(o_reg);
  gpu::wgmma_fence();
#pragma unroll
  for (int i = 0; i < Tile::kKeySteps; ++i) {
    gpu::wgmma<T, Tile::kHeadDim, gpu::Major::mn>(o_reg, a_reg[i], v + KTile::row_step(i), true);
  }
  gpu::wgmma_commit();
  gpu::wgmma_wait<0>();
  gpu::keep(o_reg);
}

}  // namespace wgmma
