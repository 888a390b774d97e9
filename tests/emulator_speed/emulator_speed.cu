/// \file
/// What the emulator itself costs: the time of one barrier, shuffle, product or copy, on one core. A program, not a
/// test:
///
///     cmake --build build/emulator --target emulator_speed && build/emulator/tests/emulator_speed

#include <algorithm>
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

#include "common/gpu/async_copy.cuh"
#include "common/gpu/atomic.cuh"
#include "common/gpu/barrier.cuh"
#include "common/gpu/buffer.hpp"
#include "common/gpu/cluster.cuh"
#include "common/gpu/emulation.hpp"
#include "common/gpu/mbarrier.cuh"
#include "common/gpu/named_barrier.cuh"
#include "common/gpu/tensor_core.cuh"
#include "common/gpu/tma.cuh"
#include "common/gpu/warp.cuh"
#include "common/gpu/wgmma.cuh"

namespace {

enum class What {
  nothing,
  turn,
  block_barrier,
  named_barrier,
  mbarrier,
  cluster_barrier,
  warp_barrier,
  shuffle,
  product_of_a_warp,
  load_matrices,
  product_of_a_warpgroup,
  eight_products,
  tma_load,
  tma_store,
  copy_async,
};

struct Shared {
  alignas(1024) gpu::bf16 a[64 * 64], b[128 * 64];
  gpu::Mbarrier barrier;
};

constexpr std::uint32_t kTileBytes = 128 * 64 * sizeof(gpu::bf16);

/// Does one thing `rounds` times.
template <What kWhat>
__global__ void __launch_bounds__(384)
    repeat(const __grid_constant__ gpu::TensorMap map, const gpu::bf16* x_gmem, int rounds, float* out_gmem) {
  auto& shared = gpu::shared_memory<Shared>();
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < 64 * 64; i += threads) shared.a[i] = gpu::from_float<gpu::bf16>(1);
  for (int i = thread; i < 128 * 64; i += threads) shared.b[i] = gpu::from_float<gpu::bf16>(1);
  if (thread == 0) {
    gpu::mbarrier_init(shared.barrier, kWhat == What::mbarrier ? static_cast<std::uint32_t>(threads) : 1);
    gpu::mbarrier_init_fence();
  }
  gpu::async_proxy_fence();
  __syncthreads();
  float d[64] = {}, sum[4] = {};
  std::uint32_t registers[4] = {1, 2, 3, 4};
  const std::uint32_t pair[2] = {1, 2};
  const auto a = gpu::matrix_descriptor(shared.a, gpu::Swizzle::bytes_128, 0, 1024);
  const auto b = gpu::matrix_descriptor(shared.b, gpu::Swizzle::bytes_128, 0, 1024);
  for (int round = 0; round < rounds; ++round) {
    if constexpr (kWhat == What::turn) __nanosleep(0);
    if constexpr (kWhat == What::block_barrier) __syncthreads();
    if constexpr (kWhat == What::named_barrier) gpu::named_barrier_sync(3, threads);
    if constexpr (kWhat == What::mbarrier) {
      gpu::mbarrier_arrive(shared.barrier);
      gpu::mbarrier_wait(shared.barrier, static_cast<std::uint32_t>(round) & 1);
    }
    if constexpr (kWhat == What::cluster_barrier) gpu::cluster_sync();
    if constexpr (kWhat == What::warp_barrier) __syncwarp();
    if constexpr (kWhat == What::shuffle) sum[0] += __shfl_xor_sync(gpu::kFullWarp, sum[0], 1);
    if constexpr (kWhat == What::product_of_a_warp) gpu::mma_16x8x16<gpu::bf16>(sum, registers, pair);
    if constexpr (kWhat == What::load_matrices) gpu::load_matrices<4>(registers, shared.a + thread % 32 * 64);
    if constexpr (kWhat == What::product_of_a_warpgroup || kWhat == What::eight_products) {
      gpu::wgmma_fence();
      for (std::uint32_t i = 0; i < (kWhat == What::eight_products ? 8u : 1u); ++i) {
        gpu::wgmma<gpu::bf16, 128>(d, a + i % 4 * 32, b + i % 4 * 32, true);
      }
      gpu::wgmma_commit();
      gpu::wgmma_wait<0>();
    }
    if constexpr (kWhat == What::tma_load) {
      if (thread == 0) {
        gpu::mbarrier_arrive_expect_bytes(shared.barrier, kTileBytes);
        gpu::tma_load(shared.b, map, shared.barrier, 0, 0);
      }
      gpu::mbarrier_wait(shared.barrier, static_cast<std::uint32_t>(round) & 1);
      __syncthreads();
    }
    if constexpr (kWhat == What::tma_store) {
      if (thread == 0) {
        gpu::tma_store(map, shared.b, 0, 0);
        gpu::tma_store_commit();
        gpu::tma_store_wait<0>();
      }
    }
    if constexpr (kWhat == What::copy_async) {
      gpu::copy_async<16>(shared.a + thread * 8, x_gmem + thread * 8);
      gpu::copy_async_commit();
      gpu::copy_async_wait<0>();
    }
  }
  float all = sum[0] + static_cast<float>(registers[0]);
  for (int i = 0; i < 64; ++i) all += d[i];
  out_gmem[static_cast<int>(blockIdx.x) * threads + thread] = all;
}

