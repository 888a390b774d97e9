#include "common/gpu/launch_shape.hpp"

#include <string>

#include "common/gpu/emulation.hpp"

namespace gpu {
namespace {

void require_between(const char* what, std::int64_t value, std::int64_t limit) {
  if (value < 1 || value > limit) {
    throw Error(std::string("launch refused: ") + what + " is " + std::to_string(value) + "; allowed: 1 to " +
                std::to_string(limit));
  }
}

}  // namespace

void check_launch_shape(const LaunchShape& shape, std::size_t shared_bytes) {
  const int grid_limit = emulator_options().grid_limit ? emulator_options().grid_limit : 65535;
  require_between("grid.x", shape.grid.x, 2147483647);
  require_between("grid.y", shape.grid.y, grid_limit);
  require_between("grid.z", shape.grid.z, grid_limit);
  require_between("block.x", shape.block.x, 1024);
  require_between("block.y", shape.block.y, 1024);
  require_between("block.z", shape.block.z, 64);
  require_between("the number of threads in a block", shape.block.x * shape.block.y * shape.block.z, 1024);
  const std::int64_t cluster_blocks = shape.cluster.x * shape.cluster.y * shape.cluster.z;
  require_between("the number of blocks in a cluster", cluster_blocks, 8);
  if (cluster_blocks > 1 && device().compute_capability < 90) {
    throw Error("launch refused: clusters need compute capability 9.0; " + device().name + " has " +
                std::to_string(device().compute_capability / 10) + "." +
                std::to_string(device().compute_capability % 10));
  }
  const auto require_multiple = [](const char* axis, std::int64_t blocks, std::int64_t cluster) {
    if (cluster < 1 || blocks % cluster != 0) {
      throw Error(std::string("launch refused: grid.") + axis + " is " + std::to_string(blocks) +
                  "; allowed: multiples of the cluster's " + std::to_string(cluster) + " blocks");
    }
  };
  require_multiple("x", shape.grid.x, shape.cluster.x);
  require_multiple("y", shape.grid.y, shape.cluster.y);
  require_multiple("z", shape.grid.z, shape.cluster.z);
  if (shared_bytes > shared_memory_limit()) {
    throw Error("launch refused: the kernel needs " + std::to_string(shared_bytes) +
                " bytes of shared memory a block; " + device().name + " allows " +
                std::to_string(shared_memory_limit()));
  }
}

}  // namespace gpu
