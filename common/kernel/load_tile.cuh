#pragma once
/// \file
/// A tile's rows from device memory into shared memory. Taught in chapter 04, with one float a thread, and in chapter
/// 05, with four.

#include <cstdint>

#include "common/gpu/launch.cuh"
#include "common/gpu/vector.cuh"

namespace kernel {

/// Rows of Q, K or V into shared memory: neighbouring threads take neighbouring elements. Rows past the end become
/// zeros, since what lies there may be NaN, and 0 · NaN is NaN.
///
/// \param rows_gmem the first row, [kColumns]; `row_stride` elements on begins the next, and `rows` of them exist
template <int kThreads, int kColumns, int kRows, int kRowFloats>
__device__ void load_tile(float (&tile_smem)[kRows][kRowFloats], const float* rows_gmem, std::int64_t row_stride,
                          int rows) {
  static_assert(kColumns <= kRowFloats, "a row of the tile has room for a row of the matrix, and padding behind it");
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kColumns; i += kThreads) {
    const int row = i / kColumns, column = i % kColumns;
    tile_smem[row][column] = row < rows ? rows_gmem[row * row_stride + column] : 0.0f;
  }
}

/// The same with 16 bytes a thread and instruction, times a factor. All rows, here and there, begin at multiples of 16
/// bytes.
template <int kThreads, int kColumns, int kRows, int kRowFloats>
__device__ void load_tile4(float (&tile_smem)[kRows][kRowFloats], const float* rows_gmem, std::int64_t row_stride,
                           int rows, float factor = 1) {
  static_assert(kColumns <= kRowFloats && kColumns % 4 == 0 && kRowFloats % 4 == 0,
                "rows hold whole groups of 16 bytes");
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kColumns / 4; i += kThreads) {
    const int row = i / (kColumns / 4), column = i % (kColumns / 4) * 4;
    const float4 loaded = row < rows ? gpu::load4(rows_gmem + row * row_stride + column) : make_float4(0, 0, 0, 0);
    gpu::store4(&tile_smem[row][column], gpu::scaled(loaded, factor));
  }
}

}  // namespace kernel
