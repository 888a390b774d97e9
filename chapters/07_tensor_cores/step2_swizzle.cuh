#pragma once
/// \file
/// Step 2: the chunks of a row change places, so that ldmatrix finds eight rows in eight different groups of banks.
///
/// Nothing else changes: the kernel is that of step 1. Chunk c of row r is written where chunk c ⊕ (r mod 8) would be,
/// and looked for there; no byte is spent on padding, and a chunk stays whole for 16-byte copies.
///
/// Source: PTX ISA, "ldmatrix" and "Tensor Swizzling Modes".

#include "chapters/07_tensor_cores/step1_mma.cuh"

namespace tensor_cores {

/// Step 2 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel swizzled() {
  return mma_tiles<kHeadDim, kernel::Swizzled>("swizzled", "the same with swizzled tiles: no bank conflicts");
}

}  // namespace tensor_cores
