#pragma once
/// \file
/// TMA, the tensor memory accelerator: one thread has a whole box copied (sm_90; PTX ISA, "cp.async.bulk.tensor").
///
///     tma_load(to_smem, map, barrier, x, y, …)              device → shared; the bytes arrive at the mbarrier
///     tma_load_multicast(to_smem, map, barrier, mask, …)    the same to the same place in every block of the cluster
///                                                           whose bit is set, and to each one's own barrier there
///     tma_store(map, from_smem, x, y, …)                    shared → device
///     tma_reduce_add(map, from_smem, x, y, …)               device += shared, element by element, atomically each
///     tma_store_commit()                                    closes a group of the stores since the last one
///     tma_store_wait_read<N>()                              all but the newest N groups have been *read*: their shared
///                                                           memory may be written again
///     tma_store_wait<N>()                                   … and their results are visible
///     tma_prefetch(map)                                     the map itself into its cache
///
/// x is the first element of the box in the innermost dimension, y in the next, and so on; they may lie past the
/// end, and those of a load may be negative. Elements outside the array arrive as zeros, and are not stored. The box
/// lies densely in shared memory, rows of the innermost dimension one below the other, swizzled as the map says
/// (swizzle.cuh); it starts at a multiple of 128 bytes, or of the swizzle's period.
///
/// Loads: announce the bytes on the barrier *before or with* this thread's arrival, then load; whoever waits for the
/// phase sees the bytes, without a fence. Stores: every thread that wrote the box calls async_proxy_fence(), then a
/// barrier, then one thread stores. Groups belong to the thread: the one that stored is the one that commits and waits.
///
/// x × element size has to be a multiple of 16 bytes, and the coordinates of a store must not be negative: an H200
/// stops with "illegal instruction" otherwise. Where a row of the array ends inside the box of a store, it has to end
/// at a multiple of 16 bytes: an H200 writes whole pieces of 16 bytes, the last one past the end. The emulator refuses
/// all three.

#include "common/gpu/async_proxy.cuh"
#include "common/gpu/mbarrier.cuh"
#include "common/gpu/tensor_map.hpp"

#ifdef __CUDACC__
#include "common/gpu/cuda/tma.cuh"
#else
#include "common/gpu/emulator/tma.hpp"
#endif
