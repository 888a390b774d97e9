#pragma once
/// \file
/// Barriers for a part of a block (PTX ISA, "bar.sync", "bar.arrive").
///
/// A block has 16 barriers. Number 0 is the one of `__syncthreads()`; 1 to 15 are free. Each round of a barrier is for
/// a number of threads, a multiple of 32: those that wait *and* those that only arrive. Whole warps take part.
///
///     named_barrier_sync(id, threads)     arrives, and waits until `threads` threads have arrived in this round
///     named_barrier_arrive(id, threads)   arrives, and goes on
///
/// What any of them wrote before it arrived is visible to those that waited. Producer and consumer use two of them:
/// "full" (producers arrive, consumers sync) and "empty" (the other way round).
///
/// The count is arrivals *plus* waiters. With too small a count the barrier opens early, and the next round is out of
/// step; with too large a one nobody ever leaves. The emulator fails when the participants of a round disagree on it,
/// or when more come than it says, and reports who waits where nothing moves.

#include "common/gpu/launch.cuh"

#ifdef __CUDACC__
#include "common/gpu/cuda/named_barrier.cuh"
#else
#include "common/gpu/emulator/named_barrier.hpp"
#endif
