#pragma once
/// \file
/// Step 3: no atomics, and the same bits in every run. Both loops, each for the gradients that it can keep in
/// registers.
///
/// Step 2's kernel without dQ, then step 1's without dK and dV. S and dP are computed twice: seven products in place of
/// five, and no order is left to chance.
///
/// The other ways cost memory or time, too: every block may write a dQ of its own, ⌈N / Bc⌉ of them, to be added up in
/// order by another kernel; or the blocks may wait for each other, so that they add in a fixed order.
///
/// Grid, registers, shared memory: those of the two kernels. Bytes: the sum of both without atomics. FLOPs: 14 · Br ·
/// Bc · head_dim a tile.

#include "chapters/06_recompute_backward/step1_q_outer.cuh"
#include "chapters/06_recompute_backward/step2_kv_outer.cuh"

namespace recompute_backward {

/// Step 3 for one head_dim.
template <int kHeadDim>
stage::BackwardKernel deterministic() {
  using Tile = BackwardTile<kHeadDim>;
  const std::string name = "deterministic";
  return {.name = name,
          .summary = "steps 2 and 1 in turn, each without its atomics",
          .require = [name](const Problem& p) { require<Tile>(name, p); },
          .workspace_bytes = d_bytes,
          .traffic =
              [](const Problem& p) {
                return row_sums_traffic(p, false) + kv_outer_traffic<Tile, false>(p) + q_outer_traffic<Tile, false>(p);
              },
          .run =
              [](const BackwardArgs<float>& args, void* workspace) {
                float* d_gmem = static_cast<float*>(workspace);
                launch_row_sums<kHeadDim>(args, d_gmem, false);
                launch_kv_outer<Tile, false>(args, d_gmem);
                launch_q_outer<Tile, false>(args, d_gmem);
              }};
}

}  // namespace recompute_backward
