#pragma once
/// \file
/// Rows that lie in fragments, four lanes to a row: scores under a mask, and O on its way out. Taught in chapter 08.
///
/// A warp has 16 rows. A lane's fragment n is four numbers of rows r and r + 8, two columns of each (tensor_core.cuh);
/// WGMMA leaves its results in the same order.

#include <cmath>

#include "common/attention/cost.hpp"
#include "common/gpu/vector.cuh"
#include "common/gpu/warp.cuh"
#include "common/kernel/fragments.cuh"
#include "common/kernel/shared_tile.cuh"
#include "common/kernel/softmax_state.cuh"

namespace kernel {

/// Scores of 16 rows, of which the first is query `first_query`: those of keys that their row does not see become −∞.
///
/// A key is seen if its distance from the row's diagonal is between −left and right. One number a lane gives the
/// distances of all its scores, which differ by constants: ranges of keys for each row would take registers that are
/// not there.
template <class Args, int kKeyTiles>
__device__ void mask_scores(float (&s_reg)[kKeyTiles][4], const Args& args, int first_query, int first_key, int lane) {
  const int lane_key = first_key + fragment_column(lane);
  const int lane_distance = lane_key - (first_query + fragment_row(0, lane) + args.seqlen_kv - args.seqlen_q);
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int right = 8 * n + e % 2, down = e / 2 * 8;
      const int distance = lane_distance + right - down;
      const bool seen = distance >= -args.mask.left && distance <= args.mask.right && lane_key + right < args.seqlen_kv;
      if (!seen) s_reg[n][e] = -INFINITY;
    }
}

/// For a negative softmax scale, or one of 0: its sign goes into the scores (folded_scale.cuh).
template <int kKeyTiles>
__device__ void apply_sign(float (&s_reg)[kKeyTiles][4], float sign) {
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) s_reg[n][e] *= sign;
}

/// 16 rows of O, out of what was summed up, into shared memory, and their LSE into device memory.
///
/// \param o_smem a tile of rows (SharedTile, PanelTile) that nobody else uses any more, Q's, say; the rows lie from
/// `first_row` on, which is query first_query + first_row
/// \param m,l of the lane's two rows: the number that was subtracted from the scores (not scaled), and the lane's part
/// of the sum of P
template <class RowsTile, class Args, int kColumnTiles>
__device__ void put_rows(RowsTile& o_smem, const float (&o_reg)[kColumnTiles][4], const float (&m)[2],
                         const float (&l)[2], const Args& args, int batch, int head, int first_query, int first_row,
                         int lane) {
  const float sums[2] = {sum_of_row(l[0]), sum_of_row(l[1])};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = sums[half];
    const float inverse_l = sum == 0 ? 0.0f : 1 / sum;
    const int row = first_row + fragment_row(half, lane);
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      store_pair(o_smem.at(RowsTile::offset(row, c)) + fragment_column(lane), o_reg[c][2 * half] * inverse_l,
                 o_reg[c][2 * half + 1] * inverse_l);
    }
    if (lane % 4 == 0 && first_query + row < args.seqlen_q) {
      *args.lse_entry(batch, first_query + row, head) = log_sum_exp({m[half] * fabsf(args.softmax_scale), sum});
    }
  }
}

/// The same, and O on to device memory in chunks of 16 bytes: fragments would go out in pieces of 4.
template <class RowsTile, class Args, int kColumnTiles>
__device__ void write_rows(RowsTile& o_smem, const float (&o_reg)[kColumnTiles][4], const float (&m)[2],
                           const float (&l)[2], const Args& args, int batch, int head, int first_query, int first_row,
                           int lane) {
  put_rows(o_smem, o_reg, m, l, args, batch, head, first_query, first_row, lane);
  __syncwarp();
  constexpr int kCopies = 16 * RowsTile::kChunks / gpu::kWarpSize;
  const auto row_of = [&](int i) { return first_row + (i * gpu::kWarpSize + lane) / RowsTile::kChunks; };
  const auto chunk_of = [&](int i) { return (i * gpu::kWarpSize + lane) % RowsTile::kChunks; };
  float4 chunks[kCopies];  // all are on their way before the first is stored
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    chunks[i] = gpu::load4(reinterpret_cast<const float*>(o_smem.at(RowsTile::offset(row_of(i), chunk_of(i)))));
  }
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    if (first_query + row_of(i) >= args.seqlen_q) continue;
    auto* to_gmem = args.o_row(batch, first_query + row_of(i), head) + kChunkElements * chunk_of(i);
    gpu::store4(reinterpret_cast<float*>(to_gmem), chunks[i]);
  }
}

}  // namespace kernel
