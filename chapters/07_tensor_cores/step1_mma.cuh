#pragma once
/// \file
/// Step 1: the two products on tensor cores. S is computed as fragments of mma.sync, turns into P where it is, and is
/// already the operand of the second product: neither S nor P leaves the registers.
///
///   - One block of four warps for 64 rows of one head; a warp has 16 of them, alone: no row is shared between warps.
///   - Registers of a lane: two rows' parts of S (16 × 64 a warp: 32 floats), of O (16 × head_dim: head_dim / 2
///   floats),
///     and m and l of the two rows; l over its own keys.
///   - Shared memory: Q, K and V tiles of 64 rows, 3 · 128 · head_dim bytes, row after row.
///   - Per tile: 4 · Br · Bc · head_dim FLOP, 2 · Bc · head_dim elements of K and V. Tiles that the mask hides are
///     skipped, as in chapter 05.
///
/// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"; Dao, "FlashAttention-2" (2023), 3.3.

#include <cmath>
#include <cstdint>
#include <string>

#include "common/attention/cost.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/numeric.cuh"
#include "common/gpu/tensor_core.cuh"
#include "common/kernel/folded_scale.cuh"
#include "common/kernel/fragments.cuh"
#include "common/kernel/shared_tile.cuh"
#include "common/kernel/softmax_state.cuh"
#include "common/kernel/tiles.hpp"
#include "common/stage/kernel.hpp"

namespace tensor_cores {

using attention::ForwardArgs, attention::KeyRange, attention::Problem;
using kernel::tiles_of;

/// What a block works on.
template <class T_, int kHeadDim_, class Layout_>
struct MmaTile {
  using T = T_;            ///< fp16 or bf16
  using Layout = Layout_;  ///< of the tiles in shared memory
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarps = 4, kThreads = kWarps * gpu::kWarpSize;
  static constexpr int kBr = 16 * kWarps, kBc = 64;
  static constexpr int kKeySteps = kBc / 16, kColumnSteps = kHeadDim / 16;  ///< products of depth 16
  static constexpr int kKeyTiles = kBc / 8, kColumnTiles = kHeadDim / 8;    ///< results 8 wide
  static_assert(kHeadDim % 64 == 0, "rows are whole groups of 128 bytes");
};

template <class Tile>
struct MmaShared {
  kernel::SharedTile<typename Tile::T, Tile::kBr, Tile::kHeadDim, typename Tile::Layout> q;
  kernel::SharedTile<typename Tile::T, Tile::kBc, Tile::kHeadDim, typename Tile::Layout> k, v;
};

/// Br rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads) mma_kernel(ForwardArgs<typename Tile::T> args, int query_tiles) {
  using T = typename Tile::T;
  auto& shared = gpu::shared_memory<MmaShared<Tile>>();
  using QTile = decltype(shared.q);
  using KTile = decltype(shared.k);
  const int head_index = static_cast<int>(blockIdx.x) / query_tiles;
  const int batch = head_index / args.heads_q;
  const int head = head_index % args.heads_q;
  const int head_kv = args.kv_head(head);
  const int first_query = static_cast<int>(blockIdx.x) % query_tiles * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize;
  const int warp_row = static_cast<int>(threadIdx.x) / gpu::kWarpSize * 16;
  const KeyRange visited = kernel::visited_keys(args.mask, first_query, rows, args.seqlen_q, args.seqlen_kv, Tile::kBc);
  const int q_offset = kernel::offset_of_a<QTile>(warp_row, lane);
  const int k_offset = kernel::offset_of_b<KTile>(lane);
  const int v_offset = kernel::offset_of_b_transposed<KTile>(lane);

  kernel::load_chunks<Tile::kThreads>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq, rows);
  const kernel::FoldedScale scale(args.softmax_scale);
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  float o_reg[Tile::kColumnTiles][4] = {};

  for (int first_key = visited.begin; first_key < visited.end; first_key += Tile::kBc) {
    const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
    __syncthreads();  // K and V of the tile before have been read
    kernel::load_chunks<Tile::kThreads>(shared.k, args.k_row(batch, first_key, head_kv), args.k_strides.seq, keys);
    kernel::load_chunks<Tile::kThreads>(shared.v, args.v_row(batch, first_key, head_kv), args.v_strides.seq, keys);
    __syncthreads();  // the tiles are there

    float s_reg[Tile::kKeyTiles][4] = {};
#pragma unroll
    for (int i = 0; i < Tile::kColumnSteps; ++i) {
      std::uint32_t q_reg[4];
      gpu::load_matrices<4>(q_reg, shared.q.at(QTile::column_step(q_offset, i)));
#pragma unroll
      for (int n = 0; n < Tile::kKeyTiles; n += 2) {
        std::uint32_t k_reg[2][2];
        kernel::load_b(k_reg, shared.k, KTile::column_step(k_offset, i) + 8 * n * Tile::kHeadDim);
        gpu::mma_16x8x16<T>(s_reg[n], q_reg, k_reg[0]);
        gpu::mma_16x8x16<T>(s_reg[n + 1], q_reg, k_reg[1]);
      }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyRange visible = args.visible_keys(first_query + warp_row + kernel::fragment_row(half, lane));
      float m_new = m[half];
#pragma unroll
      for (int n = 0; n < Tile::kKeyTiles; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int key = first_key + 8 * n + kernel::fragment_column(lane) + e % 2;
          const bool seen = key >= visible.begin && key < visible.end;
          s_reg[n][e] = seen ? s_reg[n][e] * scale.sign : -INFINITY;
          m_new = fmaxf(m_new, s_reg[n][e]);
        }
      m_new = kernel::max_of_row(m_new);
      const float shift = m_new == -INFINITY ? 0.0f : m_new;
      const float rescale = gpu::exp2_approximate((m[half] - shift) * scale.factor_log2);
      m[half] = m_new;

      l[half] *= rescale;
#pragma unroll
      for (int n = 0; n < Tile::kKeyTiles; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s_reg[n][e] = gpu::exp2_approximate((s_reg[n][e] - shift) * scale.factor_log2);  // from here on it is P
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
        kernel::load_b_transposed(v_reg, shared.v, KTile::column_step(v_offset, c / 2) + 16 * i * Tile::kHeadDim);
        gpu::mma_16x8x16<T>(o_reg[c], p_reg, v_reg[0]);
        gpu::mma_16x8x16<T>(o_reg[c + 1], p_reg, v_reg[1]);
      }
    }
  }

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

/// A kernel of this chapter for one head_dim.
template <int kHeadDim, class Layout>
stage::ForwardKernel mma_tiles(const std::string& name, const std::string& summary) {
  using AnyTile = MmaTile<gpu::bf16, kHeadDim, Layout>;
  return {.name = name,
          .summary = summary,
          .require =
              [name](const Problem& p) {
                stage::require_16_byte_rows(name, p);
                stage::require_shared_memory(name, sizeof(MmaShared<AnyTile>));
              },
          .traffic = [](const Problem& p) { return attention::tiled_forward_traffic(p, AnyTile::kBr, AnyTile::kBc); },
          .run =
              []<stage::SixteenBits T>(const ForwardArgs<T>& args, void*) {
                using Tile = MmaTile<T, kHeadDim, Layout>;
                const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<MmaShared<Tile>>(mma_kernel<Tile>, {.grid = blocks, .block = Tile::kThreads}, args,
                                             query_tiles);
              }};
}

/// Step 1 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel mma() {
  return mma_tiles<kHeadDim, kernel::RowByRow>("mma", "QK^T and PV on tensor cores, P out of S's registers");
}

}  // namespace tensor_cores
