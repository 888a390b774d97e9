#pragma once
/// \file
/// What a block works on, its shared memory with the barriers in it, and the tensor maps.

#include <cmath>
#include <cstdint>

#include "common/attention/cost.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/mbarrier.cuh"
#include "common/gpu/tma.cuh"
#include "common/gpu/wgmma.cuh"
#include "common/kernel/folded_scale.cuh"
#include "common/kernel/panel_tile.cuh"
#include "common/kernel/query_tile.cuh"
#include "common/kernel/row_fragments.cuh"
#include "common/kernel/row_map.hpp"
#include "common/kernel/tiles.hpp"
#include "common/kernel/warpgroup.cuh"
#include "common/stage/hopper.hpp"
#include "common/stage/kernel.hpp"

namespace tma_pipeline {

using attention::ForwardArgs, attention::KeyRange, attention::Problem;
using kernel::tiles_of;

/// Two warpgroups of 64 queries each, which share tiles of keys.
template <class T_, int kHeadDim_, int kStages_>
struct PipelineTile {
  using T = T_;  ///< fp16 or bf16
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarpgroups = 2, kThreads = kWarpgroups * kernel::kWarpgroupThreads;
  static constexpr int kWarps = kThreads / gpu::kWarpSize;
  static constexpr int kBr = kWarpgroups * kernel::kWarpgroupRows;
  static constexpr int kBc = kHeadDim == 256 ? 64 : 128;
  static constexpr int kStages = kStages_;  ///< tiles of K and of V in shared memory
  static constexpr int kKeySteps = kBc / 16, kColumnTiles = kHeadDim / 8, kKeyTiles = kBc / 8;
  static constexpr int kPanels = kHeadDim / 64;
};

/// What a lane holds of a warpgroup's S (64 queries × Bc), of P as an operand, and of O (64 × head_dim).
template <class Tile>
using Scores = float[Tile::kKeyTiles][4];
template <class Tile>
using Probabilities = std::uint32_t[Tile::kKeySteps][4];
template <class Tile>
using Out = float[Tile::kColumnTiles][4];

template <class Tile>
using QueryPanels = kernel::PanelTile<typename Tile::T, Tile::kBr, Tile::kHeadDim>;
template <class Tile>
using KeyPanels = kernel::PanelTile<typename Tile::T, Tile::kBc, Tile::kHeadDim>;

/// Whether the mask, or the end of K, cuts the tile: whether some row does not see all of its keys.
template <class Tile>
__host__ __device__ constexpr bool needs_mask(int first_key, KeyRange unmasked) {
  return first_key < unmasked.begin || first_key + Tile::kBc > unmasked.end;
}

/// The maps of a launch.
struct Maps {
  gpu::TensorMap q, k, v, o;
};
template <class Tile, class T>
Maps make_maps(const ForwardArgs<T>& a) {
  return {kernel::row_map(a.q_gmem, a.q_strides, a.batch, a.seqlen_q, a.heads_q, a.head_dim, Tile::kBr),
          kernel::row_map(a.k_gmem, a.k_strides, a.batch, a.seqlen_kv, a.heads_kv, a.head_dim, Tile::kBc),
          kernel::row_map(a.v_gmem, a.v_strides, a.batch, a.seqlen_kv, a.heads_kv, a.head_dim, Tile::kBc),
          kernel::row_map(a.o_gmem, a.o_strides, a.batch, a.seqlen_q, a.heads_q, a.head_dim, kernel::kWarpgroupRows)};
}

/// Asks for a tile of rows, panel by panel; all of its bytes arrive at the barrier, also those past the last row, as
/// zeros. The caller has announced them.
template <class Tile>
__device__ void load_panels(Tile& tile_smem, const gpu::TensorMap& map, gpu::Mbarrier& full, int first_row, int head,
                            int batch) {
#pragma unroll
  for (int panel = 0; panel < Tile::kColumns / Tile::kPanelColumns; ++panel) {
    gpu::tma_load(tile_smem.at(panel * Tile::kPanel), map, full, panel * Tile::kPanelColumns, first_row, head, batch);
  }
}

}  // namespace tma_pipeline
