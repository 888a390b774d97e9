// fp8 against a search among all its numbers, elements packed into registers, and all conversions bit for bit as an
// H200 does them. (fp16 and bf16 against Eigen: test_numbers.cpp.)

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "common/gpu/buffer.hpp"
#include "common/gpu/numeric.cuh"
#include "tests/catch.hpp"
#include "tests/golden/golden.hpp"

namespace {

using gpu::bf16;
using gpu::fp16;
using gpu::fp8_e4m3;
using gpu::fp8_e5m2;

/// The unsigned integer of an element's size.
template <class Element>
using Bits = std::conditional_t<sizeof(Element) == 1, std::uint8_t, std::uint16_t>;

constexpr int kThreads = 128;

template <class To, class From>
__global__ void convert(const From* x_gmem, To* y_gmem, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    if constexpr (sizeof(To) < sizeof(From)) {
      y_gmem[i] = gpu::from_float<To>(x_gmem[i]);
    } else {
      y_gmem[i] = gpu::to_float(x_gmem[i]);
    }
  }
}

/// Kernels see elements, the host their bits.
template <class Element>
std::vector<Bits<Element>> from_floats(const std::vector<float>& values) {
  const gpu::DeviceBuffer<float> x_gmem(values, "x");
  gpu::DeviceBuffer<Bits<Element>> y_gmem(values.size(), "y");
  gpu::launch(convert<Element, float>, {.grid = 1, .block = kThreads}, x_gmem.data(),
              reinterpret_cast<Element*>(y_gmem.data()), static_cast<int>(values.size()));
  return y_gmem.download();
}

/// The floats' bits, since a NaN is not equal to itself.
template <class Element>
std::vector<std::uint32_t> to_floats(const std::vector<Bits<Element>>& codes) {
  const gpu::DeviceBuffer<Bits<Element>> x_gmem(codes, "x");
  gpu::DeviceBuffer<std::uint32_t> y_gmem(codes.size(), "y");
  gpu::launch(convert<float, Element>, {.grid = 1, .block = kThreads}, reinterpret_cast<const Element*>(x_gmem.data()),
              reinterpret_cast<float*>(y_gmem.data()), static_cast<int>(codes.size()));
  return y_gmem.download();
}

/// One register a thread.
template <class Element>
__global__ void pack_and_unpack(const float* x_gmem, std::uint32_t* packed_gmem, float* back_gmem, int count) {
  constexpr int kElements = 4 / static_cast<int>(sizeof(Element));
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const float* x = x_gmem + i * kElements;
    float* back = back_gmem + i * kElements;
    if constexpr (kElements == 2) {
      packed_gmem[i] = gpu::pack<Element>(x[0], x[1]);
      const float2 y = gpu::unpack<Element>(packed_gmem[i]);
      back[0] = y.x, back[1] = y.y;
    } else {
      packed_gmem[i] = gpu::pack<Element>(x[0], x[1], x[2], x[3]);
      const float4 y = gpu::unpack<Element>(packed_gmem[i]);
      back[0] = y.x, back[1] = y.y, back[2] = y.z, back[3] = y.w;
    }
  }
}

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// ---- What fp8 means, from its definition

struct Fp8 {
  int fraction_bits, bias;
  unsigned largest, infinity;  ///< codes; NaN lies above both
};
constexpr Fp8 kE4m3{3, 7, 0x7e, 0x7f}, kE5m2{2, 15, 0x7b, 0x7c};

/// The value of a positive finite code.
double value_of(const Fp8& format, unsigned code) {
  const int exponent = static_cast<int>(code >> format.fraction_bits);
  const int fraction = static_cast<int>(code & ((1u << format.fraction_bits) - 1u));
  const int one = 1 << format.fraction_bits;
  return exponent == 0 ? std::ldexp(fraction, 1 - format.bias - format.fraction_bits)
                       : std::ldexp(one + fraction, exponent - format.bias - format.fraction_bits);
}

/// The code of the nearest number; between two, the even code.
unsigned nearest(const Fp8& format, float x) {
  if (std::isnan(x)) return 0x7f;
  const double size = std::abs(static_cast<double>(x));
  unsigned best = 0;
  for (unsigned code = 1; code <= format.largest; ++code) {
    const double gained = std::abs(size - value_of(format, best)) - std::abs(size - value_of(format, code));
    if (gained > 0 || (gained == 0 && code % 2 == 0)) best = code;
  }
  if (size > value_of(format, format.largest)) best = format.largest;
  return best | (std::signbit(x) ? 0x80u : 0u);
}

// ---- The floats that golden data were made of: 2048

/// The float in the middle between two neighbours of a format, and the floats beside it, of changing sign.
void add_tie(std::vector<float>& values, double low, double high) {
  const auto middle = static_cast<float>((low + high) / 2);
  for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e38f)}) {
    values.push_back(values.size() % 2 ? -x : x);
  }
}

