// mma.sync, ldmatrix and movmatrix: which lane holds what, against loops over whole matrices; bank conflicts with and
// without a swizzle; and how the emulator reports their misuse. (stmatrix: hopper_tensor_core.cu.)

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "common/gpu/swizzle.cuh"
#include "common/gpu/tensor_core.cuh"
#include "tests/common/gpu/launch_report.cuh"
#include "tests/golden/golden.hpp"

namespace {

using namespace gpu_tests;
using gpu::bf16;
using gpu::fp16;
using gpu::Swizzle;

std::string at(int line) { return line_of(__FILE__, line); }

template <class Element>
std::uint16_t bits_of(Element x) {
  std::uint16_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

/// Elements as bits, and the numbers that they stand for.
struct Matrix {
  int rows, columns;
  std::vector<std::uint16_t> bits;
  std::vector<double> values;
  double operator()(int row, int column) const { return values[static_cast<std::size_t>(row * columns + column)]; }
};

template <class Element>
Matrix matrix_of(int rows, int columns, const std::function<float(int, int)>& value) {
  Matrix m{rows, columns, {}, {}};
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      const Element x = gpu::from_float<Element>(value(row, column));
      m.bits.push_back(bits_of(x));
      m.values.push_back(static_cast<double>(gpu::to_float(x)));
    }
  }
  return m;
}

/// Integers from −limit to limit, different for each seed.
template <class Element>
Matrix integers(int rows, int columns, int limit, unsigned seed) {
  std::mt19937 random(seed);
  return matrix_of<Element>(rows, columns, [&](int, int) {
    return static_cast<float>(static_cast<int>(random() % static_cast<unsigned>(2 * limit + 1)) - limit);
  });
}

double product_at(const Matrix& a, const Matrix& b, int row, int column) {
  double sum = 0;
  for (int k = 0; k < a.columns; ++k) sum += a(row, k) * b(k, column);
  return sum;
}

// ---- Products

__device__ std::uint32_t both(std::uint16_t low, std::uint16_t high) { return low | std::uint32_t{high} << 16; }

/// d_gmem[lane · 4 + i] is D's register i; C is D before.
template <class Element>
__global__ void multiply(const std::uint16_t* a_gmem, const std::uint16_t* b_gmem, const float* c_gmem, float* d_gmem) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const auto a_at = [&](int row, int column) { return a_gmem[row * 16 + column]; };
  const auto b_at = [&](int row, int column) { return b_gmem[row * 8 + column]; };
  const std::uint32_t a[4] = {
      both(a_at(g, 2 * t), a_at(g, 2 * t + 1)), both(a_at(g + 8, 2 * t), a_at(g + 8, 2 * t + 1)),
      both(a_at(g, 2 * t + 8), a_at(g, 2 * t + 9)), both(a_at(g + 8, 2 * t + 8), a_at(g + 8, 2 * t + 9))};
  const std::uint32_t b[2] = {both(b_at(2 * t, g), b_at(2 * t + 1, g)), both(b_at(2 * t + 8, g), b_at(2 * t + 9, g))};
  float d[4] = {c_gmem[g * 8 + 2 * t], c_gmem[g * 8 + 2 * t + 1], c_gmem[(g + 8) * 8 + 2 * t],
                c_gmem[(g + 8) * 8 + 2 * t + 1]};
  gpu::mma_16x8x16<Element>(d, a, b);
  for (int i = 0; i < 4; ++i) d_gmem[lane * 4 + i] = d[i];
}

/// D's registers, four a lane.
template <class Element>
std::vector<float> product(const Matrix& a, const Matrix& b, const std::vector<float>& c) {
  const gpu::DeviceBuffer<std::uint16_t> a_gmem(a.bits, "a"), b_gmem(b.bits, "b");
  const gpu::DeviceBuffer<float> c_gmem(c, "c");
  gpu::DeviceBuffer<float> d_gmem(128, "d");
  gpu::launch(multiply<Element>, {.grid = 1, .block = 32}, a_gmem.data(), b_gmem.data(), c_gmem.data(), d_gmem.data());
  return d_gmem.download();
}

/// Where in D lies register `i` of a lane.
int d_row(int lane, int i) { return lane / 4 + (i >= 2 ? 8 : 0); }
int d_column(int lane, int i) { return lane % 4 * 2 + i % 2; }

struct ProductTiles {
  alignas(16) std::uint16_t a[16][16];
  alignas(16) std::uint16_t b[16][16];          ///< row-major, as V lies in memory
  alignas(16) std::uint16_t b_columns[16][16];  ///< its transpose, as K does
  alignas(16) std::uint16_t c[16][8];
};

