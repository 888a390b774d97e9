/// \file
/// Products and moves of small matrices, done for the whole warp when its last lane arrives.
///
/// A product of two 16-bit elements is exact in double precision. Sixteen of them and d are added there and rounded to
/// fp32 once. The hardware adds in an order of its own and cuts bits off, so its last bits differ; sums of small
/// integers are exact on both.

#include "common/gpu/emulator/tensor_core.hpp"

#include <cstring>

#include "common/gpu/emulator/access.hpp"
#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

constexpr unsigned kAllLanes = ~0u;

template <class Operands>
Operands& operands(const Thread& lane) {
  return *static_cast<Operands*>(lane.operands);
}

// ---- Products

/// The element in the lower (0) or upper (1) half of a register.
template <class Element>
double element(std::uint32_t elements, int half) {
  const auto bits = static_cast<std::uint16_t>(elements >> 16 * half);
  if constexpr (std::is_same_v<Element, __half>) {
    return __half2float(__ushort_as_half(bits));
  } else {
    return __bfloat162float(__ushort_as_bfloat16(bits));
  }
}

template <class Element>
void multiply(const WarpMeeting&, Thread* lanes) {
  double a[16][16], b[16][8], sum[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const MmaFragments& of = operands<MmaFragments>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      const int column = 2 * t + half;
      for (int quarter = 0; quarter < 4; ++quarter) {
        a[g + quarter % 2 * 8][column + quarter / 2 * 8] = element<Element>(of.a[quarter], half);
      }
      b[column][g] = element<Element>(of.b[0], half);
      b[column + 8][g] = element<Element>(of.b[1], half);
      sum[g][column] = of.d[half];
      sum[g + 8][column] = of.d[2 + half];
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) sum[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const double exact = sum[g + i / 2 * 8][2 * t + i % 2];
      auto rounded = static_cast<float>(exact);
      if (rounded == 0 && exact != 0) rounded = 0;  // an H200 gives +0 for a sum too small for a float, also below 0
      operands<MmaFragments>(lanes[lane]).d[i] = is_nan(rounded) ? kCanonicalNan : rounded;
    }
  }
}

const WarpOperation kMmaFp16{"mma_16x8x16<fp16>", false, multiply<__half>};
const WarpOperation kMmaBf16{"mma_16x8x16<bf16>", false, multiply<__nv_bfloat16>};

// ---- 8 × 8 matrices of 16-bit elements

struct Matrix {
  std::uint16_t at[8][8];
};

/// A lane's fragment: row lane / 4, columns 2 (lane % 4) and the next, of the matrix or of its transpose.
std::uint32_t fragment(const Matrix& matrix, int lane, bool transposed) {
  const int row = lane / 4, column = 2 * (lane % 4);
  const std::uint16_t low = transposed ? matrix.at[column][row] : matrix.at[row][column];
  const std::uint16_t high = transposed ? matrix.at[column + 1][row] : matrix.at[row][column + 1];
  return low | std::uint32_t{high} << 16;
}

void set_fragment(Matrix& matrix, int lane, std::uint32_t elements) {
  matrix.at[lane / 4][2 * (lane % 4)] = static_cast<std::uint16_t>(elements);
  matrix.at[lane / 4][2 * (lane % 4) + 1] = static_cast<std::uint16_t>(elements >> 16);
}

template <int kCount, bool kTransposed>
void load(const WarpMeeting&, Thread* lanes) {
  Matrix matrices[kCount];
  for (int i = 0; i < 8 * kCount; ++i) {
    std::memcpy(matrices[i / 8].at[i % 8], operands<MatrixOperands>(lanes[i]).row_smem, sizeof matrices[0].at[0]);
  }
  for (int lane = 0; lane < 32; ++lane) {
    MatrixOperands& of = operands<MatrixOperands>(lanes[lane]);
    for (int i = 0; i < kCount; ++i) of.registers[i] = fragment(matrices[i], lane, kTransposed);
  }
}

