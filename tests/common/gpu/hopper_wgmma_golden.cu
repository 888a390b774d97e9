// Products of WGMMA, on an H200 and on the emulator: operands from shared memory and from registers, K- and MN-major,
// with every swizzle, all four element types, several N, adding and not. Integers so small that every sum is exact:
// each product is compared with loops on the host, and some of it with golden data.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "common/gpu/async_proxy.cuh"
#include "common/gpu/barrier.cuh"
#include "common/gpu/buffer.hpp"
#include "common/gpu/wgmma.cuh"
#include "tests/catch.hpp"
#include "tests/golden/golden.hpp"

namespace {

using gpu::Major;
using gpu::Swizzle;

constexpr Swizzle kSwizzles[] = {Swizzle::none, Swizzle::bytes_32, Swizzle::bytes_64, Swizzle::bytes_128};
constexpr int kThreads = 128;
constexpr int kM = 64;
constexpr int kSteps = 4;               ///< products along K, 32 bytes each
constexpr int kKBytes = 32 * kSteps;    ///< of a row of A: a panel of the widest swizzle
constexpr int kABytes = kM * kKBytes;   ///< and as many when it is MN-major
constexpr int kBBytes = 256 * kKBytes;  ///< the same for the largest N

/// Where the descriptors of an operand point: matrix_descriptor(start + step[i], swizzle, leading_bytes, stride_bytes).
struct Descriptors {
  Swizzle swizzle;
  std::uint32_t leading_bytes, stride_bytes;
  std::uint32_t step[kSteps];
};

struct OperandsShared {
  alignas(1024) unsigned char a[kABytes];
  alignas(1024) unsigned char b[kBBytes];
};

/// What a thread starts from, so that it shows whether D was added.
__device__ inline float initial(int i) { return static_cast<float>(i % 5 - 2); }

/// D = [initial +] A·B over kSteps products. Bytes of a_gmem and b_gmem lie as the descriptors say.
template <class Element, int N, Major kMajorA, Major kMajorB>
__global__ void __launch_bounds__(kThreads) ss_kernel(const unsigned char* a_gmem,  // [kABytes]
                                                      const unsigned char* b_gmem,  // [kBBytes]
                                                      Descriptors a, Descriptors b, bool accumulate,
                                                      float* d_gmem) {  // [kThreads, N / 2]
  auto& shared = gpu::shared_memory<OperandsShared>();
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kABytes; i += kThreads) shared.a[i] = a_gmem[i];
  for (int i = thread; i < kBBytes; i += kThreads) shared.b[i] = b_gmem[i];
  gpu::async_proxy_fence();
  __syncthreads();
  float d[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d[i] = initial(i);
  gpu::keep(d);
  gpu::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    gpu::wgmma<Element, N, kMajorA, kMajorB>(
        d, gpu::matrix_descriptor(shared.a + a.step[step], a.swizzle, a.leading_bytes, a.stride_bytes),
        gpu::matrix_descriptor(shared.b + b.step[step], b.swizzle, b.leading_bytes, b.stride_bytes),
        accumulate || step > 0);
  }
  gpu::wgmma_commit();
  gpu::wgmma_wait<0>();
  gpu::keep(d);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d_gmem[thread * (N / 2) + i] = d[i];
}

/// The same with A from registers.
template <class Element, int N, Major kMajorB>
__global__ void __launch_bounds__(kThreads) rs_kernel(const std::uint32_t* a_gmem,  // [kSteps, kThreads, 4]
                                                      const unsigned char* b_gmem,  // [kBBytes]
                                                      Descriptors b, bool accumulate,
                                                      float* d_gmem) {  // [kThreads, N / 2]
  auto& shared = gpu::shared_memory<OperandsShared>();
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kBBytes; i += kThreads) shared.b[i] = b_gmem[i];
  std::uint32_t a[kSteps][4];
#pragma unroll
  for (int i = 0; i < kSteps * 4; ++i) a[i / 4][i % 4] = a_gmem[(i / 4 * kThreads + thread) * 4 + i % 4];
  gpu::async_proxy_fence();
  __syncthreads();
  float d[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d[i] = initial(i);
  gpu::keep(d);
  gpu::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    gpu::wgmma<Element, N, kMajorB>(
        d, a[step], gpu::matrix_descriptor(shared.b + b.step[step], b.swizzle, b.leading_bytes, b.stride_bytes),
        accumulate || step > 0);
  }
  gpu::wgmma_commit();
  gpu::wgmma_wait<0>();
  gpu::keep(d);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) d_gmem[thread * (N / 2) + i] = d[i];
}

