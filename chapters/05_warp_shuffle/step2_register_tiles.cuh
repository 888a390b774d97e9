#pragma once
/// \file
/// Step 2: a thread works on 8 rows at a time, and loads four floats an instruction.
///
/// In step 1 every multiplication of QKᵀ needs an element of K that was loaded for it alone. Here each thread has a
/// square of the product, 8 rows × 4 keys, and for PV 8 rows × 8 columns: what it has loaded it uses 4 to 8 times.
///
/// Grid: a block of 128 threads for 8192 / head_dim rows of Q, a query head and a batch entry. head_dim / 8 lanes share
/// a row.
///
/// Registers a thread: 32 elements of S and P, 64 of O. Shared memory: one tile of Q, K and V each. Device memory: Q,
/// K, V, O, LSE, all rows at multiples of 16 bytes. Bytes: q_outer_traffic(). FLOPs: 4 · Br · Bc · head_dim a tile.
///
/// Source: register tiles are those of any fast matrix product; Volkov and Demmel, "Benchmarking GPUs to tune dense
/// linear algebra" (2008).

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

/// Who does what in step 2.
template <int kHeadDim_>
struct RegisterTile {
  static constexpr int kHeadDim = kHeadDim_, kThreads = 128, kLanes = kHeadDim / 8;
  using RowLanes = Lanes<kLanes, 2>;  ///< neighbours, of different rows, load the same element of K and V
  static constexpr int kRows = 8;     ///< of a thread: group, group + kGroups, …
  static constexpr int kGroups = kThreads / kLanes;
  static constexpr int kKeys = 4;                       ///< of a thread: lane, lane + kLanes, …
  static constexpr int kQuads = kHeadDim / kLanes / 4;  ///< four columns each: 4 · lane, 4 · (lane + kLanes), …
  static constexpr int kBr = kGroups * kRows, kBc = kLanes * kKeys;
};

/// One tile of each matrix. Four floats of padding: rows begin at multiples of 16 bytes, and the 16 bytes that eight
/// lanes take of eight rows lie in different banks.
template <class Tile>
struct RegisterShared {
  float q[Tile::kBr][Tile::kHeadDim + 4];
  float k[Tile::kBc][Tile::kHeadDim + 4];
  float v[Tile::kBc][Tile::kHeadDim];
};

/// Br rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads) register_tiles_kernel(ForwardArgs<float> args, int query_tiles) {
  constexpr int kLanes = Tile::kLanes, kRows = Tile::kRows, kKeys = Tile::kKeys, kQuads = Tile::kQuads;
  using Lanes = typename Tile::RowLanes;
  auto& shared = gpu::shared_memory<RegisterShared<Tile>>();
  const int head_index = static_cast<int>(blockIdx.x) / query_tiles;
  const int batch = head_index / args.heads_q;
  const int head = head_index % args.heads_q;
  const int head_kv = args.kv_head(head);
  const int first_query = static_cast<int>(blockIdx.x) % query_tiles * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  const int lane = Lanes::lane(static_cast<int>(threadIdx.x));
  const int group = Lanes::group(static_cast<int>(threadIdx.x));
  const auto row = [group](int r) { return group + r * Tile::kGroups; };

  kernel::load_tile4<Tile::kThreads, Tile::kHeadDim>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq,
                                                     rows);
  float m[kRows];       // the same in all lanes of the row
  float l[kRows] = {};  // in lane 0 alone
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

    float s_reg[kRows][kKeys] = {};
#pragma unroll 2
    for (int c = 0; c < Tile::kHeadDim; c += 4) {
      float4 k_reg[kKeys];
#pragma unroll
      for (int n = 0; n < kKeys; ++n) k_reg[n] = gpu::load4(&shared.k[lane + n * kLanes][c]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 q = gpu::load4(&shared.q[row(r)][c]);
#pragma unroll
        for (int n = 0; n < kKeys; ++n) {
          s_reg[r][n] += q.x * k_reg[n].x;
          s_reg[r][n] += q.y * k_reg[n].y;
          s_reg[r][n] += q.z * k_reg[n].z;
          s_reg[r][n] += q.w * k_reg[n].w;
        }
      }
    }

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const KeyRange visible = args.visible_keys(first_query + row(r));
      float m_new = m[r];
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        const int key = first_key + lane + n * kLanes;
        s_reg[r][n] = key >= visible.begin && key < visible.end ? args.softmax_scale * s_reg[r][n] : -INFINITY;
        m_new = fmaxf(m_new, s_reg[r][n]);
      }
      m_new = Lanes::max_for_all(m_new);
      const float shift = m_new == -INFINITY ? 0.0f : m_new;
      const float rescale = kernel::rescale(m[r], m_new);
      m[r] = m_new;

      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        s_reg[r][n] = expf(s_reg[r][n] - shift);  // from here on it is P
        sum += s_reg[r][n];
      }
      l[r] = l[r] * rescale + Lanes::sum_for_first(sum);
#pragma unroll
      for (int c = 0; c < kQuads; ++c) o_reg[r][c] = gpu::scaled(o_reg[r][c], rescale);
    }

#pragma unroll
    for (int n = 0; n < kKeys; ++n) {
#pragma unroll 4
      for (int owner = 0; owner < kLanes; ++owner) {
        float4 v_reg[kQuads];
#pragma unroll
        for (int c = 0; c < kQuads; ++c) {
          v_reg[c] = gpu::load4(&shared.v[owner + n * kLanes][4 * (lane + c * kLanes)]);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float p = Lanes::from_lane(s_reg[r][n], owner);
#pragma unroll
          for (int c = 0; c < kQuads; ++c) gpu::add_scaled(o_reg[r][c], p, v_reg[c]);
        }
      }
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = Lanes::from_lane(l[r], 0);
    if (row(r) >= rows) continue;
    const float inverse_l = sum == 0 ? 0.0f : 1 / sum;
    float* o_row = args.o_row(batch, first_query + row(r), head);
#pragma unroll
    for (int c = 0; c < kQuads; ++c) gpu::store4(o_row + 4 * (lane + c * kLanes), gpu::scaled(o_reg[r][c], inverse_l));
    if (lane == 0) *args.lse_entry(batch, first_query + row(r), head) = kernel::log_sum_exp({m[r], sum});
  }
}

/// Step 2 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel register_tiles() {
  using Tile = RegisterTile<kHeadDim>;
  const std::string name = "register_tiles";
  return {.name = name,
          .summary = "8 x 4 and 8 x 8 elements a thread, 16 bytes a load",
          .require =
              [name](const Problem& p) {
                stage::require_16_byte_rows(name, p);
                stage::require_shared_memory(name, sizeof(RegisterShared<Tile>));
              },
          .traffic = q_outer_traffic<Tile>,
          .run =
              [](const ForwardArgs<float>& args, void*) {
                const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<RegisterShared<Tile>>(register_tiles_kernel<Tile>,
                                                  {.grid = blocks, .block = Tile::kThreads}, args, query_tiles);
              }};
}

}  // namespace warp_shuffle
