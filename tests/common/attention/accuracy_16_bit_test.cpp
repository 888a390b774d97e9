/// \file
/// The accuracy rule in 16 bits: kernels that round where they may are right, and those that round elsewhere, or leave
/// something out, are wrong.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/accuracy.hpp"
#include "common/attention/inputs.hpp"
#include "tests/catch.hpp"

using attention::BackwardVerdict;
using attention::BackwardYardstick;
using attention::ElementType;
using attention::ForwardYardstick;
using attention::InputKind;
using attention::Inputs;
using attention::make_inputs;
using attention::Mask;
using attention::Problem;
using attention::Verdict;
using Floats = std::vector<float>;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// How the kernels below round and what they leave out. By default they are right.
struct Kernel {
  ElementType factors;                          ///< what P and dS are rounded to before they are multiplied
  ElementType accumulator = ElementType::fp32;  ///< what sums over keys, or queries, are rounded to at every step
  bool few_digits = false;                      ///< P and dS have four significant bits, as in fp8 (e4m3)
  bool drops_last_key = false;
  bool zeros = false;   ///< the gradients are 0
  bool base_2 = false;  ///< exponents in base 2 with the factor folded in, tiles from the last to the first

  float factor(float x) const {
    if (!few_digits || x == 0) return rounded(x, factors);
    int exponent = 0;
    const float mantissa = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(mantissa, 4)), exponent - 4);
  }
  float sum(float x) const { return rounded(x, accumulator); }
};

Kernel right_for(const Problem& p) { return {.factors = p.element_type}; }

constexpr int kTile = 16;

struct Output {
  Floats o, lse;
};

/// Attention over tiles of 16 keys with a running maximum, as the chapters' kernels compute it.
Output tiled_forward(const Problem& p, const Inputs& in, const Kernel& kernel) {
  Output out{Floats(p.elements_o(), NAN), Floats(p.elements_lse(), NAN)};
  const auto args =
      attention::make_forward_args(p, in.q.data(), in.k.data(), in.v.data(), out.o.data(), out.lse.data());
  const float scale = kernel.base_2 ? args.softmax_scale * std::numbers::log2e_v<float> : args.softmax_scale;
  const auto exp = [&](float x) { return kernel.base_2 ? std::exp2(x) : std::exp(x); };
  for (int b = 0; b < p.batch; ++b)
    for (int head = 0; head < p.heads_q; ++head)
      for (int i = 0; i < p.seqlen_q; ++i) {
        attention::KeyRange keys = args.visible_keys(i);
        if (kernel.drops_last_key && keys.end == p.seqlen_kv && keys.size() > 1) --keys.end;
        Floats acc(p.head_dim, 0.0f);
        float m = -kInfinity, l = 0;
        const int tiles = (keys.size() + kTile - 1) / kTile;
        for (int t = 0; t < tiles; ++t) {
          const int first = keys.begin + kTile * (kernel.base_2 ? tiles - 1 - t : t);
          const int size = std::min(kTile, keys.end - first);
          float s[kTile];
          float m_new = m;
          for (int j = 0; j < size; ++j) {
            s[j] = 0;
            const float* k = args.k_row(b, first + j, args.kv_head(head));
            for (int c = 0; c < p.head_dim; ++c) s[j] += args.q_row(b, i, head)[c] * k[c];
            s[j] *= scale;
            m_new = std::max(m_new, s[j]);
          }
          const float rescale = exp(m - m_new);
          l *= rescale;
          for (float& x : acc) x = kernel.sum(x * rescale);
          for (int j = 0; j < size; ++j) {
            const float weight = exp(s[j] - m_new);
            l += weight;
            const float* v = args.v_row(b, first + j, args.kv_head(head));
            for (int c = 0; c < p.head_dim; ++c) acc[c] = kernel.sum(acc[c] + kernel.factor(weight) * v[c]);
          }
          m = m_new;
        }
        for (int c = 0; c < p.head_dim; ++c)
          args.o_row(b, i, head)[c] = keys.empty() ? 0 : rounded(acc[c] / l, p.element_type);
        *args.lse_entry(b, i, head) =
            keys.empty() ? -kInfinity : (kernel.base_2 ? m * std::numbers::ln2_v<float> : m) + std::log(l);
      }
  return out;
}

