#pragma once
/// \file
/// Addresses of shared memory as PTX takes them.

#include <cuda_runtime.h>

#include <cstdint>

namespace gpu {

/// The 32-bit address of shared memory that a generic pointer points into.
__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace gpu
