#pragma once
/// \file
/// Which shape of tiles a problem gets, and which rows of which head a block computes next, for as many blocks as there
/// are multiprocessors.
///
///   - Where all rows see the same keys, one head follows the other: its works run side by side and read the same K and
///     V. Work i is block i mod blocks', and nobody has to ask.
///   - Where they do not, heads are taken in sections whose K and V fit into the L2 together; in a section all heads'
///     last queries, which see the most keys of a causal problem, come first. A counter in device memory hands out the
///     work: who is done first takes the next.

#include <algorithm>
#include <cstdint>

#include "chapters/12_warp_specialization/tile.cuh"
#include "common/gpu/atomic.cuh"
#include "common/kernel/sections.hpp"

namespace warp_specialization {

/// Scores that a head's tiles compute, those included that the mask takes out or that lie past the end. A warpgroup
/// passes over a tile of which its 64 rows see nothing.
template <class Tile>
std::int64_t computed_scores(attention::Mask mask, int seqlen_q, int seqlen_kv) {
  std::int64_t tiles = 0;
  for (std::int64_t first = 0; first < seqlen_q; first += kernel::kWarpgroupRows) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kernel::kWarpgroupRows, seqlen_q - first));
    const KeyRange keys = kernel::visited_keys(mask, static_cast<int>(first), rows, seqlen_q, seqlen_kv, Tile::kBc);
    tiles += tiles_of(keys.end - keys.begin, Tile::kBc);
  }
  return tiles * kernel::kWarpgroupRows * Tile::kBc;
}

/// Whether small tiles compute so much less that it pays, though they do so at a lower rate: with a causal mask and
/// N = 8192 0.97 of the others' was measured (H200). Only at head_dim 256 are there two shapes.
template <int kHeadDim>
bool takes_small_tiles(attention::Mask mask, int seqlen_q, int seqlen_kv) {
  if constexpr (kHeadDim == 256) {
    constexpr double kRate = 0.97;
    using Small = SpecializedTile<gpu::bf16, kHeadDim, true>;
    using Large = SpecializedTile<gpu::bf16, kHeadDim>;
    return static_cast<double>(computed_scores<Small>(mask, seqlen_q, seqlen_kv)) <
           kRate * static_cast<double>(computed_scores<Large>(mask, seqlen_q, seqlen_kv));
  }
  return false;
}

/// Calls `use` with the tile (an empty object of its type) that the problem gets.
template <class T, int kHeadDim, class Use>
auto with_tile(attention::Mask mask, int seqlen_q, int seqlen_kv, Use use) {
  if constexpr (kHeadDim == 256) {
    if (takes_small_tiles<kHeadDim>(mask, seqlen_q, seqlen_kv)) return use(SpecializedTile<T, kHeadDim, true>());
  }
  return use(SpecializedTile<T, kHeadDim>());
}

struct Schedule {
  kernel::Sections sections;
  int works;
  int* counter;  ///< null: no counter

  template <class Tile, class Args>
  static Schedule of(const Args& args, int* counter) {
    const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr), heads = args.batch * args.heads_q;
    if (!asks(args.mask)) return {{query_tiles, heads, 1}, heads * query_tiles, nullptr};
    const std::int64_t kv_bytes = std::int64_t{2} * sizeof(typename Tile::T) * args.seqlen_kv * args.head_dim;
    return {kernel::Sections::that_fit(kv_bytes * args.heads_kv / args.heads_q, query_tiles, heads),
            heads * query_tiles, counter};
  }
  /// Whether blocks ask the counter, once after each work: where rows may see different numbers of keys.
  static bool asks(attention::Mask mask) { return mask != attention::Mask::none(); }

  __device__ int first() const { return static_cast<int>(blockIdx.x); }
  /// One thread of the block asks.
  __device__ int next(int work) const { return static_cast<int>(gridDim.x) + (counter ? atomicAdd(counter, 1) : work); }

  template <class Tile>
  __device__ Work<Tile> work(const ForwardArgs<typename Tile::T>& args, int index) const {
    const auto [head, tile] = sections[index];
    return make_work<Tile>(args, head, sections.tiles - 1 - tile);
  }
};

}  // namespace warp_specialization