struct Case {
  Problem p;
  Inputs in;
  Floats dout;
  BackwardYardstick yardstick;
};

Case make_case(const Problem& p, InputKind kind, std::uint64_t seed) {
  Case c{p, make_inputs(p, kind, seed), attention::make_output_gradient(p, seed), {}};
  c.yardstick = attention::make_backward_yardstick(p, c.in.q, c.in.k, c.in.v, c.dout);
  return c;
}

struct Gradients {
  Floats dq, dk, dv;
};

/// The backward from the yardstick's O and LSE, dense gradients; with base_2, in the opposite order of queries and
/// keys.
Gradients plain_loops(const Case& c, const Kernel& kernel) {
  const Problem& p = c.p;
  Gradients out{Floats(p.elements_dq()), Floats(p.elements_dk()), Floats(p.elements_dv())};
  if (kernel.zeros) return out;
  const auto args = attention::make_backward_args<float>(p, {.q = c.in.q.data(),
                                                             .k = c.in.k.data(),
                                                             .v = c.in.v.data(),
                                                             .o = c.yardstick.o.data(),
                                                             .lse = c.yardstick.lse.data(),
                                                             .dout = c.dout.data(),
                                                             .dq = out.dq.data(),
                                                             .dk = out.dk.data(),
                                                             .dv = out.dv.data()});
  const auto dot = [&p](const float* x, const float* y) {
    float even = 0, odd = 0;
    for (int c = 0; c < p.head_dim; ++c) (c % 2 == 0 ? even : odd) += x[c] * y[c];
    return even + odd;
  };
  constexpr float kLog2E = std::numbers::log2e_v<float>;
  for (int b = 0; b < p.batch; ++b)
    for (int head = 0; head < p.heads_q; ++head)
      for (int step = 0; step < p.seqlen_q; ++step) {
        const int i = kernel.base_2 ? p.seqlen_q - 1 - step : step;
        const attention::KeyRange keys = attention::visible_keys(p.mask, i, p.seqlen_q, p.seqlen_kv);
        if (keys.empty()) continue;
        const int head_kv = args.kv_head(head);
        const float *q = args.q_row(b, i, head), *dout = args.dout_row(b, i, head);
        const float d = dot(dout, args.o_row(b, i, head));
        const float lse = args.lse_gmem[args.row_index(b, i, head)];
        for (int n = 0; n < keys.size(); ++n) {
          const int j = kernel.base_2 ? keys.end - 1 - n : keys.begin + n;
          if (kernel.drops_last_key && j == p.seqlen_kv - 1) continue;
          const float *k = args.k_row(b, j, head_kv), *v = args.v_row(b, j, head_kv);
          const float weight = kernel.base_2
                                   ? std::exp2(std::fma(args.softmax_scale * kLog2E, dot(q, k), -(lse * kLog2E)))
                                   : std::exp(args.softmax_scale * dot(q, k) - lse);
          const float ds = kernel.factor(weight * (dot(dout, v) - d)), p_rounded = kernel.factor(weight);
          for (int c = 0; c < p.head_dim; ++c) {
            float& dq = args.dq_row(b, i, head)[c];
            float& dk = args.dk_row(b, j, head_kv)[c];
            float& dv = args.dv_row(b, j, head_kv)[c];
            dq = kernel.sum(dq + ds * k[c]);
            dk = kernel.sum(dk + ds * q[c]);
            dv = kernel.sum(dv + p_rounded * dout[c]);
          }
        }
      }
  for (float& x : out.dq) x = rounded(x * args.softmax_scale, p.element_type);
  for (float& x : out.dk) x = rounded(x * args.softmax_scale, p.element_type);
  for (float& x : out.dv) x = rounded(x, p.element_type);
  return out;
}

BackwardVerdict judge(const Case& c, const Gradients& g) {
  return attention::judge_backward(c.p, g.dq, g.dk, g.dv, c.yardstick);
}

BackwardVerdict judge(const Case& c, const Kernel& kernel) { return judge(c, plain_loops(c, kernel)); }

