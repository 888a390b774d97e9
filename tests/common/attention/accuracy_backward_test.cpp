/// \file
/// The accuracy rule for gradients: a correct fp32 kernel passes it, and every way of being wrong that we can think of
/// fails it.

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
using attention::InputKind;
using attention::Inputs;
using attention::make_inputs;
using attention::Mask;
using attention::Problem;
using attention::Strides;
using Floats = std::vector<float>;

namespace {

constexpr int kTile = 16;

/// What the kernel below can get wrong.
enum class Fault {
  none,
  drops_last_key,       ///< as a loop that ends one key early
  partial_o,            ///< D from the O of the first tile of keys
  no_group_sum,         ///< the last query head of a group overwrites dK and dV of the others
  no_scale_in_dk,       ///< dK without the scale
  no_scale_in_dq,       ///< dQ without the scale
  forgets_d,            ///< dS = P∘dP
  forgets_dlse,         ///< D without the gradient of the LSE
  dlse_of_wrong_sign,   ///< D = rowsum(dO∘O) + dLSE
  raw_lse,              ///< LSE taken as if the scores were not scaled
  sees_hidden_keys,     ///< the mask is not applied
  misses_last_queries,  ///< dK and dV without the last tile of queries
};

/// How the kernel below makes P: as the formula says, or as fast kernels do.
enum class Exponent { natural, base_2_fused };

struct Gradients {
  Floats dq, dk, dv;
};

struct Case {
  Problem p;
  Inputs in;
  Floats dout, dlse;
  BackwardYardstick yardstick;
};

Case make_case(const Problem& p, InputKind kind, std::uint64_t seed, bool with_dlse = false) {
  Case c{p, make_inputs(p, kind, seed), attention::make_output_gradient(p, seed), {}, {}};
  if (with_dlse) {
    const Problem rows{
        .batch = p.batch, .heads_q = p.heads_q, .heads_kv = p.heads_q, .seqlen_q = p.seqlen_q, .head_dim = 1};
    c.dlse = attention::make_output_gradient(rows, seed + 1);
  }
  c.yardstick = attention::make_backward_yardstick(p, c.in.q, c.in.k, c.in.v, c.dout, c.dlse);
  return c;
}

/// The backward in fp32 as a kernel with K/V tiles outside would do it: every tile's part of dQ, dK and dV is summed on
/// its own and added to the total, in an order that is neither of plain attention's.
Gradients tiled_backward(const Case& c, Fault fault = Fault::none, Exponent exponent = Exponent::natural) {
  const Problem& p = c.p;
  Gradients out{Floats(p.elements_dq(), NAN), Floats(p.elements_dk(), NAN), Floats(p.elements_dv(), NAN)};
  const auto args = attention::make_backward_args<float>(p, {.q = c.in.q.data(),
                                                             .k = c.in.k.data(),
                                                             .v = c.in.v.data(),
                                                             .o = c.yardstick.o.data(),
                                                             .lse = c.yardstick.lse.data(),
                                                             .dout = c.dout.data(),
                                                             .dlse = c.dlse.empty() ? nullptr : c.dlse.data(),
                                                             .dq = out.dq.data(),
                                                             .dk = out.dk.data(),
                                                             .dv = out.dv.data()});
  for (int b = 0; b < p.batch; ++b) {
    for (int i = 0; i < p.seqlen_q; ++i)
      for (int head = 0; head < p.heads_q; ++head) std::fill_n(args.dq_row(b, i, head), p.head_dim, 0.0f);
    for (int j = 0; j < p.seqlen_kv; ++j)
      for (int head = 0; head < p.heads_kv; ++head) {
        std::fill_n(args.dk_row(b, j, head), p.head_dim, 0.0f);
        std::fill_n(args.dv_row(b, j, head), p.head_dim, 0.0f);
      }
  }

  const auto dot = [&p](const float* x, const float* y) {
    float even = 0, odd = 0;
    for (int c = 0; c + 1 < p.head_dim; c += 2) {
      even += x[c] * y[c];
      odd += x[c + 1] * y[c + 1];
    }
    return even + odd;
  };
  const auto probability = [&](float product, float lse) {
    constexpr float kLog2E = std::numbers::log2e_v<float>;
    return exponent == Exponent::natural ? std::exp(args.softmax_scale * product - lse)
                                         : std::exp2(std::fma(args.softmax_scale * kLog2E, product, -(lse * kLog2E)));
  };
  Floats dk(kTile * p.head_dim), dv(kTile * p.head_dim), dq(p.head_dim);
  for (int b = 0; b < p.batch; ++b)
    for (int head = 0; head < p.heads_q; ++head) {
      const int head_kv = args.kv_head(head);
      const bool overwrites = fault == Fault::no_group_sum && head % (p.heads_q / p.heads_kv) != 0;
      for (int first = 0; first < p.seqlen_kv; first += kTile) {
        const int keys_in_tile = std::min(kTile, p.seqlen_kv - first);
        std::fill(dk.begin(), dk.end(), 0.0f);
        std::fill(dv.begin(), dv.end(), 0.0f);
        for (int i = 0; i < p.seqlen_q; ++i) {
          attention::KeyRange keys = args.visible_keys(i);
          if (keys.empty()) continue;
          if (fault == Fault::sees_hidden_keys) keys = {0, p.seqlen_kv};
          const int last_key = fault == Fault::drops_last_key ? keys.end - 1 : keys.end;
          const float* q = args.q_row(b, i, head);
          const float* dout = args.dout_row(b, i, head);
          const float* o = args.o_row(b, i, head);
          float lse = args.lse_gmem[args.row_index(b, i, head)];
          if (fault == Fault::raw_lse) lse /= args.softmax_scale;

          Floats partial(p.head_dim, 0.0f);
          if (fault == Fault::partial_o) {
            for (int j = keys.begin; j < std::min(keys.end, keys.begin + kTile); ++j) {
              const float weight = probability(dot(q, args.k_row(b, j, head_kv)), lse);
              for (int c = 0; c < p.head_dim; ++c) partial[c] += weight * args.v_row(b, j, head_kv)[c];
            }
            o = partial.data();
          }
          float d = fault == Fault::forgets_d ? 0.0f : dot(dout, o);
          if (args.dlse_gmem != nullptr && fault != Fault::forgets_dlse)
            d -= (fault == Fault::dlse_of_wrong_sign ? -1 : 1) * args.dlse_gmem[args.row_index(b, i, head)];

          std::fill(dq.begin(), dq.end(), 0.0f);
          for (int t = 0; t < keys_in_tile; ++t) {
            const int j = first + t;
            if (j < keys.begin || j >= last_key) continue;
            const float weight = probability(dot(q, args.k_row(b, j, head_kv)), lse);
            const float ds = args.softmax_scale * (weight * (dot(dout, args.v_row(b, j, head_kv)) - d));
            const bool counts = fault != Fault::misses_last_queries || i < p.seqlen_q - kTile;
            for (int c = 0; c < p.head_dim; ++c) {
              dq[c] += ds * args.k_row(b, j, head_kv)[c] / (fault == Fault::no_scale_in_dq ? args.softmax_scale : 1);
              if (!counts) continue;
              dk[t * p.head_dim + c] += ds * q[c] / (fault == Fault::no_scale_in_dk ? args.softmax_scale : 1);
              dv[t * p.head_dim + c] += weight * dout[c];
            }
          }
          for (int c = 0; c < p.head_dim; ++c) args.dq_row(b, i, head)[c] += dq[c];
        }
        for (int t = 0; t < keys_in_tile; ++t)
          for (int c = 0; c < p.head_dim; ++c) {
            float& to_dk = args.dk_row(b, first + t, head_kv)[c];
            float& to_dv = args.dv_row(b, first + t, head_kv)[c];
            to_dk = (overwrites ? 0.0f : to_dk) + dk[t * p.head_dim + c];
            to_dv = (overwrites ? 0.0f : to_dv) + dv[t * p.head_dim + c];
          }
      }
    }
  return out;
}

BackwardVerdict judge(const Case& c, const Gradients& g) {
  return attention::judge_backward(c.p, g.dq, g.dk, g.dv, c.yardstick);
}

Problem ordinary() {
  return {.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 40, .seqlen_kv = 67, .head_dim = 32};
}

void check_wrong(const BackwardVerdict& verdict) {
  INFO(verdict.sentence);
  CHECK_FALSE(verdict.right);
  CHECK_THAT(verdict.sentence, ContainsText("wrong: "));
}

void check_within(const BackwardVerdict& verdict, bool dq, bool dk, bool dv) {
  CHECK((verdict.error.dq <= verdict.allowed.dq) == dq);
  CHECK((verdict.error.dk <= verdict.allowed.dk) == dk);
  CHECK((verdict.error.dv <= verdict.allowed.dv) == dv);
}

}  // namespace

