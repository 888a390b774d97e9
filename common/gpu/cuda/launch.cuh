#pragma once
/// \file
/// gpu::launch and gpu::shared_memory on CUDA: the ordinary launch with its errors checked.

#include <cuda_runtime.h>

#include <type_traits>
#include <utility>

#include "common/gpu/cuda/check.hpp"
#include "common/gpu/launch_shape.hpp"

namespace gpu {

/// The block's shared storage. 1024-byte aligned, as the widest swizzle wants it.
template <class Shared>
__device__ __forceinline__ Shared& shared_memory() {
  static_assert(std::is_trivially_destructible_v<Shared>,
                "shared storage is plain data: nobody constructs or destroys it");
  extern __shared__ __align__(1024) unsigned char gpu_shared_storage[];
  return *reinterpret_cast<Shared*>(gpu_shared_storage);
}

/// Launches a kernel whose shared memory is one Shared. \throws Error if the launch is refused.
template <class Shared = NoSharedMemory, class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, Arguments&&... arguments) {
  constexpr std::size_t shared_bytes = std::is_same_v<Shared, NoSharedMemory> ? 0 : sizeof(Shared);
  check_launch_shape(shape, shared_bytes);
  const auto extent = [](const Extent& e) {
    return dim3(static_cast<unsigned>(e.x), static_cast<unsigned>(e.y), static_cast<unsigned>(e.z));
  };
  cuda::prepare_kernel(reinterpret_cast<const void*>(kernel), shared_bytes);
  kernel<<<extent(shape.grid), extent(shape.block), shared_bytes>>>(
      static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  cuda::check(cudaGetLastError(), "launch");
}

}  // namespace gpu
