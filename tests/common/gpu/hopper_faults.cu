// Asynchronous kernels with one mistake each, and what the emulator says to it. On a GPU they would hang, or be right
// by luck, so they run on the emulator only.

#include <cstdint>
#include <span>
#include <vector>

#include "common/gpu/barrier.cuh"
#include "common/gpu/cluster.cuh"
#include "common/gpu/dependent_launch.cuh"
#include "common/gpu/mbarrier.cuh"
#include "common/gpu/named_barrier.cuh"
#include "common/gpu/register_budget.cuh"
#include "common/gpu/tma.cuh"
#include "common/gpu/wgmma.cuh"
#include "tests/common/gpu/hopper_modes.hpp"

namespace {

using namespace gpu_tests;

std::string at(const std::string& mark) { return marked_line(__FILE__, mark); }

// ---- a load by TMA

constexpr int kBoxBytes = 2048;  // of floats: 16 rows of 32

struct Loaded {
  alignas(128) float tile[512];
  gpu::Mbarrier full;
};

enum class LoadMistake {
  none,
  no_wait,
  too_few_bytes,
  too_many_bytes,
  too_many_arrivals_expected,
  wrong_parity,
  no_init_fence,
  no_init,
  two_inits,
  written_over,
  late_init_fence,
  one_arrival_too_many,
  nobody_waits,
};

template <LoadMistake kMistake>
__global__ void __launch_bounds__(64) load(const __grid_constant__ gpu::TensorMap map, float* out_gmem) {  // [64]
  auto& shared = gpu::shared_memory<Loaded>();
  const int thread = static_cast<int>(threadIdx.x);
  constexpr bool kAll = kMistake == LoadMistake::too_many_arrivals_expected;
  if (thread == 0) {
    if (kMistake != LoadMistake::no_init) gpu::mbarrier_init(shared.full, kAll ? 32 : 1);
    if (kMistake == LoadMistake::two_inits) gpu::mbarrier_init(shared.full, 1);  // second init
    if (kMistake != LoadMistake::no_init_fence && kMistake != LoadMistake::late_init_fence) {
      gpu::mbarrier_init_fence();
    }
  }
  __syncthreads();
  if (kMistake == LoadMistake::late_init_fence && thread == 0) gpu::mbarrier_init_fence();
  if (thread == 32) {
    constexpr std::uint32_t kBytes = kMistake == LoadMistake::too_few_bytes    ? kBoxBytes / 2
                                     : kMistake == LoadMistake::too_many_bytes ? 2 * kBoxBytes
                                                                               : kBoxBytes;
    gpu::mbarrier_arrive_expect_bytes(shared.full, kBytes);
    if (kMistake == LoadMistake::one_arrival_too_many) gpu::mbarrier_arrive(shared.full);  // arrives twice
    if (kMistake == LoadMistake::written_over) shared.full.word = 1;
    gpu::tma_load(shared.tile, map, shared.full, 0, 0);  // the load
  }
  if (kMistake == LoadMistake::nobody_waits) return;
  if (kMistake != LoadMistake::no_wait) {
    gpu::mbarrier_wait(shared.full, kMistake == LoadMistake::wrong_parity ? 1 : 0);
  }
  out_gmem[thread] = shared.tile[thread];  // reads the tile
  if (kMistake == LoadMistake::no_wait || kMistake == LoadMistake::wrong_parity) gpu::mbarrier_wait(shared.full, 0);
}

gpu::TensorMap map_of_floats(void* base, std::uint64_t rows = 16) {
  return gpu::make_tensor_map(
      {.element = gpu::TensorElement::fp32, .base = base, .sizes = {32, rows}, .stride_bytes = {128}, .box = {32, 16}});
}

template <LoadMistake kMistake>
void run_load() {
  const std::vector<float> x(512, 1.5f);
  gpu::DeviceBuffer<float> x_gmem(std::span<const float>(x), "x"), out_gmem(64, "out");
  gpu::launch<Loaded>(load<kMistake>, {.grid = 1, .block = 64}, map_of_floats(x_gmem.data()), out_gmem.data());
  if (out_gmem.download() != std::vector<float>(64, 1.5f)) throw gpu::Error("a wrong result");
}

// ---- a ring of one stage whose consumers are two warps

struct OneStage {
  gpu::Mbarrier full, empty;
  int tile[32];
};

/// \param arrivals of the consumers that the barrier expects; only the first warp arrives where they are 32
/// \param first_parity that the producer waits for before its first tile
__global__ void __launch_bounds__(96) one_stage(int tiles, std::uint32_t arrivals, std::uint32_t first_parity,
                                                int* sums_gmem) {  // [64]
  auto& shared = gpu::shared_memory<OneStage>();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    gpu::mbarrier_init(shared.full, 32);
    gpu::mbarrier_init(shared.empty, arrivals);
    gpu::mbarrier_init_fence();
  }
  __syncthreads();
  int sum = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    const std::uint32_t phase = static_cast<std::uint32_t>(tile) & 1;
    if (thread < 32) {
      gpu::mbarrier_wait(shared.empty, phase ^ first_parity);
      shared.tile[thread] = 100 * tile + thread;  // the producer writes
      gpu::mbarrier_arrive(shared.full);
    } else {
      gpu::mbarrier_wait(shared.full, phase);
      sum += shared.tile[thread % 32];  // the consumers read
      if (thread < 32 + static_cast<int>(arrivals)) gpu::mbarrier_arrive(shared.empty);
    }
  }
  if (thread >= 32) sums_gmem[thread - 32] = sum;
}

