#pragma once
/// \file
/// fp16, bf16 and fp8 on the emulator, bit for bit as the hardware converts them, and the fast functions' names.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/gpu/emulator/language.hpp"

namespace gpu::emulator {

/// The code of a small format, with kFraction bits of fraction and exponent bias kBias, for a positive float given by
/// its bits: the nearest, of two the even one. Beyond the largest exponent the codes go on as if there were more.
template <int kFraction, int kBias>
constexpr std::uint32_t rounded_code(std::uint32_t float_bits) {
  constexpr int kFirstNormal = 128 - kBias;  // as exponents are written in a float
  const int exponent = static_cast<int>(float_bits >> 23);
  const int too_small = std::max(kFirstNormal - exponent, 0);
  // A subnormal result has the unit of the smallest normal numbers, so more of the fraction is cut off.
  const int cut = 23 - kFraction + too_small;
  if (cut > 24) return 0;  // less than half of the smallest subnormal
  const std::uint32_t significand =
      too_small > 0 ? (float_bits & 0x7fffffu) | 0x800000u : float_bits - ((kFirstNormal - 1u) << 23);
  const std::uint32_t half_unit = 1u << (cut - 1), kept = significand >> cut, rest = significand & ((1u << cut) - 1u);
  // A carry runs into the exponent, as it should.
  return kept + (rest > half_unit || (rest == half_unit && (kept & 1u)));
}

/// What arithmetic gives for not-a-number.
inline constexpr float kCanonicalNan = std::bit_cast<float>(0x7fffffffu);

constexpr std::uint32_t magnitude_bits(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7fffffffu; }
constexpr bool is_nan(float x) { return magnitude_bits(x) > 0x7f800000u; }
constexpr std::uint32_t sign_bit(float x) { return std::bit_cast<std::uint32_t>(x) >> 31; }

}  // namespace gpu::emulator

struct __half {
  std::uint16_t bits;
};
struct __nv_bfloat16 {
  std::uint16_t bits;
};
constexpr __half __ushort_as_half(std::uint16_t bits) { return {bits}; }
constexpr std::uint16_t __half_as_ushort(__half x) { return x.bits; }
constexpr __nv_bfloat16 __ushort_as_bfloat16(std::uint16_t bits) { return {bits}; }
constexpr std::uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }

/// Nearest even; NaN becomes 0x7FFF, as cvt.rn.bf16.f32 gives it.
constexpr __nv_bfloat16 __float2bfloat16_rn(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if (gpu::emulator::is_nan(x)) return {0x7fff};
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
/// A NaN keeps its bits.
constexpr float __bfloat162float(__nv_bfloat16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

/// Nearest even; overflow becomes infinity; NaN becomes 0x7FFF, as cvt.rn.f16.f32 gives it.
constexpr __half __float2half_rn(float x) {
  if (gpu::emulator::is_nan(x)) return {0x7fff};
  const std::uint32_t code = gpu::emulator::rounded_code<10, 15>(gpu::emulator::magnitude_bits(x));
  return {static_cast<std::uint16_t>(gpu::emulator::sign_bit(x) << 15 | std::min(code, 0x7c00u))};
}
constexpr float __half2float(__half x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
  const std::uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude > 0x7c00u) return gpu::emulator::kCanonicalNan;
  if (magnitude == 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u);
  if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

/// fp8 with 4 exponent bits. `__x` is CUDA's name for the bits.
struct __nv_fp8_e4m3 {
  std::uint8_t __x;
  __nv_fp8_e4m3() = default;
  /// Nearest even; what is too large, infinity too, becomes ±448, and NaN 0x7F: cvt.rn.satfinite.e4m3x2.f32.
  explicit constexpr __nv_fp8_e4m3(float x) : __x(0x7f) {
    if (gpu::emulator::is_nan(x)) return;
    const std::uint32_t code = gpu::emulator::rounded_code<3, 7>(gpu::emulator::magnitude_bits(x));
    __x = static_cast<std::uint8_t>(gpu::emulator::sign_bit(x) << 7 | std::min(code, 0x7eu));
  }
  explicit constexpr operator float() const {
    if ((__x & 0x7fu) == 0x7fu) return gpu::emulator::kCanonicalNan;
    // As fp16, whose exponents begin 8 lower: 2⁸ times too small, also where subnormal.
    return __half2float({static_cast<std::uint16_t>((__x & 0x80u) << 8 | (__x & 0x7fu) << 7)}) * 256.0f;
  }
};

/// fp8 with 5 exponent bits: the upper half of an fp16.
struct __nv_fp8_e5m2 {
  std::uint8_t __x;
  __nv_fp8_e5m2() = default;
  /// Nearest even; what is too large, infinity too, becomes ±57344, and NaN 0x7F: cvt.rn.satfinite.e5m2x2.f32.
  explicit constexpr __nv_fp8_e5m2(float x) : __x(0x7f) {
    if (gpu::emulator::is_nan(x)) return;
    const std::uint32_t code = gpu::emulator::rounded_code<2, 15>(gpu::emulator::magnitude_bits(x));
    __x = static_cast<std::uint8_t>(gpu::emulator::sign_bit(x) << 7 | std::min(code, 0x7bu));
  }
  explicit constexpr operator float() const { return __half2float({static_cast<std::uint16_t>(__x << 8)}); }
};

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

template <class Element>
constexpr std::uint32_t pack(float low, float high) {
  static_assert(std::is_same_v<Element, __half> || std::is_same_v<Element, __nv_bfloat16>,
                "two floats become two fp16 or bf16; fp8 is packed four at a time");
  if constexpr (std::is_same_v<Element, __half>) {
    return __float2half_rn(low).bits | std::uint32_t{__float2half_rn(high).bits} << 16;
  } else {
    return __float2bfloat16_rn(low).bits | std::uint32_t{__float2bfloat16_rn(high).bits} << 16;
  }
}

template <class Element>
constexpr std::uint32_t pack(float x0, float x1, float x2, float x3) {
  static_assert(std::is_same_v<Element, __nv_fp8_e4m3> || std::is_same_v<Element, __nv_fp8_e5m2>,
                "four floats become four fp8 numbers; fp16 and bf16 are packed two at a time");
  return Element(x0).__x | std::uint32_t{Element(x1).__x} << 8 | std::uint32_t{Element(x2).__x} << 16 |
         std::uint32_t{Element(x3).__x} << 24;
}

}  // namespace gpu
