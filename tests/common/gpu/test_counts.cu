// What the checking build counts by kernel: bytes, requests of warps, sectors of device memory, wavefronts and bank
// conflicts of shared memory, barriers.

#include <algorithm>
#include <array>

#include "common/gpu/async_copy.cuh"
#include "common/gpu/atomic.cuh"
#include "tests/common/gpu/launch_report.cuh"

namespace {

using namespace gpu_tests;
using gpu::GlobalAccesses;
using gpu::KernelCounts;
using gpu::SharedAccesses;

bool counts_here() { return gpu::device().checked; }

gpu::EmulatorOptions with_requests() {
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  return options;
}

/// The counts of one launch, which has to be one kernel's.
template <class Launch>
KernelCounts counts_of(Launch&& launch) {
  const gpu::EmulatorOptionsScope scope(with_requests());
  gpu::reset_counts();
  launch();
  const std::vector<KernelCounts> counts = gpu::kernel_counts();
  REQUIRE(counts.size() == 1);
  CHECK(counts[0].launches == 1);
  return counts[0];
}

void check(const GlobalAccesses& found, std::uint64_t bytes, std::uint64_t requests, std::uint64_t sectors) {
  CHECK(found.bytes == bytes);
  CHECK(found.requests == requests);
  CHECK(found.sectors == sectors);
}

void check(const SharedAccesses& found, std::uint64_t bytes, std::uint64_t requests, std::uint64_t wavefronts,
           std::uint64_t conflicts) {
  CHECK(found.bytes == bytes);
  CHECK(found.requests == requests);
  CHECK(found.wavefronts == wavefronts);
  CHECK(found.conflicts == conflicts);
}

/// 0, 1, 2, …
gpu::DeviceBuffer<float> numbers(int size) {
  std::vector<float> x(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>(i);
  return gpu::DeviceBuffer<float>(x, "x");
}

// ---- sectors

__global__ void gather(const float* x_gmem, float* y_gmem, int first, int stride) {
  const int t = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  y_gmem[t] = x_gmem[first + t * stride];
}

template <class Vector>
__global__ void copy_vectors(const Vector* x_gmem, Vector* y_gmem) {
  y_gmem[threadIdx.x] = x_gmem[threadIdx.x];
}

/// 8 bytes, but only aligned to 4: a GPU loads them as two words.
struct Pair {
  float a, b;
};

__global__ void copy_bytes(const unsigned char* x_gmem, unsigned char* y_gmem) {
  y_gmem[threadIdx.x] = x_gmem[threadIdx.x];
}

// ---- bank conflicts

template <int kFloats>
struct Floats {
  alignas(16) float value[kFloats];
};

__global__ void write_with_stride(int stride) {
  auto& shared = gpu::shared_memory<Floats<32 * 33>>();
  shared.value[static_cast<int>(threadIdx.x) * stride] = 1;
}

__global__ void read_one_word(float* out_gmem) {
  auto& shared = gpu::shared_memory<Floats<32>>();
  shared.value[threadIdx.x] = 1;
  __syncthreads();
  out_gmem[threadIdx.x] = shared.value[7];
}

/// Each lane reads the first four floats of a row of its own.
template <int kRowFloats>
__global__ void read_rows(float* out_gmem) {
  auto& shared = gpu::shared_memory<Floats<32 * kRowFloats>>();
  float4* row = reinterpret_cast<float4*>(&shared.value[static_cast<int>(threadIdx.x) * kRowFloats]);
  *row = make_float4(1, 2, 3, 4);
  const float4 x = *row;
  out_gmem[threadIdx.x] = x.x + x.w;
}

// ---- which accesses are one request

/// Lane t loads t mod 4 + 1 times, and once more after the barrier.
__global__ void leave_loop_early(const float* x_gmem, float* y_gmem) {
  const int t = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int i = 0; i <= t % 4; ++i) sum += x_gmem[i * 32 + t];
  __syncthreads();
  y_gmem[t] = sum + x_gmem[t];
}

enum class Meeting { barrier, syncwarp, shuffle };

/// Lane 5 leaves the first round's load out. Where the lanes meet in each round, the second round's is one request.
template <Meeting kMeeting>
__global__ void skip_first_load(const float* x_gmem, float* y_gmem, int rounds) {
  const int t = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int round = 0; round < rounds; ++round) {
    if (t != 5 || round > 0) sum += x_gmem[round * 32 + t];
    if (kMeeting == Meeting::barrier) __syncthreads();
    if (kMeeting == Meeting::syncwarp) __syncwarp();
    if (kMeeting == Meeting::shuffle) sum = __shfl_sync(gpu::kFullWarp, sum, t);
  }
  y_gmem[t] = sum;
}

