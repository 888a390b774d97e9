#pragma once
/// \file
/// What a warpgroup computes of attention: the two products, which WGMMA starts and somebody has to wait for, and the
/// softmax between them. Taught in chapter 10.
///
///     start_scores    S = Q Kᵀ     64 queries × keys, both operands from shared memory ("SS")
///     mask_by_bits    −∞ for what a row does not see
///     softmax         P over S, in registers (find_maxima, then exponentiate)
///     pack            P rounded, as an operand
///     start_output    O += P V     64 queries × columns, P from registers ("RS")
///
/// After a start: `wgmma_wait`, and `keep` on the result. Before that nobody touches it, nor what the product reads.

#include <cmath>
#include <cstdint>

#include "common/gpu/numeric.cuh"
#include "common/gpu/tensor_core.cuh"
#include "common/gpu/wgmma.cuh"
#include "common/kernel/folded_scale.cuh"
#include "common/kernel/fragments.cuh"
#include "common/kernel/panel_tile.cuh"
#include "common/kernel/row_fragments.cuh"

namespace kernel {

/// A warpgroup: four warps, with 64 rows of a product.
inline constexpr int kWarpgroupThreads = 4 * gpu::kWarpSize, kWarpgroupRows = 64;

/// Starts S = Q Kᵀ, for the 64 queries from `first_row` of the tile on, and commits it.
template <class QTile, class KTile>
__device__ void start_scores(float (&s_reg)[KTile::kRows / 8][4], const QTile& q_smem, int first_row,
                             const KTile& k_smem) {
  const gpu::MatrixDescriptor q = q_smem.along_rows(first_row), k = k_smem.along_rows();
  gpu::keep(s_reg);
  gpu::wgmma_fence();
#pragma unroll
  for (int i = 0; i < KTile::kColumns / 16; ++i) {
    gpu::wgmma<typename KTile::T, KTile::kRows>(s_reg, q + QTile::column_step(i), k + KTile::column_step(i), i > 0);
  }
  gpu::wgmma_commit();
}

/// Starts O += P V and commits it.
template <class VTile>
__device__ void start_output(float (&o_reg)[VTile::kColumns / 8][4], const std::uint32_t (&p_reg)[VTile::kRows / 16][4],
                             const VTile& v_smem) {
  const gpu::MatrixDescriptor v = v_smem.down_columns();
  gpu::keep(o_reg);
  gpu::wgmma_fence();
#pragma unroll
  for (int i = 0; i < VTile::kRows / 16; ++i) {
    gpu::wgmma<typename VTile::T, VTile::kColumns, gpu::Major::mn>(o_reg, p_reg[i], v + VTile::row_step(i), true);
  }
  gpu::wgmma_commit();
}

/// Of the columns of a row that a lane has, 0, 1, 8, 9, 16, …, those less than `column`: a bit each, from the 32nd ·
/// `word` on.
__device__ inline std::uint32_t columns_below(int column, int word) {
  const int below = column <= 0 ? 0 : column / 8 * 2 + min(column % 8, 2);
  const int ones = below - 32 * word;
  return ones >= 32 ? ~0u : ones <= 0 ? 0u : (1u << ones) - 1;
}

/// mask_scores (row_fragments.cuh) by bits: scores of 16 rows, of which the first is query `first_query`; those of keys
/// that their row does not see become −∞.
///
/// A row sees a run of keys. Put into bits, one a score, it is known once for all of a lane's scores, and each has only
/// to look at its own: for 128 keys some 200 instructions in place of 310. It takes registers for two words, which
/// chapter 08 does not have.
template <class Args, int kKeyTiles>
__device__ void mask_by_bits(float (&s_reg)[kKeyTiles][4], const Args& args, int first_query, int first_key, int lane) {
  const int lane_key = first_key + fragment_column(lane);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int diagonal = first_query + fragment_row(half, lane) + args.seqlen_kv - args.seqlen_q;
    const int begin = max(diagonal - args.mask.left, 0) - lane_key;
    const int end = min(diagonal + args.mask.right, args.seqlen_kv - 1) + 1 - lane_key;
#pragma unroll
    for (int word = 0; 16 * word < kKeyTiles; ++word) {
      const std::uint32_t seen = columns_below(end, word) & ~columns_below(begin, word);
#pragma unroll
      for (int n = 16 * word; n < kKeyTiles && n < 16 * word + 16; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (!(seen >> (2 * (n % 16) + e) & 1)) s_reg[n][2 * half + e] = -INFINITY;
        }
    }
  }
}

/// The largest of a lane's scores in each of its two rows.
template <int kKeyTiles>
__device__ void largest_scores(const float (&s_reg)[kKeyTiles][4], float (&largest)[2]) {
  // Four comparisons go side by side: each has to wait for the one before it.
  float of_column[4] = {s_reg[0][0], s_reg[0][1], s_reg[0][2], s_reg[0][3]};
#pragma unroll
  for (int n = 1; n < kKeyTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) of_column[e] = fmaxf(of_column[e], s_reg[n][e]);
  largest[0] = fmaxf(of_column[0], of_column[1]);
  largest[1] = fmaxf(of_column[2], of_column[3]);
}

/// The softmax's first part, up to the exponentials: the largest scores.
///
/// \param m the largest score so far of the lane's two rows, not scaled
/// \param l the lane's part of the sum of P
/// \param rescale what has been summed up so far is to be multiplied by (scale_rows); l already is
/// \param shift what the exponentials subtract from a scaled score
template <int kKeyTiles>
__device__ void find_maxima(const float (&s_reg)[kKeyTiles][4], float (&m)[2], float (&l)[2], float (&rescale)[2],
                            float (&shift)[2], const FoldedScale& scale) {
  float largest[2];
  largest_scores(s_reg, largest);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    largest[half] = fmaxf(m[half], max_of_row(largest[half]));
    shift[half] = largest[half] == -INFINITY ? 0.0f : largest[half] * scale.factor_log2;
    rescale[half] = gpu::exp2_approximate(m[half] * scale.factor_log2 - shift[half]);
    m[half] = largest[half];
    l[half] *= rescale[half];
  }
}

