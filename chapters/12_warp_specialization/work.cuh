#pragma once
/// \file
/// What a block works on, and what of it each warpgroup's rows see.

#include <cstdint>

#include "common/attention/problem.hpp"
#include "common/gpu/uniform.cuh"
#include "common/kernel/query_tile.cuh"
#include "common/kernel/tiles.hpp"
#include "common/kernel/warpgroup.cuh"

namespace warp_specialization {

using attention::ForwardArgs, attention::KeyRange, attention::Problem;
using kernel::tiles_of;

/// What 64 of a work's rows see.
struct Seen {
  int begin, end;     ///< the steps in which one of them sees a key
  KeyRange unmasked;  ///< keys that each of them sees
};

/// Br rows of one head, and the tiles of keys that some of them see.
template <class Tile>
struct Work {
  int batch, head, head_kv, first_query;
  KeyRange visited, unmasked;  ///< whole tiles, and the keys that every row sees

  static __device__ Work none() { return {-1, 0, 0, 0, {}, {}}; }
  /// The same for the whole warp, as the compiler is to know.
  __device__ Work uniform() const {
    using gpu::warp_uniform;
    return {warp_uniform(batch),
            warp_uniform(head),
            warp_uniform(head_kv),
            warp_uniform(first_query),
            {warp_uniform(visited.begin), warp_uniform(visited.end)},
            {warp_uniform(unmasked.begin), warp_uniform(unmasked.end)}};
  }
  __device__ bool is_none() const { return batch < 0; }
  __device__ int tiles() const { return tiles_of(visited.end - visited.begin, Tile::kBc); }
  /// The last tile comes first: a causal mask cuts it, and the others follow without one.
  __device__ int first_key(int step) const { return visited.begin + (tiles() - 1 - step) * Tile::kBc; }
  /// \param first of the rows
  template <class Args>
  __device__ Seen seen_by_rows(const Args& args, int first) const {
    const int last = min(first + kernel::kWarpgroupRows, args.seqlen_q) - 1;
    if (last < first) return {tiles(), tiles(), {}};
    if (unmasked.begin <= visited.begin && unmasked.end >= visited.end) return {0, tiles(), unmasked};
    const KeyRange any = attention::keys_of_any(args.mask, first, last, args.seqlen_q, args.seqlen_kv);
    if (any.empty()) return {tiles(), tiles(), {}};
    return {tiles() - tiles_of(any.end - visited.begin, Tile::kBc), tiles() - (any.begin - visited.begin) / Tile::kBc,
            attention::keys_of_all(args.mask, first, last, args.seqlen_q, args.seqlen_kv)};
  }
  __device__ bool needs_mask(int first_key) const {
    return first_key < unmasked.begin || first_key + Tile::kBc > unmasked.end;
  }
};

/// \param head_index of batch · heads_q \param query_tile from the first one on
template <class Tile>
__device__ Work<Tile> make_work(const ForwardArgs<typename Tile::T>& args, int head_index, int query_tile) {
  const int head = head_index % args.heads_q, first_query = query_tile * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  return {head_index / args.heads_q,
          head,
          args.kv_head(head),
          first_query,
          kernel::visited_keys(args.mask, first_query, rows, args.seqlen_q, args.seqlen_kv, Tile::kBc),
          attention::keys_of_all(args.mask, first_query, first_query + rows - 1, args.seqlen_q, args.seqlen_kv)};
}

/// A block's work where each has one.
template <class Tile>
__device__ Work<Tile> work_of_block(const ForwardArgs<typename Tile::T>& args, int query_tiles) {
  const kernel::QueryTile tile = kernel::query_tile_of_block(args, query_tiles);
  return make_work<Tile>(args, tile.batch * args.heads_q + tile.head, tile.index);
}

}  // namespace warp_specialization
