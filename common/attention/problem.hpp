#pragma once
/// \file
/// The one problem that all chapters solve: sizes, mask, scale and layout of an attention call.
///
/// Everything here is plain data and integer arithmetic. It includes no GPU header; kernels call the `constexpr`
/// functions directly (nvcc: `--expt-relaxed-constexpr`).

#include <cstdint>
#include <optional>
#include <string>

#include "common/attention/element_type.hpp"

namespace attention {

/// A window side that does not limit anything.
inline constexpr int kUnlimited = 1 << 30;

/// The largest seqlen: with it, query + seqlen_kv - seqlen_q + right still fits an `int`.
inline constexpr int kMaxSeqlen = (1 << 30) - 1;

/// Which keys a query sees: all j with c − left ≤ j ≤ c + right, where c = i + seqlen_kv − seqlen_q.
///
/// The alignment is bottom-right: the last query stands at the last key. No mask is (∞, ∞), causal is (∞, 0), a causal
/// window over the last W keys is (W − 1, 0). Both sides are inclusive.
struct Mask {
  int left = kUnlimited;   ///< keys visible to the left of the diagonal
  int right = kUnlimited;  ///< keys visible to the right of the diagonal

  static constexpr Mask none() { return {}; }
  static constexpr Mask causal() { return {kUnlimited, 0}; }
  static constexpr Mask window(int left, int right) { return {left, right}; }

  /// "none", "causal", "window(3,0)"; an unlimited side prints as "inf".
  std::string name() const;

  friend constexpr bool operator==(const Mask&, const Mask&) = default;
};

/// The keys begin ≤ j < end. Every mask here leaves one contiguous run of keys; it is empty when begin == end.
struct KeyRange {
  int begin;
  int end;
  constexpr bool empty() const { return begin >= end; }
  constexpr int size() const { return end - begin; }
};

/// The keys that a query sees. An empty range is returned as {0, 0}.
constexpr KeyRange visible_keys(Mask mask, int query, int seqlen_q, int seqlen_kv) {
  const int diagonal = query + seqlen_kv - seqlen_q;
  const int first = diagonal - mask.left;
  const int last = diagonal + mask.right;
  const int begin = first > 0 ? first : 0;
  const int end = last < seqlen_kv - 1 ? last + 1 : seqlen_kv;
  return begin < end ? KeyRange{begin, end} : KeyRange{0, 0};
}

/// The keys that at least one of the queries first … last sees: what a tile of them has to visit. An empty range is
/// returned as {0, 0}. (Each row's window moves on by one key, so that nothing lies between them.)
constexpr KeyRange keys_of_any(Mask mask, int first_query, int last_query, int seqlen_q, int seqlen_kv) {
  const int begin = first_query + seqlen_kv - seqlen_q - mask.left;
  const int end = last_query + seqlen_kv - seqlen_q + mask.right + 1;
  const KeyRange keys{begin > 0 ? begin : 0, end < seqlen_kv ? end : seqlen_kv};
  return keys.empty() ? KeyRange{0, 0} : keys;
}

/// The keys that all of the queries first … last see: there a tile needs no mask. An empty range is returned as {0, 0}.
constexpr KeyRange keys_of_all(Mask mask, int first_query, int last_query, int seqlen_q, int seqlen_kv) {
  return keys_of_any(mask, last_query, first_query, seqlen_q, seqlen_kv);
}

/// The queries begin ≤ i < end.
using QueryRange = KeyRange;

/// The queries that see at least one of the keys first … last: what a tile of them has to visit. An empty range is
/// returned as {0, 0}.
constexpr QueryRange queries_of_any(Mask mask, int first_key, int last_key, int seqlen_q, int seqlen_kv) {
  const int begin = first_key - seqlen_kv - mask.right + seqlen_q;
  const int end = last_key - seqlen_kv + mask.left + seqlen_q + 1;
  const QueryRange queries{begin > 0 ? begin : 0, end < seqlen_q ? end : seqlen_q};
  return queries.empty() ? QueryRange{0, 0} : queries;
}

/// Distances, in elements, between neighbours in [batch, seqlen, heads, head_dim]. The innermost distance must be 1,
/// the others at least 0.
///
/// Q, K and V may lie in any such way: slices of one fused projection, rows apart, or a distance of 0, which repeats
/// one row along that axis (a key shared by a batch). Rows of O must not share elements; accepted are layouts in which
/// one axis lies whole inside one step of the next, in any order of the axes.
struct Strides {
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t head = 0;
  std::int64_t dim = 1;

  /// Offset in elements of row (b, position, h). 64-bit: batch · seqlen · heads · head_dim passes 2³¹ in practice.
  constexpr std::int64_t offset(int b, int position, int h) const { return b * batch + position * seq + h * head; }

