/// \file
/// Element types: every code there and back, and rounding to nearest, of two the even one.

#include "common/attention/element_type.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/catch.hpp"

using attention::decode;
using attention::ElementType;
using attention::encode;
using attention::rounded;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<std::byte> bytes_of(const std::vector<std::uint16_t>& codes) {
  std::vector<std::byte> bytes(2 * codes.size());
  std::memcpy(bytes.data(), codes.data(), bytes.size());
  return bytes;
}

std::vector<std::uint16_t> all_codes() {
  std::vector<std::uint16_t> codes(1 << 16);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  return codes;
}

/// What a code means, by the definition of the format: sign, exponent and fraction.
float value_of(std::uint16_t code, ElementType type) {
  const int fraction_bits = type == ElementType::fp16 ? 10 : 7;
  const int exponent_bits = 15 - fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int fraction = code & ((1 << fraction_bits) - 1);
  const int exponent = (code >> fraction_bits) & ((1 << exponent_bits) - 1);
  float size;
  if (exponent == (1 << exponent_bits) - 1)
    size = fraction == 0 ? kInfinity : std::numeric_limits<float>::quiet_NaN();
  else if (exponent == 0)
    size = std::ldexp(float(fraction), 1 - bias - fraction_bits);
  else
    size = std::ldexp(float(fraction + (1 << fraction_bits)), exponent - bias - fraction_bits);
  return code & 0x8000 ? -size : size;
}

}  // namespace

TEST_CASE("all codes of 16 bits mean what the format says and come back unchanged") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  const std::vector<std::uint16_t> codes = all_codes();
  const std::vector<float> values = decode(bytes_of(codes), type);
  REQUIRE(values.size() == codes.size());
  std::vector<std::uint16_t> back(codes.size());
  const std::vector<std::byte> encoded = encode(values, type);
  REQUIRE(encoded.size() == 2 * codes.size());
  std::memcpy(back.data(), encoded.data(), encoded.size());
  const std::vector<float> again = decode(encoded, type);
  int wrong_values = 0, changed = 0, nans = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float expected = value_of(codes[i], type);
    if (std::isnan(expected)) {
      ++nans;
      wrong_values += !std::isnan(values[i]) || !std::isnan(rounded(values[i], type));
      changed += !std::isnan(again[i]);
    } else {
      wrong_values += std::bit_cast<std::uint32_t>(values[i]) != std::bit_cast<std::uint32_t>(expected);
      wrong_values += std::bit_cast<std::uint32_t>(rounded(values[i], type)) != std::bit_cast<std::uint32_t>(expected);
      changed += back[i] != codes[i];
    }
  }
  CHECK(wrong_values == 0);
  CHECK(changed == 0);
  CHECK(nans == (type == ElementType::fp16 ? 2 * 1023 : 2 * 127));
}

