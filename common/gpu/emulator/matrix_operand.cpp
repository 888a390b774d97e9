/// \file
/// Operands of WGMMA in shared memory, and its product.

#include "common/gpu/emulator/matrix_operand.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "common/gpu/numeric.cuh"

namespace gpu::emulator {
namespace {

template <class Fp8>
std::array<float, 256> fp8_values() {
  std::array<float, 256> values{};
  for (std::size_t bits = 0; bits < values.size(); ++bits) {
    values[bits] = to_float(std::bit_cast<Fp8>(static_cast<std::uint8_t>(bits)));
  }
  return values;
}
const std::array<float, 256> kE4m3 = fp8_values<fp8_e4m3>(), kE5m2 = fp8_values<fp8_e5m2>();

typedef std::uint16_t Half8 __attribute__((vector_size(16)));
typedef std::uint32_t Word8 __attribute__((vector_size(32)));
typedef float Float8 __attribute__((vector_size(32)));

/// A 16-byte chunk of each format as floats.
template <OperandElement kElement>
struct Format {
  static constexpr int kPerChunk = 16 / static_cast<int>(operand_element_bytes(kElement));
  static void convert(const void* chunk, float (&values)[kPerChunk]);
};

template <>
inline void Format<OperandElement::bf16>::convert(const void* chunk, float (&values)[8]) {
  Half8 bits;
  std::memcpy(&bits, chunk, sizeof bits);
  const Word8 words = __builtin_convertvector(bits, Word8) << 16;
  std::memcpy(values, &words, sizeof values);
}

/// The exponent's bias differs by 112. Subnormals are read as if they had the next exponent's leading 1, which is taken
/// off again.
template <>
inline void Format<OperandElement::fp16>::convert(const void* chunk, float (&values)[8]) {
  Half8 bits;
  std::memcpy(&bits, chunk, sizeof bits);
  const Word8 words = __builtin_convertvector(bits, Word8), magnitude = (words & 0x7fff) << 13;
  const Word8 normal = magnitude + (112u << 23), special = magnitude | 0x7f800000u, shifted = normal + (1u << 23);
  Float8 subnormal;
  std::memcpy(&subnormal, &shifted, sizeof subnormal);
  subnormal -= 0x1p-14f;
  Word8 small;
  std::memcpy(&small, &subnormal, sizeof small);
  const Word8 value = (magnitude < (1u << 23)    ? small
                       : magnitude < (31u << 23) ? normal
                                                 : special) |
                      (words & 0x8000) << 16;
  std::memcpy(values, &value, sizeof values);
}

inline void look_up(const std::array<float, 256>& table, const void* chunk, float (&values)[16]) {
  unsigned char bits[16];
  std::memcpy(bits, chunk, sizeof bits);
  for (int i = 0; i < 16; ++i) values[i] = table[bits[i]];
}
template <>
inline void Format<OperandElement::e4m3>::convert(const void* chunk, float (&values)[16]) {
  look_up(kE4m3, chunk, values);
}
template <>
inline void Format<OperandElement::e5m2>::convert(const void* chunk, float (&values)[16]) {
  look_up(kE5m2, chunk, values);
}

template <class Call>
void with_format(OperandElement element, Call&& call) {
  switch (element) {
    case OperandElement::fp16:
      return call(Format<OperandElement::fp16>{});
    case OperandElement::bf16:
      return call(Format<OperandElement::bf16>{});
    case OperandElement::e4m3:
      return call(Format<OperandElement::e4m3>{});
    case OperandElement::e5m2:
      return call(Format<OperandElement::e5m2>{});
  }
}

/// Element (mn, k) goes to values[(mn - first) * mn_pitch + k * k_pitch].
template <class Element>
void read(const MatrixOperand& o, int first, int count, const unsigned char* shared, float* values, int mn_pitch,
          int k_pitch) {
  constexpr int kPerChunk = Element::kPerChunk;
  const bool k_major = o.major == Major::k;
  const int mn_step = k_major ? 1 : kPerChunk, k_step = k_major ? kPerChunk : 1;
  const int pitch = k_major ? k_pitch : mn_pitch;  // between the elements of a chunk
  for (int k = 0; k < 2 * kPerChunk; k += k_step) {
    for (int mn = 0; mn < count; mn += mn_step) {
      float chunk[kPerChunk];
      Element::convert(shared + chunk_offset(o, first + mn, k), chunk);
      float* const to = values + mn * mn_pitch + k * k_pitch;
      for (int i = 0; i < kPerChunk; ++i) to[i * pitch] = chunk[i];
    }
  }
}

constexpr int kColumns = 16;  ///< of D at a time

typedef float Vector4 __attribute__((vector_size(16)));
typedef float Vector8 __attribute__((vector_size(32)));
typedef float Vector16 __attribute__((vector_size(64)));

/// As many columns as a vector has floats, of the rows kRow….
template <class Vector, std::size_t... kRow>
__attribute__((always_inline)) inline void multiply_vector(const float* rows, const float* columns, int k, float* sums,
                                                           std::index_sequence<kRow...>) {
  Vector sum[] = {(static_cast<void>(kRow), Vector{})...};
  for (int i = 0; i < k; ++i) {
    Vector b;
    std::memcpy(&b, columns + i * kColumnPitch, sizeof b);
    ((sum[kRow] += rows[static_cast<int>(kRow) * k + i] * b), ...);
  }
  (std::memcpy(sums + kRow * kColumns, &sum[kRow], sizeof(Vector)), ...);
}

/// 16 × 16 sums over K. How many floats the machine takes at a time, fused or not, changes nothing in the result:
/// products are exact within the range of fp32, and each element's are added in the same order.
template <class Vector>
__attribute__((always_inline)) inline void multiply_block(const float* rows, const float* columns, int k,
                                                          float (&sums)[16][kColumns]) {
  constexpr int kLanes = sizeof(Vector) / sizeof(float);
  for (int column = 0; column < kColumns; column += kLanes) {
    for (int row = 0; row < 16; row += 8) {
      multiply_vector<Vector>(rows + row * k, columns + column, k, &sums[row][column], std::make_index_sequence<8>{});
    }
  }
}

using MultiplyBlock = void (*)(const float*, const float*, int, float (&)[16][kColumns]);
void multiply_block_4(const float* rows, const float* columns, int k, float (&sums)[16][kColumns]) {
  multiply_block<Vector4>(rows, columns, k, sums);
}
#ifdef __x86_64__
__attribute__((target("avx2,fma"))) void multiply_block_8(const float* rows, const float* columns, int k,
                                                          float (&sums)[16][kColumns]) {
  multiply_block<Vector8>(rows, columns, k, sums);
}
__attribute__((target("avx512f"))) void multiply_block_16(const float* rows, const float* columns, int k,
                                                          float (&sums)[16][kColumns]) {
  multiply_block<Vector16>(rows, columns, k, sums);
}
#endif

MultiplyBlock fastest_multiply_block() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return multiply_block_16;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_block_8;
#endif
  return multiply_block_4;
}

}  // namespace

