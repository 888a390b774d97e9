// WGMMA's operands and product. Matrices are written element by element as wgmma.cuh describes the layouts (panels,
// rows, the swizzle as swizzle.cuh draws it, core matrices), and read back through descriptors.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/gpu/emulator/matrix_operand.hpp"
#include "common/gpu/numeric.cuh"
#include "tests/catch.hpp"

namespace {

using gpu::Major;
using gpu::Swizzle;
using namespace gpu::emulator;

constexpr Swizzle kSwizzles[] = {Swizzle::none, Swizzle::bytes_32, Swizzle::bytes_64, Swizzle::bytes_128};
constexpr OperandElement kElements[] = {OperandElement::fp16, OperandElement::bf16, OperandElement::e4m3,
                                        OperandElement::e5m2};
constexpr std::size_t kShared = 227 * 1024;
constexpr int kSteps = 4;  ///< products along K: 128 bytes

struct alignas(1024) SharedMemory {
  unsigned char bytes[kShared];
};

/// How a matrix of `rows` × (kSteps products) lies in shared memory, and the descriptors of its steps.
struct Layout {
  Swizzle swizzle;
  Major major;
  OperandElement element;
  int rows;
  std::uint32_t start;
  std::uint32_t gap = 0;  ///< bytes between groups of 8 rows (or of 8 K), and between panels; multiples of 1024

  std::uint32_t element_bytes() const {
    return element == OperandElement::fp16 || element == OperandElement::bf16 ? 2 : 1;
  }
  std::uint32_t width() const { return 16u << static_cast<unsigned>(swizzle); }
  int k() const { return kSteps * 32 / static_cast<int>(element_bytes()); }
  std::uint32_t groups() const { return static_cast<std::uint32_t>((major == Major::k ? rows : k()) / 8); }
  std::uint32_t group_bytes() const { return 8 * width() + gap; }
  std::uint32_t panel_bytes() const { return groups() * group_bytes() + gap; }

  /// Byte `byte` of row `row` of a tile of rows `width()` bytes wide, in panels one behind the other.
  std::uint32_t in_panels(std::uint32_t row, std::uint32_t byte) const {
    const std::uint32_t panel = byte / width(), chunk = byte % width() / 16;
    const std::uint32_t f = swizzle == Swizzle::bytes_32   ? row / 4 % 2
                            : swizzle == Swizzle::bytes_64 ? row / 2 % 4
                                                           : row % 8;
    return start + panel * panel_bytes() + row / 8 * group_bytes() + row % 8 * width() + (chunk ^ f) * 16 + byte % 16;
  }
  /// Core matrices of 8 rows of 16 bytes: along K 144 bytes apart, along M or N 144 · (as many as there are along K).
  std::uint32_t core_k_bytes() const { return 144; }
  std::uint32_t core_mn_bytes() const {
    return core_k_bytes() * (major == Major::k ? 2 * kSteps : static_cast<std::uint32_t>(k() / 8));
  }

  std::uint32_t place(int mn, int k_index) const {
    const auto m = static_cast<std::uint32_t>(mn), k_ = static_cast<std::uint32_t>(k_index);
    const std::uint32_t row = major == Major::k ? m : k_, byte = (major == Major::k ? k_ : m) * element_bytes();
    if (swizzle != Swizzle::none) return in_panels(row, byte);
    const std::uint32_t core_mn = major == Major::k ? row / 8 : byte / 16,
                        core_k = major == Major::k ? byte / 16 : row / 8;
    return start + core_mn * core_mn_bytes() + core_k * core_k_bytes() + row % 8 * 16 + byte % 16;
  }