void run_one_stage(std::uint32_t arrivals, std::uint32_t first_parity) {
  constexpr int kTiles = 5;
  gpu::DeviceBuffer<int> sums(64, "sums");
  gpu::launch<OneStage>(one_stage, {.grid = 1, .block = 96}, kTiles, arrivals, first_parity, sums.data());
  const std::vector<int> got = sums.download();
  for (int i = 0; i < 64; ++i) {
    if (got[static_cast<std::size_t>(i)] != 1000 + kTiles * (i % 32)) throw gpu::Error("a wrong result");
  }
}

// ---- stores by TMA

struct Stored {
  alignas(128) float tile[512];
};

enum class StoreMistake {
  none,
  no_fence,
  fence_before_the_write,
  fence_by_the_wrong_thread,
  no_commit,
  no_wait,
  overwritten_early,
  read_too_early
};

template <StoreMistake kMistake>
__global__ void __launch_bounds__(64) store(const __grid_constant__ gpu::TensorMap map, float* y_gmem,
                                            float* out_gmem) {  // [64]
  auto& shared = gpu::shared_memory<Stored>();
  const int thread = static_cast<int>(threadIdx.x);
  if (kMistake == StoreMistake::fence_before_the_write) gpu::async_proxy_fence();
  for (int i = thread; i < 512; i += 64) shared.tile[i] = static_cast<float>(i);  // fills the tile
  constexpr bool kFence = kMistake != StoreMistake::no_fence && kMistake != StoreMistake::fence_before_the_write &&
                          kMistake != StoreMistake::fence_by_the_wrong_thread;
  if (kFence) gpu::async_proxy_fence();
  __syncthreads();
  if (thread == 0) {
    if (kMistake == StoreMistake::fence_by_the_wrong_thread) gpu::async_proxy_fence();
    gpu::tma_store(map, shared.tile, 0, 0);  // the store
    if (kMistake != StoreMistake::no_commit) gpu::tma_store_commit();
    if (kMistake == StoreMistake::overwritten_early) shared.tile[3] = 0;  // writes early
    if (kMistake == StoreMistake::read_too_early) {
      gpu::tma_store_wait_read<0>();
      out_gmem[0] = y_gmem[5];  // reads early
    }
    if (kMistake != StoreMistake::no_wait) gpu::tma_store_wait<0>();
  }
}

template <StoreMistake kMistake>
void run_store() {
  gpu::DeviceBuffer<float> y_gmem(512, "y"), out_gmem(64, "out");
  gpu::launch<Stored>(store<kMistake>, {.grid = 1, .block = 64}, map_of_floats(y_gmem.data()), y_gmem.data(),
                      out_gmem.data());
  const std::vector<float> y = y_gmem.download();
  for (int i = 0; i < 512; ++i) {
    if (y[static_cast<std::size_t>(i)] != static_cast<float>(i)) throw gpu::Error("a wrong result");
  }
}

/// Writes device memory with ordinary stores and has TMA load it.
__global__ void __launch_bounds__(64)
    through_device_memory(const __grid_constant__ gpu::TensorMap map, float* x_gmem, float* out_gmem) {
  auto& shared = gpu::shared_memory<Loaded>();
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < 512; i += 64) x_gmem[i] = 1;  // writes device memory
  if (thread == 0) {
    gpu::mbarrier_init(shared.full, 1);
    gpu::mbarrier_init_fence();
  }
  gpu::async_proxy_fence();
  __syncthreads();
  if (thread == 0) {
    gpu::mbarrier_arrive_expect_bytes(shared.full, kBoxBytes);
    gpu::tma_load(shared.tile, map, shared.full, 0, 0);  // loads what was written
  }
  gpu::mbarrier_wait(shared.full, 0);
  out_gmem[thread] = shared.tile[thread];
}

