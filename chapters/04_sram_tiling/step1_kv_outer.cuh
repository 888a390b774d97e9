#pragma once
/// \file
/// Step 1: FlashAttention-1's loop order. K and V outside, Q inside; what a row has seen so far waits in device memory.
///
///     for each tile of K and V:        loaded once
///       for each tile of Q:            with O, m and ℓ, loaded and stored once a tile of K and V
///         S, P, O += PV                in shared memory and registers
///
/// Grid: a block of 128 threads a query head of a batch entry. More cannot take part: the tiles of K and V follow each
/// other, since each works on the same O.
///
/// Registers: a column of O, Br · head_dim / 128 floats a thread. Shared memory: TileShared. Device memory: Q, K, V, O,
/// LSE, and ℓ as workspace. O holds the sum that is not yet divided by ℓ, and LSE holds m, until the last tile turns
/// them into the results. Bytes: kv_outer_traffic().
///
/// Source: Dao et al., "FlashAttention" (2022), algorithm 1. That keeps O divided by ℓ all the time, which costs a
/// division more and gives the same.

#include <cstddef>

#include "chapters/04_sram_tiling/tile.cuh"
#include "common/attention/cost.hpp"
#include "common/stage/kernel.hpp"

namespace sram_tiling {

/// O = 0, ℓ = 0, m = −∞ for all rows of a head (algorithm 1, line 2): the neutral element of the merge.
template <class Tile>
__device__ void clear_states(const ForwardArgs<float>& args, float* o, float* m_gmem, float* l_gmem) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int query = 0; query < args.seqlen_q; ++query) {
    if (thread < Tile::kHeadDim) o[query * args.o_strides.seq + thread] = 0;
  }
  for (int query = thread; query < args.seqlen_q; query += kThreads) {
    m_gmem[query] = -INFINITY;
    l_gmem[query] = 0;
  }
}

/// One head. \param l_all_gmem ℓ, [batch, heads_q, seqlen_q]
template <class Tile>
__global__ void kv_outer_kernel(ForwardArgs<float> args, float* l_all_gmem) {
  auto& shared = gpu::shared_memory<TileShared<Tile>>();
  const int thread = static_cast<int>(threadIdx.x);
  const int batch = static_cast<int>(blockIdx.x) / args.heads_q;
  const int head = static_cast<int>(blockIdx.x) % args.heads_q;
  const int head_kv = args.kv_head(head);
  float* m_gmem = args.lse_entry(batch, 0, head);
  float* l_gmem = l_all_gmem + (m_gmem - args.lse_gmem);
  clear_states<Tile>(args, args.o_row(batch, 0, head), m_gmem, l_gmem);
  __syncthreads();  // the states are where the threads that go on with them will read

  for (int first_key = 0; first_key < args.seqlen_kv; first_key += Tile::kBc) {
    const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
    const bool last = first_key + Tile::kBc >= args.seqlen_kv;
    kernel::load_tile<kThreads, Tile::kHeadDim>(shared.k, args.k_row(batch, first_key, head_kv), args.k_strides.seq,
                                                keys);
    kernel::load_tile<kThreads, Tile::kHeadDim>(shared.v, args.v_row(batch, first_key, head_kv), args.v_strides.seq,
                                                keys);

    for (int first_query = 0; first_query < args.seqlen_q; first_query += Tile::kBr) {
      const int rows = min(Tile::kBr, args.seqlen_q - first_query);
      kernel::load_tile<kThreads, Tile::kHeadDim>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq,
                                                  rows);
      if (thread < Tile::kBr) {
        shared.m[thread] = thread < rows ? m_gmem[first_query + thread] : -INFINITY;
        shared.l[thread] = thread < rows ? l_gmem[first_query + thread] : 0.0f;
      }
      OutputColumn<Tile> o;
      o.load(args.o_row(batch, first_query, head), args.o_strides.seq, rows);
      __syncthreads();  // the tiles are there

      compute_scores(shared, args, first_query, first_key);
      __syncthreads();  // S is there
      softmax_rows(shared);
      __syncthreads();  // P is there
      o.accumulate(shared);

      if (last) o.normalize(shared);
      o.store(args.o_row(batch, first_query, head), args.o_strides.seq, rows);
      if (thread < rows) {
        const kernel::SoftmaxState state{shared.m[thread], shared.l[thread]};
        m_gmem[first_query + thread] = last ? kernel::log_sum_exp(state) : state.m;
        l_gmem[first_query + thread] = state.l;
      }
      __syncthreads();  // what comes next overwrites Q, S, m and ℓ, or K and V
    }
  }
}

/// Element accesses of step 1, exactly: K and V once; Q, O, m and ℓ once a tile of K and V; and the neutral state,
/// stored before the first of them.
template <class Tile>
attention::Traffic kv_outer_traffic(const attention::Problem& p) {
  const double heads = double(p.batch) * p.heads_q;
  const double rows = heads * p.seqlen_q;
  if (rows == 0) return {};
  const double passes = tiles_of(p.seqlen_kv, Tile::kBc);
  const double d = p.head_dim;
  return {.loaded = sizeof(float) * (heads * 2 * p.seqlen_kv * d + passes * rows * (2 * d + 2)),
          .stored = sizeof(float) * (1 + passes) * rows * (d + 2)};
}

/// Step 1 with the given tile, as the programs and tests see it.
template <class Tile>
stage::ForwardKernel kv_outer(const std::string& name) {
  return {.name = name,
          .summary = "FlashAttention-1's order: K and V outside; O, m and l wait in device memory",
          .memory = stage::Memory::device,
          .require = [name](const attention::Problem& p) { require_tile<Tile>(name, p); },
          .workspace_bytes =
              [](const attention::Problem& p) { return static_cast<std::size_t>(p.elements_lse()) * sizeof(float); },
          .traffic = kv_outer_traffic<Tile>,
          .run =
              [](const ForwardArgs<float>& args, void* workspace) {
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q;
                if (args.seqlen_q == 0) return;
                gpu::launch<TileShared<Tile>>(kv_outer_kernel<Tile>, {.grid = blocks, .block = kThreads}, args,
                                              static_cast<float*>(workspace));
              }};
}

}  // namespace sram_tiling
