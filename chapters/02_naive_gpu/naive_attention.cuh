#pragma once
/// \file
/// Attention as three kernels, with S and P in device memory: right, and as slow as memory makes it.
///
///     scores    S = scale · QKᵀ, −∞ where the mask hides the key   a thread a key, 128 queries a block
///     softmax   P = softmax of the rows of S, and LSE              a block a query row
///     output    O = PV                                             a block a query row, a thread a column of O
///
/// A query row is one query of one head of one batch entry. Blocks are counted along grid.x alone, because a grid takes
/// 2³¹ − 1 blocks along x and only 65535 along y and z.
///
/// Registers: a row of K each thread (scores), a sum (the others). Shared memory: 512 bytes a block, in the softmax.
/// Device memory: S and P, [batch, heads_q, seqlen_q, seqlen_kv] each. Bytes: three_kernels_traffic(). FLOPs: 4 ·
/// head_dim a visible pair.
///
/// Run it with `./learn run 02`. Source: Vaswani et al., "Attention Is All You Need" (2017), equation 1, taken
/// literally.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/attention/cost.hpp"
#include "common/attention/problem.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/launch.cuh"
#include "common/kernel/tiles.hpp"
#include "common/stage/kernel.hpp"

namespace naive_gpu {

using attention::ForwardArgs;
using attention::KeyRange;
using attention::Problem;
using kernel::tiles_of;

/// Threads of a block that works along a row of S. A row of at most a warp's width needs no more than a warp.
inline constexpr int kRowThreads = 128;
inline constexpr int kShortRowThreads = 32;

/// Queries that a block of the scores kernel compares with its keys, one after the other.
inline constexpr int kQueriesPerBlock = 128;

/// Index of a query row among all; head_index is batch · heads_q + head.
constexpr std::int64_t row_index(int head_index, int seqlen_q, int query) {
  return std::int64_t{head_index} * seqlen_q + query;
}

/// Offset of a score in S, and of its weight in P, in elements. In 64 bits: 16 heads of 16384 queries and keys have 2³²
/// scores.
constexpr std::int64_t score_offset(std::int64_t row, int seqlen_kv, int key) { return row * seqlen_kv + key; }

/// One row of S, P, O and LSE.
struct QueryRow {
  std::int64_t index;  ///< row_index
  int batch, head, query;
};

/// The row that a block works on.
__device__ inline QueryRow query_row(const ForwardArgs<float>& args, unsigned index) {
  const unsigned head_index = index / args.seqlen_q;
  return {index, static_cast<int>(head_index / args.heads_q), static_cast<int>(head_index % args.heads_q),
          static_cast<int>(index % args.seqlen_q)};
}

/// S = scale · QKᵀ where the mask shows the key, −∞ elsewhere.
///
/// A thread keeps one row of K in registers. For each query all threads of a warp then read the same element of Q at a
/// time, which is one access for the warp, and store 32 neighbouring scores in one piece. Only the rows of K, which lie
/// apart, are read in 32 pieces each time: once a block, not once a score.
template <int kHeadDim>
__global__ void scores_kernel(ForwardArgs<float> args, float* s_gmem, int key_blocks, int query_blocks) {
  const int key = static_cast<int>(blockIdx.x % key_blocks * blockDim.x + threadIdx.x);
  const int first_query = static_cast<int>(blockIdx.x / key_blocks % query_blocks) * kQueriesPerBlock;
  const int head_index = static_cast<int>(blockIdx.x / key_blocks / query_blocks);
  const int batch = head_index / args.heads_q;
  const int head = head_index % args.heads_q;
  if (key >= args.seqlen_kv) return;

  float k_reg[kHeadDim];
  const float* k = args.k_row(batch, key, args.kv_head(head));
#pragma unroll
  for (int c = 0; c < kHeadDim; ++c) k_reg[c] = k[c];

  for (int query = first_query; query < min(first_query + kQueriesPerBlock, args.seqlen_q); ++query) {
    const KeyRange keys = args.visible_keys(query);
    float score = -INFINITY;
    if (key >= keys.begin && key < keys.end) {
      const float* q = args.q_row(batch, query, head);
      float dot = 0;
#pragma unroll
      for (int c = 0; c < kHeadDim; ++c) dot += q[c] * k_reg[c];
      score = args.softmax_scale * dot;
    }
    s_gmem[score_offset(row_index(head_index, args.seqlen_q, query), args.seqlen_kv, key)] = score;
  }
}

/// What the threads of a softmax block exchange.
template <int kThreads>
struct RowShared {
  float partial[kThreads];
};

/// Combines one value of each thread; every thread gets the result. The tree of chapter 00, for any operation.
/// Before partial_smem is used again, the block needs a barrier.
template <int kThreads, class Combine>
__device__ float combine_over_block(float* partial_smem, float value, Combine combine) {
  static_assert((kThreads & (kThreads - 1)) == 0, "the tree halves the number of threads until one is left");
  const int thread = static_cast<int>(threadIdx.x);
  partial_smem[thread] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (thread < half) partial_smem[thread] = combine(partial_smem[thread], partial_smem[thread + half]);
    __syncthreads();
  }
  return partial_smem[0];
}