// ---- products

struct Operands {
  alignas(1024) gpu::bf16 a[64 * 64], b[64 * 64];
};

enum class ProductMistake {
  none,
  no_fence,
  second_without_fence,
  no_wait,
  read_early,
  d_written_early,
  a_written_early,
  no_commit,
  no_proxy_fence,
  memory_written_early,
  one_warp_missing,
  warps_disagree,
  descriptor_inside_a_row,
  wrong_shape_under_way,
};

template <ProductMistake kMistake>
__global__ void __launch_bounds__(128) product(float* out_gmem) {  // [128]
  auto& shared = gpu::shared_memory<Operands>();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  for (int i = thread; i < 64 * 64; i += 128) {
    shared.a[i] = gpu::from_float<gpu::bf16>(1);  // fills A
    shared.b[i] = gpu::from_float<gpu::bf16>(static_cast<float>(i / 64 % 2));
  }
  if (kMistake != ProductMistake::no_proxy_fence) gpu::async_proxy_fence();
  __syncthreads();
  const gpu::bf16* a_start = shared.a + (kMistake == ProductMistake::descriptor_inside_a_row ? 8 : 0);
  if (kMistake == ProductMistake::warps_disagree && warp == 3) a_start += 16;
  const auto a = gpu::matrix_descriptor(a_start, gpu::Swizzle::bytes_128, 0, 1024);
  const auto b = gpu::matrix_descriptor(shared.b, gpu::Swizzle::bytes_128, 0, 1024);
  float d[32];
  std::uint32_t registers[4];
#pragma unroll
  for (int i = 0; i < 32; ++i) d[i] = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) registers[i] = gpu::pack<gpu::bf16>(1, 1);
  if (kMistake != ProductMistake::no_fence) gpu::wgmma_fence();
  const bool takes_part = kMistake != ProductMistake::one_warp_missing || warp != 2;
  if (takes_part) gpu::wgmma<gpu::bf16, 64>(d, a, b, true);                                           // the product
  if (kMistake == ProductMistake::a_written_early) gpu::wgmma<gpu::bf16, 64>(d, registers, b, true);  // product with a
  if (kMistake == ProductMistake::wrong_shape_under_way) {
    float(&half)[16] = reinterpret_cast<float(&)[16]>(d);
    gpu::wgmma<gpu::bf16, 32>(half, a, b, true);  // another shape
  }
  if (kMistake == ProductMistake::memory_written_early) shared.b[thread] = gpu::from_float<gpu::bf16>(7);  // too early
  if (kMistake == ProductMistake::no_commit) return;
  gpu::wgmma_commit();
  if (kMistake == ProductMistake::d_written_early) d[5] *= 2;           // touches d
  if (kMistake == ProductMistake::a_written_early) registers[1] = 0;    // touches a
  if (kMistake == ProductMistake::read_early) out_gmem[thread] = d[0];  // reads d
  if (kMistake == ProductMistake::no_wait) return;
  gpu::wgmma_wait<0>();  // the wait
  if (kMistake == ProductMistake::second_without_fence) {
    for (int i = 0; i < 32; ++i) d[i] *= 2;
    gpu::wgmma<gpu::bf16, 64>(d, a, b, true);  // second product
    gpu::wgmma_commit();
    gpu::wgmma_wait<0>();
  }
  out_gmem[thread] = d[0] + d[1];
}

template <ProductMistake kMistake>
void run_product() {
  gpu::DeviceBuffer<float> out_gmem(128, "out");
  gpu::launch<Operands>(product<kMistake>, {.grid = 1, .block = 128}, out_gmem.data());
  if (out_gmem.download() != std::vector<float>(128, 16.0f)) throw gpu::Error("a wrong result");
}

__global__ void product_of_half_a_warpgroup() {
  auto& shared = gpu::shared_memory<Operands>();
  const auto a = gpu::matrix_descriptor(shared.a, gpu::Swizzle::bytes_128, 0, 1024);
  float d[4] = {0, 0, 0, 0};
  gpu::wgmma_fence();
  gpu::wgmma<gpu::bf16, 8>(d, a, a, true);
}

// ---- barriers of a part of the block

struct Handed {
  int value[128];
};