template <What kWhat>
double seconds(int threads, int blocks, int rounds) {
  const std::vector<gpu::bf16> x(128 * 64, gpu::from_float<gpu::bf16>(1));
  gpu::DeviceBuffer<gpu::bf16> x_gmem(std::span<const gpu::bf16>(x), "x");
  gpu::DeviceBuffer<float> out_gmem(384, "out");
  const gpu::TensorMap map = gpu::make_tensor_map({.element = gpu::TensorElement::bf16,
                                                   .base = x_gmem.data(),
                                                   .sizes = {64, 128},
                                                   .stride_bytes = {128},
                                                   .box = {64, 128},
                                                   .swizzle = gpu::Swizzle::bytes_128});
  double best = 1e9;
  for (int i = 0; i < 4; ++i) {
    gpu::Stopwatch watch;
    watch.start();
    gpu::launch<Shared>(repeat<kWhat>, {.grid = blocks, .block = threads, .cluster = blocks}, map, x_gmem.data(),
                        rounds, out_gmem.data());
    best = std::min(best, watch.stop_seconds());
  }
  return best;
}

/// \param parts by how many the time of a round is divided: the warps that do the thing beside each other, say
template <What kWhat>
void print(const char* name, int threads, int rounds, double parts, int blocks = 1) {
  const double some = seconds<kWhat>(threads, blocks, rounds), none = seconds<What::nothing>(threads, blocks, 0);
  std::printf("%-58s %4d threads %10.3f µs\n", name, threads * blocks, (some - none) / rounds / parts * 1e6);
}

void print_all() {
  gpu::EmulatorOptions options;
  options.workers = 1;
  options.stall_seconds = 1000;
  gpu::set_emulator_options(options);
  std::printf("%s, one core, best of four\n", gpu::device().checked ? "checking build" : "plain build");
  for (const int threads : {128, 256, 384}) print<What::block_barrier>("__syncthreads", threads, 2000, 1);
  for (const int threads : {128, 256, 384}) print<What::named_barrier>("named_barrier_sync", threads, 2000, 1);
  for (const int threads : {128, 256, 384}) {
    print<What::mbarrier>("mbarrier_arrive and mbarrier_wait by all", threads, 1000, 1);
  }
  print<What::cluster_barrier>("cluster_sync of two blocks", 128, 1000, 1, 2);
  print<What::turn>("a turn (__nanosleep), a thread", 128, 2000, 128);
  print<What::warp_barrier>("__syncwarp, a warp", 128, 2000, 4);
  print<What::shuffle>("__shfl_xor_sync, a warp", 128, 2000, 4);
  print<What::product_of_a_warp>("mma_16x8x16, a warp", 128, 1000, 4);
  print<What::load_matrices>("load_matrices<4>, a warp", 128, 1000, 4);
  print<What::product_of_a_warpgroup>("wgmma m64n128k16 with fence, commit and wait", 128, 300, 1);
  print<What::eight_products>("wgmma m64n128k16, each of eight before a wait", 128, 100, 8);
  print<What::tma_load>("tma_load of 16 KB, mbarrier_wait by all, __syncthreads", 128, 300, 1);
  print<What::tma_store>("tma_store of 16 KB, commit and wait", 128, 300, 1);
  print<What::copy_async>("copy_async<16>, commit and wait, a thread", 128, 1000, 128);
}

}  // namespace

int main() {
  try {
    print_all();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
