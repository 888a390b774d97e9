/// \file
/// The accuracy rule: a correct fp32 kernel passes it, and every way of being wrong that we can think of fails it.

#include "common/attention/accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/attention/inputs.hpp"
#include "tests/catch.hpp"

using attention::InputKind;
using attention::Inputs;
using attention::make_inputs;
using attention::Mask;
using attention::Problem;
using attention::Strides;
using attention::Verdict;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// What the kernel below can get wrong.
enum class Fault { none, ignores_k, drops_last_key, forgets_rescale, lse_base_2, lse_of_raw_scores, top_left };

struct Output {
  std::vector<float> o, lse;
};

/// Attention over tiles of 16 keys with a running maximum, in fp32: what the chapters' kernels compute.
Output tiled_attention(const Problem& p, const Inputs& in, Fault fault = Fault::none) {
  constexpr int kTile = 16;
  Output out{std::vector<float>(p.elements_o(), NAN), std::vector<float>(p.elements_lse(), NAN)};
  const auto args =
      attention::make_forward_args(p, in.q.data(), in.k.data(), in.v.data(), out.o.data(), out.lse.data());
  for (int b = 0; b < p.batch; ++b)
    for (int head = 0; head < p.heads_q; ++head)
      for (int i = 0; i < p.seqlen_q; ++i) {
        attention::KeyRange keys = args.visible_keys(i);
        if (fault == Fault::drops_last_key && keys.end == p.seqlen_kv) --keys.end;
        if (fault == Fault::top_left) keys = {0, std::min(i + 1, p.seqlen_kv)};
        std::vector<float> acc(p.head_dim, 0.0f);
        float m = -kInfinity, l = 0;
        for (int first = keys.begin; first < keys.end; first += kTile) {
          const int size = std::min(kTile, keys.end - first);
          float s[kTile];
          float m_new = m;
          for (int j = 0; j < size; ++j) {
            s[j] = 0;
            const float* k = args.k_row(b, first + j, args.kv_head(head));
            for (int c = 0; c < p.head_dim; ++c) s[j] += args.q_row(b, i, head)[c] * k[c];
            s[j] = fault == Fault::ignores_k ? 0 : s[j] * args.softmax_scale;
            m_new = std::max(m_new, s[j]);
          }
          const float rescale = fault == Fault::forgets_rescale ? 1 : std::exp(m - m_new);
          l *= rescale;
          for (float& x : acc) x *= rescale;
          for (int j = 0; j < size; ++j) {
            const float weight = std::exp(s[j] - m_new);
            l += weight;
            const float* v = args.v_row(b, first + j, args.kv_head(head));
            for (int c = 0; c < p.head_dim; ++c) acc[c] += weight * v[c];
          }
          m = m_new;
        }
        for (int c = 0; c < p.head_dim; ++c) args.o_row(b, i, head)[c] = keys.empty() ? 0 : acc[c] / l;
        float lse = keys.empty() ? -kInfinity : m + std::log(l);
        if (fault == Fault::lse_base_2) lse *= 1.44269504f;
        if (fault == Fault::lse_of_raw_scores) lse /= args.softmax_scale;
        *args.lse_entry(b, i, head) = lse;
      }
  return out;
}

Verdict judge(const Problem& p, const Inputs& in, const Output& out) {
  return attention::judge_forward(p, in.q, in.k, in.v, out.o, out.lse);
}

Problem ordinary() {
  return {.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 40, .seqlen_kv = 67, .head_dim = 32};
}

void check_wrong(const Verdict& verdict) {
  INFO(verdict.sentence);
  CHECK_FALSE(verdict.right);
  CHECK_THAT(verdict.sentence, ContainsText("wrong: "));
}

}  // namespace