/// 128 threads arrive, 128 others wait for them.
__global__ void __launch_bounds__(256) hand_over(int arriver_count, int waiter_count, int* out_gmem) {  // [128]
  auto& shared = gpu::shared_memory<Handed>();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 128) {
    shared.value[thread] = thread;  // producers write
    gpu::named_barrier_arrive(1, arriver_count);
  } else if (thread < 256) {
    gpu::named_barrier_sync(1, waiter_count);             // consumers wait
    out_gmem[thread - 128] = shared.value[255 - thread];  // consumers read
  }
}

void run_hand_over(int arriver_count, int waiter_count) {
  gpu::DeviceBuffer<int> out(128, "out");
  gpu::launch<Handed>(hand_over, {.grid = 1, .block = 256}, arriver_count, waiter_count, out.data());
  for (int i = 0; i < 128; ++i) {
    if (out.download()[static_cast<std::size_t>(i)] != 127 - i) throw gpu::Error("a wrong result");
  }
}

/// What `id`, `threads` and whoever `takes_part` of two warps make of a barrier.
enum class Part { all, one_lane_each, first_warp, first_warp_twice };
template <Part kPart>
__global__ void __launch_bounds__(64) barrier_of(int id, int threads) {
  const int thread = static_cast<int>(threadIdx.x);
  if (kPart == Part::one_lane_each && thread % 32 != 0) return;
  if ((kPart == Part::first_warp || kPart == Part::first_warp_twice) && thread >= 32) return;
  gpu::named_barrier_arrive(id, threads);
  if (kPart == Part::first_warp_twice) gpu::named_barrier_arrive(id, threads);  // comes again
}

template <Part kPart>
std::string barrier_report(int id, int threads) {
  return fault_of([&] { gpu::launch(barrier_of<kPart>, {.grid = 1, .block = 64}, id, threads); });
}

// ---- clusters

struct Word {
  gpu::Mbarrier barrier, never_initialised;
  int value;
};

enum class ClusterMistake {
  none,
  no_sync_before,
  no_sync_after,
  arrives_twice,
  waits_without_arriving,
  one_thread_missing,
  no_such_block,
  arrives_at_no_barrier,
  no_init_fence,
};

template <ClusterMistake kMistake>
__global__ void __launch_bounds__(32) cluster(int* out_gmem) {  // [blocks]
  auto& shared = gpu::shared_memory<Word>();
  const int thread = static_cast<int>(threadIdx.x);
  const std::uint32_t rank = gpu::cluster_rank();
  if (thread == 0) {
    shared.value = static_cast<int>(rank);
    gpu::mbarrier_init(shared.barrier, 2);
    if (kMistake != ClusterMistake::no_init_fence) gpu::mbarrier_init_fence();
  }
  if (kMistake == ClusterMistake::arrives_twice) gpu::cluster_arrive();
  if (kMistake == ClusterMistake::waits_without_arriving) gpu::cluster_wait();  // only waits
  const bool comes = kMistake != ClusterMistake::one_thread_missing || rank != 1 || thread != 7;
  if (kMistake == ClusterMistake::one_thread_missing && !comes) gpu::mbarrier_wait(shared.barrier, 0);
  if (kMistake != ClusterMistake::no_sync_before && comes) gpu::cluster_sync();  // the first sync
  const std::uint32_t other = kMistake == ClusterMistake::no_such_block ? 2 : 1 - rank;
  const int value = *gpu::in_block(other, &shared.value);  // looks over
  if (thread == 0) {
    gpu::mbarrier_arrive_remote(shared.barrier, rank);
    gpu::mbarrier_arrive_remote(shared.barrier, 1 - rank);  // arrives over there
    out_gmem[blockIdx.x] = value;
  }
  if (kMistake == ClusterMistake::arrives_at_no_barrier && thread == 1) {
    gpu::mbarrier_arrive_remote(shared.never_initialised, 1 - rank);  // no barrier there
  }
  if (kMistake != ClusterMistake::no_sync_after) gpu::cluster_sync();
}

template <ClusterMistake kMistake>
void run_cluster() {
  gpu::DeviceBuffer<int> out(2, "out");
  gpu::launch<Word>(cluster<kMistake>, {.grid = 2, .block = 32, .cluster = 2}, out.data());
  if (out.download() != std::vector<int>{1, 0}) throw gpu::Error("a wrong result");
}

struct Plain {
  int value;
};

