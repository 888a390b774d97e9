#pragma once
/// \file
/// Results on their way to device memory, by way of shared memory.
///
/// A lane has two neighbouring columns of a row, 4 bytes. A warp's store of them goes to eight rows, 16 bytes of each,
/// and the path to the L1 takes one row after the other. In shared memory the same eight rows lie in different banks;
/// read from there, a chunk of 16 bytes a lane, they go out by whole sectors.

#include <cstdint>

#include "common/gpu/uniform.cuh"
#include "common/gpu/vector.cuh"
#include "common/kernel/fragments.cuh"
#include "common/kernel/shared_tile.cuh"

namespace tensor_core_backward {

/// Where the part of a tile begins that a warp has computed.
struct WarpsPart {
  int first_row, first_column;
};

/// 16 rows of a warp's results, times `factor` and rounded, into a tile in which nobody else reads this part any more.
/// Without bank conflicts: a store's eight rows have their chunk in eight different groups of four banks (Swizzled).
template <class RowsTile, int kColumnTiles>
__device__ void put_rows(RowsTile& to_smem, const float (&rows)[kColumnTiles][4], float factor, WarpsPart part) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = part.first_row + kernel::fragment_row(half, gpu::lane());
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      const int chunk = part.first_column / kernel::kChunkElements + c;
      kernel::store_pair(to_smem.at(RowsTile::offset(row, chunk)) + kernel::fragment_column(gpu::lane()),
                         rows[c][2 * half] * factor, rows[c][2 * half + 1] * factor);
    }
  }
}

/// A warp's part of a tile, kRows × kColumns, in chunks of 16 bytes.
///
/// \param to_gmem,row_stride the tile's first row, and how many elements after it the next one is
/// \param end_row rows from here on are not there
template <int kRows, int kColumns, class RowsTile, class T>
__device__ void copy_rows_out(T* to_gmem, std::int64_t row_stride, const RowsTile& from_smem, WarpsPart part,
                              int end_row) {
  constexpr int kChunks = kColumns / kernel::kChunkElements;
#pragma unroll 4
  for (int i = gpu::lane(); i < kRows * kChunks; i += gpu::kWarpSize) {
    const int row = part.first_row + i / kChunks, chunk = part.first_column / kernel::kChunkElements + i % kChunks;
    if (row >= end_row) break;
    gpu::copy_16_bytes(to_gmem + row * row_stride + kernel::kChunkElements * chunk,
                       from_smem.at(RowsTile::offset(row, chunk)));
  }
}

}  // namespace tensor_core_backward
