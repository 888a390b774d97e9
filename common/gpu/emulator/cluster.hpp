#pragma once
/// \file
/// Clusters on the emulator.

#include "common/gpu/emulator/language.hpp"

namespace gpu {
namespace emulator {

std::uint32_t rank_in_cluster() noexcept;
std::uint32_t blocks_in_cluster() noexcept;
void arrive_at_cluster_barrier(Site site);
void wait_at_cluster_barrier(Site site);
void meet_cluster_barrier(Site site);
void* same_place_in_block(std::uint32_t rank, const void* smem, Site site);

}  // namespace emulator

inline std::uint32_t cluster_rank() { return emulator::rank_in_cluster(); }
inline std::uint32_t cluster_blocks() { return emulator::blocks_in_cluster(); }

inline void cluster_arrive(emulator::Site site = emulator::Site::here()) { emulator::arrive_at_cluster_barrier(site); }
inline void cluster_wait(emulator::Site site = emulator::Site::here()) { emulator::wait_at_cluster_barrier(site); }
inline void cluster_sync(emulator::Site site = emulator::Site::here()) { emulator::meet_cluster_barrier(site); }

template <class T>
T* in_block(std::uint32_t rank, T* smem, emulator::Site site = emulator::Site::here()) {
  return static_cast<T*>(emulator::same_place_in_block(rank, smem, site));
}

}  // namespace gpu
