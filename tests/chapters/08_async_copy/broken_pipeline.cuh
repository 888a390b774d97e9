#pragma once
/// \file
/// The chapter's loop, small enough to break: two warps a block with 16 queries each, 16 keys a tile, head_dim 64, two
/// buffers, rescaling when it matters. A fault is a template argument; without one it is right.

#include <cmath>
#include <cstdint>
#include <string>

#include "chapters/08_async_copy/step3_lazy_rescale.cuh"

namespace broken_pipeline {

enum class Fault {
  none,
  wait_one_group_short,   ///< the wait leaves the newest group: the tile that is read next
  barrier_before_wait,    ///< a barrier, but no wait behind which it stands
  loaded_before_barrier,  ///< the next tile is started while other warps may still read its buffer
  stage_not_toggled,      ///< the tiles take turns, the reader does not
  padding_not_masked,     ///< a tile that the end of K cuts is taken for a whole one
  mask_a_tile_late,       ///< the mask begins one tile behind where it should
  growth_not_applied,     ///< the maximum grows, O and l stay in the units of the old one
  l_not_rescaled,         ///< O is rescaled, l is not
  o_not_rescaled,         ///< the other way round
  maximum_moves,          ///< below the threshold nothing is rescaled, but the new maximum is subtracted
  tile_passed_over,       ///< a warp skips the last tile in which its rows see keys
};

constexpr int kHeadDim = 64, kWarps = 2, kWarpRows = 16, kBr = kWarps * kWarpRows, kBc = 16, kThreads = 32 * kWarps;

template <class T>
struct Shared {
  kernel::SharedTile<T, kBr, kHeadDim, kernel::Swizzled> q;
  kernel::SharedTile<T, kBc, kHeadDim, kernel::Swizzled> k[2], v[2];
};

template <class T, Fault kFault>
__global__ void broken_kernel(attention::ForwardArgs<T> args, int query_tiles) {
  auto& shared = gpu::shared_memory<Shared<T>>();
  using QTile = decltype(shared.q);
  using KTile = kernel::SharedTile<T, kBc, kHeadDim, kernel::Swizzled>;
  const int head_index = static_cast<int>(blockIdx.x) / query_tiles;
  const int batch = head_index / args.heads_q, head = head_index % args.heads_q, head_kv = args.kv_head(head);
  const int first_query = static_cast<int>(blockIdx.x) % query_tiles * kBr;
  const int rows = min(kBr, args.seqlen_q - first_query);
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize;
  const int warp_row = static_cast<int>(threadIdx.x) / gpu::kWarpSize * kWarpRows;
  const attention::KeyRange visited =
      kernel::visited_keys(args.mask, first_query, rows, args.seqlen_q, args.seqlen_kv, kBc);
  const attention::KeyRange unmasked =
      attention::keys_of_all(args.mask, first_query, first_query + rows - 1, args.seqlen_q, args.seqlen_kv);
  int seen_by_warp_end = attention::keys_of_any(args.mask, first_query + warp_row,
                                                first_query + warp_row + kWarpRows - 1, args.seqlen_q, args.seqlen_kv)
                             .end;
  if (kFault == Fault::tile_passed_over) seen_by_warp_end -= kBc;

  const auto start_loading = [&](int first_key, int stage) {
    const int keys = min(kBc, args.seqlen_kv - first_key);
    kernel::load_chunks_async<kThreads>(shared.k[stage], args.k_row(batch, first_key, head_kv), args.k_strides.seq,
                                        keys);
    kernel::load_chunks_async<kThreads>(shared.v[stage], args.v_row(batch, first_key, head_kv), args.v_strides.seq,
                                        keys);
  };
  kernel::load_chunks_async<kThreads>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq, rows);
  gpu::copy_async_commit();
  if (visited.begin < visited.end) start_loading(visited.begin, 0);
  gpu::copy_async_commit();
  const kernel::FoldedScale scale(args.softmax_scale);
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  float o_reg[kHeadDim / 8][4] = {};

