#pragma once
/// \file
/// Step 3: less work beside the products.
///
///   - exp(x) = 2^(x · log₂ e), and 2ˣ is what the hardware computes. That factor and the softmax scale are folded into
///     one: p = 2^((s − m) · factor), in place of a product before the maximum and another inside expf.
///   - Each lane keeps a sum of its own, over the keys that it has seen; the lanes add them up once, at the end.
///   - Tiles of which the mask shows nothing are skipped, and the mask is applied only in tiles that it cuts. The
///     rows of a causal problem that see the most keys start first.
///
/// Grid, registers and shared memory as in step 2. Bytes: attention::tiled_forward_traffic(). FLOPs: 4 · Br · Bc ·
/// head_dim a tile that is visited.
///
/// Source: Dao, "FlashAttention-2" (2023), sections 3.1 and 3.3; PTX ISA, "ex2".

#include <cmath>

#include "chapters/05_warp_shuffle/row_of_lanes.cuh"
#include "chapters/05_warp_shuffle/step2_register_tiles.cuh"
#include "common/attention/cost.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/numeric.cuh"
#include "common/gpu/vector.cuh"
#include "common/kernel/folded_scale.cuh"
#include "common/kernel/load_tile.cuh"
#include "common/kernel/softmax_state.cuh"
#include "common/kernel/tiles.hpp"
#include "common/stage/kernel.hpp"

namespace warp_shuffle {

/// The tiles of K that a tile of Q visits: keys first, first + Bc, … below end. `end` is not past the last key.
template <class Tile>
__host__ __device__ constexpr KeyRange visited_keys(attention::Mask mask, int first_query, int rows, int seqlen_q,
                                                    int seqlen_kv) {
  return kernel::visited_keys(mask, first_query, rows, seqlen_q, seqlen_kv, Tile::kBc);
}

/// Whether the mask, or the end of K, cuts the tile: whether some row does not see all of its keys.
template <class Tile>
__host__ __device__ constexpr bool needs_mask(int first_key, KeyRange unmasked) {
  return first_key < unmasked.begin || first_key + Tile::kBc > unmasked.end;
}

/// Br rows of one head.
///
/// The 2 of the launch bounds says that two blocks of a multiprocessor are enough, so that a thread may have 255
/// registers. Left to itself the compiler stops at 174, has less on its way at a time, and takes a fifth longer.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2) exp2_kernel(ForwardArgs<float> args, int query_tiles) {
  constexpr int kLanes = Tile::kLanes, kRows = Tile::kRows, kKeys = Tile::kKeys, kQuads = Tile::kQuads;
  using Lanes = typename Tile::RowLanes;
  auto& shared = gpu::shared_memory<RegisterShared<Tile>>();
  const int head_index = static_cast<int>(blockIdx.x) / query_tiles;
  const int batch = head_index / args.heads_q;
  const int head = head_index % args.heads_q;
  const int head_kv = args.kv_head(head);
  // Blocks start in order, and the last queries of a causal problem see the most keys.
  const int first_query = (query_tiles - 1 - static_cast<int>(blockIdx.x) % query_tiles) * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  const int lane = Lanes::lane(static_cast<int>(threadIdx.x));
  const int group = Lanes::group(static_cast<int>(threadIdx.x));
  const KeyRange visited = visited_keys<Tile>(args.mask, first_query, rows, args.seqlen_q, args.seqlen_kv);
  const KeyRange unmasked =
      attention::keys_of_all(args.mask, first_query, first_query + rows - 1, args.seqlen_q, args.seqlen_kv);
  const auto row = [group](int r) { return group + r * Tile::kGroups; };

  const kernel::FoldedScale scale(args.softmax_scale);
  kernel::load_tile4<Tile::kThreads, Tile::kHeadDim>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq,
                                                     rows, scale.sign);
  float m[kRows];       // the same in all lanes of the row
  float l[kRows] = {};  // over this lane's keys
  float4 o_reg[kRows][kQuads];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    m[r] = -INFINITY;
#pragma unroll
    for (int c = 0; c < kQuads; ++c) o_reg[r][c] = make_float4(0, 0, 0, 0);
  }

  for (int first_key = visited.begin; first_key < visited.end; first_key += Tile::kBc) {
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

    if (needs_mask<Tile>(first_key, unmasked)) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const KeyRange visible = args.visible_keys(first_query + row(r));
#pragma unroll
        for (int n = 0; n < kKeys; ++n) {
          const int key = first_key + lane + n * kLanes;
          if (key < visible.begin || key >= visible.end) s_reg[r][n] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float m_new = m[r];
#pragma unroll
      for (int n = 0; n < kKeys; ++n) m_new = fmaxf(m_new, s_reg[r][n]);
      m_new = Lanes::max_for_all(m_new);
      const float shift = m_new == -INFINITY ? 0.0f : m_new;
      const float rescale = gpu::exp2_approximate((m[r] - shift) * scale.factor_log2);
      m[r] = m_new;

      l[r] *= rescale;
#pragma unroll
      for (int n = 0; n < kKeys; ++n) {
        s_reg[r][n] = gpu::exp2_approximate((s_reg[r][n] - shift) * scale.factor_log2);  // from here on it is P
        l[r] += s_reg[r][n];
      }
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
    const float sum = Lanes::sum_for_all(l[r]);
    if (row(r) >= rows) continue;
    const float inverse_l = sum == 0 ? 0.0f : 1 / sum;
    float* o_row = args.o_row(batch, first_query + row(r), head);
#pragma unroll
    for (int c = 0; c < kQuads; ++c) gpu::store4(o_row + 4 * (lane + c * kLanes), gpu::scaled(o_reg[r][c], inverse_l));
    if (lane == 0)
      *args.lse_entry(batch, first_query + row(r), head) = kernel::log_sum_exp({m[r] * fabsf(args.softmax_scale), sum});
  }
}

/// Step 3 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel exp2_tiles() {
  using Tile = RegisterTile<kHeadDim>;
  const std::string name = "exp2";
  return {.name = name,
          .summary = "exp2 with the scale folded in, one sum a lane, hidden tiles skipped",
          .require =
              [name](const Problem& p) {
                stage::require_16_byte_rows(name, p);
                stage::require_shared_memory(name, sizeof(RegisterShared<Tile>));
              },
          .traffic = [](const Problem& p) { return attention::tiled_forward_traffic(p, Tile::kBr, Tile::kBc); },
          .run =
              [](const ForwardArgs<float>& args, void*) {
                const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<RegisterShared<Tile>>(exp2_kernel<Tile>, {.grid = blocks, .block = Tile::kThreads}, args,
                                                  query_tiles);
              }};
}

}  // namespace warp_shuffle