/// P = A·B for 16 × 16 matrices, B loaded either way, rounded to elements in registers; then P·C.
template <class Element>
__global__ void multiply_twice(const std::uint16_t* a_gmem, const std::uint16_t* b_gmem, const std::uint16_t* c_gmem,
                               float* p_gmem, float* d_gmem, bool from_columns) {
  auto& shared = gpu::shared_memory<ProductTiles>();
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  for (int i = lane; i < 256; i += 32) {
    shared.a[i / 16][i % 16] = a_gmem[i];
    shared.b[i / 16][i % 16] = b_gmem[i];
    shared.b_columns[i % 16][i / 16] = b_gmem[i];
    if (i < 128) shared.c[i / 8][i % 8] = c_gmem[i];
  }
  __syncwarp();
  std::uint32_t a[4], b[4], c[2];
  gpu::load_matrices<4>(a, &shared.a[lane % 16][lane / 16 * 8]);
  if (from_columns) {
    gpu::load_matrices<4>(b, &shared.b_columns[lane / 16 * 8 + lane % 8][lane / 8 % 2 * 8]);
  } else {
    gpu::load_matrices_transposed<4>(b, &shared.b[lane % 16][lane / 16 * 8]);
  }
  gpu::load_matrices_transposed<2>(c, shared.c[lane % 16]);
  std::uint32_t p[4];
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t b_half[2] = {b[2 * half], b[2 * half + 1]};
    float s[4] = {0, 0, 0, 0};
    gpu::mma_16x8x16<Element>(s, a, b_half);
    for (int i = 0; i < 4; ++i) p_gmem[(g + i / 2 * 8) * 16 + 8 * half + 2 * t + i % 2] = s[i];
    p[2 * half] = gpu::pack<Element>(s[0], s[1]);
    p[2 * half + 1] = gpu::pack<Element>(s[2], s[3]);
  }
  float d[4] = {0, 0, 0, 0};
  gpu::mma_16x8x16<Element>(d, p, c);
  for (int i = 0; i < 4; ++i) d_gmem[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];
}

template <class Element>
void check_integer_products() {
  for (unsigned seed = 0; seed < 5; ++seed) {
    const Matrix a = integers<Element>(16, 16, 30, seed), b = integers<Element>(16, 8, 30, seed + 100);
    std::vector<float> c;
    for (int i = 0; i < 128; ++i) c.push_back(static_cast<float>(i * 7 - 300));
    const std::vector<float> d = product<Element>(a, b, c);
    int wrong = 0;
    for (int i = 0; i < 128; ++i) {
      const int row = d_row(i / 4, i % 4), column = d_column(i / 4, i % 4);
      const double expected =
          static_cast<double>(c[static_cast<std::size_t>(row * 8 + column)]) + product_at(a, b, row, column);
      wrong += static_cast<double>(d[static_cast<std::size_t>(i)]) != expected;
    }
    CAPTURE(seed);
    CHECK(wrong == 0);
  }
}

template <class Element>
void check_two_products() {
  // Sums up to 64 are exact in fp16 and bf16, so that P is.
  const Matrix a = integers<Element>(16, 16, 2, 1), b = integers<Element>(16, 16, 2, 2),
               c = integers<Element>(16, 8, 20, 3);
  const gpu::DeviceBuffer<std::uint16_t> a_gmem(a.bits, "a"), b_gmem(b.bits, "b"), c_gmem(c.bits, "c");
  for (const bool from_columns : {false, true}) {
    gpu::DeviceBuffer<float> p_gmem(256, "p"), d_gmem(128, "d");
    gpu::launch<ProductTiles>(multiply_twice<Element>, {.grid = 1, .block = 32}, a_gmem.data(), b_gmem.data(),
                              c_gmem.data(), p_gmem.data(), d_gmem.data(), from_columns);
    const Matrix p = matrix_of<Element>(
        16, 16, [&](int row, int column) { return static_cast<float>(product_at(a, b, row, column)); });
    const auto p_found = p_gmem.download(), d_found = d_gmem.download();
    int wrong = 0;
    for (std::size_t i = 0; i < 256; ++i) wrong += static_cast<double>(p_found[i]) != p.values[i];
    CHECK(wrong == 0);
    for (int i = 0; i < 128; ++i) {
      wrong += static_cast<double>(d_found[static_cast<std::size_t>(i)]) != product_at(p, c, i / 8, i % 8);
    }
    CHECK(wrong == 0);
  }
}

