#pragma once
/// \file
/// What 16 bits cost: attention in float64 with one rounding at a time put into it. On the host; no kernel takes part.

#include <cstdint>
#include <vector>

#include "common/attention/element_type.hpp"

namespace tensor_cores {

inline constexpr int kErrorQueries = 8, kErrorHeadDim = 64;
/// Keys after which an online softmax rescales O.
inline constexpr int kErrorTile = 64;

/// The worst of kErrorQueries rows: ‖o − exact‖₂ / ‖exact‖₂; infinite where a number overflowed. All is float64 but for
/// what the name says. Inputs are rounded before, and exact is what follows from those.
struct RoundingErrors {
  double o = 0;          ///< O is rounded, once
  double p = 0;          ///< P = exp(S − m) ≤ 1 is, before it meets V, but not its sum
  double divided = 0;    ///< P / sum(P) is instead
  double o_kept = 0;     ///< O is after every tile of kErrorTile keys, as if it were kept in 16 bits
  double s = 0;          ///< the unscaled scores are
  double attention = 0;  ///< plain attention as the accuracy rule has it: S in fp32, P and O rounded
};

/// Normal inputs (attention::InputKind::normal) with one head of kErrorHeadDim columns.
/// \param score_factor of the scores: softmax_scale = score_factor / √head_dim
RoundingErrors rounding_errors(attention::ElementType type, int seqlen_kv, double score_factor, std::uint64_t seed);

/// What becomes of inputs far from 1.
struct RangeErrors {
  double largest_input = 0;     ///< largest |x| of Q, K and V, before they are rounded
  double largest_score = 0;     ///< largest |q·k|, likewise
  double input = 0;             ///< ‖v − v rounded‖₂ / ‖v‖₂; infinite where one of Q, K and V overflowed
  double attention = 0, s = 0;  ///< as in RoundingErrors; infinite if an input is
};

/// Normal inputs times `input_factor`, 1024 keys. The scale is 1 / (√head_dim · input_factor²), so that the weights are
/// always the same and only the sizes of the numbers differ.
RangeErrors range_errors(attention::ElementType type, double input_factor, std::uint64_t seed);

}  // namespace tensor_cores
