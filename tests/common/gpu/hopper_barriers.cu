// Barriers for parts of a block, barriers in shared memory with their phases, and the barrier of a cluster, with what
// is reached through it: other blocks' shared memory.

#include <numeric>
#include <vector>

#include "common/gpu/atomic.cuh"
#include "common/gpu/cluster.cuh"
#include "common/gpu/mbarrier.cuh"
#include "common/gpu/named_barrier.cuh"
#include "tests/common/gpu/hopper_modes.hpp"

namespace {

using namespace gpu_tests;

constexpr std::uint64_t kSeeds = 20;

// ---- named barriers

constexpr int kFull = 1, kEmpty = 2;

struct HandOver {
  int value[128];
};

/// Who waits at the barrier that it only has to reach.
enum class Waits { nobody, consumers, all };

/// 128 threads hand values to 128 others, one buffer at a time: producers arrive where consumers wait, and the other way
/// round, unless `kWaits` says that they wait, too.
template <Waits kWaits>
__global__ void __launch_bounds__(256) hand_over(int rounds, int* sums_gmem) {  // [128]
  auto& shared = gpu::shared_memory<HandOver>();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 128) {
    for (int round = 0; round < rounds; ++round) {
      gpu::named_barrier_sync(kEmpty, 256);
      shared.value[thread] = 1000 * round + thread;
      if (kWaits == Waits::all) {
        gpu::named_barrier_sync(kFull, 256);
      } else {
        gpu::named_barrier_arrive(kFull, 256);
      }
    }
  } else {
    int sum = 0;
    for (int round = 0; round < rounds; ++round) {
      if (kWaits == Waits::nobody) {
        gpu::named_barrier_arrive(kEmpty, 256);
      } else {
        gpu::named_barrier_sync(kEmpty, 256);
      }
      gpu::named_barrier_sync(kFull, 256);
      sum += shared.value[255 - thread];
    }
    sums_gmem[thread - 128] = sum;
  }
}

template <Waits kWaits>
bool hand_over_is_right(int rounds) {
  gpu::DeviceBuffer<int> sums(128, "sums");
  gpu::launch<HandOver>(hand_over<kWaits>, {.grid = 1, .block = 256}, rounds, sums.data());
  const std::vector<int> got = sums.download();
  for (int i = 0; i < 128; ++i) {
    if (got[static_cast<std::size_t>(i)] != 1000 * (rounds * (rounds - 1) / 2) + rounds * (127 - i)) return false;
  }
  return true;
}

/// Two halves of a block, each with a barrier of its own.
__global__ void __launch_bounds__(128) two_halves(int* out_gmem) {  // [128]
  auto& shared = gpu::shared_memory<HandOver>();
  const int thread = static_cast<int>(threadIdx.x), half = thread / 64;
  for (int round = 0; round < 3 + 4 * half; ++round) {
    shared.value[thread] = round + thread;
    gpu::named_barrier_sync(3 + half, 64);
    out_gmem[thread] = shared.value[thread ^ 63];
    gpu::named_barrier_sync(3 + half, 64);
  }
}

// ---- barriers in shared memory

constexpr int kStages = 3;
constexpr int kProducers = 32, kConsumers = 64;

struct Ring {
  gpu::Mbarrier full[kStages], empty[kStages];
  int tile[kStages][kProducers];
};

