#pragma once
/// \file
/// What every kernel file starts from: CUDA's keywords and built-in variables, `gpu::launch`, `gpu::shared_memory`.
///
/// A kernel is an ordinary `__global__` function. Its shared memory is one struct, named at the launch and in the
/// kernel:
///
///     struct RowSumShared { float partial[128]; };
///
///     __global__ void row_sum(const float* x_gmem, ...) {
///       auto& shared = gpu::shared_memory<RowSumShared>();
///       ...
///     }
///
///     gpu::launch<RowSumShared>(row_sum, {.grid = rows, .block = 128}, x_gmem, ...);
///
/// One struct rather than scattered `__shared__` variables: its size is checked against the hardware's limit before the
/// launch, and the emulator sees every byte of it. `gpu::launch` checks the launch and throws gpu::Error with a
/// sentence; on a GPU it returns at once, and `gpu::synchronize()` waits.
///
/// The same source is compiled by nvcc (this header then adds only what is above) and by g++ or clang for the emulator.

#include "common/gpu/launch_shape.hpp"

#ifdef __CUDACC__
#include "common/gpu/cuda/launch.cuh"
#else
#include "common/gpu/emulator/launch.hpp"
#endif
