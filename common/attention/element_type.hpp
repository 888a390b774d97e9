#pragma once
/// \file
/// The types that Q, K, V, O and their gradients are stored in.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace attention {

/// fp16 has 5 bits of exponent and 10 of fraction (largest 65504), bf16 the 8 bits of exponent of fp32 and 7 of
/// fraction. LSE, D and sums are fp32 whatever the elements are.
enum class ElementType { fp32, fp16, bf16 };

/// "fp32", "fp16", "bf16".
std::string name(ElementType type);

/// Bytes of an element: 4, 2, 2.
constexpr int element_bytes(ElementType type) { return type == ElementType::fp32 ? 4 : 2; }

/// The distance from 1 to the next larger number: 2⁻²³, 2⁻¹⁰, 2⁻⁷. Rounding is off by at most half of it, in
/// proportion.
constexpr double unit_in_last_place(ElementType type) {
  return type == ElementType::fp32 ? 0x1p-23 : type == ElementType::fp16 ? 0x1p-10 : 0x1p-7;
}

/// The least normal number: 2⁻¹²⁶, 2⁻¹⁴, 2⁻¹²⁶. Below it digits are lost: neighbours stay unit_in_last_place() times it
/// apart.
constexpr double least_normal(ElementType type) { return type == ElementType::fp16 ? 0x1p-14 : 0x1p-126; }

/// The nearest number of the type, of two the even one; what is too large becomes an infinity.
float rounded(float x, ElementType type);

/// An array as it lies in memory: each element rounded to the type. A NaN stays one.
std::vector<std::byte> encode(std::span<const float> values, ElementType type);

/// The way back, which is exact. \throws std::invalid_argument if the bytes are no whole number of elements.
std::vector<float> decode(std::span<const std::byte> bytes, ElementType type);

/// The same, to where there is room for all of them: large arrays need not be filled with zeros first.
void decode(std::span<const std::byte> bytes, ElementType type, float* values);

}  // namespace attention
