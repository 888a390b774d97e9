#pragma once
/// \file
/// Which lane holds what, asked of the hardware: a warp loads a matrix of numbers, and every lane says what it got.
///
///   - One block of one warp. Shared memory: a tile of numbers and a tile with ones on its diagonal, 16 rows each, of
///     which the first 16 columns are used.
///   - Element (r, c) is the number 16 r + c. All of 0 … 255 are numbers of fp16 and of bf16.
///
/// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".

#include <cstdint>

#include "common/gpu/barrier.cuh"
#include "common/gpu/tensor_core.cuh"
#include "common/kernel/fragments.cuh"
#include "common/kernel/shared_tile.cuh"

namespace tensor_cores {

inline constexpr int kMapSize = 16;  ///< rows and columns of the matrix

/// What the lanes hold. Numbers are those of elements, 16 · row + column.
struct FragmentMap {
  float a[gpu::kWarpSize][4][2];  ///< the matrix as A
  float b[gpu::kWarpSize][2][2];  ///< its columns 0 to 7 as B: its rows are those of B
  float d[gpu::kWarpSize][4];     ///< its columns 0 to 7 as a result: A · 1
  /// Registers of A: as ldmatrix loads them, and as pack_a makes them of the results A · (left half of 1) and
  /// A · (right half of 1), which are A again.
  std::uint32_t a_loaded[gpu::kWarpSize][4], a_packed[gpu::kWarpSize][4];
};

template <class T>
struct FragmentMapShared {
  kernel::SharedTile<T, kMapSize, 64, kernel::RowByRow> numbers, ones;
};

/// \param map_gmem one map, written whole. One block of one warp.
template <class T>
__global__ void fragment_map_kernel(FragmentMap* map_gmem) {
  auto& shared = gpu::shared_memory<FragmentMapShared<T>>();
  using Tile = decltype(shared.numbers);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < kMapSize * kMapSize; i += gpu::kWarpSize) {
    const int row = i / kMapSize, column = i % kMapSize;
    const int offset =
        Tile::offset(row, column / kernel::kChunkElements) + static_cast<int>(column % kernel::kChunkElements);
    *shared.numbers.at(offset) = gpu::from_float<T>(static_cast<float>(kMapSize * row + column));
    *shared.ones.at(offset) = gpu::from_float<T>(row == column ? 1.0f : 0.0f);
  }
  __syncthreads();  // the tiles are there

  std::uint32_t a_reg[4], b_reg[2][2], ones_reg[2][2], packed_reg[4];
  gpu::load_matrices<4>(a_reg, shared.numbers.at(kernel::offset_of_a<Tile>(0, lane)));
  kernel::load_b_transposed(b_reg, shared.numbers, kernel::offset_of_b_transposed<Tile>(lane));
  kernel::load_b_transposed(ones_reg, shared.ones, kernel::offset_of_b_transposed<Tile>(lane));
  float d_reg[2][4] = {};
  gpu::mma_16x8x16<T>(d_reg[0], a_reg, ones_reg[0]);
  gpu::mma_16x8x16<T>(d_reg[1], a_reg, ones_reg[1]);
  kernel::pack_a<T>(packed_reg, d_reg[0], d_reg[1]);

  for (int i = 0; i < 4; ++i) {
    const float2 pair = gpu::unpack<T>(a_reg[i]);
    map_gmem->a[lane][i][0] = pair.x;
    map_gmem->a[lane][i][1] = pair.y;
    map_gmem->d[lane][i] = d_reg[0][i];
    map_gmem->a_loaded[lane][i] = a_reg[i];
    map_gmem->a_packed[lane][i] = packed_reg[i];
  }
  for (int i = 0; i < 2; ++i) {
    const float2 pair = gpu::unpack<T>(b_reg[0][i]);
    map_gmem->b[lane][i][0] = pair.x;
    map_gmem->b[lane][i][1] = pair.y;
  }
}

}  // namespace tensor_cores
