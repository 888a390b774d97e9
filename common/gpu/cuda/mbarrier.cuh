#pragma once
/// \file
/// mbarrier as PTX.

#include <cuda_runtime.h>

#include "common/gpu/cuda/shared_address.cuh"

namespace gpu {

__device__ __forceinline__ void mbarrier_init(Mbarrier& barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

/// Makes the initialisation visible to the async proxy and to the other blocks of the cluster; a barrier among the
/// threads has to follow.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_after(Mbarrier& barrier, float x) {
  if (!(x < 0)) mbarrier_arrive(barrier);
}

__device__ __forceinline__ void mbarrier_arrive_expect_bytes(Mbarrier& barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void mbarrier_expect_bytes(Mbarrier& barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
}

/// The plain form: with .release.cluster spelled out the whole kernel was seen a fifth slower.
__device__ __forceinline__ void mbarrier_arrive_remote(Mbarrier& barrier, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ void mbarrier_wait(Mbarrier& barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace gpu
