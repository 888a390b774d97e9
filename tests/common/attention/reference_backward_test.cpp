/// \file
/// The float64 gradients against differences, identities and cases that can be worked out by hand; their magnitudes
/// against plain loops; the plain fp32 backward against them.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/attention/inputs.hpp"
#include "common/attention/reference.hpp"
#include "tests/catch.hpp"

using attention::BackwardMagnitudes;
using attention::InputKind;
using attention::Inputs;
using attention::make_inputs;
using attention::make_output_gradient;
using attention::Mask;
using attention::PlainBackward;
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

void check_near(const std::vector<double>& values, const std::vector<double>& expected, double tolerance = 5e-7) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(values[i], WithinAbs(expected[i], tolerance));
  }
}

/// A gradient of the LSE: normal numbers from a stream of their own.
Floats make_lse_gradient(const Problem& p, std::uint64_t seed) {
  const Problem rows{
      .batch = p.batch, .heads_q = p.heads_q, .heads_kv = p.heads_q, .seqlen_q = p.seqlen_q, .head_dim = 1};
  return make_output_gradient(rows, seed + 1000);
}

/// The problems that most tests below run on: GQA, Nq ≠ Nk, rows that see nothing, a scale that is not the default.
Problem small(int seqlen_q, int seqlen_kv, Mask mask) {
  return {.batch = 2,
          .heads_q = 4,
          .heads_kv = 2,
          .seqlen_q = seqlen_q,
          .seqlen_kv = seqlen_kv,
          .head_dim = 3,
          .mask = mask,
          .softmax_scale = 0.7f};
}

/// O and LSE as a kernel is given them: the reference's, in fp32.
struct GivenForward {
  Floats o, lse;
};

GivenForward round_to_float(const ReferenceForward& forward) {
  return {{forward.o.begin(), forward.o.end()}, {forward.lse.begin(), forward.lse.end()}};
}

/// Both plain forms of a dense problem give the reference's gradients, as closely as fp32 can.
void check_plain_agrees(const Problem& p, const Inputs& in, const Floats& dout, const Floats& dlse, double tolerance) {
  const ReferenceBackward reference = reference_backward(p, in.q, in.k, in.v, dout, dlse);
  const GivenForward given = round_to_float(reference_forward(p, in.q, in.k, in.v));
  for (const PlainForm form : {PlainForm::textbook, PlainForm::folded_scale}) {
    const PlainBackward plain = attention::plain_backward(p, in.q, in.k, in.v, given.o, given.lse, dout, dlse, form);
    check_near({plain.dq.begin(), plain.dq.end()}, reference.dq, tolerance);
    check_near({plain.dk.begin(), plain.dk.end()}, reference.dk, tolerance);
    check_near({plain.dv.begin(), plain.dv.end()}, reference.dv, tolerance);
  }
}

void check_equal(const ReferenceBackward& a, const ReferenceBackward& b) {
  CHECK(a.dq == b.dq);
  CHECK(a.dk == b.dk);
  CHECK(a.dv == b.dv);
}

bool all_finite(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); });
}

/// P of one query over all keys, 0 where hidden, by loops that share nothing with the reference.
std::vector<double> probabilities_of_row(const Problem& p, const Inputs& in, int b, int i, int head) {
  const int head_kv = head / (p.heads_q / p.heads_kv);
  const attention::KeyRange keys = visible_keys(p.mask, i, p.seqlen_q, p.seqlen_kv);
  std::vector<double> row(p.seqlen_kv, 0.0);
  double sum = 0;
  for (int j = keys.begin; j < keys.end; ++j) {
    double score = 0;
    for (int c = 0; c < p.head_dim; ++c)
      score += double(in.q[p.strides_q().offset(b, i, head) + c]) * in.k[p.strides_k().offset(b, j, head_kv) + c];
    sum += row[j] = std::exp(double(p.scale()) * score);
  }
  for (double& x : row) x = sum > 0 ? x / sum : 0;
  return row;
}

}  // namespace

