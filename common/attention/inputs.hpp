#pragma once
/// \file
/// Seeded inputs, the same on every machine. None is zero-mean: an average of V that ignores K must not look right.
///
/// Every element is one that the problem's element type holds, so that a kernel in 16 bits and the reference see the
/// same numbers: those of the fp32 problem, rounded, unless a kind below says otherwise.

#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/problem.hpp"

namespace attention {

/// The families of inputs that tests and programs draw from.
enum class InputKind {
  normal,     ///< Q, K, V normal with standard deviation 1 and mean 0.3
  one_hot_v,  ///< normal Q, K; V of key j is the unit vector e_(j mod head_dim): O shows who was seen
  /// Every key beats the one before it by about 0.25: each tile changes the running maximum. In 16 bits no key loses to
  /// the one before it, and a score is off that of fp32 by an ulp of its own size at most: steps are about 0.25 within
  /// 2000 keys of the middle in fp16, within 250 in bf16. Farther out the step between neighbours is larger or none,
  /// and the scores rise as steeply on the whole.
  rising_scores,
  falling_scores,  ///< the same with every key losing to the one before it: the first visible key holds the maximum
  /// Scaled scores of about ±1e4, key 0 negative: exp overflows unless the maximum is subtracted. Keys of the same sign
  /// differ by a few units of score. In 16 bits the even columns of K carry the ±1e4 and the odd ones the difference,
  /// or the sum of both would lose it to rounding; with a head_dim of 1 there is none.
  huge_scores,
  constant_scores,  ///< Q = 0, so that P is uniform over the visible keys
};

std::string name(InputKind kind);

/// Q, K, V as floats that hold what the element type holds, laid out by the problem's strides; gaps between rows hold
/// NaN. Values depend on sizes, scale, element type and seed but not on strides or mask, so that all layouts of one
/// problem hold equal values (rows that share elements, stride 0, hold what the last of them drew).
///
/// A very small softmax_scale needs a large K for large scores. Where fp16 could not hold it, Q is larger by a power of
/// two and K smaller.
/// \throws std::invalid_argument if the problem is not valid, or if fp16 could hold neither.
struct Inputs {
  std::vector<float> q, k, v;
};
Inputs make_inputs(const Problem& p, InputKind kind, std::uint64_t seed);

/// A normal array (mean 0.3, standard deviation 1) for dO, rounded to the element type and laid out by the problem's
/// dout strides; gaps hold NaN, and rows that share elements (stride 0: an expanded gradient) what the last of them
/// drew.
std::vector<float> make_output_gradient(const Problem& p, std::uint64_t seed);

}  // namespace attention
