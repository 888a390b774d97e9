#pragma once
/// \file
/// mbarrier on the emulator.

#include "common/gpu/emulator/language.hpp"

namespace gpu {
namespace emulator {

void init_mbarrier(Mbarrier& barrier, std::uint32_t arrivals, Site site);
void fence_mbarrier_init(Site site);
void arrive_at_mbarrier(Mbarrier& barrier, Site site);
/// \param arrives whether it is also an arrival
void expect_bytes(Mbarrier& barrier, std::uint32_t bytes, bool arrives, Site site);
void arrive_at_remote_mbarrier(Mbarrier& barrier, std::uint32_t rank, Site site);
void wait_at_mbarrier(Mbarrier& barrier, std::uint32_t parity, Site site);

}  // namespace emulator

inline void mbarrier_init(Mbarrier& barrier, std::uint32_t arrivals, emulator::Site site = emulator::Site::here()) {
  emulator::init_mbarrier(barrier, arrivals, site);
}

/// Makes the initialisation visible to the async proxy and to the other blocks of the cluster; a barrier among the
/// threads has to follow.
inline void mbarrier_init_fence(emulator::Site site = emulator::Site::here()) { emulator::fence_mbarrier_init(site); }

inline void mbarrier_arrive(Mbarrier& barrier, emulator::Site site = emulator::Site::here()) {
  emulator::arrive_at_mbarrier(barrier, site);
}

inline void mbarrier_arrive_after(Mbarrier& barrier, float, emulator::Site site = emulator::Site::here()) {
  mbarrier_arrive(barrier, site);
}

inline void mbarrier_arrive_expect_bytes(Mbarrier& barrier, std::uint32_t bytes,
                                         emulator::Site site = emulator::Site::here()) {
  emulator::expect_bytes(barrier, bytes, true, site);
}

inline void mbarrier_expect_bytes(Mbarrier& barrier, std::uint32_t bytes,
                                  emulator::Site site = emulator::Site::here()) {
  emulator::expect_bytes(barrier, bytes, false, site);
}

inline void mbarrier_arrive_remote(Mbarrier& barrier, std::uint32_t rank,
                                   emulator::Site site = emulator::Site::here()) {
  emulator::arrive_at_remote_mbarrier(barrier, rank, site);
}

inline void mbarrier_wait(Mbarrier& barrier, std::uint32_t parity, emulator::Site site = emulator::Site::here()) {
  emulator::wait_at_mbarrier(barrier, parity, site);
}

}  // namespace gpu
