#pragma once
/// \file
/// What steps 2 and 3 share: how the warps divide a block's rows, and what is done to fragments of several row tiles.

#include <cmath>

#include "chapters/08_async_copy/tile.cuh"

namespace async_copy {

/// Tiles of steps 2 and 3, by head_dim: warps, row tiles of a warp, blocks of a multiprocessor.
template <class T, int kHeadDim>
using RowTiles = AsyncTile<T, kHeadDim, kHeadDim == 64 ? 4 : 8, kHeadDim == 256 ? 1 : 2, kHeadDim == 64 ? 2 : 1>;

/// A warp's rows of O and LSE. O is laid into the rows of Q that this warp alone has read, and leaves them in chunks of
/// 16 bytes: fragments would go out in pieces of 4.
template <class QTile, class Args, int kRowTiles, int kColumnTiles>
__device__ void write_o(QTile& o_smem, const float (&o_reg)[kRowTiles][kColumnTiles][4], const float (&m)[kRowTiles][2],
                        const float (&l)[kRowTiles][2], const Args& args, int batch, int head, int first_query,
                        int warp_row, int lane) {
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = kernel::sum_of_row(l[t][half]);
      const float inverse_l = sum == 0 ? 0.0f : 1 / sum;
      const int row = warp_row + 16 * t + kernel::fragment_row(half, lane);
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        kernel::store_pair(o_smem.at(QTile::offset(row, c)) + kernel::fragment_column(lane),
                           o_reg[t][c][2 * half] * inverse_l, o_reg[t][c][2 * half + 1] * inverse_l);
      }
      if (lane % 4 == 0 && first_query + row < args.seqlen_q) {
        *args.lse_entry(batch, first_query + row, head) =
            kernel::log_sum_exp({m[t][half] * fabsf(args.softmax_scale), sum});
      }
    }
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < 16 * kRowTiles * QTile::kChunks; i += gpu::kWarpSize) {
    const int row = warp_row + i / QTile::kChunks, chunk = i % QTile::kChunks;
    if (first_query + row >= args.seqlen_q) break;
    gpu::copy_16_bytes(args.o_row(batch, first_query + row, head) + kernel::kChunkElements * chunk,
                       o_smem.at(QTile::offset(row, chunk)));
  }
}

}  // namespace async_copy
