#pragma once
/// \file
/// WGMMA on the emulator.

#include <type_traits>

#include "common/gpu/emulator/language.hpp"
#include "common/gpu/emulator/matrix_operand.hpp"
#include "common/gpu/emulator/numeric.hpp"

namespace gpu {
namespace emulator {

/// What a thread brings to a product. `a` is null where A comes from shared memory.
struct ProductRequest {
  OperandElement element;
  int n;
  Major major_a, major_b;
  MatrixDescriptor a_descriptor, b_descriptor;
  const std::uint32_t* a;
  float* d;
  bool accumulate;
};
void start_product(const ProductRequest& request, Site site);
void fence_products(Site site);
void commit_products();
void wait_products(std::size_t newest_left, Site site);
/// The offset of a matrix in shared memory. Faults if it or the distances cannot be written into a descriptor.
std::uint32_t matrix_address(const void* smem, std::uint32_t leading_bytes, std::uint32_t stride_bytes, Site site);

template <class Element, int N>
constexpr void check_product_type() {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "N is a multiple of 8 from 8 to 256");
  static_assert(std::is_same_v<Element, __half> || std::is_same_v<Element, __nv_bfloat16> ||
                    std::is_same_v<Element, __nv_fp8_e4m3> || std::is_same_v<Element, __nv_fp8_e5m2>,
                "wgmma takes fp16, bf16, fp8_e4m3 and fp8_e5m2");
}

template <class Element>
constexpr OperandElement product_element() {
  return std::is_same_v<Element, __half>          ? OperandElement::fp16
         : std::is_same_v<Element, __nv_bfloat16> ? OperandElement::bf16
         : std::is_same_v<Element, __nv_fp8_e4m3> ? OperandElement::e4m3
                                                  : OperandElement::e5m2;
}

}  // namespace emulator

inline MatrixDescriptor matrix_descriptor(const void* smem, Swizzle swizzle, std::uint32_t leading_bytes,
                                          std::uint32_t stride_bytes, emulator::Site site = emulator::Site::here()) {
  return matrix_descriptor_at(emulator::matrix_address(smem, leading_bytes, stride_bytes, site), swizzle, leading_bytes,
                              stride_bytes);
}

inline void wgmma_fence(emulator::Site site = emulator::Site::here()) { emulator::fence_products(site); }
inline void wgmma_commit() { emulator::commit_products(); }

template <int kNewestLeft>
void wgmma_wait(emulator::Site site = emulator::Site::here()) {
  emulator::wait_products(kNewestLeft, site);
}

/// The compiler here moves nothing across a call that it cannot see into.
template <int kCount>
void keep(float (&)[kCount]) {}
template <int kTiles>
void keep(float (&)[kTiles][4]) {}

template <class Element, int N, Major kMajorA = Major::k, Major kMajorB = Major::k>
void wgmma(float (&d)[N / 2], MatrixDescriptor a, MatrixDescriptor b, bool accumulate,
           emulator::Site site = emulator::Site::here()) {
  static_assert(sizeof(Element) == 2 || (kMajorA == Major::k && kMajorB == Major::k), "fp8 operands are K-major");
  emulator::check_product_type<Element, N>();
  emulator::start_product({emulator::product_element<Element>(), N, kMajorA, kMajorB, a, b, nullptr, d, accumulate},
                          site);
}

template <class Element, int N, Major kMajorB = Major::k>
void wgmma(float (&d)[N / 2], const std::uint32_t (&a)[4], MatrixDescriptor b, bool accumulate,
           emulator::Site site = emulator::Site::here()) {
  static_assert(sizeof(Element) == 2 || kMajorB == Major::k, "fp8 operands are K-major");
  emulator::check_product_type<Element, N>();
  emulator::start_product({emulator::product_element<Element>(), N, Major::k, kMajorB, {}, b, a, d, accumulate}, site);
}

template <class Element, int N, Major kMajorA = Major::k, Major kMajorB = Major::k>
void wgmma(float (&d)[N / 8][4], MatrixDescriptor a, MatrixDescriptor b, bool accumulate,
           emulator::Site site = emulator::Site::here()) {
  wgmma<Element, N, kMajorA, kMajorB>(reinterpret_cast<float(&)[N / 2]>(d), a, b, accumulate, site);
}
template <class Element, int N, Major kMajorB = Major::k>
void wgmma(float (&d)[N / 8][4], const std::uint32_t (&a)[4], MatrixDescriptor b, bool accumulate,
           emulator::Site site = emulator::Site::here()) {
  wgmma<Element, N, kMajorB>(reinterpret_cast<float(&)[N / 2]>(d), a, b, accumulate, site);
}

}  // namespace gpu
