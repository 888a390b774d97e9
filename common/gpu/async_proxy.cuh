#pragma once
/// \file
/// The fence between the two ways into shared memory.
///
/// Ordinary loads and stores of threads (ldmatrix, stmatrix and cp.async too) go through the *generic proxy*. TMA and
/// WGMMA read and write through the *async proxy*. A barrier orders threads; it does not order the two proxies.
///
/// - A thread writes, TMA or WGMMA reads: every writing thread calls async_proxy_fence(), *then* the barrier, then the
///   read.
/// - TMA writes, a thread reads: the wait on the mbarrier is enough.
/// - A thread reads, TMA writes again: the barrier is enough.
///
/// The emulator remembers which bytes a thread wrote without a fence since, and reports the asynchronous read of them.
///
/// Source: PTX ISA, "Async proxy" and "membar/fence": fence.proxy.async.

#include "common/gpu/launch.cuh"

#ifdef __CUDACC__
#include "common/gpu/cuda/async_proxy.cuh"
#else
#include "common/gpu/emulator/async_proxy.hpp"
#endif
