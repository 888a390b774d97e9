#pragma once
/// \file
/// Step 1: a warpgroup that only loads, and warpgroups that only compute.
///
///   - The producer needs an address now and then, and gives most of its registers to the others (setmaxnreg): with 240
///     instead of 168 a lane holds O, S and P without spilling.
///   - It runs ahead as far as there are places. Nobody who computes has to look after copies.
///   - Shared memory: 2 · head_dim · (Br + 4 · Bc) bytes: 160 KB at head_dim 128.
///   - Per tile: 4 · Br · Bc · head_dim FLOP, 2 · Bc · head_dim elements of K and V.
///
/// Source: Shah et al., "FlashAttention-3" (2024), section 3.1.

#include <string>

#include "chapters/12_warp_specialization/tile.cuh"

namespace warp_specialization {

/// Br rows of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    producer_consumer_kernel(const __grid_constant__ Maps maps, ForwardArgs<typename Tile::T> args, int query_tiles) {
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
    const kernel::FoldedScale scale(args.softmax_scale);
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    Out<Tile> o_reg = {};
    gpu::mbarrier_wait(shared.q_full, 0);

    for (int step = 0; step < work.tiles(); ++step) {
      const int stage = step % Tile::kStages, first_key = work.first_key(step);
      const std::uint32_t parity = step / Tile::kStages % 2;
      Scores<Tile> s_reg;
      gpu::mbarrier_wait(shared.k_full[stage], parity);
      kernel::start_scores(s_reg, shared.q, warpgroup_row, shared.k[stage]);
      gpu::wgmma_wait<0>();
      gpu::keep(s_reg);
      if (lane == 0) gpu::mbarrier_arrive(shared.k_empty[stage]);

      if (scale.sign != 1) kernel::apply_sign(s_reg, scale.sign);
      if (work.needs_mask(first_key)) {
        kernel::mask_by_bits(s_reg, args, work.first_query + warp_row, first_key, lane);
      }
      float rescale[2];
      kernel::softmax(s_reg, m, l, rescale, scale);
      kernel::scale_rows(o_reg, rescale);
      Probabilities<Tile> p_reg;
      kernel::pack<T>(p_reg, s_reg);

      gpu::mbarrier_wait(shared.v_full[stage], parity);
      kernel::start_output(o_reg, p_reg, shared.v[stage]);
      gpu::wgmma_wait<0>();
      gpu::keep(o_reg);
      if (lane == 0) gpu::mbarrier_arrive(shared.v_empty[stage]);
    }
    store_rows(shared, maps, work, args, o_reg, m, l, warpgroup_row, 1 + consumer);
  }
}

/// Step 1 for one head_dim.
template <int kHeadDim>
stage::ForwardKernel producer_consumer() {
  using AnyTile = SpecializedTile<gpu::bf16, kHeadDim>;
  const std::string name = "producer_consumer";
  return {.name = name,
          .summary = "one warpgroup loads, the others compute",
          .require = [name](const Problem& p) { require<SpecializedShared<AnyTile>>(name, p); },
          .traffic = [](const Problem& p) { return attention::tiled_forward_traffic(p, AnyTile::kBr, AnyTile::kBc); },
          .run =
              []<stage::SixteenBits T>(const ForwardArgs<T>& args, void*) {
                using Tile = SpecializedTile<T, kHeadDim>;
                launch_blocks<Tile>(producer_consumer_kernel<Tile>, args);
              }};
}

}  // namespace warp_specialization