/// Block 1 reads block 0's memory, late.
__global__ void late_visit(int* out_gmem) {
  auto& shared = gpu::shared_memory<Plain>();
  shared.value = 5;
  gpu::cluster_sync();
  if (gpu::cluster_rank() == 0) return;
  for (int i = 0; i < 100; ++i) __syncwarp(1);
  out_gmem[0] = *gpu::in_block(0, &shared.value);  // visits late
}

// ---- registers

__global__ void __launch_bounds__(384, 1) registers(int mistake) {
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    if (mistake != 1) gpu::release_registers<24>();
    if (mistake == 4) gpu::release_registers<32>();
  } else if (mistake == 2 && threadIdx.x / 32 == 5) {
    gpu::take_registers<232>();  // another number
  } else if (mistake != 3 || threadIdx.x / 32 != 5) {
    gpu::take_registers<240>();  // takes registers
  }
}

std::string register_report(int mistake) {
  return report_of([&] { gpu::launch(registers, {.grid = 1, .block = 384}, mistake); });
}

// ---- kernels that overlap

__global__ void writes(int* x_gmem) {
  gpu::let_next_kernel_start();
  x_gmem[threadIdx.x] = 7;  // the first kernel writes
}

/// \param who waits: nobody, all threads, or one and a barrier
__global__ void reads(const int* x_gmem, const int* w_gmem, int* y_gmem, int who) {
  const int weight = w_gmem[threadIdx.x];  // of neither kernel
  if (who == 1 || (who == 2 && threadIdx.x == 0)) gpu::wait_for_previous_kernel();
  __syncthreads();
  y_gmem[threadIdx.x] = weight * x_gmem[threadIdx.x];  // the second kernel reads
}

std::string overlap_report(int who, bool overlaps, bool host_waits) {
  const std::vector<int> three(64, 3);
  gpu::DeviceBuffer<int> x(64, "x"), w(std::span<const int>(three), "w"), y(64, "y");
  return report_of([&] {
    gpu::launch(writes, {.grid = 1, .block = 64}, x.data());
    if (host_waits) gpu::synchronize();
    gpu::launch(reads, {.grid = 1, .block = 64, .overlaps_previous = overlaps}, x.data(), w.data(), y.data(), who);
    if (y.download() != std::vector<int>(64, 21)) throw gpu::Error("a wrong result");
  });
}

}  // namespace

TEST_CASE("the kernels of this file without their mistakes", "[hopper][faults]") {
  in_all_modes(6, [] {
    CHECK(report_of(run_load<LoadMistake::none>) == "");
    CHECK(report_of([] { run_one_stage(64, 1); }) == "");
    CHECK(report_of(run_store<StoreMistake::none>) == "");
    CHECK(report_of(run_product<ProductMistake::none>) == "");
    CHECK(report_of([] { run_hand_over(256, 256); }) == "");
    CHECK(report_of(run_cluster<ClusterMistake::none>) == "");
    CHECK(overlap_report(1, true, false) == "");
    CHECK(overlap_report(2, true, false) == "");
  });
  CHECK(register_report(0) == "");
}

TEST_CASE("a tile read before anybody waited for it", "[hopper][faults]") {
  if (!gpu::device().emulated) return;
  const std::string report = report_in_some_mode(run_load<LoadMistake::no_wait>);
  if (!gpu::device().checked) {
    CHECK(report == "a wrong result");
    return;
  }
  CHECK_THAT(report, ContainsText("race on shared memory"));
  CHECK_THAT(report, ContainsText("the tma_load"));
  CHECK(names(report, at("the load")));
  CHECK(names(report, at("reads the tile")));
  const std::string parity = report_in_some_mode(run_load<LoadMistake::wrong_parity>);
  CHECK(names(parity, at("reads the tile")));
}

TEST_CASE("bytes that were not announced, or did not come", "[hopper][faults][C43]") {
  if (!gpu::device().emulated) return;
  const std::string few = report_in_some_mode(run_load<LoadMistake::too_few_bytes>);
  CHECK_THAT(few, ContainsText("1024 bytes more have arrived at the mbarrier at offset 2048"));
  CHECK(names(few, at("the load")));
  const std::string many = report_in_some_mode(run_load<LoadMistake::too_many_bytes>);
  CHECK_THAT(many, ContainsText("deadlock in block (0,0,0)"));
  CHECK_THAT(many, ContainsText("for the end of phase 0: the mbarrier at offset 2048"));
  CHECK_THAT(many, ContainsText("in phase 0, 2048 announced bytes are missing"));
}