/// Fractions whose products and sums a double holds exactly.
template <class Element>
void check_fractions() {
  std::mt19937 random(8);
  const auto fraction = [&](int, int) { return (static_cast<float>(random() % 4096) - 2048) / 512; };
  const Matrix a = matrix_of<Element>(16, 16, fraction), b = matrix_of<Element>(16, 8, fraction);
  const std::vector<float> c(128, 0.3f);
  const std::vector<float> d = product<Element>(a, b, c);
  for (int i = 0; i < 128; ++i) {
    const int row = d_row(i / 4, i % 4), column = d_column(i / 4, i % 4);
    double sum = static_cast<double>(0.3f), sizes = sum;
    for (int k = 0; k < 16; ++k) {
      sum += a(row, k) * b(k, column);
      sizes += std::abs(a(row, k) * b(k, column));
    }
    const auto found = static_cast<double>(d[static_cast<std::size_t>(i)]);
    if (gpu::device().emulated) {
      CHECK(found == static_cast<double>(static_cast<float>(sum)));  // rounded once
    } else {
      CHECK(std::abs(found - sum) <= sizes * 0x1p-18);
    }
  }
}

/// A's first column times B's first row: each element of D is one product.
template <class Element>
std::pair<Matrix, Matrix> special_factors() {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const bool half = std::is_same_v<Element, fp16>;
  const float largest = half ? 65504.0f : 0x1.fep127f, smallest = half ? 0x1p-24f : 0x1p-133f,
              subnormal = half ? 0x1.ff8p-15f : 0x1.fcp-127f, normal = half ? 0x1p-14f : 0x1p-126f;
  const std::array<float, 16> x = {1,       -1,       3,         0.5f,   infinity, -infinity, nan, 0,
                                   largest, smallest, subnormal, normal, -largest, -smallest, 7,   -subnormal};
  const std::array<float, 8> y = {1, -2, 0, infinity, nan, largest, smallest, 0.5f};
  return {
      matrix_of<Element>(16, 16, [&](int row, int k) { return k == 0 ? x[static_cast<std::size_t>(row)] : 0; }),
      matrix_of<Element>(16, 8, [&](int k, int column) { return k == 0 ? y[static_cast<std::size_t>(column)] : 0; })};
}

template <class Element>
void check_special_products() {
  const auto [a, b] = special_factors<Element>();
  const std::vector<float> d = product<Element>(a, b, std::vector<float>(128, 0.0f));
  for (int i = 0; i < 128; ++i) {
    const double x = a(d_row(i / 4, i % 4), 0), y = b(0, d_column(i / 4, i % 4));
    const float found = d[static_cast<std::size_t>(i)], expected = static_cast<float>(x * y);
    CAPTURE(x, y, found, expected);
    CHECK((std::isnan(expected) ? std::isnan(found) : found == expected));
  }
}

// ---- Matrices from shared memory

constexpr int kRowBytes = 48;  ///< a multiple of 16 that is not a power of two

struct ScatteredRows {
  alignas(16) unsigned char bytes[32 * kRowBytes];
};

/// Row r of matrix m, element c. All are different.
constexpr std::uint16_t number_at(int m, int r, int c) { return static_cast<std::uint16_t>(m * 64 + r * 8 + c + 1); }
/// Where lane's row lies.
__host__ __device__ constexpr int row_offset(int lane) { return (lane * 5 + 3) % 32 * kRowBytes; }

/// out_gmem[k · 32 + lane]: registers of <1>, <2>, <4>, then of the transposed loads.
__global__ void load_all(std::uint32_t* out_gmem) {
  auto& shared = gpu::shared_memory<ScatteredRows>();
  const int lane = static_cast<int>(threadIdx.x);
  unsigned char* row = shared.bytes + row_offset(lane);
  for (int c = 0; c < 8; ++c) reinterpret_cast<std::uint16_t*>(row)[c] = static_cast<std::uint16_t>(lane * 8 + c + 1);
  __syncwarp();
  std::uint32_t one[1], two[2], four[4];
  // Addresses beyond the loaded matrices are not looked at.
  gpu::load_matrices<1>(one, lane < 8 ? row : nullptr);
  gpu::load_matrices<2>(two, lane < 16 ? row : nullptr);
  gpu::load_matrices<4>(four, row);
  std::uint32_t* out = out_gmem + lane;
  out[0] = one[0];
  for (int i = 0; i < 2; ++i) out[(1 + i) * 32] = two[i];
  for (int i = 0; i < 4; ++i) out[(3 + i) * 32] = four[i];
  gpu::load_matrices_transposed<1>(one, lane < 8 ? row : nullptr);
  gpu::load_matrices_transposed<2>(two, lane < 16 ? row : nullptr);
  gpu::load_matrices_transposed<4>(four, row);
  out[7 * 32] = one[0];
  for (int i = 0; i < 2; ++i) out[(8 + i) * 32] = two[i];
  for (int i = 0; i < 4; ++i) out[(10 + i) * 32] = four[i];
}

