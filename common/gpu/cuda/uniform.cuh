#pragma once
/// \file
/// The lane's number as PTX.

namespace gpu {

/// volatile: the compiler keeps neither it nor what follows from it.
__device__ __forceinline__ int lane() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

}  // namespace gpu
