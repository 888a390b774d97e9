#pragma once
/// \file
/// Attention on tensor cores as in the chapter, small enough to break: a warp a block, 16 queries, 16 keys a tile,
/// head_dim 64. A fault is a template argument; without one it is right.

#include <cmath>
#include <cstdint>
#include <string>

#include "common/gpu/barrier.cuh"
#include "common/gpu/numeric.cuh"
#include "common/gpu/tensor_core.cuh"
#include "common/kernel/folded_scale.cuh"
#include "common/kernel/fragments.cuh"
#include "common/kernel/shared_tile.cuh"
#include "common/kernel/softmax_state.cuh"
#include "common/kernel/tiles.hpp"
#include "common/stage/kernel.hpp"

namespace broken_mma {

enum class Fault {
  none,
  padding_not_masked,      ///< a key past the end of K counts as a score of 0
  mask_of_other_half,      ///< rows g + 8 are masked as rows g are
  maximum_of_two_lanes,    ///< the butterfly stops after its first step
  sum_of_two_lanes,        ///< the same for the sum
  rows_swapped,            ///< the upper and the lower half of A's rows have changed places
  quarters_swapped,        ///< a[1] and a[2] of P have
  keys_not_transposed,     ///< V is loaded as K is
  key_halves_swapped,      ///< keys 8 to 15 are taken for keys 0 to 7 in the B of PV, and the other way round
  lower_half_not_rescaled  ///< the rescaling of O forgets d[2], d[3]
};

constexpr int kHeadDim = 64, kBr = 16, kBc = 16;

template <class T>
struct Shared {
  kernel::SharedTile<T, kBr, kHeadDim, kernel::Swizzled> q, k, v;
};

template <class T, Fault kFault>
__global__ void broken_kernel(attention::ForwardArgs<T> args, int query_tiles) {
  auto& shared = gpu::shared_memory<Shared<T>>();
  using Tile = decltype(shared.q);
  const int head_index = static_cast<int>(blockIdx.x) / query_tiles;
  const int batch = head_index / args.heads_q, head = head_index % args.heads_q;
  const int first_query = static_cast<int>(blockIdx.x) % query_tiles * kBr;
  const int rows = min(kBr, args.seqlen_q - first_query);
  const int lane = static_cast<int>(threadIdx.x);
  const attention::KeyRange visited =
      kernel::visited_keys(args.mask, first_query, rows, args.seqlen_q, args.seqlen_kv, kBc);
  kernel::load_chunks<gpu::kWarpSize>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq, rows);
  const kernel::FoldedScale scale(args.softmax_scale);
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  float o_reg[kHeadDim / 8][4] = {};

