#pragma once
/// \file
/// CUDA's own number formats, registers that hold several of them, and the fast exp2.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace gpu {

/// 2ˣ by the special-function unit, denormals flushed to 0 (PTX ISA, "ex2"). CUDA's exp2f adds a scaling around it.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class Element>
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  static_assert(std::is_same_v<Element, __half> || std::is_same_v<Element, __nv_bfloat16>,
                "two floats become two fp16 or bf16; fp8 is packed four at a time");
  std::uint32_t both;  // The instructions take the upper element first.
  if constexpr (std::is_same_v<Element, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  }
  return both;
}

template <class Element>
__device__ __forceinline__ std::uint32_t pack(float x0, float x1, float x2, float x3) {
  static_assert(std::is_same_v<Element, __nv_fp8_e4m3> || std::is_same_v<Element, __nv_fp8_e5m2>,
                "four floats become four fp8 numbers; fp16 and bf16 are packed two at a time");
  // cvt.rn.satfinite.e4m3x2.f32 (e5m2x2) from sm_89 on; before, CUDA computes it.
  constexpr auto kFormat = std::is_same_v<Element, __nv_fp8_e4m3> ? __NV_E4M3 : __NV_E5M2;
  const std::uint32_t lower = __nv_cvt_float2_to_fp8x2(make_float2(x0, x1), __NV_SATFINITE, kFormat);
  const std::uint32_t upper = __nv_cvt_float2_to_fp8x2(make_float2(x2, x3), __NV_SATFINITE, kFormat);
  return lower | upper << 16;
}

}  // namespace gpu
