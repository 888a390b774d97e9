#pragma once
/// \file
/// The chapter's kernels, as the programs and tests see them.

#include <vector>

#include "chapters/09_tensor_core_backward/step1_kv_outer.cuh"
#include "chapters/09_tensor_core_backward/step2_deterministic.cuh"

namespace tensor_core_backward {

/// The two steps.
inline std::vector<stage::BackwardKernel> backward_kernels() {
  return {stage::by_head_dim({{64, kv_outer<64>()}, {128, kv_outer<128>()}}),
          stage::by_head_dim({{64, deterministic<64>()}, {128, deterministic<128>()}})};
}

}  // namespace tensor_core_backward
