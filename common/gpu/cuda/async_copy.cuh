#pragma once
/// \file
/// cp.async as PTX.

#include <cuda_runtime.h>

namespace gpu {

template <int kBytes>
__device__ __forceinline__ void copy_async(void* to_smem, const void* from_gmem, bool valid = true) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(to_smem));
  const int bytes_read = valid ? kBytes : 0;  // the rest is filled with zeros
  if constexpr (kBytes == 16) {
    // .cg goes past the L1 cache: a tile is read once.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from_gmem), "r"(bytes_read) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from_gmem), "n"(kBytes), "r"(bytes_read)
                 : "memory");
  }
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kNewestLeft>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewestLeft) : "memory");
}

}  // namespace gpu
