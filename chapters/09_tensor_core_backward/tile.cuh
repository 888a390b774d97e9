#pragma once
/// \file
/// What a block of the backward works on, and its products, each as one warp computes its part.
///
///     multiply_rows      Sᵀ = K Qᵀ, dPᵀ = V dOᵀ          keys × queries, in registers
///     probabilities      Pᵀ and dSᵀ in their place
///     add_over_queries   dV += Pᵀ dO, dK += dSᵀ Q        keys × columns, in registers to the end
///     add_over_keys      dQ of the tile = dS K           queries × columns
///
/// S is computed transposed because Pᵀ and dSᵀ then lie as the operand A of the next two products, where they are. A
/// warp has 32 keys, two times the 16 rows of a product, so that each fragment of Q and dO that it loads serves two.
///
/// Source: Dao, "FlashAttention-2" (2023), algorithm 2.

#include <cmath>
#include <cstdint>

#include "common/attention/cost.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/numeric.cuh"
#include "common/gpu/tensor_core.cuh"
#include "common/gpu/vector.cuh"
#include "common/kernel/folded_scale.cuh"
#include "common/kernel/fragments.cuh"
#include "common/kernel/shared_tile.cuh"
#include "common/kernel/tiles.hpp"
#include "common/stage/kernel.hpp"

