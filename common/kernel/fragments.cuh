#pragma once
/// \file
/// Operands of mma.m16n8k16 out of tiles in shared memory, and rows of its results. Taught in chapter 07.
///
/// tensor_core.cuh shows which lane holds what. Offsets are those that a lane names to ldmatrix for a part at the top
/// left of a tile; SharedTile::column_step goes to the right, and kColumns elements are a row further down (which the
/// layouts allow in steps of 8).

#include <cstdint>

#include "common/gpu/numeric.cuh"
#include "common/gpu/tensor_core.cuh"
#include "common/gpu/warp.cuh"

namespace kernel {

/// For A, 16 rows × 16 columns: four matrices, upper left, lower left, upper right, lower right.
template <class Tile>
__device__ int offset_of_a(int first_row, int lane) {
  return Tile::offset(first_row + lane % 16, lane / 16);
}

/// For the B of two products out of a tile that holds it by columns (K for QKᵀ: a column of B is a key): 16 rows, which
/// are columns of B, × 16 columns. The first product's two matrices, then the second's.
template <class Tile>
__device__ int offset_of_b(int lane) {
  return Tile::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

/// For the B of two products out of a tile that holds it by rows (V for PV): 16 rows × 16 columns, to be transposed.
template <class Tile>
__device__ int offset_of_b_transposed(int lane) {
  return Tile::offset(lane % 16, lane / 16);
}

/// Loads the B of two products.
template <class Tile>
__device__ void load_b(std::uint32_t (&b_reg)[2][2], const Tile& tile, int offset) {
  std::uint32_t matrices[4];
  gpu::load_matrices<4>(matrices, tile.at(offset));
  b_reg[0][0] = matrices[0], b_reg[0][1] = matrices[1];
  b_reg[1][0] = matrices[2], b_reg[1][1] = matrices[3];
}
template <class Tile>
__device__ void load_b_transposed(std::uint32_t (&b_reg)[2][2], const Tile& tile, int offset) {
  std::uint32_t matrices[4];
  gpu::load_matrices_transposed<4>(matrices, tile.at(offset));
  b_reg[0][0] = matrices[0], b_reg[0][1] = matrices[1];
  b_reg[1][0] = matrices[2], b_reg[1][1] = matrices[3];
}

/// Two neighbouring results of 16 × 8, d0 the left one, as the A of the next product, rounded to T.
template <class T>
__device__ void pack_a(std::uint32_t (&a_reg)[4], const float (&d0)[4], const float (&d1)[4]) {
  a_reg[0] = gpu::pack<T>(d0[0], d0[1]);
  a_reg[1] = gpu::pack<T>(d0[2], d0[3]);
  a_reg[2] = gpu::pack<T>(d1[0], d1[1]);
  a_reg[3] = gpu::pack<T>(d1[2], d1[3]);
}

/// Two neighbouring elements of a result, rounded to T, in one store of 4 bytes.
template <class T>
__device__ void store_pair(T* pair, float low, float high) {
  *reinterpret_cast<std::uint32_t*>(pair) = gpu::pack<T>(low, high);
}

/// The row of a result, within its 16, that a lane holds in d[0], d[1] (half 0) and in d[2], d[3] (half 1).
__device__ inline int fragment_row(int half, int lane) { return 8 * half + lane / 4; }
/// The column of d[0] and d[2], within its 8; d[1] and d[3] hold the next.
__device__ inline int fragment_column(int lane) { return 2 * (lane % 4); }

/// Over the four lanes that share a row of a result: a butterfly of two steps, and each has it.
__device__ inline float max_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(gpu::kFullWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(gpu::kFullWarp, x, 2));
}
__device__ inline float sum_of_row(float x) {
  x += __shfl_xor_sync(gpu::kFullWarp, x, 1);
  return x + __shfl_xor_sync(gpu::kFullWarp, x, 2);
}

}  // namespace kernel
