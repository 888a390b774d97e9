#pragma once
/// \file
/// Which rows of which head a block computes, where each block has one tile of them. Taught in chapter 08.

#include "common/attention/problem.hpp"
#include "common/gpu/launch.cuh"

namespace kernel {

/// A tile of a head's queries.
struct QueryTile {
  int batch, head, index;  ///< index 0 holds the first queries
};

/// The block's, of `query_tiles` of each head. Blocks start in the order of their numbers:
///
///   - Where all rows see the same keys, a head's tiles follow each other, and run at the same time: one of them brings
///     K and V into the L2, the others find them there.
///   - Where they do not, all heads' last tiles come first. They see the most keys of a causal problem, and what starts
///     last should be short.
template <class Args>
__device__ QueryTile query_tile_of_block(const Args& args, int query_tiles) {
  const int block = static_cast<int>(blockIdx.x), heads = args.batch * args.heads_q;
  const bool even = args.mask == attention::Mask::none();
  const int divisor = even ? query_tiles : heads;
  const int quotient = block / divisor, rest = block - quotient * divisor;
  const int head_index = even ? quotient : rest;
  const int batch = head_index / args.heads_q;
  return {batch, head_index - batch * args.heads_q, query_tiles - 1 - (even ? rest : quotient)};
}

}  // namespace kernel