  gpu::MatrixDescriptor descriptor(int step) const {
    const auto s = static_cast<std::uint32_t>(step);
    if (swizzle == Swizzle::none) {
      return gpu::matrix_descriptor_at(start, swizzle, core_k_bytes(), core_mn_bytes()) + s * 2 * core_k_bytes();
    }
    if (major == Major::k) {
      return gpu::matrix_descriptor_at(start, swizzle, 0, group_bytes()) +
             (s * 32 / width() * panel_bytes() + s * 32 % width());
    }
    return gpu::matrix_descriptor_at(start, swizzle, panel_bytes(), group_bytes()) + s * 2 * group_bytes();
  }
  MatrixOperand operand(int step) const { return decode(descriptor(step), major, element, rows); }
};

/// Bits of a small integer, by the definition of the format.
std::uint32_t bits_of(OperandElement element, int value) {
  const auto x = static_cast<float>(value);
  if (element == OperandElement::fp16) return gpu::from_float<gpu::fp16>(x).bits;
  if (element == OperandElement::bf16) return gpu::from_float<gpu::bf16>(x).bits;
  if (value == 0) return 0;
  const int fraction_bits = element == OperandElement::e4m3 ? 3 : 2, bias = element == OperandElement::e4m3 ? 7 : 15;
  const int exponent = std::ilogb(std::abs(x));
  const auto fraction =
      static_cast<std::uint32_t>(std::ldexp(std::abs(x), fraction_bits - exponent)) - (1u << fraction_bits);
  return (value < 0 ? 0x80u : 0u) | static_cast<std::uint32_t>(exponent + bias) << fraction_bits | fraction;
}

/// Small integers, [rows][k].
struct Matrix {
  int rows, k;
  std::vector<int> values;
  Matrix(int r, int columns, unsigned seed) : rows(r), k(columns) {
    std::mt19937 random(seed);
    for (int i = 0; i < rows * k; ++i) values.push_back(static_cast<int>(random() % 7) - 3);
  }
  int at(int mn, int k_index) const { return values[static_cast<std::size_t>(mn * k + k_index)]; }
};

void write(const Layout& layout, const Matrix& matrix, unsigned char* shared) {
  for (int mn = 0; mn < matrix.rows; ++mn) {
    for (int k = 0; k < matrix.k; ++k) {
      const std::uint32_t bits = bits_of(layout.element, matrix.at(mn, k));
      std::memcpy(shared + layout.place(mn, k), &bits, layout.element_bytes());
    }
  }
}

template <class Test>
void for_each_layout(const std::vector<int>& row_counts, Test&& test) {
  for (const Swizzle swizzle : kSwizzles) {
    for (const Major major : {Major::k, Major::mn}) {
      for (const OperandElement element : kElements) {
        for (const int rows : row_counts) {
          for (const std::uint32_t gap : {0u, 1024u}) {
            const Layout layout{swizzle, major, element, rows, 2048, gap};
            if (major == Major::mn && layout.element_bytes() == 1) continue;
            CAPTURE(static_cast<int>(swizzle), static_cast<int>(major), static_cast<int>(element), rows, gap);
            test(layout);
          }
        }
      }
    }
  }
}

/// The accumulators of a warpgroup.
struct Accumulators {
  int n;
  std::vector<float> values;
  explicit Accumulators(int columns) : n(columns), values(static_cast<std::size_t>(64 * columns), NAN) {}
  float* of(int thread) { return &values[static_cast<std::size_t>(thread * n / 2)]; }
  /// Element (row, column) of D.
  float& at(int row, int column) {
    const int warp = row / 16, g = row % 8, lower = row % 16 / 8, j = column / 8, t = column % 8 / 2;
    return of(32 * warp + 4 * g + t)[4 * j + 2 * lower + column % 2];
  }
  void warp(int w, float* (&lanes)[32]) {
    for (int lane = 0; lane < 32; ++lane) lanes[lane] = of(32 * w + lane);
  }
};

SharedMemory& shared_memory() {
  static SharedMemory shared;
  return shared;
}

}  // namespace

