#pragma once
/// \file
/// Clusters: blocks that run at the same time and see each other's shared memory (sm_90).
///
/// A launch asks for them with LaunchShape::cluster. Blocks of a cluster follow each other in the grid: along x, blocks
/// k · n to k · n + n − 1 for clusters of n. At most 8 blocks.
///
///     cluster_rank(), cluster_blocks()   which block of its cluster this is, and how many there are
///     cluster_arrive(), cluster_wait()   the barrier of all threads of the cluster, in two halves
///     cluster_sync()                     both
///     in_block(rank, smem)               the address of the same variable in another block's shared memory: ordinary
///                                        loads, stores and atomics reach it (distributed shared memory)
///
/// A block's shared memory is there until the block ends: before a block touches another's, both must have started (one
/// cluster_sync), and before a block ends, nobody may be about to touch its own (another one). The emulator checks
/// both.
///
/// Sources: CUDA C++ Programming Guide, "Thread Block Clusters", "Distributed Shared Memory"; PTX ISA,
/// "barrier.cluster", "mapa".

#include <cstdint>

#include "common/gpu/launch.cuh"

#ifdef __CUDACC__
#include "common/gpu/cuda/cluster.cuh"
#else
#include "common/gpu/emulator/cluster.hpp"
#endif
