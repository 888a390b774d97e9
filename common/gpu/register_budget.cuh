#pragma once
/// \file
/// Registers from one warpgroup to another (sm_90a; PTX ISA, "setmaxnreg").
///
/// A kernel starts with the same number of registers for each thread. A warpgroup that needs few, because it only
/// starts copies, gives back with `release_registers<24>()`; one that needs many takes with `take_registers<240>()`,
/// and waits until there are so many. The number is a multiple of 8 from 24 to 256, all warps of the warpgroup execute
/// the same one, and the sum over the block must not exceed what the block started with. The kernel needs
/// __launch_bounds__(threads, 1), and each warpgroup's role has to be one branch of a single if/else; otherwise ptxas
/// ignores it, and says so (C7508).
///
/// The emulator checks number, warpgroup and sum; it has no registers to move.

#include "common/gpu/launch.cuh"

#ifdef __CUDACC__
#include "common/gpu/cuda/register_budget.cuh"
#else
#include "common/gpu/emulator/register_budget.hpp"
#endif
