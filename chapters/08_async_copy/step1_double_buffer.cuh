#pragma once
/// \file
/// Step 1: K and V of the next tile are on their way while this one is computed, and the mask costs only where it cuts.
///
///   - One block of four warps for 64 rows of one head, 16 rows a warp, as in chapter 07; the rows of a causal problem
///     that see the most keys start first.
///   - `cp.async` copies past the registers. Two tiles of K and V take turns: while one is read, the other arrives, so
///     that one barrier a tile is enough.
///   - Registers of a lane: as in chapter 07, and Q (head_dim / 4), which a warp's rows need for every tile.
///   - Shared memory: five tiles of 64 rows, 5 · 128 · head_dim bytes.
///   - Per tile: 4 · Br · Bc · head_dim FLOP, 2 · Bc · head_dim elements of K and V.
///
/// Source: PTX ISA, "cp.async"; Dao, "FlashAttention-2" (2023), sections 3.1 and 3.2.

#include <cmath>
#include <string>

#include "chapters/08_async_copy/tile.cuh"

namespace async_copy {

/// Br rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    double_buffer_kernel(ForwardArgs<typename Tile::T> args, int query_tiles) {
  using T = typename Tile::T;
  using QTile = typename AsyncShared<Tile>::QTile;
  using KTile = typename AsyncShared<Tile>::KTile;
  auto& shared = gpu::shared_memory<AsyncShared<Tile>>();
  const kernel::QueryTile query_tile = kernel::query_tile_of_block(args, query_tiles);
  const int batch = query_tile.batch, head = query_tile.head, head_kv = args.kv_head(head);
  const int first_query = query_tile.index * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize;
  const int warp_row = static_cast<int>(threadIdx.x) / gpu::kWarpSize * Tile::kWarpRows;
  const KeyRange visited = kernel::visited_keys(args.mask, first_query, rows, args.seqlen_q, args.seqlen_kv, Tile::kBc);
  const KeyRange unmasked =
      attention::keys_of_all(args.mask, first_query, first_query + rows - 1, args.seqlen_q, args.seqlen_kv);
  const int q_offset = kernel::offset_of_a<QTile>(warp_row, lane);
  const int k_offset = kernel::offset_of_b<KTile>(lane);
  const int v_offset = kernel::offset_of_b_transposed<KTile>(lane);

  const auto start_loading = [&](int first_key, int stage) {
    const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
    kernel::load_chunks_async<Tile::kThreads>(shared.k[stage], args.k_row(batch, first_key, head_kv),
                                              args.k_strides.seq, keys);
    kernel::load_chunks_async<Tile::kThreads>(shared.v[stage], args.v_row(batch, first_key, head_kv),
                                              args.v_strides.seq, keys);
  };
  kernel::load_chunks_async<Tile::kThreads>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq, rows);
  gpu::copy_async_commit();
  if (visited.begin < visited.end) start_loading(visited.begin, 0);
  gpu::copy_async_commit();
  std::uint32_t q_reg[Tile::kColumnStepsKept][4];
  const auto load_q = [&](std::uint32_t(&to_reg)[4], int i) {
    gpu::load_matrices<4>(to_reg, shared.q.at(QTile::column_step(q_offset, i)));
  };
  if constexpr (Tile::kKeepsQ) {
    gpu::copy_async_wait<1>();
    __syncthreads();  // Q is there
#pragma unroll
    for (int i = 0; i < Tile::kColumnSteps; ++i) load_q(q_reg[i], i);
  }
  const kernel::FoldedScale scale(args.softmax_scale);
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  float o_reg[Tile::kColumnTiles][4] = {};

  for (int first_key = visited.begin, stage = 0; first_key < visited.end; first_key += Tile::kBc, stage ^= 1) {
    gpu::copy_async_wait<0>();
    __syncthreads();  // this tile is there, and the one before has been read
    if (first_key + Tile::kBc < visited.end) start_loading(first_key + Tile::kBc, stage ^ 1);
    gpu::copy_async_commit();

    float s_reg[Tile::kKeyTiles][4] = {};
#pragma unroll
    for (int i = 0; i < Tile::kColumnSteps; ++i) {
      const int kept = Tile::kKeepsQ ? i : 0;
      if constexpr (!Tile::kKeepsQ) load_q(q_reg[0], i);
#pragma unroll
      for (int n = 0; n < Tile::kKeyTiles; n += 2) {
        std::uint32_t k_reg[2][2];
        kernel::load_b(k_reg, shared.k[stage], KTile::column_step(k_offset, i) + 8 * n * Tile::kHeadDim);
        gpu::mma_16x8x16<T>(s_reg[n], q_reg[kept], k_reg[0]);
        gpu::mma_16x8x16<T>(s_reg[n + 1], q_reg[kept], k_reg[1]);
      }
    }
    if (scale.sign != 1) apply_sign(s_reg, scale.sign);
    if (needs_mask<Tile>(first_key, unmasked)) mask_scores(s_reg, args, first_query + warp_row, first_key, lane);

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float m_new = m[half];
#pragma unroll
      for (int n = 0; n < Tile::kKeyTiles; ++n) m_new = fmaxf(m_new, fmaxf(s_reg[n][2 * half], s_reg[n][2 * half + 1]));
      m_new = kernel::max_of_row(m_new);
      const float subtracted = m_new == -INFINITY ? 0.0f : m_new;
      const float rescale = gpu::exp2_approximate((m[half] - subtracted) * scale.factor_log2);  // 1 if m stays
      const float shift = subtracted * scale.factor_log2;
      m[half] = m_new;

      l[half] *= rescale;
#pragma unroll
      for (int n = 0; n < Tile::kKeyTiles; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s_reg[n][e] = gpu::exp2_approximate(s_reg[n][e] * scale.factor_log2 - shift);  // from here on it is P
          l[half] += s_reg[n][e];
        }
#pragma unroll
      for (int c = 0; c < Tile::kColumnTiles; ++c) {
        o_reg[c][2 * half] *= rescale;
        o_reg[c][2 * half + 1] *= rescale;
      }
    }