TEST_CASE("gradients that can be worked out by hand", "[C23][C25][C51]") {
  SECTION("one key takes all the weight: no gradient reaches the scores") {
    const Problem p{.seqlen_q = 1, .seqlen_kv = 1, .head_dim = 1, .softmax_scale = 1.0f};
    const Inputs in{{10}, {-10}, {3}};
    const ReferenceForward forward = reference_forward(p, in.q, in.k, in.v);
    check_near(forward.o, {3});
    check_near(forward.lse, {-100});
    const ReferenceBackward backward = reference_backward(p, in.q, in.k, in.v, Floats{1});
    check_near(backward.dq, {0});
    check_near(backward.dk, {0});
    check_near(backward.dv, {1});
    check_plain_agrees(p, in, {1}, {}, 0);
    // The terms cancel, but they are there: |dP| = |D| = 3.
    const BackwardMagnitudes magnitudes = attention::backward_magnitudes(p, in.q, in.k, in.v, Floats{1});
    check_near(magnitudes.dq, {60});
    check_near(magnitudes.dk, {60});
    check_near(magnitudes.dv, {1});
  }
  SECTION("large gradients of the scores") {
    const Problem p{.seqlen_q = 1, .seqlen_kv = 2, .head_dim = 1, .softmax_scale = 0.125f};
    const Inputs in{{0}, {100, -100}, {100, -100}};
    const ReferenceBackward backward = reference_backward(p, in.q, in.k, in.v, Floats{16});
    check_near(backward.dq, {20000});
    check_near(backward.dk, {0, 0});
    check_near(backward.dv, {8, 8});
    const BackwardMagnitudes magnitudes = attention::backward_magnitudes(p, in.q, in.k, in.v, Floats{16});
    check_near(magnitudes.dq, {20000});  // O = 0, so that D has no terms of its own
    check_near(magnitudes.dk, {0, 0});
    check_near(magnitudes.dv, {8, 8});
  }
  SECTION("two keys") {
    const Problem p{.seqlen_q = 1, .seqlen_kv = 2, .head_dim = 1, .softmax_scale = 1.0f};
    const Inputs in{{0}, {1, -1}, {1, 0}};
    const ReferenceBackward backward = reference_backward(p, in.q, in.k, in.v, Floats{1});
    check_near(backward.dq, {0.5});
    check_near(backward.dk, {0, 0});
    check_near(backward.dv, {0.5, 0.5});
    check_plain_agrees(p, in, {1}, {}, 1e-6);
  }
  SECTION("the gradient of the LSE is P") {
    const Problem p{.seqlen_q = 1, .seqlen_kv = 2, .head_dim = 1, .softmax_scale = 0.5f};
    const Inputs in{{2}, {1, 1}, {5, 7}};
    const ReferenceBackward backward = reference_backward(p, in.q, in.k, in.v, Floats{0}, Floats{3});
    check_near(backward.dq, {1.5});       // ½ · (1.5 · 1 + 1.5 · 1)
    check_near(backward.dk, {1.5, 1.5});  // ½ · 1.5 · 2
    CHECK(backward.dv == std::vector<double>(2, 0.0));
    check_plain_agrees(p, in, {0}, {3}, 1e-6);
    const BackwardMagnitudes magnitudes = attention::backward_magnitudes(p, in.q, in.k, in.v, Floats{0}, Floats{-3});
    check_near(magnitudes.dq, {1.5});
    check_near(magnitudes.dk, {1.5, 1.5});
    CHECK(magnitudes.dv == std::vector<double>(2, 0.0));
  }
}

TEST_CASE("one key a query, packed sizes one by one", "[C23]") {
  // Lengths 76, 34 and 146 with one key each, inputs times 3: only the last query of each sees the key.
  for (const int seqlen_q : {76, 34, 146}) {
    const Problem p{.seqlen_q = seqlen_q, .seqlen_kv = 1, .head_dim = 32, .mask = Mask::causal()};
    Inputs in = make_inputs(p, InputKind::normal, 23);
    for (Floats* array : {&in.q, &in.k, &in.v})
      for (float& x : *array) x *= 3;
    const Floats dout = make_output_gradient(p, 23);
    const ReferenceBackward backward = reference_backward(p, in.q, in.k, in.v, dout);
    check_near(backward.dq, std::vector<double>(32 * seqlen_q, 0.0), 1e-12);
    check_near(backward.dk, std::vector<double>(32, 0.0), 1e-12);
    check_near(backward.dv, {dout.end() - 32, dout.end()}, 1e-12);
  }
}

