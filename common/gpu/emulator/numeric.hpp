#pragma once
/// \file
/// fp16 and bf16 on the emulator, bit for bit as the hardware converts them, and the fast functions' names.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/gpu/emulator/language.hpp"

struct __half {
  std::uint16_t bits;
};
struct __nv_bfloat16 {
  std::uint16_t bits;
};

/// Nearest even; NaN becomes 0x7FFF, as cvt.rn.bf16.f32 gives it.
constexpr __nv_bfloat16 __float2bfloat16_rn(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
constexpr float __bfloat162float(__nv_bfloat16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

/// Nearest even; overflow becomes infinity; NaN becomes 0x7FFF, as cvt.rn.f16.f32 gives it.
constexpr __half __float2half_rn(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {0x7fff};
  if (magnitude >= 0x47800000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // 2¹⁶ and up
  // Below 2⁻¹⁴ the result is subnormal: its unit is 2⁻²⁴, so more of the fraction is cut off.
  const int exponent = static_cast<int>(magnitude >> 23);
  if (exponent < 102) return {static_cast<std::uint16_t>(sign)};  // under half of the smallest subnormal
  const int cut = exponent < 113 ? 126 - exponent : 13;
  const std::uint32_t significand = exponent < 113 ? (magnitude & 0x7fffffu) | 0x800000u : magnitude - (112u << 23);
  const std::uint32_t half_unit = 1u << (cut - 1);
  const std::uint32_t kept = significand >> cut;
  const std::uint32_t rest = significand & ((1u << cut) - 1u);
  const std::uint32_t rounded = kept + (rest > half_unit || (rest == half_unit && (kept & 1u)) ? 1u : 0u);
  return {static_cast<std::uint16_t>(sign | rounded)};  // a carry runs into the exponent, as it should
}
constexpr float __half2float(__half x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

/// Two neighbours in one 32-bit register.
struct __attribute__((__may_alias__, __aligned__(4))) __half2 {
  __half x, y;
};
struct __attribute__((__may_alias__, __aligned__(4))) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
constexpr __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
constexpr __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

// glibc declares __expf and __logf for itself, without a definition to link: macros, after <cmath>.
#define __expf(x) (::expf(x))
#define __logf(x) (::logf(x))
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / ::sqrtf(x); }

namespace gpu {

/// 2ˣ; the hardware's approximation on a GPU.
inline float exp2_approximate(float x) { return ::exp2f(x); }

}  // namespace gpu
