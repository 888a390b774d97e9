#pragma once
/// \file
/// What steps 2 and 3 share: how the warps divide a block's rows.

#include "chapters/08_async_copy/tile.cuh"

namespace async_copy {

/// Tiles of steps 2 and 3, by head_dim: warps, row tiles of a warp, blocks of a multiprocessor. Two blocks of four
/// warps need what one of eight needs of registers, but have no barrier in common: one can multiply while the other
/// one waits.
template <class T, int kHeadDim>
using RowTiles = AsyncTile<T, kHeadDim, kHeadDim == 256 ? 8 : 4, kHeadDim == 256 ? 1 : 2, kHeadDim == 256 ? 1 : 2>;

}  // namespace async_copy
