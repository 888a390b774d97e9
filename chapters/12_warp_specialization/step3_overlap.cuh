#pragma once
/// \file
/// Step 3: a warpgroup's own softmax runs under its own product. S = Q Kᵀ of a tile is started first and O += P V of
/// the tile before it second; the softmax of the new scores begins when S is there, with O still under way.
///
///   - S, P and O are alive together: 64 + 32 + 64 registers of a lane at head_dim 128.
///   - O may be rescaled only when the product that adds to it is done: after the softmax.
///   - Everything else is step 2's.
///
/// Source: Shah et al., "FlashAttention-3" (2024), section 3.2: intra-warpgroup pipelining.

#include <string>
#include <type_traits>

#include "chapters/12_warp_specialization/step2_ping_pong.cuh"

namespace warp_specialization {

/// Br rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    overlap_kernel(const __grid_constant__ Maps maps, ForwardArgs<typename Tile::T> args, int query_tiles) {
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
    RingPosition<Tile> at;
    gpu::mbarrier_wait(shared.q_full, 0);

    float rescale[2];
    /// A tile's scores, which are there, under the mask.
    const auto mask_tile = [&](Scores<Tile>& s_reg, int step) {
      if (scale.sign != 1) kernel::apply_sign(s_reg, scale.sign);
      kernel::mask_by_bits(s_reg, args, work.first_query + warp_row, work.first_key(step), lane);
    };
    /// S of a tile and O of the one before it.
    const auto add_tile = [&](int step, auto general) {
      const RingPosition<Tile> before = at;
      at.advance();
      Scores<Tile> s_reg;
      gpu::mbarrier_wait(shared.k_full[at.stage], at.parity);
      turns.wait();
      kernel::start_scores(s_reg, shared.q, warpgroup_row, shared.k[at.stage]);
      gpu::mbarrier_wait(shared.v_full[before.stage], before.parity);  // V may still be on its way until here
      kernel::start_output(o_reg, p_reg, shared.v[before.stage]);
      turns.pass_on();
      gpu::wgmma_wait<1>();
      gpu::keep(s_reg);
      if (general) mask_tile(s_reg, step);
      float shift[2];
      kernel::find_maxima(s_reg, m, l, rescale, shift, scale);
      kernel::exponentiate<0, Tile::kEarlyKeyTiles>(s_reg, l, shift, scale);
      // Not before these, which are to run under the product and not behind the wait for it.
      if (lane == 0) gpu::mbarrier_arrive_after(shared.k_empty[at.stage], l[0] + l[1]);
      gpu::wgmma_wait<0>();
      gpu::keep(o_reg);
      if (lane == 0) gpu::mbarrier_arrive(shared.v_empty[before.stage]);
      kernel::exponentiate<Tile::kEarlyKeyTiles, Tile::kKeyTiles>(s_reg, l, shift, scale);
      kernel::scale_rows(o_reg, rescale);
      kernel::pack<T>(p_reg, s_reg);
    };
    const auto is_general = [&](int step) { return scale.sign != 1 || work.needs_mask(work.first_key(step)); };

    turns.begin();
    if (tiles > 0) {
      Scores<Tile> s_reg;
      gpu::mbarrier_wait(shared.k_full[at.stage], at.parity);
      turns.wait();
      kernel::start_scores(s_reg, shared.q, warpgroup_row, shared.k[at.stage]);
      turns.pass_on();
      gpu::wgmma_wait<0>();
      gpu::keep(s_reg);
      if (lane == 0) gpu::mbarrier_arrive(shared.k_empty[at.stage]);
      if (is_general(0)) mask_tile(s_reg, 0);
      kernel::softmax(s_reg, m, l, rescale, scale);
      kernel::pack<T>(p_reg, s_reg);
    }
    // A mask cuts tiles at either end. Between them the loop has no branch for it, around which nothing could be moved.
    for (int step = 1; step < tiles;) {
#pragma unroll 1
      for (; step < tiles && is_general(step); ++step) add_tile(step, std::true_type());
#pragma unroll 1
      for (; step < tiles && !is_general(step); ++step) add_tile(step, std::false_type());
    }
    if (tiles > 0) {
      gpu::mbarrier_wait(shared.v_full[at.stage], at.parity);
      turns.wait();
      kernel::start_output(o_reg, p_reg, shared.v[at.stage]);
      turns.pass_on();
      gpu::wgmma_wait<0>();
      gpu::keep(o_reg);
    }
    turns.end();
    store_rows(shared, maps, work, args, o_reg, m, l, warpgroup_row, 1 + Tile::kConsumers + consumer);
  }
}

/// Step 3 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel overlap() {
  using AnyTile = SpecializedTile<gpu::bf16, kHeadDim>;
  const std::string name = "overlap";
  return {.name = name,
          .summary = "a tile's softmax under the product of the tile before",
          .require = [name](const Problem& p) { require<SpecializedShared<AnyTile>>(name, p); },
          .traffic = [](const Problem& p) { return attention::tiled_forward_traffic(p, AnyTile::kBr, AnyTile::kBc); },
          .run =
              []<stage::SixteenBits T>(const ForwardArgs<T>& args, void*) {
                using Tile = SpecializedTile<T, kHeadDim>;
                launch_blocks<Tile>(overlap_kernel<Tile>, args);
              }};
}

}  // namespace warp_specialization
