// Atomics, and the order between blocks. Also holds on a GPU.

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "common/gpu/atomic.cuh"
#include "tests/common/gpu/launch_report.cuh"

namespace {

using namespace gpu_tests;

constexpr int kBlocks = 8, kThreads = 64, kAll = kBlocks * kThreads;

template <class T>
__global__ void add_numbers(T* sum_gmem) {
  atomicAdd(sum_gmem, static_cast<T>(blockIdx.x * blockDim.x + threadIdx.x));
}

template <class T>
void check_sum() {
  const T start = T(5);
  gpu::DeviceBuffer<T> sum_gmem(std::vector<T>{start}, "sum");
  gpu::launch(add_numbers<T>, {.grid = kBlocks, .block = kThreads}, sum_gmem.data());
  CHECK(sum_gmem.download()[0] == start + static_cast<T>(kAll * (kAll - 1) / 2));
}

__global__ void subtract_one(int* sum_gmem) { atomicAdd(sum_gmem, -1); }
__global__ void add_half(double* sum_gmem) { atomicAdd(sum_gmem, 0.5); }

__global__ void draw_tickets(unsigned* counter_gmem, unsigned* ticket_gmem) {
  ticket_gmem[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(counter_gmem, 1u);
}

template <class T>
__global__ void find_extremes(T* extremes_gmem) {
  // A permutation of 0 … 511, moved to both sides of zero for signed types.
  const int i = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) * 77u % 512u);
  const T value = static_cast<T>(T(-1) < T(0) ? i - 256 : i + 3);
  atomicMax(&extremes_gmem[0], value);
  atomicMin(&extremes_gmem[1], value);
}

template <class T>
__global__ void exchange_all(T* place_gmem, T* old_gmem) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  old_gmem[i] = atomicExch(place_gmem, static_cast<T>(i + 1));
}

/// Whatever the order, each value put in comes out once.
template <class T>
void check_exchange() {
  gpu::DeviceBuffer<T> place_gmem(std::vector<T>{T(0)}, "place"), old_gmem(kAll, "old");
  gpu::launch(exchange_all<T>, {.grid = kBlocks, .block = kThreads}, place_gmem.data(), old_gmem.data());
  std::vector<T> values = old_gmem.download();
  values.push_back(place_gmem.download()[0]);
  std::sort(values.begin(), values.end());
  std::vector<T> expected(kAll + 1);
  std::iota(expected.begin(), expected.end(), T(0));
  CHECK(values == expected);
}

template <class T>
struct Locked {
  T lock;
  volatile int count;
};

