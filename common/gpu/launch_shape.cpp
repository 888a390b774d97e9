#include "common/gpu/launch_shape.hpp"

#include <string>

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
  require_between("grid.x", shape.grid.x, 2147483647);
  require_between("grid.y", shape.grid.y, 65535);
  require_between("grid.z", shape.grid.z, 65535);
  require_between("block.x", shape.block.x, 1024);
  require_between("block.y", shape.block.y, 1024);
  require_between("block.z", shape.block.z, 64);
  require_between("the number of threads in a block", shape.block.x * shape.block.y * shape.block.z, 1024);
  if (shared_bytes > shared_memory_limit()) {
    throw Error("launch refused: the kernel needs " + std::to_string(shared_bytes) +
                " bytes of shared memory a block; " + device().name + " allows " +
                std::to_string(shared_memory_limit()));
  }
}

}  // namespace gpu
