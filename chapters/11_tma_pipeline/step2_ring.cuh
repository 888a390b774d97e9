#pragma once
/// \file
/// Step 2: a ring. K and V have barriers of their own, "full" and "empty", so that nobody waits for more than it needs:
/// Q Kᵀ starts before V has come, and a tile's place is free again when its last reader is done with it, without a
/// meeting of the block.
///
///   - "Full" counts the bytes of a tile; "empty" counts the warps that have finished with it. Thread 0 asks for the
///     tile that comes kStages later into a place as soon as it is empty, while its own product is under way.
///   - A barrier's phases alternate; tile t is its place's phase t / kStages, and a wait names the parity of that.
///   - O leaves through TMA, too, from the place of Q: rows past the end are not stored.
///   - Shared memory: 2 · head_dim · (Br + 2 · kStages · Bc) bytes; three stages at head_dim 128: 224 KB.
///   - Per tile: as in step 1.
///
/// Sources: PTX ISA, "cp.async.bulk.tensor", "mbarrier"; Shah et al., "FlashAttention-3" (2024).

#include <string>

#include "chapters/11_tma_pipeline/tile.cuh"
#include "common/gpu/named_barrier.cuh"

namespace tma_pipeline {

template <class T, int kHeadDim>
using RingTile = PipelineTile<T, kHeadDim,
                              kHeadDim == 64    ? 4
                              : kHeadDim == 128 ? 3
                                                : 2>;

template <class Tile>
struct RingShared {
  QueryPanels<Tile> q;
  KeyPanels<Tile> k[Tile::kStages], v[Tile::kStages];
  gpu::Mbarrier q_full, k_full[Tile::kStages], v_full[Tile::kStages], k_empty[Tile::kStages], v_empty[Tile::kStages];
};

/// Br rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    ring_kernel(const __grid_constant__ Maps maps, ForwardArgs<typename Tile::T> args, int query_tiles) {
  using T = typename Tile::T;
  auto& shared = gpu::shared_memory<RingShared<Tile>>();
  const kernel::QueryTile query_tile = kernel::query_tile_of_block(args, query_tiles);
  const int batch = query_tile.batch, head = query_tile.head, head_kv = args.kv_head(head);
  const int first_query = query_tile.index * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % gpu::kWarpSize;
  const int warp_row = thread / gpu::kWarpSize * 16, warpgroup = thread / kernel::kWarpgroupThreads;
  const int warpgroup_row = warpgroup * kernel::kWarpgroupRows;
  const KeyRange visited = kernel::visited_keys(args.mask, first_query, rows, args.seqlen_q, args.seqlen_kv, Tile::kBc);
  const KeyRange unmasked =
      attention::keys_of_all(args.mask, first_query, first_query + rows - 1, args.seqlen_q, args.seqlen_kv);
  const int tiles = tiles_of(visited.end - visited.begin, Tile::kBc);
  const kernel::FoldedScale scale(args.softmax_scale);
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  Out<Tile> o_reg = {};

