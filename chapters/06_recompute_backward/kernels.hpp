#pragma once
/// \file
/// The chapter's kernels, as the programs and tests see them.

#include <vector>

#include "chapters/06_recompute_backward/step0_stored_p.cuh"
#include "chapters/06_recompute_backward/step1_q_outer.cuh"
#include "chapters/06_recompute_backward/step2_kv_outer.cuh"
#include "chapters/06_recompute_backward/step3_deterministic.cuh"
#include "chapters/06_recompute_backward/stored_p_fused.cuh"

namespace recompute_backward {

/// The four steps; in front of the last the variant of step 2 that stores P.
inline std::vector<stage::BackwardKernel> backward_kernels() {
  return {stage::by_head_dim({{32, stored_p<32>()}, {64, stored_p<64>()}, {128, stored_p<128>()}}),
          stage::by_head_dim({{32, q_outer<32>()}, {64, q_outer<64>()}, {128, q_outer<128>()}}),
          stage::by_head_dim({{32, kv_outer<32>()}, {64, kv_outer<64>()}, {128, kv_outer<128>()}}),
          stage::by_head_dim({{32, stored_p_fused<32>()}, {64, stored_p_fused<64>()}, {128, stored_p_fused<128>()}}),
          stage::by_head_dim({{32, deterministic<32>()}, {64, deterministic<64>()}, {128, deterministic<128>()}})};
}

}  // namespace recompute_backward
