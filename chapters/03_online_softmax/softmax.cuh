#pragma once
/// \file
/// Softmax of the rows of a matrix, three times. y = softmax(x), and the state (m, ℓ) of each row.
///
///     two_pass   a block a row: maximum, then sum, then quotient. Three loads of x            (the kernel of chapter
///     02) online     a block a row: maximum and sum together, by merging states. Two loads of x tree       several
///     blocks a row, 1024 columns each: a kernel leaves a state a block, a second merges them
///
/// Registers: a state each thread. Shared memory: 512 bytes (two_pass) or 1 KB a block. Device memory: x, y, the
/// states; tree adds a state a block. Bytes: the functions `…_traffic`. A row without a finite score gives zeros, and
/// (−∞, 0).
///
/// Run it with `./learn run 03`. Source: Milakov and Gimelshein (2018), algorithms 2 and 3, and section 3.1.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/attention/cost.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/launch.cuh"
#include "common/kernel/softmax_state.cuh"

namespace online_softmax {

using kernel::SoftmaxState;

/// Threads of a block, and the columns that a block of the tree takes.
inline constexpr int kSoftmaxThreads = 128;
inline constexpr int kColumnsPerBlock = 1024;

/// What the softmax kernels are given.
struct SoftmaxArgs {
  const float* x_gmem;       ///< [rows, cols]
  float* y_gmem;             ///< [rows, cols]
  SoftmaxState* state_gmem;  ///< [rows]
  std::int64_t rows;
  int cols;

  constexpr const float* x_row(std::int64_t row) const { return x_gmem + row * cols; }
  constexpr float* y_row(std::int64_t row) const { return y_gmem + row * cols; }
};

/// What the threads of a block exchange: one value each.
template <class T, int kThreads>
struct BlockShared {
  T partial[kThreads];
};

/// Combines one value of each thread; every thread gets the result. `combine` may be any associative operation: the
/// maximum, the sum, or the merge of two states. Before `shared` is used again, the block needs a barrier.
template <class T, int kThreads, class Combine>
__device__ T combine_over_block(BlockShared<T, kThreads>& shared, const T& value, Combine combine) {
  static_assert((kThreads & (kThreads - 1)) == 0, "the tree halves the number of threads until one is left");
  const int thread = static_cast<int>(threadIdx.x);
  shared.partial[thread] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) shared.partial[thread] = combine(shared.partial[thread], shared.partial[thread + half]);
    __syncthreads();
  }
  return shared.partial[0];
}

/// The merge as an object, to be handed to combine_over_block.
struct Merge {
  __device__ SoftmaxState operator()(const SoftmaxState& a, const SoftmaxState& b) const { return merge(a, b); }
};

/// y = exp(x − m) / ℓ in the columns begin ≤ col < end of a row. A hidden score, −∞, gives 0; so does an empty row.
template <int kThreads>
__device__ void write_softmax(const SoftmaxArgs& args, std::int64_t row, int begin, int end,
                              const SoftmaxState& state) {
  const float* x = args.x_row(row);
  float* y = args.y_row(row);
  const float inverse_l = inverse_sum(state);
  for (int col = begin + static_cast<int>(threadIdx.x); col < end; col += kThreads) {
    y[col] = kernel::rescale(x[col], state.m) * inverse_l;
  }
}

/// Maximum first, then the sum: x is loaded three times.
template <int kThreads>
__global__ void two_pass_kernel(SoftmaxArgs args) {
  auto& shared = gpu::shared_memory<BlockShared<float, kThreads>>();
  const std::int64_t row = blockIdx.x;
  const float* x = args.x_row(row);
  const int thread = static_cast<int>(threadIdx.x);

  SoftmaxState state;
  for (int col = thread; col < args.cols; col += kThreads) state.m = fmaxf(state.m, x[col]);
  state.m = combine_over_block(shared, state.m, [](float a, float b) { return fmaxf(a, b); });

  const float shift = state.m == -INFINITY ? 0.0f : state.m;  // −∞ − −∞ is NaN
  __syncthreads();  // the sum overwrites the maximum, which a slower thread may not have read yet

  for (int col = thread; col < args.cols; col += kThreads) state.l += expf(x[col] - shift);
  state.l = combine_over_block(shared, state.l, [](float a, float b) { return a + b; });

  write_softmax<kThreads>(args, row, 0, args.cols, state);
  if (thread == 0) args.state_gmem[row] = state;
}

/// Maximum and sum in one pass: every thread merges its scores into a state, the block merges the states.
template <int kThreads>
__global__ void online_kernel(SoftmaxArgs args) {
  auto& shared = gpu::shared_memory<BlockShared<SoftmaxState, kThreads>>();
  const std::int64_t row = blockIdx.x;
  const float* x = args.x_row(row);
  const int thread = static_cast<int>(threadIdx.x);

  SoftmaxState state;
  for (int col = thread; col < args.cols; col += kThreads) state = merge(state, SoftmaxState::of(x[col]));
  state = combine_over_block(shared, state, Merge{});

  write_softmax<kThreads>(args, row, 0, args.cols, state);
  if (thread == 0) args.state_gmem[row] = state;
}

