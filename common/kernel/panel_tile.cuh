#pragma once
/// \file
/// Tiles of 16-bit elements in shared memory, as WGMMA reads them. Taught in chapter 10.
///
/// A row is cut into *panels* of 128 bytes, 64 elements. In a panel rows stand one below the other, so that eight of
/// them make 1024 bytes without gaps, and the eight chunks of a row change places (swizzle.cuh); panel follows panel:
///
///     columns 0 … 63                    columns 64 … 127
///     row 0     chunks 0 1 2 3 4 5 6 7  row 0     chunks  8  9 10 11 12 13 14 15
///     row 1     chunks 1 0 3 2 5 4 7 6  row 1     chunks  9  8 11 10 13 12 15 14
///     …                                 …
///     row kRows − 1                     row kRows − 1
///
/// A tile of K or Q, whose rows the product sums over, is K-major; one of V, whose rows are the sum's terms, MN-major.

#include <cstdint>

#include "common/gpu/swizzle.cuh"
#include "common/gpu/wgmma.cuh"
#include "common/kernel/shared_tile.cuh"

namespace kernel {

/// kRows rows of kColumns elements, in panels.
template <class T_, int kRows_, int kColumns_>
struct PanelTile {
  using T = T_;
  static constexpr int kRows = kRows_, kColumns = kColumns_, kChunks = kColumns / kChunkElements;
  static constexpr int kPanelColumns = 64, kPanel = kRows * kPanelColumns;     ///< columns and elements of a panel
  static constexpr std::uint32_t kGroupBytes = 8 * kPanelColumns * sizeof(T);  ///< of eight rows in a panel
  static constexpr std::uint32_t kPanelBytes = kPanel * sizeof(T);
  static_assert(sizeof(T) == 2 && kColumns % kPanelColumns == 0, "rows are whole panels of 128 bytes");
  static_assert(kRows % 8 == 0, "panels begin where the swizzle's pattern does");

  alignas(1024) T elements[kRows * kColumns];

  /// Where a chunk begins, in elements.
  static constexpr int offset(int row, int chunk) {
    return chunk / 8 * kPanel + row * kPanelColumns + kChunkElements * (chunk % 8 ^ row % 8);
  }
  __device__ T* at(int offset) { return elements + offset; }
  __device__ const T* at(int offset) const { return elements + offset; }

  /// The tile's rows from `first_row` on (a multiple of 8) as an operand whose K runs along them: K-major.
  __device__ gpu::MatrixDescriptor along_rows(int first_row = 0) const {
    return gpu::matrix_descriptor(elements + first_row * kPanelColumns, gpu::Swizzle::bytes_128, 0, kGroupBytes);
  }
  /// From one of those to the columns 16·i further right: 32 bytes a step inside a panel, then the next panel.
  static constexpr std::uint32_t column_step(int i) { return i / 4 * kPanelBytes + i % 4 * 32; }

  /// The tile as an operand whose K runs down its columns: MN-major. N or M are its columns.
  __device__ gpu::MatrixDescriptor down_columns() const {
    return gpu::matrix_descriptor(elements, gpu::Swizzle::bytes_128, kPanelBytes, kGroupBytes);
  }
  /// From one of those to the rows 16·i further down.
  static constexpr std::uint32_t row_step(int i) { return 2 * kGroupBytes * i; }
};

}  // namespace kernel
