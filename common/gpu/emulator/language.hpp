#pragma once
/// \file
/// CUDA's words for a plain C++ compiler: keywords, built-in variables, vector types.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
/// Static shared variables would escape the emulator's limits, poison and race checks.
#define __shared__ _Pragma("GCC error \"put shared variables into the struct given to gpu::launch<Shared>(...)\"")

namespace gpu::emulator {

/// Copies a whole vector by one access of all its bytes. Written member by member, g++ splits the copy into accesses of
/// 4 bytes, and the checking build would see four requests where a GPU makes one.
template <class T, int kCount>
inline void copy_vector(void* to, const void* from) {
  typedef T Vector __attribute__((__vector_size__(kCount * sizeof(T)), __may_alias__));
  *static_cast<Vector*>(to) = *static_cast<const Vector*>(from);
}

}  // namespace gpu::emulator

// CUDA's vector types. Reinterpreting four floats as a float4 is how a kernel asks for one 16-byte access, so these
// types may alias others; the alignment is CUDA's.
#define GPU_VECTOR_TYPE(bytes) struct __attribute__((__may_alias__, __aligned__(bytes)))
#define GPU_VECTOR_TYPE_2(name, T)                       \
  GPU_VECTOR_TYPE(8) name {                              \
    T x, y;                                              \
    name() = default;                                    \
    constexpr name(T x_, T y_) : x(x_), y(y_) {}         \
    constexpr name(const name& other) { *this = other; } \
    constexpr name& operator=(const name& other) {       \
      if (std::is_constant_evaluated()) {                \
        x = other.x, y = other.y;                        \
      } else {                                           \
        gpu::emulator::copy_vector<T, 2>(this, &other);  \
      }                                                  \
      return *this;                                      \
    }                                                    \
  }
#define GPU_VECTOR_TYPE_4(name, T)                                         \
  GPU_VECTOR_TYPE(16) name {                                               \
    T x, y, z, w;                                                          \
    name() = default;                                                      \
    constexpr name(T x_, T y_, T z_, T w_) : x(x_), y(y_), z(z_), w(w_) {} \
    constexpr name(const name& other) { *this = other; }                   \
    constexpr name& operator=(const name& other) {                         \
      if (std::is_constant_evaluated()) {                                  \
        x = other.x, y = other.y, z = other.z, w = other.w;                \
      } else {                                                             \
        gpu::emulator::copy_vector<T, 4>(this, &other);                    \
      }                                                                    \
      return *this;                                                        \
    }                                                                      \
  }
GPU_VECTOR_TYPE(4) uint3 { unsigned x, y, z; };
GPU_VECTOR_TYPE_2(float2, float);
GPU_VECTOR_TYPE_4(float4, float);
GPU_VECTOR_TYPE_2(int2, int);
GPU_VECTOR_TYPE_4(int4, int);
GPU_VECTOR_TYPE_2(uint2, unsigned);
GPU_VECTOR_TYPE_4(uint4, unsigned);
#undef GPU_VECTOR_TYPE
#undef GPU_VECTOR_TYPE_2
#undef GPU_VECTOR_TYPE_4

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

constexpr float2 make_float2(float x, float y) { return {x, y}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
constexpr int2 make_int2(int x, int y) { return {x, y}; }
constexpr int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace gpu::emulator {

// `const`: inside one thread the answer never changes, so the compiler may ask once.
__attribute__((const)) uint3 thread_index() noexcept;
__attribute__((const)) uint3 block_index() noexcept;
__attribute__((const)) uint3 block_size() noexcept;
__attribute__((const)) uint3 grid_size() noexcept;

/// Where in a kernel's source something was called. (std::source_location needs clang 16.)
struct Site {
  const char* file = "";
  unsigned line = 0;
  static constexpr Site here(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {file, line};
  }
  friend bool operator==(const Site& a, const Site& b) {
    return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
  }
};

}  // namespace gpu::emulator

#define threadIdx (::gpu::emulator::thread_index())
#define blockIdx (::gpu::emulator::block_index())
#define blockDim (::gpu::emulator::block_size())
#define gridDim (::gpu::emulator::grid_size())
inline constexpr int warpSize = 32;

// CUDA has these without `std::`.
using std::max;
using std::min;

/// Stops the kernel with an error.
[[noreturn]] inline void __trap() { __builtin_trap(); }

/// A load that promises nobody writes the data during the kernel.
template <class T>
inline T __ldg(const T* address) {
  return *address;
}
