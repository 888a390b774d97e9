#pragma once
/// \file
/// What the checking build does with one memory access of a kernel.

#include <cstddef>

#include "common/gpu/emulator/race.hpp"

namespace gpu::emulator {

/// Finds out where the bytes lie (shared memory, a device buffer, the thread's own stack, anything else), and reports
/// what is wrong with them: past an end, never written, foreign, or racing.
void check_access(const void* address, std::size_t bytes, AccessKind kind, Place place);

/// The same, and counts the access. A GPU takes it `unit` bytes at a time: all at once, unless the compiler could not
/// know that the address is a multiple of the size.
void observe_access(const void* address, std::size_t bytes, std::size_t unit, AccessKind kind, Place place);
inline void observe_access(const void* address, std::size_t bytes, AccessKind kind, Place place) {
  observe_access(address, bytes, bytes, kind, place);
}

/// The same check for an asynchronous operation of the running thread's cluster (race.hpp) that touches a device
/// buffer. The caller has made sure that there is one.
void check_device_access(int operation, const void* address, std::size_t bytes, AccessKind kind, Place place);

}  // namespace gpu::emulator