TEST_CASE("the backward is the derivative of the forward") {
  const Mask mask = GENERATE(Mask::none(), Mask::causal(), Mask::window(1, 1));
  const int seqlen_kv = GENERATE(4, 8);
  enum class Gradient { of_o, of_lse, of_both };
  const Gradient which = GENERATE(Gradient::of_o, Gradient::of_lse, Gradient::of_both);
  const Problem p = small(6, seqlen_kv, mask);
  Inputs in = make_inputs(p, InputKind::normal, 3);
  // Multiples of 1/256, so that x ± 1/64 is exact in float and the difference quotient has no rounding of its own.
  for (Floats* array : {&in.q, &in.k, &in.v})
    for (float& x : *array) x = std::round(x * 256) / 256;
  Floats dout = make_output_gradient(p, 3);
  if (which == Gradient::of_lse) std::fill(dout.begin(), dout.end(), 0.0f);
  const Floats dlse = which == Gradient::of_o ? Floats{} : make_lse_gradient(p, 3);
  const ReferenceBackward backward = reference_backward(p, in.q, in.k, in.v, dout, dlse);

  const auto loss = [&] {
    const ReferenceForward forward = reference_forward(p, in.q, in.k, in.v);
    double sum = 0;
    for (std::size_t i = 0; i < forward.o.size(); ++i) sum += dout[i] * forward.o[i];
    for (std::size_t i = 0; i < dlse.size(); ++i)
      if (forward.lse[i] != -kInfinity) sum += dlse[i] * forward.lse[i];
    return sum;
  };
  const auto slope = [&](float& x, float step) {
    const float before = x;
    x = before + step;
    const double above = loss();
    x = before - step;
    const double below = loss();
    x = before;
    return (above - below) / (2 * double(step));
  };
  const auto check_gradient = [&](Floats& array, const std::vector<double>& gradient) {
    REQUIRE(array.size() == gradient.size());
    for (std::size_t i = 0; i < array.size(); ++i) {
      // Richardson: the two step sizes cancel the error of second order.
      const double expected = (4 * slope(array[i], 0x1p-6f) - slope(array[i], 0x1p-5f)) / 3;
      CAPTURE(i);
      CHECK_THAT(gradient[i], WithinAbs(expected, 2e-6));
    }
  };
  check_gradient(in.q, backward.dq);
  check_gradient(in.k, backward.dk);
  check_gradient(in.v, backward.dv);
  if (which == Gradient::of_lse) CHECK(backward.dv == std::vector<double>(backward.dv.size(), 0.0));
  check_plain_agrees(p, in, dout, dlse, 1e-5);
}