TEST_CASE("numbers of arrivals and parities that do not fit", "[hopper][faults][C43]") {
  if (!gpu::device().emulated) return;
  CHECK_THAT(report_in_some_mode(run_load<LoadMistake::too_many_arrivals_expected>),
             ContainsText("31 of 32 arrivals are missing"));
  const std::string twice = report_in_some_mode(run_load<LoadMistake::one_arrival_too_many>);
  CHECK_THAT(twice, ContainsText("more arrivals than the 1 that the mbarrier at offset 2048"));
  CHECK(names(twice, at("arrives twice")));
  // The first wait for an empty stage has to pass: nobody has used it.
  CHECK_THAT(report_in_some_mode([] { run_one_stage(64, 0); }), ContainsText("64 of 64 arrivals are missing"));
  CHECK_THAT(report_in_some_mode([] { run_one_stage(65, 1); }), ContainsText("1 of 65 arrivals are missing"));
}

TEST_CASE("a stage released while others still read it", "[hopper][faults]") {
  if (!gpu::device().emulated) return;
  const std::string report = report_in_some_mode([] { run_one_stage(32, 1); });
  if (gpu::device().checked) {
    CHECK(names(report, at("the producer writes")));
    CHECK(names(report, at("the consumers read")));
  }
}

TEST_CASE("barriers that are no barriers", "[hopper][faults]") {
  if (!gpu::device().emulated) return;
  CHECK_THAT(fault_of(run_load<LoadMistake::no_init>), ContainsText("was never initialised"));
  const std::string again = fault_of(run_load<LoadMistake::two_inits>);
  CHECK_THAT(again, ContainsText("it is initialised once"));
  CHECK(names(again, at("second init")));
  CHECK_THAT(fault_of(run_load<LoadMistake::written_over>), ContainsText("somebody has written over the mbarrier"));
  const std::string unfenced = fault_of(run_load<LoadMistake::no_init_fence>);
  CHECK_THAT(unfenced, ContainsText("has not called mbarrier_init_fence()"));
  CHECK(names(unfenced, at("the load")));
  if (!gpu::device().checked) return;
  CHECK_THAT(report_in_some_mode(run_load<LoadMistake::late_init_fence>), ContainsText("mbarrier_init_fence()"));
}

TEST_CASE("a load that nobody waits for", "[hopper][faults]") {
  if (!gpu::device().emulated) return;
  const std::string report = fault_of(run_load<LoadMistake::nobody_waits>);
  CHECK_THAT(report, ContainsText("the block ends while this tma_load is under way"));
  CHECK(names(report, at("the load")));
}

TEST_CASE("ordinary writes that the async proxy may not see", "[hopper][faults][C39]") {
  if (!gpu::device().checked) return;
  const auto check = [](const std::string& report, const char* reader, const char* writer) {
    CHECK_THAT(report, ContainsText("proxy: "));
    CHECK_THAT(report, ContainsText("a barrier does not order ordinary accesses with those of TMA and WGMMA"));
    CHECK(names(report, at(reader)));
    CHECK(names(report, at(writer)));
  };
  check(fault_of(run_store<StoreMistake::no_fence>), "the store", "fills the tile");
  check(fault_of(run_store<StoreMistake::fence_before_the_write>), "the store", "fills the tile");
  check(fault_of(run_store<StoreMistake::fence_by_the_wrong_thread>), "the store", "fills the tile");
  check(fault_of(run_product<ProductMistake::no_proxy_fence>), "the product", "fills A");

  gpu::DeviceBuffer<float> x_gmem(512, "x"), out_gmem(64, "out");
  const std::string device = fault_of([&] {
    gpu::launch<Loaded>(through_device_memory, {.grid = 1, .block = 64}, map_of_floats(x_gmem.data()), x_gmem.data(),
                        out_gmem.data());
  });
  CHECK_THAT(device, ContainsText("in the same launch"));
  CHECK(names(device, at("loads what was written")));
  CHECK(names(device, at("writes device memory")));
}

TEST_CASE("stores that nobody commits or waits for", "[hopper][faults]") {
  if (!gpu::device().emulated) return;
  const std::string open = fault_of(run_store<StoreMistake::no_commit>);
  CHECK_THAT(open, ContainsText("without committing this tma_store"));
  CHECK(names(open, at("the store")));
  const std::string left = fault_of(run_store<StoreMistake::no_wait>);
  CHECK_THAT(left, ContainsText("without waiting for this tma_store to have read shared memory"));
  CHECK(names(left, at("the store")));
  const std::string early = report_in_some_mode(run_store<StoreMistake::overwritten_early>);
  if (gpu::device().checked) {
    CHECK_THAT(early, ContainsText("which the tma_store reads"));
    CHECK(names(early, at("writes early")));
  } else {
    CHECK(early == "a wrong result");
  }
  if (!gpu::device().checked) return;
  const std::string read = report_in_some_mode(run_store<StoreMistake::read_too_early>);
  CHECK_THAT(read, ContainsText("race on device memory"));
  CHECK(names(read, at("reads early")));
}