/// One warp fills a ring of stages, two others empty it. sums[c] is the sum of one element of each tile.
__global__ void __launch_bounds__(kProducers + kConsumers) ring(int tiles, int* sums_gmem) {  // [kConsumers]
  auto& shared = gpu::shared_memory<Ring>();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      gpu::mbarrier_init(shared.full[stage], kProducers);
      gpu::mbarrier_init(shared.empty[stage], kConsumers);
    }
    gpu::mbarrier_init_fence();
  }
  __syncthreads();
  if (thread < kProducers) {
    for (int tile = 0; tile < tiles; ++tile) {
      const int stage = tile % kStages;
      const auto phase = static_cast<std::uint32_t>(tile / kStages % 2);
      gpu::mbarrier_wait(shared.empty[stage], phase ^ 1);
      shared.tile[stage][thread] = 100 * tile + thread;
      gpu::mbarrier_arrive(shared.full[stage]);
    }
  } else {
    const int consumer = thread - kProducers;
    int sum = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      const int stage = tile % kStages;
      const auto phase = static_cast<std::uint32_t>(tile / kStages % 2);
      gpu::mbarrier_wait(shared.full[stage], phase);
      sum += shared.tile[stage][consumer % kProducers];
      gpu::mbarrier_arrive(shared.empty[stage]);
    }
    sums_gmem[consumer] = sum;
  }
}

bool ring_is_right(int tiles) {
  gpu::DeviceBuffer<int> sums(kConsumers, "sums");
  gpu::launch<Ring>(ring, {.grid = 1, .block = kProducers + kConsumers}, tiles, sums.data());
  const std::vector<int> got = sums.download();
  for (int c = 0; c < kConsumers; ++c) {
    if (got[static_cast<std::size_t>(c)] != 100 * (tiles * (tiles - 1) / 2) + tiles * (c % kProducers)) return false;
  }
  return true;
}

// ---- clusters

struct Neighbours {
  gpu::Mbarrier all_here;
  int value[32];
  unsigned sum;
};

/// out[block]: the value of the next block of the cluster, then the sum that all blocks made in block 0's memory.
__global__ void __launch_bounds__(32) neighbours(int* out_gmem) {  // [blocks, 2]
  auto& shared = gpu::shared_memory<Neighbours>();
  const int thread = static_cast<int>(threadIdx.x);
  const std::uint32_t rank = gpu::cluster_rank(), blocks = gpu::cluster_blocks();
  shared.value[thread] = static_cast<int>(blockIdx.x) * 100 + thread;
  if (thread == 0) {
    shared.sum = 0;
    gpu::mbarrier_init(shared.all_here, blocks);
    gpu::mbarrier_init_fence();
  }
  gpu::cluster_sync();
  const int next = *gpu::in_block((rank + 1) % blocks, &shared.value[31 - thread]);
  if (thread == 0) {
    atomicAdd(gpu::in_block(0, &shared.sum), rank + 1);
    gpu::mbarrier_arrive_remote(shared.all_here, 0);
  }
  if (rank == 0) gpu::mbarrier_wait(shared.all_here, 0);
  if (thread == 5) out_gmem[2 * blockIdx.x] = next;
  if (rank == 0 && thread == 6) out_gmem[2 * blockIdx.x + 1] = static_cast<int>(shared.sum);
  gpu::cluster_arrive();
  if (rank != 0 && thread == 6) out_gmem[2 * blockIdx.x + 1] = -1;  // between the halves: nothing of the cluster
  gpu::cluster_wait();
}

bool neighbours_are_right(int clusters, int blocks) {
  gpu::DeviceBuffer<int> out(static_cast<std::size_t>(2 * clusters * blocks), "out");
  gpu::launch<Neighbours>(neighbours, {.grid = clusters * blocks, .block = 32, .cluster = blocks}, out.data());
  const std::vector<int> got = out.download();
  for (int block = 0; block < clusters * blocks; ++block) {
    const int rank = block % blocks, next = block - rank + (rank + 1) % blocks;
    const int sum = rank == 0 ? blocks * (blocks + 1) / 2 : -1;
    if (got[static_cast<std::size_t>(2 * block)] != next * 100 + 31 - 5) return false;
    if (got[static_cast<std::size_t>(2 * block + 1)] != sum) return false;
  }
  return true;
}

__global__ void ranks(int* rank_gmem) {  // [z, y, x]
  const int block = static_cast<int>((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
  rank_gmem[block] = static_cast<int>(gpu::cluster_rank());
}

/// A thread that has left no longer counts, whether it has arrived or not.
__global__ void some_leave(int* out_gmem) {  // [2, 64]
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= 32) {
    if (blockIdx.x == 1) gpu::cluster_arrive();
    return;
  }
  gpu::cluster_sync();
  out_gmem[blockIdx.x * 32 + threadIdx.x] = thread;
}

}  // namespace

