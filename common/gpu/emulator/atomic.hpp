#pragma once
/// \file
/// Atomics on the emulator. Each gives other threads a turn, so that a loop that waits on one makes progress.

#include "common/gpu/emulator/language.hpp"

namespace gpu::emulator {

enum class AtomicOperation { add, maximum, minimum, exchange };

/// Applies the operation to *address and returns the old value. T: int, unsigned, unsigned long long, float, double.
template <class T>
T atomic_update(AtomicOperation operation, T* address, T value, Site site);

template <class T>
T atomic_compare_and_swap(T* address, T expected, T desired, Site site);

void atomic_add4(float* address, const float4& x, Site site);
unsigned atomic_load(const unsigned* address, Site site);
void atomic_store(unsigned* address, unsigned value, Site site);
void memory_fence() noexcept;
void pause(Site site);

}  // namespace gpu::emulator

#define GPU_ATOMIC_FUNCTION(name, operation, T)                                                           \
  inline T name(T* address, T value, gpu::emulator::Site site = gpu::emulator::Site::here()) {            \
    return gpu::emulator::atomic_update(gpu::emulator::AtomicOperation::operation, address, value, site); \
  }
GPU_ATOMIC_FUNCTION(atomicAdd, add, int)
GPU_ATOMIC_FUNCTION(atomicAdd, add, unsigned)
GPU_ATOMIC_FUNCTION(atomicAdd, add, unsigned long long)
GPU_ATOMIC_FUNCTION(atomicAdd, add, float)
GPU_ATOMIC_FUNCTION(atomicAdd, add, double)
GPU_ATOMIC_FUNCTION(atomicMax, maximum, int)
GPU_ATOMIC_FUNCTION(atomicMax, maximum, unsigned)
GPU_ATOMIC_FUNCTION(atomicMin, minimum, int)
GPU_ATOMIC_FUNCTION(atomicMin, minimum, unsigned)
GPU_ATOMIC_FUNCTION(atomicExch, exchange, int)
GPU_ATOMIC_FUNCTION(atomicExch, exchange, unsigned)
GPU_ATOMIC_FUNCTION(atomicExch, exchange, float)
#undef GPU_ATOMIC_FUNCTION

inline int atomicCAS(int* address, int expected, int desired, gpu::emulator::Site site = gpu::emulator::Site::here()) {
  return gpu::emulator::atomic_compare_and_swap(address, expected, desired, site);
}
inline unsigned atomicCAS(unsigned* address, unsigned expected, unsigned desired,
                          gpu::emulator::Site site = gpu::emulator::Site::here()) {
  return gpu::emulator::atomic_compare_and_swap(address, expected, desired, site);
}

inline void __threadfence() { gpu::emulator::memory_fence(); }
inline void __threadfence_block() { gpu::emulator::memory_fence(); }
inline void __nanosleep(unsigned, gpu::emulator::Site site = gpu::emulator::Site::here()) {
  gpu::emulator::pause(site);
}

namespace gpu {

/// Adds x to the four floats at `address`, a multiple of 16 bytes.
inline void atomic_add4(float* address, const float4& x, emulator::Site site = emulator::Site::here()) {
  emulator::atomic_add4(address, x, site);
}
/// Reads a signal: what its writer wrote before the matching store_release is visible afterwards.
inline unsigned load_acquire(const unsigned* address, emulator::Site site = emulator::Site::here()) {
  return emulator::atomic_load(address, site);
}
/// Writes a signal after everything this thread wrote before.
inline void store_release(unsigned* address, unsigned value, emulator::Site site = emulator::Site::here()) {
  emulator::atomic_store(address, value, site);
}

}  // namespace gpu