TEST_CASE("rowsum(dO∘O) is rowsum(P∘dP), for the final O", "[C51]") {
  SECTION("two keys of weight 1/4 and 3/4") {
    const Problem p{.seqlen_q = 1, .seqlen_kv = 2, .head_dim = 1, .softmax_scale = 1.0f};
    const Inputs in{{1}, {0, std::log(3.0f)}, {1, 3}};
    const double dout = 2;
    const std::vector<double> weights = probabilities_of_row(p, in, 0, 0, 0);
    CHECK_THAT(dout * reference_forward(p, in.q, in.k, in.v).o[0], WithinAbs(5, 1e-6));
    CHECK_THAT(weights[0] * (dout * 1) + weights[1] * (dout * 3), WithinAbs(5, 1e-6));
    // Each chunk's own O, as if it were final, is its V: that "D" would be 2 and 6.
    CHECK_THAT(
        dout * reference_forward({.seqlen_q = 1, .seqlen_kv = 1, .head_dim = 1}, in.q, Floats{0}, Floats{1}).o[0],
        WithinAbs(2, 1e-12));
  }
  SECTION("any rows") {
    const Problem p = small(7, 5, GENERATE(Mask::none(), Mask::causal(), Mask::window(2, 1)));
    const Inputs in = make_inputs(p, InputKind::normal, 8);
    const Floats dout = make_output_gradient(p, 8);
    const ReferenceForward forward = reference_forward(p, in.q, in.k, in.v);
    for (int b = 0; b < p.batch; ++b)
      for (int head = 0; head < p.heads_q; ++head)
        for (int i = 0; i < p.seqlen_q; ++i) {
          const auto row = p.strides_o().offset(b, i, head);
          const std::vector<double> weights = probabilities_of_row(p, in, b, i, head);
          double from_o = 0, from_p = 0;
          for (int c = 0; c < p.head_dim; ++c) {
            from_o += dout[row + c] * forward.o[row + c];
            for (int j = 0; j < p.seqlen_kv; ++j)
              from_p += weights[j] * dout[row + c] * in.v[p.strides_v().offset(b, j, head / 2) + c];
          }
          CHECK_THAT(from_o, WithinAbs(from_p, 1e-12));
        }
  }
  SECTION("so the gradients of a row's scores add up to its dLSE") {
    // The last column of K is 1: it moves all scores of a row alike, and the row's dQ there is scale · Σ dS.
    const Problem p = small(7, 5, GENERATE(Mask::none(), Mask::causal(), Mask::window(2, 1)));
    Inputs in = make_inputs(p, InputKind::normal, 9);
    for (std::size_t i = 2; i < in.k.size(); i += 3) in.k[i] = 1;
    const Floats dout = make_output_gradient(p, 9), dlse = make_lse_gradient(p, 9);
    const ReferenceBackward backward = reference_backward(p, in.q, in.k, in.v, dout, dlse);
    for (int b = 0; b < p.batch; ++b)
      for (int head = 0; head < p.heads_q; ++head)
        for (int i = 0; i < p.seqlen_q; ++i) {
          const bool sees = !visible_keys(p.mask, i, p.seqlen_q, p.seqlen_kv).empty();
          const double expected = sees ? double(p.scale()) * dlse[(b * p.heads_q + head) * p.seqlen_q + i] : 0;
          CHECK_THAT(backward.dq[p.strides_q().offset(b, i, head) + 2], WithinAbs(expected, 1e-12));
        }
  }
}

TEST_CASE("a row that sees nothing adds exactly 0, whatever its gradients", "[C01]") {
  const Problem p{.heads_q = 2,
                  .heads_kv = 1,
                  .seqlen_q = 150,
                  .seqlen_kv = 32,
                  .head_dim = 4,
                  .mask = GENERATE(Mask::causal(), Mask::window(3, 0))};
  const Inputs in = make_inputs(p, InputKind::normal, 1);
  Floats dout = make_output_gradient(p, 1), dlse = make_lse_gradient(p, 1);
  const attention::ReferencePass pass = attention::reference_pass(p, in.q, in.k, in.v, dout, dlse);
  const int hidden = 150 - 32;
  for (int i = 0; i < hidden; ++i)
    for (int h = 0; h < 2; ++h) {
      CHECK(pass.forward.lse[h * 150 + i] == -kInfinity);
      CHECK(pass.magnitudes.dq[i * 2 + h] == 0.0);
      for (int c = 0; c < 4; ++c) CHECK(pass.gradients.dq[(i * 2 + h) * 4 + c] == 0.0);
      std::fill_n(dout.begin() + (i * 2 + h) * 4, 4, std::numeric_limits<float>::max());
      dlse[h * 150 + i] = -std::numeric_limits<float>::max();
    }
  check_equal(reference_backward(p, in.q, in.k, in.v, dout, dlse), pass.gradients);
  for (const auto* gradient : {&pass.gradients.dq, &pass.gradients.dk, &pass.gradients.dv})
    CHECK(all_finite(*gradient));
  for (const auto* magnitude : {&pass.magnitudes.dk, &pass.magnitudes.dv})
    CHECK(std::all_of(magnitude->begin(), magnitude->end(), [](double x) { return x > 0; }));
  check_plain_agrees(p, in, dout, dlse, 1e-5);
}