TEST_CASE("a tiled backward in fp32 is right on every kind of input") {
  const InputKind kind = GENERATE(InputKind::normal, InputKind::one_hot_v, InputKind::rising_scores,
                                  InputKind::falling_scores, InputKind::huge_scores, InputKind::constant_scores);
  const Mask mask = GENERATE(Mask::none(), Mask::causal(), Mask::window(9, 2));
  const bool with_dlse = GENERATE(false, true);
  Problem p = ordinary();
  p.mask = mask;
  const Case c = make_case(p, kind, 11, with_dlse);
  const BackwardVerdict verdict = judge(c, tiled_backward(c));
  INFO(name(kind) << ", " << mask.name() << ": " << verdict.sentence);
  CHECK(verdict.right);
  CHECK(verdict.sentence == "right");
  CHECK(verdict.error.largest() == std::max({verdict.error.dq, verdict.error.dk, verdict.error.dv}));
  for (const double allowed : {verdict.allowed.dq, verdict.allowed.dk, verdict.allowed.dv}) {
    CHECK(allowed >= 2 * 0x1p-23);
    if (kind == InputKind::normal || kind == InputKind::one_hot_v || kind == InputKind::constant_scores)
      CHECK(allowed < 1e-5);
    else if (kind != InputKind::huge_scores)
      CHECK(allowed < 1e-4);
  }
}

