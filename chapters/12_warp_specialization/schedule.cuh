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

namespace warp_specialization {

/// Scores that a head's tiles compute, those included that the mask takes out or that lie past the end.
template <class Tile>
std::int64_t computed_scores(attention::Mask mask, int seqlen_q, int seqlen_kv) {
  std::int64_t tiles = 0;
  for (std::int64_t first = 0; first < seqlen_q; first += Tile::kBr) {
    const int rows = static_cast<int>(std::min<std::int64_t>(Tile::kBr, seqlen_q - first));
    const KeyRange keys = kernel::visited_keys(mask, static_cast<int>(first), rows, seqlen_q, seqlen_kv, Tile::kBc);
    tiles += tiles_of(keys.end - keys.begin, Tile::kBc);
  }
  return tiles * Tile::kBr * Tile::kBc;
}

/// Whether small tiles compute so much less that it pays, though they do so at a lower rate: of the others' at N = 8192
/// with a causal mask, 0.82 was measured at head_dim 64, and 0.97 at 256 (H200). At 128 there is one shape.
template <int kHeadDim>
bool takes_small_tiles(attention::Mask mask, int seqlen_q, int seqlen_kv) {
  if constexpr (kHeadDim == 128) return false;
  constexpr double kRate = kHeadDim == 64 ? 0.82 : 0.97;
  using Small = SpecializedTile<gpu::bf16, kHeadDim, true>;
  using Large = SpecializedTile<gpu::bf16, kHeadDim>;
  return static_cast<double>(computed_scores<Small>(mask, seqlen_q, seqlen_kv)) <
         kRate * static_cast<double>(computed_scores<Large>(mask, seqlen_q, seqlen_kv));
}

/// Calls `use` with the tile (an empty object of its type) that the problem gets.
template <class T, int kHeadDim, class Use>
auto with_tile(attention::Mask mask, int seqlen_q, int seqlen_kv, Use use) {
  if constexpr (kHeadDim != 128) {
    if (takes_small_tiles<kHeadDim>(mask, seqlen_q, seqlen_kv)) return use(SpecializedTile<T, kHeadDim, true>());
  }
  return use(SpecializedTile<T, kHeadDim>());
}

struct Schedule {
  int query_tiles, works;  ///< of a head, and in all
  int section;             ///< heads whose works are mixed
  int* counter;            ///< null: no counter

  /// Bytes of K and V that a section may have: half of an H200's L2.
  static constexpr std::int64_t kSectionBytes = std::int64_t{32} << 20;

  template <class Tile, class Args>
  static Schedule of(const Args& args, int* counter) {
    const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr), heads = args.batch * args.heads_q;
    const std::int64_t kv_bytes = std::int64_t{2} * sizeof(typename Tile::T) * args.seqlen_kv * args.head_dim;
    const std::int64_t kv_heads = std::max<std::int64_t>(1, kSectionBytes / std::max<std::int64_t>(1, kv_bytes));
    const std::int64_t section = std::min<std::int64_t>(heads, kv_heads * (args.heads_q / args.heads_kv));
    const bool uneven = asks(args.mask);
    return {query_tiles, heads * query_tiles, uneven ? static_cast<int>(section) : 1, uneven ? counter : nullptr};
  }
  /// Whether blocks ask the counter, once after each work: where rows may see different numbers of keys.
  static bool asks(attention::Mask mask) { return mask != attention::Mask::none(); }

  __device__ int first() const { return static_cast<int>(blockIdx.x); }
  /// One thread of the block asks.
  __device__ int next(int work) const { return static_cast<int>(gridDim.x) + (counter ? atomicAdd(counter, 1) : work); }

  template <class Tile>
  __device__ Work<Tile> work(const ForwardArgs<typename Tile::T>& args, int index) const {
    const int first_head = index / (section * query_tiles) * section;
    const int heads = min(section, args.batch * args.heads_q - first_head);
    const int inside = index - first_head * query_tiles;
    return make_work<Tile>(args, first_head + inside % heads, query_tiles - 1 - inside / heads);
  }
};

}  // namespace warp_specialization