std::vector<std::uint32_t> loaded() {
  gpu::DeviceBuffer<std::uint32_t> out_gmem(14 * 32, "out");
  gpu::launch<ScatteredRows>(load_all, {.grid = 1, .block = 32}, out_gmem.data());
  return out_gmem.download();
}

__global__ void transpose_once_and_twice(const std::uint32_t* x_gmem, std::uint32_t* out_gmem) {
  const std::uint32_t once = gpu::transposed_matrix(x_gmem[threadIdx.x]);
  out_gmem[threadIdx.x] = once;
  out_gmem[32 + threadIdx.x] = gpu::transposed_matrix(once);
}

// ---- Swizzles

struct SwizzledTile {
  alignas(1024) std::uint16_t element[8 * 64];
};

/// Eight rows of `row_bytes`; each column of chunks is an 8 × 8 matrix.
__global__ void load_columns(std::uint32_t* out_gmem, Swizzle swizzle, int row_bytes) {
  auto& shared = gpu::shared_memory<SwizzledTile>();
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 4 * row_bytes; i += 32) {
    shared.element[gpu::swizzled_offset(swizzle, static_cast<std::uint32_t>(2 * i)) / 2] =
        static_cast<std::uint16_t>(i + 1);
  }
  __syncwarp();
  for (int chunk = 0; chunk < row_bytes / 16; ++chunk) {
    const auto offset = gpu::swizzled_offset(swizzle, static_cast<std::uint32_t>(lane % 8 * row_bytes + chunk * 16));
    std::uint32_t r[1];
    gpu::load_matrices<1>(r, &shared.element[offset / 2]);
    out_gmem[chunk * 32 + lane] = r[0];
  }
}

// ---- Misuse

struct Rows {
  alignas(16) std::uint16_t row[32][8];
};

constexpr int kMisaligned = __LINE__ + 4;
__global__ void misaligned(std::uint32_t* out_gmem) {
  auto& shared = gpu::shared_memory<Rows>();
  std::uint32_t r[2];
  gpu::load_matrices<2>(r, &shared.row[0][threadIdx.x == 9 ? 4 : 0]);
  out_gmem[threadIdx.x] = r[0] + r[1];
}

constexpr int kOutside = __LINE__ + 4;
__global__ void outside(std::uint32_t* out_gmem) {
  gpu::shared_memory<Rows>();
  std::uint32_t r[1];
  gpu::load_matrices<1>(r, out_gmem);
  out_gmem[threadIdx.x] = r[0];
}

constexpr int kPastEnd = __LINE__ + 4;
__global__ void past_end(std::uint32_t* out_gmem) {
  auto& shared = gpu::shared_memory<Rows>();
  std::uint32_t r[1];
  gpu::load_matrices<1>(r, shared.row[25] + 8 * threadIdx.x);
  out_gmem[threadIdx.x] = r[0];
}

struct TwoAndAHalfRows {
  std::uint16_t element[20];
};

constexpr int kHalfARow = __LINE__ + 4;
__global__ void half_a_row(std::uint32_t* out_gmem) {
  auto& shared = gpu::shared_memory<TwoAndAHalfRows>();
  std::uint32_t r[1];
  gpu::load_matrices<1>(r, &shared.element[16]);
  out_gmem[threadIdx.x] = r[0];
}

constexpr int kFewLanes = __LINE__ + 5;
__global__ void few_lanes(float* out_gmem, int leave_from) {
  if (static_cast<int>(threadIdx.x) >= leave_from) return;
  float d[4] = {0, 0, 0, 0};
  const std::uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
  gpu::mma_16x8x16<bf16>(d, a, b);
  out_gmem[threadIdx.x] = d[0];
}

constexpr int kFirstHalf = __LINE__ + 6, kSecondHalf = __LINE__ + 8;
__global__ void two_lines(std::uint32_t* out_gmem) {
  auto& shared = gpu::shared_memory<Rows>();
  for (auto& element : shared.row[threadIdx.x]) element = 1;
  std::uint32_t r[1];
  if (threadIdx.x < 16) {
    gpu::load_matrices<1>(r, shared.row[threadIdx.x]);
  } else {
    gpu::load_matrices<1>(r, shared.row[threadIdx.x]);
  }
  out_gmem[threadIdx.x] = r[0];
}

