#pragma once
/// \file
/// A kernel that starts before the one in front of it has ended (sm_90; PTX ISA, "griddepcontrol").
///
/// A launch with LaunchShape::overlaps_previous may begin while the kernel launched before it still runs. Everything up
/// to
///
///     wait_for_previous_kernel()      returns when the kernel before has ended and its writes are visible
///
/// overlaps: index arithmetic, barriers, loads of what the other does not write. Reading its results earlier is a race.
/// The kernel in front may say
///
///     let_next_kernel_start()         the next one's blocks may be scheduled from now on; without it, when this one
///     ends
///
/// which promises nothing about what it has written. Without the attribute both do nothing.

#include "common/gpu/launch.cuh"

#ifdef __CUDACC__
#include "common/gpu/cuda/dependent_launch.cuh"
#else
#include "common/gpu/emulator/dependent_launch.hpp"
#endif