/// Each thread adds 1 under a lock. The loop goes on for a whole warp until the last of its lanes has been inside.
template <class T>
__global__ void count_under_lock(int* out_gmem, int rounds) {
  auto& shared = gpu::shared_memory<Locked<T>>();
  if (threadIdx.x == 0) {
    shared.lock = T(0);
    shared.count = 0;
  }
  __syncthreads();
  for (int round = 0; round < rounds; ++round) {
    bool done = false;
    while (!done) {
      if (atomicCAS(&shared.lock, T(0), T(1)) == T(0)) {
        __threadfence_block();
        shared.count = shared.count + 1;
        __threadfence_block();
        atomicExch(&shared.lock, T(0));
        done = true;
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) *out_gmem = shared.count;
}

template <class T>
void check_lock() {
  gpu::DeviceBuffer<int> out_gmem(1, "out");
  gpu::launch<Locked<T>>(count_under_lock<T>, {.grid = 1, .block = 96}, out_gmem.data(), 5);
  CHECK(out_gmem.download()[0] == 96 * 5);
}

struct Bins {
  unsigned count[8];
};

__global__ void histogram(unsigned* count_gmem) {
  auto& shared = gpu::shared_memory<Bins>();
  if (threadIdx.x < 8) shared.count[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&shared.count[threadIdx.x % 8], threadIdx.x);
  __syncthreads();
  if (threadIdx.x < 8) atomicAdd(&count_gmem[threadIdx.x], shared.count[threadIdx.x]);
}

/// Block b waits for block b − 1, and passes on 32 numbers, each plus 1, in ordinary memory.
__global__ void relay(unsigned* flag_gmem, int* data_gmem) {
  const int b = static_cast<int>(blockIdx.x), t = static_cast<int>(threadIdx.x);
  if (b > 0) {
    while (gpu::load_acquire(&flag_gmem[b - 1]) == 0) {
    }
  }
  __syncthreads();
  data_gmem[b * 32 + t] = (b > 0 ? data_gmem[(b - 1) * 32 + 31 - t] : t) + 1;
  __threadfence();
  __syncthreads();
  if (t == 0) gpu::store_release(&flag_gmem[b], 1u);
}

/// Every thread adds (1, 2, 4, 8) to four sums by one call, and 16 to the third of them by an ordinary atomic.
__global__ void add_four(float* sums_gmem) {
  gpu::atomic_add4(sums_gmem, make_float4(1, 2, 4, 8));
  atomicAdd(sums_gmem + 2, 16.0f);
}

}  // namespace

TEST_CASE("atomic_add4 adds to four floats, and loses nothing beside atomicAdd", "[vocabulary]") {
  gpu::DeviceBuffer<float> sums_gmem(std::vector<float>{0, 100, 0, 0, -1}, "sums");
  gpu::launch(add_four, {.grid = 20, .block = 70}, sums_gmem.data());
  CHECK(sums_gmem.download() == std::vector<float>{1400, 2900, 1400 * 20, 1400 * 8, -1});
}

TEST_CASE("atomicAdd sums exactly in every type", "[vocabulary]") {
  check_sum<int>();
  check_sum<unsigned>();
  check_sum<unsigned long long>();
  check_sum<float>();
  check_sum<double>();

  gpu::DeviceBuffer<int> int_gmem(std::vector<int>{100}, "sum");
  gpu::launch(subtract_one, {.grid = 4, .block = 50}, int_gmem.data());
  CHECK(int_gmem.download()[0] == -100);
  gpu::DeviceBuffer<double> double_gmem(std::vector<double>{0x1p40}, "sum");
  gpu::launch(add_half, {.grid = 1, .block = 3}, double_gmem.data());
  CHECK(double_gmem.download()[0] == 0x1p40 + 1.5);
}

TEST_CASE("atomicAdd returns each old value once", "[vocabulary]") {
  gpu::DeviceBuffer<unsigned> counter_gmem(std::vector<unsigned>{0}, "counter"), ticket_gmem(kAll, "tickets");
  gpu::launch(draw_tickets, {.grid = kBlocks, .block = kThreads}, counter_gmem.data(), ticket_gmem.data());
  auto tickets = ticket_gmem.download();
  std::sort(tickets.begin(), tickets.end());
  for (unsigned i = 0; i < kAll; ++i) CHECK(tickets[i] == i);
}

TEST_CASE("atomicMax and atomicMin find the extremes", "[vocabulary]") {
  gpu::DeviceBuffer<int> int_gmem(std::vector<int>{-1000, 1000}, "extremes");
  gpu::launch(find_extremes<int>, {.grid = kBlocks, .block = kThreads}, int_gmem.data());
  CHECK(int_gmem.download() == std::vector<int>{255, -256});
  gpu::DeviceBuffer<unsigned> unsigned_gmem(std::vector<unsigned>{0, 0x80000000u}, "extremes");
  gpu::launch(find_extremes<unsigned>, {.grid = kBlocks, .block = kThreads}, unsigned_gmem.data());
  CHECK(unsigned_gmem.download() == std::vector<unsigned>{514, 3});
}

TEST_CASE("atomicExch loses nothing", "[vocabulary]") {
  check_exchange<int>();
  check_exchange<unsigned>();
  check_exchange<float>();
}

TEST_CASE("a spin lock on atomicCAS lets one thread in at a time, under any schedule", "[vocabulary][lock]") {
  check_lock<int>();
  check_lock<unsigned>();
  if (!gpu::device().emulated) return;
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    CAPTURE(seed);
    gpu::EmulatorOptions options;
    options.schedule_seed = seed;
    const gpu::EmulatorOptionsScope scope(options);
    check_lock<int>();
  }
}

TEST_CASE("atomics work on shared memory", "[vocabulary]") {
  gpu::DeviceBuffer<unsigned> count_gmem(std::vector<unsigned>(8, 0), "counts");
  gpu::launch<Bins>(histogram, {.grid = 3, .block = 128}, count_gmem.data());
  const auto count = count_gmem.download();
  for (unsigned i = 0; i < 8; ++i) CHECK(count[i] == 3 * (16 * i + 8 * (15 * 16 / 2)));
}

TEST_CASE("a block waits for the block before it, and sees what it wrote", "[vocabulary]") {
  const int blocks = 60;
  const auto run = [&] {
    gpu::DeviceBuffer<unsigned> flag_gmem(std::vector<unsigned>(blocks, 0), "flags");
    gpu::DeviceBuffer<int> data_gmem(blocks * 32, "data");
    gpu::launch(relay, {.grid = blocks, .block = 32}, flag_gmem.data(), data_gmem.data());
    const auto data = data_gmem.download();
    int wrong = 0;
    for (int b = 0; b < blocks; ++b) {
      for (int t = 0; t < 32; ++t) wrong += data[static_cast<std::size_t>(b * 32 + t)] != (b % 2 ? 31 - t : t) + b + 1;
    }
    CHECK(wrong == 0);
  };
  run();
  if (!gpu::device().emulated) return;
  for (const std::uint64_t seed : {1, 2}) {
    CAPTURE(seed);
    gpu::EmulatorOptions options;
    options.schedule_seed = seed;
    const gpu::EmulatorOptionsScope scope(options);
    run();
  }
}
