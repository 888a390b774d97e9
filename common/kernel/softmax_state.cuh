#pragma once
/// \file
/// What is worth knowing about a set of scores: (m, ℓ), and with values attached, (m, ℓ, o).
///
///     m = max s        ℓ = Σ exp(s − m)        o = Σ exp(s − m) · v
///
/// `merge` makes the state of a union out of the states of two disjoint sets. It is associative and commutative (up to
/// rounding), and the empty state (−∞, 0, 0) is its neutral element: a commutative monoid. So the keys of a row may be
/// cut into any pieces, on any number of threads, blocks or machines, and put together in any order.
///
/// (O, LSE) = (o / ℓ, m + ln ℓ) is the same state, normalised; the conversions are here, both ways.
///
/// Everything runs on the host and in kernels. Sources: Milakov and Gimelshein, "Online normalizer calculation for
/// softmax" (2018), section 3.1; Ye et al., "FlashInfer" (2025), for the algebra of (O, LSE).

#include <cmath>

#include "common/gpu/launch.cuh"

namespace kernel {

/// Maximum and sum of a set of scores. As constructed it belongs to the empty set.
///
/// A set that holds a score has ℓ ≥ 1, because its maximum adds exp(0). So ℓ = 0 means: empty.
struct SoftmaxState {
  float m = -INFINITY;  ///< maximum; truly −∞ while empty: any finite stand-in would beat low scores
  float l = 0;          ///< Σ exp(s − m)

  /// The state of one score. A score of −∞ is a hidden one: it gives the empty state.
  __host__ __device__ static SoftmaxState of(float score) {
    SoftmaxState state;
    state.m = score;
    state.l = score == -INFINITY ? 0.0f : 1.0f;
    return state;
  }
};

/// exp(m_old − m_new), the factor that brings sums taken under m_old under m_new ≥ m_old.
///
/// Equal maxima are asked for first. It saves an exponential, and it is the guard for two empty states: −∞ − −∞ is NaN,
/// and one NaN in a row's sum is the end of the row.
__host__ __device__ inline float rescale(float m_old, float m_new) {
  return m_old == m_new ? 1.0f : expf(m_old - m_new);
}

/// The state of the union of two disjoint sets of scores.
__host__ __device__ inline SoftmaxState merge(const SoftmaxState& a, const SoftmaxState& b) {
  SoftmaxState merged;
  merged.m = fmaxf(a.m, b.m);
  merged.l = a.l * rescale(a.m, merged.m) + b.l * rescale(b.m, merged.m);
  return merged;
}

/// LSE = ln Σ exp(s) = m + ln ℓ; −∞ for the empty set.
__host__ __device__ inline float log_sum_exp(const SoftmaxState& state) {
  return state.l == 0 ? -INFINITY : state.m + logf(state.l);
}

/// 1 / ℓ, the factor that normalises; 0 for the empty set, whose softmax is 0 everywhere.
__host__ __device__ inline float inverse_sum(const SoftmaxState& state) { return state.l == 0 ? 0.0f : 1 / state.l; }

/// Adds set b to set a, values included: o_a becomes Σ exp(s − m) · v over both. For an o of any length.
__host__ __device__ inline void merge_into(SoftmaxState& a, float* o_a, const SoftmaxState& b, const float* o_b,
                                           int head_dim) {
  const SoftmaxState merged = merge(a, b);
  const float keep = rescale(a.m, merged.m);
  const float add = rescale(b.m, merged.m);
  for (int c = 0; c < head_dim; ++c) o_a[c] = o_a[c] * keep + o_b[c] * add;
  a = merged;
}

/// A set of scores with a value vector each. As constructed it is the empty one.
template <int kHeadDim>
struct AttentionState : SoftmaxState {
  float o[kHeadDim] = {};  ///< Σ exp(s − m) · v, not yet divided by ℓ

  /// The state of one key: its score and its row of V, [kHeadDim].
  __host__ __device__ static AttentionState of(float score, const float* v) {
    AttentionState state;
    static_cast<SoftmaxState&>(state) = SoftmaxState::of(score);
    for (int c = 0; c < kHeadDim; ++c) state.o[c] = state.l == 0 ? 0.0f : v[c];
    return state;
  }
};

/// The state of the union of two disjoint sets of keys.
template <int kHeadDim>
__host__ __device__ AttentionState<kHeadDim> merge(AttentionState<kHeadDim> a, const AttentionState<kHeadDim>& b) {
  merge_into(a, a.o, b, b.o, kHeadDim);
  return a;
}

/// An attention result as kernels write it: the state, normalised. As constructed it is that of a row that sees
/// nothing.
template <int kHeadDim>
struct NormalizedState {
  float lse = -INFINITY;   ///< m + ln ℓ
  float o[kHeadDim] = {};  ///< softmax(s) · V
};

/// (m, ℓ, o) → (O, LSE).
template <int kHeadDim>
__host__ __device__ NormalizedState<kHeadDim> normalize(const AttentionState<kHeadDim>& state) {
  NormalizedState<kHeadDim> result;
  result.lse = log_sum_exp(state);
  const float factor = inverse_sum(state);
  for (int c = 0; c < kHeadDim; ++c) result.o[c] = state.o[c] * factor;
  return result;
}

/// (O, LSE) → (m, ℓ, o). What m was is lost and not needed: (LSE, 1, O) stands for the same sums.
template <int kHeadDim>
__host__ __device__ AttentionState<kHeadDim> from_normalized(const NormalizedState<kHeadDim>& result) {
  AttentionState<kHeadDim> state;
  state.m = result.lse;
  state.l = result.lse == -INFINITY ? 0.0f : 1.0f;
  for (int c = 0; c < kHeadDim; ++c) state.o[c] = result.o[c];
  return state;
}

/// ln(exp a + exp b), the LSE of a union: max + log1p(exp(−|a − b|)).
///
/// The exponent is never positive, so that nothing overflows; and log1p keeps the contribution of a much smaller
/// partner, of which ln(1 + x) would lose everything below 2⁻²⁴. Two empty sets give −∞.
__host__ __device__ inline float merge_lse(float a, float b) {
  const float high = fmaxf(a, b);
  if (high == -INFINITY) return high;
  return high + log1pf(expf(fminf(a, b) - high));
}

/// The merge of two results: an average of the two O, weighted by exp(LSE).
///
/// The weights come from the difference of the two LSE alone. Taking exp(LSE − merged LSE) instead would add the
/// rounding of the merged LSE to O: at LSE = 10⁴ neighbouring fp32 numbers are 0.001 apart.
template <int kHeadDim>
__host__ __device__ NormalizedState<kHeadDim> merge(const NormalizedState<kHeadDim>& a,
                                                    const NormalizedState<kHeadDim>& b) {
  const float high = fmaxf(a.lse, b.lse);
  const float share_a = rescale(a.lse, high);
  const float share_b = rescale(b.lse, high);
  const float factor = 1 / (share_a + share_b);
  NormalizedState<kHeadDim> merged;
  merged.lse = merge_lse(a.lse, b.lse);
  for (int c = 0; c < kHeadDim; ++c) merged.o[c] = (a.o[c] * share_a + b.o[c] * share_b) * factor;
  return merged;
}

}  // namespace kernel