/// P = softmax of a row of S; LSE. Three passes over the row: maximum, sum, quotient.
///
/// A row that sees nothing holds only −∞. Its maximum must not be subtracted (−∞ − −∞ is NaN) and its sum, 0, must not
/// divide: P = 0 and LSE = −∞.
template <int kThreads>
__global__ void softmax_kernel(ForwardArgs<float> args, const float* s_gmem, float* p_gmem) {
  auto& shared = gpu::shared_memory<RowShared<kThreads>>();
  const std::int64_t row = blockIdx.x;
  const float* s_row = s_gmem + score_offset(row, args.seqlen_kv, 0);
  float* p_row = p_gmem + score_offset(row, args.seqlen_kv, 0);
  const int thread = static_cast<int>(threadIdx.x);

  float m = -INFINITY;
  for (int key = thread; key < args.seqlen_kv; key += kThreads) m = fmaxf(m, s_row[key]);
  m = combine_over_block<kThreads>(shared.partial, m, [](float a, float b) { return fmaxf(a, b); });
  const float shift = m == -INFINITY ? 0.0f : m;
  __syncthreads();  // the sum overwrites the maximum, which a slower thread may not have read yet

  float l = 0;
  for (int key = thread; key < args.seqlen_kv; key += kThreads) l += expf(s_row[key] - shift);
  l = combine_over_block<kThreads>(shared.partial, l, [](float a, float b) { return a + b; });

  const float inverse_l = l == 0 ? 0.0f : 1 / l;
  for (int key = thread; key < args.seqlen_kv; key += kThreads) p_row[key] = expf(s_row[key] - shift) * inverse_l;
  if (thread == 0) args.lse_gmem[row] = l == 0 ? -INFINITY : m + logf(l);
}

/// O = PV. A thread owns one column: a warp reads 32 neighbouring elements of a row of V in one piece.
///
/// Only the keys that the row sees are visited. The others have P = 0, and their V is none of our business.
template <int kHeadDim>
__global__ void output_kernel(ForwardArgs<float> args, const float* p_gmem) {
  const QueryRow row = query_row(args, blockIdx.x);
  const int column = static_cast<int>(threadIdx.x);
  const float* p_row = p_gmem + score_offset(row.index, args.seqlen_kv, 0);
  const float* v = args.v_row(row.batch, 0, args.kv_head(row.head)) + column;

  const KeyRange keys = args.visible_keys(row.query);
  float o = 0;
  for (int key = keys.begin; key < keys.end; ++key) o += p_row[key] * v[key * args.v_strides.seq];
  args.o_row(row.batch, row.query, row.head)[column] = o;
}

