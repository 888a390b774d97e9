#pragma once
/// \file
/// Step 3: O and l are rescaled only when it matters. Softmax comes out the same whatever is subtracted in the
/// exponent, as long as O and l are built with the same number; the running maximum is taken because nothing then
/// overflows. So does an older maximum, until a score exceeds it by much: here by 8 in the exponent of 2, so that P ≤
/// 2⁸, which 16 bits hold as exactly as they hold 1. A warp rescales when one of its rows is beyond that.
///
/// On most inputs that is once, in the first tile, and head_dim multiplications a lane and tile are saved. Everything
/// else is step 2's. At head_dim 128 8 bytes of registers are spilled, where step 2 spills 56.
///
/// Source: Zadouri et al., "FlashAttention-4" (2026): conditional rescaling.

#include <cmath>
#include <string>

#include "chapters/08_async_copy/row_tiles.cuh"

namespace async_copy {

/// How far a score may be above what is subtracted from it, as an exponent of 2.
inline constexpr float kLargestExponent = 8;

/// Br rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    lazy_rescale_kernel(ForwardArgs<typename Tile::T> args, int query_tiles) {
  constexpr int kRowTiles = Tile::kRowTiles;
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

  // Of a tile of queries, the first warps see fewer keys of a causal problem than the last ones.
  const int seen_by_warp_end =
      attention::keys_of_any(args.mask, first_query + warp_row, first_query + warp_row + Tile::kWarpRows - 1,
                             args.seqlen_q, args.seqlen_kv)
          .end;

  const auto start_loading = [&](int first_key, int stage) {
    const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
    kernel::load_chunks_async<Tile::kThreads>(shared.k[stage], args.k_row(batch, first_key, head_kv),
                                              args.k_strides.seq, keys);
    kernel::load_chunks_async<Tile::kThreads>(shared.v[stage], args.v_row(batch, first_key, head_kv),
                                              args.v_strides.seq, keys);
  };
  const auto load_q = [&](std::uint32_t(&q_reg)[kRowTiles][4], int i) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      gpu::load_matrices<4>(q_reg[t], shared.q.at(QTile::column_step(q_offset, i) + 16 * t * Tile::kHeadDim));
    }
  };
  kernel::load_chunks_async<Tile::kThreads>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq, rows);
  gpu::copy_async_commit();
  if (visited.begin < visited.end) start_loading(visited.begin, 0);
  gpu::copy_async_commit();
  std::uint32_t q_reg[Tile::kColumnStepsKept][kRowTiles][4];
  if constexpr (Tile::kKeepsQ) {
    gpu::copy_async_wait<1>();
    __syncthreads();  // Q is there
#pragma unroll
    for (int i = 0; i < Tile::kColumnSteps; ++i) load_q(q_reg[i], i);
  }
  const kernel::FoldedScale scale(args.softmax_scale);
  float m[kRowTiles][2], l[kRowTiles][2] = {};
  float o_reg[kRowTiles][Tile::kColumnTiles][4] = {};
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) m[t][0] = m[t][1] = -INFINITY;

  for (int first_key = visited.begin, stage = 0; first_key < visited.end; first_key += Tile::kBc, stage ^= 1) {
    gpu::copy_async_wait<0>();
    __syncthreads();  // this tile is there, and the one before has been read
    if (first_key + Tile::kBc < visited.end) start_loading(first_key + Tile::kBc, stage ^ 1);
    gpu::copy_async_commit();

    if (first_key >= seen_by_warp_end) continue;

    float s_reg[kRowTiles][Tile::kKeyTiles][4] = {};
#pragma unroll
    for (int i = 0; i < Tile::kColumnSteps; ++i) {
      const int kept = Tile::kKeepsQ ? i : 0;
      if constexpr (!Tile::kKeepsQ) load_q(q_reg[0], i);
#pragma unroll
      for (int n = 0; n < Tile::kKeyTiles; n += 2) {
        std::uint32_t k_reg[2][2];
        kernel::load_b(k_reg, shared.k[stage], KTile::column_step(k_offset, i) + 8 * n * Tile::kHeadDim);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          gpu::mma_16x8x16<T>(s_reg[t][n], q_reg[kept][t], k_reg[0]);
          gpu::mma_16x8x16<T>(s_reg[t][n + 1], q_reg[kept][t], k_reg[1]);
        }
      }
    }
    const bool masked = needs_mask<Tile>(first_key, unmasked);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      if (scale.sign != 1) apply_sign(s_reg[t], scale.sign);
      if (masked) mask_scores(s_reg[t], args, first_query + warp_row + 16 * t, first_key, lane);
    }

    float m_new[kRowTiles][2];
    bool grows = false;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = m[t][half];
