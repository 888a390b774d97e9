#pragma once
/// \file
/// Device buffers on the emulator. Not for kernels.
///
/// Each buffer has a mapping of its own: an inaccessible margin, a red zone, the data, a red zone, a margin. The red
/// zones hold 0xFF: reading one gives NaN, and writing one is found after the launch. The margins fault at once.

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/gpu/emulator/race.hpp"

namespace gpu::emulator {

struct Allocation {
  std::uintptr_t mapping = 0;
  std::size_t mapping_bytes = 0;
  std::uintptr_t data = 0;
  std::size_t bytes = 0;
  std::string label;
  bool reserved = false;  ///< takes memory only where it is touched, and does not count
  bool freed = false;     ///< kept inaccessible for a while, so that a use of it is noticed
  // Checking build: the shadow of every 4-byte word, and one bit for each byte that has a value.
  GlobalShadow* shadow = nullptr;
  std::uint8_t* written = nullptr;

  bool holds(std::uintptr_t address) const { return address - data < bytes; }
  bool near(std::uintptr_t address) const { return address - mapping < mapping_bytes; }
  bool has_value(std::size_t offset) const { return written[offset / 8] >> offset % 8 & 1u; }
};

/// The allocation whose mapping, margins included, holds the address; null if none. Safe from several workers, since a
/// launch neither allocates nor frees.
Allocation* find_allocation(std::uintptr_t address);

/// Whether nobody has allocated the address here and such memory is allowed (foreign_memory.hpp).
bool is_foreign(std::uintptr_t address);

/// The host wrote these bytes.
void mark_written(Allocation& allocation, std::size_t offset, std::size_t bytes);

}  // namespace gpu::emulator
