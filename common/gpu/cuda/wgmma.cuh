#pragma once
/// \file
/// WGMMA as PTX. The text of the instruction is put together here; the lists of registers come from a generated file.

#include <cuda_runtime.h>

#include <type_traits>

#include "common/gpu/cuda/shared_address.cuh"
#include "common/gpu/cuda/wgmma_operands.inc"

namespace gpu {

__device__ __forceinline__ MatrixDescriptor matrix_descriptor(const void* smem, Swizzle swizzle,
                                                              std::uint32_t leading_bytes, std::uint32_t stride_bytes) {
  return matrix_descriptor_at(shared_address(smem), swizzle, leading_bytes, stride_bytes);
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kNewestLeft>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kNewestLeft) : "memory");
}

template <int kCount>
__device__ __forceinline__ void keep(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <int kTiles>
__device__ __forceinline__ void keep(float (&d)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) keep(d[i]);
}

namespace cuda {

/// A template argument that no product has.
template <class>
inline constexpr bool kNever = false;

}  // namespace cuda

// One product with both operands in shared memory. The predicate tells whether D is added; then follow the signs of A
// and B, and for 16-bit types whether A and B are MN-major.
#define GPU_WGMMA_HEAD(N, TYPES, ACCUMULATE)         \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " ACCUMULATE \
  ", 0;\n"                                           \
  "wgmma.mma_async.sync.aligned.m64n" #N TYPES " " GPU_WGMMA_REGISTERS_##N ", "
#define GPU_WGMMA_SS_16(N, TYPES)                                                                                \
  asm volatile(GPU_WGMMA_HEAD(N, "k16.f32" TYPES, GPU_WGMMA_OPERAND_##N(2))                                      \
                   GPU_WGMMA_OPERAND_##N(0) ", " GPU_WGMMA_OPERAND_##N(1) ", add, 1, 1, " GPU_WGMMA_OPERAND_##N( \
                       3) ", " GPU_WGMMA_OPERAND_##N(4) ";\n}\n"                                                 \
               : GPU_WGMMA_ACCUMULATORS_##N                                                                      \
               : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(accumulate)),                                    \
                 "n"(static_cast<int>(kMajorA == Major::mn)), "n"(static_cast<int>(kMajorB == Major::mn)))
#define GPU_WGMMA_SS_8(N, TYPES)                                                              \
  asm volatile(GPU_WGMMA_HEAD(N, "k32.f32" TYPES, GPU_WGMMA_OPERAND_##N(2))                   \
                   GPU_WGMMA_OPERAND_##N(0) ", " GPU_WGMMA_OPERAND_##N(1) ", add, 1, 1;\n}\n" \
               : GPU_WGMMA_ACCUMULATORS_##N                                                   \
               : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(accumulate)))
// The same with A in four registers.
#define GPU_WGMMA_RS_HEAD(N, TYPES)                                                                                 \
  GPU_WGMMA_HEAD(N, TYPES, GPU_WGMMA_OPERAND_##N(5))                                                                \
  "{" GPU_WGMMA_OPERAND_##N(0) "," GPU_WGMMA_OPERAND_##N(1) "," GPU_WGMMA_OPERAND_##N(2) "," GPU_WGMMA_OPERAND_##N( \
      3) "}, " GPU_WGMMA_OPERAND_##N(4) ", add, 1, 1"
#define GPU_WGMMA_RS_16(N, TYPES)                                                                            \
  asm volatile(GPU_WGMMA_RS_HEAD(N, "k16.f32" TYPES) ", " GPU_WGMMA_OPERAND_##N(6) ";\n}\n"                  \
               : GPU_WGMMA_ACCUMULATORS_##N                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(accumulate)), \
                 "n"(static_cast<int>(kMajorB == Major::mn)))