TEST_CASE("what is allowed is small at the sizes that kernels are tested at") {
  const int head_dim = GENERATE(32, 64, 128);
  const Problem p{.heads_q = 2,
                  .heads_kv = 1,
                  .seqlen_q = 190,
                  .seqlen_kv = 257,
                  .head_dim = head_dim,
                  .mask = GENERATE(Mask::none(), Mask::causal())};
  const Case c = make_case(p, InputKind::normal, 12);
  CHECK(c.yardstick.allowed.largest() < 1e-5);
  CHECK(c.yardstick.plain.largest() > 0);
  CHECK(c.yardstick.plain.largest() < 1e-6);
  CHECK(judge(c, tiled_backward(c)).right);
}

TEST_CASE("what is allowed: twice the plain error and 2 ulps of the exponent", "[C23]") {
  const auto check_allowed = [](const Case& c, double exponent) {
    const auto expected = [exponent](double plain) { return 2 * plain + 2 * 0x1p-23 * exponent; };
    CHECK(c.yardstick.allowed.dq == expected(c.yardstick.plain.dq));
    CHECK(c.yardstick.allowed.dk == expected(c.yardstick.plain.dk));
    CHECK(c.yardstick.allowed.dv == expected(c.yardstick.plain.dv));
  };
  const auto make = [](const Problem& p, const Inputs& in) {
    return Case{p, in, {1}, {}, attention::make_backward_yardstick(p, in.q, in.k, in.v, Floats{1})};
  };
  Problem p{.seqlen_q = 1, .seqlen_kv = 1, .head_dim = 1, .softmax_scale = 1.0f};
  check_allowed(make(p, {{10}, {-10}, {3}}), 100);
  check_allowed(make(p, {{0.5f}, {0.25f}, {3}}), 1);
  p.softmax_scale = -0.5f;
  check_allowed(make(p, {{10}, {-10}, {3}}), 50);
  p.seqlen_kv = 64;  // scores of 0: the LSE is log 64
  check_allowed(make(p, {{0}, Floats(64, 1.0f), Floats(64, 1.0f)}), double(float(std::log(64.0))));
}