TEST_CASE("products without fence, wait or commit", "[hopper][faults][C38]") {
  if (!gpu::device().emulated) return;
  const auto check = [](const std::string& report, const char* text, const char* line) {
    CHECK_THAT(report, ContainsText(text));
    CHECK(names(report, at(line)));
  };
  check(fault_of(run_product<ProductMistake::no_fence>), "no wgmma_fence() lies between", "the product");
  check(fault_of(run_product<ProductMistake::second_without_fence>), "no wgmma_fence() lies between ordinary code",
        "second product");
  check(fault_of(run_product<ProductMistake::no_wait>), "exits without waiting for this wgmma", "the product");
  check(fault_of(run_product<ProductMistake::no_commit>), "exits without committing this wgmma", "the product");
  check(fault_of(run_product<ProductMistake::wrong_shape_under_way>), "under way with another shape", "another shape");
  check(fault_of(run_product<ProductMistake::d_written_early>), "somebody has written to d", "the product");
  check(fault_of(run_product<ProductMistake::d_written_early>), "somebody has written to d", "the wait");
  check(fault_of(run_product<ProductMistake::a_written_early>), "somebody has written to a", "product with a");
  if (!gpu::device().checked) return;
  check(fault_of(run_product<ProductMistake::d_written_early>), "d of the wgmma", "touches d");
  check(fault_of(run_product<ProductMistake::a_written_early>), "writes a of the wgmma", "touches a");
  check(fault_of(run_product<ProductMistake::read_early>), "reads d of the wgmma", "reads d");
  check(fault_of(run_product<ProductMistake::memory_written_early>), "which the wgmma reads", "too early");
}

TEST_CASE("products that are not those of a warpgroup", "[hopper][faults]") {
  if (!gpu::device().emulated) return;
  const std::string missing = fault_of(run_product<ProductMistake::one_warp_missing>);
  CHECK_THAT(missing, ContainsText("is for all four warps of a warpgroup"));
  CHECK(names(missing, at("the product")));
  CHECK_THAT(fault_of(run_product<ProductMistake::warps_disagree>), ContainsText("warps of a warpgroup disagree"));
  const std::string inside = fault_of(run_product<ProductMistake::descriptor_inside_a_row>);
  CHECK_THAT(inside, ContainsText("wgmma: A: the descriptor starts at byte 16 of shared memory"));
  CHECK_THAT(fault_of([] { gpu::launch<Operands>(product_of_half_a_warpgroup, {.grid = 1, .block = 64}); }),
             ContainsText("the block has 64 threads"));
}

TEST_CASE("counts of named barriers that do not fit those that come", "[hopper][faults][C42]") {
  if (!gpu::device().emulated) return;
  // 128 arrive and 128 wait: the count is 256.
  const std::string small = report_in_some_mode([] { run_hand_over(128, 128); });
  if (gpu::device().checked) {
    CHECK(names(small, at("producers write")));
    CHECK(names(small, at("consumers read")));
  }
  const std::string differ = report_in_some_mode([] { run_hand_over(256, 128); });
  CHECK_THAT(differ, ContainsText("named barrier 1 is for"));
  CHECK_THAT(barrier_report<Part::first_warp>(2, 64),
             ContainsText("the block ends with 32 of 64 threads at named barrier 2"));
  CHECK_THAT(barrier_report<Part::one_lane_each>(3, 64), ContainsText("the block ends with 2 of 64 threads"));
  const std::string twice = barrier_report<Part::first_warp_twice>(4, 64);
  CHECK_THAT(twice, ContainsText("comes to named barrier 4 a second time in one round"));
  CHECK(names(twice, at("comes again")));
  CHECK_THAT(barrier_report<Part::all>(0, 64), ContainsText("allowed: 1 to 15"));
  CHECK_THAT(barrier_report<Part::all>(16, 64), ContainsText("allowed: 1 to 15"));
  CHECK_THAT(barrier_report<Part::all>(1, 48), ContainsText("allowed: multiples of 32"));
  CHECK_THAT(barrier_report<Part::all>(1, 96), ContainsText("up to the 64 threads of the block"));
}

