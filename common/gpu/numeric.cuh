#pragma once
/// \file
/// Number formats and the fast elementary functions.
///
/// `__half` (fp16: 5 exponent bits, 10 of fraction, largest 65504) and `__nv_bfloat16` (bf16: the 8 exponent bits of
/// fp32, 7 of fraction). bf16 has the wider range, fp16 the finer rounding. Conversions from fp32 round to nearest,
/// ties to even.
/// `__expf`, `__logf` and `gpu::exp2_approximate` are the hardware's approximations on a GPU, and the ordinary
/// functions on the emulator, which cannot tell how the hardware rounds them.

#include "common/gpu/launch.cuh"

#ifdef __CUDACC__
#include "common/gpu/cuda/numeric.cuh"
#else
#include "common/gpu/emulator/numeric.hpp"
#endif

namespace gpu {

using fp16 = __half;
using bf16 = __nv_bfloat16;

/// fp32 to a storage format, rounding to nearest even.
template <class T>
__host__ __device__ inline T from_float(float x) {
  return T(x);
}
template <>
__host__ __device__ inline fp16 from_float<fp16>(float x) {
  return __float2half_rn(x);
}
template <>
__host__ __device__ inline bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

/// A storage format to fp32; exact.
__host__ __device__ inline float to_float(float x) { return x; }
__host__ __device__ inline float to_float(fp16 x) { return __half2float(x); }
__host__ __device__ inline float to_float(bf16 x) { return __bfloat162float(x); }

}  // namespace gpu
