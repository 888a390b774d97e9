#pragma once
/// \file
/// The first kernel: the sum of every row of a matrix.
///
/// One block sums one row: block `blockIdx.x` takes row `blockIdx.x`. Its threads walk along the row side by side, so
/// that neighbours read neighbouring addresses; each keeps its own sum in a register. Then they meet in shared memory,
/// where a tree of additions halves the number of sums at every level, and thread 0 writes the last one.
///
///  - grid: `rows` blocks. Block: `threads` threads, a power of two.
///  - registers: one partial sum a thread. Shared memory: 4 B a thread (1 KiB reserved).
///  - device memory: reads every element once, writes one float a row. One addition for every 4 B read: no arithmetic
///  to
///    speak of, so the memory's speed decides.
///
/// Sources: CUDA C++ Programming Guide, "Thread Hierarchy", "Shared Memory", "Synchronization Functions";
/// M. Harris, "Optimizing Parallel Reduction in CUDA" (the tree with sequential addressing).

#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/attention/cost.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/launch.cuh"

namespace first_kernel {

/// Threads of a block unless the caller says otherwise.
inline constexpr int kRowSumThreads = 128;

/// The most threads that a block's shared memory has room for.
inline constexpr int kRowSumMaxThreads = 256;

/// What the threads of a block share.
struct RowSumShared {
  float partial[kRowSumMaxThreads];  ///< one sum a thread, then one a level of the tree
};

/// sum_gmem[row] = Σ x_gmem[row, col] over all columns.
///
/// The order of the additions depends on the shape only, never on timing: two runs are equal bit for bit.
__global__ void row_sum(const float* x_gmem,  // [rows, cols]
                        float* sum_gmem,      // [rows]
                        std::int64_t cols) {
  auto& shared = gpu::shared_memory<RowSumShared>();
  const float* x_row = x_gmem + blockIdx.x * cols;

  float sum = 0;
  for (std::int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    sum += x_row[col];
  }
  shared.partial[threadIdx.x] = sum;
  // A thread is about to read what another thread wrote: nobody may go on before everybody has arrived.
  __syncthreads();

  for (unsigned stride = blockDim.x / 2; stride > 0; stride /= 2) {
    if (threadIdx.x < stride) {
      shared.partial[threadIdx.x] += shared.partial[threadIdx.x + stride];
    }
    // The next level reads the sums of this one. Outside of the `if`: every thread of the block must come here.
    __syncthreads();
  }

  if (threadIdx.x == 0) {
    sum_gmem[blockIdx.x] = shared.partial[0];
  }
}

/// Launches row_sum over x_gmem [rows, cols], dense. Does not wait.
///
/// \throws std::invalid_argument unless rows and cols are 0 or more and threads is a power of two up to 256;
/// gpu::Error if rows is more than a grid may have blocks, 2³¹ − 1.
inline void launch_row_sum(const float* x_gmem, float* sum_gmem, std::int64_t rows, std::int64_t cols,
                           int threads = kRowSumThreads) {
  if (rows < 0 || cols < 0) {
    throw std::invalid_argument("row_sum: rows and cols must be 0 or more, not " + std::to_string(rows) + " and " +
                                std::to_string(cols));
  }
  // The tree halves the number of threads until one is left: only a power of two comes out even.
  if (threads < 1 || threads > kRowSumMaxThreads || (threads & (threads - 1)) != 0) {
    throw std::invalid_argument("row_sum: threads must be a power of two from 1 to " +
                                std::to_string(kRowSumMaxThreads) + ", not " + std::to_string(threads));
  }
  if (rows == 0) return;  // a grid of no blocks is not allowed
  gpu::launch<RowSumShared>(row_sum, {.grid = rows, .block = threads}, x_gmem, sum_gmem, cols);
}

/// Bytes that the kernel's threads load from and store to device memory: every element once in, one sum a row out.
inline attention::Traffic row_sum_traffic(std::int64_t rows, std::int64_t cols) {
  return {sizeof(float) * static_cast<double>(rows) * static_cast<double>(cols),
          sizeof(float) * static_cast<double>(rows)};
}

/// Additions on the longest path from an element to the sum: one thread's share of the row, then the levels of the
/// tree.
inline std::int64_t row_sum_depth(std::int64_t cols, int threads = kRowSumThreads) {
  std::int64_t levels = 0;
  for (int t = threads; t > 1; t /= 2) ++levels;
  return (cols + threads - 1) / threads + levels;
}

}  // namespace first_kernel
