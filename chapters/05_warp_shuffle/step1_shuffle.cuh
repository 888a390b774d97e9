#pragma once
/// \file
/// Step 1: four lanes share a row, and S, P, m and ℓ live in their registers.
///
/// What one lane needs from another it gets by a shuffle: the maximum for all four lanes, the sum for one of them, and
/// each element of P when its row of V comes up. Chapter 04's barriers round the softmax are gone: no other warp is
/// involved.
///
/// Grid: a block of 256 threads for 64 rows of Q, a query head and a batch entry.
///
/// Registers a thread: 8 elements of S and P, head_dim / 4 of O. Shared memory: one tile of Q, K and V each. Device
/// memory: Q, K, V, O, LSE. Bytes: q_outer_traffic(). FLOPs: 4 · 64 · 32 · head_dim a tile.
///
/// Source: CUDA C++ Programming Guide, "Warp Shuffle Functions"; Dao, "FlashAttention-2" (2023), section 3.3, for
/// giving rows, not keys, to the warps.

#include <cmath>

#include "chapters/05_warp_shuffle/row_of_lanes.cuh"
#include "common/attention/cost.hpp"
#include "common/gpu/barrier.cuh"
#include "common/kernel/load_tile.cuh"
#include "common/kernel/softmax_state.cuh"
#include "common/kernel/tiles.hpp"
#include "common/stage/kernel.hpp"

namespace warp_shuffle {

using attention::ForwardArgs;
using attention::KeyRange;
using attention::Problem;
using kernel::tiles_of;

/// Who does what in step 1.
template <int kHeadDim_>
struct ShuffleTile {
  static constexpr int kHeadDim = kHeadDim_, kThreads = 256, kLanes = 4;
  using RowLanes = Lanes<kLanes>;  ///< neighbours share a row
  static constexpr int kBr = kThreads / kLanes, kBc = 32;
  static constexpr int kKeys = kBc / kLanes;          ///< of a thread: lane, lane + kLanes, …
  static constexpr int kColumns = kHeadDim / kLanes;  ///< of a thread, likewise
};

/// One tile of each matrix. A float of padding puts the elements of a column into different banks.
template <class Tile>
struct ShuffleShared {
  float q[Tile::kBr][Tile::kHeadDim + 1];
  float k[Tile::kBc][Tile::kHeadDim + 1];
  float v[Tile::kBc][Tile::kHeadDim];
};

/// 64 rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads) shuffle_kernel(ForwardArgs<float> args, int query_tiles) {
  constexpr int kLanes = Tile::kLanes, kKeys = Tile::kKeys, kColumns = Tile::kColumns;
  using Lanes = typename Tile::RowLanes;
  auto& shared = gpu::shared_memory<ShuffleShared<Tile>>();
  const int head_index = static_cast<int>(blockIdx.x) / query_tiles;
  const int batch = head_index / args.heads_q;
  const int head = head_index % args.heads_q;
  const int head_kv = args.kv_head(head);
  const int first_query = static_cast<int>(blockIdx.x) % query_tiles * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  const int row = Lanes::group(static_cast<int>(threadIdx.x));
  const int lane = Lanes::lane(static_cast<int>(threadIdx.x));
  const KeyRange visible = args.visible_keys(first_query + row);

  kernel::load_tile<Tile::kThreads, Tile::kHeadDim>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq,
                                                    rows);
  float m = -INFINITY;         // the same in all lanes of the row
  float l = 0;                 // in lane 0 alone
  float o_reg[kColumns] = {};  // columns lane, lane + kLanes, …

  for (int first_key = 0; first_key < args.seqlen_kv; first_key += Tile::kBc) {
    const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
    __syncthreads();  // K and V of the tile before have been read
    kernel::load_tile<Tile::kThreads, Tile::kHeadDim>(shared.k, args.k_row(batch, first_key, head_kv),
                                                      args.k_strides.seq, keys);
    kernel::load_tile<Tile::kThreads, Tile::kHeadDim>(shared.v, args.v_row(batch, first_key, head_kv),
                                                      args.v_strides.seq, keys);
    __syncthreads();  // the tiles are there

    float s_reg[kKeys] = {};  // keys lane, lane + kLanes, …
#pragma unroll 4
    for (int c = 0; c < Tile::kHeadDim; ++c) {
      const float q = shared.q[row][c];
#pragma unroll
      for (int n = 0; n < kKeys; ++n) s_reg[n] += q * shared.k[lane + n * kLanes][c];
    }

    float m_new = m;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      const int key = first_key + lane + n * kLanes;
      s_reg[n] = key >= visible.begin && key < visible.end ? args.softmax_scale * s_reg[n] : -INFINITY;
      m_new = fmaxf(m_new, s_reg[n]);
    }
    m_new = Lanes::max_for_all(m_new);
    const float shift = m_new == -INFINITY ? 0.0f : m_new;
    const float rescale = kernel::rescale(m, m_new);
    m = m_new;

    float sum = 0;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
      s_reg[n] = expf(s_reg[n] - shift);  // from here on it is P
      sum += s_reg[n];
    }
    l = l * rescale + Lanes::sum_for_first(sum);

#pragma unroll
    for (int c = 0; c < kColumns; ++c) o_reg[c] *= rescale;
#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
#pragma unroll
      for (int owner = 0; owner < kLanes; ++owner) {
        const float p = Lanes::from_lane(s_reg[n], owner);
        const float* v_row = shared.v[owner + n * kLanes];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) o_reg[c] += p * v_row[lane + c * kLanes];
      }
    }
  }

  l = Lanes::from_lane(l, 0);
  if (row >= rows) return;
  const float inverse_l = l == 0 ? 0.0f : 1 / l;
  float* o_row = args.o_row(batch, first_query + row, head);
#pragma unroll
  for (int c = 0; c < kColumns; ++c) o_row[lane + c * kLanes] = o_reg[c] * inverse_l;
  if (lane == 0) *args.lse_entry(batch, first_query + row, head) = kernel::log_sum_exp({m, l});
}

/// Element accesses of steps 1 and 2, exactly: Q once, K and V once a tile of Q; O and LSE stored once.
template <class Tile>
attention::Traffic q_outer_traffic(const Problem& p) {
  const double heads = double(p.batch) * p.heads_q;
  const double rows = heads * p.seqlen_q;
  const double passes = tiles_of(p.seqlen_q, Tile::kBr);
  return {.loaded = sizeof(float) * (rows * p.head_dim + heads * 2 * p.seqlen_kv * p.head_dim * passes),
          .stored = sizeof(float) * rows * (p.head_dim + 1)};
}

/// Step 1 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel shuffle() {
  using Tile = ShuffleTile<kHeadDim>;
  const std::string name = "shuffle";
  return {.name = name,
          .summary = "four lanes a row: maximum, sum and P by shuffles",
          .require = [name](const Problem&) { stage::require_shared_memory(name, sizeof(ShuffleShared<Tile>)); },
          .traffic = q_outer_traffic<Tile>,
          .run =
              [](const ForwardArgs<float>& args, void*) {
                const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<ShuffleShared<Tile>>(shuffle_kernel<Tile>, {.grid = blocks, .block = Tile::kThreads}, args,
                                                 query_tiles);
              }};
}

}  // namespace warp_shuffle
