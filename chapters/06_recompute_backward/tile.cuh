#pragma once
/// \file
/// What all steps but the first do with one tile of queries and one of keys, in shared memory.
///
///     multiply_rows        S = Q·Kᵀ, and dP = dO·Vᵀ                      Br × Bc, in registers
///     probabilities        P = exp(scale·S − LSE) in place of S, dS = P∘(dP − D) in place of dP
///     add_over_queries     dV += Pᵀ·dO, dK += dSᵀ·Q                      Bc × head_dim, in registers
///     add_over_keys        dQ += dS·K                                    Br × head_dim, in registers
///
/// Five products of 2 · Br · Bc · head_dim FLOPs each. The last three need P and dS of other threads, which therefore
/// go through shared memory, one after the other in the same place.
///
/// A thread has a square of each product, as in chapter 05: what it has loaded it uses four times or more. Its rows and
/// keys in S and dP are 16 apart; its part of dQ, dK and dV is described at BackwardTile.
///
/// Source: Dao, "FlashAttention-2" (2023), algorithm 2, lines 10 to 16.

#include <cmath>
#include <cstdint>
#include <string>

#include "common/attention/problem.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/launch.cuh"
#include "common/gpu/vector.cuh"
#include "common/kernel/load_tile.cuh"
#include "common/kernel/tiles.hpp"
#include "common/stage/kernel.hpp"

namespace recompute_backward {

using attention::BackwardArgs;
using attention::KeyRange;
using attention::Problem;
using attention::QueryRange;
using kernel::tiles_of;

/// Who does what.
template <int kHeadDim_>
struct BackwardTile {
  static constexpr int kHeadDim = kHeadDim_, kThreads = 256, kBr = 64, kBc = 64;

  /// Blocks that share a multiprocessor, by their shared memory, and so 255 or 128 registers a thread.
  static constexpr int kBlocks = kHeadDim == 128 ? 1 : 2;

  /// S and dP: the rows group, group + 16, … and the keys lane, lane + 16, …
  static constexpr int kLanes = 16, kRows = 4, kKeys = 4;
  static_assert(kBr == kLanes * kRows && kBc == kLanes * kKeys && kThreads == kLanes * kLanes);
  /// Neighbours are of different groups, so that two of them load the same 16 bytes of K and V (chapter 05).
  __device__ static int lane(int thread) { return thread / 2 % kLanes; }
  __device__ static int group(int thread) { return thread / (2 * kLanes) * 2 + thread % 2; }