#pragma unroll
    for (int i = 0; i < Tile::kKeySteps; ++i) {
      std::uint32_t p_reg[4];
      kernel::pack_a<T>(p_reg, s_reg[2 * i], s_reg[2 * i + 1]);
#pragma unroll
      for (int c = 0; c < Tile::kColumnTiles; c += 2) {
        std::uint32_t v_reg[2][2];
        kernel::load_b_transposed(v_reg, shared.v[stage],
                                  KTile::column_step(v_offset, c / 2) + 16 * i * Tile::kHeadDim);
        gpu::mma_16x8x16<T>(o_reg[c], p_reg, v_reg[0]);
        gpu::mma_16x8x16<T>(o_reg[c + 1], p_reg, v_reg[1]);
      }
    }
  }

  gpu::copy_async_wait<0>();  // a block may not end with copies on their way: those of Q, where no tile was visited
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = kernel::sum_of_row(l[half]);
    const int row = warp_row + kernel::fragment_row(half, lane);
    if (row >= rows) continue;
    const float inverse_l = sum == 0 ? 0.0f : 1 / sum;
    T* o_row = args.o_row(batch, first_query + row, head) + kernel::fragment_column(lane);
#pragma unroll
    for (int c = 0; c < Tile::kColumnTiles; ++c) {
      kernel::store_pair(o_row + 8 * c, o_reg[c][2 * half] * inverse_l, o_reg[c][2 * half + 1] * inverse_l);
    }
    if (lane % 4 == 0) {
      *args.lse_entry(batch, first_query + row, head) = kernel::log_sum_exp({m[half] * fabsf(args.softmax_scale), sum});
    }
  }
}

/// Step 1 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel double_buffer() {
  using AnyTile = AsyncTile<gpu::bf16, kHeadDim, 4, 1, kHeadDim == 256 ? 1 : 2>;
  const std::string name = "double_buffer";
  return {.name = name,
          .summary = "K and V arrive while the tile before is computed, Q in registers, masks only where they cut",
          .require =
              [name](const Problem& p) {
                stage::require_16_byte_rows(name, p);
                stage::require_shared_memory(name, sizeof(AsyncShared<AnyTile>));
              },
          .traffic = [](const Problem& p) { return attention::tiled_forward_traffic(p, AnyTile::kBr, AnyTile::kBc); },
          .run =
              []<stage::SixteenBits T>(const ForwardArgs<T>& args, void*) {
                using Tile = AsyncTile<T, kHeadDim, 4, 1, AnyTile::kBlocks>;
                const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<AsyncShared<Tile>>(double_buffer_kernel<Tile>, {.grid = blocks, .block = Tile::kThreads},
                                               args, query_tiles);
              }};
}

}  // namespace async_copy
