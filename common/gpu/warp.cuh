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

#include "common/gpu/launch.cuh"

#ifndef __CUDACC__
#include "common/gpu/emulator/warp.hpp"
#endif

namespace gpu {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullWarp = 0xffffffffu;  ///< the mask that names all 32 lanes

}  // namespace gpu