/// Both halves of the warp do the same, but each meets only itself.
__global__ void halves_meet(const float* x_gmem, float* y_gmem, int rounds) {
  const int t = static_cast<int>(threadIdx.x);
  const unsigned half = t < 16 ? 0x0000ffffu : 0xffff0000u;
  float sum = 0;
  for (int round = 0; round < rounds; ++round) {
    sum += x_gmem[round * 32 + t];
    sum += __shfl_xor_sync(half, sum, 1);
  }
  y_gmem[t] = sum;
}

/// The first half meets three times between two loads, the second half not at all; then all meet.
__global__ void one_half_meets(const float* x_gmem, float* y_gmem) {
  const int t = static_cast<int>(threadIdx.x);
  float sum = x_gmem[t];
  if (t < 16) {
    for (int i = 0; i < 3; ++i) __syncwarp(0x0000ffffu);
  }
  __syncwarp();
  sum += x_gmem[32 + t];
  y_gmem[t] = sum;
}

__global__ void threads_below(const float* x_gmem, float* y_gmem, int limit) {
  const int t = static_cast<int>(threadIdx.x);
  if (t >= limit) return;
  y_gmem[t] = x_gmem[t];
}

/// Each lane gets through all its rounds before the next lane starts.
__global__ void run_ahead(const float* x_gmem, float* y_gmem, int rounds) {
  const int t = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int round = 0; round < rounds; ++round) sum += x_gmem[round % 4 * 32 + t];
  y_gmem[t] = sum;
}

// ---- the rest

__global__ void three_barriers(int* out_gmem) {
  for (int i = 0; i < 3; ++i) __syncthreads();
  if (threadIdx.x == 0) out_gmem[blockIdx.x] = 1;
}

struct Counter {
  int count;
};

__global__ void count_threads(int* count_gmem) {
  auto& shared = gpu::shared_memory<Counter>();
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  atomicAdd(&shared.count, 1);
  atomicAdd(count_gmem, 1);
}

__global__ void add_fours(float* sums_gmem) { gpu::atomic_add4(sums_gmem + 4 * threadIdx.x, make_float4(1, 2, 3, 4)); }

__global__ void copy_by_cp_async(const float4* x_gmem, float4* y_gmem) {
  auto& shared = gpu::shared_memory<Floats<128>>();
  float4* tile = reinterpret_cast<float4*>(shared.value);
  gpu::copy_async<16>(&tile[threadIdx.x], &x_gmem[threadIdx.x]);
  gpu::copy_async_commit();
  gpu::copy_async_wait<0>();
  y_gmem[threadIdx.x] = tile[threadIdx.x];
}

}  // namespace

TEST_CASE("Only the checking build counts by kernel", "[counts]") {
  gpu::reset_counts();
  CHECK(gpu::kernel_counts().empty());
  CHECK(ordinary_launch_works());
  CHECK(gpu::kernel_counts().size() == (counts_here() ? 1u : 0u));
  gpu::reset_counts();
  CHECK(gpu::kernel_counts().empty());
}

TEST_CASE("Requests are counted where they are asked for, bytes and barriers always", "[counts]") {
  if (!counts_here()) return;
  gpu::DeviceBuffer<float> out_gmem(32);
  gpu::reset_counts();
  gpu::launch<Floats<32>>(read_one_word, {.grid = 1, .block = 32}, out_gmem.data());
  const KernelCounts counts = gpu::kernel_counts().at(0);
  check(counts.global_stores, 128, 0, 0);
  check(counts.shared_loads, 128, 0, 0, 0);
  check(counts.shared_stores, 128, 0, 0, 0);
  CHECK(counts.barriers == 1);
}