constexpr int kBothFormats = __LINE__ + 5;
__global__ void two_formats(float* out_gmem) {
  float d[4] = {0, 0, 0, 0};
  const std::uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
  // clang-format off
  if (threadIdx.x % 2) gpu::mma_16x8x16<bf16>(d, a, b); else gpu::mma_16x8x16<fp16>(d, a, b);
  // clang-format on
  out_gmem[threadIdx.x] = d[0];
}

constexpr int kMultipliesAlone = __LINE__ + 5;
__global__ void half_waits_elsewhere(float* out_gmem) {
  float d[4] = {0, 0, 0, 0};
  const std::uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
  if (threadIdx.x < 16) {
    gpu::mma_16x8x16<bf16>(d, a, b);
  } else {
    __syncthreads();
  }
  out_gmem[threadIdx.x] = d[0];
}

/// Lanes write fragments, and load rows that others wrote.
constexpr int kWritesFragment = __LINE__ + 4, kLoadsRow = __LINE__ + 7;
__global__ void load_what_others_wrote(std::uint32_t* out_gmem, bool barrier) {
  auto& shared = gpu::shared_memory<Rows>();
  const unsigned lane = threadIdx.x;
  for (unsigned i = 0; i < 2; ++i) shared.row[lane / 4][lane % 4 * 2 + i] = static_cast<std::uint16_t>(lane);
  if (barrier) __syncwarp();
  std::uint32_t r[1];
  gpu::load_matrices<1>(r, shared.row[lane % 8]);
  out_gmem[lane] = r[0];
}

/// A product in between is no barrier.
constexpr int kWritesBefore = __LINE__ + 4, kLoadsAfter = __LINE__ + 9;
__global__ void multiply_between(std::uint32_t* out_gmem) {
  auto& shared = gpu::shared_memory<Rows>();
  const unsigned lane = threadIdx.x;
  for (unsigned i = 0; i < 2; ++i) shared.row[lane / 4][lane % 4 * 2 + i] = static_cast<std::uint16_t>(lane);
  float d[4] = {0, 0, 0, 0};
  const std::uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
  gpu::mma_16x8x16<bf16>(d, a, b);
  std::uint32_t r[1];
  gpu::load_matrices<1>(r, shared.row[lane % 8]);
  out_gmem[lane] = r[0] + static_cast<std::uint32_t>(d[0]);
}

/// Two warps load the rows; the first then fills them anew.
constexpr int kLoadsEarlier = __LINE__ + 7, kFillsAgain = __LINE__ + 9;
__global__ void overwrite_too_early(std::uint32_t* out_gmem, bool barrier) {
  auto& shared = gpu::shared_memory<Rows>();
  const unsigned lane = threadIdx.x % 32;
  for (unsigned c = threadIdx.x / 32; c < 8; c += 2) shared.row[lane][c] = 4;
  __syncthreads();
  std::uint32_t r[4];
  gpu::load_matrices<4>(r, shared.row[lane]);
  if (barrier) __syncthreads();
  if (threadIdx.x < 32) shared.row[lane][0] = 5;
  out_gmem[threadIdx.x] = r[0] + r[1] + r[2] + r[3];
}

constexpr int kLoadsUnwritten = __LINE__ + 5;
__global__ void load_unwritten(std::uint32_t* out_gmem) {
  auto& shared = gpu::shared_memory<Rows>();
  for (auto& element : shared.row[threadIdx.x % 24]) element = 1;
  std::uint32_t r[4];
  gpu::load_matrices<4>(r, shared.row[threadIdx.x]);
  out_gmem[threadIdx.x] = r[3];
}

}  // namespace

TEST_CASE("mma multiplies integers exactly, and each lane gets its elements", "[tensor_core]") {
  check_integer_products<fp16>();
  check_integer_products<bf16>();
}

TEST_CASE("a product in registers is an operand of the next; B comes from rows and from columns", "[tensor_core]") {
  check_two_products<fp16>();
  check_two_products<bf16>();
}

TEST_CASE("mma of fractions", "[tensor_core]") {
  check_fractions<fp16>();
  check_fractions<bf16>();
}

TEST_CASE("mma of infinities, NaN, the largest and the smallest numbers", "[tensor_core]") {
  check_special_products<fp16>();
  check_special_products<bf16>();
}