/// float64, rounded once.
Floats rounded_to(const std::vector<double>& values, ElementType type) {
  Floats result(values.size());
  std::transform(values.begin(), values.end(), result.begin(),
                 [type](double x) { return rounded(static_cast<float>(x), type); });
  return result;
}

Gradients rounded_reference(const Case& c) {
  const attention::ReferenceBackward& reference = c.yardstick.reference;
  return {rounded_to(reference.dq, c.p.element_type), rounded_to(reference.dk, c.p.element_type),
          rounded_to(reference.dv, c.p.element_type)};
}

Problem ordinary(ElementType type, Mask mask = Mask::none()) {
  Problem p{.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 40, .seqlen_kv = 67, .head_dim = 32, .mask = mask};
  p.element_type = type;
  return p;
}

void check_right(const auto& verdict) {
  INFO(verdict.sentence);
  CHECK(verdict.right);
}

void check_wrong(const auto& verdict) {
  INFO(verdict.sentence);
  CHECK_FALSE(verdict.right);
  CHECK_THAT(verdict.sentence, ContainsText("wrong: "));
}

}  // namespace

TEST_CASE("16 bits: float64 rounded once is right, and so is a tiled kernel, on every kind of input") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  const InputKind kind = GENERATE(InputKind::normal, InputKind::one_hot_v, InputKind::rising_scores,
                                  InputKind::falling_scores, InputKind::huge_scores, InputKind::constant_scores);
  const Problem p = ordinary(type, GENERATE(Mask::none(), Mask::causal(), Mask::window(9, 2)));
  INFO(p.describe() << ", " << name(kind));
  const Inputs in = make_inputs(p, kind, 11);
  const ForwardYardstick yardstick = attention::make_forward_yardstick(p, in.q, in.k, in.v);
  const auto judge_output = [&](const Output& out) { return attention::judge_forward(p, out.o, out.lse, yardstick); };
  check_right(judge_output({rounded_to(yardstick.reference.o, type), rounded_to(yardstick.reference.lse, {})}));
  check_right(judge_output(tiled_forward(p, in, right_for(p))));
  check_right(judge_output(tiled_forward(p, in, {.factors = type, .base_2 = true})));
  check_right(judge_output(tiled_forward(p, in, {.factors = ElementType::fp32})));  // P in more digits than need be

  // About 2 roundings to nearest and 2 ulps, whatever the input.
  const double ulp = attention::unit_in_last_place(type);
  CHECK(yardstick.plain.relative > 0.1 * ulp);
  CHECK(yardstick.allowed.relative < (kind == InputKind::huge_scores ? 10 : 4) * ulp);
  CHECK(yardstick.allowed.absolute < (kind == InputKind::huge_scores ? 10 : 4) * ulp);
}

TEST_CASE("16 bits: what is allowed is twice the plain error and 2 ulps, and for LSE what tensor cores cut off") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  const Problem p = ordinary(type);
  const Case c = make_case(p, InputKind::normal, 12);
  const ForwardYardstick forward = attention::make_forward_yardstick(p, c.in.q, c.in.k, c.in.v);
  const double two_ulps = type == ElementType::fp16 ? 0x1p-9 : 0x1p-6;
  CHECK(forward.allowed.relative == 2 * forward.plain.relative + two_ulps);
  CHECK(forward.allowed.absolute == 2 * forward.plain.absolute + two_ulps);
  CHECK(forward.allowed.lse > 2 * forward.plain.lse + 0x1p-22);
  CHECK(c.yardstick.allowed.dq == 2 * c.yardstick.plain.dq + two_ulps);
  CHECK(c.yardstick.allowed.dk == 2 * c.yardstick.plain.dk + two_ulps);
  CHECK(c.yardstick.allowed.dv == 2 * c.yardstick.plain.dv + two_ulps);

  Output out = tiled_forward(p, c.in, right_for(p));
  for (float& x : out.lse) x = rounded(x, type);
  const Verdict verdict = attention::judge_forward(p, out.o, out.lse, forward);
  check_wrong(verdict);
  CHECK_THAT(verdict.sentence, ContainsText("error of LSE is"));
}

