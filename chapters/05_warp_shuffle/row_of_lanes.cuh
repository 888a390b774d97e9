#pragma once
/// \file
/// Lanes of a warp that share a row, and what they tell each other without shared memory.
///
/// A warp's 32 lanes are cut into groups of kCount, a power of two, kStride apart: with <4, 1> lanes 0 to 3 are the
/// first group, with <16, 2> lanes 0, 2, 4, …, 30.

#include "common/gpu/warp.cuh"

namespace warp_shuffle {

/// The group of the calling thread.
template <int kCount_, int kStride = 1>
struct Lanes {
  static constexpr int kCount = kCount_;
  static_assert((kCount & (kCount - 1)) == 0 && kCount * kStride <= gpu::kWarpSize, "groups divide a warp");
  static constexpr int kSpan = kCount * kStride;  ///< kStride groups share so many neighbouring lanes

  /// Which lane of its group a thread is, and which group of the block it belongs to.
  __device__ static int lane(int thread) { return thread / kStride % kCount; }
  __device__ static int group(int thread) { return thread / kSpan * kStride + thread % kStride; }

  /// The largest x in the group, for all of its lanes: the butterfly.
  ///
  /// In each step a lane swaps with the lane whose number differs in one bit, so that after log₂ kCount steps every
  /// lane has combined all of them, in the same tree: bit for bit the same result everywhere.
  __device__ static float max_for_all(float x) {
#pragma unroll
    for (int bit = kSpan / 2; bit >= kStride; bit /= 2) x = fmaxf(x, __shfl_xor_sync(gpu::kFullWarp, x, bit));
    return x;
  }

  /// Σ x over the group, for all of its lanes.
  __device__ static float sum_for_all(float x) {
#pragma unroll
    for (int bit = kSpan / 2; bit >= kStride; bit /= 2) x += __shfl_xor_sync(gpu::kFullWarp, x, bit);
    return x;
  }

  /// Σ x over the group, for its first lane; what the others get is of no use.
  ///
  /// In each step a lane adds what the lane `offset` above it holds. It takes as many instructions as the butterfly, so
  /// it is the better choice only where one lane wants the result.
  __device__ static float sum_for_first(float x) {
#pragma unroll
    for (int offset = kSpan / 2; offset >= kStride; offset /= 2) {
      x += __shfl_down_sync(gpu::kFullWarp, x, static_cast<unsigned>(offset), kSpan);
    }
    return x;
  }

  /// x of one lane of the group, for all of them.
  __device__ static float from_lane(float x, int lane) {
    return __shfl_sync(gpu::kFullWarp, x, lane * kStride + static_cast<int>(threadIdx.x) % kStride, kSpan);
  }
};

}  // namespace warp_shuffle
