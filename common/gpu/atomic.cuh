#pragma once
/// \file
/// Operations on one word that no other thread can interrupt, and the order between blocks.
///
/// `atomicAdd`, `atomicMax`, `atomicMin`, `atomicExch`, `atomicCAS` return the old value. They are relaxed: they do not
/// order other accesses. To hand data from one block to another, write it, `__threadfence()`, then signal with an
/// atomic or `gpu::store_release`; the other side sees the signal with an atomic or `gpu::load_acquire`, then reads.
///
/// `gpu::atomic_add4` adds to four neighbouring floats, each by itself; on sm_90 and later in one instruction.
///
/// A kernel that waits for another block spins on `gpu::load_acquire`. It may wait only for blocks that run at the same
/// time: the emulator runs as many as an H200 holds and reports the wait otherwise.

#include "common/gpu/launch.cuh"

#ifdef __CUDACC__
#include "common/gpu/cuda/atomic.cuh"
#else
#include "common/gpu/emulator/atomic.hpp"
#endif
