#pragma once
/// \file
/// Shared memory of a block that stays, and its producer: step 4.

#include <cstdint>

#include "chapters/12_warp_specialization/schedule.cuh"

namespace warp_specialization {

template <class Tile>
struct PersistentShared {
  using QTile = kernel::PanelTile<typename Tile::T, kernel::kWarpgroupRows, Tile::kHeadDim>;
  using KTile = kernel::PanelTile<typename Tile::T, Tile::kBc, Tile::kHeadDim>;
  static constexpr bool kOwnO = Tile::kHeadDim < 256;
  QTile q[Tile::kConsumers * (kOwnO ? 2 : 1)];  ///< and O
  KTile k[Tile::kStages], v[Tile::kStages];
  gpu::Mbarrier q_full[Tile::kConsumers], q_empty[Tile::kConsumers];
  gpu::Mbarrier k_full[Tile::kStages], v_full[Tile::kStages], k_empty[Tile::kStages], v_empty[Tile::kStages];
  Work<Tile> work[Tile::kConsumers];  ///< comes with Q

  __device__ QTile& o(int consumer) { return q[consumer + (kOwnO ? Tile::kConsumers : 0)]; }
};

/// The producer's thread, to the end of all work.
template <class Tile>
__device__ void produce_all(PersistentShared<Tile>& shared, const Maps& maps, const ForwardArgs<typename Tile::T>& args,
                            const Schedule& schedule) {
  RingPosition<Tile> at;
  std::uint32_t round = 0;
  for (int index = schedule.first(); index < schedule.works; index = schedule.next(index), round ^= 1) {
    const Work<Tile> work = schedule.work<Tile>(args, index);
    const int tiles = work.tiles();
    const auto load = [&](typename PersistentShared<Tile>::KTile* places, const gpu::TensorMap& map,
                          gpu::Mbarrier* full, gpu::Mbarrier* empty, int step) {
      gpu::mbarrier_wait(empty[at.stage], at.parity ^ 1);
      load_panels(places[at.stage], map, full[at.stage], work.first_key(step), work.head_kv, work.batch);
    };
    if (tiles > 0) load(shared.k, maps.k, shared.k_full, shared.k_empty, 0);
#pragma unroll 1
    for (int consumer = 0; consumer < Tile::kConsumers; ++consumer) {
      gpu::mbarrier_wait(shared.q_empty[consumer], round ^ 1);
      shared.work[consumer] = work;
      load_panels(shared.q[consumer], maps.q, shared.q_full[consumer],
                  work.first_query + consumer * kernel::kWarpgroupRows, work.head, work.batch);
    }
    for (int step = 0; step < tiles; ++step) {
      if (step > 0) load(shared.k, maps.k, shared.k_full, shared.k_empty, step);
      load(shared.v, maps.v, shared.v_full, shared.v_empty, step);
      at.advance();
    }
  }
  for (int consumer = 0; consumer < Tile::kConsumers; ++consumer) {
    gpu::mbarrier_wait(shared.q_empty[consumer], round ^ 1);
    shared.work[consumer] = Work<Tile>::none();
    gpu::mbarrier_arrive(shared.q_full[consumer]);
  }
}

}  // namespace warp_specialization
