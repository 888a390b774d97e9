/// \file
/// The float64 forward against cases that can be worked out by hand. (Its gradients: reference_backward_test.cpp.)

#include "common/attention/reference.hpp"

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
using attention::PlainForm;
using attention::Problem;
using attention::reference_backward;
using attention::reference_forward;
using attention::ReferenceBackward;
using attention::ReferenceForward;
using attention::Strides;
using Catch::Matchers::WithinAbs;
using Floats = std::vector<float>;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Values equal to the six places in which they are written down.
void check_near(const std::vector<double>& values, const std::vector<double>& expected, double tolerance = 5e-7) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    if (std::isinf(expected[i]))
      CHECK(values[i] == expected[i]);
    else
      CHECK_THAT(values[i], WithinAbs(expected[i], tolerance));
  }
}

/// Both fp32 forms give what the reference gives, as closely as fp32 can.
void check_plain_agrees(const Problem& p, const Inputs& in, const ReferenceForward& reference, double tolerance) {
  for (const PlainForm form : {PlainForm::textbook, PlainForm::folded_scale}) {
    const auto plain = attention::plain_forward(p, in.q, in.k, in.v, form);
    check_near({plain.o.begin(), plain.o.end()}, reference.o, tolerance);
    check_near({plain.lse.begin(), plain.lse.end()}, reference.lse, tolerance);
  }
}

/// One row of Q = 1 against keys that are the scores themselves, with head_dim 1 and scale 1.
ReferenceForward softmax_of(const Floats& scores, const Floats& v) {
  const Problem p{.seqlen_q = 1, .seqlen_kv = int(scores.size()), .head_dim = 1, .softmax_scale = 1.0f};
  return reference_forward(p, Floats{1}, scores, v);
}

/// Copies an array from one layout to another.
void relayout(const Floats& from, const Strides& from_strides, float* to, const Strides& to_strides, int batch,
              int seqlen, int heads, int head_dim) {
  for (int b = 0; b < batch; ++b)
    for (int i = 0; i < seqlen; ++i)
      for (int h = 0; h < heads; ++h)
        std::copy_n(from.data() + from_strides.offset(b, i, h), head_dim, to + to_strides.offset(b, i, h));
}

void check_equal(const ReferenceForward& a, const ReferenceForward& b) {
  CHECK(a.o == b.o);
  CHECK(a.lse == b.lse);
}

void check_equal(const ReferenceBackward& a, const ReferenceBackward& b) {
  CHECK(a.dq == b.dq);
  CHECK(a.dk == b.dk);
  CHECK(a.dv == b.dv);
}

}  // namespace

TEST_CASE("rows that see nothing are 0 and minus infinity", "[C01]") {
  const Problem p{.seqlen_q = 5, .seqlen_kv = 2, .head_dim = 1, .mask = Mask::causal()};
  const Inputs in{Floats(5, 0.0f), Floats(2, 0.0f), {1, 3}};
  const ReferenceForward forward = reference_forward(p, in.q, in.k, in.v);
  check_near(forward.o, {0, 0, 0, 1, 2});
  check_near(forward.lse, {-kInfinity, -kInfinity, -kInfinity, 0, 0.693147});
  check_plain_agrees(p, in, forward, 1e-6);
}

TEST_CASE("a leading block of empty rows leaves the others alone", "[C01]") {
  const Problem p{.seqlen_q = 46, .seqlen_kv = 32, .head_dim = 4, .mask = Mask::causal()};
  const Inputs in = make_inputs(p, InputKind::normal, 1);
  const ReferenceForward forward = reference_forward(p, in.q, in.k, in.v);
  const ReferenceBackward backward = reference_backward(p, in.q, in.k, in.v, attention::make_output_gradient(p, 1));
  for (int i = 0; i < 14; ++i) {
    CHECK(forward.lse[i] == -kInfinity);
    for (int c = 0; c < 4; ++c) {
      CHECK(forward.o[4 * i + c] == 0.0);
      CHECK(backward.dq[4 * i + c] == 0.0);
    }
  }
  // The live rows are the square causal problem of the last 32 queries.
  Problem square = p;
  square.seqlen_q = 32;
  const Floats last_queries(in.q.begin() + 14 * 4, in.q.end());
  const ReferenceForward live = reference_forward(square, last_queries, in.k, in.v);
  check_near({forward.o.begin() + 14 * 4, forward.o.end()}, live.o, 1e-14);
  check_near({forward.lse.begin() + 14, forward.lse.end()}, live.lse, 1e-14);
  for (const auto* gradient : {&backward.dq, &backward.dk, &backward.dv})
    CHECK(std::all_of(gradient->begin(), gradient->end(), [](double x) { return std::isfinite(x); }));
}

