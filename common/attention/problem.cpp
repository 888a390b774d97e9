#include "common/attention/problem.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <stdexcept>

namespace attention {
namespace {

/// Largest array, in elements: byte offsets of 8-byte elements still fit 63 bits.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 60;

[[noreturn]] void refuse(const std::string& sentence) { throw std::invalid_argument(sentence); }

void require_between(const char* field, int value, int low, int high) {
  if (value >= low && value <= high) return;
  std::ostringstream out;
  out << field << " must be from " << low << " to " << high << ": it is " << value;
  refuse(out.str());
}

/// Whether a·b + c, all ≥ 0, stays within kMaxElements; stores it if so.
bool multiply_add(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t& result) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return false;
  return !__builtin_add_overflow(product, c, &result) && result <= kMaxElements;
}

std::int64_t span_elements(const Strides& s, int batch, int seqlen, int heads, int head_dim) {
  if (batch == 0 || seqlen == 0 || heads == 0 || head_dim == 0) return 0;
  return s.offset(batch - 1, seqlen - 1, heads - 1) + (head_dim - 1) * s.dim + 1;
}

/// One axis of an array, for the check that the rows of an output do not meet.
struct Axis {
  const char* name;
  std::int64_t size;
  std::int64_t stride;
};

void check_dense_size(const std::string& array, std::int64_t batch, std::int64_t seqlen, std::int64_t heads,
                      std::int64_t head_dim) {
  std::int64_t elements = 0;
  if (multiply_add(batch, seqlen, 0, elements) && multiply_add(elements, heads, 0, elements) &&
      multiply_add(elements, head_dim, 0, elements))
    return;
  std::ostringstream out;
  out << array << " must have at most 2^60 elements: batch " << batch << " x seqlen " << seqlen << " x heads " << heads
      << " x head_dim " << head_dim << " are more";
  refuse(out.str());
}

void check_strides(const std::string& field, const Strides& s, int batch, int seqlen, int heads, int head_dim) {
  if (s.dim != 1) refuse(field + ".dim must be 1 (innermost contiguous): it is " + std::to_string(s.dim));
  const std::array<Axis, 3> axes{{{"batch", batch, s.batch}, {"seq", seqlen, s.seq}, {"head", heads, s.head}}};
  std::int64_t last = head_dim;
  for (const Axis& axis : axes) {
    if (axis.stride < 0)
      refuse(field + "." + axis.name + " must not be negative: it is " + std::to_string(axis.stride));
    if (!multiply_add(std::max<std::int64_t>(axis.size - 1, 0), axis.stride, last, last))
      refuse(field + "." + axis.name + " must keep offsets within 2^60 elements: " + std::to_string(axis.stride) +
             " for " + std::to_string(axis.size) + " entries does not");
  }
}

/// Rows of an output must not share elements. Accepts the layouts in which one axis lies whole inside one step of the
/// next, whatever the order of the axes: dense, transposed, padded, slices of a wider array.
void check_rows_apart(const std::string& field, const Strides& s, int batch, int seqlen, int heads, int head_dim) {
  std::array<Axis, 3> axes{{{"batch", batch, s.batch}, {"seq", seqlen, s.seq}, {"head", heads, s.head}}};
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  std::int64_t extent = head_dim;
  for (const Axis& axis : axes) {
    if (axis.size <= 1) continue;
    if (axis.stride < extent)
      refuse(field + "." + axis.name + " must be at least " + std::to_string(extent) +
             " so that rows do not overlap: it is " + std::to_string(axis.stride));
    extent += (axis.size - 1) * axis.stride;
  }
}

/// Σ clamp(x, 0, limit) over first ≤ x ≤ last.
std::int64_t sum_of_clamped(std::int64_t first, std::int64_t last, std::int64_t limit) {
  const std::int64_t low = std::max<std::int64_t>(first, 1);
  const std::int64_t high = std::min(last, limit);
  const std::int64_t inside = low <= high ? (high - low + 1) * (low + high) / 2 : 0;
  const std::int64_t above = std::max<std::int64_t>(last - std::max(first, limit + 1) + 1, 0);
  return inside + above * limit;
}

}  // namespace

std::string Mask::name() const {
  if (*this == none()) return "none";
  if (*this == causal()) return "causal";
  const auto side = [](int keys) { return keys >= kUnlimited ? std::string("inf") : std::to_string(keys); };
  return "window(" + side(left) + "," + side(right) + ")";
}

float Problem::scale() const { return softmax_scale.value_or(static_cast<float>(1.0 / std::sqrt(double(head_dim)))); }