// Left out of racecheck, by tag: where some threads only arrive, it reports the write of the next round as a race with
// the read of this one, even if both sides of the barrier between them wait (the second test). The third test, in which
// all threads wait everywhere, stays.
TEST_CASE("named barriers hand a buffer back and forth", "[hopper][arrive]") {
  in_all_modes(kSeeds, [] {
    CHECK(hand_over_is_right<Waits::nobody>(1));
    CHECK(hand_over_is_right<Waits::nobody>(5));
  });
}

TEST_CASE("named barriers hand a buffer over to threads that wait for the next one", "[hopper][arrive]") {
  in_all_modes(kSeeds, [] {
    CHECK(hand_over_is_right<Waits::consumers>(1));
    CHECK(hand_over_is_right<Waits::consumers>(5));
  });
}

TEST_CASE("named barriers hand a buffer over with all threads waiting at all of them", "[hopper]") {
  in_all_modes(kSeeds, [] {
    CHECK(hand_over_is_right<Waits::all>(1));
    CHECK(hand_over_is_right<Waits::all>(5));
  });
}

TEST_CASE("named barriers of two parts of a block know nothing of each other", "[hopper]") {
  in_all_modes(kSeeds, [] {
    gpu::DeviceBuffer<int> out(128, "out");
    gpu::launch<HandOver>(two_halves, {.grid = 1, .block = 128}, out.data());
    const std::vector<int> got = out.download();
    bool right = true;
    for (int t = 0; t < 128; ++t) right = right && got[static_cast<std::size_t>(t)] == (t < 64 ? 2 : 6) + (t ^ 63);
    CHECK(right);
  });
}

TEST_CASE("mbarriers go through their phases", "[hopper]") {
  in_all_modes(kSeeds, [] {
    for (const int tiles : {0, 1, 2, kStages, kStages + 1, 2 * kStages + 1}) CHECK(ring_is_right(tiles));
  });
}

TEST_CASE("a cluster's blocks see each other's shared memory", "[hopper]") {
  in_all_modes(kSeeds, [] {
    CHECK(neighbours_are_right(3, 4));
    CHECK(neighbours_are_right(2, 8));
    CHECK(neighbours_are_right(2, 1));
  });
}

TEST_CASE("ranks in a cluster count along x first", "[hopper]") {
  gpu::DeviceBuffer<int> rank(4 * 2 * 2, "rank");
  gpu::launch(ranks, {.grid = {4, 2, 2}, .block = 1, .cluster = {2, 2, 1}}, rank.data());
  CHECK(rank.download() == std::vector<int>{0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1, 2, 3, 2, 3});
}

TEST_CASE("threads that have left do not count at the cluster's barrier", "[hopper]") {
  in_all_modes(6, [] {
    gpu::DeviceBuffer<int> out(64, "out");
    gpu::launch(some_leave, {.grid = 2, .block = 64, .cluster = 2}, out.data());
    std::vector<int> wanted(32);
    std::iota(wanted.begin(), wanted.end(), 0);
    wanted.insert(wanted.end(), wanted.begin(), wanted.begin() + 32);
    CHECK(out.download() == wanted);
  });
}

TEST_CASE("a launch refuses a cluster that does not fit its grid", "[hopper]") {
  gpu::DeviceBuffer<int> rank(16, "rank");
  const auto refused = [&](gpu::Extent grid, gpu::Extent cluster) {
    return report_of([&] { gpu::launch(ranks, {.grid = grid, .block = 1, .cluster = cluster}, rank.data()); });
  };
  CHECK_THAT(refused(5, 2), ContainsText("grid.x is 5; allowed: multiples of the cluster's 2 blocks"));
  CHECK_THAT(refused(9, 9), ContainsText("the number of blocks in a cluster is 9"));
}