TEST_CASE("WGMMA operands: written by the layout's definition, read by descriptor", "[matrix_operand]") {
  unsigned char* const shared = shared_memory().bytes;
  int layouts = 0;
  for_each_layout({8, 24, 64, 96}, [&](const Layout& layout) {
    const Matrix matrix(layout.rows, layout.k(), 1);
    std::memset(shared, 0x7F, kShared);  // NaN in every format
    write(layout, matrix, shared);
    const int step_k = layout.k() / kSteps;
    for (int step = 0; step < kSteps; ++step) {
      const MatrixOperand operand = layout.operand(step);
      REQUIRE(operand_fault(operand, kShared) == "");
      std::vector<float> columns(kMaxK * kColumnPitch, NAN);
      read_b(operand, shared, columns.data());
      int wrong = 0;
      for (int mn = 0; mn < layout.rows; ++mn) {
        for (int k = 0; k < step_k; ++k) {
          const auto expected = static_cast<float>(matrix.at(mn, step * step_k + k));
          wrong += columns[static_cast<std::size_t>(k * kColumnPitch + mn)] != expected;
          wrong += element_offset(operand, mn, k) != layout.place(mn, step * step_k + k);
        }
      }
      CHECK(wrong == 0);
      for (int warp = 0; 16 * warp + 16 <= layout.rows; ++warp) {
        std::vector<float> rows(16 * kMaxK, NAN);
        read_a(operand, warp, shared, rows.data());
        for (int i = 0; i < 16 * step_k; ++i) {
          wrong += rows[static_cast<std::size_t>(i)] !=
                   static_cast<float>(matrix.at(16 * warp + i / step_k, step * step_k + i % step_k));
        }
      }
      CHECK(wrong == 0);
    }
    ++layouts;
  });
  CHECK(layouts == 4 * (2 * 2 + 2) * 4 * 2);
}

TEST_CASE("WGMMA operands: the chunks are the bytes of the elements, each once", "[matrix_operand]") {
  for_each_layout({8, 64, 256}, [&](const Layout& layout) {
    const MatrixOperand operand = layout.operand(1);
    std::multiset<std::uint32_t> chunks;
    for_each_operand_chunk(operand, 0, layout.rows, [&](std::uint32_t offset) { chunks.insert(offset); });
    std::set<std::uint32_t> expected;
    const int step_k = layout.k() / kSteps;
    for (int mn = 0; mn < layout.rows; ++mn) {
      for (int k = 0; k < step_k; ++k) expected.insert(layout.place(mn, step_k + k) / 16 * 16);
    }
    CHECK(std::vector<std::uint32_t>(chunks.begin(), chunks.end()) ==
          std::vector<std::uint32_t>(expected.begin(), expected.end()));
    CHECK(chunks.size() == static_cast<std::size_t>(layout.rows) * 2);
  });
}