MatrixOperand decode(MatrixDescriptor descriptor, Major major, OperandElement element, int rows) {
  constexpr Swizzle kModes[] = {Swizzle::none, Swizzle::bytes_128, Swizzle::bytes_64, Swizzle::bytes_32};
  const auto field = [&](int first_bit) {
    return static_cast<std::uint32_t>(descriptor.bits >> first_bit & 0x3fff) << 4;
  };
  return {field(0), field(16), field(32), kModes[descriptor.bits >> 62], major, element, rows};
}

std::string operand_fault(const MatrixOperand& o, std::size_t shared_bytes) {
  const std::uint32_t width = swizzle_bytes(o.swizzle), period = swizzle_period(o.swizzle);
  const std::string pattern = "the " + std::to_string(width) + "-byte swizzle";
  if (o.major == Major::mn && operand_element_bytes(o.element) == 1) return "fp8 operands are K-major";
  if (o.swizzle != Swizzle::none) {
    // Inside the pattern a K-major operand may begin at a later K of the row; it ends within that row.
    const std::uint32_t inside = o.start % period, unit = o.major == Major::k ? 32 : width;
    if (inside >= width || inside % unit != 0) {
      return "the descriptor starts at byte " + std::to_string(o.start) + " of shared memory, " +
             std::to_string(inside) + " bytes into " + pattern + "; allowed: multiples of " + std::to_string(period) +
             (o.major == Major::k && width > 32 ? ", and of 32 bytes on from there inside a row" : "");
    }
    if (o.stride_bytes % period != 0) {
      return "stride_bytes is " + std::to_string(o.stride_bytes) + "; with " + pattern +
             " it has to be a multiple of " + std::to_string(period);
    }
    const bool several_panels = o.rows > static_cast<int>(width / operand_element_bytes(o.element));
    if (o.major == Major::mn && several_panels && o.leading_bytes % period != 0) {
      return "leading_bytes is " + std::to_string(o.leading_bytes) + "; with " + pattern +
             " it has to be a multiple of " + std::to_string(period);
    }
  }
  // Strides are not negative, so the highest chunk is the last, or shares its swizzled row.
  std::size_t end = 0;
  for_each_operand_chunk(o, o.rows - 8, 8, [&](std::uint32_t offset) { end = offset + 16 > end ? offset + 16 : end; });
  if (end > shared_bytes) {
    return "the operand ends at byte " + std::to_string(end) + " of shared memory, which has " +
           std::to_string(shared_bytes);
  }
  return {};
}