template <int kCount>
void store(const WarpMeeting&, Thread* lanes) {
  for (int i = 0; i < kCount; ++i) {
    Matrix matrix;
    for (int lane = 0; lane < 32; ++lane) {
      set_fragment(matrix, lane, operands<MatrixOperands>(lanes[lane]).registers[i]);
    }
    for (int row = 0; row < 8; ++row) {
      std::memcpy(operands<MatrixOperands>(lanes[8 * i + row]).row_smem, matrix.at[row], sizeof matrix.at[row]);
    }
  }
}

void transpose(const WarpMeeting&, Thread* lanes) {
  Matrix matrix;
  for (int lane = 0; lane < 32; ++lane) set_fragment(matrix, lane, operands<std::uint32_t>(lanes[lane]));
  for (int lane = 0; lane < 32; ++lane) operands<std::uint32_t>(lanes[lane]) = fragment(matrix, lane, true);
}

// By number of matrices / 2: of 1, 2 and 4.
const WarpOperation kLoads[] = {{"load_matrices<1>", false, load<1, false>},
                                {"load_matrices<2>", false, load<2, false>},
                                {"load_matrices<4>", false, load<4, false>}};
const WarpOperation kTransposedLoads[] = {{"load_matrices_transposed<1>", false, load<1, true>},
                                          {"load_matrices_transposed<2>", false, load<2, true>},
                                          {"load_matrices_transposed<4>", false, load<4, true>}};
const WarpOperation kStores[] = {{"store_matrices<1>", false, store<1>},
                                 {"store_matrices<2>", false, store<2>},
                                 {"store_matrices<4>", false, store<4>}};
const WarpOperation kTranspose{"transposed_matrix", false, transpose};

[[noreturn, gnu::noinline]] void report_row(const WarpOperation& operation, const char* why, Site site) {
  const int lane = t_thread->lane;
  fault(site, std::string(operation.name) + ": row " + std::to_string(lane % 8) + " of matrix " +
                  std::to_string(lane / 8) + ", whose address lane " + std::to_string(lane) + " gives, " + why);
}

/// This lane's row has to be 16 aligned bytes of its block's shared memory. The row is touched when all lanes have
/// come; to the checks it is an access of this lane, which stands still until then.
void check_row(const WarpOperation& operation, int count, const void* row, AccessKind kind, Site site) {
  const Thread& me = *t_thread;
  if (me.lane >= 8 * count) return;
  const BlockMemory& memory = *me.block->memory;
  const std::uintptr_t offset =
      reinterpret_cast<std::uintptr_t>(row) - reinterpret_cast<std::uintptr_t>(memory.shared());
  if (offset >= memory.shared_bytes() || memory.shared_bytes() - offset < 16) {
    report_row(operation, "is not in this block's shared memory", site);
  }
  if (reinterpret_cast<std::uintptr_t>(row) % 16) {
    report_row(operation, "has to start at a multiple of 16 bytes", site);
  }
  if (checking()) observe_access(row, 16, kind, Place::site(site));
}

}  // namespace

void mma_fp16(MmaFragments& fragments, Site site) {
  const Unwatched scope;
  t_thread->operands = &fragments;
  meet(kAllLanes, kMmaFp16, site);
}

void mma_bf16(MmaFragments& fragments, Site site) {
  const Unwatched scope;
  t_thread->operands = &fragments;
  meet(kAllLanes, kMmaBf16, site);
}

void load_matrices(int count, bool transposed, MatrixOperands& operands, Site site) {
  const Unwatched scope;
  const WarpOperation& operation = (transposed ? kTransposedLoads : kLoads)[count / 2];
  check_row(operation, count, operands.row_smem, AccessKind::load, site);
  t_thread->operands = &operands;
  meet(kAllLanes, operation, site);
}

void store_matrices(int count, MatrixOperands& operands, Site site) {
  const Unwatched scope;
  const WarpOperation& operation = kStores[count / 2];
  check_row(operation, count, operands.row_smem, AccessKind::store, site);
  t_thread->operands = &operands;
  meet(kAllLanes, operation, site);
}

std::uint32_t transposed_matrix(std::uint32_t fragment, Site site) {
  const Unwatched scope;
  t_thread->operands = &fragment;
  meet(kAllLanes, kTranspose, site);
  return fragment;
}

}  // namespace gpu::emulator