  friend constexpr bool operator==(const Strides&, const Strides&) = default;
};

/// Strides of a dense [batch, seqlen, heads, head_dim] array.
constexpr Strides contiguous_strides(int seqlen, int heads, int head_dim) {
  const std::int64_t row = std::int64_t{heads} * head_dim;
  return {seqlen * row, row, head_dim, 1};
}

/// Sizes, mask, scale, element type and layout of one attention call.
///
/// Q and O are [batch, seqlen_q, heads_q, head_dim]; K and V are [batch, seqlen_kv, heads_kv, head_dim]; LSE is a dense
/// [batch, heads_q, seqlen_q]. Query head h reads KV head h / (heads_q / heads_kv).
struct Problem {
  int batch = 1;
  int heads_q = 1;
  int heads_kv = 1;
  int seqlen_q = 0;
  int seqlen_kv = 0;
  int head_dim = 0;
  Mask mask{};
  /// Of Q, K, V, O, dO and the gradients.
  ElementType element_type = ElementType::fp32;
  /// Factor of the scores. Absent means 1/√head_dim; a literal 0 is a 0 and gives the plain average of V.
  std::optional<float> softmax_scale{};
  /// Layouts; absent means dense.
  std::optional<Strides> q_strides{}, k_strides{}, v_strides{}, o_strides{};
  /// Layouts of a backward pass; absent means that of O for dO, and dense for the gradients.
  std::optional<Strides> dout_strides{}, dq_strides{}, dk_strides{}, dv_strides{};

  float scale() const;
  Strides strides_q() const { return q_strides.value_or(contiguous_strides(seqlen_q, heads_q, head_dim)); }
  Strides strides_k() const { return k_strides.value_or(contiguous_strides(seqlen_kv, heads_kv, head_dim)); }
  Strides strides_v() const { return v_strides.value_or(contiguous_strides(seqlen_kv, heads_kv, head_dim)); }
  Strides strides_o() const { return o_strides.value_or(contiguous_strides(seqlen_q, heads_q, head_dim)); }

  Strides strides_dout() const { return dout_strides.value_or(strides_o()); }
  Strides strides_dq() const { return dq_strides.value_or(contiguous_strides(seqlen_q, heads_q, head_dim)); }
  Strides strides_dk() const { return dk_strides.value_or(contiguous_strides(seqlen_kv, heads_kv, head_dim)); }
  Strides strides_dv() const { return dv_strides.value_or(contiguous_strides(seqlen_kv, heads_kv, head_dim)); }

  /// Elements a buffer needs to hold the array under its strides (last offset + 1; 0 for an empty array).
  std::int64_t elements_q() const;
  std::int64_t elements_k() const;
  std::int64_t elements_v() const;
  std::int64_t elements_o() const;
  std::int64_t elements_dout() const;
  std::int64_t elements_dq() const;
  std::int64_t elements_dk() const;
  std::int64_t elements_dv() const;
  std::int64_t elements_lse() const { return std::int64_t{batch} * heads_q * seqlen_q; }

  /// Number of visible (query, key) pairs of one head.
  std::int64_t visible_pairs() const;

  /// One line: "batch 1, heads 4/2, seqlen 100/1000, head_dim 64, causal, bf16"; fp32 is not mentioned.
  std::string describe() const;

  /// \throws std::invalid_argument with a sentence that names the field, its value and what is allowed: positive sizes
  /// (seqlen_q and seqlen_kv may be 0) up to kMaxSeqlen, heads_q a multiple of heads_kv, window sides from 0 to
  /// kUnlimited, a finite scale, strides as Strides says, and at most 2⁶⁰ elements from the first to the last of an
  /// array.
  void validate() const;
};

/// What a forward kernel is given, by value. Pointers point to element (0, 0, 0, 0) of their array.
template <class T>
struct ForwardArgs {
  const T* q_gmem;  ///< [batch, seqlen_q, heads_q, head_dim]
  const T* k_gmem;  ///< [batch, seqlen_kv, heads_kv, head_dim]
  const T* v_gmem;  ///< [batch, seqlen_kv, heads_kv, head_dim]
  T* o_gmem;        ///< [batch, seqlen_q, heads_q, head_dim]
  float* lse_gmem;  ///< [batch, heads_q, seqlen_q], natural logarithm of Σ exp(scaled score)

  Strides q_strides, k_strides, v_strides, o_strides;
  int batch, heads_q, heads_kv, seqlen_q, seqlen_kv, head_dim;
  float softmax_scale;
  Mask mask;

