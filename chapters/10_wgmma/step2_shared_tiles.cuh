#pragma once
/// \file
/// Step 2: two warpgroups share each tile of K and V, and the next tile is on its way while they compute. While one
/// warpgroup is busy with its softmax, the tensor cores have the other's product to do.
///
///   - 256 threads, 128 queries. K and V are loaded once for all of them.
///   - Two tiles of K and V take turns, as in chapter 08: one barrier a tile.
///   - Registers of a lane, at head_dim 128: O 64, S 64, P 32.
///   - Shared memory: 2 · head_dim · (Br + 4 · Bc) bytes: 160 KB at head_dim 128.
///   - Per tile: 4 · Br · Bc · head_dim FLOP, 2 · Bc · head_dim elements of K and V.

#include <string>

#include "chapters/10_wgmma/tile.cuh"

namespace wgmma {

/// Tiles of step 2.
template <class T, int kHeadDim>
using SharedTiles = WgmmaTile<T, kHeadDim, 2, 2, 1>;

/// Br rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    shared_tiles_kernel(ForwardArgs<typename Tile::T> args, int query_tiles) {
  using T = typename Tile::T;
  auto& shared = gpu::shared_memory<WgmmaShared<Tile>>();
  const kernel::QueryTile query_tile = kernel::query_tile_of_block(args, query_tiles);
  const int batch = query_tile.batch, head = query_tile.head, head_kv = args.kv_head(head);
  const int first_query = query_tile.index * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize;
  const int warp_row = static_cast<int>(threadIdx.x) / gpu::kWarpSize * 16;
  const int warpgroup_row = warp_row / kernel::kWarpgroupRows * kernel::kWarpgroupRows;
  const KeyRange visited = kernel::visited_keys(args.mask, first_query, rows, args.seqlen_q, args.seqlen_kv, Tile::kBc);
  const KeyRange unmasked =
      attention::keys_of_all(args.mask, first_query, first_query + rows - 1, args.seqlen_q, args.seqlen_kv);
  const kernel::FoldedScale scale(args.softmax_scale);
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  Out<Tile> o_reg = {};

  const auto start_loading = [&](int first_key, int stage) {
    const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
    kernel::load_chunks_async<Tile::kThreads>(shared.k[stage], args.k_row(batch, first_key, head_kv),
                                              args.k_strides.seq, keys);
    kernel::load_chunks_async<Tile::kThreads>(shared.v[stage], args.v_row(batch, first_key, head_kv),
                                              args.v_strides.seq, keys);
  };
  kernel::load_chunks_async<Tile::kThreads>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq, rows);
  if (visited.begin < visited.end) start_loading(visited.begin, 0);
  gpu::copy_async_commit();

  for (int first_key = visited.begin, stage = 0; first_key < visited.end; first_key += Tile::kBc, stage ^= 1) {
    gpu::copy_async_wait<0>();
    gpu::async_proxy_fence();
    __syncthreads();  // this tile is there, for WGMMA, too, and the one before has been read
    if (first_key + Tile::kBc < visited.end) start_loading(first_key + Tile::kBc, stage ^ 1);
    gpu::copy_async_commit();

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
  }

  gpu::copy_async_wait<0>();  // of Q, where no tile was visited
  __syncthreads();            // nobody reads Q any more
  kernel::write_rows(shared.q, o_reg, m, l, args, batch, head, first_query, warp_row, lane);
}

/// Step 2 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel shared_tiles() {
  using AnyTile = SharedTiles<gpu::bf16, kHeadDim>;
  const std::string name = "shared_tiles";
  return {.name = name,
          .summary = "two warpgroups share tiles of K and V, and the next is on its way",
          .require =
              [name](const Problem& p) {
                stage::require_hopper(name);
                stage::require_16_byte_rows(name, p);
                stage::require_shared_memory(name, sizeof(WgmmaShared<AnyTile>));
              },
          .traffic = [](const Problem& p) { return attention::tiled_forward_traffic(p, AnyTile::kBr, AnyTile::kBc); },
          .run =
              []<stage::SixteenBits T>(const ForwardArgs<T>& args, void*) {
                using Tile = SharedTiles<T, kHeadDim>;
                const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<WgmmaShared<Tile>>(shared_tiles_kernel<Tile>, {.grid = blocks, .block = Tile::kThreads},
                                               args, query_tiles);
              }};
}

}  // namespace wgmma
