#pragma once
/// \file
/// TMA as PTX. One overload for each number of dimensions, because the coordinates are part of the instruction.

#include <cuda_runtime.h>

#include <cstdint>

#include "common/gpu/cuda/shared_address.cuh"

namespace gpu {

__device__ __forceinline__ void tma_load(void* to_smem, const TensorMap& map, Mbarrier& barrier, int x) {
  asm volatile(
      "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];" ::"r"(
          shared_address(to_smem)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(x)
      : "memory");
}

__device__ __forceinline__ void tma_load(void* to_smem, const TensorMap& map, Mbarrier& barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(shared_address(to_smem)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(x), "r"(y)
      : "memory");
}

__device__ __forceinline__ void tma_load(void* to_smem, const TensorMap& map, Mbarrier& barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(to_smem)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

__device__ __forceinline__ void tma_load(void* to_smem, const TensorMap& map, Mbarrier& barrier, int x, int y, int z,
                                         int u) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(to_smem)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(x), "r"(y), "r"(z), "r"(u)
      : "memory");
}

__device__ __forceinline__ void tma_load(void* to_smem, const TensorMap& map, Mbarrier& barrier, int x, int y, int z,
                                         int u, int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, "
      "%7}], [%2];" ::"r"(shared_address(to_smem)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v)
      : "memory");
}

__device__ __forceinline__ void tma_load_multicast(void* to_smem, const TensorMap& map, Mbarrier& barrier,
                                                   std::uint16_t blocks, int x) {
  asm volatile(
      "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%4}], [%2], %3;" ::"r"(shared_address(to_smem)),
      "l"(&map), "r"(shared_address(&barrier)), "h"(blocks), "r"(x)
      : "memory");
}

__device__ __forceinline__ void tma_load_multicast(void* to_smem, const TensorMap& map, Mbarrier& barrier,
                                                   std::uint16_t blocks, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%4, %5}], [%2], %3;" ::"r"(shared_address(to_smem)),
      "l"(&map), "r"(shared_address(&barrier)), "h"(blocks), "r"(x), "r"(y)
      : "memory");
}

__device__ __forceinline__ void tma_load_multicast(void* to_smem, const TensorMap& map, Mbarrier& barrier,
                                                   std::uint16_t blocks, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(shared_address(to_smem)),
      "l"(&map), "r"(shared_address(&barrier)), "h"(blocks), "r"(x), "r"(y), "r"(z)
      : "memory");
}

__device__ __forceinline__ void tma_load_multicast(void* to_smem, const TensorMap& map, Mbarrier& barrier,
                                                   std::uint16_t blocks, int x, int y, int z, int u) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(shared_address(to_smem)),
      "l"(&map), "r"(shared_address(&barrier)), "h"(blocks), "r"(x), "r"(y), "r"(z), "r"(u)
      : "memory");
}

__device__ __forceinline__ void tma_load_multicast(void* to_smem, const TensorMap& map, Mbarrier& barrier,
                                                   std::uint16_t blocks, int x, int y, int z, int u, int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(shared_address(to_smem)),
      "l"(&map), "r"(shared_address(&barrier)), "h"(blocks), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v)
      : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, const void* from_smem, int x) {
  asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%2}], [%1];" ::"l"(&map),
               "r"(shared_address(from_smem)), "r"(x)
               : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, const void* from_smem, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
               "r"(shared_address(from_smem)), "r"(x), "r"(y)
               : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, const void* from_smem, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
               "r"(shared_address(from_smem)), "r"(x), "r"(y), "r"(z)
               : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, const void* from_smem, int x, int y, int z, int u) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(shared_address(from_smem)), "r"(x), "r"(y), "r"(z), "r"(u)
               : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, const void* from_smem, int x, int y, int z, int u,
                                          int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(shared_address(from_smem)), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v)
      : "memory");
}

__device__ __forceinline__ void tma_reduce_add(const TensorMap& map, const void* from_smem, int x) {
  asm volatile("cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%0, {%2}], [%1];" ::"l"(&map),
               "r"(shared_address(from_smem)), "r"(x)
               : "memory");
}

__device__ __forceinline__ void tma_reduce_add(const TensorMap& map, const void* from_smem, int x, int y) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
      "r"(shared_address(from_smem)), "r"(x), "r"(y)
      : "memory");
}

__device__ __forceinline__ void tma_reduce_add(const TensorMap& map, const void* from_smem, int x, int y, int z) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map),
      "r"(shared_address(from_smem)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

__device__ __forceinline__ void tma_reduce_add(const TensorMap& map, const void* from_smem, int x, int y, int z,
                                               int u) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(shared_address(from_smem)), "r"(x), "r"(y), "r"(z), "r"(u)
      : "memory");
}

__device__ __forceinline__ void tma_reduce_add(const TensorMap& map, const void* from_smem, int x, int y, int z, int u,
                                               int v) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(
          &map),
      "r"(shared_address(from_smem)), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v)
      : "memory");
}

__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

template <int kNewestLeft>
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kNewestLeft) : "memory");
}

template <int kNewestLeft>
__device__ __forceinline__ void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kNewestLeft) : "memory");
}

__device__ __forceinline__ void tma_prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace gpu