/// Bits of a small integer, by the definition of the format.
template <class Element>
std::uint32_t bits_of(int value) {
  constexpr bool kFp16 = std::is_same_v<Element, gpu::fp16>, kBf16 = std::is_same_v<Element, gpu::bf16>;
  constexpr int kFractionBits = kFp16 ? 10 : kBf16 ? 7 : std::is_same_v<Element, gpu::fp8_e4m3> ? 3 : 2;
  constexpr int kBias = kBf16 ? 127 : kFp16 || std::is_same_v<Element, gpu::fp8_e5m2> ? 15 : 7;
  if (value == 0) return 0;
  const int magnitude = value < 0 ? -value : value, exponent = std::ilogb(magnitude);
  const auto fraction =
      static_cast<std::uint32_t>(std::ldexp(magnitude, kFractionBits - exponent)) - (1u << kFractionBits);
  const std::uint32_t sign = value < 0 ? 1u << (8 * sizeof(Element) - 1) : 0;
  return sign | static_cast<std::uint32_t>(exponent + kBias) << kFractionBits | fraction;
}

/// Integers from -3 to 3, [rows][K]. With K ≤ 128 no sum is larger than 1152 + 2.
template <class Element>
struct Matrix {
  static constexpr int kK = kKBytes / static_cast<int>(sizeof(Element));
  int rows;
  std::vector<int> values;
  Matrix(int r, unsigned seed) : rows(r) {
    std::mt19937 random(seed);
    for (int i = 0; i < rows * kK; ++i) values.push_back(static_cast<int>(random() % 7) - 3);
  }
  int at(int mn, int k) const { return values[static_cast<std::size_t>(mn * kK + k)]; }
};

/// A matrix as it lies in shared memory (wgmma.cuh), and where its descriptors point.
struct Operand {
  std::vector<unsigned char> bytes;
  Descriptors descriptors;
};

template <class Element>
Operand lay_out(const Matrix<Element>& matrix, Swizzle swizzle, Major major, int total_bytes) {
  constexpr std::uint32_t kElement = sizeof(Element);
  const auto rows = static_cast<std::uint32_t>(matrix.rows), k = static_cast<std::uint32_t>(matrix.kK);
  const std::uint32_t width = gpu::swizzle_bytes(swizzle);
  const std::uint32_t panel_rows = major == Major::k ? rows : k, panel = panel_rows * width;
  // Without a swizzle: core matrices of 128 bytes, neighbours along K one behind the other.
  const std::uint32_t core_k = 128, core_mn = core_k * (major == Major::k ? kKBytes / 16 : k / 8);
  Operand operand{std::vector<unsigned char>(static_cast<std::size_t>(total_bytes), 0x7F), {swizzle, 0, 0, {}}};
  for (std::uint32_t mn = 0; mn < rows; ++mn) {
    for (std::uint32_t i = 0; i < k; ++i) {
      const std::uint32_t row = major == Major::k ? mn : i, byte = (major == Major::k ? i : mn) * kElement;
      std::uint32_t place = 0;
      if (swizzle == Swizzle::none) {
        place = (major == Major::k ? row / 8 * core_mn + byte / 16 * core_k : byte / 16 * core_mn + row / 8 * core_k) +
                row % 8 * 16 + byte % 16;
      } else {
        const std::uint32_t f = swizzle == Swizzle::bytes_32   ? row / 4 % 2
                                : swizzle == Swizzle::bytes_64 ? row / 2 % 4
                                                               : row % 8;
        place = byte / width * panel + row * width + (byte % width / 16 ^ f) * 16 + byte % 16;
      }
      const std::uint32_t bits = bits_of<Element>(matrix.at(static_cast<int>(mn), static_cast<int>(i)));
      std::memcpy(&operand.bytes[place], &bits, kElement);
    }
  }
  Descriptors& d = operand.descriptors;
  d.leading_bytes = swizzle == Swizzle::none ? core_k : major == Major::k ? 16 : panel;
  d.stride_bytes = swizzle == Swizzle::none ? core_mn : 8 * width;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    d.step[step] = swizzle == Swizzle::none ? step * 2 * core_k
                   : major == Major::k      ? step * 32 / width * panel + step * 32 % width
                                            : step * 16 * width;
  }
  return operand;
}

