#pragma once
/// \file
/// Step 2: a block owns a tile of keys and visits the queries.
///
/// dK and dV of the tile stay in registers; dQ is added up by atomics, Br · head_dim of them a tile: half of step 1's.
/// With grouped queries a block goes through all query heads of its KV head, so that their sum needs no atomics either.
///
/// Grid: a block of 256 threads for 64 keys, a KV head and a batch entry; first keys first, since with a causal mask
/// they are seen by the most queries. In front of it the kernel that computes D and sets dQ to zero.
///
/// Registers a thread: 16 elements each of S and dP, head_dim / 4 each of dK, dV and of a tile's dQ. Shared memory:
/// BackwardShared. Device memory: as in step 1. Bytes: kv_outer_traffic(). FLOPs: 10 · Br · Bc · head_dim a tile.
///
/// Source: Dao, "FlashAttention-2" (2023), algorithm 2 and section 3.2.

#include <algorithm>
#include <cstdint>
#include <string>

#include "chapters/06_recompute_backward/row_sums.cuh"
#include "chapters/06_recompute_backward/tile.cuh"
#include "common/attention/cost.hpp"
#include "common/gpu/atomic.cuh"
#include "common/gpu/barrier.cuh"

namespace recompute_backward {

/// The tiles of Q that a tile of keys visits: queries begin, begin + Br, … below end.
template <class Tile>
__host__ __device__ constexpr QueryRange visited_queries(attention::Mask mask, int first_key, int keys, int seqlen_q,
                                                         int seqlen_kv) {
  const QueryRange queries = attention::queries_of_any(mask, first_key, first_key + keys - 1, seqlen_q, seqlen_kv);
  return {queries.begin / Tile::kBr * Tile::kBr, queries.end};
}

/// 64 keys of one KV head. Without `kQueryGradients` dK and dV alone (step 3).
template <class Tile, bool kQueryGradients>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    kv_outer_kernel(BackwardArgs<float> args, const float* d_gmem, int key_tiles) {
  auto& shared = gpu::shared_memory<BackwardShared<Tile>>();
  const int head_index = static_cast<int>(blockIdx.x) / key_tiles;
  const int batch = head_index / args.heads_kv;
  const int head_kv = head_index % args.heads_kv;
  const int group = args.heads_q / args.heads_kv;
  const int first_key = static_cast<int>(blockIdx.x) % key_tiles * Tile::kBc;
  const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
  const QueryRange visited = visited_queries<Tile>(args.mask, first_key, keys, args.seqlen_q, args.seqlen_kv);

  load_keys<Tile>(shared, args, batch, head_kv, first_key, keys);
  Out<Tile> dk_reg = {}, dv_reg = {};

  for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
    for (int first_query = visited.begin; first_query < visited.end; first_query += Tile::kBr) {
      const int rows = min(Tile::kBr, args.seqlen_q - first_query);
      __syncthreads();  // Q, dO and dS of the tile before have been read
      load_queries<Tile>(shared, args, d_gmem, batch, head, first_query, rows);
      __syncthreads();  // the tiles are there

      Square<Tile> s_reg = {}, dp_reg = {};
      multiply_rows<Tile>(s_reg, shared.q, shared.k);
      multiply_rows<Tile>(dp_reg, shared.dout, shared.v);
      probabilities<Tile>(s_reg, dp_reg, args, shared, first_query, first_key);  // from here on P and dS

      store_square<Tile>(shared, s_reg);
      __syncthreads();  // P is there
      add_over_queries<Tile>(dv_reg, shared, shared.dout);
      __syncthreads();  // P has been read
      store_square<Tile>(shared, dp_reg);
      __syncthreads();  // dS is there
      add_over_queries<Tile>(dk_reg, shared, shared.q);
      if constexpr (kQueryGradients) {
        Out<Tile> dq_reg = {};
        add_over_keys<Tile>(dq_reg, shared, shared.k);
        for_each_quad<Tile>(dq_reg, rows, Tile::query_row, [&](int row, int column, const float4& dq) {
          gpu::atomic_add4(args.dq_row(batch, first_query + row, head) + column, gpu::scaled(dq, args.softmax_scale));
        });
      }
    }
  }

  for_each_quad<Tile>(dv_reg, keys, Tile::key_row, [&](int key, int column, const float4& dv) {
    gpu::store4(args.dv_row(batch, first_key + key, head_kv) + column, dv);
  });
  for_each_quad<Tile>(dk_reg, keys, Tile::key_row, [&](int key, int column, const float4& dk) {
    gpu::store4(args.dk_row(batch, first_key + key, head_kv) + column, gpu::scaled(dk, args.softmax_scale));
  });
}

/// Launches it; nothing if there are no keys.
template <class Tile, bool kQueryGradients>
void launch_kv_outer(const BackwardArgs<float>& args, const float* d_gmem) {
  const int key_tiles = tiles_of(args.seqlen_kv, Tile::kBc);
  const std::int64_t blocks = std::int64_t{args.batch} * args.heads_kv * key_tiles;
  if (blocks == 0) return;
  gpu::launch<BackwardShared<Tile>>(kv_outer_kernel<Tile, kQueryGradients>, {.grid = blocks, .block = Tile::kThreads},
                                    args, d_gmem, key_tiles);
}

/// Element accesses of kv_outer_kernel, exactly. An atomic loads and stores.
template <class Tile, bool kQueryGradients>
attention::Traffic kv_outer_traffic(const Problem& p) {
  const double heads = double(p.batch) * p.heads_q;
  const double keys = double(p.batch) * p.heads_kv * p.seqlen_kv;
  double rows = 0;  // visited, over all tiles of keys
  for (int first_key = 0; first_key < p.seqlen_kv; first_key += Tile::kBc) {
    const int tile_keys = std::min(Tile::kBc, p.seqlen_kv - first_key);
    const QueryRange visited = visited_queries<Tile>(p.mask, first_key, tile_keys, p.seqlen_q, p.seqlen_kv);
    rows += visited.empty() ? 0 : std::min(p.seqlen_q, tiles_of(visited.end, Tile::kBr) * Tile::kBr) - visited.begin;
  }
  const double atomics = kQueryGradients ? heads * rows * p.head_dim : 0;
  return {.loaded = sizeof(float) * (keys * 2 * p.head_dim + heads * rows * (2 * p.head_dim + 2) + atomics),
          .stored = sizeof(float) * (keys * 2 * p.head_dim + atomics)};
}

/// Step 2 for one head_dim.
template <int kHeadDim>
stage::BackwardKernel kv_outer() {
  using Tile = BackwardTile<kHeadDim>;
  const std::string name = "kv_outer";
  return {.name = name,
          .summary = "P computed again; a block owns keys, dQ by atomics",
          .require = [name](const Problem& p) { require<Tile>(name, p); },
          .workspace_bytes = d_bytes,
          .traffic = [](const Problem& p) { return row_sums_traffic(p, true) + kv_outer_traffic<Tile, true>(p); },
          .run =
              [](const BackwardArgs<float>& args, void* workspace) {
                float* d_gmem = static_cast<float*>(workspace);
                launch_row_sums<kHeadDim>(args, d_gmem, true);
                launch_kv_outer<Tile, true>(args, d_gmem);
              },
          .deterministic = false};
}

}  // namespace recompute_backward
