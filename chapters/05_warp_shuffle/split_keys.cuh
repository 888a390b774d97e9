#pragma once
/// \file
/// Beside the steps: the keys of a tile divided among the warps, instead of the rows. It is what step 2 is not, to see
/// why.
///
/// Every warp has all rows of the block, and a quarter of each tile's keys. So no warp knows a row's maximum alone:
/// they tell each other through shared memory, with a barrier more in every tile; and each has a part of every row's O,
/// which are added up at the end. Because a warp holds all rows, a block has fewer of them, and K and V are loaded more
/// often.
///
/// Grid: a block of 128 threads for 2048 / head_dim rows of Q, a query head and a batch entry.
///
/// Registers a thread: 8 elements of S and P, 64 of O. Shared memory: one tile of Q, K and V each, and the warps'
/// maxima, sums and parts of O. Bytes: q_outer_traffic(). FLOPs: 4 · Br · Bc · head_dim a tile.
///
/// Source: Dao, "FlashAttention-2" (2023), section 3.3, which calls this order "split-K".

#include <cmath>

#include "chapters/05_warp_shuffle/row_of_lanes.cuh"
#include "chapters/05_warp_shuffle/step1_shuffle.cuh"
#include "common/attention/cost.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/vector.cuh"
#include "common/kernel/load_tile.cuh"
#include "common/kernel/softmax_state.cuh"
#include "common/kernel/tiles.hpp"
#include "common/stage/kernel.hpp"

namespace warp_shuffle {

/// Who does what: as in step 2, but for one warp; the others do the same with other keys.
template <int kHeadDim_>
struct SplitTile {
  static constexpr int kHeadDim = kHeadDim_, kThreads = 128, kLanes = kHeadDim / 8;
  using RowLanes = Lanes<kLanes, 2>;  ///< neighbours, of different rows, load the same element of K and V
  static constexpr int kWarps = kThreads / gpu::kWarpSize;
  static constexpr int kRows = 8;  ///< of a thread: group, group + kGroups, …
  static constexpr int kGroups = gpu::kWarpSize / kLanes;
  static constexpr int kQuads = kHeadDim / kLanes / 4;  ///< four columns each: 4 · lane, 4 · (lane + kLanes), …
  static constexpr int kBr = kGroups * kRows, kBc = kWarps * kLanes;  ///< a thread has one key of a tile
};

/// One tile of each matrix, and what the warps tell each other.
template <class Tile>
struct SplitShared {
  float q[Tile::kBr][Tile::kHeadDim + 4];
  float k[Tile::kBc][Tile::kHeadDim + 4];
  float v[Tile::kBc][Tile::kHeadDim];
  float m[Tile::kWarps][Tile::kBr];                  ///< maximum of a row over the warp's keys
  float l[Tile::kWarps][Tile::kBr];                  ///< sum likewise
  float o[Tile::kWarps][Tile::kBr][Tile::kHeadDim];  ///< O likewise
};

/// Br rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads) split_keys_kernel(ForwardArgs<float> args, int query_tiles) {
  constexpr int kLanes = Tile::kLanes, kRows = Tile::kRows, kQuads = Tile::kQuads;
  using Lanes = typename Tile::RowLanes;
  auto& shared = gpu::shared_memory<SplitShared<Tile>>();
  const int head_index = static_cast<int>(blockIdx.x) / query_tiles;
  const int batch = head_index / args.heads_q;
  const int head = head_index % args.heads_q;
  const int head_kv = args.kv_head(head);
  const int first_query = static_cast<int>(blockIdx.x) % query_tiles * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  const int lane = Lanes::lane(static_cast<int>(threadIdx.x));
  const int group = Lanes::group(static_cast<int>(threadIdx.x) % gpu::kWarpSize);
  const int warp = static_cast<int>(threadIdx.x) / gpu::kWarpSize;
  const int own_key = warp * kLanes + lane;  // of each tile
  const auto row = [group](int r) { return group + r * Tile::kGroups; };

  kernel::load_tile4<Tile::kThreads, Tile::kHeadDim>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq,
                                                     rows);
  float m[kRows];       // the same in all lanes of the row
  float l[kRows] = {};  // over this thread's keys
  float4 o_reg[kRows][kQuads];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    m[r] = -INFINITY;
