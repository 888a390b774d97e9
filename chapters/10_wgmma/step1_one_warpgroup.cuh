#pragma once
/// \file
/// Step 1: one warpgroup does everything in turn: a tile of K and V arrives, S = Q Kᵀ, softmax, O += P V.
///
///   - 128 threads, 64 queries. Both operands of Q Kᵀ come straight from shared memory, and so does V; P is the
///   product's
///     other operand where S was, in registers. No ldmatrix is left.
///   - What cp.async has written, WGMMA reads through another proxy: each thread waits for its copies, fences, and
///     then meets the others.
///   - Registers of a lane, at head_dim 128: O 64, S 64, P 32.
///   - Shared memory: Q, and one tile of K and of V: 2 · head_dim · (Br + 2 · Bc) bytes: 80 KB at head_dim 128.
///   - Per tile: 4 · Br · Bc · head_dim FLOP, 2 · Bc · head_dim elements of K and V.
///
/// Source: PTX ISA, "Asynchronous warpgroup level matrix instructions"; Shah et al., "FlashAttention-3" (2024).

#include <string>

#include "chapters/10_wgmma/tile.cuh"

namespace wgmma {

/// Tiles of step 1. Several blocks share a multiprocessor: one multiplies while another computes its softmax.
template <class T, int kHeadDim>
using OneWarpgroupTile = WgmmaTile<T, kHeadDim, 1, 1,
                                   kHeadDim == 64    ? 3
                                   : kHeadDim == 128 ? 2
                                                     : 1>;

/// Br rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    one_warpgroup_kernel(ForwardArgs<typename Tile::T> args, int query_tiles) {
  using T = typename Tile::T;
  auto& shared = gpu::shared_memory<WgmmaShared<Tile>>();
  const kernel::QueryTile query_tile = kernel::query_tile_of_block(args, query_tiles);
  const int batch = query_tile.batch, head = query_tile.head, head_kv = args.kv_head(head);
  const int first_query = query_tile.index * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize;
  const int warp_row = static_cast<int>(threadIdx.x) / gpu::kWarpSize * 16;
  const KeyRange visited = kernel::visited_keys(args.mask, first_query, rows, args.seqlen_q, args.seqlen_kv, Tile::kBc);
  const KeyRange unmasked =
      attention::keys_of_all(args.mask, first_query, first_query + rows - 1, args.seqlen_q, args.seqlen_kv);
  const kernel::FoldedScale scale(args.softmax_scale);
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  Out<Tile> o_reg = {};

  kernel::load_chunks_async<Tile::kThreads>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq, rows);
  gpu::copy_async_commit();
  for (int first_key = visited.begin; first_key < visited.end; first_key += Tile::kBc) {
    const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
    __syncthreads();  // all warps' products have read the tile before
    kernel::load_chunks_async<Tile::kThreads>(shared.k[0], args.k_row(batch, first_key, head_kv), args.k_strides.seq,
                                              keys);
    kernel::load_chunks_async<Tile::kThreads>(shared.v[0], args.v_row(batch, first_key, head_kv), args.v_strides.seq,
                                              keys);
    gpu::copy_async_commit();
    gpu::copy_async_wait<0>();
    gpu::async_proxy_fence();
    __syncthreads();  // K and V are there, for WGMMA, too

    Scores<Tile> s_reg;
    kernel::start_scores(s_reg, shared.q, 0, shared.k[0]);
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
    kernel::start_output(o_reg, p_reg, shared.v[0]);
    gpu::wgmma_wait<0>();
    gpu::keep(o_reg);
  }

  gpu::copy_async_wait<0>();  // of Q, where no tile was visited
  __syncthreads();            // nobody reads Q any more
  kernel::write_rows(shared.q, o_reg, m, l, args, batch, head, first_query, warp_row, lane);
}

/// Step 1 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel one_warpgroup() {
  using AnyTile = OneWarpgroupTile<gpu::bf16, kHeadDim>;
  const std::string name = "one_warpgroup";
  return {.name = name,
          .summary = "products from shared memory (WGMMA), 64 rows a block, one after the other",
          .require =
              [name](const Problem& p) {
                stage::require_hopper(name);
                stage::require_16_byte_rows(name, p);
                stage::require_shared_memory(name, sizeof(WgmmaShared<AnyTile>));
              },
          .traffic = [](const Problem& p) { return attention::tiled_forward_traffic(p, AnyTile::kBr, AnyTile::kBc); },
          .run =
              []<stage::SixteenBits T>(const ForwardArgs<T>& args, void*) {
                using Tile = OneWarpgroupTile<T, kHeadDim>;
                const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<WgmmaShared<Tile>>(one_warpgroup_kernel<Tile>, {.grid = blocks, .block = Tile::kThreads},
                                               args, query_tiles);
              }};
}

}  // namespace wgmma
