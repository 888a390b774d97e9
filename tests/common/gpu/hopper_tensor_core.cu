// stmatrix and elect.sync, which sm_90 brought: the rest of the warp's vocabulary is in test_tensor_core.cu.

#include <algorithm>

#include "common/gpu/atomic.cuh"
#include "common/gpu/swizzle.cuh"
#include "common/gpu/tensor_core.cuh"
#include "tests/common/gpu/launch_report.cuh"
#include "tests/golden/golden.hpp"

namespace {

using namespace gpu_tests;

std::string at(int line) { return line_of(__FILE__, line); }

constexpr int kRowElements = 24;  ///< 48 bytes, a multiple of 16 that is not a power of two

struct ScatteredRows {
  alignas(16) std::uint16_t element[32 * kRowElements];
};

/// Where lane's row lies.
__host__ __device__ constexpr int row_start(int lane) { return (lane * 5 + 3) % 32 * kRowElements; }
/// Row r of matrix m, element c. All are different.
__host__ __device__ constexpr std::uint32_t number_at(int m, int r, int c) {
  return static_cast<std::uint32_t>(m * 64 + r * 8 + c + 1);
}

/// All of shared memory after the store, and what load_matrices reads back.
template <int kCount>
__global__ void store_and_load(std::uint16_t* out_gmem, std::uint32_t* back_gmem) {
  auto& shared = gpu::shared_memory<ScatteredRows>();
  const int lane = static_cast<int>(threadIdx.x), row = lane / 4, column = lane % 4 * 2;
  for (int i = lane; i < 32 * kRowElements; i += 32) shared.element[i] = 0xeeee;
  __syncwarp();
  std::uint32_t r[kCount];
  for (int i = 0; i < kCount; ++i) r[i] = number_at(i, row, column) | number_at(i, row, column + 1) << 16;
  // Addresses beyond the stored matrices are not looked at.
  std::uint16_t* mine = lane < 8 * kCount ? &shared.element[row_start(lane)] : nullptr;
  gpu::store_matrices<kCount>(mine, r);
  __syncwarp();
  std::uint32_t back[kCount];
  gpu::load_matrices<kCount>(back, mine);
  for (int i = 0; i < kCount; ++i) back_gmem[i * 32 + lane] = back[i];
  for (int i = lane; i < 32 * kRowElements; i += 32) out_gmem[i] = shared.element[i];
}

template <int kCount>
std::vector<std::uint16_t> stored(std::vector<std::uint32_t>* back = nullptr) {
  gpu::DeviceBuffer<std::uint16_t> out_gmem(32 * kRowElements, "out");
  gpu::DeviceBuffer<std::uint32_t> back_gmem(kCount * 32, "back");
  gpu::launch<ScatteredRows>(store_and_load<kCount>, {.grid = 1, .block = 32}, out_gmem.data(), back_gmem.data());
  if (back) *back = back_gmem.download();
  return out_gmem.download();
}

template <int kCount>
void check_store() {
  std::vector<std::uint32_t> back;
  const std::vector<std::uint16_t> found = stored<kCount>(&back);
  std::vector<std::uint16_t> expected(32 * kRowElements, 0xeeee);
  for (int lane = 0; lane < 8 * kCount; ++lane) {
    for (int c = 0; c < 8; ++c) {
      expected[static_cast<std::size_t>(row_start(lane) + c)] =
          static_cast<std::uint16_t>(number_at(lane / 8, lane % 8, c));
    }
  }
  CHECK(found == expected);
  for (int i = 0; i < kCount * 32; ++i) {
    const int row = i % 32 / 4, column = i % 4 * 2;
    CHECK(back[static_cast<std::size_t>(i)] ==
          (number_at(i / 32, row, column) | number_at(i / 32, row, column + 1) << 16));
  }
}

struct SwizzledTile {
  alignas(1024) std::uint16_t element[8 * 64];
};

/// Eight rows of 128 bytes, stored as eight matrices side by side.
__global__ void store_columns(std::uint32_t* out_gmem, gpu::Swizzle swizzle) {
  auto& shared = gpu::shared_memory<SwizzledTile>();
  const int lane = static_cast<int>(threadIdx.x);
  for (int first = 0; first < 8; first += 4) {
    const std::uint32_t r[4] = {1, 2, 3, 4};
    const auto offset = static_cast<std::uint32_t>(lane % 8 * 128 + (first + lane / 8) * 16);
    gpu::store_matrices<4>(&shared.element[gpu::swizzled_offset(swizzle, offset) / 2], r);
  }
  out_gmem[lane] = 1;
}

__global__ void elect(int* out_gmem, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    if (gpu::elect_one()) atomicAdd(&out_gmem[threadIdx.x], 1);
  }
}

struct Rows {
  alignas(16) std::uint16_t row[32][8];
};

constexpr int kMisaligned = __LINE__ + 4;
__global__ void misaligned(std::uint32_t*) {
  auto& shared = gpu::shared_memory<Rows>();
  const std::uint32_t r[1] = {1};
  gpu::store_matrices<1>(&shared.row[0][threadIdx.x == 3 ? 1 : 0], r);
}

constexpr int kOutside = __LINE__ + 4;
__global__ void outside(std::uint32_t* out_gmem) {
  gpu::shared_memory<Rows>();
  const std::uint32_t r[1] = {1};
  gpu::store_matrices<1>(out_gmem, r);
}

