#pragma once
/// \file
/// Tiles of a length: how many there are, and which of them a mask leaves.

#include "common/attention/problem.hpp"

namespace kernel {

/// Tiles, or blocks, of `size` ≥ 1 elements that cover `length` ≥ 0: ⌈length / size⌉, of which the last may be cut. On
/// the host and in kernels. (length + size − 1) / size is the same, but overflows near the largest int.
constexpr int tiles_of(int length, int size) { return length / size + (length % size != 0); }

/// The keys of the tiles of `tile_keys` keys in which at least one of `rows` queries from `first_query` on sees one.
/// They begin at `begin`, begin + tile_keys, … below `end`, which is not past the last key; {0, 0} if nothing is seen.
/// Taught in chapter 05, step 3.
constexpr attention::KeyRange visited_keys(attention::Mask mask, int first_query, int rows, int seqlen_q, int seqlen_kv,
                                           int tile_keys) {
  const attention::KeyRange keys =
      attention::keys_of_any(mask, first_query, first_query + rows - 1, seqlen_q, seqlen_kv);
  const int end = tiles_of(keys.end, tile_keys) * tile_keys;
  return {keys.begin / tile_keys * tile_keys, end < seqlen_kv ? end : seqlen_kv};
}

}  // namespace kernel
