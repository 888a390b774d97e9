#pragma once
/// \file
/// setmaxnreg on the emulator.

#include "common/gpu/emulator/language.hpp"

namespace gpu {
namespace emulator {

/// \param more whether the warp takes registers or gives some back
void set_registers(int registers, bool more, Site site);

}  // namespace emulator

template <int kRegisters>
void release_registers(emulator::Site site = emulator::Site::here()) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256, "a multiple of 8 from 24 to 256");
  emulator::set_registers(kRegisters, false, site);
}

template <int kRegisters>
void take_registers(emulator::Site site = emulator::Site::here()) {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256, "a multiple of 8 from 24 to 256");
  emulator::set_registers(kRegisters, true, site);
}

}  // namespace gpu