  constexpr int kv_head(int head_q) const { return head_q / (heads_q / heads_kv); }
  constexpr KeyRange visible_keys(int query) const { return attention::visible_keys(mask, query, seqlen_q, seqlen_kv); }
  constexpr const T* q_row(int b, int query, int head_q) const { return q_gmem + q_strides.offset(b, query, head_q); }
  constexpr const T* k_row(int b, int key, int head_kv) const { return k_gmem + k_strides.offset(b, key, head_kv); }
  constexpr const T* v_row(int b, int key, int head_kv) const { return v_gmem + v_strides.offset(b, key, head_kv); }
  constexpr T* o_row(int b, int query, int head_q) const { return o_gmem + o_strides.offset(b, query, head_q); }
  constexpr float* lse_entry(int b, int query, int head_q) const {
    return lse_gmem + (std::int64_t{b} * heads_q + head_q) * seqlen_q + query;
  }
};

/// Binds the arrays of a problem to a kernel argument.
template <class T>
ForwardArgs<T> make_forward_args(const Problem& p, const T* q, const T* k, const T* v, T* o, float* lse) {
  return {q,
          k,
          v,
          o,
          lse,
          p.strides_q(),
          p.strides_k(),
          p.strides_v(),
          p.strides_o(),
          p.batch,
          p.heads_q,
          p.heads_kv,
          p.seqlen_q,
          p.seqlen_kv,
          p.head_dim,
          p.scale(),
          p.mask};
}

/// What a backward kernel is given, by value: the forward's inputs and results, and the gradient of its outputs.
template <class T>
struct BackwardArgs {
  const T* q_gmem;         ///< [batch, seqlen_q, heads_q, head_dim]
  const T* k_gmem;         ///< [batch, seqlen_kv, heads_kv, head_dim]
  const T* v_gmem;         ///< [batch, seqlen_kv, heads_kv, head_dim]
  const T* o_gmem;         ///< [batch, seqlen_q, heads_q, head_dim]
  const float* lse_gmem;   ///< [batch, heads_q, seqlen_q], as the forward wrote it
  const T* dout_gmem;      ///< [batch, seqlen_q, heads_q, head_dim]
  const float* dlse_gmem;  ///< [batch, heads_q, seqlen_q]; null where nothing depends on the LSE
  T* dq_gmem;              ///< [batch, seqlen_q, heads_q, head_dim]
  T* dk_gmem;              ///< [batch, seqlen_kv, heads_kv, head_dim]
  T* dv_gmem;              ///< [batch, seqlen_kv, heads_kv, head_dim]

  Strides q_strides, k_strides, v_strides, o_strides, dout_strides, dq_strides, dk_strides, dv_strides;
  int batch, heads_q, heads_kv, seqlen_q, seqlen_kv, head_dim;
  float softmax_scale;
  Mask mask;

  constexpr int kv_head(int head_q) const { return head_q / (heads_q / heads_kv); }
  constexpr KeyRange visible_keys(int query) const { return attention::visible_keys(mask, query, seqlen_q, seqlen_kv); }
  constexpr const T* q_row(int b, int query, int head_q) const { return q_gmem + q_strides.offset(b, query, head_q); }
  constexpr const T* k_row(int b, int key, int head_kv) const { return k_gmem + k_strides.offset(b, key, head_kv); }
  constexpr const T* v_row(int b, int key, int head_kv) const { return v_gmem + v_strides.offset(b, key, head_kv); }
  constexpr const T* o_row(int b, int query, int head_q) const { return o_gmem + o_strides.offset(b, query, head_q); }
  constexpr const T* dout_row(int b, int query, int head_q) const {
    return dout_gmem + dout_strides.offset(b, query, head_q);
  }
  constexpr T* dq_row(int b, int query, int head_q) const { return dq_gmem + dq_strides.offset(b, query, head_q); }
  constexpr T* dk_row(int b, int key, int head_kv) const { return dk_gmem + dk_strides.offset(b, key, head_kv); }
  constexpr T* dv_row(int b, int key, int head_kv) const { return dv_gmem + dv_strides.offset(b, key, head_kv); }
  /// Index of a query in arrays [batch, heads_q, seqlen_q]: LSE, dLSE, D.
  constexpr std::int64_t row_index(int b, int query, int head_q) const {
    return (std::int64_t{b} * heads_q + head_q) * seqlen_q + query;
  }
};

/// The arrays of a backward pass, to be bound to a problem.
template <class T>
struct BackwardArrays {
  const T *q, *k, *v, *o;
  const float* lse;
  const T* dout;
  const float* dlse = nullptr;
  T *dq, *dk, *dv;
};

/// Binds the arrays of a problem to a kernel argument.
template <class T>
BackwardArgs<T> make_backward_args(const Problem& p, const BackwardArrays<T>& a) {
  return {.q_gmem = a.q,
          .k_gmem = a.k,
          .v_gmem = a.v,
          .o_gmem = a.o,
          .lse_gmem = a.lse,
          .dout_gmem = a.dout,
          .dlse_gmem = a.dlse,
          .dq_gmem = a.dq,
          .dk_gmem = a.dk,
          .dv_gmem = a.dv,
          .q_strides = p.strides_q(),
          .k_strides = p.strides_k(),
          .v_strides = p.strides_v(),
          .o_strides = p.strides_o(),
          .dout_strides = p.strides_dout(),
          .dq_strides = p.strides_dq(),
          .dk_strides = p.strides_dk(),
          .dv_strides = p.strides_dv(),
          .batch = p.batch,
          .heads_q = p.heads_q,
          .heads_kv = p.heads_kv,
          .seqlen_q = p.seqlen_q,
          .seqlen_kv = p.seqlen_kv,
          .head_dim = p.head_dim,
          .softmax_scale = p.scale(),
          .mask = p.mask};
}

}  // namespace attention
