// fp16 and bf16: every bit pattern, and a million floats with all ties, against Eigen's conversions on the host.

#include <Eigen/Core>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/catch.hpp"
#include "tests/common/gpu/numbers_on_device.hpp"

namespace {

using namespace gpu_tests;

std::uint16_t bits_of(Eigen::half x) { return Eigen::numext::bit_cast<std::uint16_t>(x); }
std::uint16_t bits_of(Eigen::bfloat16 x) { return Eigen::numext::bit_cast<std::uint16_t>(x); }

std::vector<std::uint16_t> all_patterns() {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  return patterns;
}

/// Each pattern, its neighbours in fp32, and the middle to the next pattern (a tie) with its neighbours; then random
/// bits.
template <class Format>
std::vector<float> floats_to_round() {
  std::vector<float> values;
  const auto add_around = [&](float x) {
    values.push_back(x);
    values.push_back(std::nextafter(x, 0.0f));
    values.push_back(std::nextafter(x, std::copysign(std::numeric_limits<float>::infinity(), x)));
  };
  const auto value_of = [](unsigned pattern) {
    return static_cast<float>(Eigen::numext::bit_cast<Format>(static_cast<std::uint16_t>(pattern)));
  };
  for (unsigned pattern = 0; pattern < 65536; ++pattern) {
    const float x = value_of(pattern);
    if (!std::isfinite(x)) continue;
    add_around(x);
    const float next = value_of(pattern + 1);
    // Past the largest finite value comes what would follow if the exponents went on.
    const double step = static_cast<double>(x) - static_cast<double>(value_of(pattern - 1));
    const double middle = std::isfinite(next) && (pattern & 0x7fffu) > 0 ? (static_cast<double>(x) + next) / 2
                                                                         : static_cast<double>(x) + step / 2;
    add_around(static_cast<float>(middle));
  }
  for (const float x : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::min(), std::numeric_limits<float>::denorm_min(), 65504.0f,
                        65519.996f, 65520.0f, 65536.0f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f, 0x1.000002p-25f, 0x1p-14f}) {
    values.push_back(x);
    values.push_back(-x);
  }
  std::mt19937 random(20240229);
  while (values.size() < 600'000) values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  // Most of all floats are far outside fp16: as many again from inside it and a little around.
  std::uniform_real_distribution<float> fraction(1, 2);
  std::uniform_int_distribution<int> exponent(-28, 17);
  while (values.size() < 1'000'000) {
    values.push_back(std::ldexp(random() % 2 ? fraction(random) : -fraction(random), exponent(random)));
  }
  return values;
}

/// How many results differ from Eigen's, and the first that does.
template <class Format>
void check_rounding(std::vector<std::uint16_t> (*to_format)(const std::vector<float>&)) {
  const std::vector<float> values = floats_to_round<Format>();
  const auto results = to_format(values);
  std::size_t wrong = 0, nans = 0;
  float first = 0;
  unsigned got = 0, expected_there = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    nans += std::isnan(values[i]);
    const std::uint16_t expected = std::isnan(values[i]) ? std::uint16_t{0x7fff} : bits_of(Format(values[i]));
    if (results[i] == expected) continue;
    if (++wrong == 1) {
      first = values[i];
      got = results[i];
      expected_there = expected;
    }
  }
  CAPTURE(first, got, expected_there);
  CHECK(wrong == 0);
  CHECK(nans > 100);
}

template <class Format>
void check_all_patterns(std::vector<float> (*to_float)(const std::vector<std::uint16_t>&),
                        std::vector<std::uint16_t> (*to_format)(const std::vector<float>&)) {
  const auto patterns = all_patterns();
  const auto values = to_float(patterns);
  const auto back = to_format(values);
  std::size_t wrong_value = 0, wrong_back = 0, nans = 0;
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const auto expected = static_cast<float>(Eigen::numext::bit_cast<Format>(patterns[i]));
    if (std::isnan(expected)) {
      ++nans;
      wrong_value += !std::isnan(values[i]);
      wrong_back += back[i] != 0x7fff;
    } else {
      wrong_value += std::bit_cast<std::uint32_t>(values[i]) != std::bit_cast<std::uint32_t>(expected);
      wrong_back += back[i] != patterns[i];
    }
  }
  CHECK(wrong_value == 0);
  CHECK(wrong_back == 0);
  CHECK(nans > 0);
}

}  // namespace

