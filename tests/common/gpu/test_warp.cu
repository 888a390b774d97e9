// Shuffles, votes and __syncwarp, against what the CUDA C++ Programming Guide says of them. Also holds on a GPU.

#include <cstdint>

#include "common/gpu/uniform.cuh"
#include "tests/common/gpu/launch_report.cuh"

namespace {

using namespace gpu_tests;

enum class Shuffle { indexed, exclusive_or, down, up };

constexpr int kArguments = 32;

/// out_gmem[argument · 32 + lane]: what the lane gets.
template <class T>
__global__ void shuffle_all(T* out_gmem, Shuffle kind, int width) {
  const int lane = static_cast<int>(threadIdx.x);
  const T mine = static_cast<T>(lane * 1000 + 1);
  for (int argument = 0; argument < kArguments; ++argument) {
    T got = T(0);
    if (kind == Shuffle::indexed) {
      got = __shfl_sync(gpu::kFullWarp, mine, argument, width);
    } else if (kind == Shuffle::exclusive_or) {
      got = __shfl_xor_sync(gpu::kFullWarp, mine, argument, width);
    } else if (kind == Shuffle::down) {
      got = __shfl_down_sync(gpu::kFullWarp, mine, static_cast<unsigned>(argument), width);
    } else {
      got = __shfl_up_sync(gpu::kFullWarp, mine, static_cast<unsigned>(argument), width);
    }
    out_gmem[argument * 32 + lane] = got;
  }
}

/// The lane whose value arrives. A source outside the lane's section gives the lane its own value, except that a
/// butterfly reaches down into earlier sections.
int source_lane(Shuffle kind, int lane, int argument, int width) {
  const int first = lane / width * width, end = first + width;
  if (kind == Shuffle::indexed) return first + argument % width;
  if (kind == Shuffle::exclusive_or) return (lane ^ argument) < end ? (lane ^ argument) : lane;
  if (kind == Shuffle::down) return lane + argument < end ? lane + argument : lane;
  return lane - argument >= first ? lane - argument : lane;
}

template <class T>
int wrong_shuffles(Shuffle kind, int width) {
  gpu::DeviceBuffer<T> out_gmem(kArguments * 32, "out");
  gpu::launch(shuffle_all<T>, {.grid = 1, .block = 32}, out_gmem.data(), kind, width);
  const auto out = out_gmem.download();
  int wrong = 0;
  for (int i = 0; i < kArguments * 32; ++i) {
    wrong += out[static_cast<std::size_t>(i)] != static_cast<T>(source_lane(kind, i % 32, i / 32, width) * 1000 + 1);
  }
  return wrong;
}

__global__ void shuffle_wide_bits(unsigned long long* out_gmem) {
  out_gmem[threadIdx.x] = __shfl_xor_sync(gpu::kFullWarp, 0x0123456789abcdefULL + threadIdx.x, 31);
}

/// The two halves of a warp go different ways, each with its own mask, and meet again.
__global__ void halves(int* out_gmem) {
  int value = static_cast<int>(threadIdx.x);
  if (threadIdx.x < 16) {
    for (int i = 0; i < 3; ++i) value += __shfl_xor_sync(0x0000ffffu, value, 8);
  } else {
    value = __shfl_sync(0xffff0000u, value, 31);
  }
  out_gmem[threadIdx.x] = __shfl_xor_sync(gpu::kFullWarp, value, 16);
}

struct Votes {
  unsigned ballot;
  int any, all, none;
};

__global__ void vote(Votes* out_gmem, unsigned mask, unsigned yes) {
  const unsigned lane = threadIdx.x;
  if ((mask >> lane & 1u) == 0) return;
  // Any value but 0 counts as yes.
  const int predicate = (yes >> lane & 1u) ? static_cast<int>(lane) + 256 : 0;
  out_gmem[lane].ballot = __ballot_sync(mask, predicate);
  out_gmem[lane].any = __any_sync(mask, predicate) != 0;
  out_gmem[lane].all = __all_sync(mask, predicate) != 0;
  out_gmem[lane].none = __any_sync(mask, 0) != 0;
}

struct HandOver {
  int value[4][32];
};

/// Each lane reads what its neighbour in the mask's group of `group` lanes wrote.
__global__ void hand_over(int* out_gmem, int group) {
  auto& shared = gpu::shared_memory<HandOver>();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const unsigned all = group == 32 ? gpu::kFullWarp : (1u << group) - 1u;
  const unsigned mask = all << (lane / group * group);
  int value = static_cast<int>(threadIdx.x);
  for (int round = 0; round < 4; ++round) {
    shared.value[warp][lane] = value;
    __syncwarp(mask);
    value = shared.value[warp][lane / group * group + (lane + 1) % group];
    __syncwarp(mask);
  }
  out_gmem[threadIdx.x] = value;
}

/// Each thread's lane, and what its warp's first lane has: number of the warp times 100.
__global__ void lanes_kernel(int* lanes, int* of_warps) {
  const int thread = static_cast<int>(threadIdx.x);
  lanes[thread] = gpu::lane();
  of_warps[thread] = gpu::warp_uniform(thread / gpu::kWarpSize * 100 + gpu::lane());
}

}  // namespace

