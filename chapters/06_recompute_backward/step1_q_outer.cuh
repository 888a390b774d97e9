#pragma once
/// \file
/// Step 1: the forward's loop order. A block owns a tile of queries and visits the keys; P is computed again.
///
/// dQ of the tile stays in registers. Every block adds to every dK and dV, by atomics: 2 · Bc · head_dim of them a
/// tile.
///
/// Grid: a block of 256 threads for 64 queries, a query head and a batch entry; last queries first, since with a causal
/// mask they see the most keys. In front of it two small kernels: D (row_sums.cuh), and zeros in dK and dV.
///
/// Registers a thread: 16 elements each of S and dP, head_dim / 4 each of dQ and of a tile's dV or dK. Shared memory:
/// BackwardShared. Device memory: Q, K, V, dO, LSE, D, dQ, dK, dV. Bytes: q_outer_traffic(). FLOPs: 10 · Br · Bc ·
/// head_dim a tile.
///
/// Source: Dao et al., "FlashAttention" (2022), appendix B.4, with the loops exchanged.

#include <algorithm>
#include <cstdint>
#include <string>

#include "chapters/06_recompute_backward/row_sums.cuh"
#include "chapters/06_recompute_backward/tile.cuh"
#include "common/attention/cost.hpp"
#include "common/gpu/atomic.cuh"
#include "common/gpu/barrier.cuh"

namespace recompute_backward {

/// The tiles of K that a tile of queries visits: keys begin, begin + Bc, … below end.
template <class Tile>
__host__ __device__ constexpr KeyRange visited_keys(attention::Mask mask, int first_query, int rows, int seqlen_q,
                                                    int seqlen_kv) {
  const KeyRange keys = attention::keys_of_any(mask, first_query, first_query + rows - 1, seqlen_q, seqlen_kv);
  return {keys.begin / Tile::kBc * Tile::kBc, keys.end};
}

/// 64 queries of one head. Without `kKeyGradients` dQ alone (step 3).
template <class Tile, bool kKeyGradients>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    q_outer_kernel(BackwardArgs<float> args, const float* d_gmem, int query_tiles) {
  auto& shared = gpu::shared_memory<BackwardShared<Tile>>();
  const int head_index = static_cast<int>(blockIdx.x) / query_tiles;
  const int batch = head_index / args.heads_q;
  const int head = head_index % args.heads_q;
  const int head_kv = args.kv_head(head);
  const int first_query = (query_tiles - 1 - static_cast<int>(blockIdx.x) % query_tiles) * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  const KeyRange visited = visited_keys<Tile>(args.mask, first_query, rows, args.seqlen_q, args.seqlen_kv);

  load_queries<Tile>(shared, args, d_gmem, batch, head, first_query, rows);
  Out<Tile> dq_reg = {};

  for (int first_key = visited.begin; first_key < visited.end; first_key += Tile::kBc) {
    const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
    __syncthreads();  // K, V and dS of the tile before have been read
    load_keys<Tile>(shared, args, batch, head_kv, first_key, keys);
    __syncthreads();  // the tiles are there

    Square<Tile> s_reg = {}, dp_reg = {};
    multiply_rows<Tile>(s_reg, shared.q, shared.k);
    multiply_rows<Tile>(dp_reg, shared.dout, shared.v);
    probabilities<Tile>(s_reg, dp_reg, args, shared, first_query, first_key);  // from here on P and dS

    if constexpr (kKeyGradients) {
      store_square<Tile>(shared, s_reg);
      __syncthreads();  // P is there
      Out<Tile> dv_reg = {};
      add_over_queries<Tile>(dv_reg, shared, shared.dout);
      for_each_quad<Tile>(dv_reg, keys, Tile::key_row, [&](int key, int column, const float4& dv) {
        gpu::atomic_add4(args.dv_row(batch, first_key + key, head_kv) + column, dv);
      });
      __syncthreads();  // P has been read
    }
    store_square<Tile>(shared, dp_reg);
    __syncthreads();  // dS is there
    if constexpr (kKeyGradients) {
      Out<Tile> dk_reg = {};
      add_over_queries<Tile>(dk_reg, shared, shared.q);
      for_each_quad<Tile>(dk_reg, keys, Tile::key_row, [&](int key, int column, const float4& dk) {
        gpu::atomic_add4(args.dk_row(batch, first_key + key, head_kv) + column, gpu::scaled(dk, args.softmax_scale));
      });
    }
    add_over_keys<Tile>(dq_reg, shared, shared.k);
  }

  for_each_quad<Tile>(dq_reg, rows, Tile::query_row, [&](int row, int column, const float4& dq) {
    gpu::store4(args.dq_row(batch, first_query + row, head) + column, gpu::scaled(dq, args.softmax_scale));
  });
}

/// Launches it; nothing if there are no queries.
template <class Tile, bool kKeyGradients>
void launch_q_outer(const BackwardArgs<float>& args, const float* d_gmem) {
  const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
  const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
  if (blocks == 0) return;
  gpu::launch<BackwardShared<Tile>>(q_outer_kernel<Tile, kKeyGradients>, {.grid = blocks, .block = Tile::kThreads},
                                    args, d_gmem, query_tiles);
}

/// Element accesses of q_outer_kernel, exactly. An atomic loads and stores.
template <class Tile, bool kKeyGradients>
attention::Traffic q_outer_traffic(const Problem& p) {
  const double heads = double(p.batch) * p.heads_q, rows = heads * p.seqlen_q;
  double keys = 0;  // visited, over all tiles of queries
  for (int first_query = 0; first_query < p.seqlen_q; first_query += Tile::kBr) {
    const int tile_rows = std::min(Tile::kBr, p.seqlen_q - first_query);
    const KeyRange visited = visited_keys<Tile>(p.mask, first_query, tile_rows, p.seqlen_q, p.seqlen_kv);
    keys += visited.empty() ? 0 : std::min(p.seqlen_kv, tiles_of(visited.end, Tile::kBc) * Tile::kBc) - visited.begin;
  }
  const double tiles_of_kv = heads * keys * 2 * p.head_dim;
  const double atomics = kKeyGradients ? tiles_of_kv : 0;
  return {.loaded = sizeof(float) * (rows * (2 * p.head_dim + 2) + tiles_of_kv + atomics),
          .stored = sizeof(float) * (rows * p.head_dim + atomics)};
}

/// Step 1 for one head_dim.
template <int kHeadDim>
stage::BackwardKernel q_outer() {
  using Tile = BackwardTile<kHeadDim>;
  const std::string name = "q_outer";
  return {.name = name,
          .summary = "P computed again; a block owns queries, dK and dV by atomics",
          .require = [name](const Problem& p) { require<Tile>(name, p); },
          .workspace_bytes = d_bytes,
          .traffic =
              [](const Problem& p) {
                const double zeros = sizeof(float) * double(p.batch) * p.heads_kv * p.seqlen_kv * 2.0 * p.head_dim;
                return row_sums_traffic(p, false) + attention::Traffic{.loaded = 0, .stored = zeros} +
                       q_outer_traffic<Tile, true>(p);
              },
          .run =
              [](const BackwardArgs<float>& args, void* workspace) {
                float* d_gmem = static_cast<float*>(workspace);
                launch_row_sums<kHeadDim>(args, d_gmem, false);
                launch_zero_dk_dv<kHeadDim>(args);
                launch_q_outer<Tile, true>(args, d_gmem);
              },
          .deterministic = false};
}

}  // namespace recompute_backward
