#pragma once
/// \file
/// Step 1: one thread asks for whole tiles, and TMA brings them. Everything else is chapter 10's second step.
///
///   - No thread computes an address or copies: a tile is four numbers and a tensor map.
///   - An mbarrier a stage counts the bytes. Who waits for its phase sees them, WGMMA included, without a fence.
///   - Two tiles of K and V take turns. Both are on their way from the start; when a tile has been used, and all
///   threads
///     have met, the one after the next is asked for.
///   - Rows past the end arrive as zeros: the map knows where the array ends.
///   - Shared memory: 2 · head_dim · (Br + 4 · Bc) bytes: 160 KB at head_dim 128.
///   - Per tile: 4 · Br · Bc · head_dim FLOP, 2 · Bc · head_dim elements of K and V.
///
/// Sources: PTX ISA, "cp.async.bulk.tensor", "mbarrier"; Shah et al., "FlashAttention-3" (2024).

#include <string>

#include "chapters/11_tma_pipeline/tile.cuh"

namespace tma_pipeline {

template <class T, int kHeadDim>
using TmaLoadsTile = PipelineTile<T, kHeadDim, 2>;

template <class Tile>
struct TmaLoadsShared {
  QueryPanels<Tile> q;
  KeyPanels<Tile> k[Tile::kStages], v[Tile::kStages];
  gpu::Mbarrier q_full, full[Tile::kStages];
};

/// Br rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    tma_loads_kernel(const __grid_constant__ Maps maps, ForwardArgs<typename Tile::T> args, int query_tiles) {
  using T = typename Tile::T;
  auto& shared = gpu::shared_memory<TmaLoadsShared<Tile>>();
  const kernel::QueryTile query_tile = kernel::query_tile_of_block(args, query_tiles);
  const int batch = query_tile.batch, head = query_tile.head, head_kv = args.kv_head(head);
  const int first_query = query_tile.index * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % gpu::kWarpSize;
  const int warp_row = thread / gpu::kWarpSize * 16;
  const int warpgroup_row = warp_row / kernel::kWarpgroupRows * kernel::kWarpgroupRows;
  const KeyRange visited = kernel::visited_keys(args.mask, first_query, rows, args.seqlen_q, args.seqlen_kv, Tile::kBc);
  const KeyRange unmasked =
      attention::keys_of_all(args.mask, first_query, first_query + rows - 1, args.seqlen_q, args.seqlen_kv);
  const int tiles = tiles_of(visited.end - visited.begin, Tile::kBc);
  const kernel::FoldedScale scale(args.softmax_scale);
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  Out<Tile> o_reg = {};

  const auto start_loading = [&](int tile) {
    const int stage = tile % Tile::kStages, first_key = visited.begin + tile * Tile::kBc;
    gpu::mbarrier_arrive_expect_bytes(shared.full[stage],
                                      sizeof shared.k[stage].elements + sizeof shared.v[stage].elements);
    load_panels(shared.k[stage], maps.k, shared.full[stage], first_key, head_kv, batch);
    load_panels(shared.v[stage], maps.v, shared.full[stage], first_key, head_kv, batch);
  };
  if (thread == 0) {
    gpu::mbarrier_init(shared.q_full, 1);
    for (gpu::Mbarrier& full : shared.full) gpu::mbarrier_init(full, 1);
    gpu::mbarrier_init_fence();
    gpu::mbarrier_arrive_expect_bytes(shared.q_full, sizeof shared.q.elements);
    load_panels(shared.q, maps.q, shared.q_full, first_query, head, batch);
    for (int tile = 0; tile < min(tiles, Tile::kStages); ++tile) start_loading(tile);
  }
  __syncthreads();  // the barriers are there
  gpu::mbarrier_wait(shared.q_full, 0);

  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % Tile::kStages, first_key = visited.begin + tile * Tile::kBc;
    gpu::mbarrier_wait(shared.full[stage], tile / Tile::kStages % 2);

    Scores<Tile> s_reg;
    kernel::start_scores(s_reg, shared.q, warpgroup_row, shared.k[stage]);
    gpu::wgmma_wait<0>();
    gpu::keep(s_reg);
    if (scale.sign != 1) kernel::apply_sign(s_reg, scale.sign);
    if (needs_mask<Tile>(first_key, unmasked)) {
      kernel::mask_by_bits(s_reg, args, first_query + warp_row, first_key, lane);
    }
    float rescale[2];
    kernel::softmax(s_reg, m, l, rescale, scale);
    kernel::scale_rows(o_reg, rescale);

    Probabilities<Tile> p_reg;
    kernel::pack<T>(p_reg, s_reg);
    kernel::start_output(o_reg, p_reg, shared.v[stage]);
    gpu::wgmma_wait<0>();
    gpu::keep(o_reg);
    __syncthreads();  // all products have read this tile, and after the last one Q
    if (thread == 0 && tile + Tile::kStages < tiles) start_loading(tile + Tile::kStages);
  }
  kernel::write_rows(shared.q, o_reg, m, l, args, batch, head, first_query, warp_row, lane);
}

/// Step 1 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel tma_loads() {
  using AnyTile = TmaLoadsTile<gpu::bf16, kHeadDim>;
  const std::string name = "tma_loads";
  return {.name = name,
          .summary = "one thread has tiles copied by TMA; an mbarrier counts their bytes",
          .require =
              [name](const Problem& p) {
                stage::require_hopper(name);
                stage::require_16_byte_rows(name, p);
                stage::require_tensor_maps(name, p);
                stage::require_shared_memory(name, sizeof(TmaLoadsShared<AnyTile>));
              },
          .traffic = [](const Problem& p) { return attention::tiled_forward_traffic(p, AnyTile::kBr, AnyTile::kBc); },
          .run =
              []<stage::SixteenBits T>(const ForwardArgs<T>& args, void*) {
                using Tile = TmaLoadsTile<T, kHeadDim>;
                const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<TmaLoadsShared<Tile>>(tma_loads_kernel<Tile>, {.grid = blocks, .block = Tile::kThreads},
                                                  make_maps<Tile>(args), args, query_tiles);
              }};
}

}  // namespace tma_pipeline
