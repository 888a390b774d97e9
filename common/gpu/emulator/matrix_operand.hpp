#pragma once
/// \file
/// What WGMMA reads and computes, as functions of descriptors and bytes. Not for kernels.
///
/// When a product runs, who may see its operands and its result, is not decided here.

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/gpu/matrix_descriptor.hpp"

namespace gpu::emulator {

/// The element types of A and B.
enum class OperandElement : std::uint8_t { fp16, bf16, e4m3, e5m2 };
constexpr std::uint32_t operand_element_bytes(OperandElement element) {
  return element == OperandElement::fp16 || element == OperandElement::bf16 ? 2 : 1;
}
/// K of one product: 16, or 32 for fp8; 32 bytes in any case.
constexpr int product_k(OperandElement element) { return 32 / static_cast<int>(operand_element_bytes(element)); }
inline constexpr int kMaxK = 32;
inline constexpr int kMaxN = 256;
/// Floats from one K to the next where B is stored; more than kMaxN, so that a column's elements do not share a cache
/// set.
inline constexpr int kColumnPitch = kMaxN + 16;

/// An operand in shared memory: a descriptor taken apart, and what the instruction itself says.
struct MatrixOperand {
  std::uint32_t start = 0;  ///< bytes from the start of shared memory, where addresses count from 0 and 1024 divides it
  std::uint32_t leading_bytes = 0;
  std::uint32_t stride_bytes = 0;
  Swizzle swizzle = Swizzle::none;
  Major major = Major::k;
  OperandElement element = OperandElement::bf16;
  int rows = 64;  ///< M of A: 64; N of B

  /// Elements that a 16-byte chunk holds, neighbours along `major`.
  constexpr int chunk_elements() const { return 16 / static_cast<int>(operand_element_bytes(element)); }
};

/// \param descriptor one whose address counts from the start of the block's shared memory
MatrixOperand decode(MatrixDescriptor descriptor, Major major, OperandElement element, int rows);

/// Where in shared memory the 16-byte chunk lies that holds element (mn, k).
///
/// With T elements a chunk and W = swizzle_bytes, before the swizzle (CUTLASS, "canonical layouts" of GmmaDescriptor):
///
///     K-major:              start + (mn mod 8)·W + (mn / 8)·stride_bytes + (k / T)·(16, unswizzled: leading_bytes)
///     MN-major, swizzled:   start + (mn / T mod W/16)·16 + (mn / (W/16·T))·leading_bytes + (k mod 8)·W
///                                 + (k / 8)·stride_bytes
///     MN-major, unswizzled: start + (mn / T)·stride_bytes + (k mod 8)·16 + (k / 8)·leading_bytes
constexpr std::uint32_t chunk_offset(const MatrixOperand& o, int mn, int k) {
  const auto row = static_cast<std::uint32_t>(mn), column = static_cast<std::uint32_t>(k);
  const auto per_chunk = static_cast<std::uint32_t>(o.chunk_elements());
  const std::uint32_t width = swizzle_bytes(o.swizzle), chunks_across = width / 16;
  const bool swizzled = o.swizzle != Swizzle::none;
  std::uint32_t offset = o.start;
  if (o.major == Major::k) {
    offset += row % 8 * width + row / 8 * o.stride_bytes + column / per_chunk * (swizzled ? 16 : o.leading_bytes);
  } else {
    const std::uint32_t chunk = row / per_chunk;
    offset += column % 8 * width;
    offset += swizzled ? chunk % chunks_across * 16 + chunk / chunks_across * o.leading_bytes : chunk * o.stride_bytes;
    offset += column / 8 * (swizzled ? o.stride_bytes : o.leading_bytes);
  }
  return swizzled_offset(o.swizzle, offset);
}

/// Where element (mn, k) lies.
constexpr std::uint32_t element_offset(const MatrixOperand& o, int mn, int k) {
  const int along = o.major == Major::k ? k : mn;
  return chunk_offset(o, mn, k) +
         static_cast<std::uint32_t>(along % o.chunk_elements()) * operand_element_bytes(o.element);
}

/// Calls visit(offset) for every 16-byte chunk that a product reads of the rows first … first + count − 1, multiples
/// of 8.
template <class Visit>
void for_each_operand_chunk(const MatrixOperand& o, int first, int count, Visit&& visit) {
  const int mn_step = o.major == Major::k ? 1 : o.chunk_elements();
  const int k_step = o.major == Major::k ? o.chunk_elements() : 1;
  for (int k = 0; k < product_k(o.element); k += k_step) {
    for (int mn = first; mn < first + count; mn += mn_step) visit(chunk_offset(o, mn, k));
  }
}

/// Empty if WGMMA can read the operand; otherwise a sentence: fp8 that is not K-major, a tile or a step off its
/// alignment, strides that break the swizzle's pattern, bytes past the end of shared memory.
std::string operand_fault(const MatrixOperand& operand, std::size_t shared_bytes);

/// \name Products
/// D (64 × N, fp32) = A·B or D + A·B. Here too the sum over K is made first, in fp32 and in order, and D added then;
/// how a tensor core rounds is not known. Sums of integers that fp32 holds are exact in both.
/// @{

/// Rows 16w … 16w + 15 of A from shared memory: [16][K].
void read_a(const MatrixOperand& a, int warp, const unsigned char* shared, float* rows);
/// The same from the registers of the warp's lanes (wgmma.cuh).
void read_a(OperandElement element, const std::uint32_t* const (&registers)[32], float* rows);
/// B from shared memory: [K][kColumnPitch], of which the first N columns are set.
void read_b(const MatrixOperand& b, const unsigned char* shared, float* columns);
/// A warp's share of D: `d[lane]` points to the N / 2 accumulators of that lane.
void multiply(const float* rows, const float* columns, int k, int n, bool accumulate, float* const (&d)[32]);
/// @}

}  // namespace gpu::emulator
