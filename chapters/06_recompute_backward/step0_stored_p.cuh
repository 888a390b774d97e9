#pragma once
/// \file
/// Step 0: the backward of chapter 02's forward. P comes out of memory, where the forward left it; dS goes there, too.
///
///     d_scores        dP = dO·Vᵀ, dS = P∘(dP − D)              a thread a key, 128 queries a block
///     key_gradients   dV = Pᵀ·dO, dK = scale · dSᵀ·Q           a block a key, a thread a column
///     query_gradient  dQ = scale · dS·K                        a block a query row, a thread a column
///
/// In front of them row_sums.cuh computes D. What the forward would have done, P = exp(S − LSE), is
/// `prepare_stored_p`: it is not part of the backward, and not timed with it.
///
/// Registers: a row of V each thread (d_scores), one or two sums (the others). Device memory: P and dS, [batch,
/// heads_q, seqlen_q, seqlen_kv] each, and D. Bytes: stored_p_traffic(). FLOPs: 8 · head_dim a visible pair.
///
/// Source: Dao et al., "FlashAttention" (2022), algorithm 3 ("standard attention backward pass").

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "chapters/06_recompute_backward/row_sums.cuh"
#include "common/attention/cost.hpp"
#include "common/attention/problem.hpp"
#include "common/gpu/launch.cuh"
#include "common/kernel/tiles.hpp"
#include "common/stage/kernel.hpp"

