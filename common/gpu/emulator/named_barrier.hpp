#pragma once
/// \file
/// bar.sync and bar.arrive on the emulator.

#include "common/gpu/emulator/language.hpp"

namespace gpu {
namespace emulator {

void meet_named_barrier(int id, int threads, bool waits, Site site);

}  // namespace emulator

inline void named_barrier_sync(int id, int threads, emulator::Site site = emulator::Site::here()) {
  emulator::meet_named_barrier(id, threads, true, site);
}

inline void named_barrier_arrive(int id, int threads, emulator::Site site = emulator::Site::here()) {
  emulator::meet_named_barrier(id, threads, false, site);
}

}  // namespace gpu