TEST_CASE("a tiled softmax in fp32 is right on every kind of input") {
  const InputKind kind = GENERATE(InputKind::normal, InputKind::one_hot_v, InputKind::rising_scores,
                                  InputKind::falling_scores, InputKind::huge_scores, InputKind::constant_scores);
  const Mask mask = GENERATE(Mask::none(), Mask::causal(), Mask::window(9, 2));
  Problem p = ordinary();
  p.mask = mask;
  const Inputs in = make_inputs(p, kind, 11);
  const Output out = tiled_attention(p, in);
  const attention::ForwardYardstick yardstick = attention::make_forward_yardstick(p, in.q, in.k, in.v);
  const Verdict verdict = attention::judge_forward(p, out.o, out.lse, yardstick);
  INFO(name(kind) << ": " << verdict.sentence);
  CHECK(verdict.right);
  CHECK(verdict.sentence == "right");
  CHECK(verdict.allowed.relative >= 2 * yardstick.plain.relative);

  // Only the two kinds whose scores are large may be off by more than a few roundings.
  if (kind != InputKind::huge_scores) CHECK(verdict.allowed.relative < 1e-4);
}

TEST_CASE("a wrong kernel is wrong on every input that can show it") {
  const InputKind kind = GENERATE(InputKind::normal, InputKind::one_hot_v, InputKind::rising_scores);
  const Mask mask = GENERATE(Mask::none(), Mask::causal());
  Problem p = ordinary();
  p.mask = mask;
  const Inputs in = make_inputs(p, kind, 12);
  INFO(name(kind) << ", " << mask.name());
  check_wrong(judge(p, in, tiled_attention(p, in, Fault::ignores_k)));
  check_wrong(judge(p, in, tiled_attention(p, in, Fault::drops_last_key)));
  check_wrong(judge(p, in, tiled_attention(p, in, Fault::forgets_rescale)));
  check_wrong(judge(p, in, tiled_attention(p, in, Fault::lse_base_2)));
  check_wrong(judge(p, in, tiled_attention(p, in, Fault::lse_of_raw_scores)));
  check_wrong(judge(p, in, tiled_attention(p, in, Fault::top_left)));
}

TEST_CASE("an average of V is wrong even over many keys") {
  // The error of such a kernel shrinks as the keys grow in number, since both averages approach the mean of V.
  const Problem p{.seqlen_q = 4, .seqlen_kv = 1500, .head_dim = 64};
  const Inputs in = make_inputs(p, InputKind::normal, 13);
  check_wrong(judge(p, in, tiled_attention(p, in, Fault::ignores_k)));
  check_wrong(judge(p, in, tiled_attention(p, in, Fault::drops_last_key)));
}

TEST_CASE("LSE in base 2 is wrong and O is not blamed", "[C30]") {
  const Problem p = ordinary();
  const Inputs in = make_inputs(p, InputKind::normal, 14);
  const Verdict verdict = judge(p, in, tiled_attention(p, in, Fault::lse_base_2));
  check_wrong(verdict);
  CHECK(verdict.error.relative <= verdict.allowed.relative);
  CHECK_THAT(verdict.sentence, ContainsText("error of LSE is"));
}

TEST_CASE("one NaN is wrong, and the sentence says where") {
  const Problem p = ordinary();
  const Inputs in = make_inputs(p, InputKind::normal, 15);
  Output out = tiled_attention(p, in);
  SECTION("in O") {
    out.o[p.strides_o().offset(1, 13, 2) + 5] = NAN;
    const Verdict verdict = judge(p, in, out);
    check_wrong(verdict);
    CHECK(std::isinf(verdict.error.relative));
    CHECK(std::isinf(verdict.error.absolute));
    CHECK_THAT(verdict.sentence, ContainsText("at batch 1, head 2, query 13: O[5] is nan, the reference "));
  }
  SECTION("in LSE") {
    out.lse[(1 * 4 + 3) * 40 + 7] = NAN;
    const Verdict verdict = judge(p, in, out);
    check_wrong(verdict);
    CHECK(std::isinf(verdict.error.lse));
    CHECK_THAT(verdict.sentence, ContainsText("at batch 1, head 3, query 7: LSE is nan, the reference "));
  }
  SECTION("an infinity is no better") {
    out.o[17] = kInfinity;
    check_wrong(judge(p, in, out));
  }
  SECTION("a buffer nobody wrote") {
    check_wrong(judge(p, in, {std::vector<float>(out.o.size(), NAN), std::vector<float>(out.lse.size(), NAN)}));
  }
}

