#pragma once
/// \file
/// Step 2: the loops change places. Q outside, K and V inside; a row's O, m and ℓ never leave the chip.
///
///     for each tile of Q:              a block of its own, all at the same time
///       for each tile of K and V:      loaded once a tile of Q
///         S, P, O += PV                in shared memory and registers
///
/// Grid: a block of 128 threads a tile of Q, a query head and a batch entry; heads · ⌈seqlen_q / Br⌉ blocks.
///
/// Registers: a column of O, Br · head_dim / 128 floats a thread. Shared memory: TileShared. Device memory: Q, K, V, O,
/// LSE, and no workspace. Bytes: q_outer_traffic().
///
/// Source: the order of the Triton tutorial on fused attention and of Dao, "FlashAttention-2" (2023), section 3.2.

#include "chapters/04_sram_tiling/tile.cuh"
#include "common/attention/cost.hpp"
#include "common/stage/kernel.hpp"

namespace sram_tiling {

/// One tile of Q.
template <class Tile>
__global__ void q_outer_kernel(ForwardArgs<float> args, int query_tiles) {
  auto& shared = gpu::shared_memory<TileShared<Tile>>();
  const int thread = static_cast<int>(threadIdx.x);
  const int head_index = static_cast<int>(blockIdx.x) / query_tiles;
  const int batch = head_index / args.heads_q;
  const int head = head_index % args.heads_q;
  const int head_kv = args.kv_head(head);
  const int first_query = static_cast<int>(blockIdx.x) % query_tiles * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);

  kernel::load_tile<kThreads, Tile::kHeadDim>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq, rows);
  if (thread < Tile::kBr) {
    shared.m[thread] = -INFINITY;
    shared.l[thread] = 0;
  }
  OutputColumn<Tile> o;

  for (int first_key = 0; first_key < args.seqlen_kv; first_key += Tile::kBc) {
    const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
    __syncthreads();  // K, V and S of the tile before have been read
    kernel::load_tile<kThreads, Tile::kHeadDim>(shared.k, args.k_row(batch, first_key, head_kv), args.k_strides.seq,
                                                keys);
    kernel::load_tile<kThreads, Tile::kHeadDim>(shared.v, args.v_row(batch, first_key, head_kv), args.v_strides.seq,
                                                keys);
    __syncthreads();  // the tiles are there

    compute_scores(shared, args, first_query, first_key);
    __syncthreads();  // S is there
    softmax_rows(shared);
    __syncthreads();  // P is there
    o.accumulate(shared);
  }

  __syncthreads();  // where there are no keys, the threads have not met since ℓ = 0
  o.normalize(shared);
  o.store(args.o_row(batch, first_query, head), args.o_strides.seq, rows);
  if (thread < rows) {
    *args.lse_entry(batch, first_query + thread, head) = kernel::log_sum_exp({shared.m[thread], shared.l[thread]});
  }
}

/// Element accesses of step 2, exactly: Q once, K and V once a tile of Q; O and LSE stored once.
template <class Tile>
attention::Traffic q_outer_traffic(const attention::Problem& p) {
  const double heads = double(p.batch) * p.heads_q;
  const double rows = heads * p.seqlen_q;
  const double passes = tiles_of(p.seqlen_q, Tile::kBr);
  const double d = p.head_dim;
  return {.loaded = sizeof(float) * (rows * d + heads * 2 * p.seqlen_kv * d * passes),
          .stored = sizeof(float) * rows * (d + 1)};
}

/// Step 2 with the given tile, as the programs and tests see it.
template <class Tile>
stage::ForwardKernel q_outer(const std::string& name) {
  return {.name = name,
          .summary = std::string("Q outside: O, m and l stay in registers and shared memory") +
                     (Tile::kPadding == 0 ? "; rows of K and S without padding" : ""),
          .memory = stage::Memory::device,
          .require = [name](const attention::Problem& p) { require_tile<Tile>(name, p); },
          .traffic = q_outer_traffic<Tile>,
          .run =
              [](const ForwardArgs<float>& args, void*) {
                const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<TileShared<Tile>>(q_outer_kernel<Tile>, {.grid = blocks, .block = kThreads}, args,
                                              query_tiles);
              }};
}

}  // namespace sram_tiling