namespace recompute_backward {

using attention::KeyRange;
using attention::QueryRange;
using kernel::tiles_of;

/// Threads of a block that works along the keys, and the queries that each of them meets.
inline constexpr int kKeyThreads = 128, kQueriesPerBlock = 128;

/// Offset of a pair in P and dS, in elements.
constexpr std::int64_t pair_offset(std::int64_t row, int seqlen_kv, int key) { return row * seqlen_kv + key; }
static_assert(pair_offset(1 << 20, 1 << 13, 5) == (std::int64_t{1} << 33) + 5,
              "16 heads of 8192 x 8192 pairs pass 2^32");

/// What a forward without FlashAttention leaves behind: P, 0 where the mask hides the key.
template <int kHeadDim>
__global__ void stored_p_kernel(BackwardArgs<float> args, float* p_gmem, int key_blocks, int query_blocks) {
  const int key = static_cast<int>(blockIdx.x % key_blocks * blockDim.x + threadIdx.x);
  const int first_query = static_cast<int>(blockIdx.x / key_blocks % query_blocks) * kQueriesPerBlock;
  const int head_index = static_cast<int>(blockIdx.x / key_blocks / query_blocks);
  const int batch = head_index / args.heads_q, head = head_index % args.heads_q;
  if (key >= args.seqlen_kv) return;

  float k_reg[kHeadDim];
  const float* k = args.k_row(batch, key, args.kv_head(head));
#pragma unroll
  for (int c = 0; c < kHeadDim; ++c) k_reg[c] = k[c];
  for (int query = first_query; query < min(first_query + kQueriesPerBlock, args.seqlen_q); ++query) {
    const std::int64_t row = args.row_index(batch, query, head);
    const KeyRange keys = args.visible_keys(query);
    float p = 0;
    if (key >= keys.begin && key < keys.end) {
      const float* q = args.q_row(batch, query, head);
      float dot = 0;
#pragma unroll
      for (int c = 0; c < kHeadDim; ++c) dot += q[c] * k_reg[c];
      p = expf(args.softmax_scale * dot - args.lse_gmem[row]);
    }
    p_gmem[pair_offset(row, args.seqlen_kv, key)] = p;
  }
}

/// dS = P∘(dP − D), 0 where the mask hides the key.
template <int kHeadDim>
__global__ void d_scores_kernel(BackwardArgs<float> args, const float* d_gmem, const float* p_gmem, float* ds_gmem,
                                int key_blocks, int query_blocks) {
  const int key = static_cast<int>(blockIdx.x % key_blocks * blockDim.x + threadIdx.x);
  const int first_query = static_cast<int>(blockIdx.x / key_blocks % query_blocks) * kQueriesPerBlock;
  const int head_index = static_cast<int>(blockIdx.x / key_blocks / query_blocks);
  const int batch = head_index / args.heads_q, head = head_index % args.heads_q;
  if (key >= args.seqlen_kv) return;

  float v_reg[kHeadDim];
  const float* v = args.v_row(batch, key, args.kv_head(head));
#pragma unroll
  for (int c = 0; c < kHeadDim; ++c) v_reg[c] = v[c];
  for (int query = first_query; query < min(first_query + kQueriesPerBlock, args.seqlen_q); ++query) {
    const std::int64_t row = args.row_index(batch, query, head);
    const KeyRange keys = args.visible_keys(query);
    float ds = 0;
    if (key >= keys.begin && key < keys.end) {
      const float* dout = args.dout_row(batch, query, head);
      float dp = 0;
#pragma unroll
      for (int c = 0; c < kHeadDim; ++c) dp += dout[c] * v_reg[c];
      ds = p_gmem[pair_offset(row, args.seqlen_kv, key)] * (dp - d_gmem[row]);
    }
    ds_gmem[pair_offset(row, args.seqlen_kv, key)] = ds;
  }
}

/// dV = Pᵀ·dO and dK = scale · dSᵀ·Q of one key, over the query heads that share it.
template <int kHeadDim>
__global__ void key_gradients_kernel(BackwardArgs<float> args, const float* p_gmem, const float* ds_gmem) {
  const int head_index = static_cast<int>(blockIdx.x / args.seqlen_kv);
  const int batch = head_index / args.heads_kv, head_kv = head_index % args.heads_kv;
  const int key = static_cast<int>(blockIdx.x % args.seqlen_kv);
  const int column = static_cast<int>(threadIdx.x);
  const int group = args.heads_q / args.heads_kv;
  const QueryRange queries = attention::queries_of_any(args.mask, key, key, args.seqlen_q, args.seqlen_kv);

  float dv = 0, dk = 0;
  for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
    for (int query = queries.begin; query < queries.end; ++query) {
      const std::int64_t pair = pair_offset(args.row_index(batch, query, head), args.seqlen_kv, key);
      dv += p_gmem[pair] * args.dout_row(batch, query, head)[column];
      dk += ds_gmem[pair] * args.q_row(batch, query, head)[column];
    }
  }
  args.dv_row(batch, key, head_kv)[column] = dv;
  args.dk_row(batch, key, head_kv)[column] = args.softmax_scale * dk;
}

/// dQ = scale · dS·K of one query.
template <int kHeadDim>
__global__ void query_gradient_kernel(BackwardArgs<float> args, const float* ds_gmem) {
  const int head_index = static_cast<int>(blockIdx.x / args.seqlen_q);
  const int batch = head_index / args.heads_q, head = head_index % args.heads_q;
  const int query = static_cast<int>(blockIdx.x % args.seqlen_q);
  const int column = static_cast<int>(threadIdx.x);
  const float* ds_row = ds_gmem + pair_offset(blockIdx.x, args.seqlen_kv, 0);
  const float* k = args.k_row(batch, 0, args.kv_head(head)) + column;

  const KeyRange keys = args.visible_keys(query);
  float dq = 0;
  for (int key = keys.begin; key < keys.end; ++key) dq += ds_row[key] * k[key * args.k_strides.seq];
  args.dq_row(batch, query, head)[column] = args.softmax_scale * dq;
}

/// Elements of P, and of dS.
inline double pairs_stored(const Problem& p) { return double(p.batch) * p.heads_q * p.seqlen_q * p.seqlen_kv; }