TEST_CASE("a key that nobody sees has no gradient") {
  // Two queries at the end, each sees its own key and the one before.
  const Problem p{.seqlen_q = 2, .seqlen_kv = 7, .head_dim = 2, .mask = Mask::window(1, 0)};
  const Inputs in = make_inputs(p, InputKind::normal, 2);
  const Floats dout = make_output_gradient(p, 2);
  const attention::ReferencePass pass = attention::reference_pass(p, in.q, in.k, in.v, dout);
  for (int j = 0; j < 7; ++j) {
    CAPTURE(j);
    CHECK((pass.magnitudes.dk[j] > 0) == (j >= 4));
    CHECK((pass.magnitudes.dv[j] > 0) == (j >= 4));
    CHECK((pass.gradients.dv[2 * j] != 0) == (j >= 4));
  }
}

TEST_CASE("gradients of a KV head are the sum over the heads of its group", "[C21]") {
  const Problem p = small(9, 11, Mask::causal());
  const Inputs in = make_inputs(p, InputKind::normal, 4);
  const Floats dout = make_output_gradient(p, 4), dlse = make_lse_gradient(p, 4);
  const attention::ReferencePass grouped = attention::reference_pass(p, in.q, in.k, in.v, dout, dlse);

  Problem each = p;  // every query head has its own copy of the KV head
  each.heads_kv = 4;
  Inputs copies{in.q, {}, {}};
  for (int row = 0; row < 2 * 11; ++row)
    for (int head = 0; head < 4; ++head)
      for (int c = 0; c < 3; ++c) {
        copies.k.push_back(in.k[(row * 2 + head / 2) * 3 + c]);
        copies.v.push_back(in.v[(row * 2 + head / 2) * 3 + c]);
      }
  const ReferenceBackward apart = reference_backward(each, copies.q, copies.k, copies.v, dout, dlse);
  check_near(grouped.gradients.dq, apart.dq, 1e-13);
  const auto sum_of_groups = [](const std::vector<double>& heads) {
    std::vector<double> sums;
    for (std::size_t i = 0; i < heads.size(); i += 6)
      for (int c = 0; c < 3; ++c) sums.push_back(heads[i + c] + heads[i + 3 + c]);
    return sums;
  };
  check_near(grouped.gradients.dk, sum_of_groups(apart.dk), 1e-13);
  check_near(grouped.gradients.dv, sum_of_groups(apart.dv), 1e-13);
}

TEST_CASE("magnitudes are the sums of absolute values") {
  Problem p = small(7, 5, GENERATE(Mask::none(), Mask::causal(), Mask::window(2, 1)));
  p.softmax_scale = GENERATE(0.7f, -0.7f, 0.0f);
  const Inputs in = make_inputs(p, InputKind::normal, 6);
  const Floats dout = make_output_gradient(p, 6), dlse = make_lse_gradient(p, 6);
  const attention::ReferencePass pass = attention::reference_pass(p, in.q, in.k, in.v, dout, dlse);
  const BackwardMagnitudes alone = attention::backward_magnitudes(p, in.q, in.k, in.v, dout, dlse);
  CHECK(alone.dq == pass.magnitudes.dq);
  CHECK(alone.dk == pass.magnitudes.dk);
  CHECK(alone.dv == pass.magnitudes.dv);
  const ReferenceForward forward = reference_forward(p, in.q, in.k, in.v);
  CHECK(pass.forward.o == forward.o);
  CHECK(pass.forward.lse == forward.lse);
  check_equal(pass.gradients, reference_backward(p, in.q, in.k, in.v, dout, dlse));

  std::vector<double> dq(in.q.size(), 0.0), dk(in.k.size(), 0.0), dv(in.v.size(), 0.0);
  const double scale = std::abs(p.scale());
  for (int b = 0; b < p.batch; ++b)
    for (int head = 0; head < p.heads_q; ++head)
      for (int i = 0; i < p.seqlen_q; ++i) {
        const auto q_row = p.strides_q().offset(b, i, head);
        const std::vector<double> weights = probabilities_of_row(p, in, b, i, head);
        double d = std::abs(dlse[(b * p.heads_q + head) * p.seqlen_q + i]);
        for (int c = 0; c < p.head_dim; ++c) d += std::abs(dout[q_row + c] * forward.o[q_row + c]);
        for (int j = 0; j < p.seqlen_kv; ++j) {
          const auto kv_row = p.strides_k().offset(b, j, head / 2);
          double dp = 0;
          for (int c = 0; c < p.head_dim; ++c) dp += std::abs(dout[q_row + c] * in.v[kv_row + c]);
          for (int c = 0; c < p.head_dim; ++c) {
            dq[q_row + c] += scale * weights[j] * (dp + d) * std::abs(in.k[kv_row + c]);
            dk[kv_row + c] += scale * weights[j] * (dp + d) * std::abs(in.q[q_row + c]);
            dv[kv_row + c] += weights[j] * std::abs(dout[q_row + c]);
          }
        }
      }
  const auto norms = [](const std::vector<double>& rows) {
    std::vector<double> result;
    for (std::size_t i = 0; i < rows.size(); i += 3) result.push_back(std::hypot(rows[i], rows[i + 1], rows[i + 2]));
    return result;
  };
  check_near(pass.magnitudes.dq, norms(dq), 1e-6);  // dout · o above is rounded to float nowhere, dout · v is
  check_near(pass.magnitudes.dk, norms(dk), 1e-6);
  check_near(pass.magnitudes.dv, norms(dv), 1e-12);
  const std::vector<double> gradient = norms(pass.gradients.dk);
  for (std::size_t row = 0; row < gradient.size(); ++row) CHECK(gradient[row] <= pass.magnitudes.dk[row] * (1 + 1e-12));
}

