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
  cudaLaunchConfig_t config{};
  config.gridDim = extent(shape.grid);
  config.blockDim = extent(shape.block);
  config.dynamicSmemBytes = shared_bytes;
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (shape.cluster.x * shape.cluster.y * shape.cluster.z > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(shape.cluster.x);
    cluster.val.clusterDim.y = static_cast<unsigned>(shape.cluster.y);
    cluster.val.clusterDim.z = static_cast<unsigned>(shape.cluster.z);
  }
  if (shape.overlaps_previous) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  cuda::check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...),
              "launch");
}

}  // namespace gpu