std::vector<float> chosen_floats() {
  std::vector<float> values;
  for (const std::uint32_t bits : {0x00000000u, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7f800001u, 0xff800001u,
                                   0x7fbfffffu, 0x7fc00000u, 0xffc00000u, 0x7fc12345u, 0x7fffffffu, 0xffffffffu}) {
    values.push_back(float_of(bits));
  }
  for (const float x : {256.0f,   280.0f,        460.0f,        448.0f,        464.0f,   465.0f,   480.0f,
                        1e6f,     57344.0f,      61440.0f,      61441.0f,      65504.0f, 65519.0f, 65520.0f,
                        65536.0f, 3.3895314e38f, 3.3961776e38f, 3.4028235e38f, 1e-45f,   1e-40f,   1.1754944e-38f}) {
    values.push_back(x);
    values.push_back(-x);
  }
  std::mt19937 random(17);
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    const std::uint32_t sign = exponent % 2 ? 0x80000000u : 0u;
    for (const std::uint32_t fraction : {0x000000u, 0x7fffffu, static_cast<std::uint32_t>(random() & 0x7fffffu)}) {
      values.push_back(float_of(sign | exponent << 23 | fraction));
    }
  }
  for (const Fp8& format : {kE4m3, kE5m2}) {
    for (unsigned code = 0; code < format.largest; ++code) {
      add_tie(values, value_of(format, code), value_of(format, code + 1));
    }
  }
  for (int i = 0; i < 60; ++i) {
    const auto code = static_cast<std::uint16_t>(random() % 0x7bff);  // fp16: subnormal ones are 2⁻²⁴ apart
    const int exponent = code >> 10, step = std::max(exponent, 1) - 25;
    const double value = std::ldexp((code & 0x3ff) + (exponent ? 1024 : 0), step);
    add_tie(values, value, value + std::ldexp(1.0, step));
    const auto upper = static_cast<std::uint32_t>(random() % 0x7f7f);  // bf16: the upper half of a float
    add_tie(values, float_of(upper << 16), float_of((upper + 1) << 16));
  }
  while (values.size() < 2048) values.push_back(float_of(static_cast<std::uint32_t>(random())));
  return values;
}

/// Every 64th code, and all near the ends of a 16-bit format's ranges.
std::vector<std::uint16_t> chosen_codes() {
  std::vector<std::uint16_t> codes;
  for (unsigned code = 0; code < 65536; code += 64) codes.push_back(static_cast<std::uint16_t>(code + code / 64 % 64));
  for (const unsigned end : {0x0000u, 0x0080u, 0x0400u, 0x7c00u, 0x7f80u, 0x8000u, 0xfc00u, 0xff80u}) {
    for (unsigned code = end - 4; code != end + 8; ++code) codes.push_back(static_cast<std::uint16_t>(code));
  }
  return codes;
}

std::vector<std::uint8_t> all_codes() {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
  return codes;
}

template <class Element>
void check_all_codes(const Fp8& format) {
  const std::vector<std::uint32_t> values = to_floats<Element>(all_codes());
  std::vector<float> floats;
  for (const std::uint32_t bits : values) floats.push_back(float_of(bits));
  const auto back = from_floats<Element>(floats);
  for (unsigned code = 0; code < 256; ++code) {
    const unsigned magnitude = code & 0x7fu;
    CAPTURE(code, floats[code]);
    if (magnitude <= format.largest) {
      const auto expected = static_cast<float>(value_of(format, magnitude)) * (code & 0x80u ? -1.0f : 1.0f);
      CHECK(values[code] == std::bit_cast<std::uint32_t>(expected));
      CHECK(back[code] == code);
    } else if (magnitude == format.infinity && format.infinity < 0x7fu) {
      CHECK(std::isinf(floats[code]));
      CHECK(std::signbit(floats[code]) == (code >= 0x80u));
      CHECK(back[code] == (format.largest | (code & 0x80u)));
    } else {
      CHECK(values[code] == 0x7fffffffu);
      CHECK(back[code] == 0x7f);
    }
  }
}

template <class Element>
void check_rounding(const Fp8& format) {
  std::vector<float> values = chosen_floats();
  std::mt19937 random(4);
  for (int i = 0; i < 20000; ++i) {
    // Exponents from a little below the smallest subnormals to a little above the largest numbers.
    const std::uint32_t exponent = 127 - 20 + static_cast<std::uint32_t>(random()) % 40;
    values.push_back(float_of((static_cast<std::uint32_t>(random()) & 0x807fffffu) | exponent << 23));
  }
  const auto codes = from_floats<Element>(values);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const unsigned expected = nearest(format, values[i]);
    if (codes[i] == expected) continue;
    INFO(values[i] << " becomes " << static_cast<unsigned>(codes[i]) << " instead of " << expected);
    CHECK(++wrong == 0);
    if (wrong == 5) break;
  }
  CHECK(wrong == 0);
}