/// Each lane reads its row after other lanes' fragments were stored there.
constexpr int kStoresRow = __LINE__ + 4, kReadsRow = __LINE__ + 6;
__global__ void read_what_was_stored(std::uint32_t* out_gmem, bool barrier) {
  auto& shared = gpu::shared_memory<Rows>();
  const std::uint32_t r[4] = {threadIdx.x, threadIdx.x, threadIdx.x, threadIdx.x};
  gpu::store_matrices<4>(shared.row[threadIdx.x], r);
  if (barrier) __syncwarp();
  out_gmem[threadIdx.x] = shared.row[31 - threadIdx.x][0];
}

constexpr int kSameRow = __LINE__ + 4;
__global__ void two_lanes_store_one_row(std::uint32_t*) {
  auto& shared = gpu::shared_memory<Rows>();
  const std::uint32_t r[1] = {1};
  gpu::store_matrices<1>(shared.row[threadIdx.x == 7 ? 0 : threadIdx.x], r);
}

constexpr int kElectsAlone = __LINE__ + 2;
__global__ void half_elects(int* out_gmem) {
  if (threadIdx.x < 16 && gpu::elect_one()) out_gmem[0] = 1;
}

}  // namespace

TEST_CASE("stmatrix puts fragments back into rows", "[hopper]") {
  check_store<1>();
  check_store<2>();
  check_store<4>();
}

TEST_CASE("one lane is elected, always the same", "[hopper]") {
  gpu::DeviceBuffer<int> out_gmem(std::vector<int>(96, 0), "out");
  gpu::launch(elect, {.grid = 1, .block = 96}, out_gmem.data(), 5);
  const auto out = out_gmem.download();
  for (std::ptrdiff_t warp = 0; warp < 3; ++warp) {
    CHECK(std::count(out.begin() + 32 * warp, out.begin() + 32 * (warp + 1), 5) == 1);
    CHECK(std::count(out.begin() + 32 * warp, out.begin() + 32 * (warp + 1), 0) == 31);
  }
}

TEST_CASE("stmatrix of eight rows takes a wavefront with a swizzle, and eight without", "[hopper]") {
  if (!gpu::device().checked) return;
  gpu::EmulatorOptions options;
  options.count_requests = true;
  const gpu::EmulatorOptionsScope scope(options);
  gpu::DeviceBuffer<std::uint32_t> out_gmem(32, "out");
  for (const auto swizzle : {gpu::Swizzle::none, gpu::Swizzle::bytes_128}) {
    gpu::reset_counts();
    gpu::launch<SwizzledTile>(store_columns, {.grid = 1, .block = 32}, out_gmem.data(), swizzle);
    const auto counts = gpu::kernel_counts();
    REQUIRE(counts.size() == 1);
    CHECK(counts[0].shared_stores.bytes == 8 * 128);
    CHECK(counts[0].shared_stores.requests == 2);
    CHECK(counts[0].shared_stores.wavefronts == (swizzle == gpu::Swizzle::none ? 64 : 8));
    CHECK(counts[0].shared_stores.conflicts == (swizzle == gpu::Swizzle::none ? 56 : 0));
  }
}

TEST_CASE("stmatrix and elect used wrongly", "[hopper]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<std::uint32_t> out_gmem(std::vector<std::uint32_t>(32, 0), "out");
  std::string report = fault_of([&] { gpu::launch<Rows>(misaligned, {.grid = 1, .block = 32}, out_gmem.data()); });
  CHECK(names(report, at(kMisaligned)));
  CHECK_THAT(report, ContainsText("store_matrices<1>: row 3 of matrix 0"));
  CHECK_THAT(report, ContainsText("multiple of 16 bytes"));
  report = fault_of([&] { gpu::launch<Rows>(outside, {.grid = 1, .block = 32}, out_gmem.data()); });
  CHECK(names(report, at(kOutside)));
  CHECK_THAT(report, ContainsText("is not in this block's shared memory"));
  gpu::DeviceBuffer<int> flag_gmem(1, "flag");
  report = fault_of([&] { gpu::launch(half_elects, {.grid = 1, .block = 32}, flag_gmem.data()); });
  CHECK(names(report, at(kElectsAlone)));
  CHECK_THAT(report, ContainsText("elect_one"));
}

TEST_CASE("stmatrix races like an ordinary write of the lane that gives the address", "[hopper]") {
  gpu::DeviceBuffer<std::uint32_t> out_gmem(32, "out");
  const auto run = [&](bool barrier) {
    gpu::launch<Rows>(read_what_was_stored, {.grid = 1, .block = 32}, out_gmem.data(), barrier);
  };
  run(true);
  const auto out = out_gmem.download();
  // Row r of its matrix begins with the fragment of lane 4 (r mod 8).
  for (std::size_t i = 0; i < 32; ++i) CHECK(out[i] == (31 - i) % 8 * 4);
  if (!gpu::device().checked) return;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    gpu::EmulatorOptions options;
    options.schedule_seed = seed;
    const gpu::EmulatorOptionsScope scope(options);
    CAPTURE(seed);
    CHECK(report_of([&] { run(true); }) == "");
    if (seed > 2) continue;
    const std::string report = fault_of([&] { run(false); });
    CHECK(names(report, at(kStoresRow)));
    CHECK(names(report, at(kReadsRow)));
  }
  const std::string report =
      fault_of([&] { gpu::launch<Rows>(two_lanes_store_one_row, {.grid = 1, .block = 32}, out_gmem.data()); });
  CHECK(names(report, at(kSameRow)));
}

TEST_CASE("golden: rows that stmatrix wrote", "[golden]") {
  std::vector<std::uint16_t> all;
  for (const auto& rows : {stored<1>(), stored<2>(), stored<4>()}) all.insert(all.end(), rows.begin(), rows.end());
  CHECK(golden::difference("hopper_store_matrices", all) == "");
}
