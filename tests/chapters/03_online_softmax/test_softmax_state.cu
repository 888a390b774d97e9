/// \file
/// The merge of softmax states as algebra: associative, commutative, with a neutral element; and at the extremes.

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "common/kernel/softmax_state.cuh"
#include "tests/catch.hpp"

namespace {

using kernel::AttentionState;
using kernel::from_normalized;
using kernel::log_sum_exp;
using kernel::merge;
using kernel::merge_lse;
using kernel::normalize;
using kernel::NormalizedState;
using kernel::SoftmaxState;

constexpr int kDim = 4;
using State = AttentionState<kDim>;
using Result = NormalizedState<kDim>;

SoftmaxState state(float m, float l) {
  SoftmaxState s;
  s.m = m;
  s.l = l;
  return s;
}

Result result(float lse, float o) {
  Result r;
  r.lse = lse;
  for (float& x : r.o) x = o;
  return r;
}

bool close(double a, double b, double relative) { return a == b || std::abs(a - b) <= relative * std::abs(b); }

void check_close(const State& a, const State& b, double tolerance) {
  CHECK(a.m == b.m);
  CHECK(close(a.l, b.l, tolerance));
  for (int c = 0; c < kDim; ++c) CHECK(std::abs(a.o[c] - b.o[c]) <= tolerance * 4 * b.l);  // |v| is below 4
}

/// Scores with their values, and the exact answer.
struct Keys {
  std::vector<float> scores;
  std::vector<std::vector<float>> values;

  Keys(int count, float spread, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> score(-spread, spread), value(-1, 3);
    for (int i = 0; i < count; ++i) {
      scores.push_back(i % 11 == 3 ? -INFINITY : score(random));  // some are hidden
      std::vector<float> v(kDim);
      for (float& x : v) x = value(random);
      values.push_back(v);
    }
  }
  State of(int key) const { return State::of(scores[key], values[key].data()); }

  double lse() const {
    double m = -INFINITY, l = 0;
    for (const float s : scores) m = std::max(m, double(s));
    for (const float s : scores) l += std::exp(s - m);
    return m + std::log(l);
  }
  double o(int column) const {
    double sum = 0;
    const double total = lse();
    for (std::size_t i = 0; i < scores.size(); ++i) sum += std::exp(scores[i] - total) * values[i][column];
    return sum;
  }
};

State random_state(std::mt19937_64& random) {
  const Keys keys(static_cast<int>(random() % 6), 30, random());
  State s;
  for (std::size_t i = 0; i < keys.scores.size(); ++i) s = merge(s, keys.of(static_cast<int>(i)));
  return s;
}

}  // namespace

TEST_CASE("the worked example: (2, 3) and (5, 1)") {
  const SoftmaxState merged = merge(state(2, 3), state(5, 1));
  CHECK(merged.m == 5);
  CHECK(close(merged.l, 1 + 3 * std::exp(-3.0), 1e-7));
  CHECK(close(merged.l, 1.149361, 1e-6));
  CHECK(close(log_sum_exp(merged), std::log(3 * std::exp(2.0) + std::exp(5.0)), 1e-7));
}

TEST_CASE("the merge is commutative and associative, and the empty state is neutral") {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 500; ++trial) {
    const State a = random_state(random), b = random_state(random), c = random_state(random);
    check_close(merge(a, b), merge(b, a), 1e-6);
    check_close(merge(merge(a, b), c), merge(a, merge(b, c)), 1e-6);
    for (const State& same : {merge(a, State{}), merge(State{}, a)}) {
      CHECK(same.m == a.m);
      CHECK(same.l == a.l);
      for (int i = 0; i < kDim; ++i) CHECK(same.o[i] == a.o[i]);
    }
  }
}

TEST_CASE("any split, any order, any tree gives the same row") {
  for (const float spread : {0.0f, 1.0f, 30.0f, 20000.0f}) {
    const Keys keys(200, spread, 3);
    std::mt19937_64 random(5);
    for (int trial = 0; trial < 50; ++trial) {
      std::vector<State> pieces;
      for (int i = 0; i < 200; ++i) pieces.push_back(keys.of(i));
      while (pieces.size() > 1) {
        std::swap(pieces[random() % pieces.size()], pieces.back());
        const State last = pieces.back();
        pieces.pop_back();
        State& other = pieces[random() % pieces.size()];
        other = random() % 2 ? merge(other, last) : merge(last, other);
      }
      const Result row = normalize(pieces[0]);
      CHECK(std::abs(row.lse - keys.lse()) <= 1e-6 * std::max(1.0, std::abs(keys.lse())));
      for (int c = 0; c < kDim; ++c) CHECK(std::abs(row.o[c] - keys.o(c)) <= 1e-5);
    }
  }
}