TEST_CASE("Sectors of a warp's load, by where its lanes look", "[counts]") {
  if (!counts_here()) return;
  const auto x_gmem = numbers(1024);
  gpu::DeviceBuffer<float> y_gmem(32);
  struct Case {
    int first, stride;
    std::uint64_t sectors;
  };
  for (const Case& c : {Case{0, 1, 4}, Case{1, 1, 5}, Case{7, 1, 5}, Case{8, 1, 4}, Case{0, 2, 8}, Case{0, 7, 28},
                        Case{0, 8, 32}, Case{0, 32, 32}, Case{31, 0, 1}, Case{31, -1, 4}, Case{32, -1, 5}}) {
    CAPTURE(c.first, c.stride);
    const KernelCounts counts = counts_of(
        [&] { gpu::launch(gather, {.grid = 1, .block = 32}, x_gmem.data(), y_gmem.data(), c.first, c.stride); });
    check(counts.global_loads, 128, 1, c.sectors);
    check(counts.global_stores, 128, 1, 4);
    check(counts.shared_loads, 0, 0, 0, 0);
    check(counts.shared_stores, 0, 0, 0, 0);
  }
}

TEST_CASE("A vector of a lane is one request of the warp", "[counts]") {
  if (!counts_here()) return;
  const auto x_gmem = numbers(128);
  gpu::DeviceBuffer<float> y_gmem(128);
  const auto run = [&]<class Vector>(Vector) {
    return counts_of([&] {
      gpu::launch(copy_vectors<Vector>, {.grid = 1, .block = 32}, reinterpret_cast<const Vector*>(x_gmem.data()),
                  reinterpret_cast<Vector*>(y_gmem.data()));
    });
  };
  for (const KernelCounts& counts : {run(float4{}), run(int4{}), run(uint4{})}) {
    check(counts.global_loads, 512, 1, 16);
    check(counts.global_stores, 512, 1, 16);
  }
  for (const KernelCounts& counts : {run(float2{}), run(int2{}), run(uint2{}), run(double{})}) {
    check(counts.global_loads, 256, 1, 8);
    check(counts.global_stores, 256, 1, 8);
  }
  const KernelCounts pairs = run(Pair{});
  check(pairs.global_loads, 256, 2, 16);
  check(pairs.global_stores, 256, 2, 16);
  CHECK(y_gmem.download()[127] == 127.0f);
}

TEST_CASE("Bytes side by side share their sector", "[counts]") {
  if (!counts_here()) return;
  const gpu::DeviceBuffer<unsigned char> x_gmem(std::vector<unsigned char>(64, 3));
  gpu::DeviceBuffer<unsigned char> y_gmem(64);
  const KernelCounts counts =
      counts_of([&] { gpu::launch(copy_bytes, {.grid = 1, .block = 64}, x_gmem.data(), y_gmem.data()); });
  check(counts.global_loads, 64, 2, 2);
  check(counts.global_stores, 64, 2, 2);
}

TEST_CASE("Bank conflicts, by the stride between lanes", "[counts]") {
  if (!counts_here()) return;
  struct Case {
    int stride;
    std::uint64_t wavefronts;
  };
  for (const Case& c : {Case{1, 1}, Case{2, 2}, Case{4, 4}, Case{31, 1}, Case{32, 32}, Case{33, 1}}) {
    CAPTURE(c.stride);
    const KernelCounts counts =
        counts_of([&] { gpu::launch<Floats<32 * 33>>(write_with_stride, {.grid = 1, .block = 32}, c.stride); });
    check(counts.shared_stores, 128, 1, c.wavefronts, c.wavefronts - 1);
    check(counts.shared_loads, 0, 0, 0, 0);
  }
}

TEST_CASE("One word for all lanes is no conflict", "[counts]") {
  if (!counts_here()) return;
  gpu::DeviceBuffer<float> out_gmem(32);
  const KernelCounts counts =
      counts_of([&] { gpu::launch<Floats<32>>(read_one_word, {.grid = 1, .block = 32}, out_gmem.data()); });
  check(counts.shared_loads, 128, 1, 1, 0);
}

