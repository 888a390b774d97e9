#pragma once
/// \file
/// Step 1: a block owns 128 keys and goes through the queries that see them; dK and dV stay in registers to the end,
/// dQ is added up by atomics.
///
///   - Four warps at head_dim 64, eight at 128 (tile.cuh). dS goes through shared memory, since dQ is a sum over the
///     keys of all warps; at head_dim 128 P and dS do for the partner, too.
///   - Two tiles of Q and dO take turns, as K and V do in chapter 08.
///   - The first keys of a causal problem are seen by the most queries, and start first: of as many heads as fit into
///     the L2 together (kernel::Sections).
///   - Registers of a lane: dK, dV, S and dP are 64 + 64 + 32 + 32; dQ's 32 take the place of S.
///   - Shared memory: K, V, two tiles of Q and dO, dS, and at head_dim 128 P: 83 and 165 KB.
///   - Per tile: 10 · Br · Bc · head_dim FLOP; 2 · Br · head_dim elements of Q and dO, Br · head_dim floats added to
///   dQ.
///
/// Source: Dao, "FlashAttention-2" (2023), algorithm 2; Shah et al., "FlashAttention-3" (2024), for S transposed.

#include <algorithm>
#include <cstdint>
#include <string>

#include "chapters/09_tensor_core_backward/query_rows.cuh"
#include "chapters/09_tensor_core_backward/rows_out.cuh"
#include "chapters/09_tensor_core_backward/tile.cuh"
#include "common/gpu/async_copy.cuh"
#include "common/gpu/atomic.cuh"
#include "common/gpu/uniform.cuh"
#include "common/kernel/sections.hpp"

