#pragma once
/// \file
/// The size of a launch and the limits that the hardware sets to it, checked before anything starts.

#include <cstddef>
#include <cstdint>

#include "common/gpu/device.hpp"

namespace gpu {

/// Three sizes, wide enough that a size out of range arrives as it was written. `Extent e = 5` means 5 × 1 × 1.
struct Extent {
  std::int64_t x = 1, y = 1, z = 1;
  constexpr Extent(std::int64_t x_, std::int64_t y_ = 1, std::int64_t z_ = 1) : x(x_), y(y_), z(z_) {}
};

/// How many blocks, and how many threads in each.
struct LaunchShape {
  Extent grid;                     ///< blocks: x ≤ 2³¹ − 1, y and z ≤ 65535
  Extent block;                    ///< threads: at most 1024 in all, z ≤ 64
  Extent cluster = 1;              ///< blocks that run together: at most 8 in all; the grid is a multiple (cluster.cuh)
  bool overlaps_previous = false;  ///< may start before the kernel in front of it has ended (dependent_launch.cuh)
};

/// Shared storage of a kernel that has none.
struct NoSharedMemory {};

/// \throws Error naming the size, its value and the limit (CUDA C++ Programming Guide, "Compute Capabilities").
void check_launch_shape(const LaunchShape& shape, std::size_t shared_bytes);

}  // namespace gpu
