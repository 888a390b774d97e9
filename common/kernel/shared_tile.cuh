#pragma once
/// \file
/// Tiles of 16-bit elements in shared memory, as ldmatrix reads them. Taught in chapter 07.
///
/// Rows stand one below the other. A row is a number of chunks of 16 bytes, eight elements each: what ldmatrix takes
/// for a row of an 8 × 8 matrix, and what a thread copies at once. A layout says where a row's chunks stand.

#include <cstdint>

#include "common/gpu/async_copy.cuh"
#include "common/gpu/launch.cuh"
#include "common/gpu/vector.cuh"

namespace kernel {

/// Elements of 16 bits in 16 bytes.
inline constexpr int kChunkElements = 8;

/// Chunk after chunk. Rows of 128 bytes or more begin at the same bank, so that the eight chunks of a column, which
/// ldmatrix reads at once, lie in the same four banks: eight wavefronts in place of one.
struct RowByRow {
  static constexpr int place(int /*row*/, int chunk) { return chunk; }
};

/// Chunk c of row r stands where chunk c ⊕ (r mod 8) would: the 128-byte swizzle (swizzle.cuh), also in longer rows, of
/// which it permutes each 128 bytes. Eight chunks of a column then lie in eight different groups of four banks.
struct Swizzled {
  static constexpr int place(int row, int chunk) { return chunk ^ (row & 7); }
};

/// kRows rows of kColumns elements.
template <class T_, int kRows_, int kColumns_, class Layout>
struct SharedTile {
  using T = T_;
  static constexpr int kRows = kRows_, kColumns = kColumns_, kChunks = kColumns / kChunkElements;
  static_assert(sizeof(T) == 2, "chunks of 16 bytes are taken for eight elements");
  static_assert(kColumns % 64 == 0, "rows are whole groups of eight chunks, which a layout may permute");

  alignas(128) T elements[kRows * kColumns];

  /// Where a chunk begins, in elements.
  static constexpr int offset(int row, int chunk) {
    return row * kColumns + kChunkElements * Layout::place(row, chunk);
  }

  /// The offset of the chunk `2 * i` chunks to the right of one in the first two. Within 128 bytes that adds 2i to 0 or
  /// 1, which sets bits that are not set there: to ⊕ them is the same, and ⊕ may be done before or after the layout's
  /// own. So it is one instruction with a constant, in place of an address computed anew.
  static constexpr int column_step(int offset_in_first_two, int i) {
    return (offset_in_first_two ^ (2 * kChunkElements * (i % 4))) + 64 * (i / 4);
  }

  __device__ T* at(int offset) { return elements + offset; }
  __device__ const T* at(int offset) const { return elements + offset; }
};

/// Rows of Q, K or V into a tile; rows past the end become zeros, since what lies there may be NaN, and 0 · NaN is NaN.
///
/// \param rows_gmem the first row, [kColumns]; `row_stride` elements on begins the next, and `rows` of them exist. All
/// rows begin at multiples of 16 bytes
template <int kThreads, class Tile>
__device__ void load_chunks(Tile& tile_smem, const typename Tile::T* rows_gmem, std::int64_t row_stride, int rows) {
  static_assert(Tile::kRows * Tile::kChunks % kThreads == 0, "the threads divide the tile's chunks evenly");
#pragma unroll 4
  for (int i = 0; i < Tile::kRows * Tile::kChunks / kThreads; ++i) {
    const int index = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = index / Tile::kChunks, chunk = index % Tile::kChunks;
    typename Tile::T* to_smem = tile_smem.at(Tile::offset(row, chunk));
    if (row < rows) {
      gpu::copy_16_bytes(to_smem, rows_gmem + row * row_stride + kChunkElements * chunk);
    } else {
      gpu::zero_16_bytes(to_smem);
    }
  }
}

/// The same, on its way when it returns (cp.async; the caller commits and waits). Taught in chapter 08.
template <int kThreads, class Tile>
__device__ void load_chunks_async(Tile& tile_smem, const typename Tile::T* rows_gmem, std::int64_t row_stride,
                                  int rows) {
  static_assert(kThreads % Tile::kChunks == 0 && Tile::kRows * Tile::kChunks % kThreads == 0,
                "the threads copy a number of whole rows at a time, and divide the tile's evenly");
  constexpr int kRowsAtOnce = kThreads / Tile::kChunks;
  const int first_row = static_cast<int>(threadIdx.x) / Tile::kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % Tile::kChunks;
  const typename Tile::T* from_gmem = rows_gmem + first_row * row_stride + kChunkElements * chunk;
#pragma unroll
  for (int row = first_row; row < first_row + Tile::kRows; row += kRowsAtOnce) {
    // Past the end nothing is read, but the address has to be one.
    gpu::copy_async<16>(tile_smem.at(Tile::offset(row, chunk)), row < rows ? from_gmem : rows_gmem, row < rows);
    from_gmem += kRowsAtOnce * row_stride;
  }
}

}  // namespace kernel