TEST_CASE("16 bits: an LSE may lose a unit in the last place for every eight products of a score, and no more") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16, ElementType::fp32);
  // One key: LSE is the score, 64 · 1 · 2 · 0.25 = 32, and |scale| · ‖q‖ · ‖k‖ = 0.25 · 8 · 16 is the same.
  Problem p{.seqlen_q = 1, .seqlen_kv = 1, .head_dim = 64, .softmax_scale = 0.25f};
  p.element_type = type;
  const Floats q(64, 1.0f), k(64, 2.0f), v(64, 1.0f);
  const ForwardYardstick yardstick = attention::make_forward_yardstick(p, q, k, v);
  REQUIRE(yardstick.plain.lse == 2 * 0x1p-23);  // of the form that folds the scale into Q
  CHECK(yardstick.allowed.lse == (type == ElementType::fp32 ? 6 : 6 + 8) * 0x1p-23);
  const auto judge_lse = [&](double lse) {
    return attention::judge_forward(p, v, Floats{static_cast<float>(lse)}, yardstick);
  };
  check_right(judge_lse(32));
  check_right(judge_lse(32 * (1 - 5 * 0x1p-23)));
  CHECK(judge_lse(32 * (1 - 13 * 0x1p-23)).right == (type != ElementType::fp32));
  check_wrong(judge_lse(32 * (1 - 16 * 0x1p-23)));
}

TEST_CASE("16 bits: scores whose sums are cut off are right") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  const InputKind kind = GENERATE(InputKind::normal, InputKind::rising_scores, InputKind::falling_scores);
  Problem p{.seqlen_q = 9, .seqlen_kv = 33, .head_dim = 256};
  p.element_type = type;
  const Inputs in = make_inputs(p, kind, 17);
  const ForwardYardstick yardstick = attention::make_forward_yardstick(p, in.q, in.k, in.v);
  Output out = tiled_forward(p, in, right_for(p));
  // Eight products exactly, then a sum that drops what does not fit into fp32.
  const auto toward_zero = [](double x) {
    const auto nearest = static_cast<float>(x);
    return std::abs(nearest) > std::abs(x) ? std::nextafter(nearest, 0.0f) : nearest;
  };
  for (int i = 0; i < p.seqlen_q; ++i) {
    std::vector<double> scores;
    for (int j = 0; j < p.seqlen_kv; ++j) {
      float s = 0;
      for (int c = 0; c < p.head_dim; c += 8) {
        double eight = 0;
        for (int e = c; e < c + 8; ++e)
          eight += double(in.q[std::size_t(i) * 256 + e]) * in.k[std::size_t(j) * 256 + e];
        s = toward_zero(s + eight);
      }
      scores.push_back(double(s) * p.scale());
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double s : scores) sum += std::exp(s - largest);
    out.lse[std::size_t(i)] = static_cast<float>(largest + std::log(sum));
  }
  check_right(attention::judge_forward(p, out.o, out.lse, yardstick));
}

TEST_CASE("16 bits: a sum that is rounded at every step is wrong") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  Problem p{.seqlen_q = 20, .seqlen_kv = 1024, .head_dim = 32};
  p.element_type = type;
  const Case c = make_case(p, InputKind::normal, 13);
  const auto judge_output = [&](const Kernel& kernel) {
    const Output out = tiled_forward(p, c.in, kernel);
    return attention::judge_forward(p, c.in.q, c.in.k, c.in.v, out.o, out.lse);
  };
  check_right(judge_output(right_for(p)));
  check_wrong(judge_output({.factors = type, .accumulator = type}));

  check_right(judge(c, right_for(p)));
  const BackwardVerdict verdict = judge(c, {.factors = type, .accumulator = type});
  check_wrong(verdict);
  CHECK(verdict.error.dq > verdict.allowed.dq);  // 1024 terms
  CHECK(verdict.error.dv < verdict.allowed.dv);  // 20 terms
}

