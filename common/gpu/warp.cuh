#pragma once
/// \file
/// A warp: 32 threads that can read each other's registers.
///
/// `__shfl_sync(mask, x, lane)` returns lane's x; `_xor`, `_up` and `_down` compute that lane from one's own.
/// `__ballot_sync(mask, p)` returns one bit a lane; `__any_sync`, `__all_sync` ask about it. `mask` names the lanes
/// that take part, and each of them has to arrive with the same mask (CUDA C++ Programming Guide, "Warp Shuffle
/// Functions").
///
/// Shuffles and votes move registers; they do not order memory. `__syncwarp(mask)` does: after it, what the lanes in
/// the mask wrote before it is visible to all of them.
///
/// `gpu::elect_one()` (sm_90) is true in one lane of the warp, always the same one, and false in the others; all 32
/// lanes have to execute it together. It chooses the thread that starts a copy by TMA or arrives at an mbarrier for its
/// warp. `threadIdx.x % 32 == 0` would do as well; here the compiler knows that just one lane goes on. Which one is not
/// said: it is lane 0 on the emulator. It orders no memory. (PTX ISA, "elect.sync".)

#include "common/gpu/launch.cuh"

#ifdef __CUDACC__
#include "common/gpu/cuda/warp.cuh"
#else
#include "common/gpu/emulator/warp.hpp"
#endif

namespace gpu {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullWarp = 0xffffffffu;  ///< the mask that names all 32 lanes

}  // namespace gpu