TEST_CASE("one query with a cache sees every key", "[C03a]") {
  const Problem p{.seqlen_q = 1, .seqlen_kv = 8, .head_dim = 8, .mask = Mask::causal()};
  const Inputs in = make_inputs(p, InputKind::one_hot_v, 1);
  const ReferenceForward forward = reference_forward(p, Floats(8, 0.0f), in.k, in.v);
  check_near(forward.o, std::vector<double>(8, 0.125));
}

TEST_CASE("windows leave the right keys", "[C05]") {
  const auto one_hot_weights = [](int left) {
    const Problem p{.seqlen_q = 4, .seqlen_kv = 4, .head_dim = 4, .mask = Mask::window(left, 0)};
    const Inputs in = make_inputs(p, InputKind::one_hot_v, 1);
    return reference_forward(p, Floats(16, 0.0f), in.k, in.v).o;
  };
  const double h = 0.5, t = 1.0 / 3, q = 0.25;
  check_near(one_hot_weights(1), {1, 0, 0, 0, h, h, 0, 0, 0, h, h, 0, 0, 0, h, h});
  check_near(one_hot_weights(2), {1, 0, 0, 0, h, h, 0, 0, t, t, t, 0, 0, t, t, t});
  check_near(one_hot_weights(3), {1, 0, 0, 0, h, h, 0, 0, t, t, t, 0, q, q, q, q});  // left = Nk − 1 is causal

  const Problem ragged{.seqlen_q = 129, .seqlen_kv = 64, .head_dim = 2, .mask = Mask::window(32, 64)};
  const Inputs in = make_inputs(ragged, InputKind::normal, 2);
  const ReferenceForward forward = reference_forward(ragged, in.q, in.k, in.v);
  CHECK(forward.lse[0] == -kInfinity);
  CHECK(std::count(forward.lse.begin(), forward.lse.end(), -kInfinity) == 1);
  check_near({forward.o[0], forward.o[1], forward.o[2], forward.o[3]}, {0, 0, in.v[0], in.v[1]}, 1e-12);
}

TEST_CASE("scores far below any finite stand-in for minus infinity", "[C08]") {
  const Problem p{.seqlen_q = 1, .seqlen_kv = 4, .head_dim = 128};
  Inputs in{Floats(128, 0.0f), Floats(512, 0.0f), Floats(512, 0.0f)};
  in.q[0] = 1000;
  for (int j = 0; j < 4; ++j) {
    in.k[128 * j] = -200;
    in.v[128 * j] = float(j + 1);
  }
  const ReferenceForward forward = reference_forward(p, in.q, in.k, in.v);
  CHECK_THAT(forward.o[0], WithinAbs(2.5, 1e-12));
  // The scale is an fp32 number, so the score is right to its 2⁻²⁴ and no closer.
  CHECK_THAT(forward.lse[0], WithinAbs(-17676.283, 2e-3));
}

TEST_CASE("LSE is the natural logarithm over all keys", "[C13][C30][C48]") {
  check_near(softmax_of(Floats(8, 0.0f), Floats(8, 1.0f)).lse, {2.079442});
  check_near(softmax_of({-50, 60}, {0, 1}).lse, {60});
  check_near(softmax_of({0, 0}, {0, 1}).lse, {0.693147});
  check_near(softmax_of({5}, {1}).lse, {5});
  check_near(softmax_of({}, {}).lse, {-kInfinity});
  const ReferenceForward halves = softmax_of({0, 0, 0, 0, 2, 2, 2, 2}, {0, 0, 0, 0, 1, 1, 1, 1});
  check_near(halves.o, {0.880797});
  CHECK_THAT(halves.lse[0], WithinAbs(2 + std::log(4 + 4 * std::exp(-2.0)), 1e-12));
}

