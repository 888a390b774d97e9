#pragma once
/// \file
/// What both loop orders do with one tile of Q and one of K and V, in shared memory.
///
///     kernel::load_tile  rows of Q, K or V: device memory → shared memory       neighbouring threads, elements
///     compute_scores     S = scale · QKᵀ, −∞ where the mask hides the key       Br × Bc, in shared memory
///     softmax_rows       m, ℓ brought up to date; P over S                      a thread a row
///     accumulate         O = O · exp(m_old − m_new) + PV                        a thread a column, O in registers
///
/// All threads of the block call each of them; between any two stands a barrier, because each reads what other threads
/// wrote in the one before.
///
/// FLOPs a tile: 4 · Br · Bc · head_dim, and Br · Bc exponentials. Source: Dao et al., "FlashAttention" (2022),
/// algorithm 1, lines 9 to 12.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/problem.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/launch.cuh"
#include "common/kernel/load_tile.cuh"
#include "common/kernel/softmax_state.cuh"
#include "common/kernel/tiles.hpp"
#include "common/stage/kernel.hpp"

namespace sram_tiling {

using attention::ForwardArgs;
using attention::KeyRange;
using kernel::tiles_of;

/// Threads of a block.
inline constexpr int kThreads = 128;

/// The sizes of a tile: Br queries, Bc keys, and floats of padding behind each row of K and S.
template <int kHeadDim_, int kBr_, int kBc_, int kPadding_ = 1>
struct TileShape {
  static constexpr int kHeadDim = kHeadDim_, kBr = kBr_, kBc = kBc_, kPadding = kPadding_;
  static_assert(kThreads % kHeadDim == 0, "accumulate gives every thread one column of O");
  static_assert(kBr <= kThreads, "softmax_rows gives every row a thread");
  /// O: a thread has one column, and every kRowStep-th row.
  static constexpr int kRowStep = kThreads / kHeadDim;
  static constexpr int kRowsPerThread = kBr / kRowStep;
  static_assert(kBr % kRowStep == 0, "every thread has equally many rows of O");
};

/// A block's shared memory: one tile of each matrix, and the state of each row.
///
/// Without padding the elements of one column of K lie kHeadDim floats apart, and kHeadDim is a multiple of 32: all in
/// one bank. A warp that reads 32 rows' elements of one column then waits for 32 words out of the same bank. With one
/// float of padding they lie in 32 banks. The same holds for S, which softmax_rows reads by columns.
template <class Tile>
struct TileShared {
  float q[Tile::kBr][Tile::kHeadDim];
  float k[Tile::kBc][Tile::kHeadDim + Tile::kPadding];
  float v[Tile::kBc][Tile::kHeadDim];
  float s[Tile::kBr][Tile::kBc + Tile::kPadding];  ///< S, and P in its place
  float m[Tile::kBr];                              ///< maximum of the row so far
  float l[Tile::kBr];                              ///< ℓ, the row's sum under that maximum
  float rescale[Tile::kBr];                        ///< exp(m_old − m_new), for the row of O
};

/// What `require` of a kernel with this tile asks.
template <class Tile>
void require_tile(const std::string& kernel, const attention::Problem& p) {
  stage::require_head_dim(kernel, p, std::vector<int>{Tile::kHeadDim});
  stage::require_shared_memory(kernel, sizeof(TileShared<Tile>));
}

/// S of the tile whose first query and key are given. The threads of a warp take neighbouring keys: of Q they all read
/// the same element, of K a column.
template <class Tile>
__device__ void compute_scores(TileShared<Tile>& shared, const ForwardArgs<float>& args, int first_query,
                               int first_key) {
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kBr * Tile::kBc; i += kThreads) {
    const int row = i / Tile::kBc, key = i % Tile::kBc;
    float dot = 0;
#pragma unroll 8
    for (int c = 0; c < Tile::kHeadDim; ++c) dot += shared.q[row][c] * shared.k[key][c];
    const KeyRange keys = args.visible_keys(first_query + row);
    const bool visible = first_key + key >= keys.begin && first_key + key < keys.end;
    shared.s[row][key] = visible ? args.softmax_scale * dot : -INFINITY;
  }
}

/// Merges the tile's scores into the rows' states, and turns S into P = exp(S − m). A thread does a whole row alone,
/// and those without a row wait: chapter 05 changes that.
///
/// A row that has seen nothing yet keeps m = −∞; subtracting it would give NaN.
template <class Tile>
__device__ void softmax_rows(TileShared<Tile>& shared) {
  const int row = static_cast<int>(threadIdx.x);
  if (row >= Tile::kBr) return;
  float* s_row = shared.s[row];
  const float m_old = shared.m[row];
  float m_new = m_old;
  for (int key = 0; key < Tile::kBc; ++key) m_new = fmaxf(m_new, s_row[key]);
  const float shift = m_new == -INFINITY ? 0.0f : m_new;
  float sum = 0;
  for (int key = 0; key < Tile::kBc; ++key) {
    s_row[key] = expf(s_row[key] - shift);
    sum += s_row[key];
  }
  const float rescale = kernel::rescale(m_old, m_new);
  shared.m[row] = m_new;
  shared.l[row] = shared.l[row] * rescale + sum;
  shared.rescale[row] = rescale;
}

/// The part of O that a thread holds in registers: column `column()`, rows `row(0)`, `row(1)`, …
template <class Tile>
struct OutputColumn {
  float o_reg[Tile::kRowsPerThread] = {};

  __device__ static int column() { return static_cast<int>(threadIdx.x) % Tile::kHeadDim; }
  __device__ static int row(int n) { return static_cast<int>(threadIdx.x) / Tile::kHeadDim + n * Tile::kRowStep; }

  /// O = O · exp(m_old − m_new) + PV. A warp reads the same element of P at a time, and a row of V.
  __device__ void accumulate(const TileShared<Tile>& shared) {
#pragma unroll
    for (int n = 0; n < Tile::kRowsPerThread; ++n) o_reg[n] *= shared.rescale[row(n)];
    for (int key = 0; key < Tile::kBc; ++key) {
      const float v = shared.v[key][column()];
#pragma unroll
      for (int n = 0; n < Tile::kRowsPerThread; ++n) o_reg[n] += shared.s[row(n)][key] * v;
    }
  }

  /// O / ℓ; 0 for a row that sees nothing.
  __device__ void normalize(const TileShared<Tile>& shared) {
#pragma unroll
    for (int n = 0; n < Tile::kRowsPerThread; ++n) {
      const float l = shared.l[row(n)];
      o_reg[n] *= l == 0 ? 0.0f : 1 / l;
    }
  }

  /// To and from device memory. Rows past the end exist in the tile only.
  __device__ void load(const float* o_gmem, std::int64_t row_stride, int rows) {
#pragma unroll
    for (int n = 0; n < Tile::kRowsPerThread; ++n) {
      if (row(n) < rows) o_reg[n] = o_gmem[row(n) * row_stride + column()];
    }
  }
  __device__ void store(float* o_gmem, std::int64_t row_stride, int rows) const {
#pragma unroll
    for (int n = 0; n < Tile::kRowsPerThread; ++n) {
      if (row(n) < rows) o_gmem[row(n) * row_stride + column()] = o_reg[n];
    }
  }
};

}  // namespace sram_tiling
