#pragma once
/// \file
/// cp.async on the emulator.

#include "common/gpu/emulator/language.hpp"

namespace gpu {
namespace emulator {

void start_copy(void* to_smem, const void* from_gmem, std::size_t bytes, bool valid, Site site);
void commit_copies();
void wait_copies(std::size_t newest_left, Site site);

}  // namespace emulator

template <int kBytes>
void copy_async(void* to_smem, const void* from_gmem, bool valid = true, emulator::Site site = emulator::Site::here()) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "cp.async copies 4, 8 or 16 bytes");
  emulator::start_copy(to_smem, from_gmem, kBytes, valid, site);
}

inline void copy_async_commit() { emulator::commit_copies(); }

template <int kNewestLeft>
void copy_async_wait(emulator::Site site = emulator::Site::here()) {
  emulator::wait_copies(kNewestLeft, site);
}

}  // namespace gpu