TEST_CASE("a P too small for fp32 has a magnitude that fp32 can keep to") {
  // Scores 0 and −200: P of the second key is 1e-87, which fp32 calls 0. That is no error of a whole row of dV.
  const Problem p{.seqlen_q = 1, .seqlen_kv = 2, .head_dim = 1, .softmax_scale = 1.0f};
  const Inputs in{{1}, {0, -200}, {1, 1}};
  const attention::ReferencePass pass = attention::reference_pass(p, in.q, in.k, in.v, Floats{1});
  CHECK(pass.gradients.dv[1] < 1e-86);
  CHECK(pass.gradients.dv[1] > 1e-88);
  CHECK_THAT(pass.magnitudes.dv[1] / 0x1p-102, WithinAbs(1, 1e-12));
  CHECK_THAT(pass.magnitudes.dv[0], WithinAbs(1, 1e-12));
}

TEST_CASE("blocks of queries join without a seam in the backward") {
  // 150 queries are two whole blocks of the reference and a part: dQ must equal that of the query on its own, dK and
  // dV the sum over queries.
  const Problem p{
      .heads_q = 2, .heads_kv = 1, .seqlen_q = 150, .seqlen_kv = 130, .head_dim = 5, .mask = Mask::window(40, 3)};
  const Inputs in = make_inputs(p, InputKind::normal, 5);
  const Floats dout = make_output_gradient(p, 5), dlse = make_lse_gradient(p, 5);
  const ReferenceBackward backward = reference_backward(p, in.q, in.k, in.v, dout, dlse);
  ReferenceBackward sum{{}, std::vector<double>(130 * 5, 0.0), std::vector<double>(130 * 5, 0.0)};
  for (int i = 0; i < p.seqlen_q; ++i)
    for (int h = 0; h < p.heads_q; ++h) {
      const auto keys = attention::visible_keys(p.mask, i, p.seqlen_q, p.seqlen_kv);
      const Problem alone{.seqlen_q = 1, .seqlen_kv = keys.size(), .head_dim = 5};
      const auto part = [&](const Floats& a, int first, int count) {
        return Floats(a.begin() + first * 5, a.begin() + (first + count) * 5);
      };
      const ReferenceBackward expected =
          reference_backward(alone, part(in.q, i * 2 + h, 1), part(in.k, keys.begin, keys.size()),
                             part(in.v, keys.begin, keys.size()), part(dout, i * 2 + h, 1), Floats{dlse[h * 150 + i]});
      const auto at = backward.dq.begin() + (i * 2 + h) * 5;
      check_near({at, at + 5}, expected.dq, 1e-13);
      for (int x = 0; x < keys.size() * 5; ++x) {
        sum.dk[keys.begin * 5 + x] += expected.dk[x];
        sum.dv[keys.begin * 5 + x] += expected.dv[x];
      }
    }
  check_near(backward.dk, sum.dk, 1e-12);
  check_near(backward.dv, sum.dv, 1e-12);
  check_plain_agrees(p, in, dout, dlse, 2e-5);
}

