#pragma once
/// \file
/// griddepcontrol as PTX.

#include <cuda_runtime.h>

namespace gpu {

__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace gpu
