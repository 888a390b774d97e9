#pragma once
/// \file
/// Step 2: the warpgroups that compute take turns. While one has its softmax to do, the tensor cores have the other's
/// two products, and the other way round: left to themselves, both wait for the tensor cores, then both for the
/// exponentials.
///
///   - A turn is O += P V of one tile and S = Q Kᵀ of the next, started together. Each warpgroup has a named barrier
///   that
///     opens its turn; the one before it arrives there when its own products are in the queue.
///   - Everything else is step 1's.
///
/// Source: Shah et al., "FlashAttention-3" (2024), section 3.1: ping-pong scheduling.

#include <string>

#include "chapters/12_warp_specialization/tile.cuh"

namespace warp_specialization {

/// Whose turn it is to start products: the consumers', one after the other. Barriers 1 to kConsumers.
template <class Tile>
struct Turns {
  int consumer;

  static constexpr int kThreads = 2 * kernel::kWarpgroupThreads;  ///< that meet: who waits and who comes before
  /// The first turn is the first one's: the last one opens it.
  __device__ void begin() const {
    if (consumer == Tile::kConsumers - 1) gpu::named_barrier_arrive(1, kThreads);
  }
  __device__ void wait() const { gpu::named_barrier_sync(1 + consumer, kThreads); }
  __device__ void pass_on() const { gpu::named_barrier_arrive(1 + (consumer + 1) % Tile::kConsumers, kThreads); }
  /// The last turn of all opens one more for the first one, which takes it.
  __device__ void end() const {
    if (consumer == 0) wait();
  }
};

/// Br rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    ping_pong_kernel(const __grid_constant__ Maps maps, ForwardArgs<typename Tile::T> args, int query_tiles) {
  using T = typename Tile::T;
  auto& shared = gpu::shared_memory<SpecializedShared<Tile>>();
  const Work<Tile> work = work_of_block<Tile>(args, query_tiles);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) init_barriers(shared);
  __syncthreads();

  const int warpgroup = gpu::warp_uniform(thread / kernel::kWarpgroupThreads);
  if (warpgroup == 0) {
    gpu::release_registers<Tile::kProducerRegisters>();
    if (gpu::warp_uniform(thread / gpu::kWarpSize) == 0 && gpu::elect_one()) produce(shared, maps, work);
  } else {
    gpu::take_registers<Tile::kConsumerRegisters>();
    const int consumer = warpgroup - 1, lane = thread % gpu::kWarpSize;
    const int warpgroup_row = consumer * kernel::kWarpgroupRows;
    const int warp_row = thread / gpu::kWarpSize * 16 - kernel::kWarpgroupRows;
    const int tiles = work.tiles();
    const kernel::FoldedScale scale(args.softmax_scale);
    const Turns<Tile> turns{consumer};
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    Out<Tile> o_reg = {};
    Probabilities<Tile> p_reg;
    const auto parity_of = [](int step) { return static_cast<std::uint32_t>(step / Tile::kStages % 2); };
    gpu::mbarrier_wait(shared.q_full, 0);

    /// P of a tile's scores, which are there.
    const auto finish_scores = [&](Scores<Tile>& s_reg, int step) {
      const int first_key = work.first_key(step);
      if (scale.sign != 1) kernel::apply_sign(s_reg, scale.sign);
      if (work.needs_mask(first_key)) {
        kernel::mask_by_bits(s_reg, args, work.first_query + warp_row, first_key, lane);
      }
      float rescale[2];
      kernel::softmax(s_reg, m, l, rescale, scale);
      kernel::scale_rows(o_reg, rescale);
      kernel::pack<T>(p_reg, s_reg);
    };

    turns.begin();
    if (tiles > 0) {
      Scores<Tile> s_reg;
      gpu::mbarrier_wait(shared.k_full[0], 0);
      turns.wait();
      kernel::start_scores(s_reg, shared.q, warpgroup_row, shared.k[0]);
      turns.pass_on();
      gpu::wgmma_wait<0>();
      gpu::keep(s_reg);
      if (lane == 0) gpu::mbarrier_arrive(shared.k_empty[0]);
      finish_scores(s_reg, 0);
    }
    for (int step = 1; step < tiles; ++step) {
      const int stage = step % Tile::kStages, stage_before = (step - 1) % Tile::kStages;
      Scores<Tile> s_reg;
      gpu::mbarrier_wait(shared.v_full[stage_before], parity_of(step - 1));
      gpu::mbarrier_wait(shared.k_full[stage], parity_of(step));
      turns.wait();
      kernel::start_output(o_reg, p_reg, shared.v[stage_before]);
      kernel::start_scores(s_reg, shared.q, warpgroup_row, shared.k[stage]);
      turns.pass_on();
      gpu::wgmma_wait<0>();
      gpu::keep(o_reg);
      gpu::keep(s_reg);
      if (lane == 0) gpu::mbarrier_arrive(shared.v_empty[stage_before]);
      if (lane == 0) gpu::mbarrier_arrive(shared.k_empty[stage]);
      finish_scores(s_reg, step);
    }
    if (tiles > 0) {
      const int stage = (tiles - 1) % Tile::kStages;
      gpu::mbarrier_wait(shared.v_full[stage], parity_of(tiles - 1));
      turns.wait();
      kernel::start_output(o_reg, p_reg, shared.v[stage]);
      turns.pass_on();
      gpu::wgmma_wait<0>();
      gpu::keep(o_reg);
    }
    turns.end();
    store_rows(shared, maps, work, args, o_reg, m, l, warpgroup_row, 1 + Tile::kConsumers + consumer);
  }
}

/// Step 2 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel ping_pong() {
  using AnyTile = SpecializedTile<gpu::bf16, kHeadDim>;
  const std::string name = "ping_pong";
  return {.name = name,
          .summary = "the warpgroups that compute take turns on the tensor cores",
          .require = [name](const Problem& p) { require<SpecializedShared<AnyTile>>(name, p); },
          .traffic = [](const Problem& p) { return attention::tiled_forward_traffic(p, AnyTile::kBr, AnyTile::kBc); },
          .run =
              []<stage::SixteenBits T>(const ForwardArgs<T>& args, void*) {
                using Tile = SpecializedTile<T, kHeadDim>;
                launch_blocks<Tile>(ping_pong_kernel<Tile>, args);
              }};
}

}  // namespace warp_specialization