TEST_CASE("the two plain forms round differently") {
  const Problem p = small(20, 30, Mask::none());
  const Inputs in = make_inputs(p, InputKind::normal, 10);
  const Floats dout = make_output_gradient(p, 10);
  const GivenForward given = round_to_float(reference_forward(p, in.q, in.k, in.v));
  const auto form = [&](PlainForm which) {
    return attention::plain_backward(p, in.q, in.k, in.v, given.o, given.lse, dout, {}, which);
  };
  const PlainBackward textbook = form(PlainForm::textbook), folded = form(PlainForm::folded_scale);
  CHECK(textbook.dq != folded.dq);
  CHECK(textbook.dk != folded.dk);
  CHECK(textbook.dv != folded.dv);
  CHECK(form(PlainForm::textbook).dq == textbook.dq);
}

TEST_CASE("the plain forms sum in opposite orders") {
  // 1 + 2⁻²⁴ + 2⁻²⁴ is 1 from the left and 1 + 2⁻²³ from the right. Q = 0 and an LSE of 0 make P = 1 in both forms.
  const float tiny = 0x1p-24f, sum = 1 + 0x1p-23f;
  Problem p{.seqlen_q = 3, .seqlen_kv = 1, .head_dim = 1, .softmax_scale = 1.0f};
  const auto form = [&p](const Inputs& in, const Floats& dout, PlainForm which) {
    return attention::plain_backward(p, in.q, in.k, in.v, Floats(dout.size(), 0.0f), Floats(dout.size(), 0.0f), dout,
                                     {}, which);
  };
  const Inputs over_queries{{0, 0, 0}, {1}, {1}};
  CHECK(form(over_queries, {1, tiny, tiny}, PlainForm::textbook).dv == Floats{1});
  CHECK(form(over_queries, {1, tiny, tiny}, PlainForm::folded_scale).dv == Floats{sum});
  p.seqlen_q = 1;
  p.seqlen_kv = 3;
  const Inputs over_keys{{0}, {1, 1, 1}, {1, tiny, tiny}};
  CHECK(form(over_keys, {1}, PlainForm::textbook).dq == Floats{1});
  CHECK(form(over_keys, {1}, PlainForm::folded_scale).dq == Floats{sum});
}