TEST_CASE("float4 rows conflict without padding and not with it", "[counts]") {
  if (!counts_here()) return;
  gpu::DeviceBuffer<float> out_gmem(32);
  const KernelCounts plain =
      counts_of([&] { gpu::launch<Floats<32 * 64>>(read_rows<64>, {.grid = 1, .block = 32}, out_gmem.data()); });
  check(plain.shared_stores, 512, 1, 32, 28);
  const KernelCounts padded =
      counts_of([&] { gpu::launch<Floats<32 * 68>>(read_rows<68>, {.grid = 1, .block = 32}, out_gmem.data()); });
  check(padded.shared_stores, 512, 1, 4, 0);
}

TEST_CASE("Kernels are counted apart, by name, in the order of their first launches", "[counts]") {
  if (!counts_here()) return;
  const auto x_gmem = numbers(64);
  gpu::DeviceBuffer<float> y_gmem(256);
  const gpu::EmulatorOptionsScope scope(with_requests());
  gpu::reset_counts();
  for (int i = 0; i < 3; ++i) {
    gpu::launch(gather, {.grid = 2, .block = 32}, x_gmem.data(), y_gmem.data(), 0, 1);
    gpu::launch<Floats<32 * 68>>(read_rows<68>, {.grid = 1, .block = 32}, y_gmem.data());
  }
  gpu::launch(skip_first_load<Meeting::syncwarp>, {.grid = 1, .block = 32}, x_gmem.data(), y_gmem.data(), 1);
  gpu::launch(copy_vectors<float4>, {.grid = 1, .block = 1}, reinterpret_cast<const float4*>(x_gmem.data()),
              reinterpret_cast<float4*>(y_gmem.data()));
  const std::vector<KernelCounts> counts = gpu::kernel_counts();
  REQUIRE(counts.size() == 4);
  CHECK(counts[0].kernel == "gather");
  CHECK(counts[0].launches == 3);
  CHECK(counts[0].blocks == 6);
  check(counts[0].global_loads, 6 * 128, 6, 24);
  check(counts[0].shared_stores, 0, 0, 0, 0);
  CHECK(counts[1].kernel == "read_rows<68>");
  CHECK(counts[1].launches == 3);
  CHECK(counts[1].blocks == 3);
  check(counts[1].global_loads, 0, 0, 0);
  check(counts[1].shared_stores, 3 * 512, 3, 12, 0);
  CHECK_THAT(counts[2].kernel, ContainsText("skip_first_load<"));
  CHECK(counts[3].kernel == "copy_vectors<float4>");

  const gpu::Counts all = gpu::counts().value();
  CHECK(all.launches == 8);
  CHECK(all.global_loaded == 6 * 128 + 31 * 4 + 16);
  CHECK(all.shared_stored == 3 * 512);
}

TEST_CASE("A lane that leaves a loop early, and what follows", "[counts]") {
  if (!counts_here()) return;
  const auto x_gmem = numbers(128);
  gpu::DeviceBuffer<float> y_gmem(32);
  const KernelCounts early =
      counts_of([&] { gpu::launch(leave_loop_early, {.grid = 1, .block = 32}, x_gmem.data(), y_gmem.data()); });
  check(early.global_loads, (8 * (1 + 2 + 3 + 4) + 32) * 4, 5, 20);
  CHECK(early.barriers == 1);
}

TEST_CASE("Lanes are in step again where they meet", "[counts]") {
  if (!counts_here()) return;
  const auto x_gmem = numbers(32 * 4);
  gpu::DeviceBuffer<float> y_gmem(32);
  // Any order of the threads is counted alike.
  const std::uint64_t seed = GENERATE(0, 1, 2, 3, 4);
  gpu::EmulatorOptions options;
  options.schedule_seed = seed;
  const gpu::EmulatorOptionsScope scope(options);
  CAPTURE(seed);
  for (const auto kernel :
       {skip_first_load<Meeting::barrier>, skip_first_load<Meeting::syncwarp>, skip_first_load<Meeting::shuffle>}) {
    const KernelCounts counts =
        counts_of([&] { gpu::launch(kernel, {.grid = 1, .block = 32}, x_gmem.data(), y_gmem.data(), 4); });
    check(counts.global_loads, (4 * 32 - 1) * 4, 4, 16);
    check(counts.global_stores, 128, 1, 4);
  }
  const KernelCounts halves =
      counts_of([&] { gpu::launch(halves_meet, {.grid = 1, .block = 32}, x_gmem.data(), y_gmem.data(), 4); });
  check(halves.global_loads, 4 * 128, 4, 16);
  check(halves.global_stores, 128, 1, 4);
  const KernelCounts half =
      counts_of([&] { gpu::launch(one_half_meets, {.grid = 1, .block = 32}, x_gmem.data(), y_gmem.data()); });
  check(half.global_loads, 2 * 128, 2, 8);
}