std::int64_t Problem::elements_q() const { return span_elements(strides_q(), batch, seqlen_q, heads_q, head_dim); }
std::int64_t Problem::elements_k() const { return span_elements(strides_k(), batch, seqlen_kv, heads_kv, head_dim); }
std::int64_t Problem::elements_v() const { return span_elements(strides_v(), batch, seqlen_kv, heads_kv, head_dim); }
std::int64_t Problem::elements_o() const { return span_elements(strides_o(), batch, seqlen_q, heads_q, head_dim); }
std::int64_t Problem::elements_dout() const {
  return span_elements(strides_dout(), batch, seqlen_q, heads_q, head_dim);
}
std::int64_t Problem::elements_dq() const { return span_elements(strides_dq(), batch, seqlen_q, heads_q, head_dim); }
std::int64_t Problem::elements_dk() const { return span_elements(strides_dk(), batch, seqlen_kv, heads_kv, head_dim); }
std::int64_t Problem::elements_dv() const { return span_elements(strides_dv(), batch, seqlen_kv, heads_kv, head_dim); }

std::int64_t Problem::visible_pairs() const {
  // A query at c sees the keys j ≤ c + right, less those with j ≤ c − left − 1. Both are counted by a clamped line.
  const std::int64_t first = std::int64_t{seqlen_kv} - seqlen_q;
  const std::int64_t last = std::int64_t{seqlen_kv} - 1;
  const auto keys_up_to = [&](std::int64_t shift) {
    return sum_of_clamped(first + shift + 1, last + shift + 1, seqlen_kv);
  };
  return keys_up_to(mask.right) - keys_up_to(-std::int64_t{mask.left} - 1);
}

std::string Problem::describe() const {
  std::ostringstream out;
  out << "batch " << batch << ", heads " << heads_q << "/" << heads_kv << ", seqlen " << seqlen_q << "/" << seqlen_kv
      << ", head_dim " << head_dim << ", " << (mask == Mask::none() ? "no mask" : mask.name());
  if (softmax_scale) out << ", scale " << *softmax_scale;
  if (element_type != ElementType::fp32) out << ", " << name(element_type);
  const char* separator = ", strided ";
  const auto mention = [&](const char* array, const std::optional<Strides>& strides, int seqlen, int heads) {
    if (!strides || *strides == contiguous_strides(seqlen, heads, head_dim)) return;
    out << separator << array;
    separator = " ";
  };
  mention("Q", q_strides, seqlen_q, heads_q);
  mention("K", k_strides, seqlen_kv, heads_kv);
  mention("V", v_strides, seqlen_kv, heads_kv);
  mention("O", o_strides, seqlen_q, heads_q);
  mention("dO", dout_strides, seqlen_q, heads_q);
  mention("dQ", dq_strides, seqlen_q, heads_q);
  mention("dK", dk_strides, seqlen_kv, heads_kv);
  mention("dV", dv_strides, seqlen_kv, heads_kv);
  return out.str();
}

void Problem::validate() const {
  require_between("batch", batch, 1, kMaxSeqlen);
  require_between("heads_q", heads_q, 1, kMaxSeqlen);
  require_between("heads_kv", heads_kv, 1, kMaxSeqlen);
  require_between("seqlen_q", seqlen_q, 0, kMaxSeqlen);
  require_between("seqlen_kv", seqlen_kv, 0, kMaxSeqlen);
  require_between("head_dim", head_dim, 1, kMaxSeqlen);
  require_between("mask.left", mask.left, 0, kUnlimited);
  require_between("mask.right", mask.right, 0, kUnlimited);
  if (heads_q % heads_kv != 0)
    refuse("heads_q must be a multiple of heads_kv: " + std::to_string(heads_q) + " is not a multiple of " +
           std::to_string(heads_kv));
  if (softmax_scale && !std::isfinite(*softmax_scale))
    refuse("softmax_scale must be finite: it is " + std::to_string(*softmax_scale));

  check_dense_size("Q", batch, seqlen_q, heads_q, head_dim);
  check_dense_size("K", batch, seqlen_kv, heads_kv, head_dim);
  check_strides("q_strides", strides_q(), batch, seqlen_q, heads_q, head_dim);
  check_strides("k_strides", strides_k(), batch, seqlen_kv, heads_kv, head_dim);
  check_strides("v_strides", strides_v(), batch, seqlen_kv, heads_kv, head_dim);
  check_strides("o_strides", strides_o(), batch, seqlen_q, heads_q, head_dim);
  check_strides("dout_strides", strides_dout(), batch, seqlen_q, heads_q, head_dim);
  check_strides("dq_strides", strides_dq(), batch, seqlen_q, heads_q, head_dim);
  check_strides("dk_strides", strides_dk(), batch, seqlen_kv, heads_kv, head_dim);
  check_strides("dv_strides", strides_dv(), batch, seqlen_kv, heads_kv, head_dim);
  if (seqlen_q > 0) check_rows_apart("o_strides", strides_o(), batch, seqlen_q, heads_q, head_dim);
  if (seqlen_q > 0) check_rows_apart("dq_strides", strides_dq(), batch, seqlen_q, heads_q, head_dim);
  if (seqlen_kv > 0) check_rows_apart("dk_strides", strides_dk(), batch, seqlen_kv, heads_kv, head_dim);
  if (seqlen_kv > 0) check_rows_apart("dv_strides", strides_dv(), batch, seqlen_kv, heads_kv, head_dim);
}

}  // namespace attention
