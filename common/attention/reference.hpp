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

/// softmax(scale · QKᵀ, masked) · V in float64, unrounded whatever the element type is. Reads q, k, v through the
/// problem's strides.
///
/// A row that sees no key gives O = 0 and LSE = −∞. Gaps between rows are never read; all inputs must be finite.
/// \throws std::invalid_argument if the problem is not valid or a span is too short for it.
ReferenceForward reference_forward(const Problem& p, std::span<const float> q, std::span<const float> k,
                                   std::span<const float> v);

/// Gradients in float64, dense, shaped as q, k and v.
struct ReferenceBackward {
  std::vector<double> dq, dk, dv;
};

/// dQ, dK, dV for given gradients of O and of LSE, in float64: P = exp(S − LSE), dP = dO·Vᵀ, D = rowsum(dO∘O) − dLSE,
/// dS = P∘(dP − D). Gradients of KV heads sum over the query heads of their group. A row that sees no key adds 0.
///
/// In 16 bits the O of that D is the stored one, rounded to the element type, for it is what a kernel is given. (Where
/// one key has nearly all the weight, dP − D is smaller than that rounding, and with another D nothing could be right.)
/// Everything else is unrounded.
///
/// \param dout laid out by the problem's dout strides
/// \param dlse dense [batch, heads_q, seqlen_q]; empty where nothing depends on the LSE
/// \throws std::invalid_argument if the problem is not valid or a span is too short for it.
ReferenceBackward reference_backward(const Problem& p, std::span<const float> q, std::span<const float> k,
                                     std::span<const float> v, std::span<const float> dout,
                                     std::span<const float> dlse = {});

/// How large the terms are that a row of a gradient adds up: the same sums with the absolute value of every elementary
/// term, then the norm over head_dim; dense, one entry a row: dq [batch, seqlen_q, heads_q], dk and dv [batch,
/// seqlen_kv, heads_kv]. What rounding may cost is measured against it, since a gradient may be 0 by cancellation (one
/// key: dP = D) where its terms are not.
///
/// With |dP| = |dO|·|V|ᵀ and |D| = rowsum(|dO|∘|O|) + |dLSE|: the row of dQ is |scale| · ‖Σⱼ P (|dP| + |D|) |kⱼ|‖₂, of
/// dK |scale| · ‖Σᵢ P (|dP| + |D|) |qᵢ|‖₂, of dV ‖Σᵢ P |dOᵢ|‖₂. A P below 2⁻¹⁰² counts as that much more: fp32 has no
/// normal numbers below 2⁻¹²⁶, so that smaller ones cannot be right to 24 bits. An entry is 0 where no pair is seen.
struct BackwardMagnitudes {
  std::vector<double> dq, dk, dv;
};
BackwardMagnitudes backward_magnitudes(const Problem& p, std::span<const float> q, std::span<const float> k,
                                       std::span<const float> v, std::span<const float> dout,
                                       std::span<const float> dlse = {});

/// The forward, its gradients and their magnitudes together: they share S, P and dP, so that one pass serves all.
struct ReferencePass {
  ReferenceForward forward;
  ReferenceBackward gradients;
  BackwardMagnitudes magnitudes;
  /// Root of the sum of squares of the terms of which a 16-bit kernel rounds a factor, P or dS, before it adds them up:
  /// of dQ |scale| · √Σⱼ dS² ‖kⱼ‖², of dK |scale| · √Σᵢ dS² ‖qᵢ‖², of dV √Σᵢ P² ‖dOᵢ‖². Roundings are as often up as
  /// down, so that together they cost about an ulp of this. A factor counts as least_normal() at least. Shaped as
  /// magnitudes; empty in fp32, where nothing is rounded on the way.
  BackwardMagnitudes rounded_terms;
};
ReferencePass reference_pass(const Problem& p, std::span<const float> q, std::span<const float> k,
                             std::span<const float> v, std::span<const float> dout, std::span<const float> dlse = {});

/// Where plain attention rounds. Equal in exact arithmetic and equally good, so neither is "the" plain error.
enum class PlainForm {
  textbook,      ///< S = scale · (q·k), P by exp, sums from the first entry to the last
  folded_scale,  ///< S = (scale · log₂e · q)·k, P by exp2, as fast kernels do; sums from the last entry to the first
};

/// The same forward in plain loops that accumulate in fp32: the yardstick of the accuracy rule (accuracy.hpp). Dense O
/// and LSE.
///
/// In 16 bits P is rounded to the element type before it meets V: exp(S − max) over its sum in the textbook form,
/// exp2(S − max) as it is in the folded one, which divides O by the sum at the end. O is rounded at the end. S, the
/// sums of P (unrounded) and LSE are fp32 whatever the elements are, and so are the values here: floats that hold what
/// the element type can.
struct PlainForward {
  std::vector<float> o;
  std::vector<float> lse;
};
PlainForward plain_forward(const Problem& p, std::span<const float> q, std::span<const float> k,
                           std::span<const float> v, PlainForm form = PlainForm::textbook);

/// The backward in plain loops that accumulate in fp32, from a given O and LSE: the yardstick of the accuracy rule.
/// Dense gradients. P = exp(S − LSE) and D = rowsum(dO∘O) − dLSE, every sum a running one. o lies by the problem's o
/// strides, dout by its dout strides, lse and dlse are dense [batch, heads_q, seqlen_q]; what a row that sees nothing
/// holds is not read.
///
/// In 16 bits P is rounded to the element type before dV = PᵀdO, and dS before dQ = scale · dS·K and
/// dK = scale · dSᵀQ. The gradients are rounded at the end. S, dP, D, and the P that dS is made of, are fp32.
struct PlainBackward {
  std::vector<float> dq, dk, dv;
};
PlainBackward plain_backward(const Problem& p, std::span<const float> q, std::span<const float> k,
                             std::span<const float> v, std::span<const float> o, std::span<const float> lse,
                             std::span<const float> dout, std::span<const float> dlse = {},
                             PlainForm form = PlainForm::textbook);

}  // namespace attention
