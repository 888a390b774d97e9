#pragma once
/// \file
/// What the checking build does with one memory access of a kernel.

#include <cstddef>

#include "common/gpu/emulator/race.hpp"

namespace gpu::emulator {

/// Finds out where the bytes lie (shared memory, a device buffer, the thread's own stack, anything else), counts them,
/// and reports what is wrong with them: past an end, never written, foreign, or racing.
void observe_access(const void* address, std::size_t bytes, AccessKind kind, Place place);

}  // namespace gpu::emulator