TEST_CASE("WGMMA: products of both operands from shared memory, any N, adding or not", "[matrix_operand]") {
  unsigned char* const shared = shared_memory().bytes;
  std::vector<int> all_n;
  for (int n = 8; n <= kMaxN; n += 8) all_n.push_back(n);
  unsigned seed = 0;
  for (const int n : all_n) {
    for (const OperandElement element : kElements) {
      const bool wide = element == OperandElement::fp16 || element == OperandElement::bf16;
      const Layout a_layout{kSwizzles[seed % 4], wide && seed / 4 % 2 ? Major::mn : Major::k, element, 64, 0};
      const Layout b_layout{kSwizzles[seed / 2 % 4], wide && seed % 2 ? Major::mn : Major::k, element, n, 64 * 1024};
      ++seed;
      CAPTURE(n, static_cast<int>(element), seed);
      const Matrix a(64, a_layout.k(), seed), b(n, b_layout.k(), seed + 1);
      write(a_layout, a, shared);
      write(b_layout, b, shared);
      const int k = product_k(element);
      Accumulators d(n);
      for (const int step : {0, 3}) {
        std::vector<float> columns(kMaxK * kColumnPitch, NAN);
        read_b(b_layout.operand(step), shared, columns.data());
        for (int warp = 0; warp < 4; ++warp) {
          float rows[16 * kMaxK];
          read_a(a_layout.operand(step), warp, shared, rows);
          float* lanes[32];
          d.warp(warp, lanes);
          multiply(rows, columns.data(), k, n, step > 0, lanes);
        }
      }
      int wrong = 0;
      for (int row = 0; row < 64; ++row) {
        for (int column = 0; column < n; ++column) {
          int sum = 0;
          for (int i = 0; i < k; ++i) {
            sum += a.at(row, i) * b.at(column, i) + a.at(row, 3 * k + i) * b.at(column, 3 * k + i);
          }
          wrong += d.at(row, column) != static_cast<float>(sum);
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("WGMMA: A from registers is what A from shared memory is", "[matrix_operand]") {
  for (const OperandElement element : kElements) {
    const int k = product_k(element), bytes = static_cast<int>(operand_element_bytes(element)),
              per_register = 4 / bytes;
    const Matrix a(16, k, 9);
    std::uint32_t registers[32][4];
    const std::uint32_t* pointers[32];
    for (int lane = 0; lane < 32; ++lane) {
      pointers[lane] = registers[lane];
      const int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; ++i) {
        registers[lane][i] = 0;
        for (int e = 0; e < per_register; ++e) {
          const int row = g + (i == 1 || i == 3 ? 8 : 0), column = per_register * t + (i >= 2 ? k / 2 : 0) + e;
          registers[lane][i] |= bits_of(element, a.at(row, column)) << 8 * bytes * e;
        }
      }
    }
    float rows[16 * kMaxK];
    read_a(element, pointers, rows);
    for (int i = 0; i < 16 * k; ++i) CHECK(rows[i] == static_cast<float>(a.values[static_cast<std::size_t>(i)]));
  }
}

TEST_CASE("WGMMA operands: every bit pattern has its value", "[matrix_operand]") {
  unsigned char* const shared = shared_memory().bytes;
  const auto same = [](float a, float b) {
    return std::isnan(b) ? std::isnan(a) : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
  };
  // A column of N = 8 without a swizzle: 16 × 8 elements lie in 256 bytes, one behind the other.
  float columns[kMaxK * kColumnPitch];
  for (std::uint32_t first = 0; first < 65536; first += 128) {
    for (std::uint32_t i = 0; i < 128; ++i) {
      const auto bits = static_cast<std::uint16_t>(first + i);
      std::memcpy(shared + 2 * i, &bits, 2);
    }
    for (const OperandElement element : {OperandElement::fp16, OperandElement::bf16}) {
      read_b(decode(gpu::matrix_descriptor_at(0, Swizzle::none, 128, 256), Major::mn, element, 8), shared, columns);
      int wrong = 0;
      for (std::uint32_t i = 0; i < 128; ++i) {
        const auto bits = static_cast<std::uint16_t>(first + i);
        const float expected =
            element == OperandElement::fp16 ? gpu::to_float(gpu::fp16{bits}) : gpu::to_float(gpu::bf16{bits});
        wrong += !same(columns[i / 8 * kColumnPitch + i % 8], expected);
      }
      CHECK(wrong == 0);
    }
  }
  for (std::uint32_t bits = 0; bits < 256; ++bits) {
    shared[bits] = static_cast<unsigned char>(bits);
  }
  for (const OperandElement element : {OperandElement::e4m3, OperandElement::e5m2}) {
    const bool e4m3 = element == OperandElement::e4m3;
    read_b(decode(gpu::matrix_descriptor_at(0, Swizzle::none, 128, 256), Major::k, element, 8), shared, columns);
    for (std::uint32_t bits = 0; bits < 256; ++bits) {
      // OCP 8-bit floating point: e4m3 has no infinity and one NaN a sign; e5m2 is as IEEE has it.
      const int fraction_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
      const auto exponent = static_cast<int>(bits >> fraction_bits & (e4m3 ? 15u : 31u));
      const auto fraction = static_cast<int>(bits & (e4m3 ? 7u : 3u));
      double value = exponent ? std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits)
                              : std::ldexp(fraction, 1 - bias - fraction_bits);
      if (e4m3 && exponent == 15 && fraction == 7) value = NAN;
      if (!e4m3 && exponent == 31) value = fraction ? NAN : INFINITY;
      CAPTURE(bits, e4m3);
      // Byte `bits` is core matrix bits / 128, row bits % 128 / 16, K bits % 16.
      const std::uint32_t n = bits % 128 / 16, k = bits / 128 * 16 + bits % 16;
      CHECK(same(columns[k * kColumnPitch + n], static_cast<float>(bits & 0x80 ? -value : value)));
    }
  }
}

TEST_CASE("WGMMA operands: what breaks the rules is named", "[matrix_operand]") {
  const auto fault_of = [](std::uint32_t start, Swizzle swizzle, std::uint32_t leading, std::uint32_t stride,
                           Major major, OperandElement element = OperandElement::bf16, int rows = 64,
                           std::size_t shared = kShared) {
    return operand_fault(decode(gpu::matrix_descriptor_at(start, swizzle, leading, stride), major, element, rows),
                         shared);
  };
  CHECK(fault_of(0, Swizzle::bytes_128, 16, 1024, Major::k) == "");
  CHECK(fault_of(96, Swizzle::bytes_128, 16, 1024, Major::k) == "");
  CHECK(fault_of(16, Swizzle::bytes_128, 16, 1024, Major::k) ==
        "the descriptor starts at byte 16 of shared memory, 16 bytes into the 128-byte swizzle; allowed: multiples of "
        "1024, and of 32 bytes on from there inside a row");
  CHECK_THAT(fault_of(128, Swizzle::bytes_128, 16, 1024, Major::k),
             ContainsText("128 bytes into the 128-byte swizzle"));
  CHECK_THAT(fault_of(256, Swizzle::bytes_64, 16, 512, Major::k), ContainsText("allowed: multiples of 512, and of 32"));
  CHECK(fault_of(32, Swizzle::bytes_32, 16, 256, Major::k) ==
        "the descriptor starts at byte 32 of shared memory, 32 bytes into the 32-byte swizzle; allowed: multiples of "
        "256");
  CHECK_THAT(fault_of(32, Swizzle::bytes_128, 8192, 1024, Major::mn), ContainsText("allowed: multiples of 1024"));
  CHECK(fault_of(0, Swizzle::bytes_128, 16, 512, Major::k) ==
        "stride_bytes is 512; with the 128-byte swizzle it has to be a multiple of 1024");
  CHECK(fault_of(0, Swizzle::bytes_64, 256, 512, Major::mn) ==
        "leading_bytes is 256; with the 64-byte swizzle it has to be a multiple of 512");
  CHECK(fault_of(0, Swizzle::bytes_128, 16, 1024, Major::mn) == "");  // 64 elements are one panel
  CHECK(fault_of(48, Swizzle::none, 144, 272, Major::mn) == "");
  CHECK(fault_of(0, Swizzle::bytes_128, 16, 1024, Major::mn, OperandElement::e4m3) == "fp8 operands are K-major");
  CHECK(fault_of(0, Swizzle::bytes_128, 16, 1024, Major::k, OperandElement::bf16, 64, 8192) == "");
  CHECK(fault_of(1024, Swizzle::bytes_128, 16, 1024, Major::k, OperandElement::bf16, 64, 8192) ==
        "the operand ends at byte 9216 of shared memory, which has 8192");
  CHECK_THAT(fault_of(0, Swizzle::none, 128, 65536, Major::k), ContainsText("the operand ends at byte"));
}
