#pragma once
/// \file
/// The chapter's kernels, as the programs and tests see them.

#include <vector>

#include "chapters/12_warp_specialization/step1_producer_consumer.cuh"
#include "chapters/12_warp_specialization/step2_ping_pong.cuh"
#include "chapters/12_warp_specialization/step3_overlap.cuh"
#include "chapters/12_warp_specialization/step4_persistent.cuh"

namespace warp_specialization {

/// The steps.
inline std::vector<stage::ForwardKernel> warp_specialization_kernels() {
  return {stage::by_head_dim(
              {{64, producer_consumer<64>()}, {128, producer_consumer<128>()}, {256, producer_consumer<256>()}}),
          stage::by_head_dim({{64, ping_pong<64>()}, {128, ping_pong<128>()}, {256, ping_pong<256>()}}),
          stage::by_head_dim({{64, overlap<64>()}, {128, overlap<128>()}, {256, overlap<256>()}}),
          stage::by_head_dim({{64, persistent<64>()}, {128, persistent<128>()}, {256, persistent<256>()}})};
}

}  // namespace warp_specialization
