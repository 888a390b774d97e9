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

}  // namespace gpu
