#pragma once
/// \file
/// The softmax scale as the exponent's factor. Taught in chapter 05, step 3.

#include <cmath>

#include "common/gpu/launch.cuh"

namespace kernel {

/// log₂ e: exp(x) = 2^(x · kLog2E).
inline constexpr float kLog2E = 1.4426950408889634f;

/// The softmax scale as a sign, which goes into Q, and a positive factor, which goes into the exponent: the largest of
/// the unscaled scores is the largest of the scaled ones only if what follows is positive. A scale of 0 makes Q zero,
/// since a factor of 0 would turn the −∞ of a hidden key into NaN.
struct FoldedScale {
  float sign, factor_log2;
  __device__ explicit FoldedScale(float softmax_scale)
      : sign(softmax_scale > 0   ? 1.0f
             : softmax_scale < 0 ? -1.0f
                                 : 0.0f),
        factor_log2(softmax_scale == 0 ? 1.0f : fabsf(softmax_scale) * kLog2E) {}
};

}  // namespace kernel
