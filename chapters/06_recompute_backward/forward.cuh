#pragma once
/// \file
/// A forward that is short and right, for the toy training: a backward needs an O and an LSE. Chapter 05 has fast ones.
///
/// Grid: a warp for each query row, four of them a block. Of 32 keys at a time a lane has one, and of O the columns
/// lane, lane + 32, and so on. Registers: the lane's columns of O. Device memory: Q, K, V, O, LSE.

#include <cmath>
#include <cstdint>

#include "common/attention/problem.hpp"
#include "common/gpu/launch.cuh"
#include "common/gpu/warp.cuh"
#include "common/kernel/softmax_state.cuh"

namespace recompute_backward {

using attention::ForwardArgs;

/// O and LSE of every query row.
template <int kHeadDim>
__global__ void forward_kernel(ForwardArgs<float> args, std::int64_t rows) {
  constexpr int kColumns = kHeadDim / gpu::kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize;
  const std::int64_t index = std::int64_t{blockIdx.x} * (blockDim.x / gpu::kWarpSize) + threadIdx.x / gpu::kWarpSize;
  if (index >= rows) return;
  const int query = static_cast<int>(index % args.seqlen_q);
  const int head = static_cast<int>(index / args.seqlen_q % args.heads_q);
  const int batch = static_cast<int>(index / args.seqlen_q / args.heads_q);
  const int head_kv = args.kv_head(head);
  const attention::KeyRange keys = args.visible_keys(query);
  const float* q = args.q_row(batch, query, head);

  kernel::SoftmaxState state;  // the same in all lanes
  float o_reg[kColumns] = {};
  for (int first_key = keys.begin; first_key < keys.end; first_key += gpu::kWarpSize) {
    const int in_reach = min(gpu::kWarpSize, keys.end - first_key);
    float score = -INFINITY;
    if (lane < in_reach) {
      const float* k = args.k_row(batch, first_key + lane, head_kv);
      float dot = 0;
      for (int c = 0; c < kHeadDim; ++c) dot += q[c] * k[c];
      score = args.softmax_scale * dot;
    }
    float m_new = score;
    for (int bit = 16; bit > 0; bit /= 2) m_new = fmaxf(m_new, __shfl_xor_sync(gpu::kFullWarp, m_new, bit));
    m_new = fmaxf(m_new, state.m);
    const float p = expf(score - m_new), keep = kernel::rescale(state.m, m_new);
    float sum = p;
    for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(gpu::kFullWarp, sum, bit);
    state.m = m_new;
    state.l = state.l * keep + sum;
    for (int c = 0; c < kColumns; ++c) o_reg[c] *= keep;
    for (int j = 0; j < in_reach; ++j) {
      const float p_j = __shfl_sync(gpu::kFullWarp, p, j);
      const float* v = args.v_row(batch, first_key + j, head_kv);
      for (int c = 0; c < kColumns; ++c) o_reg[c] += p_j * v[lane + c * gpu::kWarpSize];
    }
  }

  float* o = args.o_row(batch, query, head);
  for (int c = 0; c < kColumns; ++c) o[lane + c * gpu::kWarpSize] = o_reg[c] * kernel::inverse_sum(state);
  if (lane == 0) *args.lse_entry(batch, query, head) = kernel::log_sum_exp(state);
}

/// Launches it. head_dim is 32, 64 or 128.
inline void run_forward(const ForwardArgs<float>& args) {
  constexpr unsigned kWarps = 4;
  const std::int64_t rows = std::int64_t{args.batch} * args.heads_q * args.seqlen_q;
  if (rows == 0) return;
  const gpu::LaunchShape shape{.grid = (rows + kWarps - 1) / kWarps, .block = kWarps * gpu::kWarpSize};
  if (args.head_dim == 32) gpu::launch(forward_kernel<32>, shape, args, rows);
  if (args.head_dim == 64) gpu::launch(forward_kernel<64>, shape, args, rows);
  if (args.head_dim == 128) gpu::launch(forward_kernel<128>, shape, args, rows);
}

}  // namespace recompute_backward
