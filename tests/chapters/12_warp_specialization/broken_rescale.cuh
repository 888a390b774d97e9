#pragma once
/// \file
/// Step 1's loop with lazy maxima, for the sake of its faults: a fault is a template argument; without one it is right.

#include <string>

#include "chapters/12_warp_specialization/tile.cuh"

namespace broken_rescale {

enum class Fault {
  none,
  never_moves,     ///< the threshold is ignored: m stays where the first tile left it
  o_not_rescaled,  ///< m moves and l with it, O stays in the units of the old one
  l_not_rescaled,  ///< the other way round
  moves_unnoticed  ///< below the threshold nothing is rescaled, but the new maximum is subtracted
};

/// \return whether O is to be rescaled
template <Fault kFault, int kKeyTiles>
__device__ bool find_maxima(const float (&s_reg)[kKeyTiles][4], float (&m)[2], float (&l)[2], float (&rescale)[2],
                            float (&shift)[2], const kernel::FoldedScale& scale) {
  const float m_before[2] = {m[0], m[1]}, l_before[2] = {l[0], l[1]};
  bool moved = kernel::find_maxima_lazily(s_reg, m, l, rescale, shift, scale);
  const bool first = !__any_sync(gpu::kFullWarp, m_before[0] != -INFINITY || m_before[1] != -INFINITY);
  if (kFault == Fault::never_moves && !first) {
    for (int half = 0; half < 2; ++half) {
      m[half] = m_before[half], l[half] = l_before[half];
      shift[half] = m[half] == -INFINITY ? 0.0f : m[half] * scale.factor_log2;
    }
    moved = false;
  }
  if (kFault == Fault::o_not_rescaled) moved = false;
  if (kFault == Fault::l_not_rescaled)
    for (int half = 0; half < 2; ++half) l[half] = l_before[half];
  if (kFault == Fault::moves_unnoticed && !moved) kernel::find_maxima(s_reg, m, l, rescale, shift, scale);
  if (kFault == Fault::moves_unnoticed && !moved)
    for (int half = 0; half < 2; ++half) l[half] = l_before[half];
  return moved;
}

template <class Tile, Fault kFault>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    broken_kernel(const __grid_constant__ warp_specialization::Maps maps, attention::ForwardArgs<typename Tile::T> args,
                  int query_tiles) {
  using T = typename Tile::T;
  auto& shared = gpu::shared_memory<warp_specialization::SpecializedShared<Tile>>();
  const auto work = warp_specialization::work_of_block<Tile>(args, query_tiles);
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
    warp_specialization::Out<Tile> o_reg = {};
    gpu::mbarrier_wait(shared.q_full, 0);

    for (int step = 0; step < work.tiles(); ++step) {
      const int stage = step % Tile::kStages, first_key = work.first_key(step);
      const std::uint32_t parity = step / Tile::kStages % 2;
      warp_specialization::Scores<Tile> s_reg;
      gpu::mbarrier_wait(shared.k_full[stage], parity);
      kernel::start_scores(s_reg, shared.q, warpgroup_row, shared.k[stage]);
      gpu::wgmma_wait<0>();
      gpu::keep(s_reg);
      if (lane == 0) gpu::mbarrier_arrive(shared.k_empty[stage]);
      if (scale.sign != 1) kernel::apply_sign(s_reg, scale.sign);
      kernel::mask_by_bits(s_reg, args, work.first_query + warp_row, first_key, lane);

      float rescale[2], shift[2];
      const bool moved = find_maxima<kFault>(s_reg, m, l, rescale, shift, scale);
      kernel::exponentiate<0, Tile::kKeyTiles>(s_reg, l, shift, scale);
      if (moved) kernel::scale_rows(o_reg, rescale);
      warp_specialization::Probabilities<Tile> p_reg;
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

template <Fault kFault>
stage::ForwardKernel kernel_with(const std::string& name) {
  constexpr int kHeadDim = 64;
  using AnyTile = warp_specialization::SpecializedTile<gpu::bf16, kHeadDim>;
  return {
      .name = name,
      .summary = name,
      .require =
          [name](const attention::Problem& p) {
            stage::require_head_dim(name, p, {kHeadDim});
            warp_specialization::require<warp_specialization::SpecializedShared<AnyTile>>(name, p);
          },
      .traffic =
          [](const attention::Problem& p) { return attention::tiled_forward_traffic(p, AnyTile::kBr, AnyTile::kBc); },
      .run =
          []<stage::SixteenBits T>(const attention::ForwardArgs<T>& args, void*) {
            using Tile = warp_specialization::SpecializedTile<T, kHeadDim>;
            warp_specialization::launch_blocks<Tile>(broken_kernel<Tile, kFault>, args);
          }};
}

}  // namespace broken_rescale