TEST_CASE("where P is rounded is a kernel's own affair, also with few rows and large scores", "[C23]") {
  const int head_dim = GENERATE(32, 64);
  const Exponent exponent = GENERATE(Exponent::natural, Exponent::base_2_fused);
  int wrong = 0;
  std::string sentence;
  for (const auto& [seqlen_q, seqlen_kv] : {std::pair{1, 1}, {5, 1}, {17, 2}, {3, 40}})
    for (const InputKind kind : {InputKind::normal, InputKind::huge_scores})
      for (std::uint64_t seed = 0; seed < 60; ++seed) {
        const Problem p{.seqlen_q = seqlen_q, .seqlen_kv = seqlen_kv, .head_dim = head_dim, .mask = Mask::causal()};
        Case c{p, make_inputs(p, kind, seed), attention::make_output_gradient(p, seed), {}, {}};
        if (kind == InputKind::normal)
          for (Floats* array : {&c.in.q, &c.in.k, &c.in.v})
            for (float& x : *array) x *= 3;
        c.yardstick = attention::make_backward_yardstick(p, c.in.q, c.in.k, c.in.v, c.dout);
        const BackwardVerdict verdict = judge(c, tiled_backward(c, Fault::none, exponent));
        if (verdict.right) continue;
        ++wrong;
        sentence = p.describe() + ", " + name(kind) + ": " + verdict.sentence;
      }
  INFO(sentence);
  CHECK(wrong == 0);
}

TEST_CASE("a score that no query sees does not loosen the rule") {
  // Key 0 is huge, and only queries that see nothing but later keys are left.
  Problem p{.seqlen_q = 20, .seqlen_kv = 40, .head_dim = 32, .mask = Mask::window(5, 0)};
  Inputs in = make_inputs(p, InputKind::normal, 28);
  std::fill_n(in.k.begin(), 32, 1e6f);
  Case c{p, in, attention::make_output_gradient(p, 28), {}, {}};
  c.yardstick = attention::make_backward_yardstick(p, c.in.q, c.in.k, c.in.v, c.dout);
  CHECK(c.yardstick.allowed.largest() < 1e-5);
  CHECK(judge(c, tiled_backward(c)).right);
}

TEST_CASE("both plain forms are right by their own yardstick") {
  const InputKind kind = GENERATE(InputKind::normal, InputKind::huge_scores);
  const Case c = make_case(ordinary(), kind, 13, true);
  for (const auto form : {attention::PlainForm::textbook, attention::PlainForm::folded_scale}) {
    const auto plain =
        attention::plain_backward(c.p, c.in.q, c.in.k, c.in.v, c.yardstick.o, c.yardstick.lse, c.dout, c.dlse, form);
    CHECK(judge(c, {plain.dq, plain.dk, plain.dv}).right);
  }
}

TEST_CASE("a wrong backward is wrong on every input that can show it") {
  const InputKind kind = GENERATE(InputKind::normal, InputKind::one_hot_v, InputKind::rising_scores);
  Problem p = ordinary();
  p.mask = GENERATE(Mask::none(), Mask::causal());
  const Case c = make_case(p, kind, 14, true);
  INFO(name(kind) << ", " << p.mask.name());
  check_wrong(judge(c, tiled_backward(c, Fault::drops_last_key)));
  check_wrong(judge(c, tiled_backward(c, Fault::partial_o)));
  check_wrong(judge(c, tiled_backward(c, Fault::no_group_sum)));
  check_wrong(judge(c, tiled_backward(c, Fault::no_scale_in_dk)));
  check_wrong(judge(c, tiled_backward(c, Fault::no_scale_in_dq)));
  check_wrong(judge(c, tiled_backward(c, Fault::forgets_d)));
  check_wrong(judge(c, tiled_backward(c, Fault::forgets_dlse)));
  check_wrong(judge(c, tiled_backward(c, Fault::dlse_of_wrong_sign)));
  check_wrong(judge(c, tiled_backward(c, Fault::raw_lse)));
  check_wrong(judge(c, tiled_backward(c, Fault::misses_last_queries)));
  if (p.mask == Mask::causal()) check_wrong(judge(c, tiled_backward(c, Fault::sees_hidden_keys)));
}