/// First kernel of the tree: the state of each block's columns, to partial_gmem [rows, parts].
template <int kThreads>
__global__ void tree_partial_kernel(SoftmaxArgs args, SoftmaxState* partial_gmem, int parts) {
  auto& shared = gpu::shared_memory<BlockShared<SoftmaxState, kThreads>>();
  const std::int64_t row = blockIdx.x / parts;
  const int begin = static_cast<int>(blockIdx.x % parts) * kColumnsPerBlock;
  const int end = args.cols - begin < kColumnsPerBlock ? args.cols : begin + kColumnsPerBlock;
  const float* x = args.x_row(row);
  const int thread = static_cast<int>(threadIdx.x);

  SoftmaxState state;
  for (int col = begin + thread; col < end; col += kThreads) state = merge(state, SoftmaxState::of(x[col]));
  state = combine_over_block(shared, state, Merge{});
  if (thread == 0) partial_gmem[blockIdx.x] = state;
}

/// Second kernel of the tree: each block merges all states of its row, then writes its own columns.
///
/// The merge is repeated in every block of the row. It costs a few loads, and saves a third kernel between the two.
template <int kThreads>
__global__ void tree_merge_kernel(SoftmaxArgs args, const SoftmaxState* partial_gmem, int parts) {
  auto& shared = gpu::shared_memory<BlockShared<SoftmaxState, kThreads>>();
  const std::int64_t row = blockIdx.x / parts;
  const int part = static_cast<int>(blockIdx.x % parts);
  const int begin = part * kColumnsPerBlock;
  const int end = args.cols - begin < kColumnsPerBlock ? args.cols : begin + kColumnsPerBlock;
  const int thread = static_cast<int>(threadIdx.x);

  SoftmaxState state;
  for (int i = thread; i < parts; i += kThreads) state = merge(state, partial_gmem[row * parts + i]);
  state = combine_over_block(shared, state, Merge{});

  write_softmax<kThreads>(args, row, begin, end, state);
  if (part == 0 && thread == 0) args.state_gmem[row] = state;
}

/// Blocks that the tree gives a row; an empty row still has one, which writes its state.
constexpr int parts_of_row(int cols) { return cols <= kColumnsPerBlock ? 1 : (cols - 1) / kColumnsPerBlock + 1; }

/// A softmax over rows, as the program and the tests see it.
struct SoftmaxKernel {
  std::string name;
  std::string summary;
  std::function<std::size_t(std::int64_t rows, int cols)> workspace_states;  ///< states of scratch
  /// Bytes that the threads load and store, exactly.
  std::function<attention::Traffic(std::int64_t rows, int cols)> traffic;
  /// Launches it and does not wait. \throws gpu::Error for more blocks than a grid takes.
  std::function<void(const SoftmaxArgs&, SoftmaxState* workspace)> run;
};

/// Bytes of a kernel that gives a row to one block and loads x `loads` times.
inline attention::Traffic block_a_row_traffic(int loads, std::int64_t rows, int cols) {
  const double elements = double(rows) * cols;
  return {loads * elements * sizeof(float), elements * sizeof(float) + double(rows) * sizeof(SoftmaxState)};
}

/// Two loads of x; each block stores a state and loads all states of its row.
inline attention::Traffic tree_traffic(std::int64_t rows, int cols) {
  const double parts = parts_of_row(cols);
  attention::Traffic traffic = block_a_row_traffic(2, rows, cols);
  traffic.loaded += double(rows) * parts * parts * sizeof(SoftmaxState);
  traffic.stored += double(rows) * parts * sizeof(SoftmaxState);
  return traffic;
}

/// two_pass, online and tree, with kThreads threads a block.
template <int kThreads = kSoftmaxThreads>
std::vector<SoftmaxKernel> softmax_kernels() {
  using FloatShared = BlockShared<float, kThreads>;
  using StateShared = BlockShared<SoftmaxState, kThreads>;
  const auto no_workspace = [](std::int64_t, int) { return std::size_t{0}; };
  return {
      {"two_pass", "maximum, then sum: x loaded three times", no_workspace,
       [](std::int64_t rows, int cols) { return block_a_row_traffic(3, rows, cols); },
       [](const SoftmaxArgs& args, SoftmaxState*) {
         if (args.rows == 0) return;
         gpu::launch<FloatShared>(two_pass_kernel<kThreads>, {.grid = args.rows, .block = kThreads}, args);
       }},
      {"online", "maximum and sum merged in one pass: x loaded twice", no_workspace,
       [](std::int64_t rows, int cols) { return block_a_row_traffic(2, rows, cols); },
       [](const SoftmaxArgs& args, SoftmaxState*) {
         if (args.rows == 0) return;
         gpu::launch<StateShared>(online_kernel<kThreads>, {.grid = args.rows, .block = kThreads}, args);
       }},
      {"tree", "a row over several blocks, merged by a second kernel",
       [](std::int64_t rows, int cols) { return static_cast<std::size_t>(rows * parts_of_row(cols)); }, tree_traffic,
       [](const SoftmaxArgs& args, SoftmaxState* workspace) {
         if (args.rows == 0) return;
         const int parts = parts_of_row(args.cols);
         gpu::launch<StateShared>(tree_partial_kernel<kThreads>, {.grid = args.rows * parts, .block = kThreads}, args,
                                  workspace, parts);
         gpu::launch<StateShared>(tree_merge_kernel<kThreads>, {.grid = args.rows * parts, .block = kThreads}, args,
                                  workspace, parts);
       }},
  };
}

}  // namespace online_softmax