  const auto start_loading = [&](KeyPanels<Tile>* places_smem, const gpu::TensorMap& map, gpu::Mbarrier* full,
                                 int tile) {
    const int stage = tile % Tile::kStages;
    gpu::mbarrier_arrive_expect_bytes(full[stage], sizeof places_smem[stage].elements);
    load_panels(places_smem[stage], map, full[stage], visited.begin + tile * Tile::kBc, head_kv, batch);
  };
  if (thread == 0) {
    gpu::mbarrier_init(shared.q_full, 1);
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      gpu::mbarrier_init(shared.k_full[stage], 1);
      gpu::mbarrier_init(shared.v_full[stage], 1);
      gpu::mbarrier_init(shared.k_empty[stage], Tile::kWarps);
      gpu::mbarrier_init(shared.v_empty[stage], Tile::kWarps);
    }
    gpu::mbarrier_init_fence();
    gpu::mbarrier_arrive_expect_bytes(shared.q_full, sizeof shared.q.elements);
    load_panels(shared.q, maps.q, shared.q_full, first_query, head, batch);
    for (int tile = 0; tile < min(tiles, Tile::kStages); ++tile) {
      start_loading(shared.k, maps.k, shared.k_full, tile);
      start_loading(shared.v, maps.v, shared.v_full, tile);
    }
  }
  __syncthreads();  // the barriers are there
  gpu::mbarrier_wait(shared.q_full, 0);

  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % Tile::kStages, first_key = visited.begin + tile * Tile::kBc;
    const std::uint32_t parity = tile / Tile::kStages % 2;
    gpu::mbarrier_wait(shared.k_full[stage], parity);

    Scores<Tile> s_reg;
    kernel::start_scores(s_reg, shared.q, warpgroup_row, shared.k[stage]);
    // Beside it: the places of the tile before are free when the slower warpgroup is done with them, too.
    const int next = tile - 1 + Tile::kStages;
    if (thread == 0 && tile > 0 && next < tiles) {
      const int place = next % Tile::kStages;
      const std::uint32_t used = (tile - 1) / Tile::kStages % 2;
      gpu::mbarrier_wait(shared.k_empty[place], used);
      start_loading(shared.k, maps.k, shared.k_full, next);
      gpu::mbarrier_wait(shared.v_empty[place], used);
      start_loading(shared.v, maps.v, shared.v_full, next);
    }
    __syncwarp();  // a warp waits for products as one
    gpu::wgmma_wait<0>();
    gpu::keep(s_reg);
    if (lane == 0) gpu::mbarrier_arrive(shared.k_empty[stage]);
    if (scale.sign != 1) kernel::apply_sign(s_reg, scale.sign);
    if (needs_mask<Tile>(first_key, unmasked)) {
      kernel::mask_by_bits(s_reg, args, first_query + warp_row, first_key, lane);
    }
    float rescale[2];
    kernel::softmax(s_reg, m, l, rescale, scale);
    kernel::scale_rows(o_reg, rescale);

    Probabilities<Tile> p_reg;
    kernel::pack<T>(p_reg, s_reg);
    gpu::mbarrier_wait(shared.v_full[stage], parity);
    kernel::start_output(o_reg, p_reg, shared.v[stage]);
    gpu::wgmma_wait<0>();
    gpu::keep(o_reg);
    if (lane == 0) gpu::mbarrier_arrive(shared.v_empty[stage]);
  }

  // A warpgroup's rows of Q are its own; its warps are done with them when all of them have come here.
  const int own_barrier = 1 + warpgroup;
  gpu::named_barrier_sync(own_barrier, kernel::kWarpgroupThreads);
  kernel::put_rows(shared.q, o_reg, m, l, args, batch, head, first_query, warp_row, lane);
  gpu::async_proxy_fence();
  gpu::named_barrier_sync(own_barrier, kernel::kWarpgroupThreads);
  if (thread % kernel::kWarpgroupThreads == 0 && first_query + warpgroup_row < args.seqlen_q) {
    using Panels = QueryPanels<Tile>;
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      gpu::tma_store(maps.o, shared.q.at(panel * Panels::kPanel + warpgroup_row * Panels::kPanelColumns),
                     panel * Panels::kPanelColumns, first_query + warpgroup_row, head, batch);
    }
    gpu::tma_store_commit();
    gpu::tma_store_wait<0>();  // shared memory is the block's only as long as the block runs
  }
}

/// Step 2 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel ring() {
  using AnyTile = RingTile<gpu::bf16, kHeadDim>;
  const std::string name = "ring";
  return {.name = name,
          .summary = "K and V in a ring of places, each with a full and an empty barrier; O stored by TMA",
          .require =
              [name](const Problem& p) {
                stage::require_hopper(name);
                stage::require_16_byte_rows(name, p);
                stage::require_tensor_maps(name, p);
                stage::require_shared_memory(name, sizeof(RingShared<AnyTile>));
              },
          .traffic = [](const Problem& p) { return attention::tiled_forward_traffic(p, AnyTile::kBr, AnyTile::kBc); },
          .run =
              []<stage::SixteenBits T>(const ForwardArgs<T>& args, void*) {
                using Tile = RingTile<T, kHeadDim>;
                const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<RingShared<Tile>>(ring_kernel<Tile>, {.grid = blocks, .block = Tile::kThreads},
                                              make_maps<Tile>(args), args, query_tiles);
              }};
}

}  // namespace tma_pipeline