TEST_CASE("the gradients that stay right tell what is wrong", "[C40][C51]") {
  const Case c = make_case(ordinary(), InputKind::normal, 15, true);
  SECTION("D: only dQ and dK use it") {
    for (const Fault fault : {Fault::partial_o, Fault::forgets_d, Fault::forgets_dlse}) {
      const BackwardVerdict verdict = judge(c, tiled_backward(c, fault));
      check_within(verdict, false, false, true);
      CHECK_THAT(verdict.sentence, ContainsText("wrong: error of a row of dQ over its terms is "));
      CHECK_THAT(verdict.sentence, ContainsText("dV is right: look at D and dP"));
    }
  }
  SECTION("the group, and the queries") {
    for (const Fault fault : {Fault::no_group_sum, Fault::misses_last_queries}) {
      const BackwardVerdict verdict = judge(c, tiled_backward(c, fault));
      check_within(verdict, true, false, false);
      CHECK_THAT(verdict.sentence, ContainsText("wrong: error of a row of dK over its terms is "));
      CHECK_THAT(verdict.sentence, ContainsText("dQ is right: look at the sum over queries"));
    }
  }
  SECTION("the scale, in one of the two") {
    const BackwardVerdict dk = judge(c, tiled_backward(c, Fault::no_scale_in_dk));
    check_within(dk, true, false, true);
    CHECK_THAT(dk.sentence, ContainsText("dQ and dV are right"));
    const BackwardVerdict dq = judge(c, tiled_backward(c, Fault::no_scale_in_dq));
    check_within(dq, false, true, true);
    CHECK_THAT(dq.sentence, ContainsText("dK and dV are right: look at the sum over keys"));
  }
  SECTION("P: all three") {
    const BackwardVerdict verdict = judge(c, tiled_backward(c, Fault::raw_lse));
    check_within(verdict, false, false, false);
    CHECK_THAT(verdict.sentence, ContainsText("look at P and LSE, and for heads or tiles"));
  }
}

TEST_CASE("one dropped key among many is wrong") {
  const Problem p{.seqlen_q = 20, .seqlen_kv = 1500, .head_dim = 64};
  const Case c = make_case(p, InputKind::normal, 16);
  CHECK(judge(c, tiled_backward(c)).right);
  check_wrong(judge(c, tiled_backward(c, Fault::drops_last_key)));
}

TEST_CASE("one NaN in a gradient is wrong, and the sentence says where") {
  const Case c = make_case(ordinary(), InputKind::normal, 17);
  Gradients g = tiled_backward(c);
  SECTION("in dQ") {
    g.dq[c.p.strides_dq().offset(1, 13, 2) + 5] = NAN;
    const BackwardVerdict verdict = judge(c, g);
    check_wrong(verdict);
    CHECK(std::isinf(verdict.error.dq));
    CHECK(std::isinf(verdict.error.largest()));
    CHECK_THAT(verdict.sentence, ContainsText("at batch 1, head 2, query 13: dQ[5] is nan, the reference "));
  }
  SECTION("in dK") {
    g.dk[c.p.strides_dk().offset(0, 66, 1) + 31] = NAN;
    const BackwardVerdict verdict = judge(c, g);
    check_wrong(verdict);
    CHECK(std::isinf(verdict.error.dk));
    CHECK_THAT(verdict.sentence, ContainsText("at batch 0, head 1, key 66: dK[31] is nan, the reference "));
  }
  SECTION("in dV") {
    g.dv[0] = NAN;
    const BackwardVerdict verdict = judge(c, g);
    check_wrong(verdict);
    CHECK_THAT(verdict.sentence, ContainsText("at batch 0, head 0, key 0: dV[0] is nan, the reference "));
    CHECK_THAT(verdict.sentence, ContainsText("dQ and dK are right"));
  }
  SECTION("an infinity is no better") {
    g.dq[17] = std::numeric_limits<float>::infinity();
    check_wrong(judge(c, g));
  }
  SECTION("a buffer nobody wrote") {
    std::fill(g.dk.begin(), g.dk.end(), NAN);
    check_wrong(judge(c, g));
  }
}