#define GPU_WGMMA_RS_8(N, TYPES)                              \
  asm volatile(GPU_WGMMA_RS_HEAD(N, "k32.f32" TYPES) ";\n}\n" \
               : GPU_WGMMA_ACCUMULATORS_##N                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(accumulate)))

template <class Element, int N, Major kMajorA = Major::k, Major kMajorB = Major::k>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b, bool accumulate) {
  constexpr bool k16Bits = sizeof(Element) == 2;
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "N is a multiple of 8 from 8 to 256");
  static_assert(k16Bits || (kMajorA == Major::k && kMajorB == Major::k), "fp8 operands are K-major");
#define GPU_WGMMA_CASE(n)                                                                    \
  if constexpr (N == n) {                                                                    \
    if constexpr (std::is_same_v<Element, bf16>)                                             \
      GPU_WGMMA_SS_16(n, ".bf16.bf16");                                                      \
    else if constexpr (std::is_same_v<Element, fp16>)                                        \
      GPU_WGMMA_SS_16(n, ".f16.f16");                                                        \
    else if constexpr (std::is_same_v<Element, fp8_e4m3>)                                    \
      GPU_WGMMA_SS_8(n, ".e4m3.e4m3");                                                       \
    else if constexpr (std::is_same_v<Element, fp8_e5m2>)                                    \
      GPU_WGMMA_SS_8(n, ".e5m2.e5m2");                                                       \
    else                                                                                     \
      static_assert(cuda::kNever<Element>, "wgmma takes fp16, bf16, fp8_e4m3 and fp8_e5m2"); \
  }
  GPU_WGMMA_EACH_N(GPU_WGMMA_CASE)
#undef GPU_WGMMA_CASE
}

template <class Element, int N, Major kMajorB = Major::k>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const std::uint32_t (&a)[4], MatrixDescriptor b,
                                      bool accumulate) {
  constexpr bool k16Bits = sizeof(Element) == 2;
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "N is a multiple of 8 from 8 to 256");
  static_assert(k16Bits || kMajorB == Major::k, "fp8 operands are K-major");
#define GPU_WGMMA_CASE(n)                                                                    \
  if constexpr (N == n) {                                                                    \
    if constexpr (std::is_same_v<Element, bf16>)                                             \
      GPU_WGMMA_RS_16(n, ".bf16.bf16");                                                      \
    else if constexpr (std::is_same_v<Element, fp16>)                                        \
      GPU_WGMMA_RS_16(n, ".f16.f16");                                                        \
    else if constexpr (std::is_same_v<Element, fp8_e4m3>)                                    \
      GPU_WGMMA_RS_8(n, ".e4m3.e4m3");                                                       \
    else if constexpr (std::is_same_v<Element, fp8_e5m2>)                                    \
      GPU_WGMMA_RS_8(n, ".e5m2.e5m2");                                                       \
    else                                                                                     \
      static_assert(cuda::kNever<Element>, "wgmma takes fp16, bf16, fp8_e4m3 and fp8_e5m2"); \
  }
  GPU_WGMMA_EACH_N(GPU_WGMMA_CASE)
#undef GPU_WGMMA_CASE
}

template <class Element, int N, Major kMajorA = Major::k, Major kMajorB = Major::k>
__device__ __forceinline__ void wgmma(float (&d)[N / 8][4], MatrixDescriptor a, MatrixDescriptor b, bool accumulate) {
  wgmma<Element, N, kMajorA, kMajorB>(reinterpret_cast<float(&)[N / 2]>(d), a, b, accumulate);
}
template <class Element, int N, Major kMajorB = Major::k>
__device__ __forceinline__ void wgmma(float (&d)[N / 8][4], const std::uint32_t (&a)[4], MatrixDescriptor b,
                                      bool accumulate) {
  wgmma<Element, N, kMajorB>(reinterpret_cast<float(&)[N / 2]>(d), a, b, accumulate);
}

#undef GPU_WGMMA_SS_16
#undef GPU_WGMMA_SS_8
#undef GPU_WGMMA_RS_16
#undef GPU_WGMMA_RS_8
#undef GPU_WGMMA_RS_HEAD
#undef GPU_WGMMA_HEAD

}  // namespace gpu
