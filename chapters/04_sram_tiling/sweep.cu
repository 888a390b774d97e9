/// \file
/// Compiles the kernels of the sweep: 32 of them a head_dim. It takes a while, so that head_dim 32 is left out.

#include "chapters/04_sram_tiling/sweep.hpp"

namespace sram_tiling {

std::vector<SweptTile> swept_tiles(int head_dim) {
  if (head_dim == 64) return swept_tiles<64>();
  if (head_dim == 128) return swept_tiles<128>();
  return {};
}

}  // namespace sram_tiling
