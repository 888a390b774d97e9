#pragma once
/// \file
/// Copies from device to shared memory that run while the thread goes on (sm_80 and later).
///
/// `gpu::copy_async<16>(to_smem, from_gmem)` starts a copy of 4, 8 or 16 bytes; `copy_async_commit()` closes a group of
/// the copies started since the last one; `copy_async_wait<N>()` returns when all but the newest N of the thread's
/// groups have arrived (PTX ISA, "cp.async", "cp.async.commit_group", "cp.async.wait_group"). With `valid` false
/// nothing is read and zeros arrive: that is how a tile's edge is filled.
///
/// A wait is for the calling thread's own copies. Another thread may read the bytes only after a barrier *behind* that
/// wait. The emulator lets a copy arrive at the wait, or at once (gpu::Delivery); until the wait the bytes belong to
/// the copy, and the checking build reports whoever touches them.

#include "common/gpu/launch.cuh"

#ifdef __CUDACC__
#include "common/gpu/cuda/async_copy.cuh"
#else
#include "common/gpu/emulator/async_copy.hpp"
#endif