TEST_CASE("query heads share KV heads in groups", "[C21]") {
  const auto heads_seen = [](int heads_q, int heads_kv) {
    const Problem p{.heads_q = heads_q, .heads_kv = heads_kv, .seqlen_q = 1, .seqlen_kv = 3, .head_dim = 1};
    Floats v;
    for (int j = 0; j < 3; ++j)
      for (int g = 0; g < heads_kv; ++g) v.push_back(float(g + 1));
    return reference_forward(p, Floats(heads_q, 0.0f), Floats(3 * heads_kv, 0.0f), v).o;
  };
  check_near(heads_seen(4, 2), {1, 1, 2, 2});
  check_near(heads_seen(4, 4), {1, 2, 3, 4});
  CHECK_THAT(heads_seen(28, 4)[27], WithinAbs(4, 1e-12));
  CHECK_THROWS_WITH(heads_seen(6, 4), "heads_q must be a multiple of heads_kv: 6 is not a multiple of 4");
}

TEST_CASE("the scale: by the true head_dim, or what is given, 0 included", "[C28]") {
  Problem p{.seqlen_q = 1, .seqlen_kv = 2, .head_dim = 72};
  Inputs in{Floats(72, 0.0f), Floats(144, 0.0f), Floats(144, 0.0f)};
  in.q[0] = 1;
  in.k[0] = 10;
  in.v[0] = 1;
  CHECK_THAT(reference_forward(p, in.q, in.k, in.v).o[0], WithinAbs(0.764680, 5e-7));
  p.softmax_scale = 0.0f;
  CHECK_THAT(reference_forward(p, in.q, in.k, in.v).o[0], WithinAbs(0.5, 1e-12));

  // The same problem embedded in 128 columns, with the scale given.
  Problem wide{.seqlen_q = 1, .seqlen_kv = 2, .head_dim = 128, .softmax_scale = Problem{.head_dim = 72}.scale()};
  Inputs padded{Floats(128, 0.0f), Floats(256, 0.0f), Floats(256, 0.0f)};
  padded.q[0] = 1;
  padded.k[0] = 10;
  padded.v[0] = 1;
  CHECK_THAT(reference_forward(wide, padded.q, padded.k, padded.v).o[0], WithinAbs(0.764680, 5e-7));
}

TEST_CASE("no queries, no keys") {
  Problem p{.batch = 2, .heads_q = 2, .heads_kv = 1, .seqlen_q = 0, .seqlen_kv = 3, .head_dim = 2};
  Inputs in = make_inputs(p, InputKind::normal, 1);
  CHECK(reference_forward(p, in.q, in.k, in.v).o.empty());
  CHECK(reference_backward(p, in.q, in.k, in.v, {}).dk == std::vector<double>(12, 0.0));

  p.seqlen_q = 3;
  p.seqlen_kv = 0;
  in = make_inputs(p, InputKind::normal, 1);
  const ReferenceForward forward = reference_forward(p, in.q, in.k, in.v);
  CHECK(forward.o == std::vector<double>(24, 0.0));
  CHECK(forward.lse == std::vector<double>(12, -kInfinity));
  const ReferenceBackward backward = reference_backward(p, in.q, in.k, in.v, Floats(24, 1.0f));
  CHECK(backward.dq == std::vector<double>(24, 0.0));
  CHECK(backward.dk.empty());
}

TEST_CASE("a span that is too short is refused") {
  const Problem p{.seqlen_q = 2, .seqlen_kv = 3, .head_dim = 4};
  CHECK_THROWS_WITH(reference_forward(p, Floats(8), Floats(11), Floats(12)), "k must hold 12 elements: it holds 11");
}