/// A as the registers of four warps: [kSteps][128][4].
template <class Element>
std::vector<std::uint32_t> fragments(const Matrix<Element>& a) {
  constexpr int kPerRegister = 4 / sizeof(Element), kStepK = 8 * kPerRegister;
  std::vector<std::uint32_t> registers;
  for (int step = 0; step < kSteps; ++step) {
    for (int thread = 0; thread < kThreads; ++thread) {
      const int g = thread % 32 / 4, t = thread % 4;
      for (int i = 0; i < 4; ++i) {
        std::uint32_t word = 0;
        for (int e = 0; e < kPerRegister; ++e) {
          const int row = thread / 32 * 16 + g + (i % 2 ? 8 : 0);
          const int column = step * kStepK + kPerRegister * t + (i >= 2 ? kStepK / 2 : 0) + e;
          word |= bits_of<Element>(a.at(row, column)) << 8 * static_cast<int>(sizeof(Element)) * e;
        }
        registers.push_back(word);
      }
    }
  }
  return registers;
}

/// Compares D with the loops, and adds to the record a hash of it and the start of row 41 (warp 2, lower half).
template <class Element>
void check(const Matrix<Element>& a, const Matrix<Element>& b, bool accumulate, const std::vector<float>& d,
           std::vector<std::int16_t>& record) {
  const int n = b.rows;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a over 16-bit integers
  int wrong = 0;
  for (int row = 0; row < kM; ++row) {
    for (int column = 0; column < n; ++column) {
      const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
      const int i = column / 8 * 4 + row % 16 / 8 * 2 + column % 2;
      const float value = d[static_cast<std::size_t>(thread * (n / 2) + i)];
      int expected = accumulate ? i % 5 - 2 : 0;
      for (int k = 0; k < a.kK; ++k) expected += a.at(row, k) * b.at(column, k);
      wrong += value != static_cast<float>(expected);
      const auto integer = std::abs(value) < 32767 ? static_cast<std::int16_t>(value) : std::int16_t{32767};
      hash = (hash ^ static_cast<std::uint16_t>(integer)) * 0x100000001b3;
      if (row == 41 && column < 64) record.push_back(integer);
    }
  }
  CHECK(wrong == 0);
  for (int i = 0; i < 4; ++i) record.push_back(static_cast<std::int16_t>(hash >> 16 * i));
}

template <class Element, int N, Major kMajorA, Major kMajorB>
void run_ss(Swizzle swizzle_a, Swizzle swizzle_b, bool accumulate, std::vector<std::int16_t>& record) {
  CAPTURE(N, static_cast<int>(kMajorA), static_cast<int>(kMajorB), static_cast<int>(swizzle_a),
          static_cast<int>(swizzle_b), accumulate);
  const Matrix<Element> a(kM, 1), b(N, 2);
  const Operand a_operand = lay_out(a, swizzle_a, kMajorA, kABytes),
                b_operand = lay_out(b, swizzle_b, kMajorB, kBBytes);
  gpu::DeviceBuffer<unsigned char> a_device(std::span<const unsigned char>(a_operand.bytes), "a");
  gpu::DeviceBuffer<unsigned char> b_device(std::span<const unsigned char>(b_operand.bytes), "b");
  gpu::DeviceBuffer<float> d(kThreads * N / 2, "d");
  gpu::launch<OperandsShared>(ss_kernel<Element, N, kMajorA, kMajorB>, {.grid = 1, .block = kThreads}, a_device.data(),
                              b_device.data(), a_operand.descriptors, b_operand.descriptors, accumulate, d.data());
  check(a, b, accumulate, d.download(), record);
}

template <class Element, int N, Major kMajorB>
void run_rs(Swizzle swizzle, bool accumulate, std::vector<std::int16_t>& record) {
  CAPTURE(N, static_cast<int>(kMajorB), static_cast<int>(swizzle), accumulate);
  const Matrix<Element> a(kM, 3), b(N, 4);
  const Operand b_operand = lay_out(b, swizzle, kMajorB, kBBytes);
  const std::vector<std::uint32_t> a_registers = fragments(a);
  gpu::DeviceBuffer<std::uint32_t> a_device(std::span<const std::uint32_t>(a_registers), "a");
  gpu::DeviceBuffer<unsigned char> b_device(std::span<const unsigned char>(b_operand.bytes), "b");
  gpu::DeviceBuffer<float> d(kThreads * N / 2, "d");
  gpu::launch<OperandsShared>(rs_kernel<Element, N, kMajorB>, {.grid = 1, .block = kThreads}, a_device.data(),
                              b_device.data(), b_operand.descriptors, accumulate, d.data());
  check(a, b, accumulate, d.download(), record);
}