TEST_CASE("ldmatrix gives each lane two neighbours of a row, or of a column", "[tensor_core]") {
  const std::vector<std::uint32_t> found = loaded();
  const std::array<int, 7> matrix_of_register = {0, 0, 1, 0, 1, 2, 3};
  for (int k = 0; k < 14; ++k) {
    const int m = matrix_of_register[static_cast<std::size_t>(k % 7)];
    int wrong = 0;
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      const std::uint32_t low = k < 7 ? number_at(m, row, column) : number_at(m, column, row);
      const std::uint32_t high = k < 7 ? number_at(m, row, column + 1) : number_at(m, column + 1, row);
      wrong += found[static_cast<std::size_t>(k * 32 + lane)] != (low | high << 16);
    }
    CAPTURE(k);
    CHECK(wrong == 0);
  }
}

TEST_CASE("movmatrix transposes, and twice gives the matrix back", "[tensor_core]") {
  std::vector<std::uint32_t> x;
  for (int lane = 0; lane < 32; ++lane) {
    x.push_back(number_at(0, lane / 4, lane % 4 * 2) | std::uint32_t{number_at(0, lane / 4, lane % 4 * 2 + 1)} << 16);
  }
  const gpu::DeviceBuffer<std::uint32_t> x_gmem(x, "x");
  gpu::DeviceBuffer<std::uint32_t> out_gmem(64, "out");
  gpu::launch(transpose_once_and_twice, {.grid = 1, .block = 32}, x_gmem.data(), out_gmem.data());
  const auto out = out_gmem.download();
  for (int lane = 0; lane < 32; ++lane) {
    const int row = lane / 4, column = lane % 4 * 2;
    CHECK(out[static_cast<std::size_t>(lane)] ==
          (number_at(0, column, row) | std::uint32_t{number_at(0, column + 1, row)} << 16));
    CHECK(out[static_cast<std::size_t>(32 + lane)] == x[static_cast<std::size_t>(lane)]);
  }
}

TEST_CASE("a swizzle permutes the chunks of each row", "[tensor_core]") {
  for (const Swizzle swizzle : {Swizzle::none, Swizzle::bytes_32, Swizzle::bytes_64, Swizzle::bytes_128}) {
    const std::uint32_t row_bytes = gpu::swizzle_bytes(swizzle);
    CAPTURE(row_bytes);
    CHECK(row_bytes == 16u << static_cast<unsigned>(swizzle));
    std::vector<int> hits(16 * row_bytes, 0);
    std::size_t wrong = 0;
    for (std::uint32_t offset = 0; offset < 16 * row_bytes; ++offset) {
      const std::uint32_t to = gpu::swizzled_offset(swizzle, offset);
      REQUIRE(to < hits.size());
      ++hits[to];
      const std::uint32_t row = offset / row_bytes, chunk = offset % row_bytes / 16;
      const std::uint32_t turn = swizzle == Swizzle::bytes_32    ? row / 4 % 2
                                 : swizzle == Swizzle::bytes_64  ? row / 2 % 4
                                 : swizzle == Swizzle::bytes_128 ? row % 8
                                                                 : 0;
      wrong += to != row * row_bytes + (chunk ^ turn) * 16 + offset % 16;
      wrong += gpu::swizzled_offset(swizzle, to) != offset;
    }
    CHECK(wrong == 0);
    CHECK(std::count(hits.begin(), hits.end(), 1) == static_cast<std::ptrdiff_t>(hits.size()));
  }
}

TEST_CASE("the picture of the 128-byte swizzle in swizzle.cuh", "[tensor_core]") {
  std::ifstream file(BOOK_SOURCE_DIR "/common/gpu/swizzle.cuh");
  REQUIRE(file);
  std::array<std::string, 8> rows;
  for (std::uint32_t chunk = 0; chunk < 64; ++chunk) {
    const std::uint32_t to = gpu::swizzled_offset(Swizzle::bytes_128, chunk * 16) / 16;
    std::string& row = rows[to / 8];
    row.resize(15, ' ');
    row[to % 8 * 2] = static_cast<char>('0' + chunk % 8);
  }
  std::size_t found = 0;
  for (std::string line; std::getline(file, line);) {
    for (std::size_t i = 0; i < rows.size(); ++i) found += line == "///     row " + std::to_string(i) + ":  " + rows[i];
  }
  CHECK(found == 8);
}