TEST_CASE("Warps that are not full, and threads that leave", "[counts]") {
  if (!counts_here()) return;
  const auto x_gmem = numbers(96);
  gpu::DeviceBuffer<float> y_gmem(96);
  const auto run = [&](int threads, int limit) {
    return counts_of(
               [&] { gpu::launch(threads_below, {.grid = 1, .block = threads}, x_gmem.data(), y_gmem.data(), limit); })
        .global_loads;
  };
  check(run(40, 96), 160, 2, 5);
  check(run(96, 20), 80, 1, 3);
  check(run(96, 33), 132, 2, 5);
  check(run(96, 0), 0, 0, 0);
}

TEST_CASE("Barriers are counted once a block", "[counts]") {
  if (!counts_here()) return;
  gpu::DeviceBuffer<int> out_gmem(5);
  const KernelCounts counts =
      counts_of([&] { gpu::launch(three_barriers, {.grid = 5, .block = 64}, out_gmem.data()); });
  CHECK(counts.kernel == "three_barriers");
  CHECK(counts.barriers == 15);
  CHECK(counts.blocks == 5);
}

TEST_CASE("An atomic is a load and a store", "[counts]") {
  if (!counts_here()) return;
  gpu::DeviceBuffer<int> count_gmem(std::vector<int>{0});
  const KernelCounts counts =
      counts_of([&] { gpu::launch<Counter>(count_threads, {.grid = 1, .block = 64}, count_gmem.data()); });
  check(counts.global_loads, 256, 2, 2);
  check(counts.global_stores, 256, 2, 2);
  check(counts.shared_loads, 256, 2, 2, 0);
  check(counts.shared_stores, 4 + 256, 3, 3, 0);

  gpu::DeviceBuffer<float> sums_gmem(std::vector<float>(128, 0.0f));
  const KernelCounts fours = counts_of([&] { gpu::launch(add_fours, {.grid = 1, .block = 32}, sums_gmem.data()); });
  check(fours.global_loads, 512, 1, 16);  // four floats a thread are one request
  check(fours.global_stores, 512, 1, 16);
}

TEST_CASE("An asynchronous copy loads and stores once, whenever it lands", "[counts]") {
  if (!counts_here()) return;
  const auto x_gmem = numbers(128);
  gpu::DeviceBuffer<float> y_gmem(128);
  for (const auto delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately}) {
    gpu::EmulatorOptions options;
    options.delivery = delivery;
    const gpu::EmulatorOptionsScope scope(options);
    const KernelCounts counts = counts_of([&] {
      gpu::launch<Floats<128>>(copy_by_cp_async, {.grid = 1, .block = 32},
                               reinterpret_cast<const float4*>(x_gmem.data()),
                               reinterpret_cast<float4*>(y_gmem.data()));
    });
    check(counts.global_loads, 512, 1, 16);
    check(counts.shared_stores, 512, 1, 4, 0);
    check(counts.shared_loads, 512, 1, 4, 0);
    check(counts.global_stores, 512, 1, 16);
  }
}

TEST_CASE("Lanes are matched over many rounds; beyond that bytes stay exact", "[counts]") {
  if (!counts_here()) return;
  const auto x_gmem = numbers(32 * 4);
  gpu::DeviceBuffer<float> y_gmem(32);
  const auto run = [&](int rounds) {
    return counts_of([&] { gpu::launch(run_ahead, {.grid = 1, .block = 32}, x_gmem.data(), y_gmem.data(), rounds); })
        .global_loads;
  };
  check(run(60000), 60000 * 128, 60000, 60000 * 4);
  const GlobalAccesses more = run(70000);
  CHECK(more.bytes == 70000 * 128);
  CHECK(more.requests > 70000);
}