TEST_CASE("16 bits: a dropped key is wrong") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  const InputKind kind = GENERATE(InputKind::normal, InputKind::one_hot_v, InputKind::rising_scores);
  const Problem p = ordinary(type, GENERATE(Mask::none(), Mask::causal()));
  INFO(p.describe() << ", " << name(kind));
  const Case c = make_case(p, kind, 14);
  const Kernel kernel{.factors = type, .drops_last_key = true};
  const Output out = tiled_forward(p, c.in, kernel);
  check_wrong(attention::judge_forward(p, c.in.q, c.in.k, c.in.v, out.o, out.lse));
  // O alone gives it away.
  const ForwardYardstick yardstick = attention::make_forward_yardstick(p, c.in.q, c.in.k, c.in.v);
  const Output whole = tiled_forward(p, c.in, right_for(p));
  check_wrong(attention::judge_forward(p, out.o, whole.lse, yardstick));

  const BackwardVerdict verdict = judge(c, kernel);
  check_wrong(verdict);
  CHECK(verdict.error.dq > verdict.allowed.dq);
  CHECK(verdict.error.dk > verdict.allowed.dk);
  CHECK(verdict.error.dv > verdict.allowed.dv);
}

TEST_CASE("16 bits: P and dS in four significant bits are wrong") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  // The first rows of a causal problem see few keys, whose roundings do not average out.
  const Case c = make_case(
      [&] {
        Problem p = ordinary(type, Mask::causal());
        p.seqlen_q = p.seqlen_kv;
        return p;
      }(),
      InputKind::normal, 15);
  const Kernel kernel{.factors = type, .few_digits = true};
  const Output out = tiled_forward(c.p, c.in, kernel);
  check_wrong(attention::judge_forward(c.p, c.in.q, c.in.k, c.in.v, out.o, out.lse));
  const BackwardVerdict verdict = judge(c, kernel);
  check_wrong(verdict);
  CHECK(verdict.error.dq > verdict.allowed.dq);
  CHECK(verdict.error.dk > verdict.allowed.dk);
  CHECK(verdict.error.dv > verdict.allowed.dv);
}

TEST_CASE("fp16: a tiny row is judged by the distance of the numbers that it can have, and excuses no other") {
  // Keys 0–15 hold values of about 1, the others tiny ones; a window of 4 keys keeps them apart.
  Problem p{.seqlen_q = 64, .seqlen_kv = 64, .head_dim = 32, .mask = Mask::window(3, 0)};
  p.element_type = ElementType::fp16;
  const float size = GENERATE(0x1p-16f, 0x1p-20f);
  Inputs in = make_inputs(p, InputKind::normal, 17);
  for (std::size_t n = 16 * 32; n < in.v.size(); ++n) in.v[n] = rounded(in.v[n] * size, ElementType::fp16);
  const ForwardYardstick yardstick = attention::make_forward_yardstick(p, in.q, in.k, in.v);
  CHECK(yardstick.plain.relative < 0x1p-10);
  CHECK(yardstick.plain.absolute < 0x1p-10);
  const auto judge_output = [&](const Output& out) { return attention::judge_forward(p, out.o, out.lse, yardstick); };
  const Output right = tiled_forward(p, in, right_for(p));
  check_right(judge_output(right));
  check_right(judge_output({rounded_to(yardstick.reference.o, p.element_type), right.lse}));

  const auto changed = [&](auto change) {
    Output out = right;
    change(out.o);
    return judge_output(out);
  };
  const int tiny_row = 40 * 32, ordinary_row = 5 * 32;
  // Off by one of the numbers that there are, in every element: an ulp. By four: wrong.
  check_right(changed([&](Floats& o) {
    for (int c = 0; c < 32; ++c) o[tiny_row + c] += 0x1p-24f;
  }));
  check_wrong(changed([&](Floats& o) {
    for (int c = 0; c < 32; ++c) o[tiny_row + c] += 0x1p-22f;
  }));
  check_wrong(changed([&](Floats& o) { o[ordinary_row] += 0x1p-6f; }));
  if (size == 0x1p-16f) check_wrong(changed([&](Floats& o) { std::fill_n(o.begin() + tiny_row, 32, 0.0f); }));
}

