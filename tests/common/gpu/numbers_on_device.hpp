#pragma once
/// \file
/// Conversions done by kernels, for a test that compares them with Eigen's (which a .cu file does not include).

#include <cstdint>
#include <vector>

namespace gpu_tests {

/// fp16 and bf16 values as their bits.
std::vector<float> fp16_to_float(const std::vector<std::uint16_t>& bits);
std::vector<float> bf16_to_float(const std::vector<std::uint16_t>& bits);
std::vector<std::uint16_t> float_to_fp16(const std::vector<float>& values);
std::vector<std::uint16_t> float_to_bf16(const std::vector<float>& values);

/// Two floats each, as one 32-bit register: the first in the low half.
std::vector<std::uint32_t> pairs_to_fp16(const std::vector<float>& values);
std::vector<std::uint32_t> pairs_to_bf16(const std::vector<float>& values);

enum class Fast { exp, log, exp2 };
std::vector<float> fast_function(Fast function, const std::vector<float>& values);

}  // namespace gpu_tests
