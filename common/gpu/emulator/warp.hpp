#pragma once
/// \file
/// Shuffles and votes on the emulator: thin templates over one rendezvous of the lanes in a mask.

#include <cstring>

#include "common/gpu/emulator/language.hpp"

namespace gpu::emulator {

int lane() noexcept;

/// Each lane in the mask gives `bits` and gets those of lane `source` (0 … 31).
std::uint64_t shuffle(unsigned mask, std::uint64_t bits, int source, Site site);

/// One bit for each lane in the mask whose predicate is not 0.
unsigned vote(unsigned mask, int predicate, Site site);

/// True in one lane of the full warp.
bool elect(Site site);

void warp_barrier(unsigned mask, Site site);

template <class T>
T shuffle_value(unsigned mask, T value, int source, Site site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(mask, bits, source, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace gpu::emulator

// `width` splits the warp into sections that do not see each other (a power of two). A source outside the section gives
// the lane its own value back (CUDA C++ Programming Guide, "Warp Shuffle Functions").

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              gpu::emulator::Site site = gpu::emulator::Site::here()) {
  const int base = gpu::emulator::lane() & ~(width - 1);
  return gpu::emulator::shuffle_value(mask, value, base + (source & (width - 1)), site);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                  gpu::emulator::Site site = gpu::emulator::Site::here()) {
  const int lane = gpu::emulator::lane();
  const int source = lane ^ lane_mask;
  // A butterfly may reach down into an earlier section, but not up into a later one.
  return gpu::emulator::shuffle_value(mask, value, source / width > lane / width ? lane : source & 31, site);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   gpu::emulator::Site site = gpu::emulator::Site::here()) {
  const int lane = gpu::emulator::lane();
  const int within = lane & (width - 1);
  return gpu::emulator::shuffle_value(
      mask, value, delta >= static_cast<unsigned>(width - within) ? lane : lane + static_cast<int>(delta), site);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 gpu::emulator::Site site = gpu::emulator::Site::here()) {
  const int lane = gpu::emulator::lane();
  const int within = lane & (width - 1);
  return gpu::emulator::shuffle_value(
      mask, value, delta > static_cast<unsigned>(within) ? lane : lane - static_cast<int>(delta), site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, gpu::emulator::Site site = gpu::emulator::Site::here()) {
  return gpu::emulator::vote(mask, predicate, site);
}
inline int __any_sync(unsigned mask, int predicate, gpu::emulator::Site site = gpu::emulator::Site::here()) {
  return gpu::emulator::vote(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, gpu::emulator::Site site = gpu::emulator::Site::here()) {
  return gpu::emulator::vote(mask, predicate, site) == mask;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, gpu::emulator::Site site = gpu::emulator::Site::here()) {
  gpu::emulator::warp_barrier(mask, site);
}

namespace gpu {

inline bool elect_one(emulator::Site site = emulator::Site::here()) { return emulator::elect(site); }

}  // namespace gpu
