#pragma once
/// \file
/// CUDA's own number formats, and the fast exp2 under the name that the emulator shares.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

/// 2ˣ by the special-function unit, denormals flushed (PTX ISA, "ex2").
__device__ __forceinline__ float __exp2f(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