TEST_CASE("ldmatrix of eight rows takes a wavefront with a swizzle, and more without", "[tensor_core]") {
  gpu::EmulatorOptions options;
  options.count_requests = gpu::device().checked;
  const gpu::EmulatorOptionsScope scope(options);
  struct Case {
    Swizzle swizzle;
    int row_bytes;
    std::uint64_t wavefronts;  ///< of each load
  };
  for (const Case& c :
       {Case{Swizzle::none, 32, 2}, Case{Swizzle::none, 64, 4}, Case{Swizzle::none, 128, 8},
        Case{Swizzle::bytes_32, 32, 1}, Case{Swizzle::bytes_64, 64, 1}, Case{Swizzle::bytes_128, 128, 1}}) {
    CAPTURE(static_cast<int>(c.swizzle), c.row_bytes);
    const int loads = c.row_bytes / 16;
    gpu::DeviceBuffer<std::uint32_t> out_gmem(static_cast<std::size_t>(loads * 32), "out");
    gpu::reset_counts();
    gpu::launch<SwizzledTile>(load_columns, {.grid = 1, .block = 32}, out_gmem.data(), c.swizzle, c.row_bytes);
    const auto out = out_gmem.download();
    int wrong = 0;
    for (int i = 0; i < loads * 32; ++i) {
      const int element = i % 32 / 4 * (c.row_bytes / 2) + i / 32 * 8 + i % 4 * 2 + 1;
      wrong += out[static_cast<std::size_t>(i)] != static_cast<std::uint32_t>(element | (element + 1) << 16);
    }
    CHECK(wrong == 0);
    if (!gpu::device().checked) continue;
    const auto counts = gpu::kernel_counts();
    REQUIRE(counts.size() == 1);
    const auto all = static_cast<std::uint64_t>(loads);
    CHECK(counts[0].shared_loads.bytes == all * 128);
    CHECK(counts[0].shared_loads.requests == all);
    CHECK(counts[0].shared_loads.wavefronts == all * c.wavefronts);
    CHECK(counts[0].shared_loads.conflicts == all * (c.wavefronts - 1));
  }
}

TEST_CASE("ldmatrix from an address that it cannot take", "[tensor_core]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<std::uint32_t> out_gmem(std::vector<std::uint32_t>(32, 0), "out");
  std::string report = fault_of([&] { gpu::launch<Rows>(misaligned, {.grid = 1, .block = 32}, out_gmem.data()); });
  CHECK(names(report, at(kMisaligned)));
  CHECK_THAT(report, ContainsText("load_matrices<2>: row 1 of matrix 1, whose address lane 9 gives, has to start at a "
                                  "multiple of 16 bytes"));
  report = fault_of([&] { gpu::launch<Rows>(outside, {.grid = 1, .block = 32}, out_gmem.data()); });
  CHECK(names(report, at(kOutside)));
  CHECK_THAT(report, ContainsText("is not in this block's shared memory"));
  report = fault_of([&] { gpu::launch<Rows>(past_end, {.grid = 1, .block = 32}, out_gmem.data()); });
  CHECK(names(report, at(kPastEnd)));
  CHECK_THAT(report, ContainsText("row 7 of matrix 0"));
  report = fault_of([&] { gpu::launch<TwoAndAHalfRows>(half_a_row, {.grid = 1, .block = 32}, out_gmem.data()); });
  CHECK(names(report, at(kHalfARow)));
  CHECK_THAT(report, ContainsText("is not in this block's shared memory"));
}

TEST_CASE("an operation of the whole warp needs all 32 lanes, at one line", "[tensor_core]") {
  if (!gpu::device().emulated) return;
  gpu::EmulatorOptions options;
  options.schedule_seed = GENERATE(0, 1, 2);
  const gpu::EmulatorOptionsScope scope(options);
  gpu::DeviceBuffer<std::uint32_t> out_gmem(32, "out");
  gpu::DeviceBuffer<float> d_gmem(32, "d");
  std::string report = fault_of([&] { gpu::launch(few_lanes, {.grid = 1, .block = 24}, d_gmem.data(), 32); });
  CHECK(names(report, at(kFewLanes)));
  CHECK_THAT(report, ContainsText("mma_16x8x16<bf16>: lane 24 is named in the mask, but the block has no such thread"));
  report = fault_of([&] { gpu::launch(few_lanes, {.grid = 1, .block = 32}, d_gmem.data(), 31); });
  CHECK(names(report, at(kFewLanes)));
  CHECK_THAT(report, ContainsText("lane 31 is named in the mask, but its thread has exited"));
  report = fault_of([&] { gpu::launch<Rows>(two_lines, {.grid = 1, .block = 32}, out_gmem.data()); });
  CHECK(names(report, at(kFirstHalf)));
  CHECK(names(report, at(kSecondHalf)));
  CHECK_THAT(report, ContainsText("divergent warp: load_matrices<1>"));
  report = fault_of([&] { gpu::launch(two_formats, {.grid = 1, .block = 32}, d_gmem.data()); });
  CHECK(names(report, at(kBothFormats)));
  CHECK_THAT(report, ContainsText("mma_16x8x16<bf16>"));
  CHECK_THAT(report, ContainsText("mma_16x8x16<fp16>"));
  report = fault_of([&] { gpu::launch(half_waits_elsewhere, {.grid = 1, .block = 32}, d_gmem.data()); });
  CHECK(names(report, at(kMultipliesAlone)));
}

