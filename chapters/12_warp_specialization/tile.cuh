#pragma once
/// \file
/// Shapes of tiles, a block's shared memory with the barriers in it, and the producer that all steps share.

#include <cmath>
#include <cstdint>

#include "chapters/12_warp_specialization/work.cuh"
#include "common/attention/cost.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/mbarrier.cuh"
#include "common/gpu/named_barrier.cuh"
#include "common/gpu/register_budget.cuh"
#include "common/gpu/tma.cuh"
#include "common/gpu/uniform.cuh"
#include "common/gpu/wgmma.cuh"
#include "common/kernel/folded_scale.cuh"
#include "common/kernel/panel_tile.cuh"
#include "common/kernel/row_fragments.cuh"
#include "common/kernel/row_map.hpp"
#include "common/kernel/warpgroup.cuh"
#include "common/stage/hopper.hpp"
#include "common/stage/kernel.hpp"

namespace warp_specialization {

/// One warpgroup that loads, and kConsumers that compute 64 queries each.
///
///     head_dim          queries    keys    stages    registers of a lane that computes, and of one that loads
///        64               192       128       2          160      32
///       128               128       128       2          240      24
///       256               128        80       2          240      24
///       256, kSmall       128        64       2          240      24
///
/// \tparam kSmall_ fewer keys, for step 4, where whole tiles of the other shape would be empty to a good part
template <class T_, int kHeadDim_, bool kSmall_ = false>
struct SpecializedTile {
  using T = T_;  ///< fp16 or bf16
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kSmall = kSmall_;
  static_assert(!kSmall || kHeadDim == 256, "only head_dim 256 has a second shape");
  static constexpr int kConsumers = kHeadDim == 64 ? 3 : 2;
  static constexpr int kThreads = (1 + kConsumers) * kernel::kWarpgroupThreads;
  static constexpr int kBr = kConsumers * kernel::kWarpgroupRows;
  static constexpr int kBc = kHeadDim == 256 ? (kSmall ? 64 : 80) : 128;
  static constexpr int kStages = 2;  ///< tiles of K and of V in shared memory
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : 160, kProducerRegisters = kConsumers == 2 ? 24 : 32;
  static constexpr int kKeySteps = kBc / 16, kColumnTiles = kHeadDim / 8, kKeyTiles = kBc / 8;
  static constexpr int kPanels = kHeadDim / 64;
  /// Of a tile's exponentials those that run while O += P V of the tile before still does. After it there is the rest
  /// of the softmax to share the cycles with; at head_dim 64 the product is too short for any.
  static constexpr int kEarlyKeyTiles = kHeadDim == 64 ? 0 : kKeyTiles / 2;
};

/// What a lane holds of a warpgroup's S (64 queries × Bc), of P as an operand, and of O (64 × head_dim).
template <class Tile>
using Scores = float[Tile::kKeyTiles][4];
template <class Tile>
using Probabilities = std::uint32_t[Tile::kKeySteps][4];
template <class Tile>
using Out = float[Tile::kColumnTiles][4];

template <class Tile>
struct SpecializedShared {
  using QTile = kernel::PanelTile<typename Tile::T, Tile::kBr, Tile::kHeadDim>;
  using KTile = kernel::PanelTile<typename Tile::T, Tile::kBc, Tile::kHeadDim>;
  QTile q;
  KTile k[Tile::kStages], v[Tile::kStages];
  gpu::Mbarrier q_full, k_full[Tile::kStages], v_full[Tile::kStages];
  gpu::Mbarrier k_empty[Tile::kStages], v_empty[Tile::kStages];  ///< one arrival of each warp that computes
};

/// Where a ring's next tile is: its place and the parity of its phase.
template <class Tile>
struct RingPosition {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == Tile::kStages) stage = 0, parity ^= 1;
  }
};

/// The maps of a launch. Q is loaded `query_rows` rows at a time.
struct Maps {
  gpu::TensorMap q, k, v, o;
};
template <class Tile, class T>
Maps make_maps(const ForwardArgs<T>& a, int query_rows = Tile::kBr) {
  return {kernel::row_map(a.q_gmem, a.q_strides, a.batch, a.seqlen_q, a.heads_q, a.head_dim, query_rows),
          kernel::row_map(a.k_gmem, a.k_strides, a.batch, a.seqlen_kv, a.heads_kv, a.head_dim, Tile::kBc),
          kernel::row_map(a.v_gmem, a.v_strides, a.batch, a.seqlen_kv, a.heads_kv, a.head_dim, Tile::kBc),
          kernel::row_map(a.o_gmem, a.o_strides, a.batch, a.seqlen_q, a.heads_q, a.head_dim, kernel::kWarpgroupRows)};
}

