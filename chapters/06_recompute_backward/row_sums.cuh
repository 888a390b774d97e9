#pragma once
/// \file
/// D = rowsum(dO∘O) − dLSE, one number a query: what all gradients need of O and of the gradient through LSE. With it,
/// sums that atomics will add to are set to zero.
///
/// Grid: a warp for each query row, four of them a block. Device memory: dO, O, D, and dQ where it is to be zero.
/// Bytes: row_sums_traffic(). FLOPs: 2 · head_dim a row.
///
/// Source: Dao et al., "FlashAttention" (2022), appendix B.2, equation 4: D_i = Σ_j P_ij dP_ij = dO_i · O_i.

#include <cstdint>

#include "common/attention/cost.hpp"
#include "common/attention/problem.hpp"
#include "common/gpu/launch.cuh"
#include "common/gpu/warp.cuh"
#include "common/kernel/tiles.hpp"

namespace recompute_backward {

using attention::BackwardArgs;
using attention::Problem;

/// Rows of a block: one a warp.
inline constexpr int kRowsPerBlock = 4;

/// D of every query row; dQ = 0 if asked for.
template <int kHeadDim>
__global__ void row_sums_kernel(BackwardArgs<float> args, float* d_gmem, std::int64_t rows, bool zero_dq) {
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize;
  const std::int64_t index = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / gpu::kWarpSize;
  if (index >= rows) return;
  const int query = static_cast<int>(index % args.seqlen_q);
  const int head = static_cast<int>(index / args.seqlen_q % args.heads_q);
  const int batch = static_cast<int>(index / args.seqlen_q / args.heads_q);

  const float* o = args.o_row(batch, query, head);
  const float* dout = args.dout_row(batch, query, head);
  float* dq = args.dq_row(batch, query, head);
  float sum = 0;
  for (int c = lane; c < kHeadDim; c += gpu::kWarpSize) {
    sum += dout[c] * o[c];
    if (zero_dq) dq[c] = 0;
  }
  for (int bit = gpu::kWarpSize / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(gpu::kFullWarp, sum, bit);
  if (lane == 0) d_gmem[index] = args.dlse_gmem ? sum - args.dlse_gmem[index] : sum;
}

/// Zeroes dK and dV: a warp a row.
template <int kHeadDim>
__global__ void zero_dk_dv_kernel(BackwardArgs<float> args, std::int64_t rows) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / gpu::kWarpSize;
  if (index >= rows) return;
  const int key = static_cast<int>(index % args.seqlen_kv);
  const int head_kv = static_cast<int>(index / args.seqlen_kv % args.heads_kv);
  const int batch = static_cast<int>(index / args.seqlen_kv / args.heads_kv);
  for (int c = static_cast<int>(threadIdx.x) % gpu::kWarpSize; c < kHeadDim; c += gpu::kWarpSize) {
    args.dk_row(batch, key, head_kv)[c] = 0;
    args.dv_row(batch, key, head_kv)[c] = 0;
  }
}

/// Blocks of four rows. Their number is 64 bits wide: grid.x takes up to 2³¹ − 1, and the launch refuses more.
inline std::int64_t row_blocks(std::int64_t rows) { return (rows + kRowsPerBlock - 1) / kRowsPerBlock; }

/// Launches the kernel that computes D into [batch, heads_q, seqlen_q].
template <int kHeadDim>
void launch_row_sums(const BackwardArgs<float>& args, float* d_gmem, bool zero_dq) {
  const std::int64_t rows = std::int64_t{args.batch} * args.heads_q * args.seqlen_q;
  if (rows == 0) return;
  gpu::launch(row_sums_kernel<kHeadDim>, {.grid = row_blocks(rows), .block = kRowsPerBlock * gpu::kWarpSize}, args,
              d_gmem, rows, zero_dq);
}

/// Launches the kernel that zeroes dK and dV.
template <int kHeadDim>
void launch_zero_dk_dv(const BackwardArgs<float>& args) {
  const std::int64_t rows = std::int64_t{args.batch} * args.heads_kv * args.seqlen_kv;
  if (rows == 0) return;
  gpu::launch(zero_dk_dv_kernel<kHeadDim>, {.grid = row_blocks(rows), .block = kRowsPerBlock * gpu::kWarpSize}, args,
              rows);
}

/// Bytes of D.
inline std::size_t d_bytes(const Problem& p) { return sizeof(float) * static_cast<std::size_t>(p.elements_lse()); }

/// Element accesses of the kernel that computes D, exactly; a dLSE adds one load a row.
inline attention::Traffic row_sums_traffic(const Problem& p, bool zero_dq) {
  const double rows = double(p.elements_lse());
  return {.loaded = sizeof(float) * rows * 2 * p.head_dim,
          .stored = sizeof(float) * rows * (1 + (zero_dq ? p.head_dim : 0))};
}

}  // namespace recompute_backward
