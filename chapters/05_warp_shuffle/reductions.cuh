#pragma once
/// \file
/// The two ways to add up over lanes, step by step, to look at: what each lane holds when.
///
/// Grid: one block of one warp. Source: CUDA C++ Programming Guide, "Warp Shuffle Functions".

#include "chapters/05_warp_shuffle/row_of_lanes.cuh"
#include "common/gpu/launch.cuh"

namespace warp_shuffle {

/// Lanes of the group, and the steps that a sum over them takes.
inline constexpr int kShown = 8, kSteps = 3;
using ShownLanes = Lanes<kShown>;

/// What 8 lanes hold before the first and after each step, and what the chapter's functions make of it at once.
struct Reductions {
  float butterfly[kSteps + 1][kShown], for_all[kShown];
  float down[kSteps + 1][kShown], for_first[kShown];
};

/// One warp, of which the first group is recorded. Lane n starts with n + 1.
__global__ void reductions_kernel(Reductions* shown_gmem) {
  const int lane = static_cast<int>(threadIdx.x);
  const float start = static_cast<float>(ShownLanes::lane(lane) + 1);
  const bool shown = lane < kShown;
  float butterfly = start, down = start;
  for (int step = 0, bit = kShown / 2; step <= kSteps; ++step, bit /= 2) {
    if (shown) shown_gmem->butterfly[step][lane] = butterfly;
    if (shown) shown_gmem->down[step][lane] = down;
    if (step == kSteps) break;
    butterfly += __shfl_xor_sync(gpu::kFullWarp, butterfly, bit);
    down += __shfl_down_sync(gpu::kFullWarp, down, static_cast<unsigned>(bit), kShown);
  }
  const float for_all = ShownLanes::sum_for_all(start);
  const float for_first = ShownLanes::sum_for_first(start);
  if (shown) shown_gmem->for_all[lane] = for_all;
  if (shown) shown_gmem->for_first[lane] = for_first;
}

}  // namespace warp_shuffle