TEST_CASE("16 bits: a row that sees nothing must be exactly 0 and minus infinity", "[C01]") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  Problem p{.seqlen_q = 46, .seqlen_kv = 32, .head_dim = 32, .mask = Mask::causal()};
  p.element_type = type;
  const Case c = make_case(p, InputKind::normal, 18);
  Output out = tiled_forward(p, c.in, right_for(p));
  check_right(attention::judge_forward(p, c.in.q, c.in.k, c.in.v, out.o, out.lse));
  const float least = type == ElementType::fp16 ? 0x1p-24f : 0x1p-133f;
  out.o[13 * 32] = least;
  const Verdict verdict = attention::judge_forward(p, c.in.q, c.in.k, c.in.v, out.o, out.lse);
  check_wrong(verdict);
  CHECK(std::isinf(verdict.error.relative));

  Gradients g = plain_loops(c, right_for(p));
  check_right(judge(c, g));
  g.dq[13 * 32] = least;
  check_wrong(judge(c, g));
}

TEST_CASE("where plain attention leaves the range of fp16 nothing is right") {
  // fp16's 1/27 is 1214/32768. Twenty-seven of them are 32778/32768, and 65504 times that is too large for fp16.
  Problem p{.seqlen_q = 1, .seqlen_kv = 27, .head_dim = 32};
  p.element_type = ElementType::fp16;
  const Inputs in{Floats(32), Floats(27 * 32), Floats(27 * 32, 65504)};
  const Verdict verdict = attention::judge_forward(p, in.q, in.k, in.v, Floats(32, 65504), Floats{std::log(27.0f)});
  CHECK_FALSE(verdict.right);
  CHECK(verdict.error.relative < 1e-9);
  CHECK_THAT(verdict.sentence,
             ContainsText("not judged: with these inputs fp16 leaves plain attention no digits of O"));

  Case c{ordinary(ElementType::fp16), make_inputs(ordinary(ElementType::fp16), InputKind::normal, 19), {}, {}};
  c.dout = Floats(c.p.elements_dout(), 60000.0f);
  c.yardstick = attention::make_backward_yardstick(c.p, c.in.q, c.in.k, c.in.v, c.dout);
  const BackwardVerdict backward = judge(c, right_for(c.p));
  CHECK_FALSE(backward.right);
  CHECK_THAT(backward.sentence,
             ContainsText("not judged: with these inputs fp16 leaves plain attention no digits of the gradients"));
}

TEST_CASE("16 bits: O for the kernels of a backward is the reference's, rounded") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  Problem p = ordinary(type);
  p.o_strides = attention::Strides{4 * 40 * 40, 40, 40 * 40, 1};
  const Case c = make_case(p, InputKind::normal, 20);
  const auto reference = attention::reference_forward(p, c.in.q, c.in.k, c.in.v);
  CHECK(std::isnan(c.yardstick.o[32]));
  CHECK(c.yardstick.o[p.o_strides->offset(1, 7, 3) + 4] ==
        rounded(float(reference.o[((1 * 40 + 7) * 4 + 3) * 32 + 4]), type));
  CHECK(c.yardstick.lse[9] == float(reference.lse[9]));
}

TEST_CASE("16 bits: gradients rounded once from float64 are right, and so are loops, on every kind of input") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  const InputKind kind = GENERATE(InputKind::normal, InputKind::one_hot_v, InputKind::rising_scores,
                                  InputKind::falling_scores, InputKind::huge_scores, InputKind::constant_scores);
  const Problem p = ordinary(type, GENERATE(Mask::none(), Mask::causal(), Mask::window(9, 2)));
  INFO(p.describe() << ", " << name(kind));
  const Case c = make_case(p, kind, 21);
  check_right(judge(c, rounded_reference(c)));
  check_right(judge(c, right_for(p)));
  check_right(judge(c, {.factors = type, .base_2 = true}));
  check_right(judge(c, {.factors = ElementType::fp32}));
  CHECK(c.yardstick.allowed.largest() < 5 * attention::unit_in_last_place(type));
}

