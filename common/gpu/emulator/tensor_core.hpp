#pragma once
/// \file
/// mma.sync, ldmatrix, stmatrix and movmatrix on the emulator.

#include <cstdint>
#include <type_traits>

#include "common/gpu/emulator/language.hpp"
#include "common/gpu/emulator/numeric.hpp"

namespace gpu {
namespace emulator {

/// What a lane brings to mma_16x8x16; d is also what it takes home.
struct MmaFragments {
  float d[4];
  std::uint32_t a[4], b[2];
};
void mma_fp16(MmaFragments& fragments, Site site);
void mma_bf16(MmaFragments& fragments, Site site);

/// What a lane brings to load_matrices or store_matrices: the row whose address it gives, and its fragments of the
/// matrices, one a register, which it takes home from load_matrices.
struct MatrixOperands {
  void* row_smem;
  std::uint32_t registers[4];
};
void load_matrices(int count, bool transposed, MatrixOperands& operands, Site site);
void store_matrices(int count, MatrixOperands& operands, Site site);
std::uint32_t transposed_matrix(std::uint32_t fragment, Site site);

}  // namespace emulator

// The kernel's own arrays are copied here, in instrumented code: they may lie anywhere.

template <class Element>
void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                 emulator::Site site = emulator::Site::here()) {
  static_assert(std::is_same_v<Element, __half> || std::is_same_v<Element, __nv_bfloat16>,
                "mma.m16n8k16 takes fp16 and bf16");
  emulator::MmaFragments fragments{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  if constexpr (std::is_same_v<Element, __half>) {
    emulator::mma_fp16(fragments, site);
  } else {
    emulator::mma_bf16(fragments, site);
  }
  for (int i = 0; i < 4; ++i) d[i] = fragments.d[i];
}

template <int kCount>
void load_matrices(std::uint32_t (&r)[kCount], const void* row_smem, emulator::Site site = emulator::Site::here()) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4, "ldmatrix loads 1, 2 or 4 matrices");
  emulator::MatrixOperands loaded{const_cast<void*>(row_smem), {}};
  emulator::load_matrices(kCount, false, loaded, site);
  for (int i = 0; i < kCount; ++i) r[i] = loaded.registers[i];
}

template <int kCount>
void load_matrices_transposed(std::uint32_t (&r)[kCount], const void* row_smem,
                              emulator::Site site = emulator::Site::here()) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4, "ldmatrix loads 1, 2 or 4 matrices");
  emulator::MatrixOperands loaded{const_cast<void*>(row_smem), {}};
  emulator::load_matrices(kCount, true, loaded, site);
  for (int i = 0; i < kCount; ++i) r[i] = loaded.registers[i];
}

template <int kCount>
void store_matrices(void* row_smem, const std::uint32_t (&r)[kCount], emulator::Site site = emulator::Site::here()) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4, "stmatrix stores 1, 2 or 4 matrices");
  emulator::MatrixOperands operands{row_smem, {}};
  for (int i = 0; i < kCount; ++i) operands.registers[i] = r[i];
  emulator::store_matrices(kCount, operands, site);
}

inline std::uint32_t transposed_matrix(std::uint32_t fragment, emulator::Site site = emulator::Site::here()) {
  return emulator::transposed_matrix(fragment, site);
}

}  // namespace gpu
