#pragma once
/// \file
/// TMA on the emulator.

#include <span>

#include "common/gpu/emulator/language.hpp"

namespace gpu {
namespace emulator {

void start_load(void* to_smem, const TensorMap& map, Mbarrier& barrier, std::span<const int> at, Site site);
void start_multicast(void* to_smem, const TensorMap& map, Mbarrier& barrier, std::uint16_t blocks,
                     std::span<const int> at, Site site);
/// \param adds whether the elements are added to those of the array
void start_store(const TensorMap& map, const void* from_smem, bool adds, std::span<const int> at, Site site);
void commit_stores();
/// \param visible whether the results have to be visible, or shared memory read
void wait_stores(std::size_t newest_left, bool visible, Site site);
void prefetch_map(const TensorMap& map, Site site);

}  // namespace emulator

// One overload for each number of dimensions: the call's line is a default argument behind the coordinates.
#define GPU_TMA_FUNCTIONS(PARAMETERS, ...)                                                                     \
  inline void tma_load(void* to_smem, const TensorMap& map, Mbarrier& barrier, PARAMETERS,                     \
                       emulator::Site site = emulator::Site::here()) {                                         \
    const int at[] = {__VA_ARGS__};                                                                            \
    emulator::start_load(to_smem, map, barrier, at, site);                                                     \
  }                                                                                                            \
  inline void tma_load_multicast(void* to_smem, const TensorMap& map, Mbarrier& barrier, std::uint16_t blocks, \
                                 PARAMETERS, emulator::Site site = emulator::Site::here()) {                   \
    const int at[] = {__VA_ARGS__};                                                                            \
    emulator::start_multicast(to_smem, map, barrier, blocks, at, site);                                        \
  }                                                                                                            \
  inline void tma_store(const TensorMap& map, const void* from_smem, PARAMETERS,                               \
                        emulator::Site site = emulator::Site::here()) {                                        \
    const int at[] = {__VA_ARGS__};                                                                            \
    emulator::start_store(map, from_smem, false, at, site);                                                    \
  }                                                                                                            \
  inline void tma_reduce_add(const TensorMap& map, const void* from_smem, PARAMETERS,                          \
                             emulator::Site site = emulator::Site::here()) {                                   \
    const int at[] = {__VA_ARGS__};                                                                            \
    emulator::start_store(map, from_smem, true, at, site);                                                     \
  }
#define GPU_TMA_PARAMETERS_1 int x
#define GPU_TMA_PARAMETERS_2 int x, int y
#define GPU_TMA_PARAMETERS_3 int x, int y, int z
#define GPU_TMA_PARAMETERS_4 int x, int y, int z, int u
#define GPU_TMA_PARAMETERS_5 int x, int y, int z, int u, int v
GPU_TMA_FUNCTIONS(GPU_TMA_PARAMETERS_1, x)
GPU_TMA_FUNCTIONS(GPU_TMA_PARAMETERS_2, x, y)
GPU_TMA_FUNCTIONS(GPU_TMA_PARAMETERS_3, x, y, z)
GPU_TMA_FUNCTIONS(GPU_TMA_PARAMETERS_4, x, y, z, u)
GPU_TMA_FUNCTIONS(GPU_TMA_PARAMETERS_5, x, y, z, u, v)
#undef GPU_TMA_FUNCTIONS
#undef GPU_TMA_PARAMETERS_1
#undef GPU_TMA_PARAMETERS_2
#undef GPU_TMA_PARAMETERS_3
#undef GPU_TMA_PARAMETERS_4
#undef GPU_TMA_PARAMETERS_5

inline void tma_store_commit() { emulator::commit_stores(); }

template <int kNewestLeft>
void tma_store_wait_read(emulator::Site site = emulator::Site::here()) {
  emulator::wait_stores(kNewestLeft, false, site);
}

template <int kNewestLeft>
void tma_store_wait(emulator::Site site = emulator::Site::here()) {
  emulator::wait_stores(kNewestLeft, true, site);
}

inline void tma_prefetch(const TensorMap& map, emulator::Site site = emulator::Site::here()) {
  emulator::prefetch_map(map, site);
}

}  // namespace gpu