#pragma unroll
        for (int n = 0; n < Tile::kKeyTiles; ++n) {
          largest = fmaxf(largest, fmaxf(s_reg[t][n][2 * half], s_reg[t][n][2 * half + 1]));
        }
        m_new[t][half] = kernel::max_of_row(largest);
        grows = grows || (m_new[t][half] - m[t][half]) * scale.factor_log2 > kLargestExponent;
      }
    if (__any_sync(gpu::kFullWarp, grows)) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float shift = m_new[t][half] == -INFINITY ? 0.0f : m_new[t][half];
          const float rescale = gpu::exp2_approximate((m[t][half] - shift) * scale.factor_log2);
          m[t][half] = m_new[t][half];
          l[t][half] *= rescale;
#pragma unroll
          for (int c = 0; c < Tile::kColumnTiles; ++c) {
            o_reg[t][c][2 * half] *= rescale;
            o_reg[t][c][2 * half + 1] *= rescale;
          }
        }
    }
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float shift = m[t][half] == -INFINITY ? 0.0f : m[t][half] * scale.factor_log2;
#pragma unroll
        for (int n = 0; n < Tile::kKeyTiles; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s_reg[t][n][e] = gpu::exp2_approximate(s_reg[t][n][e] * scale.factor_log2 - shift);  // from here on it is P
            l[t][half] += s_reg[t][n][e];
          }
      }

#pragma unroll
    for (int i = 0; i < Tile::kKeySteps; ++i) {
      std::uint32_t p_reg[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) kernel::pack_a<T>(p_reg[t], s_reg[t][2 * i], s_reg[t][2 * i + 1]);
#pragma unroll
      for (int c = 0; c < Tile::kColumnTiles; c += 2) {
        std::uint32_t v_reg[2][2];
        kernel::load_b_transposed(v_reg, shared.v[stage],
                                  KTile::column_step(v_offset, c / 2) + 16 * i * Tile::kHeadDim);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          gpu::mma_16x8x16<T>(o_reg[t][c], p_reg[t], v_reg[0]);
          gpu::mma_16x8x16<T>(o_reg[t][c + 1], p_reg[t], v_reg[1]);
        }
      }
    }
  }

  gpu::copy_async_wait<0>();
  __syncthreads();  // no copy is on its way to Q's rows any more, also where no tile was visited
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    kernel::write_rows(shared.q, o_reg[t], m[t], l[t], args, batch, head, first_query, warp_row + 16 * t, gpu::lane());
  }
}

/// Step 3 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel lazy_rescale() {
  using AnyTile = RowTiles<gpu::bf16, kHeadDim>;
  const std::string name = "lazy_rescale";
  return {.name = name,
          .summary = "O is rescaled only when a maximum has grown by more than 2^8",
          .require =
              [name](const Problem& p) {
                stage::require_16_byte_rows(name, p);
                stage::require_shared_memory(name, sizeof(AsyncShared<AnyTile>));
              },
          .traffic = [](const Problem& p) { return attention::tiled_forward_traffic(p, AnyTile::kBr, AnyTile::kBc); },
          .run =
              []<stage::SixteenBits T>(const ForwardArgs<T>& args, void*) {
                using Tile = RowTiles<T, kHeadDim>;
                const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<AsyncShared<Tile>>(lazy_rescale_kernel<Tile>, {.grid = blocks, .block = Tile::kThreads},
                                               args, query_tiles);
              }};
}

}  // namespace async_copy
