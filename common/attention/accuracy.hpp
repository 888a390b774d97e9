#pragma once
/// \file
/// When a result counts as right. One rule for all chapters.

#include <span>
#include <string>
#include <vector>

#include "common/attention/problem.hpp"
#include "common/attention/reference.hpp"

namespace attention {

/// Worst errors over all rows of an O and its LSE.
///
/// In 16 bits neither ‖ref‖₂ nor max |V| counts for less than if every element were least_normal(): below it a type's
/// numbers are equally far apart, so that an ulp of that is what rounding costs, however small the row is. Measured
/// against itself a tiny row of fp16 would be off by whole percents, and, being the worst, excuse all others.
struct ForwardError {
  double relative = 0;  ///< max over rows of ‖o − ref‖₂ / ‖ref‖₂; a row whose reference is 0 must be exactly 0
  double absolute = 0;  ///< max over rows of max|o − ref| / max |V| over the keys the row sees
  double lse = 0;       ///< max over rows of |lse − ref| / max(1, |ref|); −∞ must meet −∞
};

/// Measures o (laid out by the problem's o strides) and lse (dense) against the reference. Any NaN gives an infinite
/// error.
ForwardError forward_error(const Problem& p, std::span<const float> o, std::span<const float> lse,
                           std::span<const float> v, const ReferenceForward& reference);

/// Outcome of the accuracy rule.
struct Verdict {
  bool right = false;
  ForwardError error;    ///< of the kernel
  ForwardError allowed;  ///< 2 × the error of plain attention in the same precision + 2 ulps
  std::string sentence;  ///< "right", or what is wrong and where the worst row is
};

/// What a problem's results are measured against. Made once, it serves every kernel that is run on the same inputs.
struct ForwardYardstick {
  ReferenceForward reference;  ///< float64
  /// max |V| of the keys that each query sees, 0 where it sees none; dense [batch, heads_q, seqlen_q].
  std::vector<double> largest_v;
  ForwardError plain;    ///< of plain_forward against the reference, the worse of its two forms
  ForwardError allowed;  ///< what a kernel may have: 2 × plain + 2 ulps (judge_forward)
};

/// Computes the float64 reference and the plain forward, in the problem's element type, in both forms. In 16 bits q, k
/// and v must hold what the type holds (make_inputs, or decode): they are not rounded here.
/// \throws std::invalid_argument if the problem is not valid or a span is too short for it.
ForwardYardstick make_forward_yardstick(const Problem& p, std::span<const float> q, std::span<const float> k,
                                        std::span<const float> v);

/// The largest `allowed` that still judges anything. Scores of 10⁵ leave fp32 two digits of exp(S − LSE), and scores of
/// 10⁷ none: there any gradient would pass, or a right kernel fail.
inline constexpr double kLargestAllowedError = 0.1;

/// Right means: each of the three errors is at most twice that of plain attention in the same input and accumulation
/// precision, plus 2 ulps of the output type: 2 · 2⁻²³ for fp32 and for every LSE, 2 · 2⁻¹⁰ for an O in fp16, 2 · 2⁻⁷
/// in bf16. Inputs must be finite; a NaN in o or lse is never right. o holds its elements as floats, whatever type they
/// were stored in, and is laid out by the problem's o strides (gaps are not looked at); lse is dense.
///
/// In 16 bits an LSE may be off by head_dim / 8 · 2⁻²³ · |scale| · ‖q‖ · ‖k‖ more: what tensor cores lose of a score,
/// which cut sums off where plain attention rounds them.
///
/// In 16 bits nothing is right where more than kLargestAllowedError · max |V| would have to be allowed, as when plain
/// attention leaves the range of fp16.
Verdict judge_forward(const Problem& p, std::span<const float> o, std::span<const float> lse,
                      const ForwardYardstick& yardstick);

/// The same, with a yardstick made for this one call.
Verdict judge_forward(const Problem& p, std::span<const float> q, std::span<const float> k, std::span<const float> v,
                      std::span<const float> o, std::span<const float> lse);

/// Worst errors over the rows of dQ, dK and dV: ‖x − ref‖₂ over the row's entry in BackwardYardstick::magnitudes. A row
/// whose magnitude is 0 must be exactly 0.
struct BackwardError {
  double dq = 0, dk = 0, dv = 0;
  double largest() const;
};

/// Outcome of the accuracy rule for gradients.
struct BackwardVerdict {
  bool right = false;
  BackwardError error;    ///< of the kernel
  BackwardError allowed;  ///< as in the yardstick
  /// "right", or what is wrong, where the worst row is, and which gradients are right: a hint at the cause.
  std::string sentence;
};

/// What a problem's gradients are measured against, and the O and LSE that its kernels are given.
///
/// fp32: an error is measured against the terms of its row, reference.hpp's BackwardMagnitudes, and allowed are 2 ×
/// plain and 2 ulps · exponent. These ulps are those of the numbers in P = exp(S − LSE), where these are larger than 1:
/// P is as far off, in proportion, as they are in their last places. The forward divides that away, the backward
/// cannot, and over few rows plain attention may escape it by luck (one key: S = LSE to the bit).
///
/// 16 bits: the terms are computed in fp32 still, and may be off by the same 2⁻²³ · exponent of their magnitude. Two
/// ulps of the element type, 2¹³ or 2¹⁶ times as large, may not be taken of it: among a thousand keys, terms of either
/// sign add up to less than that, so that a gradient of zeros would pass. They are due where a rounding to the element
/// type happens, in P and dS (ReferencePass::rounded_terms) and in the gradient itself. So allowed are 2 × plain + 2
/// ulps of
///
///     max(‖ref‖₂, rounded terms, √head_dim · least_normal) + exponent · (2⁻²³ / ulp) · terms,
///
/// which is the row's entry in magnitudes.
struct BackwardYardstick {
  std::vector<float> o;    ///< the reference's O in the element type, by the problem's o strides; gaps hold NaN
  std::vector<float> lse;  ///< the reference's LSE in fp32
  ReferenceBackward reference;
  BackwardMagnitudes magnitudes;  ///< what the errors are measured against, an entry a row; 0 where the terms are 0
  double exponent = 1;  ///< max(1, |LSE|, |scale| · ‖q‖ · ‖k‖), the largest of all rows and pairs that are seen
  BackwardError plain;    ///< of plain_backward on that O and LSE, the worse of its two forms
  BackwardError allowed;  ///< 2 × plain + 2 ulps; in fp32 these times the exponent
};

/// The entry of BackwardYardstick::magnitudes for a row of a gradient.
///
/// \param terms its BackwardMagnitudes
/// \param rounded_terms its ReferencePass::rounded_terms; not looked at in fp32
/// \param norm ‖ref‖₂; not looked at in fp32
double backward_magnitude(const Problem& p, double terms, double rounded_terms, double norm, double exponent);

/// BackwardYardstick::allowed for one gradient, from the error of plain attention.
double allowed_backward_error(const Problem& p, double plain, double exponent);

/// Computes all of it. \throws std::invalid_argument if the problem is not valid or a span is too short for it.
BackwardYardstick make_backward_yardstick(const Problem& p, std::span<const float> q, std::span<const float> k,
                                          std::span<const float> v, std::span<const float> dout,
                                          std::span<const float> dlse = {});

/// Where to look, from which of the three gradients are wrong (at least one is).
std::string suspicion(bool dq_wrong, bool dk_wrong, bool dv_wrong);

/// Whether gradients, laid out by the problem's dq, dk and dv strides (gaps are not looked at), are right: each of the
/// three errors within what is allowed, and that, and what the exponent costs in fp32, at most kLargestAllowedError.
/// NaN is never right. The gradients are given as floats, whatever type they were stored in.
BackwardVerdict judge_backward(const Problem& p, std::span<const float> dq, std::span<const float> dk,
                               std::span<const float> dv, const BackwardYardstick& yardstick);

}  // namespace attention