TEST_CASE("blocks of queries join without a seam") {
  // 150 queries are two whole blocks of the reference and a part; each must equal the query on its own.
  const Problem p{
      .heads_q = 2, .heads_kv = 1, .seqlen_q = 150, .seqlen_kv = 130, .head_dim = 5, .mask = Mask::window(40, 3)};
  const Inputs in = make_inputs(p, InputKind::normal, 5);
  const ReferenceForward forward = reference_forward(p, in.q, in.k, in.v);
  for (int i = 0; i < p.seqlen_q; ++i)
    for (int h = 0; h < p.heads_q; ++h) {
      const auto keys = attention::visible_keys(p.mask, i, p.seqlen_q, p.seqlen_kv);
      Problem alone = p;
      alone.heads_q = alone.seqlen_q = 1;
      alone.seqlen_kv = keys.size();
      alone.mask = Mask::none();
      const auto part = [&](const Floats& a, int first, int count) {
        return Floats(a.begin() + first * 5, a.begin() + (first + count) * 5);
      };
      const ReferenceForward expected = reference_forward(
          alone, part(in.q, i * 2 + h, 1), part(in.k, keys.begin, keys.size()), part(in.v, keys.begin, keys.size()));
      const auto at = forward.o.begin() + (i * 2 + h) * 5;
      check_near({at, at + 5}, expected.o, 1e-13);
      check_near({forward.lse[h * 150 + i]}, expected.lse, 1e-13);
    }
  check_plain_agrees(p, in, forward, 1e-5);
}

TEST_CASE("four layouts of equal values give equal bits", "[C18]") {
  const Problem dense{
      .batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 33, .seqlen_kv = 65, .head_dim = 64, .mask = Mask::causal()};
  const Inputs in = make_inputs(dense, InputKind::normal, 7);
  const Floats dout = attention::make_output_gradient(dense, 7);
  const ReferenceForward forward = reference_forward(dense, in.q, in.k, in.v);
  const ReferenceBackward backward = reference_backward(dense, in.q, in.k, in.v, dout);
  const auto plain = attention::plain_forward(dense, in.q, in.k, in.v);

  Problem p = dense;
  SECTION("heads first, then transposed; O padded") {
    p.q_strides = Strides{4 * 33 * 64, 64, 33 * 64, 1};
    p.k_strides = p.v_strides = Strides{2 * 65 * 64, 64, 65 * 64, 1};
    p.o_strides = Strides{5 * 33 * 70, 70, 33 * 70, 1};
    const Inputs strided = make_inputs(p, InputKind::normal, 7);
    const Floats strided_dout = attention::make_output_gradient(p, 7);
    check_equal(reference_forward(p, strided.q, strided.k, strided.v), forward);
    check_equal(reference_backward(p, strided.q, strided.k, strided.v, strided_dout), backward);
  }
  SECTION("slices of one fused projection") {
    const std::int64_t width = (4 + 2 + 2) * 64;
    p.q_strides = p.k_strides = p.v_strides = Strides{65 * width, width, 64, 1};
    Floats fused(2 * 65 * width, std::numeric_limits<float>::quiet_NaN());
    float* k = fused.data() + 4 * 64;
    float* v = fused.data() + 6 * 64;
    relayout(in.q, dense.strides_q(), fused.data(), *p.q_strides, 2, 33, 4, 64);
    relayout(in.k, dense.strides_k(), k, *p.k_strides, 2, 65, 2, 64);
    relayout(in.v, dense.strides_v(), v, *p.v_strides, 2, 65, 2, 64);
    const std::span<const float> q_span(fused.data(), p.elements_q()), k_span(k, p.elements_k()),
        v_span(v, p.elements_v());
    check_equal(reference_forward(p, q_span, k_span, v_span), forward);
    check_equal(reference_backward(p, q_span, k_span, v_span, dout), backward);
    CHECK(attention::plain_forward(p, q_span, k_span, v_span).o == plain.o);
  }
  SECTION("K in every second row, V contiguous") {
    p.k_strides = Strides{2 * 65 * 128, 2 * 128, 64, 1};
    const Inputs strided = make_inputs(p, InputKind::normal, 7);
    CHECK(std::isnan(strided.k[128]));
    check_equal(reference_forward(p, strided.q, strided.k, strided.v), forward);
    check_equal(reference_backward(p, strided.q, strided.k, strided.v, dout), backward);
    CHECK(attention::plain_forward(p, strided.q, strided.k, strided.v).lse == plain.lse);
  }
  SECTION("an innermost stride other than 1 is refused") {
    p.k_strides = Strides{65 * 256, 256, 128, 2};
    CHECK_THROWS_WITH(reference_forward(p, in.q, in.k, in.v), ContainsText("k_strides.dim must be 1"));
  }
}
