#pragma once
/// \file
/// Beside step 2: the same kernel with P out of memory. What is left of the question "store P or compute it again?"
/// when everything else is equal: one product, 2 · Br · Bc · head_dim FLOPs a tile, against Br · Bc loads.
///
/// Grid, registers, shared memory: as in step 2, with P in the place of S. Device memory: P, [batch, heads_q, seqlen_q,
/// seqlen_kv], beside the arrays of step 2. Bytes: stored_p_fused_traffic(). FLOPs: 8 · Br · Bc · head_dim a tile.

#include <cstdint>
#include <string>

#include "chapters/06_recompute_backward/step0_stored_p.cuh"
#include "chapters/06_recompute_backward/step2_kv_outer.cuh"

namespace recompute_backward {

/// P out of memory, dS over dP. P is 0 where the mask hides a key.
template <class Tile>
__device__ void load_probabilities(Square<Tile>& p, Square<Tile>& dp, const BackwardArgs<float>& args,
                                   const BackwardShared<Tile>& shared, const float* p_gmem, int batch, int head,
                                   int first_query, int first_key) {
  const int lane = Tile::lane(static_cast<int>(threadIdx.x)), group = Tile::group(static_cast<int>(threadIdx.x));
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) {
    const int row = group + r * Tile::kLanes, query = first_query + row;
    const std::int64_t index = args.row_index(batch, query, head);
    const float d = shared.d[row];
#pragma unroll
    for (int n = 0; n < Tile::kKeys; ++n) {
      const int key = first_key + lane + n * Tile::kLanes;
      const bool exists = query < args.seqlen_q && key < args.seqlen_kv;
      p[r][n] = exists ? p_gmem[pair_offset(index, args.seqlen_kv, key)] : 0.0f;
      dp[r][n] = p[r][n] * (dp[r][n] - d);
    }
  }
}

/// 64 keys of one KV head. The difference to step 2 is where P comes from.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    stored_p_fused_kernel(BackwardArgs<float> args, const float* d_gmem, const float* p_gmem, int key_tiles) {
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

      Square<Tile> p_reg, dp_reg = {};
      multiply_rows<Tile>(dp_reg, shared.dout, shared.v);
      load_probabilities<Tile>(p_reg, dp_reg, args, shared, p_gmem, batch, head, first_query, first_key);

      store_square<Tile>(shared, p_reg);
      __syncthreads();  // P is there
      add_over_queries<Tile>(dv_reg, shared, shared.dout);
      __syncthreads();  // P has been read
      store_square<Tile>(shared, dp_reg);
      __syncthreads();  // dS is there
      add_over_queries<Tile>(dk_reg, shared, shared.q);
      Out<Tile> dq_reg = {};
      add_over_keys<Tile>(dq_reg, shared, shared.k);
      for_each_quad<Tile>(dq_reg, rows, Tile::query_row, [&](int row, int column, const float4& dq) {
        gpu::atomic_add4(args.dq_row(batch, first_query + row, head) + column, gpu::scaled(dq, args.softmax_scale));
      });
    }
  }

  for_each_quad<Tile>(dv_reg, keys, Tile::key_row, [&](int key, int column, const float4& dv) {
    gpu::store4(args.dv_row(batch, first_key + key, head_kv) + column, dv);
  });
  for_each_quad<Tile>(dk_reg, keys, Tile::key_row, [&](int key, int column, const float4& dk) {
    gpu::store4(args.dk_row(batch, first_key + key, head_kv) + column, gpu::scaled(dk, args.softmax_scale));
  });
}

/// Element accesses, exactly: those of step 2, and P of every tile that is visited.
template <class Tile>
attention::Traffic stored_p_fused_traffic(const Problem& p) {
  double pairs = 0;
  for (int first_key = 0; first_key < p.seqlen_kv; first_key += Tile::kBc) {
    const int keys = std::min(Tile::kBc, p.seqlen_kv - first_key);
    const QueryRange visited = visited_queries<Tile>(p.mask, first_key, keys, p.seqlen_q, p.seqlen_kv);
    const int end = std::min(p.seqlen_q, tiles_of(visited.end, Tile::kBr) * Tile::kBr);
    pairs += visited.empty() ? 0 : double(keys) * (end - visited.begin);
  }
  return row_sums_traffic(p, true) + kv_outer_traffic<Tile, true>(p) +
         attention::Traffic{.loaded = sizeof(float) * p.batch * p.heads_q * pairs, .stored = 0};
}

/// The variant for one head_dim.
template <int kHeadDim>
stage::BackwardKernel stored_p_fused() {
  using Tile = BackwardTile<kHeadDim>;
  const std::string name = "stored_p_fused";
  return {.name = name,
          .summary = "beside the steps: kv_outer with P out of memory",
          .require = [name](const Problem& p) { require<Tile>(name, p); },
          .workspace_bytes = [](const Problem& p) { return stored_p_workspace(p, 1); },
          .traffic = stored_p_fused_traffic<Tile>,
          .prepare = prepare_stored_p<kHeadDim>,
          .run =
              [](const BackwardArgs<float>& args, void* workspace) {
                const float* p_gmem = static_cast<float*>(workspace);
                const std::int64_t rows = std::int64_t{args.batch} * args.heads_q * args.seqlen_q;
                float* d_gmem = static_cast<float*>(workspace) + pair_offset(rows, args.seqlen_kv, 0);
                launch_row_sums<kHeadDim>(args, d_gmem, true);
                const int key_tiles = tiles_of(args.seqlen_kv, Tile::kBc);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_kv * key_tiles;
                if (blocks == 0) return;
                gpu::launch<BackwardShared<Tile>>(stored_p_fused_kernel<Tile>,
                                                  {.grid = blocks, .block = Tile::kThreads}, args, d_gmem, p_gmem,
                                                  key_tiles);
              },
          .deterministic = false};
}

}  // namespace recompute_backward