namespace tensor_core_backward {

using attention::BackwardArgs, attention::KeyRange, attention::Problem, attention::QueryRange;
using kernel::tiles_of;

/// 128 keys, and 64 queries at a time.
///
/// A team of head_dim / 64 warps has 32 keys. It divides the queries for S and dP, and the columns of dK and dV, of
/// which each warp keeps 64: so S, dP, dK and dV take 192 registers of a lane at every head_dim.
template <class T_, int kHeadDim_>
struct BackwardTile {
  using T = T_;  ///< fp16 or bf16
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kBr = 64, kBc = 128;
  static constexpr int kWarpKeys = 32, kWarpQueries = 32, kWarpColumns = 64;
  static constexpr int kTeam = kHeadDim / kWarpColumns;
  static constexpr int kWarps = kBc / kWarpKeys * kTeam, kThreads = kWarps * gpu::kWarpSize;
  /// Of a multiprocessor, for which its registers and shared memory have to do.
  static constexpr int kBlocks = kHeadDim == 64 ? 2 : 1;
  /// How often a warp computes a square of S and dP for a tile of queries.
  static constexpr int kPasses = kBr / kWarpQueries / kTeam;
  static constexpr int kStages = 2;  ///< tiles of Q and of dO in shared memory
  /// In fragments: 16 rows, depth 16, or results 8 wide.
  static constexpr int kKeyTiles = kWarpKeys / 16, kQueryTiles = kWarpQueries / 8, kColumnTiles = kWarpColumns / 8;
  static constexpr int kColumnSteps = kHeadDim / 16, kQuerySteps = kWarpQueries / 16, kKeySteps = kBc / 16;
  /// dQ of the tile: a warp has 32 queries and 32 columns.
  static constexpr int kDqRowTiles = 2, kDqColumnTiles = 4;
  static_assert(kTeam == 1 || kTeam == 2, "a warp reads what its only partner has computed");
  static_assert(kBr * kHeadDim == kWarps * 32 * 32, "the warps divide dQ");
};

/// A query's LSE, times log₂ e, and its D. A row past the end of Q has an LSE of +∞: 2^(S − ∞) is 0, whatever S is, and
/// its tile need not be masked. So has one that sees nothing, whose −∞ would give infinities for the mask to take away.
struct alignas(8) RowStatistics {
  float lse_log2, d;
};

template <class Tile>
using SquareTile = kernel::SharedTile<typename Tile::T, Tile::kBc, Tile::kBr, kernel::Swizzled>;  ///< keys × queries

/// P for the partner, where there is one.
template <class Tile, bool kShared = (Tile::kTeam > 1)>
struct PartnersP {};
template <class Tile>
struct PartnersP<Tile, true> {
  SquareTile<Tile> p;
};

template <class Tile>
struct BackwardShared : PartnersP<Tile> {
  using KTile = kernel::SharedTile<typename Tile::T, Tile::kBc, Tile::kHeadDim, kernel::Swizzled>;
  using QTile = kernel::SharedTile<typename Tile::T, Tile::kBr, Tile::kHeadDim, kernel::Swizzled>;
  KTile k, v;
  QTile q[Tile::kStages], dout[Tile::kStages];
  alignas(16) RowStatistics rows[Tile::kStages][Tile::kBr];  ///< of Q and dO
  SquareTile<Tile> ds;
};

/// What a warp holds of Sᵀ or dPᵀ: 32 keys × 32 queries; and of dK or dV: 32 keys × 64 columns.
template <class Tile>
using Square = float[Tile::kKeyTiles][Tile::kQueryTiles][4];
template <class Tile>
using Out = float[Tile::kKeyTiles][Tile::kColumnTiles][4];
/// 32 keys × 16 queries of Pᵀ or dSᵀ, rounded: the operand A of two products.
template <class Tile>
using Operand = std::uint32_t[Tile::kKeyTiles][4];

/// square += (32 rows of a) · (32 rows of b)ᵀ, over head_dim.
///
/// \param a_offset,b_offset of the rows (fragments.cuh)
template <class Tile, class ATile, class BTile>
__device__ void multiply_rows(Square<Tile>& square, const ATile& a_smem, int a_offset, const BTile& b_smem,
                              int b_offset) {
#pragma unroll 4  // wholly unrolled, it takes registers for addresses that are not there
  for (int i = 0; i < Tile::kColumnSteps; ++i) {
    Operand<Tile> a_reg;
#pragma unroll
    for (int t = 0; t < Tile::kKeyTiles; ++t) {
      gpu::load_matrices<4>(a_reg[t], a_smem.at(ATile::column_step(a_offset, i) + 16 * t * Tile::kHeadDim));
    }
#pragma unroll
    for (int n = 0; n < Tile::kQueryTiles; n += 2) {
      std::uint32_t b_reg[2][2];
      kernel::load_b(b_reg, b_smem, BTile::column_step(b_offset, i) + 8 * n * Tile::kHeadDim);
#pragma unroll
      for (int t = 0; t < Tile::kKeyTiles; ++t) {
        gpu::mma_16x8x16<typename Tile::T>(square[t][n], a_reg[t], b_reg[0]);
        gpu::mma_16x8x16<typename Tile::T>(square[t][n + 1], a_reg[t], b_reg[1]);
      }
    }
  }
}

/// P over S, and dP − D over dP: dS = P∘(dP − D) is multiplied where it is rounded, when P has been used.
///
/// \param rows_smem of the warp's first query
template <class Tile>
__device__ void probabilities(Square<Tile>& s, Square<Tile>& dp, const RowStatistics* rows_smem, float scale_log2,
                              int lane) {
#pragma unroll
  for (int n = 0; n < Tile::kQueryTiles; ++n) {
    // Of the lane's two columns: LSE, D, LSE, D.
    const float4 rows = gpu::load4(&rows_smem[8 * n + kernel::fragment_column(lane)].lse_log2);
#pragma unroll
    for (int t = 0; t < Tile::kKeyTiles; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[t][n][e] = gpu::exp2_approximate(s[t][n][e] * scale_log2 - (e % 2 ? rows.z : rows.x));
        dp[t][n][e] -= e % 2 ? rows.w : rows.y;
      }
  }
}

/// P of keys (rows) that a query (column) does not see becomes 0. After the exponential, not before it: what has been
/// filled with zeros past the end of K has S = 0, and exp(0 − LSE) may be infinite.
///
/// \param first_key,first_query of the warp's rows and columns
template <class Tile>
__device__ void mask_probabilities(Square<Tile>& p, const BackwardArgs<typename Tile::T>& args, int first_key,
                                   int first_query, int lane) {
  const int lane_key = first_key + kernel::fragment_row(0, lane);
  const int lane_distance = lane_key - (first_query + kernel::fragment_column(lane) + args.seqlen_kv - args.seqlen_q);
#pragma unroll
  for (int t = 0; t < Tile::kKeyTiles; ++t)
#pragma unroll
    for (int n = 0; n < Tile::kQueryTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int down = 16 * t + e / 2 * 8, right = 8 * n + e % 2;
        const int distance = lane_distance + down - right;
        const bool seen =
            distance >= -args.mask.left && distance <= args.mask.right && lane_key + down < args.seqlen_kv;
        if (!seen) p[t][n][e] = 0;
      }
}

/// The 16 queries `i` of a square as an operand.
template <class Tile>
__device__ void pack_queries(Operand<Tile>& a_reg, const Square<Tile>& square, int i) {
#pragma unroll
  for (int t = 0; t < Tile::kKeyTiles; ++t) {
    kernel::pack_a<typename Tile::T>(a_reg[t], square[t][2 * i], square[t][2 * i + 1]);
  }
}

/// dS over dP − D, for the 16 queries `i`.
template <class Tile>
__device__ void multiply_by_p(Square<Tile>& dp, const Square<Tile>& p, int i) {
#pragma unroll
  for (int t = 0; t < Tile::kKeyTiles; ++t)
#pragma unroll
    for (int n = 2 * i; n < 2 * i + 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[t][n][e] *= p[t][n][e];
}

/// An operand into a tile of keys × queries, for other warps. Chunks of eight queries are permuted in a row; which one
/// stands where follows from the first by ⊕ (shared_tile.cuh).
///
/// \param offset of the lane's pair in the warp's first key and the chunk of its first query
template <class Tile>
__device__ void store_operand(SquareTile<Tile>& to_smem, int offset, const Operand<Tile>& a_reg, int i) {
#pragma unroll
  for (int t = 0; t < Tile::kKeyTiles; ++t)
#pragma unroll
    for (int r = 0; r < 4; ++r) {  // upper left, lower left, upper right, lower right
      const int place = (offset ^ (kernel::kChunkElements * (2 * i + r / 2))) + (16 * t + r % 2 * 8) * Tile::kBr;
      *reinterpret_cast<std::uint32_t*>(to_smem.at(place)) = a_reg[t][r];
    }
}

/// out += (32 keys × 16 queries) · (16 rows of b), 64 columns.
///
/// \param b_offset of the rows, transposed (fragments.cuh)
template <class Tile, class BTile>
__device__ void add_over_queries(Out<Tile>& out, const Operand<Tile>& a_reg, const BTile& b_smem, int b_offset) {
#pragma unroll
  for (int c = 0; c < Tile::kColumnTiles; c += 2) {
    std::uint32_t b_reg[2][2];
    kernel::load_b_transposed(b_reg, b_smem, BTile::column_step(b_offset, c / 2));
#pragma unroll
    for (int t = 0; t < Tile::kKeyTiles; ++t) {
      gpu::mma_16x8x16<typename Tile::T>(out[t][c], a_reg[t], b_reg[0]);
      gpu::mma_16x8x16<typename Tile::T>(out[t][c + 1], a_reg[t], b_reg[1]);
    }
  }
}

/// A warp's 32 queries × 32 columns of dQ: the sum over the tile's keys, of all warps' dS. dSᵀ lies by keys, and is
/// transposed on its way, as V is.
template <class Tile>
__device__ void add_over_keys(float (&dq)[Tile::kDqRowTiles][Tile::kDqColumnTiles][4], const SquareTile<Tile>& ds_smem,
                              const typename BackwardShared<Tile>::KTile& k_smem, int first_query,
                              int first_column_tile, int lane) {
  using KTile = typename BackwardShared<Tile>::KTile;
  // Four matrices, as A wants them: (queries, keys) lower and lower, upper and lower, lower and upper, upper and upper.
  const int ds_offset = SquareTile<Tile>::offset(lane / 16 * 8 + lane % 8, first_query / 8 + lane / 8 % 2);
  const int k_offset = KTile::offset(lane % 16, first_column_tile + lane / 16);
#pragma unroll 4  // wholly unrolled, it takes registers for addresses that are not there
  for (int i = 0; i < Tile::kKeySteps; ++i) {
    std::uint32_t a_reg[Tile::kDqRowTiles][4];
#pragma unroll
    for (int t = 0; t < Tile::kDqRowTiles; ++t) {
      gpu::load_matrices_transposed<4>(a_reg[t], ds_smem.at((ds_offset ^ (16 * t)) + 16 * i * Tile::kBr));
    }
#pragma unroll
    for (int c = 0; c < Tile::kDqColumnTiles; c += 2) {
      std::uint32_t b_reg[2][2];
      kernel::load_b_transposed(b_reg, k_smem, (k_offset ^ (8 * c)) + 16 * i * Tile::kHeadDim);
#pragma unroll
      for (int t = 0; t < Tile::kDqRowTiles; ++t) {
        gpu::mma_16x8x16<typename Tile::T>(dq[t][c], a_reg[t], b_reg[0]);
        gpu::mma_16x8x16<typename Tile::T>(dq[t][c + 1], a_reg[t], b_reg[1]);
      }
    }
  }
}

}  // namespace tensor_core_backward
