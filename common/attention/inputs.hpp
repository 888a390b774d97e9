#pragma once
/// \file
/// Seeded inputs, the same on every machine. None is zero-mean: an average of V that ignores K must not look right.

#include <cstdint>
#include <string>
#include <vector>

#include "common/attention/problem.hpp"

namespace attention {

/// The families of inputs that tests and programs draw from.
enum class InputKind {
  normal,           ///< Q, K, V normal with standard deviation 1 and mean 0.3
  one_hot_v,        ///< normal Q, K; V of key j is the unit vector e_(j mod head_dim): O shows who was seen
  rising_scores,    ///< every key beats the one before it by about 0.25: each tile changes the running maximum
  falling_scores,   ///< every key loses to the one before it: the first visible key holds the maximum
  huge_scores,      ///< scaled scores of about ±1e4, key 0 negative: exp overflows unless the maximum is subtracted
  constant_scores,  ///< Q = 0, so that P is uniform over the visible keys
};

std::string name(InputKind kind);

/// Q, K, V laid out by the problem's strides; gaps between rows hold NaN. Values depend on sizes, scale and seed but
/// not on strides or mask, so that all layouts of one problem hold equal values (rows that share elements, stride 0,
/// hold what the last of them drew).
struct Inputs {
  std::vector<float> q, k, v;
};
Inputs make_inputs(const Problem& p, InputKind kind, std::uint64_t seed);

/// A normal array (mean 0.3, standard deviation 1) for dO, laid out by the problem's dout strides; gaps hold NaN, and
/// rows that share elements (stride 0: an expanded gradient) what the last of them drew.
std::vector<float> make_output_gradient(const Problem& p, std::uint64_t seed);

}  // namespace attention
