#pragma once
/// \file
/// Kernels that do one thing as often as the machine can: multiply-add, read device memory, copy it, read the L2 cache,
/// read shared memory. Timed on a GPU they give the ceilings that every later chapter is compared with.
///
/// Each kernel writes a sum of what it read or computed. It has to: work whose result nobody uses is removed by the
/// compiler. The data are small whole numbers, so that these sums are exact in fp32 and can be checked.
///
/// Sources: S. Williams, A. Waterman, D. Patterson, "Roofline" (CACM 2009): a ceiling is what a program can reach, not
/// what the datasheet says; CUDA C++ Best Practices Guide, "Memory Optimizations".

#include <cstdint>

#include "common/gpu/barrier.cuh"
#include "common/gpu/launch.cuh"

namespace first_kernel {

/// Multiply-adds that one thread has in flight at a time: each chain waits for its own result only.
inline constexpr int kFmaChains = 8;
/// Multiply-adds of a chain in one turn of the loop, so that the loop's own instructions hardly count.
inline constexpr int kFmaUnroll = 16;

/// Loads that one thread has in flight: it asks for all of them before it uses the first.
inline constexpr int kLoadsInFlight = 4;

/// Slots of 16 B in a block's shared memory (32 KiB). A power of two.
inline constexpr int kSharedSlots = 2048;

struct SharedReadStorage {
  float4 slots[kSharedSlots];
};

/// What fill writes at element `index`: a whole number from 0 to 255 that looks random.
__host__ __device__ constexpr float test_value(std::int64_t index) {
  return static_cast<float>((static_cast<std::uint64_t>(index) * 2654435761ULL >> 16) & 0xFF);
}

__host__ __device__ inline float sum_of(float4 v) { return (v.x + v.y) + (v.z + v.w); }

/// x_gmem[i] = four consecutive test values, for all i < size. Any grid and block.
__global__ void fill(float4* x_gmem, std::int64_t size) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += step) {
    x_gmem[i] = make_float4(test_value(4 * i), test_value(4 * i + 1), test_value(4 * i + 2), test_value(4 * i + 3));
  }
}

/// 2 · kFmaChains · kFmaUnroll · rounds FLOP a thread, nothing else. \p sum_gmem: one float a thread.
///
/// Chain c starts at c and takes x ← a·x + b. The factors arrive as arguments: constants would let the compiler compute
/// the result itself.
__global__ void fp32_multiply_add(float* sum_gmem, int rounds, float a, float b) {
  float x_reg[kFmaChains];
  for (int chain = 0; chain < kFmaChains; ++chain) x_reg[chain] = static_cast<float>(chain);
  for (int round = 0; round < rounds; ++round) {
    for (int step = 0; step < kFmaUnroll; ++step) {
      for (int chain = 0; chain < kFmaChains; ++chain) x_reg[chain] = fmaf(a, x_reg[chain], b);
    }
  }
  float sum = 0;
  for (int chain = 0; chain < kFmaChains; ++chain) sum += x_reg[chain];
  sum_gmem[std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x] = sum;
}

/// Reads x_gmem [size] once. \p sum_gmem: one float a thread. Any grid and block.
///
/// A grid-stride loop: at each step the whole grid reads one contiguous stretch, and then moves on by its own width.
__global__ void device_memory_read(const float4* x_gmem, float* sum_gmem, std::int64_t size) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  float sum = 0;
  std::int64_t i = thread;
  for (; i + (kLoadsInFlight - 1) * step < size; i += kLoadsInFlight * step) {
    float4 x_reg[kLoadsInFlight];
    for (int load = 0; load < kLoadsInFlight; ++load) x_reg[load] = x_gmem[i + load * step];
    for (int load = 0; load < kLoadsInFlight; ++load) sum += sum_of(x_reg[load]);
  }
  for (; i < size; i += step) sum += sum_of(x_gmem[i]);
  sum_gmem[thread] = sum;
}

/// y_gmem[i] = x_gmem[i] for all i < size: one element a thread, in a grid of at least `size` threads.
///
/// No loop and one load in flight a thread: a finished block makes room for the next, and these many short blocks copy
/// faster than a grid that stays and loops (README, "What was tried").
__global__ void device_memory_copy(const float4* x_gmem, float4* y_gmem, std::int64_t size) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < size) y_gmem[i] = x_gmem[i];
}

/// Every block reads all of x_gmem [chunks · blockDim.x], which is smaller than the L2 cache. \p sum_gmem: one float a
/// thread. \p chunks must be a multiple of kLoadsInFlight.
///
/// The blocks start at different places. Otherwise two blocks of one multiprocessor would ask for the same line at the
/// same time, and its L1 cache would answer the second one. Between two visits of a block to the same line lies the
/// whole array, which no L1 holds.
__global__ void l2_read(const float4* x_gmem, float* sum_gmem, int chunks) {
  float sum = 0;
  int chunk = static_cast<int>(std::int64_t{blockIdx.x} * chunks / gridDim.x);
  for (int turn = 0; turn < chunks; turn += kLoadsInFlight) {
    float4 x_reg[kLoadsInFlight];
    for (int load = 0; load < kLoadsInFlight; ++load) {
      x_reg[load] = x_gmem[std::int64_t{chunk} * blockDim.x + threadIdx.x];
      chunk = chunk + 1 == chunks ? 0 : chunk + 1;
    }
    for (int load = 0; load < kLoadsInFlight; ++load) sum += sum_of(x_reg[load]);
  }
  sum_gmem[std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x] = sum;
}

/// Every thread reads kLoadsInFlight · rounds slots of its block's shared memory. \p sum_gmem: one float a thread.
///
/// The 32 threads of a warp read 32 neighbouring slots, 512 B: each of the 32 banks gives 4 B in each of 4 cycles, and
/// none is asked twice in a cycle. \p step is an argument, so that the compiler cannot see that an address comes back.
__global__ void shared_memory_read(float* sum_gmem, int rounds, unsigned step) {
  auto& shared = gpu::shared_memory<SharedReadStorage>();
  for (int slot = threadIdx.x; slot < kSharedSlots; slot += blockDim.x) {
    shared.slots[slot] =
        make_float4(test_value(4 * slot), test_value(4 * slot + 1), test_value(4 * slot + 2), test_value(4 * slot + 3));
  }
  __syncthreads();

  float sum = 0;
  unsigned slot = threadIdx.x;
  for (int round = 0; round < rounds; ++round) {
    float4 x_reg[kLoadsInFlight];
    for (int load = 0; load < kLoadsInFlight; ++load) {
      x_reg[load] = shared.slots[slot % kSharedSlots];
      slot += step;
    }
    for (int load = 0; load < kLoadsInFlight; ++load) sum += sum_of(x_reg[load]);
  }
  sum_gmem[std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x] = sum;
}

}  // namespace first_kernel
