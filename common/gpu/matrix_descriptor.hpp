#pragma once
/// \file
/// How WGMMA is told where a matrix lies in shared memory. wgmma.cuh explains the layouts.

#include <cstdint>

#include "common/gpu/swizzle.cuh"

namespace gpu {

/// Along which side of a matrix neighbours in memory lie.
enum class Major { k, mn };

/// Where and how an operand lies in shared memory (PTX ISA, "Matrix Descriptor Format").
struct MatrixDescriptor {
  std::uint64_t bits = 0;

  /// The same matrix `bytes` further on: the next K of a K-major operand, say. A multiple of 16.
  constexpr MatrixDescriptor operator+(std::uint32_t bytes) const { return {bits + bytes / 16}; }
};

/// The descriptor's fields put together; `address` is the shared-memory address in bytes.
///
///     bits 0-13: address / 16     16-29: leading_bytes / 16     32-45: stride_bytes / 16     62-63: swizzle
constexpr MatrixDescriptor matrix_descriptor_at(std::uint32_t address, Swizzle swizzle, std::uint32_t leading_bytes,
                                                std::uint32_t stride_bytes) {
  // Swizzle codes count down here: 3 is 32 bytes, 2 is 64, 1 is 128.
  const std::uint64_t mode = swizzle == Swizzle::none ? 0 : 4 - static_cast<std::uint64_t>(swizzle);
  return {std::uint64_t{(address & 0x3ffff) >> 4} | std::uint64_t{(leading_bytes & 0x3ffff) >> 4} << 16 |
          std::uint64_t{(stride_bytes & 0x3ffff) >> 4} << 32 | mode << 62};
}

}  // namespace gpu