  for (int first_key = visited.begin; first_key < visited.end; first_key += kBc) {
    const int keys = min(kBc, args.seqlen_kv - first_key);
    const int head_kv = args.kv_head(head);
    __syncthreads();
    kernel::load_chunks<gpu::kWarpSize>(shared.k, args.k_row(batch, first_key, head_kv), args.k_strides.seq, keys);
    kernel::load_chunks<gpu::kWarpSize>(shared.v, args.v_row(batch, first_key, head_kv), args.v_strides.seq, keys);
    __syncthreads();

    float s_reg[2][4] = {};
    for (int i = 0; i < kHeadDim / 16; ++i) {
      std::uint32_t q_reg[4], k_reg[2][2];
      gpu::load_matrices<4>(q_reg, shared.q.at(Tile::column_step(kernel::offset_of_a<Tile>(0, lane), i)));
      if constexpr (kFault == Fault::rows_swapped) {
        const std::uint32_t upper[2] = {q_reg[0], q_reg[2]};
        q_reg[0] = q_reg[1], q_reg[2] = q_reg[3];
        q_reg[1] = upper[0], q_reg[3] = upper[1];
      }
      kernel::load_b(k_reg, shared.k, Tile::column_step(kernel::offset_of_b<Tile>(lane), i));
      gpu::mma_16x8x16<T>(s_reg[0], q_reg, k_reg[0]);
      gpu::mma_16x8x16<T>(s_reg[1], q_reg, k_reg[1]);
    }

    for (int half = 0; half < 2; ++half) {
      const int masked_half = kFault == Fault::mask_of_other_half ? 0 : half;
      const attention::KeyRange visible = args.visible_keys(first_query + kernel::fragment_row(masked_half, lane));
      float m_new = m[half];
      for (int n = 0; n < 2; ++n)
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int key = first_key + 8 * n + kernel::fragment_column(lane) + e % 2;
          bool seen = key >= visible.begin && key < visible.end;
          if (kFault == Fault::padding_not_masked && key >= args.seqlen_kv) seen = true;
          s_reg[n][e] = seen ? s_reg[n][e] * scale.sign : -INFINITY;
          m_new = fmaxf(m_new, s_reg[n][e]);
        }
      m_new = kFault == Fault::maximum_of_two_lanes ? fmaxf(m_new, __shfl_xor_sync(gpu::kFullWarp, m_new, 1))
                                                    : kernel::max_of_row(m_new);
      const float shift = m_new == -INFINITY ? 0.0f : m_new;
      const float rescale = gpu::exp2_approximate((m[half] - shift) * scale.factor_log2);
      m[half] = m_new;
      l[half] *= rescale;
      for (int n = 0; n < 2; ++n)
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s_reg[n][e] = gpu::exp2_approximate((s_reg[n][e] - shift) * scale.factor_log2);
          l[half] += s_reg[n][e];
        }
      if (kFault == Fault::lower_half_not_rescaled && half == 1) continue;
      for (int c = 0; c < kHeadDim / 8; ++c) {
        o_reg[c][2 * half] *= rescale;
        o_reg[c][2 * half + 1] *= rescale;
      }
    }

    std::uint32_t p_reg[4];
    kernel::pack_a<T>(p_reg, s_reg[0], s_reg[1]);
    if constexpr (kFault == Fault::quarters_swapped) {
      const std::uint32_t lower_left = p_reg[1];
      p_reg[1] = p_reg[2], p_reg[2] = lower_left;
    }
    for (int c = 0; c < kHeadDim / 8; c += 2) {
      std::uint32_t v_reg[2][2];
      const int offset = Tile::column_step(kernel::offset_of_b_transposed<Tile>(lane), c / 2);
      if constexpr (kFault == Fault::keys_not_transposed) {
        kernel::load_b(v_reg, shared.v, offset);
      } else {
        kernel::load_b_transposed(v_reg, shared.v, offset);
      }
      if constexpr (kFault == Fault::key_halves_swapped) {
        for (auto& b : v_reg) {
          const std::uint32_t upper = b[0];
          b[0] = b[1], b[1] = upper;
        }
      }
      gpu::mma_16x8x16<T>(o_reg[c], p_reg, v_reg[0]);
      gpu::mma_16x8x16<T>(o_reg[c + 1], p_reg, v_reg[1]);
    }
  }

  for (int half = 0; half < 2; ++half) {
    const float sum = kFault == Fault::sum_of_two_lanes ? l[half] + __shfl_xor_sync(gpu::kFullWarp, l[half], 1)
                                                        : kernel::sum_of_row(l[half]);
    const int row = kernel::fragment_row(half, lane);
    if (row >= rows) continue;
    const float inverse_l = sum == 0 ? 0.0f : 1 / sum;
    T* o_row = args.o_row(batch, first_query + row, head) + kernel::fragment_column(lane);
    for (int c = 0; c < kHeadDim / 8; ++c) {
      kernel::store_pair(o_row + 8 * c, o_reg[c][2 * half] * inverse_l, o_reg[c][2 * half + 1] * inverse_l);
    }
    if (lane % 4 == 0) {
      *args.lse_entry(batch, first_query + row, head) = kernel::log_sum_exp({m[half] * fabsf(args.softmax_scale), sum});
    }
  }
}

template <Fault kFault>
stage::ForwardKernel kernel_with(const std::string& name) {
  return {.name = name,
          .summary = name,
          .require =
              [name](const attention::Problem& p) {
                stage::require_head_dim(name, p, {kHeadDim});
                stage::require_16_byte_rows(name, p);
              },
          .traffic = {},
          .run =
              []<stage::SixteenBits T>(const attention::ForwardArgs<T>& args, void*) {
                const int query_tiles = kernel::tiles_of(args.seqlen_q, kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<Shared<T>>(broken_kernel<T, kFault>, {.grid = blocks, .block = gpu::kWarpSize}, args,
                                       query_tiles);
              }};
}

}  // namespace broken_mma