/// The barriers of the places for K and V; mbarrier_init_fence() is to follow.
template <class Tile, class Shared>
__device__ void init_stages(Shared& shared) {
  constexpr int kConsumerWarps = 4 * Tile::kConsumers;
  for (int stage = 0; stage < Tile::kStages; ++stage) {
    gpu::mbarrier_init(shared.k_full[stage], 1);
    gpu::mbarrier_init(shared.v_full[stage], 1);
    gpu::mbarrier_init(shared.k_empty[stage], kConsumerWarps);
    gpu::mbarrier_init(shared.v_empty[stage], kConsumerWarps);
  }
}

/// Thread 0 before the first meeting of the block.
template <class Tile>
__device__ void init_barriers(SpecializedShared<Tile>& shared) {
  gpu::mbarrier_init(shared.q_full, 1);
  init_stages<Tile>(shared);
  gpu::mbarrier_init_fence();
}

/// Asks for a tile of rows, panel by panel, when its place is empty.
template <class PanelTile>
__device__ void load_panels(PanelTile& tile_smem, const gpu::TensorMap& map, gpu::Mbarrier& full, int first_row,
                            int head, int batch) {
  gpu::mbarrier_arrive_expect_bytes(full, sizeof tile_smem.elements);
#pragma unroll 1  // registers are what this thread is short of, not time
  for (int panel = 0; panel < PanelTile::kColumns / PanelTile::kPanelColumns; ++panel) {
    gpu::tma_load(tile_smem.at(panel * PanelTile::kPanel), map, full, panel * PanelTile::kPanelColumns, first_row, head,
                  batch);
  }
}

/// The producer's thread: Q, then K and V tile by tile, each as soon as its place is empty.
template <class Tile>
__device__ void produce(SpecializedShared<Tile>& shared, const Maps& maps, const Work<Tile>& work) {
  load_panels(shared.q, maps.q, shared.q_full, work.first_query, work.head, work.batch);
  for (int step = 0; step < work.tiles(); ++step) {
    const int stage = step % Tile::kStages, first_key = work.first_key(step);
    const std::uint32_t before = (step / Tile::kStages + 1) % 2;  // of the phase before; a fresh barrier passes 1
    gpu::mbarrier_wait(shared.k_empty[stage], before);
    load_panels(shared.k[stage], maps.k, shared.k_full[stage], first_key, work.head_kv, work.batch);
    gpu::mbarrier_wait(shared.v_empty[stage], before);
    load_panels(shared.v[stage], maps.v, shared.v_full[stage], first_key, work.head_kv, work.batch);
  }
}

/// A warpgroup's 64 rows of O from its registers to device memory, by way of its rows of Q. All its products are done.
///
/// \param barrier a named barrier of the warpgroup's own
template <class Tile>
__device__ void store_rows(SpecializedShared<Tile>& shared, const Maps& maps, const Work<Tile>& work,
                           const ForwardArgs<typename Tile::T>& args, const Out<Tile>& o_reg, const float (&m)[2],
                           const float (&l)[2], int warpgroup_row, int barrier) {
  using QTile = typename SpecializedShared<Tile>::QTile;
  const int inside = static_cast<int>(threadIdx.x) % kernel::kWarpgroupThreads;
  gpu::named_barrier_sync(barrier, kernel::kWarpgroupThreads);  // nobody reads these rows of Q any more
  kernel::put_rows(shared.q, o_reg, m, l, args, work.batch, work.head, work.first_query,
                   warpgroup_row + inside / gpu::kWarpSize * 16, inside % gpu::kWarpSize);
  gpu::async_proxy_fence();
  gpu::named_barrier_sync(barrier, kernel::kWarpgroupThreads);
  if (inside == 0 && work.first_query + warpgroup_row < args.seqlen_q) {
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
      gpu::tma_store(maps.o, shared.q.at(panel * QTile::kPanel + warpgroup_row * QTile::kPanelColumns),
                     panel * QTile::kPanelColumns, work.first_query + warpgroup_row, work.head, work.batch);
    }
    gpu::tma_store_commit();
    gpu::tma_store_wait<0>();  // shared memory is the block's only as long as the block runs
  }
}

/// What all steps ask of a problem.
template <class Shared>
void require(const std::string& name, const Problem& p) {
  stage::require_hopper(name);
  stage::require_16_byte_rows(name, p);
  stage::require_tensor_maps(name, p);
  stage::require_shared_memory(name, sizeof(Shared));
}

/// A launch of one block for each Br rows of a head.
template <class Tile, class Kernel>
void launch_blocks(Kernel kernel, const ForwardArgs<typename Tile::T>& args) {
  const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
  const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
  if (blocks == 0) return;
  gpu::launch<SpecializedShared<Tile>>(kernel, {.grid = blocks, .block = Tile::kThreads}, make_maps<Tile>(args), args,
                                       query_tiles);
}

}  // namespace warp_specialization
