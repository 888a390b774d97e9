#pragma once
/// \file
/// fence.proxy.async as PTX.

#include <cuda_runtime.h>

namespace gpu {

__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace gpu