/// How far a score may exceed the m that is subtracted from it, in powers of two, before m moves. P then stays below
/// 2⁸, and its sum and O below 2⁸ times theirs: fp32 and the operands' 16 bits have room for that.
inline constexpr float kLargestExponent = 8;

/// find_maxima, lazily (chapter 08, step 3): m moves only when a score of the warp's rows exceeds it by more than
/// 2^kLargestExponent. \return whether it did: `rescale` is set only then.
template <int kKeyTiles>
__device__ bool find_maxima_lazily(const float (&s_reg)[kKeyTiles][4], float (&m)[2], float (&l)[2],
                                   float (&rescale)[2], float (&shift)[2], const FoldedScale& scale) {
  float largest[2];
  largest_scores(s_reg, largest);
  const bool grows = (largest[0] - m[0]) * scale.factor_log2 > kLargestExponent ||
                     (largest[1] - m[1]) * scale.factor_log2 > kLargestExponent;
  const bool moves = __any_sync(gpu::kFullWarp, grows);
  if (moves) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float before = m[half];
      m[half] = fmaxf(before, max_of_row(largest[half]));
      const float minus = m[half] == -INFINITY ? 0.0f : m[half];
      rescale[half] = gpu::exp2_approximate((before - minus) * scale.factor_log2);
      l[half] *= rescale[half];
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) shift[half] = m[half] == -INFINITY ? 0.0f : m[half] * scale.factor_log2;
  return moves;
}

/// The softmax's second part, for tiles of eight keys kFirst … kEnd − 1: P over S, unrounded, and its sum.
template <int kFirst, int kEnd, int kKeyTiles>
__device__ void exponentiate(float (&s_reg)[kKeyTiles][4], float (&l)[2], const float (&shift)[2],
                             const FoldedScale& scale) {
#pragma unroll
  for (int n = kFirst; n < kEnd; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      s_reg[n][e] = gpu::exp2_approximate(s_reg[n][e] * scale.factor_log2 - shift[e / 2]);
      l[e / 2] += s_reg[n][e];
    }
}

/// P over S, unrounded; m and l of the lane's two rows go on. Parameters as above.
template <int kKeyTiles>
__device__ void softmax(float (&s_reg)[kKeyTiles][4], float (&m)[2], float (&l)[2], float (&rescale)[2],
                        const FoldedScale& scale) {
  float shift[2];
  find_maxima(s_reg, m, l, rescale, shift, scale);
  exponentiate<0, kKeyTiles>(s_reg, l, shift, scale);
}

/// A lane's two rows, each times its factor.
template <int kColumnTiles>
__device__ void scale_rows(float (&o_reg)[kColumnTiles][4], const float (&factor)[2]) {
#pragma unroll
  for (int c = 0; c < kColumnTiles; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e) o_reg[c][e] *= factor[e / 2];
}

/// P rounded to T. A result's fragments lie as the operand A of the next product wants them (fragments.cuh).
template <class T, int kKeySteps>
__device__ void pack(std::uint32_t (&p_reg)[kKeySteps][4], const float (&p)[2 * kKeySteps][4]) {
#pragma unroll
  for (int i = 0; i < kKeySteps; ++i) pack_a<T>(p_reg[i], p[2 * i], p[2 * i + 1]);
}

/// 1 / ℓ of the lane's two rows; 0 where nothing was seen. Stores their LSE in device memory. It can be done before the
/// last O += P V is.
///
/// \param m,l of the lane's two rows: the number that was subtracted from the scores (not scaled), and the lane's part
/// of the sum of P
/// \param first_row the warp's first row, which is query first_query + first_row
template <class Args>
__device__ void normalize_rows(float (&inverse)[2], const float (&m)[2], const float (&l)[2], const Args& args,
                               int batch, int head, int first_query, int first_row, int lane) {
  const float sums[2] = {sum_of_row(l[0]), sum_of_row(l[1])};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_query + first_row + fragment_row(half, lane);
    inverse[half] = sums[half] == 0 ? 0.0f : 1 / sums[half];
    if (lane % 4 == 0 && query < args.seqlen_q) {
      *args.lse_entry(batch, query, head) = log_sum_exp({m[half] * fabsf(args.softmax_scale), sums[half]});
    }
  }
}

/// A warp's 16 rows of O into shared memory, each times its factor and rounded: whole chunks of 16 bytes (stmatrix).
///
/// \param o_smem a tile that nobody else uses; the rows lie from `first_row` on
template <class RowsTile, int kColumnTiles>
__device__ void put_output(RowsTile& o_smem, const float (&o_reg)[kColumnTiles][4], const float (&factor)[2],
                           int first_row, int lane) {
  const int offset = RowsTile::offset(first_row + lane % 16, lane / 16);
#pragma unroll
  for (int c = 0; c < kColumnTiles; c += 2) {
    float scaled[2][4];
#pragma unroll
    for (int e = 0; e < 8; ++e) scaled[e / 4][e % 4] = o_reg[c + e / 4][e % 4] * factor[e / 2 % 2];
    std::uint32_t chunks[4];
    pack_a<typename RowsTile::T>(chunks, scaled[0], scaled[1]);
    gpu::store_matrices<4>(o_smem.at(c / 8 * RowsTile::kPanel + (offset ^ (kChunkElements * (c % 8)))), chunks);
  }
}

}  // namespace kernel