TEST_CASE("NaN in the inputs of a backward is not excused by a yardstick that is NaN itself") {
  const Problem p = ordinary();
  Inputs in = make_inputs(p, InputKind::normal, 18);
  in.v[3] = NAN;
  Case c{p, in, attention::make_output_gradient(p, 18), {}, {}};
  c.yardstick = attention::make_backward_yardstick(p, c.in.q, c.in.k, c.in.v, c.dout);
  CHECK_FALSE(judge(c, tiled_backward(c)).right);
}

TEST_CASE("gradients of what sees nothing, or is not seen, must be exactly 0", "[C01]") {
  const float least = std::numeric_limits<float>::denorm_min();
  SECTION("queries") {
    const Case c =
        make_case({.seqlen_q = 46, .seqlen_kv = 32, .head_dim = 32, .mask = Mask::causal()}, InputKind::normal, 19);
    Gradients g = tiled_backward(c);
    CHECK(judge(c, g).right);
    CHECK(c.yardstick.lse[13] == -std::numeric_limits<float>::infinity());
    CHECK(c.yardstick.o[13 * 32] == 0.0f);
    g.dq[13 * 32] = least;
    const BackwardVerdict verdict = judge(c, g);
    check_wrong(verdict);
    CHECK(std::isinf(verdict.error.dq));
    CHECK_THAT(verdict.sentence, ContainsText("head 0, query 13: dQ[0] is "));
  }
  SECTION("keys") {
    const Case c =
        make_case({.seqlen_q = 3, .seqlen_kv = 40, .head_dim = 32, .mask = Mask::window(4, 0)}, InputKind::normal, 20);
    Gradients g = tiled_backward(c);
    CHECK(judge(c, g).right);
    g.dk[32 * 32] = least;
    check_wrong(judge(c, g));
    g = tiled_backward(c);
    g.dv[32 * 32] = -least;
    check_wrong(judge(c, g));
    g = tiled_backward(c);
    g.dv[32 * 32] = -0.0f;
    CHECK(judge(c, g).right);
  }
  SECTION("no queries at all: dK and dV are 0 and have to be written") {
    const Case c = make_case({.seqlen_q = 0, .seqlen_kv = 5, .head_dim = 32}, InputKind::normal, 21);
    CHECK(judge(c, {{}, Floats(5 * 32, 0.0f), Floats(5 * 32, 0.0f)}).right);
    check_wrong(judge(c, {{}, Floats(5 * 32, NAN), Floats(5 * 32, 0.0f)}));
  }
  SECTION("a scale of 0 leaves no gradient of Q and K") {
    Problem p = ordinary();
    p.softmax_scale = 0.0f;
    const Case c = make_case(p, InputKind::normal, 22);
    Gradients g = tiled_backward(c);
    CHECK(judge(c, g).right);
    g.dq[5] = 1e-30f;
    check_wrong(judge(c, g));
  }
}

TEST_CASE("one key: a gradient that cancels to 0 may be off by its terms' rounding, and no more", "[C23]") {
  const Case c = make_case({.seqlen_q = 30, .seqlen_kv = 1, .head_dim = 32}, InputKind::normal, 23);
  Gradients g = tiled_backward(c);
  const BackwardVerdict verdict = judge(c, g);
  INFO(verdict.sentence);
  CHECK(verdict.right);
  CHECK(verdict.allowed.largest() < 1e-5);
  g.dq[40] += float(1e-4 * c.yardstick.magnitudes.dq[1]);
  check_wrong(judge(c, g));
}