TEST_CASE("merging normalised results is merging states") {
  std::mt19937_64 random(9);
  for (int trial = 0; trial < 500; ++trial) {
    const State a = random_state(random), b = random_state(random);
    const Result direct = merge(normalize(a), normalize(b));
    const Result through_states = normalize(merge(a, b));
    const bool equal = direct.lse == through_states.lse;  // also where both are −∞
    CHECK((equal || std::abs(direct.lse - through_states.lse) <= 1e-5f));
    for (int c = 0; c < kDim; ++c) CHECK(std::abs(direct.o[c] - through_states.o[c]) <= 2e-5f);
  }
}

TEST_CASE("conversion to (O, LSE) and back") {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 100; ++trial) {
    const Result once = normalize(random_state(random));
    const Result twice = normalize(from_normalized(once));
    CHECK(twice.lse == once.lse);
    for (int c = 0; c < kDim; ++c) CHECK(twice.o[c] == once.o[c]);
  }
  const Result empty = normalize(State{});
  CHECK(empty.lse == -INFINITY);
  CHECK(empty.o[0] == 0);
  CHECK(from_normalized(empty).m == -INFINITY);
  CHECK(from_normalized(empty).l == 0);
}

TEST_CASE("two empty partials stay empty", "[C13]") {
  const Result empty = result(-INFINITY, 0), one = result(0, 1);
  const Result nothing = merge(empty, empty);
  CHECK(nothing.lse == -INFINITY);
  CHECK(nothing.o[0] == 0);
  for (const Result& same : {merge(empty, one), merge(one, empty), merge(nothing, one)}) {
    CHECK(same.lse == 0);
    CHECK(same.o[0] == 1);
  }
  const SoftmaxState hidden = merge(SoftmaxState::of(-INFINITY), SoftmaxState{});
  CHECK(hidden.m == -INFINITY);
  CHECK(hidden.l == 0);
  CHECK(log_sum_exp(hidden) == -INFINITY);
}

TEST_CASE("the LSE of a union neither overflows nor adds logarithms", "[C48]") {
  CHECK(merge_lse(-50, 60) == 60);
  CHECK(merge_lse(60, -50) == 60);
  CHECK(close(merge_lse(0, 0), std::log(2.0), 1e-7));
  CHECK(merge_lse(-INFINITY, 5) == 5);
  CHECK(merge_lse(5, -INFINITY) == 5);
  CHECK(merge_lse(-INFINITY, -INFINITY) == -INFINITY);
  CHECK(close(merge_lse(0, -20), std::log1p(std::exp(-20.0)), 1e-6));  // ln(1 + x) in fp32 gives 0
}

TEST_CASE("partial results carry natural logarithms", "[C30]") {
  // Two halves of four keys, scores 0 and 2, V = 0 and 1.
  const float four = std::log(4.0f);
  const Result merged = merge(result(four, 0), result(2 + four, 1));
  CHECK(close(merged.o[0], 0.880797, 1e-6));
  CHECK(close(merged.lse, 3.513222, 1e-6));
}

TEST_CASE("no finite number stands in for minus infinity", "[C08]") {
  const float raw = -200000, scale = 1 / std::sqrt(128.0f);
  for (const float factor : {1.0f, scale}) {
    State row;
    for (int key = 0; key < 4; ++key) {
      const float v[kDim] = {key + 1.0f, 0, 0, 0};
      row = merge(row, State::of(raw * factor, v));
    }
    const Result r = normalize(row);
    CHECK(r.o[0] == 2.5f);
    CHECK(close(r.lse, raw * double(factor) + std::log(4.0), 1e-6));
  }
}

TEST_CASE("states at the ends of the range") {
  const float largest = std::numeric_limits<float>::max();
  const SoftmaxState far = merge(SoftmaxState::of(largest), SoftmaxState::of(-largest));
  CHECK(far.m == largest);
  CHECK(far.l == 1);
  const SoftmaxState low = merge(SoftmaxState::of(-largest), SoftmaxState::of(-largest));
  CHECK(low.m == -largest);
  CHECK(low.l == 2);
  const SoftmaxState nan = merge(SoftmaxState::of(1), SoftmaxState::of(NAN));
  CHECK(std::isnan(nan.l));  // a NaN among the scores must not vanish in a maximum
}
