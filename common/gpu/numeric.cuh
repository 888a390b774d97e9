#pragma once
/// \file
/// Number formats and the fast elementary functions.
///
/// `__half` (fp16: 5 exponent bits, 10 of fraction, largest 65504) and `__nv_bfloat16` (bf16: the 8 exponent bits of
/// fp32, 7 of fraction). bf16 has the wider range, fp16 the finer rounding. Conversions from fp32 round to nearest,
/// ties to even; what is too large becomes an infinity.
///
/// fp8 comes in two kinds. `__nv_fp8_e4m3`: 4 exponent bits, 3 of fraction, from 2⁻⁹ (normal from 2⁻⁶) to 448; no
/// infinities, and one NaN. `__nv_fp8_e5m2`: 5 exponent bits, 2 of fraction, from 2⁻¹⁶ (2⁻¹⁴) to 57344, with infinities
/// and NaNs. Conversions to fp8 saturate: whatever is larger, infinity too, becomes the largest number. So 280
/// becomes 288 in e4m3, the nearest, but 500 becomes 448: who scales numbers up has to leave room.
///
/// Not-a-number becomes 0x7FFF in fp16 and bf16 and 0x7F in fp8, whatever its sign.
///
/// Tensor cores take elements packed into 32-bit registers, the first in the lowest bits. In kernels,
///
///     gpu::pack<Element>(low, high)          two floats rounded to fp16 or bf16
///     gpu::pack<Element>(x0, x1, x2, x3)     four floats rounded to fp8
///     gpu::unpack<Element>(elements)         the float2 or float4 of a register's elements
///
/// (PTX ISA, "cvt": cvt.rn.f16x2.f32, cvt.rn.bf16x2.f32, cvt.rn.satfinite.e4m3x2.f32; fp8 by instruction from sm_89
/// on.)
///
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
using fp8_e4m3 = __nv_fp8_e4m3;
using fp8_e5m2 = __nv_fp8_e5m2;

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
__host__ __device__ inline float to_float(fp8_e4m3 x) { return static_cast<float>(x); }
__host__ __device__ inline float to_float(fp8_e5m2 x) { return static_cast<float>(x); }

/// The elements of a register as floats, first the one in the lowest bits: two (`float2`) of fp16 or bf16, four
/// (`float4`) of fp8.
template <class Element>
__device__ inline auto unpack(std::uint32_t elements) {
  const auto element = [elements](int bit) {
    if constexpr (std::is_same_v<Element, fp16>) {
      return to_float(__ushort_as_half(static_cast<unsigned short>(elements >> bit)));
    } else if constexpr (std::is_same_v<Element, bf16>) {
      return to_float(__ushort_as_bfloat16(static_cast<unsigned short>(elements >> bit)));
    } else {
      Element x;
      x.__x = static_cast<unsigned char>(elements >> bit);
      return to_float(x);
    }
  };
  if constexpr (sizeof(Element) == 2) {
    return make_float2(element(0), element(16));
  } else {
    return make_float4(element(0), element(8), element(16), element(24));
  }
}

}  // namespace gpu