/// Bytes of P, of dS where `squares` is 2, and of D behind them. The largest std::size_t if they do not fit one.
inline std::size_t stored_p_workspace(const Problem& p, int squares) {
  if (squares * sizeof(float) * pairs_stored(p) >= 0x1p62) return std::numeric_limits<std::size_t>::max();
  return squares * sizeof(float) * static_cast<std::size_t>(p.elements_lse()) * static_cast<std::size_t>(p.seqlen_kv) +
         d_bytes(p);
}

/// P into the beginning of the workspace.
template <int kHeadDim>
void prepare_stored_p(const BackwardArgs<float>& args, void* workspace) {
  const int key_blocks = tiles_of(args.seqlen_kv, kKeyThreads),
            query_blocks = tiles_of(args.seqlen_q, kQueriesPerBlock);
  const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_blocks * key_blocks;
  if (blocks == 0) return;
  gpu::launch(stored_p_kernel<kHeadDim>, {.grid = blocks, .block = kKeyThreads}, args, static_cast<float*>(workspace),
              key_blocks, query_blocks);
}

/// D, then the three kernels.
template <int kHeadDim>
void run_stored_p(const BackwardArgs<float>& args, void* workspace) {
  const std::int64_t heads = std::int64_t{args.batch} * args.heads_q, rows = heads * args.seqlen_q;
  const std::int64_t keys = std::int64_t{args.batch} * args.heads_kv * args.seqlen_kv;
  float* p_gmem = static_cast<float*>(workspace);
  float* ds_gmem = p_gmem + pair_offset(rows, args.seqlen_kv, 0);
  float* d_gmem = ds_gmem + pair_offset(rows, args.seqlen_kv, 0);
  launch_row_sums<kHeadDim>(args, d_gmem, false);
  const int key_blocks = tiles_of(args.seqlen_kv, kKeyThreads),
            query_blocks = tiles_of(args.seqlen_q, kQueriesPerBlock);
  if (rows > 0 && keys > 0) {
    gpu::launch(d_scores_kernel<kHeadDim>, {.grid = heads * query_blocks * key_blocks, .block = kKeyThreads}, args,
                d_gmem, p_gmem, ds_gmem, key_blocks, query_blocks);
  }
  if (keys > 0) gpu::launch(key_gradients_kernel<kHeadDim>, {.grid = keys, .block = kHeadDim}, args, p_gmem, ds_gmem);
  if (rows > 0) gpu::launch(query_gradient_kernel<kHeadDim>, {.grid = rows, .block = kHeadDim}, args, ds_gmem);
}

/// Element accesses of step 0, exactly: a row of dO, one of P and one of D a visible pair, and V once for each block of
/// queries; then head_dim times a visible pair P, dO, dS and Q, and dS and K.
inline attention::Traffic stored_p_traffic(const Problem& p) {
  const double heads = double(p.batch) * p.heads_q, pairs = heads * double(p.visible_pairs());
  const double keys = double(p.batch) * p.heads_kv * p.seqlen_kv, rows = heads * p.seqlen_q;
  const double v_elements = heads * p.seqlen_kv * p.head_dim * tiles_of(p.seqlen_q, kQueriesPerBlock);
  return row_sums_traffic(p, false) +
         attention::Traffic{.loaded = sizeof(float) * ((p.head_dim + 2) * pairs + v_elements + 6 * p.head_dim * pairs),
                            .stored = sizeof(float) * (pairs_stored(p) + (2 * keys + rows) * p.head_dim)};
}

/// Step 0 for one head_dim.
template <int kHeadDim>
stage::BackwardKernel stored_p() {
  return {.name = "stored_p",
          .summary = "P out of memory, where the forward left it, and dS through memory: three kernels",
          .workspace_bytes = [](const Problem& p) { return stored_p_workspace(p, 2); },
          .traffic = stored_p_traffic,
          .prepare = prepare_stored_p<kHeadDim>,
          .run = run_stored_p<kHeadDim>};
}

}  // namespace recompute_backward