TEST_CASE("lanes have numbers, and a warp has one in common", "[vocabulary]") {
  constexpr int kThreads = 96;
  gpu::DeviceBuffer<int> lanes(kThreads), of_warps(kThreads);
  gpu::launch(lanes_kernel, {.grid = 1, .block = kThreads}, lanes.data(), of_warps.data());
  const std::vector<int> lane = lanes.download(), of_warp = of_warps.download();
  for (int thread = 0; thread < kThreads; ++thread) {
    INFO("thread " << thread);
    CHECK(lane[static_cast<std::size_t>(thread)] == thread % 32);
    CHECK(of_warp[static_cast<std::size_t>(thread)] == thread / 32 * 100);
  }
}

TEST_CASE("shuffles of every kind, width and type", "[vocabulary]") {
  const Shuffle kind = GENERATE(Shuffle::indexed, Shuffle::exclusive_or, Shuffle::down, Shuffle::up);
  const int width = GENERATE(32, 16, 8);
  CAPTURE(static_cast<int>(kind), width);
  CHECK(wrong_shuffles<int>(kind, width) == 0);
  CHECK(wrong_shuffles<unsigned>(kind, width) == 0);
  CHECK(wrong_shuffles<float>(kind, width) == 0);
  CHECK(wrong_shuffles<double>(kind, width) == 0);
  CHECK(wrong_shuffles<long long>(kind, width) == 0);
}

TEST_CASE("a shuffle moves all 8 bytes", "[vocabulary]") {
  gpu::DeviceBuffer<unsigned long long> out_gmem(32, "out");
  gpu::launch(shuffle_wide_bits, {.grid = 1, .block = 32}, out_gmem.data());
  const auto out = out_gmem.download();
  for (std::size_t i = 0; i < 32; ++i) CHECK(out[i] == 0x0123456789abcdefULL + 31 - i);
}

TEST_CASE("parts of a warp shuffle by themselves, and meet again", "[vocabulary]") {
  gpu::DeviceBuffer<int> out_gmem(32, "out");
  gpu::launch(halves, {.grid = 1, .block = 32}, out_gmem.data());
  const auto out = out_gmem.download();
  for (int i = 0; i < 16; ++i) {
    CHECK(out[static_cast<std::size_t>(i)] == 31);
    CHECK(out[static_cast<std::size_t>(i + 16)] == 4 * (i + (i ^ 8)));
  }
}

TEST_CASE("votes count the lanes in the mask", "[vocabulary]") {
  const unsigned mask = GENERATE(gpu::kFullWarp, 0x0000ffffu, 0xff00ff00u, 0x80000001u, 0x00000010u);
  const unsigned yes = GENERATE(0u, 0xffffffffu, 0x55555555u, 0x0f0f0f0fu, 0x00000010u);
  CAPTURE(mask, yes);
  gpu::DeviceBuffer<Votes> out_gmem(32, "out");
  gpu::launch(vote, {.grid = 1, .block = 32}, out_gmem.data(), mask, yes);
  const auto out = out_gmem.download();
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) == 0) continue;
    CHECK(out[lane].ballot == (mask & yes));
    CHECK(out[lane].any == ((mask & yes) != 0));
    CHECK(out[lane].all == ((mask & yes) == mask));
    CHECK(out[lane].none == 0);
  }
}

TEST_CASE("__syncwarp hands shared memory from lane to lane", "[vocabulary]") {
  const int group = GENERATE(32, 16, 4);
  CAPTURE(group);
  gpu::DeviceBuffer<int> out_gmem(128, "out");
  gpu::launch<HandOver>(hand_over, {.grid = 1, .block = 128}, out_gmem.data(), group);
  const auto out = out_gmem.download();
  for (int i = 0; i < 128; ++i) CHECK(out[static_cast<std::size_t>(i)] == i / group * group + (i + 4) % group);
}