TEST_CASE("keys whose P underflows in fp32 do not loosen the rule") {
  // Scores rise by 0.25 a key: over 800 keys the first P is about e⁻²⁰⁰, which fp32 calls 0.
  const Case c = make_case({.seqlen_q = 10, .seqlen_kv = 800, .head_dim = 32}, InputKind::rising_scores, 24);
  CHECK(c.yardstick.allowed.largest() < 1e-4);
  Gradients g = tiled_backward(c);
  const BackwardVerdict verdict = judge(c, g);
  INFO(verdict.sentence);
  CHECK(verdict.right);
  g.dv[0] = 1e-30f;
  check_wrong(judge(c, g));
}

TEST_CASE("O for the kernels, and the gradients, lie by the problem's strides", "[C18]") {
  const Problem dense = ordinary();
  const Case expected = make_case(dense, InputKind::normal, 25);
  Problem p = dense;
  p.o_strides = Strides{4 * 40 * 40, 40, 40 * 40, 1};
  p.dout_strides = Strides{50 * 4 * 32, 4 * 32, 32, 1};
  p.dq_strides = Strides{5 * 40 * 33, 33, 40 * 33, 1};
  p.dk_strides = Strides{2 * 67 * 36, 36, 67 * 36, 1};
  p.dv_strides = Strides{70 * 90, 90, 40, 1};
  const Case c = make_case(p, InputKind::normal, 25);
  CHECK(std::isnan(c.yardstick.o[32]));
  CHECK(c.yardstick.o[p.o_strides->offset(1, 7, 3) + 4] == expected.yardstick.o[((1 * 40 + 7) * 4 + 3) * 32 + 4]);
  CHECK(c.yardstick.lse == expected.yardstick.lse);
  CHECK(c.yardstick.allowed.dq == expected.yardstick.allowed.dq);
  CHECK(c.yardstick.allowed.dk == expected.yardstick.allowed.dk);
  CHECK(c.yardstick.allowed.dv == expected.yardstick.allowed.dv);
  Gradients g = tiled_backward(c);
  CHECK(std::isnan(g.dq[32]));
  CHECK(std::isnan(g.dv[80]));
  CHECK(judge(c, g).right);
  g.dv[p.dv_strides->offset(1, 66, 1) + 31] *= 1.01f;
  check_wrong(judge(c, g));
}

TEST_CASE("an expanded gradient, stride 0, is judged as it lies", "[C18]") {
  Problem p = ordinary();
  p.dout_strides = Strides{0, 0, 0, 1};
  const Case c = make_case(p, InputKind::normal, 26);
  REQUIRE(c.dout.size() == 32);
  CHECK(judge(c, tiled_backward(c)).right);
}

TEST_CASE("where fp32 leaves P no digits nothing is right") {
  Problem p = ordinary();
  p.softmax_scale = 1e5f;
  const Case c = make_case(p, InputKind::normal, 28);
  CHECK(c.yardstick.allowed.largest() > attention::kLargestAllowedError);
  const BackwardVerdict verdict = judge(c, tiled_backward(c));
  CHECK_FALSE(verdict.right);
  CHECK_THAT(verdict.sentence, ContainsText("not judged: with scores this large"));
}

TEST_CASE("spans of gradients too short for the problem are refused") {
  const Case c = make_case(ordinary(), InputKind::normal, 27);
  Gradients g = tiled_backward(c);
  g.dk.pop_back();
  CHECK_THROWS_WITH(judge(c, g), "dk must hold 8576 elements: it holds 8575");
  BackwardYardstick none;
  g.dk.push_back(0);
  CHECK_THROWS_WITH(attention::judge_backward(c.p, g.dq, g.dk, g.dv, none), ContainsText("reference.dq must hold"));
}