#pragma unroll
    for (int c = 0; c < kQuads; ++c) o_reg[r][c] = make_float4(0, 0, 0, 0);
  }

  for (int first_key = 0; first_key < args.seqlen_kv; first_key += Tile::kBc) {
    const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
    __syncthreads();  // K and V of the tile before have been read
    kernel::load_tile4<Tile::kThreads, Tile::kHeadDim>(shared.k, args.k_row(batch, first_key, head_kv),
                                                       args.k_strides.seq, keys);
    kernel::load_tile4<Tile::kThreads, Tile::kHeadDim>(shared.v, args.v_row(batch, first_key, head_kv),
                                                       args.v_strides.seq, keys);
    __syncthreads();  // the tiles are there

    float s_reg[kRows] = {};
#pragma unroll 2
    for (int c = 0; c < Tile::kHeadDim; c += 4) {
      const float4 k = gpu::load4(&shared.k[own_key][c]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 q = gpu::load4(&shared.q[row(r)][c]);
        s_reg[r] += q.x * k.x;
        s_reg[r] += q.y * k.y;
        s_reg[r] += q.z * k.z;
        s_reg[r] += q.w * k.w;
      }
    }

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const KeyRange visible = args.visible_keys(first_query + row(r));
      const int key = first_key + own_key;
      s_reg[r] = key >= visible.begin && key < visible.end ? args.softmax_scale * s_reg[r] : -INFINITY;
      const float m_warp = Lanes::max_for_all(s_reg[r]);
      if (lane == 0) shared.m[warp][row(r)] = m_warp;
    }
    __syncthreads();  // the warps' maxima are there

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float m_new = m[r];
#pragma unroll
      for (int w = 0; w < Tile::kWarps; ++w) m_new = fmaxf(m_new, shared.m[w][row(r)]);
      const float shift = m_new == -INFINITY ? 0.0f : m_new;
      const float rescale = kernel::rescale(m[r], m_new);
      m[r] = m_new;
      s_reg[r] = expf(s_reg[r] - shift);  // from here on it is P
      l[r] = l[r] * rescale + s_reg[r];
#pragma unroll
      for (int c = 0; c < kQuads; ++c) o_reg[r][c] = gpu::scaled(o_reg[r][c], rescale);
    }

#pragma unroll 4
    for (int owner = 0; owner < kLanes; ++owner) {
      float4 v_reg[kQuads];
#pragma unroll
      for (int c = 0; c < kQuads; ++c) {
        v_reg[c] = gpu::load4(&shared.v[warp * kLanes + owner][4 * (lane + c * kLanes)]);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float p = Lanes::from_lane(s_reg[r], owner);
#pragma unroll
        for (int c = 0; c < kQuads; ++c) gpu::add_scaled(o_reg[r][c], p, v_reg[c]);
      }
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float l_warp = Lanes::sum_for_all(l[r]);
    if (lane == 0) shared.l[warp][row(r)] = l_warp;
#pragma unroll
    for (int c = 0; c < kQuads; ++c) gpu::store4(&shared.o[warp][row(r)][4 * (lane + c * kLanes)], o_reg[r][c]);
  }
  __syncthreads();  // the warps' sums and parts of O are there

  // Every warp has the same m, so the parts only need to be added. Each warp does it for a quarter of the rows.
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r % Tile::kWarps != warp || row(r) >= rows) continue;
    float sum = 0;
    for (int w = 0; w < Tile::kWarps; ++w) sum += shared.l[w][row(r)];
    const float inverse_l = sum == 0 ? 0.0f : 1 / sum;
    float* o_row = args.o_row(batch, first_query + row(r), head);
#pragma unroll
    for (int c = 0; c < kQuads; ++c) {
      float4 total = make_float4(0, 0, 0, 0);
      for (int w = 0; w < Tile::kWarps; ++w) {
        gpu::add_scaled(total, 1, gpu::load4(&shared.o[w][row(r)][4 * (lane + c * kLanes)]));
      }
      gpu::store4(o_row + 4 * (lane + c * kLanes), gpu::scaled(total, inverse_l));
    }
    if (lane == 0) *args.lse_entry(batch, first_query + row(r), head) = kernel::log_sum_exp({m[r], sum});
  }
}

/// The variant for one head_dim.
template <int kHeadDim>
stage::ForwardKernel split_keys() {
  using Tile = SplitTile<kHeadDim>;
  const std::string name = "split_keys";
  return {.name = name,
          .summary = "beside the steps: the warps share the rows and divide the keys",
          .require =
              [name](const Problem& p) {
                stage::require_16_byte_rows(name, p);
                stage::require_shared_memory(name, sizeof(SplitShared<Tile>));
              },
          .traffic = q_outer_traffic<Tile>,
          .run =
              [](const ForwardArgs<float>& args, void*) {
                const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<SplitShared<Tile>>(split_keys_kernel<Tile>, {.grid = blocks, .block = Tile::kThreads}, args,
                                               query_tiles);
              }};
}

}  // namespace warp_shuffle