  for (int first_key = visited.begin, stage = 0; first_key < visited.end; first_key += kBc, stage ^= 1) {
    const bool more = first_key + kBc < visited.end;
    if (kFault == Fault::loaded_before_barrier && more) start_loading(first_key + kBc, stage ^ 1);
    if (kFault == Fault::loaded_before_barrier) gpu::copy_async_commit();
    if constexpr (kFault == Fault::loaded_before_barrier || kFault == Fault::wait_one_group_short) {
      gpu::copy_async_wait<1>();
    } else if constexpr (kFault != Fault::barrier_before_wait) {
      gpu::copy_async_wait<0>();
    }
    __syncthreads();
    if constexpr (kFault == Fault::barrier_before_wait) gpu::copy_async_wait<0>();
    if (kFault != Fault::loaded_before_barrier && more) start_loading(first_key + kBc, stage ^ 1);
    if (kFault != Fault::loaded_before_barrier) gpu::copy_async_commit();
    if (first_key >= seen_by_warp_end) continue;
    const int read = kFault == Fault::stage_not_toggled ? 0 : stage;

    float s_reg[2][4] = {};
    for (int i = 0; i < kHeadDim / 16; ++i) {
      std::uint32_t q_reg[4], k_reg[2][2];
      gpu::load_matrices<4>(q_reg, shared.q.at(QTile::column_step(kernel::offset_of_a<QTile>(warp_row, lane), i)));
      kernel::load_b(k_reg, shared.k[read], KTile::column_step(kernel::offset_of_b<KTile>(lane), i));
      gpu::mma_16x8x16<T>(s_reg[0], q_reg, k_reg[0]);
      gpu::mma_16x8x16<T>(s_reg[1], q_reg, k_reg[1]);
    }
    if (scale.sign != 1) kernel::apply_sign(s_reg, scale.sign);
    bool masked = first_key < unmasked.begin || first_key + kBc > unmasked.end;
    if (kFault == Fault::padding_not_masked) {
      masked = masked && (first_key < unmasked.begin || unmasked.end < args.seqlen_kv);
    }
    if (kFault == Fault::mask_a_tile_late) masked = first_key < unmasked.begin || first_key > unmasked.end;
    if (masked) kernel::mask_scores(s_reg, args, first_query + warp_row, first_key, lane);

    float m_new[2];
    bool grows = false;
    for (int half = 0; half < 2; ++half) {
      m_new[half] = m[half];
      for (int n = 0; n < 2; ++n) {
        m_new[half] = fmaxf(m_new[half], fmaxf(s_reg[n][2 * half], s_reg[n][2 * half + 1]));
      }
      m_new[half] = kernel::max_of_row(m_new[half]);
      grows = grows || (m_new[half] - m[half]) * scale.factor_log2 > async_copy::kLargestExponent;
    }
    if (__any_sync(gpu::kFullWarp, grows)) {
      for (int half = 0; half < 2; ++half) {
        const float shift = m_new[half] == -INFINITY ? 0.0f : m_new[half];
        const float rescale = gpu::exp2_approximate((m[half] - shift) * scale.factor_log2);
        m[half] = m_new[half];
        const float of_l = kFault == Fault::growth_not_applied || kFault == Fault::l_not_rescaled ? 1 : rescale;
        const float of_o = kFault == Fault::growth_not_applied || kFault == Fault::o_not_rescaled ? 1 : rescale;
        l[half] *= of_l;
        for (int c = 0; c < kHeadDim / 8; ++c) {
          o_reg[c][2 * half] *= of_o;
          o_reg[c][2 * half + 1] *= of_o;
        }
      }
    }
    for (int half = 0; half < 2; ++half) {
      if (kFault == Fault::maximum_moves) m[half] = m_new[half];
      const float shift = m[half] == -INFINITY ? 0.0f : m[half] * scale.factor_log2;
      for (int n = 0; n < 2; ++n)
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          s_reg[n][e] = gpu::exp2_approximate(s_reg[n][e] * scale.factor_log2 - shift);
          l[half] += s_reg[n][e];
        }
    }

    std::uint32_t p_reg[4];
    kernel::pack_a<T>(p_reg, s_reg[0], s_reg[1]);
    for (int c = 0; c < kHeadDim / 8; c += 2) {
      std::uint32_t v_reg[2][2];
      kernel::load_b_transposed(v_reg, shared.v[read],
                                KTile::column_step(kernel::offset_of_b_transposed<KTile>(lane), c / 2));
      gpu::mma_16x8x16<T>(o_reg[c], p_reg, v_reg[0]);
      gpu::mma_16x8x16<T>(o_reg[c + 1], p_reg, v_reg[1]);
    }
  }

  gpu::copy_async_wait<0>();
  for (int half = 0; half < 2; ++half) {
    const float sum = kernel::sum_of_row(l[half]);
    const int row = warp_row + kernel::fragment_row(half, lane);
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
          .traffic = [](const attention::Problem& p) { return attention::tiled_forward_traffic(p, kBr, kBc); },
          .run =
              []<stage::SixteenBits T>(const attention::ForwardArgs<T>& args, void*) {
                const int query_tiles = kernel::tiles_of(args.seqlen_q, kBr);
                const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
                if (blocks == 0) return;
                gpu::launch<Shared<T>>(broken_kernel<T, kFault>, {.grid = blocks, .block = kThreads}, args,
                                       query_tiles);
              }};
}

}  // namespace broken_pipeline
