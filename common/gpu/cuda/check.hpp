#pragma once
/// \file
/// CUDA's status codes as exceptions.

#include <cuda_runtime_api.h>

#include <cstddef>

namespace gpu::cuda {

/// \throws Error naming the call and CUDA's own words for the status.
void check(cudaError_t status, const char* what);

/// Opts in to the shared memory the kernel needs (above 48 KB it must be asked for, for each kernel and device).
/// \throws Error when this binary holds no code for the device.
void prepare_kernel(const void* kernel, std::size_t shared_bytes);

}  // namespace gpu::cuda