namespace tensor_core_backward {

/// The tiles of queries that see some of a block's keys.
template <class Tile>
struct VisitedTiles {
  int begin, end;  ///< in tiles of Br queries
};
template <class Tile>
__host__ __device__ constexpr VisitedTiles<Tile> visited_tiles(attention::Mask mask, int first_key, int keys,
                                                               int seqlen_q, int seqlen_kv) {
  const QueryRange queries = attention::queries_of_any(mask, first_key, first_key + keys - 1, seqlen_q, seqlen_kv);
  return {queries.begin / Tile::kBr, queries.empty() ? queries.begin / Tile::kBr : tiles_of(queries.end, Tile::kBr)};
}

/// 128 keys of one KV head. Without `kQueryGradients` dK and dV alone (step 2).
template <class Tile, bool kQueryGradients>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    kv_outer_kernel(BackwardArgs<typename Tile::T> args, const RowStatistics* statistics_gmem, float* sums_gmem,
                    int padded_rows, kernel::Sections sections) {
  using KTile = typename BackwardShared<Tile>::KTile;
  using QTile = typename BackwardShared<Tile>::QTile;
  auto& shared = gpu::shared_memory<BackwardShared<Tile>>();
  const auto [head_index, key_tile] = sections[static_cast<int>(blockIdx.x)];  // blocks start in order
  const int batch = head_index / args.heads_kv, head_kv = head_index % args.heads_kv;
  const int first_key = key_tile * Tile::kBc;
  const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / gpu::kWarpSize;
  const int warp_key = warp / Tile::kTeam * Tile::kWarpKeys, member = warp % Tile::kTeam;

  // All tiles of the group's first head, then of its second, … One tile is loaded ahead of the one that is computed.
  const VisitedTiles<Tile> visited = visited_tiles<Tile>(args.mask, first_key, keys, args.seqlen_q, args.seqlen_kv);
  const int group = args.heads_q / args.heads_kv;
  const int steps = group * (visited.end - visited.begin);
  int head = head_kv * group, tile = visited.begin;
  int head_ahead = head, tile_ahead = tile;
  const auto advance = [&visited](int& of_head, int& of_tile) {
    if (++of_tile == visited.end) of_tile = visited.begin, ++of_head;
  };

  const auto start_loading = [&](int stage) {
    const int first_query = tile_ahead * Tile::kBr;
    const int rows = min(Tile::kBr, args.seqlen_q - first_query);
    kernel::load_chunks_async<Tile::kThreads>(shared.q[stage], args.q_row(batch, first_query, head_ahead),
                                              args.q_strides.seq, rows);
    kernel::load_chunks_async<Tile::kThreads>(shared.dout[stage], args.dout_row(batch, first_query, head_ahead),
                                              args.dout_strides.seq, rows);
    const int pair = static_cast<int>(threadIdx.x);  // of rows: 16 bytes
    if (pair < Tile::kBr / 2) {
      const std::int64_t row = (std::int64_t{batch} * args.heads_q + head_ahead) * padded_rows + first_query + 2 * pair;
      gpu::copy_async<16>(&shared.rows[stage][2 * pair], statistics_gmem + row);
    }
    advance(head_ahead, tile_ahead);
  };
  kernel::load_chunks_async<Tile::kThreads>(shared.k, args.k_row(batch, first_key, head_kv), args.k_strides.seq, keys);
  kernel::load_chunks_async<Tile::kThreads>(shared.v, args.v_row(batch, first_key, head_kv), args.v_strides.seq, keys);
  if (steps > 0) start_loading(0);
  gpu::copy_async_commit();

  const int k_offset = kernel::offset_of_a<KTile>(warp_key, lane);
  const int q_offset = kernel::offset_of_b<QTile>(lane);
  const int column_offset = kernel::offset_of_b_transposed<QTile>(lane) + Tile::kWarpColumns * member;
  Out<Tile> dk_reg = {}, dv_reg = {};

  for (int step = 0; step < steps; ++step) {
    const int stage = step % Tile::kStages;
    const int first_query = tile * Tile::kBr;
    gpu::copy_async_wait<0>();
    __syncthreads();  // Q and dO are there; those of the tile before, P and dS have been read
    if (step + 1 < steps) start_loading(stage ^ 1);
    gpu::copy_async_commit();

#pragma unroll 1
    for (int pass = 0; pass < Tile::kPasses; ++pass) {
      const int query = (pass + member) * Tile::kWarpQueries;  // of the tile's
      Square<Tile> p_reg = {}, ds_reg = {};
      const int rows_offset = q_offset + query * Tile::kHeadDim;
      multiply_rows<Tile>(p_reg, shared.k, k_offset, shared.q[stage], rows_offset);
      multiply_rows<Tile>(ds_reg, shared.v, k_offset, shared.dout[stage], rows_offset);
      probabilities<Tile>(p_reg, ds_reg, shared.rows[stage] + query, args.softmax_scale * kernel::kLog2E, lane);
      const KeyRange unmasked = attention::keys_of_all(
          args.mask, first_query, min(first_query + Tile::kBr, args.seqlen_q) - 1, args.seqlen_q, args.seqlen_kv);
      if (first_key < unmasked.begin || first_key + Tile::kBc > unmasked.end) {
        mask_probabilities<Tile>(p_reg, args, first_key + warp_key, first_query + query, lane);
      }

      const int pair_offset =
          (SquareTile<Tile>::offset(warp_key + kernel::fragment_row(0, lane), 0) + kernel::fragment_column(lane)) ^
          query;
#pragma unroll
      for (int i = 0; i < Tile::kQuerySteps; ++i) {
        Operand<Tile> a_reg;
        pack_queries<Tile>(a_reg, p_reg, i);
        if constexpr (Tile::kTeam > 1) store_operand<Tile>(shared.p, pair_offset, a_reg, i);
        add_over_queries<Tile>(dv_reg, a_reg, shared.dout[stage], column_offset + (query + 16 * i) * Tile::kHeadDim);
      }
#pragma unroll
      for (int i = 0; i < Tile::kQuerySteps; ++i) {
        Operand<Tile> a_reg;
        multiply_by_p<Tile>(ds_reg, p_reg, i);
        pack_queries<Tile>(a_reg, ds_reg, i);
        if constexpr (kQueryGradients || Tile::kTeam > 1) store_operand<Tile>(shared.ds, pair_offset, a_reg, i);
        add_over_queries<Tile>(dk_reg, a_reg, shared.q[stage], column_offset + (query + 16 * i) * Tile::kHeadDim);
      }
    }
    if constexpr (kQueryGradients || Tile::kTeam > 1) __syncthreads();  // P and dS of all warps are there

    if constexpr (Tile::kTeam > 1) {
      const int query = (1 - member) * Tile::kWarpQueries;  // the partner's
      const int a_offset = kernel::offset_of_a<SquareTile<Tile>>(warp_key, gpu::lane()) ^ query;
#pragma unroll 1
      for (int i = 0; i < Tile::kQuerySteps; ++i) {
        Operand<Tile> a_reg;
        const int rows_offset = column_offset + (query + 16 * i) * Tile::kHeadDim;
        const auto load = [&](const SquareTile<Tile>& tile_smem) {
#pragma unroll
          for (int t = 0; t < Tile::kKeyTiles; ++t) {
            gpu::load_matrices<4>(a_reg[t],
                                  tile_smem.at(SquareTile<Tile>::column_step(a_offset, i) + 16 * t * Tile::kBr));
          }
        };
        load(shared.p);
        add_over_queries<Tile>(dv_reg, a_reg, shared.dout[stage], rows_offset);
        load(shared.ds);
        add_over_queries<Tile>(dk_reg, a_reg, shared.q[stage], rows_offset);
      }
    }
    if constexpr (kQueryGradients) {
      float dq_reg[Tile::kDqRowTiles][Tile::kDqColumnTiles][4] = {};
      const int dq_row = warp % 2 * 16 * Tile::kDqRowTiles, first_column_tile = warp / 2 * Tile::kDqColumnTiles;
      add_over_keys<Tile>(dq_reg, shared.ds, shared.k, dq_row, first_column_tile, gpu::lane());
      const std::int64_t row = (std::int64_t{batch} * args.heads_q + head) * padded_rows + first_query + dq_row;
#pragma unroll
      for (int t = 0; t < Tile::kDqRowTiles; ++t)
#pragma unroll
        for (int c = 0; c < Tile::kDqColumnTiles; ++c) {
          const float(&sum)[4] = dq_reg[t][c];
          gpu::atomic_add4(sums_gmem + sums_offset<Tile::kHeadDim>(row + 16 * t, first_column_tile + c, gpu::lane()),
                           make_float4(sum[0], sum[1], sum[2], sum[3]));
        }
    }
    advance(head, tile);
  }
  gpu::copy_async_wait<0>();  // of K and V, where no query sees them
  __syncthreads();            // K and V are there, and have been read: dK and dV leave from their places
  const WarpsPart own = {warp_key, Tile::kWarpColumns * member};
#pragma unroll
  for (int t = 0; t < Tile::kKeyTiles; ++t) {
    put_rows(shared.k, dk_reg[t], args.softmax_scale, {own.first_row + 16 * t, own.first_column});
    put_rows(shared.v, dv_reg[t], 1, {own.first_row + 16 * t, own.first_column});
  }
  __syncwarp();
  copy_rows_out<Tile::kWarpKeys, Tile::kWarpColumns>(args.dk_row(batch, first_key, head_kv), args.dk_strides.seq,
                                                     shared.k, own, keys);
  copy_rows_out<Tile::kWarpKeys, Tile::kWarpColumns>(args.dv_row(batch, first_key, head_kv), args.dv_strides.seq,
                                                     shared.v, own, keys);
}

/// Launches it; nothing if there are no keys.
template <class Tile, bool kQueryGradients>
void launch_kv_outer(const BackwardArgs<typename Tile::T>& args, const Workspace& layout, void* workspace) {
  const int key_tiles = tiles_of(args.seqlen_kv, Tile::kBc);
  const std::int64_t heads = std::int64_t{args.batch} * args.heads_kv, blocks = heads * key_tiles;
  if (blocks == 0) return;
  // What all blocks of a head read: Q and dO; and what they add to.
  const std::int64_t row_bytes = 2 * sizeof(typename Tile::T) + (kQueryGradients ? sizeof(float) : 0);
  const std::int64_t head_bytes =
      args.heads_q / args.heads_kv * std::int64_t{layout.padded_rows} * Tile::kHeadDim * row_bytes;
  const auto sections = kernel::Sections::that_fit(head_bytes, key_tiles, heads);
  const RowStatistics* statistics = layout.statistics(workspace);
  gpu::launch<BackwardShared<Tile>>(kv_outer_kernel<Tile, kQueryGradients>, {.grid = blocks, .block = Tile::kThreads},
                                    args, statistics, layout.sums(workspace), layout.padded_rows, sections);
}

/// Element accesses of kv_outer_kernel, exactly. An atomic loads and stores.
template <class Tile, bool kQueryGradients>
attention::Traffic kv_outer_traffic(const Problem& p) {
  const double heads = double(p.batch) * p.heads_q, keys = double(p.batch) * p.heads_kv * p.seqlen_kv;
  double rows = 0, padded_rows = 0;  // visited, over all tiles of keys
  for (int first_key = 0; first_key < p.seqlen_kv; first_key += Tile::kBc) {
    const int tile_keys = std::min(Tile::kBc, p.seqlen_kv - first_key);
    const auto visited = visited_tiles<Tile>(p.mask, first_key, tile_keys, p.seqlen_q, p.seqlen_kv);
    padded_rows += double(visited.end - visited.begin) * Tile::kBr;
    if (visited.begin < visited.end) rows += std::min(p.seqlen_q, visited.end * Tile::kBr) - visited.begin * Tile::kBr;
  }
  const double of_kv = keys * 2 * 2 * p.head_dim;
  const double atomics = kQueryGradients ? heads * padded_rows * sizeof(float) * p.head_dim : 0;
  return {.loaded = of_kv + heads * (rows * 2 * 2 * p.head_dim + padded_rows * sizeof(RowStatistics)) + atomics,
          .stored = of_kv + atomics};
}

/// Step 1 for one head_dim.
template <int kHeadDim>
stage::BackwardKernel kv_outer() {
  using AnyTile = BackwardTile<gpu::bf16, kHeadDim>;
  const std::string name = "kv_outer";
  return {.name = name,
          .summary = "128 keys a block, S transposed; dK and dV in registers, dQ by atomics in fp32",
          .require = [name](const Problem& p) { require(name, p, sizeof(BackwardShared<AnyTile>)); },
          .workspace_bytes = [](const Problem& p) { return Workspace::of(p, true).bytes(); },
          .traffic =
              [](const Problem& p) {
                return prepare_traffic(p, true) + kv_outer_traffic<AnyTile, true>(p) + finish_traffic(p);
              },
          .run =
              []<stage::SixteenBits T>(const BackwardArgs<T>& args, void* workspace) {
                const Workspace layout = Workspace::of(args, true);
                launch_prepare<T, kHeadDim>(args, layout, workspace);
                launch_kv_outer<BackwardTile<T, kHeadDim>, true>(args, layout, workspace);
                launch_finish<T, kHeadDim>(args, layout, workspace);
              },
          .deterministic = false};
}

}  // namespace tensor_core_backward