TEST_CASE("between two neighbours: the nearer one, and the even one at the middle") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  const std::uint16_t infinity = type == ElementType::fp16 ? 0x7C00 : 0x7F80;
  int wrong = 0;
  for (std::uint16_t code = 0; code + 1 < infinity; ++code) {
    const float low = value_of(code, type), high = value_of(code + 1, type);
    const float middle = low + (high - low) / 2;  // exact: one bit more than the type has, also where it is subnormal
    const float even = code % 2 == 0 ? low : high;
    for (const float sign : {1.0f, -1.0f}) {
      wrong += rounded(sign * middle, type) != sign * even;
      wrong += rounded(sign * std::nextafter(middle, 0.0f), type) != sign * low;
      wrong += rounded(sign * std::nextafter(middle, kInfinity), type) != sign * high;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("rounding by hand: ties, overflow, subnormals") {
  SECTION("fp16") {
    const auto fp16 = [](float x) { return rounded(x, ElementType::fp16); };
    CHECK(fp16(2049) == 2048);
    CHECK(fp16(2051) == 2052);
    CHECK(fp16(1 + 0x1p-11f) == 1);
    CHECK(fp16(1 + 3 * 0x1p-11f) == 1 + 0x1p-9f);
    CHECK(fp16(65504) == 65504);
    CHECK(fp16(65519.99f) == 65504);
    CHECK(fp16(65520) == kInfinity);
    CHECK(fp16(-1e30f) == -kInfinity);
    CHECK(fp16(0x1p-24f) == 0x1p-24f);
    CHECK(fp16(0x1.8p-24f) == 0x1p-23f);
    CHECK(fp16(0x1p-25f) == 0);
    CHECK(fp16(0x1.002p-25f) == 0x1p-24f);
    CHECK(std::signbit(fp16(-0x1p-30f)));
    CHECK(std::isnan(fp16(NAN)));
  }
  SECTION("bf16") {
    const auto bf16 = [](float x) { return rounded(x, ElementType::bf16); };
    CHECK(bf16(257) == 256);
    CHECK(bf16(259) == 260);
    CHECK(bf16(1 + 0x1p-8f) == 1);
    CHECK(bf16(1 + 3 * 0x1p-8f) == 1 + 0x1p-6f);
    CHECK(bf16(0x1.FEp127f) == 0x1.FEp127f);
    CHECK(bf16(0x1.FEFFFEp127f) == 0x1.FEp127f);
    CHECK(bf16(0x1.FFp127f) == kInfinity);
    CHECK(bf16(std::numeric_limits<float>::lowest()) == -kInfinity);
    CHECK(bf16(0x1p-133f) == 0x1p-133f);
    CHECK(bf16(0x1p-134f) == 0);
    CHECK(bf16(0x1.8p-133f) == 0x1p-132f);
    CHECK(std::signbit(bf16(-0.0f)));
    CHECK(std::isnan(bf16(NAN)));
  }
  SECTION("fp32 is left alone") {
    CHECK(rounded(1 + 0x1p-23f, ElementType::fp32) == 1 + 0x1p-23f);
    CHECK(decode(encode(std::vector<float>{0.1f, -3e38f, 1e-45f}, ElementType::fp32), ElementType::fp32) ==
          std::vector<float>{0.1f, -3e38f, 1e-45f});
  }
}

TEST_CASE("what a type says of itself is what its numbers are") {
  const ElementType type = GENERATE(ElementType::fp32, ElementType::fp16, ElementType::bf16);
  const double ulp = attention::unit_in_last_place(type), least = attention::least_normal(type);
  CHECK(double(rounded(float(1 + ulp), type)) == 1 + ulp);
  CHECK(rounded(float(1 + 0.5 * ulp), type) == 1);
  CHECK(double(rounded(float(least), type)) == least);
  CHECK(double(rounded(float(least + ulp * least), type)) == least + ulp * least);
  CHECK(double(rounded(float(least - ulp * least), type)) == least - ulp * least);  // as far apart below as above it
  CHECK(encode(std::vector<float>(3), type).size() == std::size_t(3 * attention::element_bytes(type)));
  CHECK(decode({}, type).empty());
}

TEST_CASE("a long array is encoded and decoded to its last element") {
  const ElementType type = GENERATE(ElementType::fp32, ElementType::fp16, ElementType::bf16);
  std::vector<float> values(1'000'003);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251);
  CHECK(decode(encode(values, type), type) == values);
}

TEST_CASE("bytes that are no whole number of elements are refused") {
  const std::vector<std::byte> bytes(7);
  CHECK_THROWS_WITH(decode(bytes, ElementType::fp16), "7 bytes are no whole number of elements of 2");
  CHECK_THROWS_WITH(decode(bytes, ElementType::fp32), "7 bytes are no whole number of elements of 4");
}

TEST_CASE("element types have names") {
  CHECK(name(ElementType::fp32) == "fp32");
  CHECK(name(ElementType::fp16) == "fp16");
  CHECK(name(ElementType::bf16) == "bf16");
}
