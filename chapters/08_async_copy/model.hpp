#pragma once
/// \file
/// The chapter's kernels on paper: what a warp executes for a tile of K and V, which tiles a mask leaves to whom, and
/// how often a lazy rescaling happens.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "chapters/08_async_copy/step1_double_buffer.cuh"
#include "chapters/08_async_copy/step2_row_tiles.cuh"
#include "chapters/08_async_copy/step3_lazy_rescale.cuh"

namespace async_copy {

/// What a warp executes for one tile of K and V, and how long the units of a multiprocessor of an H100 or H200 are busy
/// with what a block's warps do for it.
struct AsyncWork {
  std::string kernel;
  int br, bc, warps, row_tiles;
  bool keeps_q = false;
  int products = 0;        ///< mma.sync of a warp
  int loads_q = 0;         ///< ldmatrix of a warp, four matrices and four wavefronts each
  int loads_kv = 0;        ///< the same, of K and V
  int copied_bytes = 0;    ///< of a block, by cp.async
  int exponentials = 0;    ///< of a lane
  int other_floating = 0;  ///< of a lane: what else the softmax does, and the rescaling of O
  int shared_bytes = 0;    ///< of a block

  double loads_a_product() const { return double(loads_q + loads_kv) / products; }
  /// A tensor core, of which there are four, makes 1024 FLOP a cycle at its peak (dense, 16 bits): 4 cycles for the
  /// 2 · 16 · 8 · 16 FLOP of an mma.sync.
  double tensor_cycles() const { return products * warps * 4.0 / 4; }
  /// The path to shared memory moves 128 bytes a cycle, either way. That copies take it like stores is an assumption.
  double data_cycles() const { return double(warps) * (loads_q + loads_kv) * 4 + copied_bytes / 128.0; }
  /// The four schedulers start an instruction a cycle each. Only those listed here are counted.
  double issue_cycles() const { return (products + loads_q + loads_kv + exponentials + other_floating) * warps / 4.0; }
  /// Exponentials: 16 a cycle.
  double exponential_cycles() const { return exponentials * warps * gpu::kWarpSize / 16.0; }
  /// The share of the tensor cores' peak that these units leave.
  double bound() const {
    return tensor_cycles() / std::max({tensor_cycles(), data_cycles(), issue_cycles(), exponential_cycles()});
  }
};

/// The work of a kernel for a tile that no mask cuts.
/// \param rescales whether O and l are rescaled for it
template <class Tile>
AsyncWork async_work(const std::string& kernel, bool rescales) {
  AsyncWork work{.kernel = kernel,
                 .br = Tile::kBr,
                 .bc = Tile::kBc,
                 .warps = Tile::kWarps,
                 .row_tiles = Tile::kRowTiles,
                 .keeps_q = Tile::kKeepsQ};
  const int of_s = Tile::kColumnSteps * Tile::kKeyTiles, of_o = Tile::kKeySteps * Tile::kColumnTiles;
  work.products = Tile::kRowTiles * (of_s + of_o);
  work.loads_q = Tile::kKeepsQ ? 0 : Tile::kRowTiles * Tile::kColumnSteps;
  work.loads_kv = of_s / 2 + of_o / 2;  // each serves two products for every row tile
  work.copied_bytes = 2 * Tile::kBc * Tile::kHeadDim * static_cast<int>(sizeof(typename Tile::T));
  const int elements = 4 * Tile::kKeyTiles * Tile::kRowTiles, rows = 2 * Tile::kRowTiles;  // of a lane
  work.exponentials = elements + (rescales ? rows : 0);
  // Maximum, product with the factor and difference in one, sum; a conversion for two; and O's rescaling.
  work.other_floating = elements * 3 + elements / 2 + (rescales ? 4 * Tile::kColumnTiles * Tile::kRowTiles : 0);
  work.shared_bytes = static_cast<int>(sizeof(AsyncShared<Tile>));
  return work;
}

/// The tile of step 1, as its host code has it.
template <int kHeadDim>
using DoubleBufferTile = AsyncTile<gpu::bf16, kHeadDim, 4, 1, kHeadDim == 256 ? 1 : 2>;

/// The three steps, in their order.
template <int kHeadDim>
std::vector<AsyncWork> async_works() {
  using Wide = RowTiles<gpu::bf16, kHeadDim>;
  return {async_work<DoubleBufferTile<kHeadDim>>("double_buffer", true), async_work<Wide>("row_tiles", true),
          async_work<Wide>("lazy_rescale", false)};
}

/// Tiles of S, of one head.
struct TileCounts {
  int all = 0, visited = 0, masked = 0;    ///< of blocks: visited are those that any of a block's rows sees
  int of_warps = 0, skipped_by_warps = 0;  ///< visited tiles times warps, and those that the warp passes over
};

/// What steps 2 and 3 do: they visit tiles from the first that a row of the block sees to the last, and a warp passes
/// over those behind the last key that its own rows see.
template <class Tile>
TileCounts count_tiles(attention::Mask mask, int seqlen_q, int seqlen_kv) {
  TileCounts counts;
  for (int first = 0; first < seqlen_q; first += Tile::kBr) {
    const int rows = std::min(Tile::kBr, seqlen_q - first);
    const KeyRange visited = kernel::visited_keys(mask, first, rows, seqlen_q, seqlen_kv, Tile::kBc);
    const KeyRange unmasked = attention::keys_of_all(mask, first, first + rows - 1, seqlen_q, seqlen_kv);
    counts.all += tiles_of(seqlen_kv, Tile::kBc);
    for (int key = visited.begin; key < visited.end; key += Tile::kBc) {
      counts.visited += 1;
      counts.masked += needs_mask<Tile>(key, unmasked);
      for (int row = first; row < first + Tile::kBr; row += Tile::kWarpRows) {
        const KeyRange seen = attention::keys_of_any(mask, row, row + Tile::kWarpRows - 1, seqlen_q, seqlen_kv);
        counts.of_warps += 1;
        counts.skipped_by_warps += key >= seen.end;
      }
    }
  }
  return counts;
}

/// Tiles of a warp's rows, by what becomes of O.
struct RescaleCounts {
  int tiles = 0;
  int grown = 0;        ///< in which some row's maximum grows: step 2 has a factor other than 1 there
  int rescaled = 0;     ///< in which step 3 rescales
  float largest_p = 0;  ///< the largest P that step 3 has
};

/// Step 3's decisions, on the scores of the rows of one warp.
///
/// \param scores unscaled, [rows, keys]; −∞ where a key is hidden
/// \param factor_log2 scale · log₂ e, positive
inline RescaleCounts count_rescales(std::span<const float> scores, int rows, int keys, int tile_keys,
                                    float factor_log2) {
  RescaleCounts counts;
  std::vector<float> lazy(static_cast<std::size_t>(rows), -INFINITY), eager = lazy, reached = lazy;
  for (int first = 0; first < keys; first += tile_keys) {
    bool grows = false, beyond = false;
    for (int row = 0; row < rows; ++row) {
      reached[row] = lazy[row];
      for (int key = first; key < std::min(keys, first + tile_keys); ++key) {
        reached[row] = std::fmax(reached[row], scores[static_cast<std::size_t>(row) * keys + key]);
      }
      grows = grows || reached[row] > eager[row];
      eager[row] = std::fmax(eager[row], reached[row]);
      beyond = beyond || (reached[row] - lazy[row]) * factor_log2 > kLargestExponent;
    }
    if (beyond) lazy = reached;
    for (int row = 0; row < rows; ++row) {
      if (lazy[row] == -INFINITY) continue;
      counts.largest_p = std::fmax(counts.largest_p, std::exp2((reached[row] - lazy[row]) * factor_log2));
    }
    counts.tiles += 1;
    counts.grown += grows;
    counts.rescaled += beyond;
  }
  return counts;
}

}  // namespace async_copy
