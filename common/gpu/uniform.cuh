#pragma once
/// \file
/// What the compiler does not see by itself: numbers that a warp has in common, and numbers that need not be kept.
///
/// `gpu::lane()` is the thread's number in its warp, read anew at each call. `threadIdx.x % 32` may be computed once at
/// the top of a kernel, with all that follows from it, and then takes registers through a loop that has none to spare.
/// (PTX ISA, "%laneid".)

#include "common/gpu/warp.cuh"

#ifdef __CUDACC__
#include "common/gpu/cuda/uniform.cuh"
#else
#include "common/gpu/emulator/uniform.hpp"
#endif

namespace gpu {

/// A number that all lanes of the warp have in common, in a way that the compiler knows it, too: what follows from it
/// is computed once for the warp, in uniform registers. WGMMA and TMA take their descriptors and addresses from there;
/// one that only happens to be the same in all lanes is carried over for each instruction anew. All 32 lanes take part.
__device__ inline int warp_uniform(int x) { return __shfl_sync(kFullWarp, x, 0); }

}  // namespace gpu