  /// dQ, dK, dV: the columns 4 · (column_lane + c · kColumnLanes) and after them. Of dK and dV neighbouring rows, whose
  /// P or dS are one load; of dQ rows that are kOutGroups apart, so that two groups load from different banks.
  static constexpr int kColumnLanes = kHeadDim < 64 ? kHeadDim / 4 : 16;
  static constexpr int kQuads = kHeadDim / 4 / kColumnLanes;
  static constexpr int kOutGroups = kThreads / kColumnLanes, kOutRows = kBr / kOutGroups;
  __device__ static int column_lane(int thread) { return thread / 2 % kColumnLanes; }
  __device__ static int out_group(int thread) { return thread / (2 * kColumnLanes) * 2 + thread % 2; }
  __device__ static int key_row(int thread, int i) { return out_group(thread) * kOutRows + i; }
  __device__ static int query_row(int thread, int i) { return out_group(thread) + i * kOutGroups; }
};

/// One tile of each matrix. A row of P ends with 16 floats of padding: a warp stores 16 neighbouring keys of two
/// neighbouring rows, which then lie in 32 banks. The other rows end with four, so that they begin at multiples of 16
/// bytes and 8 rows' 16 bytes lie in 32 banks.
template <class Tile>
struct BackwardShared {
  alignas(16) float q[Tile::kBr][Tile::kHeadDim + 4];
  alignas(16) float dout[Tile::kBr][Tile::kHeadDim + 4];
  alignas(16) float k[Tile::kBc][Tile::kHeadDim + 4];
  alignas(16) float v[Tile::kBc][Tile::kHeadDim + 4];
  alignas(16) float p[Tile::kBr][Tile::kBc + 16];  ///< P, and then dS
  float lse[Tile::kBr], d[Tile::kBr];              ///< of the tile's queries
};

/// A square of S or dP: one element a row and key of the thread.
template <class Tile>
using Square = float[Tile::kRows][Tile::kKeys];

/// A thread's part of dQ, dK or dV.
template <class Tile>
using Out = float4[Tile::kOutRows][Tile::kQuads];

/// product[r][n] += a[row r] · b[key n]: S of Q and K, dP of dO and V.
template <class Tile, int kRowFloats>
__device__ void multiply_rows(Square<Tile>& product, const float (&a_smem)[Tile::kBr][kRowFloats],
                              const float (&b_smem)[Tile::kBc][kRowFloats]) {
  const int lane = Tile::lane(static_cast<int>(threadIdx.x)), group = Tile::group(static_cast<int>(threadIdx.x));
#pragma unroll 8
  for (int c = 0; c < Tile::kHeadDim; c += 4) {
    float4 b_reg[Tile::kKeys];
#pragma unroll
    for (int n = 0; n < Tile::kKeys; ++n) b_reg[n] = gpu::load4(&b_smem[lane + n * Tile::kLanes][c]);
#pragma unroll
    for (int r = 0; r < Tile::kRows; ++r) {
      const float4 a = gpu::load4(&a_smem[group + r * Tile::kLanes][c]);
#pragma unroll
      for (int n = 0; n < Tile::kKeys; ++n) {
        product[r][n] += a.x * b_reg[n].x;
        product[r][n] += a.y * b_reg[n].y;
        product[r][n] += a.z * b_reg[n].z;
        product[r][n] += a.w * b_reg[n].w;
      }
    }
  }
}

/// P over S, dS over dP.
///
/// A hidden key, and one past the end of K, has P = 0 because the mask says so *after* the exponential. exp(S − LSE)
/// knows nothing of a maximum. Where a tile has been filled with zeros S is 0, and exp(0 − LSE) is infinite if LSE is
/// below −88; a row that sees nothing has LSE = −∞. Infinity times 0 is NaN, so P is chosen, not multiplied.
template <class Tile>
__device__ void probabilities(Square<Tile>& s, Square<Tile>& dp, const BackwardArgs<float>& args,
                              const BackwardShared<Tile>& shared, int first_query, int first_key) {
  const int lane = Tile::lane(static_cast<int>(threadIdx.x)), group = Tile::group(static_cast<int>(threadIdx.x));
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) {
    const int row = group + r * Tile::kLanes, query = first_query + row;
    const KeyRange visible = query < args.seqlen_q ? args.visible_keys(query) : KeyRange{0, 0};
    const float lse = shared.lse[row], d = shared.d[row];
#pragma unroll
    for (int n = 0; n < Tile::kKeys; ++n) {
      const int key = first_key + lane + n * Tile::kLanes;
      const float p = expf(args.softmax_scale * s[r][n] - lse);
      s[r][n] = key >= visible.begin && key < visible.end ? p : 0.0f;
      dp[r][n] = s[r][n] * (dp[r][n] - d);
    }
  }
}

/// A thread's square into the block's P, where others read it.
template <class Tile>
__device__ void store_square(BackwardShared<Tile>& shared, const Square<Tile>& square) {
  const int lane = Tile::lane(static_cast<int>(threadIdx.x)), group = Tile::group(static_cast<int>(threadIdx.x));
#pragma unroll
  for (int r = 0; r < Tile::kRows; ++r) {
#pragma unroll
    for (int n = 0; n < Tile::kKeys; ++n) {
      shared.p[group + r * Tile::kLanes][lane + n * Tile::kLanes] = square[r][n];
    }
  }
}

/// out[key] += Σ over the tile's queries of p[query][key] · x[query]: dV of P and dO, dK of dS and Q.
template <class Tile, int kRowFloats>
__device__ void add_over_queries(Out<Tile>& out, const BackwardShared<Tile>& shared,
                                 const float (&x_smem)[Tile::kBr][kRowFloats]) {
  const int column = Tile::column_lane(static_cast<int>(threadIdx.x));
  const int first_key = Tile::key_row(static_cast<int>(threadIdx.x), 0);
#pragma unroll 8
  for (int query = 0; query < Tile::kBr; ++query) {
    float p[Tile::kOutRows];
    if constexpr (Tile::kOutRows == 4) {
      const float4 p_reg = gpu::load4(&shared.p[query][first_key]);
      p[0] = p_reg.x, p[1] = p_reg.y, p[2] = p_reg.z, p[3] = p_reg.w;
    } else {
      const float2 p_reg = gpu::load2(&shared.p[query][first_key]);
      p[0] = p_reg.x, p[1] = p_reg.y;
    }
#pragma unroll
    for (int c = 0; c < Tile::kQuads; ++c) {
      const float4 x = gpu::load4(&x_smem[query][4 * (column + c * Tile::kColumnLanes)]);
#pragma unroll
      for (int i = 0; i < Tile::kOutRows; ++i) gpu::add_scaled(out[i][c], p[i], x);
    }
  }
}

