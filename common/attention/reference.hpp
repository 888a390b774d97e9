#pragma once
/// \file
/// Attention in float64 on Eigen: what every kernel is compared with. Any head_dim; no Eigen type shows here.

#include <span>
#include <vector>

#include "common/attention/problem.hpp"

namespace attention {

/// O and LSE of a forward pass in float64, dense: O [batch, seqlen_q, heads_q, head_dim], LSE [batch, heads_q,
/// seqlen_q].
struct ReferenceForward {
  std::vector<double> o;
  std::vector<double> lse;
};

/// softmax(scale · QKᵀ, masked) · V in float64. Reads q, k, v through the problem's strides.
///
/// A row that sees no key gives O = 0 and LSE = −∞. Gaps between rows are never read; all inputs must be finite.
/// \throws std::invalid_argument if the problem is not valid or a span is too short for it.
ReferenceForward reference_forward(const Problem& p, std::span<const float> q, std::span<const float> k,
                                   std::span<const float> v);

/// Gradients in float64, dense, shaped as q, k and v.
struct ReferenceBackward {
  std::vector<double> dq, dk, dv;
};

/// dQ, dK, dV for a given dO (laid out by the problem's o strides), from P = exp(S − LSE), dS = P∘(dP − D),
/// D = rowsum(dO∘O). Gradients of KV heads sum over the query heads of their group. A row that sees no key adds 0.
/// \throws std::invalid_argument if the problem is not valid or a span is too short for it.
ReferenceBackward reference_backward(const Problem& p, std::span<const float> q, std::span<const float> k,
                                     std::span<const float> v, std::span<const float> dout);

/// Where plain attention rounds. Equal in exact arithmetic and equally good in fp32, so neither is "the" plain error.
enum class PlainForm {
  textbook,      ///< S = scale · (q·k), P by exp, sums from the first entry to the last
  folded_scale,  ///< S = (scale · log₂e · q)·k, P by exp2, as fast kernels do; sums from the last entry to the first
};

/// The same forward in plain fp32 loops: the yardstick of the accuracy rule (accuracy.hpp). Dense O and LSE.
struct PlainForward {
  std::vector<float> o;
  std::vector<float> lse;
};
PlainForward plain_forward_f32(const Problem& p, std::span<const float> q, std::span<const float> k,
                               std::span<const float> v, PlainForm form = PlainForm::textbook);

}  // namespace attention
