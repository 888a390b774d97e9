#pragma once
/// \file
/// Acquire and release at device scope (PTX ISA, "ld" and "st": .acquire, .release). CUDA itself brings the atomics.

#include <cuda_runtime.h>

namespace gpu {

__device__ __forceinline__ unsigned load_acquire(const unsigned* address) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_release(unsigned* address, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// Adds x to the four floats at `address`, a multiple of 16 bytes (PTX ISA, "red": .v4.f32, sm_90).
__device__ __forceinline__ void atomic_add4(float* address, const float4& x) {
#if __CUDA_ARCH__ >= 900
  atomicAdd(reinterpret_cast<float4*>(address), x);
#else
  atomicAdd(address, x.x);
  atomicAdd(address + 1, x.y);
  atomicAdd(address + 2, x.z);
  atomicAdd(address + 3, x.w);
#endif
}

}  // namespace gpu