/// out[query] += Σ over the tile's keys of p[query][key] · x[key]: dQ of dS and K.
template <class Tile, int kRowFloats>
__device__ void add_over_keys(Out<Tile>& out, const BackwardShared<Tile>& shared,
                              const float (&x_smem)[Tile::kBc][kRowFloats]) {
  const int column = Tile::column_lane(static_cast<int>(threadIdx.x));
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 8
  for (int key = 0; key < Tile::kBc; key += 4) {
    float4 p[Tile::kOutRows];
#pragma unroll
    for (int i = 0; i < Tile::kOutRows; ++i) p[i] = gpu::load4(&shared.p[Tile::query_row(thread, i)][key]);
#pragma unroll
    for (int c = 0; c < Tile::kQuads; ++c) {
      const auto x = [&](int k) { return gpu::load4(&x_smem[key + k][4 * (column + c * Tile::kColumnLanes)]); };
      const float4 x0 = x(0), x1 = x(1), x2 = x(2), x3 = x(3);
#pragma unroll
      for (int i = 0; i < Tile::kOutRows; ++i) {
        gpu::add_scaled(out[i][c], p[i].x, x0);
        gpu::add_scaled(out[i][c], p[i].y, x1);
        gpu::add_scaled(out[i][c], p[i].z, x2);
        gpu::add_scaled(out[i][c], p[i].w, x3);
      }
    }
  }
}

/// Calls use(row of the tile, first column, the four elements from there on) for what the thread has of dQ, dK or dV,
/// in rows that exist. `row_of` is Tile::query_row or Tile::key_row.
template <class Tile, class Use>
__device__ void for_each_quad(const Out<Tile>& out, int rows, int (*row_of)(int thread, int i), Use&& use) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < Tile::kOutRows; ++i) {
    if (row_of(thread, i) >= rows) continue;
#pragma unroll
    for (int c = 0; c < Tile::kQuads; ++c) {
      use(row_of(thread, i), 4 * (Tile::column_lane(thread) + c * Tile::kColumnLanes), out[i][c]);
    }
  }
}

/// A tile of queries: their rows of Q and dO, their LSE and D. Rows past the end become zeros.
template <class Tile>
__device__ void load_queries(BackwardShared<Tile>& shared, const BackwardArgs<float>& args, const float* d_gmem,
                             int batch, int head, int first_query, int rows) {
  kernel::load_tile4<Tile::kThreads, Tile::kHeadDim>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq,
                                                     rows);
  kernel::load_tile4<Tile::kThreads, Tile::kHeadDim>(shared.dout, args.dout_row(batch, first_query, head),
                                                     args.dout_strides.seq, rows);
  const std::int64_t first = args.row_index(batch, first_query, head);
  for (int row = static_cast<int>(threadIdx.x); row < Tile::kBr; row += Tile::kThreads) {
    shared.lse[row] = row < rows ? args.lse_gmem[first + row] : 0.0f;
    shared.d[row] = row < rows ? d_gmem[first + row] : 0.0f;
  }
}

/// A tile of keys: their rows of K and V.
template <class Tile>
__device__ void load_keys(BackwardShared<Tile>& shared, const BackwardArgs<float>& args, int batch, int head_kv,
                          int first_key, int keys) {
  kernel::load_tile4<Tile::kThreads, Tile::kHeadDim>(shared.k, args.k_row(batch, first_key, head_kv),
                                                     args.k_strides.seq, keys);
  kernel::load_tile4<Tile::kThreads, Tile::kHeadDim>(shared.v, args.v_row(batch, first_key, head_kv),
                                                     args.v_strides.seq, keys);
}

/// What the kernels of this chapter take. \throws stage::Refused
template <class Tile>
void require(const std::string& name, const Problem& p) {
  stage::require_16_byte_gradients(name, p);
  stage::require_shared_memory(name, sizeof(BackwardShared<Tile>));
}

}  // namespace recompute_backward
