// The two softmaxes: where the unsafe one breaks, and that the safe one does not.

#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "chapters/01_naive_cpu/naive_attention.hpp"
#include "tests/catch.hpp"

namespace {

using namespace naive_cpu;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// exp(−j) / Σ exp(−k) for j, k = 0, 1, 2.
std::array<double, 3> exact() {
  const double sum = 1 + std::exp(-1.0) + std::exp(-2.0);
  return {1 / sum, std::exp(-1.0) / sum, std::exp(-2.0) / sum};
}

std::array<float, 3> scores(float x) { return {x, x - 1, x - 2}; }

}  // namespace

TEST_CASE("exp in fp32 ends where the text says") {
  CHECK(std::isfinite(std::exp(88.72283f)));
  CHECK(std::exp(std::nextafter(88.72283f, 100.0f)) == kInfinity);
  CHECK(std::exp(-103.97f) > 0);
  CHECK(std::exp(-103.98f) == 0);
}

TEST_CASE("unsafe softmax: right for small scores") {
  auto p = scores(10);
  const float lse = unsafe_softmax(p);
  for (int j = 0; j < 3; ++j) {
    CHECK(std::abs(double{p[static_cast<std::size_t>(j)]} - exact()[static_cast<std::size_t>(j)]) < 1e-6);
  }
  CHECK(std::abs(lse - 10.4076f) < 1e-4f);
}

TEST_CASE("unsafe softmax: the sum overflows first and gives zeros") {
  auto p = scores(88.5f);
  CHECK(std::isfinite(std::exp(88.5f)));
  CHECK(unsafe_softmax(p) == kInfinity);
  CHECK(p == std::array<float, 3>{0, 0, 0});
}

TEST_CASE("unsafe softmax: then exp itself overflows and gives NaN") {
  auto p = scores(88.73f);
  unsafe_softmax(p);
  CHECK(std::isnan(p[0]));
}

TEST_CASE("unsafe softmax: far below zero it divides 0 by 0") {
  auto p = scores(-110);
  CHECK(unsafe_softmax(p) == -kInfinity);
  CHECK(std::isnan(p[0]));
}

TEST_CASE("safe softmax: the same probabilities wherever the scores lie") {
  // Whole numbers of this size are exact in fp32, so that the differences stay 1 and 2.
  const float x = GENERATE(-1.0e6f, -110.0f, 0.0f, 80.0f, 89.0f, 1.0e4f, 8.0e6f);
  CAPTURE(x);
  auto p = scores(x);
  const float lse = safe_softmax(p);
  for (int j = 0; j < 3; ++j) {
    CHECK(std::abs(double{p[static_cast<std::size_t>(j)]} - exact()[static_cast<std::size_t>(j)]) < 1e-6);
  }
  const double expected = double{x} + std::log(1 + std::exp(-1.0) + std::exp(-2.0));
  CHECK(std::abs(double{lse} - expected) <= 1e-6 * std::max(1.0, std::abs(expected)));
}

TEST_CASE("safe softmax: one score, no score, NaN") {
  std::vector<float> one{-1.0e30f};
  CHECK(safe_softmax(one) == -1.0e30f);
  CHECK(one[0] == 1);

  CHECK(safe_softmax(std::span<float>{}) == -kInfinity);

  std::vector<float> nan{1, std::numeric_limits<float>::quiet_NaN(), 2};
  CHECK(std::isnan(safe_softmax(nan)));
  CHECK(std::isnan(nan[0]));
}

TEST_CASE("three loops: a problem worked by hand") {
  // One query, scores 0 and log 3: probabilities 1/4 and 3/4.
  attention::Problem p;
  p.seqlen_q = 1;
  p.seqlen_kv = 2;
  p.head_dim = 2;
  p.softmax_scale = 1.0f;
  const std::vector<float> q{1, 0};
  const std::vector<float> k{0, 7, std::log(3.0f), -7};
  const std::vector<float> v{4, 0, 0, 4};
  std::vector<float> o(2, std::numeric_limits<float>::quiet_NaN());
  float lse = std::numeric_limits<float>::quiet_NaN();
  naive_forward().run(attention::make_forward_args(p, q.data(), k.data(), v.data(), o.data(), &lse), nullptr);
  CHECK(std::abs(o[0] - 1.0f) < 1e-6f);
  CHECK(std::abs(o[1] - 3.0f) < 1e-6f);
  CHECK(std::abs(lse - std::log(4.0f)) < 1e-6f);
}

TEST_CASE("three loops: a query that sees no key gives 0 and minus infinity") {
  // Causal with one key and two queries: the first query stands before the key.
  attention::Problem p;
  p.seqlen_q = 2;
  p.seqlen_kv = 1;
  p.head_dim = 1;
  p.mask = attention::Mask::causal();
  const std::vector<float> q{5, 5};
  const std::vector<float> k{2};
  const std::vector<float> v{3};
  std::vector<float> o(2, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> lse(2, std::numeric_limits<float>::quiet_NaN());
  naive_forward().run(attention::make_forward_args(p, q.data(), k.data(), v.data(), o.data(), lse.data()), nullptr);
  CHECK(o == std::vector<float>{0, 3});
  CHECK(lse[0] == -kInfinity);
  CHECK(lse[1] == 10);
}
