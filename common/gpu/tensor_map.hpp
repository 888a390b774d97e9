#pragma once
/// \file
/// Tensor maps: what TMA has to know about an array to copy boxes of it (host side).

#include <array>
#include <cstdint>
#include <vector>

#include "common/gpu/device.hpp"
#include "common/gpu/swizzle.cuh"

namespace gpu {

/// Types of elements that a tensor map names. Size matters for all; the kind only for tma_reduce_add.
enum class TensorElement : std::uint32_t { bytes_1, fp16, bf16, fp32 };

/// Bytes of an element.
constexpr std::uint32_t element_bytes(TensorElement element) {
  return element == TensorElement::bytes_1 ? 1 : element == TensorElement::fp32 ? 4 : 2;
}

/// An array of 1 to 5 dimensions in device memory, and the box that one copy moves. Dimension 0 is the innermost, whose
/// elements are neighbours.
///
/// The rules are those of cuTensorMapEncodeTiled (CUDA Driver API) without interleaving, but for two that are the
/// book's: with a swizzle a row of the box is exactly as wide as the pattern (the driver takes narrower ones too, and
/// NVIDIA does not say how their rows then lie), and the box fits into a block's shared memory.
struct TensorMapShape {
  TensorElement element = TensorElement::bf16;
  void* base = nullptr;                     ///< a multiple of 16 bytes
  std::vector<std::uint64_t> sizes;         ///< elements in each dimension, 1 to 2³²
  std::vector<std::uint64_t> stride_bytes;  ///< of dimensions 1, 2, …; multiples of 16 below 2⁴⁰; 0 repeats
  std::vector<std::uint32_t> box;           ///< elements in each dimension, 1 to 256; innermost a multiple of 16 bytes
  Swizzle swizzle = Swizzle::none;          ///< none, or as many bytes as the innermost box has
};

/// What a kernel gets: `const __grid_constant__ gpu::TensorMap map`, by value. Opaque; 128 bytes as the hardware wants
/// them. Elements outside of the array arrive as zeros.
struct alignas(128) TensorMap {
  std::array<std::uint64_t, 16> words;
};

/// \throws Error naming the rule that the shape breaks, its value and what is allowed.
void check_tensor_map_shape(const TensorMapShape& shape);

/// \throws Error as check_tensor_map_shape; on a GPU also when it has no TMA (before sm_90) or the driver refuses.
TensorMap make_tensor_map(const TensorMapShape& shape);

/// Bytes that one box brings, those outside of the array included: what mbarrier_expect_bytes has to announce.
/// \throws Error as check_tensor_map_shape.
std::uint32_t box_bytes(const TensorMapShape& shape);

}  // namespace gpu