TEST_CASE("every fp16 and bf16 pattern becomes the right float, and comes back", "[numbers]") {
  check_all_patterns<Eigen::half>(fp16_to_float, float_to_fp16);
  check_all_patterns<Eigen::bfloat16>(bf16_to_float, float_to_bf16);
}

TEST_CASE("floats round to the nearest fp16, ties to even", "[numbers]") { check_rounding<Eigen::half>(float_to_fp16); }

TEST_CASE("floats round to the nearest bf16, ties to even", "[numbers]") {
  check_rounding<Eigen::bfloat16>(float_to_bf16);
}

TEST_CASE("any NaN becomes 0x7fff", "[numbers]") {
  std::vector<float> nans;
  for (const std::uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffc00000u, 0xffffffffu}) {
    nans.push_back(std::bit_cast<float>(bits));
  }
  CHECK(float_to_fp16(nans) == std::vector<std::uint16_t>(nans.size(), 0x7fff));
  CHECK(float_to_bf16(nans) == std::vector<std::uint16_t>(nans.size(), 0x7fff));
}

TEST_CASE("overflow becomes infinity, and what is too small becomes a zero of its sign", "[numbers]") {
  CHECK(float_to_fp16({65519.0f, 65520.0f, -65520.0f, 1e30f}) ==
        std::vector<std::uint16_t>{0x7bff, 0x7c00, 0xfc00, 0x7c00});
  CHECK(float_to_fp16({0x1p-25f, -0x1p-25f, 0x1.000002p-25f, 0x1p-24f}) ==
        std::vector<std::uint16_t>{0x0000, 0x8000, 0x0001, 0x0001});
  CHECK(float_to_bf16({0x1.fep127f, std::numeric_limits<float>::max(), -std::numeric_limits<float>::max()}) ==
        std::vector<std::uint16_t>{0x7f7f, 0x7f80, 0xff80});
}

TEST_CASE("a pair has its first number in the low half", "[numbers]") {
  CHECK(pairs_to_fp16({1.0f, -2.0f, 0.5f, 65504.0f}) == std::vector<std::uint32_t>{0xc0003c00u, 0x7bff3800u});
  CHECK(pairs_to_bf16({1.0f, -2.0f, 0.5f, 0.0f}) == std::vector<std::uint32_t>{0xc0003f80u, 0x00003f00u});
}

TEST_CASE("the fast functions are close, and keep their limits", "[numbers]") {
  std::vector<float> x;
  for (int i = -40; i <= 40; ++i) x.push_back(static_cast<float>(i) * 0.25f + 0.05f);
  const auto exp = fast_function(Fast::exp, x), exp2 = fast_function(Fast::exp2, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(std::abs(exp[i] / std::exp(static_cast<double>(x[i])) - 1) < 2e-6);
    CHECK(std::abs(exp2[i] / std::exp2(static_cast<double>(x[i])) - 1) < 1e-6);
    if (x[i] > 0) CHECK(std::abs(fast_function(Fast::log, {x[i]})[0] - std::log(static_cast<double>(x[i]))) < 1e-6);
  }
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(fast_function(Fast::exp, {-infinity, 0, infinity}) == std::vector<float>{0, 1, infinity});
  CHECK(fast_function(Fast::exp2, {-infinity, 0, infinity}) == std::vector<float>{0, 1, infinity});
  CHECK(fast_function(Fast::log, {0, 1, infinity}) == std::vector<float>{-infinity, 0, infinity});
}
