#pragma once
/// \file
/// CUDA's own number formats, and the fast exp2.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

namespace gpu {

/// 2ˣ by the special-function unit, denormals flushed to 0 (PTX ISA, "ex2"). CUDA's exp2f adds a scaling around it.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace gpu