void read_a(const MatrixOperand& a, int warp, const unsigned char* shared, float* rows) {
  with_format(a.element,
              [&](auto format) { read<decltype(format)>(a, 16 * warp, 16, shared, rows, product_k(a.element), 1); });
}

void read_a(OperandElement element, const std::uint32_t* const (&registers)[32], float* rows) {
  with_format(element, [&](auto format) {
    using Element = decltype(format);
    // Four registers are one chunk; a quarter of it is a register.
    constexpr int kPerRegister = Element::kPerChunk / 4, kK = 2 * Element::kPerChunk;
    for (int lane = 0; lane < 32; ++lane) {
      float values[Element::kPerChunk];
      Element::convert(registers[lane], values);
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i % 2), column = (lane % 4 + 4 * (i / 2)) * kPerRegister;
        std::memcpy(&rows[row * kK + column], &values[i * kPerRegister], kPerRegister * sizeof(float));
      }
    }
  });
}

void read_b(const MatrixOperand& b, const unsigned char* shared, float* columns) {
  with_format(b.element, [&](auto format) { read<decltype(format)>(b, 0, b.rows, shared, columns, 1, kColumnPitch); });
  // multiply takes 16 columns at a time.
  if (b.rows % kColumns) {
    for (int k = 0; k < product_k(b.element); ++k)
      std::memset(columns + k * kColumnPitch + b.rows, 0, 8 * sizeof(float));
  }
}

void multiply(const float* rows, const float* columns, int k, int n, bool accumulate, float* const (&d)[32]) {
  static const MultiplyBlock multiply_block_here = fastest_multiply_block();
  float sums[16][kColumns];
  for (int column = 0; column < n; column += kColumns) {
    multiply_block_here(rows, columns + column, k, sums);
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4;
      for (int j = 0; j < kColumns / 8 && column + 8 * j < n; ++j) {
        const float* const upper = &sums[row][8 * j + lane % 4 * 2];
        const float* const lower = upper + 8 * kColumns;
        float* const to = d[lane] + 4 * (column / 8 + j);
        const float before[4] = {accumulate ? to[0] : 0, accumulate ? to[1] : 0, accumulate ? to[2] : 0,
                                 accumulate ? to[3] : 0};
        to[0] = before[0] + upper[0];
        to[1] = before[1] + upper[1];
        to[2] = before[2] + lower[0];
        to[3] = before[3] + lower[1];
      }
    }
  }
}

}  // namespace gpu::emulator
