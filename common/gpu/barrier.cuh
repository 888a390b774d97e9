#pragma once
/// \file
/// The barrier of a block.
///
/// `__syncthreads()` returns when every thread of the block that has not exited has reached it; what any of them wrote
/// to shared or device memory before it is then visible to all of them (CUDA C++ Programming Guide, "Synchronization
/// Functions"). Every thread has to reach the *same* barrier: inside an `if`, the condition must be equal for the whole
/// block. The emulator reports threads that meet at different lines, and what is written to shared memory by one thread
/// and read by another without a barrier between.

#include "common/gpu/launch.cuh"

#ifndef __CUDACC__
#include "common/gpu/emulator/barrier.hpp"
#endif