/// Both operands with each swizzle; the second time with another one for A, and adding.
template <class Element, int N, Major kMajorA = Major::k, Major kMajorB = Major::k>
void run_ss_swizzles(std::vector<std::int16_t>& record) {
  for (std::size_t i = 0; i < 4; ++i) {
    run_ss<Element, N, kMajorA, kMajorB>(kSwizzles[i], kSwizzles[i], false, record);
    run_ss<Element, N, kMajorA, kMajorB>(kSwizzles[(i + 1) % 4], kSwizzles[i], true, record);
  }
}

template <class Element, int N, Major kMajorB = Major::k>
void run_rs_swizzles(std::vector<std::int16_t>& record) {
  for (std::size_t i = 0; i < 4; ++i) run_rs<Element, N, kMajorB>(kSwizzles[i], i % 2 != 0, record);
}

}  // namespace

TEST_CASE("golden: WGMMA of bf16 from shared memory", "[golden][wgmma]") {
  std::vector<std::int16_t> record;
  run_ss_swizzles<gpu::bf16, 64, Major::k, Major::k>(record);
  run_ss_swizzles<gpu::bf16, 64, Major::k, Major::mn>(record);
  run_ss_swizzles<gpu::bf16, 64, Major::mn, Major::k>(record);
  run_ss_swizzles<gpu::bf16, 64, Major::mn, Major::mn>(record);
  CHECK(golden::difference("wgmma_ss_bf16_n64", record) == "");
  record.clear();
  run_ss_swizzles<gpu::bf16, 8>(record);
  run_ss_swizzles<gpu::bf16, 8, Major::k, Major::mn>(record);
  run_ss_swizzles<gpu::bf16, 96>(record);
  run_ss_swizzles<gpu::bf16, 96, Major::k, Major::mn>(record);
  run_ss_swizzles<gpu::bf16, 128>(record);
  run_ss_swizzles<gpu::bf16, 128, Major::k, Major::mn>(record);
  run_ss_swizzles<gpu::bf16, 256>(record);
  run_ss_swizzles<gpu::bf16, 256, Major::k, Major::mn>(record);
  CHECK(golden::difference("wgmma_ss_bf16", record) == "");
}

TEST_CASE("golden: WGMMA of fp16 from shared memory", "[golden][wgmma]") {
  std::vector<std::int16_t> record;
  run_ss_swizzles<gpu::fp16, 8, Major::mn, Major::mn>(record);
  run_ss_swizzles<gpu::fp16, 64>(record);
  run_ss_swizzles<gpu::fp16, 96, Major::mn, Major::k>(record);
  run_ss_swizzles<gpu::fp16, 128, Major::mn, Major::mn>(record);
  run_ss_swizzles<gpu::fp16, 256, Major::k, Major::mn>(record);
  CHECK(golden::difference("wgmma_ss_fp16", record) == "");
}

TEST_CASE("golden: WGMMA of fp8 from shared memory", "[golden][wgmma]") {
  std::vector<std::int16_t> record;
  run_ss_swizzles<gpu::fp8_e4m3, 8>(record);
  run_ss_swizzles<gpu::fp8_e4m3, 64>(record);
  run_ss_swizzles<gpu::fp8_e4m3, 96>(record);
  run_ss_swizzles<gpu::fp8_e4m3, 128>(record);
  run_ss_swizzles<gpu::fp8_e4m3, 256>(record);
  CHECK(golden::difference("wgmma_ss_e4m3", record) == "");
  record.clear();
  run_ss_swizzles<gpu::fp8_e5m2, 64>(record);
  run_ss_swizzles<gpu::fp8_e5m2, 256>(record);
  CHECK(golden::difference("wgmma_ss_e5m2", record) == "");
}

TEST_CASE("golden: WGMMA with A from registers", "[golden][wgmma]") {
  std::vector<std::int16_t> record;
  run_rs_swizzles<gpu::bf16, 8>(record);
  run_rs_swizzles<gpu::bf16, 64>(record);
  run_rs_swizzles<gpu::bf16, 64, Major::mn>(record);
  run_rs_swizzles<gpu::bf16, 96, Major::mn>(record);
  run_rs_swizzles<gpu::bf16, 128, Major::mn>(record);
  run_rs_swizzles<gpu::bf16, 256, Major::mn>(record);
  run_rs_swizzles<gpu::fp16, 64>(record);
  run_rs_swizzles<gpu::fp16, 128, Major::mn>(record);
  run_rs_swizzles<gpu::fp8_e4m3, 64>(record);
  run_rs_swizzles<gpu::fp8_e4m3, 256>(record);
  run_rs_swizzles<gpu::fp8_e5m2, 96>(record);
  CHECK(golden::difference("wgmma_rs", record) == "");
}