TEST_CASE("ldmatrix races like an ordinary read of the lane that gives the address", "[tensor_core]") {
  gpu::DeviceBuffer<std::uint32_t> out_gmem(64, "out");
  const auto hand_over = [&](bool barrier) {
    gpu::launch<Rows>(load_what_others_wrote, {.grid = 1, .block = 32}, out_gmem.data(), barrier);
  };
  const auto overwrite = [&](bool barrier) {
    gpu::launch<Rows>(overwrite_too_early, {.grid = 1, .block = 64}, out_gmem.data(), barrier);
  };
  hand_over(true);
  for (unsigned lane = 0; lane < 32; ++lane) CHECK(out_gmem.download()[lane] == lane * 0x00010001u);
  overwrite(true);
  if (!gpu::device().checked) return;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    gpu::EmulatorOptions options;
    options.schedule_seed = seed;
    const gpu::EmulatorOptionsScope scope(options);
    CAPTURE(seed);
    CHECK(report_of([&] { hand_over(true); }) == "");
    CHECK(report_of([&] { overwrite(true); }) == "");
    if (seed > 2) continue;
    std::string report = fault_of([&] { hand_over(false); });
    CHECK(names(report, at(kWritesFragment)));
    CHECK(names(report, at(kLoadsRow)));
    CHECK_THAT(report, ContainsText("race on shared memory"));
    report = fault_of([&] { overwrite(false); });
    CHECK(names(report, at(kLoadsEarlier)));
    CHECK(names(report, at(kFillsAgain)));
    report = fault_of([&] { gpu::launch<Rows>(multiply_between, {.grid = 1, .block = 32}, out_gmem.data()); });
    CHECK(names(report, at(kWritesBefore)));
    CHECK(names(report, at(kLoadsAfter)));
  }
}

TEST_CASE("ldmatrix of rows that nobody has written", "[tensor_core]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<std::uint32_t> out_gmem(32, "out");
  const auto run = [&] { gpu::launch<Rows>(load_unwritten, {.grid = 1, .block = 32}, out_gmem.data()); };
  if (gpu::device().checked) {
    const std::string report = fault_of(run);
    CHECK(names(report, at(kLoadsUnwritten)));
    CHECK_THAT(report, ContainsText("uninitialised: reads offset"));
  } else {
    run();
    CHECK(out_gmem.download()[0] == 0xffffffffu);  // NaN
  }
}

TEST_CASE("golden: fragments of ldmatrix", "[golden]") {
  CHECK(golden::difference("tensor_core_load_matrices", loaded()) == "");
}

TEST_CASE("golden: mma of small integers", "[golden]") {
  std::vector<float> c;
  for (int i = 0; i < 128; ++i) c.push_back(static_cast<float>(i - 64));
  CHECK(golden::difference("tensor_core_mma_fp16",
                           product<fp16>(integers<fp16>(16, 16, 9, 11), integers<fp16>(16, 8, 9, 12), c)) == "");
  CHECK(golden::difference("tensor_core_mma_bf16",
                           product<bf16>(integers<bf16>(16, 16, 9, 13), integers<bf16>(16, 8, 9, 14), c)) == "");
}

TEST_CASE("golden: mma of infinities, NaN, the largest and the smallest numbers", "[golden]") {
  const std::vector<float> zeros(128, 0.0f);
  const auto [a_fp16, b_fp16] = special_factors<fp16>();
  CHECK(golden::difference("tensor_core_special_fp16", product<fp16>(a_fp16, b_fp16, zeros)) == "");
  const auto [a_bf16, b_bf16] = special_factors<bf16>();
  CHECK(golden::difference("tensor_core_special_bf16", product<bf16>(a_bf16, b_bf16, zeros)) == "");
}