TEST_CASE("a named barrier that never opens is reported with those that have come", "[hopper][faults][C42]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<int> out(128, "out");
  const std::string report =
      fault_of([&] { gpu::launch<Handed>(hand_over, {.grid = 1, .block = 288}, 288, 288, out.data()); });
  CHECK_THAT(report, ContainsText("deadlock"));
  CHECK_THAT(report, ContainsText("named barrier 1, 256 of 288 threads have come (threads 0-255)"));
  CHECK(names(report, at("consumers wait")));
}

TEST_CASE("clusters used wrongly", "[hopper][faults]") {
  if (!gpu::device().emulated) return;
  CHECK_THAT(fault_of(run_cluster<ClusterMistake::arrives_twice>), ContainsText("has arrived already"));
  const std::string waits = fault_of(run_cluster<ClusterMistake::waits_without_arriving>);
  CHECK_THAT(waits, ContainsText("cluster_arrive comes first"));
  CHECK(names(waits, at("only waits")));
  const std::string missing = fault_of(run_cluster<ClusterMistake::one_thread_missing>);
  CHECK_THAT(missing, ContainsText("63 of 64 threads of the cluster have arrived; of block 1 threads 7 are missing"));
  CHECK_THAT(fault_of(run_cluster<ClusterMistake::no_such_block>), ContainsText("block 2 of a cluster of 2"));
  const std::string unfenced = fault_of(run_cluster<ClusterMistake::no_init_fence>);
  CHECK_THAT(unfenced, ContainsText("has not called mbarrier_init_fence()"));
  CHECK(names(unfenced, at("arrives over there")));
  CHECK_THAT(fault_of(run_cluster<ClusterMistake::arrives_at_no_barrier>), ContainsText("was never initialised"));
  gpu::DeviceBuffer<int> out(1, "out");
  const std::string late =
      fault_of([&] { gpu::launch<Plain>(late_visit, {.grid = 2, .block = 1, .cluster = 2}, out.data()); });
  CHECK_THAT(late, ContainsText("of block 0 of the cluster, which"));
  CHECK_THAT(late, ContainsText("ended: a cluster_sync() has to follow"));
  CHECK(names(late, at("visits late")));
  if (!gpu::device().checked) return;
  const std::string early = report_in_some_mode(run_cluster<ClusterMistake::no_sync_before>);
  CHECK_THAT(early, ContainsText("not started"));
  CHECK_THAT(report_in_some_mode(run_cluster<ClusterMistake::no_sync_after>),
             ContainsText("ended: a cluster_sync() has to follow"));
}

TEST_CASE("registers that do not add up", "[hopper][faults]") {
  if (!gpu::device().emulated) return;
  const std::string none_free = register_report(1);
  CHECK_THAT(none_free, ContainsText("it wants 240 a thread, its warp has 168, and 0 are free"));
  CHECK(names(none_free, at("takes registers")));
  CHECK_THAT(register_report(2), ContainsText("another warp of the warpgroup said"));
  CHECK_THAT(register_report(3), ContainsText("only a part of a warpgroup's four warps"));
  CHECK_THAT(register_report(4), ContainsText("release_registers: 32, but the warp has 24"));
}

TEST_CASE("results of the kernel before, read without waiting for it", "[hopper][faults][C40]") {
  if (!gpu::device().checked) return;
  const std::string report = overlap_report(0, true, false);
  CHECK_THAT(report, ContainsText("no wait_for_previous_kernel() lies between"));
  CHECK(names(report, at("the first kernel writes")));
  CHECK(names(report, at("the second kernel reads")));
  CHECK(overlap_report(0, false, false) == "");
  CHECK(overlap_report(0, true, true) == "");
}

TEST_CASE("what TMA is asked for and cannot do", "[hopper][faults]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<float> x_gmem(512, "x"), out_gmem(64, "out");
  const auto report = [&](const gpu::TensorMap& map) {
    return fault_of(
        [&] { gpu::launch<Loaded>(load<LoadMistake::none>, {.grid = 1, .block = 64}, map, out_gmem.data()); });
  };
  CHECK_THAT(report(gpu::TensorMap{}), ContainsText("not a tensor map that make_tensor_map() has made"));
  const std::string beyond = report(map_of_floats(x_gmem.data() + 32));
  CHECK_THAT(beyond, ContainsText("the tensor map describes more than its buffer has: 0 bytes past the end of 'x'"));
  CHECK(names(beyond, at("the load")));
}