TEST_CASE("layouts of dO and O make no difference to the gradients", "[C18]") {
  const Problem dense{
      .batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 33, .seqlen_kv = 65, .head_dim = 16, .mask = Mask::causal()};
  const Inputs in = make_inputs(dense, InputKind::normal, 7);
  const Floats dout = make_output_gradient(dense, 7);
  const ReferenceBackward backward = reference_backward(dense, in.q, in.k, in.v, dout);
  const GivenForward given = round_to_float(reference_forward(dense, in.q, in.k, in.v));
  const PlainBackward plain = attention::plain_backward(dense, in.q, in.k, in.v, given.o, given.lse, dout);

  Problem p = dense;
  SECTION("dO transposed and padded, O otherwise") {
    p.dout_strides = Strides{5 * 33 * 20, 20, 33 * 20, 1};
    const Floats strided = make_output_gradient(p, 7);
    CHECK(std::isnan(strided[16]));
    check_equal(reference_backward(p, in.q, in.k, in.v, strided), backward);
    CHECK(attention::plain_backward(p, in.q, in.k, in.v, given.o, given.lse, strided).dk == plain.dk);
  }
  SECTION("O padded, and dO with it") {
    p.o_strides = Strides{33 * 4 * 24, 4 * 24, 24, 1};
    const Floats strided = make_output_gradient(p, 7);
    REQUIRE(std::int64_t(strided.size()) == p.elements_o());
    check_equal(reference_backward(p, in.q, in.k, in.v, strided), backward);
    Floats o(p.elements_o(), NAN);
    for (int row = 0; row < 2 * 33 * 4; ++row) std::copy_n(given.o.data() + row * 16, 16, o.data() + row * 24);
    const PlainBackward padded = attention::plain_backward(p, in.q, in.k, in.v, o, given.lse, strided);
    CHECK(padded.dq == plain.dq);
    CHECK(padded.dk == plain.dk);
    CHECK(padded.dv == plain.dv);
  }
  SECTION("one row of dO for all: stride 0") {
    p.dout_strides = Strides{0, 0, 0, 1};
    const Floats one_row(dout.begin(), dout.begin() + 16);
    Floats repeated;
    for (int row = 0; row < 2 * 33 * 4; ++row) repeated.insert(repeated.end(), one_row.begin(), one_row.end());
    check_equal(reference_backward(p, in.q, in.k, in.v, one_row),
                reference_backward(dense, in.q, in.k, in.v, repeated));
    CHECK(attention::plain_backward(p, in.q, in.k, in.v, given.o, given.lse, one_row).dq ==
          attention::plain_backward(dense, in.q, in.k, in.v, given.o, given.lse, repeated).dq);
  }
  SECTION("the layout that the gradients will have plays no part here") {
    p.dq_strides = Strides{5 * 33 * 20, 20, 33 * 20, 1};
    check_equal(reference_backward(p, in.q, in.k, in.v, dout), backward);
  }
}

TEST_CASE("gradients without queries or without keys") {
  Problem p{.batch = 2, .heads_q = 2, .heads_kv = 1, .seqlen_q = 0, .seqlen_kv = 3, .head_dim = 2};
  Inputs in = make_inputs(p, InputKind::normal, 1);
  attention::ReferencePass pass = attention::reference_pass(p, in.q, in.k, in.v, {});
  CHECK(pass.gradients.dq.empty());
  CHECK(pass.gradients.dk == std::vector<double>(12, 0.0));
  CHECK(pass.magnitudes.dv == std::vector<double>(6, 0.0));
  CHECK(attention::plain_backward(p, in.q, in.k, in.v, {}, {}, {}).dk == Floats(12, 0.0f));

  p.seqlen_q = 3;
  p.seqlen_kv = 0;
  in = make_inputs(p, InputKind::normal, 1);
  pass = attention::reference_pass(p, in.q, in.k, in.v, Floats(24, 1.0f));
  CHECK(pass.gradients.dq == std::vector<double>(24, 0.0));
  CHECK(pass.gradients.dv.empty());
  CHECK(pass.magnitudes.dq == std::vector<double>(12, 0.0));
  CHECK(pass.forward.lse == std::vector<double>(12, -kInfinity));
  const Floats lse(12, -std::numeric_limits<float>::infinity());
  CHECK(attention::plain_backward(p, in.q, in.k, in.v, Floats(24, 0.0f), lse, Floats(24, 1.0f)).dq == Floats(24, 0.0f));
}

TEST_CASE("spans of gradients that are too short are refused") {
  const Problem p{.seqlen_q = 2, .seqlen_kv = 3, .head_dim = 4};
  CHECK_THROWS_WITH(reference_backward(p, Floats(8), Floats(12), Floats(12), Floats(7)),
                    "dout must hold 8 elements: it holds 7");
  CHECK_THROWS_WITH(reference_backward(p, Floats(8), Floats(12), Floats(12), Floats(8), Floats(1)),
                    "dlse must hold 2 elements: it holds 1");
  CHECK_THROWS_WITH(attention::plain_backward(p, Floats(8), Floats(12), Floats(12), Floats(7), Floats(2), Floats(8)),
                    "o must hold 8 elements: it holds 7");
  CHECK_THROWS_WITH(attention::plain_backward(p, Floats(8), Floats(12), Floats(12), Floats(8), Floats(1), Floats(8)),
                    "lse must hold 2 elements: it holds 1");
  CHECK_NOTHROW(attention::reference_pass(p, Floats(8), Floats(12), Floats(12), Floats(8), Floats(2)));
}