TEST_CASE("NaN in the inputs is not excused by a yardstick that is NaN itself") {
  const Problem p = ordinary();
  Inputs in = make_inputs(p, InputKind::normal, 16);
  in.v[3] = NAN;
  CHECK_FALSE(judge(p, in, tiled_attention(p, in)).right);
}

TEST_CASE("a row that sees nothing must be exactly 0 and minus infinity", "[C01]") {
  const Problem p{.seqlen_q = 46, .seqlen_kv = 32, .head_dim = 32, .mask = Mask::causal()};
  const Inputs in = make_inputs(p, InputKind::normal, 17);
  const Output right = tiled_attention(p, in);
  CHECK(judge(p, in, right).right);
  Output wrong = right;
  SECTION("the least number above 0") {
    wrong.o[13 * 32] = std::numeric_limits<float>::denorm_min();
    const Verdict verdict = judge(p, in, wrong);
    check_wrong(verdict);
    CHECK(std::isinf(verdict.error.relative));
  }
  SECTION("a large negative LSE") {
    wrong.lse[13] = std::numeric_limits<float>::lowest();
    check_wrong(judge(p, in, wrong));
  }
  SECTION("plus infinity") {
    wrong.lse[13] = kInfinity;
    check_wrong(judge(p, in, wrong));
  }
  SECTION("minus infinity in a live row") {
    wrong.lse[14] = -kInfinity;
    check_wrong(judge(p, in, wrong));
  }
}

TEST_CASE("the absolute error is measured against the values a row sees") {
  // Query 0 sees key 0 only, where V is 1. An error of 1e-4 there is large, though V is 1000 further on.
  const Problem p{.seqlen_q = 2, .seqlen_kv = 2, .head_dim = 1, .mask = Mask::causal()};
  const std::vector<float> zeros(2, 0.0f), v{1, 1000};
  const attention::ReferenceForward reference = attention::reference_forward(p, zeros, zeros, v);
  const std::vector<float> lse{0, 0.693147182f};
  const attention::ForwardError first =
      attention::forward_error(p, std::vector<float>{1.5f, 500.5f}, lse, v, reference);
  CHECK(first.absolute == 0.5);
  CHECK(first.relative == 0.5);
  const attention::ForwardError second = attention::forward_error(p, std::vector<float>{1, 501}, lse, v, reference);
  CHECK(second.absolute == 0.5 / 1000);
  CHECK(second.relative == 0.5 / 500.5);

  // The largest visible |V| under a window, where keys also leave on the left.
  const Problem window{.seqlen_q = 3, .seqlen_kv = 3, .head_dim = 1, .mask = Mask::window(1, 0)};
  const std::vector<float> zeros3(3, 0.0f), falling{-8, 4, 2};
  const auto falling_reference = attention::reference_forward(window, zeros3, zeros3, falling);
  const auto error = attention::forward_error(window, std::vector<float>{-8, -2, 4}, std::vector<float>{0, 1, 1},
                                              falling, falling_reference);
  CHECK(error.absolute == 1.0 / 4);
}

TEST_CASE("O is read through its strides and gaps are not looked at", "[C18]") {
  Problem p = ordinary();
  p.o_strides = Strides{4 * 40 * 40, 40, 40 * 40, 1};
  const Inputs in = make_inputs(p, InputKind::normal, 18);
  const Output out = tiled_attention(p, in);
  CHECK(std::isnan(out.o[32]));
  CHECK(judge(p, in, out).right);
}

TEST_CASE("spans too short for the problem are refused") {
  const Problem p = ordinary();
  const Inputs in = make_inputs(p, InputKind::normal, 19);
  Output out = tiled_attention(p, in);
  out.lse.pop_back();
  CHECK_THROWS_WITH(judge(p, in, out), "lse must hold 320 elements: it holds 319");
}