template <class Element>
void check_packing() {
  constexpr std::size_t kElements = 4 / sizeof(Element);
  const std::vector<float> values = chosen_floats();
  const std::size_t registers = values.size() / kElements;
  const gpu::DeviceBuffer<float> x_gmem(values, "x");
  gpu::DeviceBuffer<std::uint32_t> packed_gmem(registers, "packed");
  gpu::DeviceBuffer<std::uint32_t> back_gmem(values.size(), "back");
  gpu::launch(pack_and_unpack<Element>, {.grid = 1, .block = kThreads}, x_gmem.data(), packed_gmem.data(),
              reinterpret_cast<float*>(back_gmem.data()), static_cast<int>(registers));
  const auto single = from_floats<Element>(values);
  const auto packed = packed_gmem.download();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto element = static_cast<Bits<Element>>(packed[i / kElements] >> i % kElements * 8 * sizeof(Element));
    wrong += element != single[i];
  }
  CHECK(wrong == 0);
  CHECK(back_gmem.download() == to_floats<Element>(single));
}

}  // namespace

TEST_CASE("every fp8 code becomes the right float, and comes back", "[formats]") {
  check_all_codes<fp8_e4m3>(kE4m3);
  check_all_codes<fp8_e5m2>(kE5m2);
}

TEST_CASE("floats round to the nearest fp8, ties to even, and saturate", "[formats]") {
  check_rounding<fp8_e4m3>(kE4m3);
  check_rounding<fp8_e5m2>(kE5m2);
}

TEST_CASE("fp8 at its ends", "[formats]") {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto e4m3 = [](const std::vector<float>& values) {
    std::vector<float> rounded;
    for (const std::uint32_t bits : to_floats<fp8_e4m3>(from_floats<fp8_e4m3>(values))) {
      rounded.push_back(float_of(bits));
    }
    return rounded;
  };
  CHECK(e4m3({256, 280, 460}) == std::vector<float>{256, 288, 448});
  CHECK(e4m3({448, 464, 480, 1e30f, infinity, -infinity}) == std::vector<float>{448, 448, 448, 448, 448, -448});
  CHECK(e4m3({0x1p-9f, 0x1.8p-9f, 0x1p-10f, 0x1.000002p-10f}) == std::vector<float>{0x1p-9f, 0x1p-8f, 0, 0x1p-9f});
  CHECK(from_floats<fp8_e4m3>({-0.0f, -0x1p-10f, -0x1p-60f}) == std::vector<std::uint8_t>{0x80, 0x80, 0x80});
  CHECK(from_floats<fp8_e5m2>({57344, 61440, 65536, infinity, -infinity, -0x1p-17f, 0x1.000002p-17f}) ==
        std::vector<std::uint8_t>{0x7b, 0x7b, 0x7b, 0x7b, 0xfb, 0x80, 0x01});
}

TEST_CASE("a NaN leaves fp16 as the canonical one, and bf16 as it is", "[formats]") {
  CHECK(to_floats<fp16>({0x7c01, 0xfe00, 0xffff}) == std::vector<std::uint32_t>(3, 0x7fffffffu));
  CHECK(to_floats<bf16>({0x7f81, 0xffc0, 0xffff}) == std::vector<std::uint32_t>{0x7f810000u, 0xffc00000u, 0xffff0000u});
}

TEST_CASE("registers of several elements hold what each would be alone, the first in the lowest bits", "[formats]") {
  check_packing<fp16>();
  check_packing<bf16>();
  check_packing<fp8_e4m3>();
  check_packing<fp8_e5m2>();
}

TEST_CASE("golden: floats to each format", "[golden]") {
  const std::vector<float> values = chosen_floats();
  REQUIRE(values.size() == 2048);
  CHECK(golden::difference("formats_to_fp16", from_floats<fp16>(values)) == "");
  CHECK(golden::difference("formats_to_bf16", from_floats<bf16>(values)) == "");
  CHECK(golden::difference("formats_to_e4m3", from_floats<fp8_e4m3>(values)) == "");
  CHECK(golden::difference("formats_to_e5m2", from_floats<fp8_e5m2>(values)) == "");
}

TEST_CASE("golden: codes of each format to floats", "[golden]") {
  CHECK(golden::difference("formats_from_fp16", to_floats<fp16>(chosen_codes())) == "");
  CHECK(golden::difference("formats_from_bf16", to_floats<bf16>(chosen_codes())) == "");
  CHECK(golden::difference("formats_from_e4m3", to_floats<fp8_e4m3>(all_codes())) == "");
  CHECK(golden::difference("formats_from_e5m2", to_floats<fp8_e5m2>(all_codes())) == "");
}