TEST_CASE("16 bits: where P is rounded is a kernel's own affair, also with few rows and large scores", "[C23]") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  const bool base_2 = GENERATE(false, true);
  int wrong = 0;
  std::string sentence;
  const auto count = [&](const Problem& p, InputKind kind, const auto& verdict) {
    if (verdict.right) return;
    ++wrong;
    sentence = p.describe() + ", " + name(kind) + ": " + verdict.sentence;
  };
  for (const auto& [seqlen_q, seqlen_kv] : {std::pair{1, 1}, {5, 1}, {17, 2}, {3, 40}})
    for (const InputKind kind : {InputKind::normal, InputKind::huge_scores})
      for (std::uint64_t seed = 0; seed < 60; ++seed) {
        Problem p{.seqlen_q = seqlen_q, .seqlen_kv = seqlen_kv, .head_dim = 32, .mask = Mask::causal()};
        p.element_type = type;
        Case c = make_case(p, kind, seed);
        if (kind == InputKind::normal) {
          for (Floats* array : {&c.in.q, &c.in.k, &c.in.v})
            for (float& x : *array) x = rounded(3 * x, type);
          c.yardstick = attention::make_backward_yardstick(p, c.in.q, c.in.k, c.in.v, c.dout);
        }
        count(p, kind, judge(c, {.factors = type, .base_2 = base_2}));
        count(p, kind, judge(c, rounded_reference(c)));
        const Output out = tiled_forward(p, c.in, {.factors = type, .base_2 = base_2});
        count(p, kind, attention::judge_forward(p, c.in.q, c.in.k, c.in.v, out.o, out.lse));
      }
  INFO(sentence);
  CHECK(wrong == 0);
}

TEST_CASE("16 bits: among a thousand keys a gradient of zeros is wrong") {
  // Terms of either sign: the gradient is smaller than 2 ulps of bf16 of their sum.
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  Problem p{.seqlen_q = 8, .seqlen_kv = 1024, .head_dim = 64};
  p.element_type = type;
  const Case c = make_case(p, InputKind::normal, 22);
  const attention::BackwardMagnitudes terms = attention::backward_magnitudes(p, c.in.q, c.in.k, c.in.v, c.dout);
  double norm = 0;
  for (int n = 0; n < 64; ++n) norm = std::hypot(norm, c.yardstick.reference.dq[n]);
  CHECK(norm < 2 * attention::unit_in_last_place(ElementType::bf16) * terms.dq[0]);

  Gradients g = plain_loops(c, right_for(p));
  check_right(judge(c, g));
  std::fill(g.dq.begin(), g.dq.begin() + 64, 0.0f);
  const BackwardVerdict verdict = judge(c, g);
  check_wrong(verdict);
  CHECK(verdict.error.dq > 10 * verdict.allowed.dq);
  check_wrong(judge(c, {.factors = type, .zeros = true}));
}

TEST_CASE("the magnitude of a row and what is allowed, from their parts") {
  Problem p{.seqlen_q = 1, .seqlen_kv = 1, .head_dim = 4};
  CHECK(attention::backward_magnitude(p, 3, 99, 99, 7) == 3);
  CHECK(attention::allowed_backward_error(p, 0.5, 8) == 1 + 8 * 0x1p-22);
  p.element_type = ElementType::bf16;
  CHECK(attention::backward_magnitude(p, 3, 0.25, 0.5, 8) == 0.5 + 8 * 0x1p-16 * 3);
  CHECK(attention::backward_magnitude(p, 3, 0.75, 0.5, 1) == 0.75 + 0x1p-16 * 3);
  CHECK(attention::backward_magnitude(p, 0, 0.75, 0.5, 1) == 0);
  CHECK(attention::allowed_backward_error(p, 0.5, 8) == 1 + 0x1p-6);
  p.element_type = ElementType::fp16;
  CHECK(attention::backward_magnitude(p, 0x1p-20, 0, 0x1p-30, 1) == 2 * 0x1p-14 + 0x1p-13 * 0x1p-20);
  CHECK(attention::allowed_backward_error(p, 0.5, 8) == 1 + 0x1p-9);
}

TEST_CASE("16 bits: where fp32 leaves P no digits nothing is right") {
  Problem p = ordinary(GENERATE(ElementType::fp16, ElementType::bf16));
  p.softmax_scale = 1e5f;
  const Case c = make_case(p, InputKind::normal, 23);
  const BackwardVerdict verdict = judge(c, right_for(p));
  CHECK_FALSE(verdict.right);
  CHECK_THAT(verdict.sentence, ContainsText("not judged: with scores this large fp32 leaves exp(S - LSE) no digits"));
}