/// Launches the three kernels, one after the other: each starts when the one before it has finished.
template <int kHeadDim, int kThreads>
void run_three_kernels(const ForwardArgs<float>& args, void* workspace) {
  const std::int64_t heads = std::int64_t{args.batch} * args.heads_q;
  const std::int64_t rows = heads * args.seqlen_q;
  if (rows == 0) return;
  float* s_gmem = static_cast<float*>(workspace);
  float* p_gmem = s_gmem + score_offset(rows, args.seqlen_kv, 0);

  const int key_blocks = tiles_of(args.seqlen_kv, kThreads);
  const int query_blocks = tiles_of(args.seqlen_q, kQueriesPerBlock);
  if (key_blocks > 0) {
    gpu::launch(scores_kernel<kHeadDim>, {.grid = heads * query_blocks * key_blocks, .block = kThreads}, args, s_gmem,
                key_blocks, query_blocks);
  }
  gpu::launch<RowShared<kThreads>>(softmax_kernel<kThreads>, {.grid = rows, .block = kThreads}, args, s_gmem, p_gmem);
  gpu::launch(output_kernel<kHeadDim>, {.grid = rows, .block = kHeadDim}, args, p_gmem);
}

/// The block size that suits the length of the rows.
template <int kHeadDim>
void run_three_kernels(const ForwardArgs<float>& args, void* workspace) {
  if (args.seqlen_kv <= kShortRowThreads) {
    run_three_kernels<kHeadDim, kShortRowThreads>(args, workspace);
  } else {
    run_three_kernels<kHeadDim, kRowThreads>(args, workspace);
  }
}

/// What the threads of each kernel load and store, in bytes.
struct ThreeKernelsTraffic {
  attention::Traffic scores;   ///< loads a row of Q a visible pair, and K once for each block of queries; stores S
  attention::Traffic softmax;  ///< loads S three times; stores P and LSE
  attention::Traffic output;   ///< loads P and V head_dim times a visible pair: once a column; stores O
  attention::Traffic total() const { return scores + softmax + output; }
};

/// Element accesses of the three kernels, exactly; the checking build counts the same.
inline ThreeKernelsTraffic three_kernels_traffic(const Problem& p) {
  const double heads = double(p.batch) * p.heads_q;
  const double pairs = heads * double(p.visible_pairs());
  const double square = heads * p.seqlen_q * double(p.seqlen_kv);
  const double rows = heads * p.seqlen_q;
  const double k_elements = heads * p.seqlen_kv * p.head_dim * tiles_of(p.seqlen_q, kQueriesPerBlock);
  const double bytes = sizeof(float);
  return {.scores = {.loaded = bytes * (p.head_dim * pairs + k_elements), .stored = bytes * square},
          .softmax = {.loaded = bytes * 3 * square, .stored = bytes * (square + rows)},
          .output = {.loaded = bytes * 2 * p.head_dim * pairs, .stored = bytes * rows * p.head_dim}};
}

/// Bytes of S and P together. The largest std::size_t if they do not fit one.
inline std::size_t three_kernels_workspace(const Problem& p) {
  const double bytes = 2.0 * sizeof(float) * p.batch * p.heads_q * double(p.seqlen_q) * p.seqlen_kv;
  if (bytes >= 0x1p63) return std::numeric_limits<std::size_t>::max();
  return 2 * sizeof(float) * std::size_t(p.batch) * std::size_t(p.heads_q) * std::size_t(p.seqlen_q) *
         std::size_t(p.seqlen_kv);
}

/// This chapter's kernel, as the programs and tests see it.
inline stage::ForwardKernel three_kernels() {
  return {.name = "three_kernels",
          .summary = "scores, softmax and output as a kernel each, S and P in device memory",
          .memory = stage::Memory::device,
          .require = [](const Problem& p) { stage::require_head_dim_32_64_128("three_kernels", p); },
          .workspace_bytes = three_kernels_workspace,
          .traffic = [](const Problem& p) { return three_kernels_traffic(p).total(); },
          .run =
              [](const ForwardArgs<float>& args, void* workspace) {
                switch (args.head_dim) {
                  case 32:
                    return run_three_kernels<32>(args, workspace);
                  case 64:
                    return run_three_kernels<64>(args, workspace);
                  case 128:
                    return run_three_kernels<128>(args, workspace);
                }
              }};
}

}  // namespace naive_gpu
