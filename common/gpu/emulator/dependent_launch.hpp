#pragma once
/// \file
/// griddepcontrol on the emulator, where kernels run one after the other.

#include "common/gpu/emulator/language.hpp"

namespace gpu {
namespace emulator {

void wait_for_kernel_before(Site site);

}  // namespace emulator

inline void wait_for_previous_kernel(emulator::Site site = emulator::Site::here()) {
  emulator::wait_for_kernel_before(site);
}
inline void let_next_kernel_start() {}

}  // namespace gpu
