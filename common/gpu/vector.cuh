#pragma once
/// \file
/// Four floats, or eight 16-bit numbers, at once: one instruction moves 16 bytes a thread.
///
/// The address has to be a multiple of 16 (CUDA C++ Programming Guide, "Device Memory Accesses"): anything else stops
/// the kernel, on a GPU and on the emulator. A warp's 512 bytes are then four times what a request for one float a
/// thread brings, for the same number of instructions.

#include "common/gpu/launch.cuh"

namespace gpu {

/// The four floats that begin at `address`, a multiple of 16 bytes.
__device__ inline float4 load4(const float* address) { return *reinterpret_cast<const float4*>(address); }

/// The two floats that begin at `address`, a multiple of 8 bytes.
__device__ inline float2 load2(const float* address) { return *reinterpret_cast<const float2*>(address); }

/// Writes four floats at `address`, a multiple of 16 bytes.
__device__ inline void store4(float* address, const float4& value) { *reinterpret_cast<float4*>(address) = value; }

/// Sixteen bytes from one place to another, whatever they hold; both addresses are multiples of 16.
__device__ inline void copy_16_bytes(void* to, const void* from) {
  *static_cast<float4*>(to) = *static_cast<const float4*>(from);
}
/// Sixteen bytes of zeros.
__device__ inline void zero_16_bytes(void* to) { *static_cast<float4*>(to) = make_float4(0, 0, 0, 0); }

/// x · factor, element by element.
__device__ inline float4 scaled(const float4& x, float factor) {
  return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}

/// sum += factor · x, element by element.
__device__ inline void add_scaled(float4& sum, float factor, const float4& x) {
  sum.x += factor * x.x;
  sum.y += factor * x.y;
  sum.z += factor * x.z;
  sum.w += factor * x.w;
}

}  // namespace gpu
