/// \file
/// Inputs: the same everywhere, off zero, poisoned in the gaps, and what their names say.

#include "common/attention/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "common/attention/reference.hpp"
#include "tests/catch.hpp"

using attention::ElementType;
using attention::InputKind;
using attention::Inputs;
using attention::make_inputs;
using attention::Mask;
using attention::Problem;
using attention::Strides;
using Catch::Matchers::WithinAbs;

namespace {

double mean(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

/// The scaled scores of all pairs of one head, in float64.
template <class Visit>
void for_each_row_of_scores(const Problem& p, const Inputs& in, Visit visit) {
  std::vector<double> scores(p.seqlen_kv);
  for (int head = 0; head < p.heads_q; ++head)
    for (int i = 0; i < p.seqlen_q; ++i) {
      for (int j = 0; j < p.seqlen_kv; ++j) {
        const float* q = in.q.data() + p.strides_q().offset(0, i, head);
        const float* k = in.k.data() + p.strides_k().offset(0, j, head / (p.heads_q / p.heads_kv));
        scores[j] = 0;
        for (int c = 0; c < p.head_dim; ++c) scores[j] += double(q[c]) * k[c] * p.scale();
      }
      visit(scores);
    }
}

}  // namespace

TEST_CASE("large inputs hold the numbers of one sequence, however they are shared out") {
  // Dense arrays of one size hold the same numbers whatever their rows are; pieces of work end where rows do.
  const auto flat = [](int seqlen, int head_dim) {
    const Problem p{.heads_q = 10, .heads_kv = 10, .seqlen_q = seqlen, .seqlen_kv = seqlen, .head_dim = head_dim};
    return std::pair(make_inputs(p, InputKind::normal, 3), attention::make_output_gradient(p, 3));
  };
  const auto [in, dout] = flat(4 * 7 * 3 * 11, 509 * 2);  // 9.4 million, in rows that no power of two is a multiple of
  const auto [other, other_dout] = flat(4 * 7 * 11 * 2 * 509, 3);
  CHECK((in.q == other.q && in.k == other.k && in.v == other.v));
  CHECK(dout == other_dout);
  CHECK(std::abs(mean(in.q) - 0.3) < 0.002);
}

TEST_CASE("inputs are the same on every machine") {
  const Problem p{.seqlen_q = 2, .seqlen_kv = 2, .head_dim = 2};
  const Inputs in = make_inputs(p, InputKind::normal, 1);
  const std::vector<float> q{0.958473265f, 0.0453251414f, 0.417333871f, 1.11236989f},
      k{0.22023125f, -0.00747039495f, 0.729870439f, -0.471789002f},
      v{2.60303092f, -0.380821854f, 1.90985489f, 1.05503106f},
      dout{-0.0419534966f, 0.0247523747f, -0.587211132f, -0.720397651f};
  CHECK(in.q == q);
  CHECK(in.k == k);
  CHECK(in.v == v);
  CHECK(attention::make_output_gradient(p, 1) == dout);
  CHECK(make_inputs(p, InputKind::normal, 1).q == in.q);
  CHECK(make_inputs(p, InputKind::normal, 2).q != in.q);
}

TEST_CASE("no array depends on the size of another, on the mask or on strides") {
  const Problem p{.seqlen_q = 3, .seqlen_kv = 4, .head_dim = 8};
  const Inputs in = make_inputs(p, InputKind::normal, 1);
  Problem other = p;
  other.seqlen_kv = 9;
  other.mask = Mask::causal();
  CHECK(make_inputs(other, InputKind::normal, 1).q == in.q);
}

TEST_CASE("inputs are not zero-mean") {
  const Problem p{.heads_q = 2, .heads_kv = 2, .seqlen_q = 100, .seqlen_kv = 100, .head_dim = 64};
  const Inputs in = make_inputs(p, InputKind::normal, 4);
  for (const auto* array : {&in.q, &in.k, &in.v}) {
    CHECK_THAT(mean(*array), WithinAbs(0.3, 0.03));
    double variance = 0;
    for (const float x : *array) variance += (x - mean(*array)) * (x - mean(*array));
    CHECK_THAT(variance / double(array->size()), WithinAbs(1.0, 0.05));
  }
  CHECK_THAT(mean(attention::make_output_gradient(p, 4)), WithinAbs(0.3, 0.03));
  for (const InputKind kind : {InputKind::rising_scores, InputKind::huge_scores, InputKind::constant_scores})
    CHECK_THAT(mean(make_inputs(p, kind, 4).v), WithinAbs(0.3, 0.03));
}

TEST_CASE("gaps between rows hold NaN and rows hold none", "[C18]") {
  Problem p{.batch = 2, .heads_q = 2, .heads_kv = 1, .seqlen_q = 3, .seqlen_kv = 4, .head_dim = 8};
  p.q_strides = p.o_strides = Strides{100, 30, 10, 1};
  p.k_strides = Strides{80, 20, 8, 1};
  const Inputs in = make_inputs(p, InputKind::normal, 1);
  const auto nans = [](const std::vector<float>& a) {
    return std::count_if(a.begin(), a.end(), [](float x) { return std::isnan(x); });
  };
  CHECK(nans(in.q) == p.elements_q() - 2 * 3 * 2 * 8);
  CHECK(nans(in.k) == p.elements_k() - 2 * 4 * 8);
  CHECK(nans(in.v) == 0);
  CHECK(nans(attention::make_output_gradient(p, 1)) == p.elements_o() - 2 * 3 * 2 * 8);
  CHECK(std::isnan(in.q[8]));
  CHECK_FALSE(std::isnan(in.q[10]));
}

TEST_CASE("the output gradient lies by its own strides, stride 0 included", "[C18]") {
  Problem p{.batch = 2, .heads_q = 2, .heads_kv = 1, .seqlen_q = 3, .seqlen_kv = 4, .head_dim = 8};
  const std::vector<float> dense = attention::make_output_gradient(p, 1);
  p.o_strides = Strides{100, 30, 10, 1};
  p.dout_strides = Strides{8, 16, 50, 1};
  const std::vector<float> transposed = attention::make_output_gradient(p, 1);
  REQUIRE(std::int64_t(transposed.size()) == p.elements_dout());
  for (int b = 0; b < 2; ++b)
    for (int i = 0; i < 3; ++i)
      for (int h = 0; h < 2; ++h)
        CHECK(std::equal(transposed.begin() + p.dout_strides->offset(b, i, h),
                         transposed.begin() + p.dout_strides->offset(b, i, h) + 8,
                         dense.begin() + ((b * 3 + i) * 2 + h) * 8));
  CHECK(std::isnan(transposed[48]));

  p.dout_strides = Strides{0, 0, 0, 1};
  const std::vector<float> expanded = attention::make_output_gradient(p, 1);
  CHECK(expanded == std::vector<float>(dense.end() - 8, dense.end()));
}

TEST_CASE("V is one-hot by key") {
  const Problem p{.heads_q = 2, .heads_kv = 2, .seqlen_q = 1, .seqlen_kv = 11, .head_dim = 4};
  const Inputs in = make_inputs(p, InputKind::one_hot_v, 1);
  for (int j = 0; j < 11; ++j)
    for (int h = 0; h < 2; ++h)
      for (int c = 0; c < 4; ++c) CHECK(in.v[(j * 2 + h) * 4 + c] == (c == j % 4 ? 1.0f : 0.0f));
}

TEST_CASE("scores rise, fall and are huge at any scale") {
  Problem p{.heads_q = 4, .heads_kv = 2, .seqlen_q = 5, .seqlen_kv = 70, .head_dim = 32};
  p.softmax_scale = GENERATE(std::optional<float>(), std::optional<float>(0.7f), std::optional<float>(-2.0f));
  for_each_row_of_scores(p, make_inputs(p, InputKind::rising_scores, 5), [](const std::vector<double>& scores) {
    CHECK(std::is_sorted(scores.begin(), scores.end()));
    CHECK(scores.back() - scores.front() > 0.2 * 69);
    CHECK(scores.back() - scores.front() < 0.3 * 69 + 1);
    CHECK(scores.front() < 0);
    CHECK(scores.back() > 0);
  });
  for_each_row_of_scores(p, make_inputs(p, InputKind::falling_scores, 5), [](const std::vector<double>& scores) {
    CHECK(std::is_sorted(scores.rbegin(), scores.rend()));
  });
  for_each_row_of_scores(p, make_inputs(p, InputKind::huge_scores, 5), [](const std::vector<double>& scores) {
    CHECK(std::all_of(scores.begin(), scores.end(), [](double s) { return std::abs(s) > 6e3 && std::abs(s) < 14e3; }));
    CHECK(scores.front() < 0);
    CHECK(std::any_of(scores.begin(), scores.end(), [](double s) { return s > 0; }));
  });
}

TEST_CASE("in 16 bits every element is one of the type, and gaps stay NaN", "[C18]") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  const InputKind kind = GENERATE(InputKind::normal, InputKind::one_hot_v, InputKind::rising_scores,
                                  InputKind::falling_scores, InputKind::huge_scores, InputKind::constant_scores);
  const int head_dim = GENERATE(1, 8, 256);
  Problem p{.batch = 2, .heads_q = 2, .heads_kv = 1, .seqlen_q = 3, .seqlen_kv = 40, .head_dim = head_dim};
  p.k_strides = p.dout_strides = Strides{100 * 300, 600, 300, 1};
  p.element_type = type;
  const Inputs in = make_inputs(p, kind, 1);
  const auto dout = attention::make_output_gradient(p, 1);
  for (const auto* array : {&in.q, &in.k, &in.v, &dout})
    CHECK(std::all_of(array->begin(), array->end(), [type](float x) {
      return std::isnan(x) || (std::isfinite(x) && x == attention::rounded(x, type));
    }));
  const auto nans = [](const std::vector<float>& a) {
    return std::count_if(a.begin(), a.end(), [](float x) { return std::isnan(x); });
  };
  CHECK(nans(in.q) + nans(in.v) == 0);
  CHECK(nans(in.k) == p.elements_k() - 2 * 40 * head_dim);
  CHECK(nans(dout) == p.elements_dout() - 2 * 3 * 2 * head_dim);
}

TEST_CASE("16-bit inputs are those of fp32, rounded; huge K is not") {
  Problem p{.heads_q = 2, .heads_kv = 1, .seqlen_q = 5, .seqlen_kv = 40, .head_dim = 32};
  const auto rounded_to = [](std::vector<float> values, ElementType type) {
    for (float& x : values) x = attention::rounded(x, type);
    return values;
  };
  for (const InputKind kind : {InputKind::normal, InputKind::rising_scores, InputKind::huge_scores})
    for (const ElementType type : {ElementType::fp16, ElementType::bf16}) {
      INFO(name(kind) << ", " << name(type));
      p.element_type = ElementType::fp32;
      const Inputs exact = make_inputs(p, kind, 3);
      const auto dout = attention::make_output_gradient(p, 3);
      p.element_type = type;
      const Inputs in = make_inputs(p, kind, 3);
      CHECK(in.q == rounded_to(exact.q, type));
      CHECK(in.v == rounded_to(exact.v, type));
      CHECK((in.k == rounded_to(exact.k, type)) == (kind != InputKind::huge_scores));
      CHECK(in.v != exact.v);
      CHECK(attention::make_output_gradient(p, 3) == rounded_to(dout, type));
    }
}

TEST_CASE("scores rise, fall and are huge in 16 bits too") {
  Problem p{.heads_q = 4, .heads_kv = 2, .seqlen_q = 5, .seqlen_kv = 70};
  p.element_type = GENERATE(ElementType::fp16, ElementType::bf16);
  p.head_dim = GENERATE(32, 256);
  p.softmax_scale = GENERATE(std::optional<float>(), std::optional<float>(0.7f), std::optional<float>(-2.0f),
                             std::optional<float>(1e-4f));
  INFO(p.describe());
  for_each_row_of_scores(p, make_inputs(p, InputKind::rising_scores, 5), [](const std::vector<double>& scores) {
    CHECK(std::is_sorted(scores.begin(), scores.end()));
    CHECK(scores.back() - scores.front() > 0.2 * 69);
    CHECK(scores.back() - scores.front() < 0.3 * 69 + 1);
  });
  for_each_row_of_scores(p, make_inputs(p, InputKind::falling_scores, 5), [](const std::vector<double>& scores) {
    CHECK(std::is_sorted(scores.rbegin(), scores.rend()));
  });
  for_each_row_of_scores(p, make_inputs(p, InputKind::huge_scores, 5), [](const std::vector<double>& scores) {
    CHECK(std::all_of(scores.begin(), scores.end(), [](double s) { return std::abs(s) > 6e3 && std::abs(s) < 14e3; }));
    CHECK(scores.front() < 0);
    // Keys of one sign: a few units apart, no two the same.
    std::vector<double> positive;
    std::copy_if(scores.begin(), scores.end(), std::back_inserter(positive), [](double s) { return s > 0; });
    REQUIRE(positive.size() > 10);
    std::sort(positive.begin(), positive.end());
    CHECK(positive.back() - positive.front() > 1);
    CHECK(positive.back() - positive.front() < 10);
    CHECK(std::adjacent_find(positive.begin(), positive.end()) == positive.end());
  });
}

TEST_CASE("rising scores in 16 bits rise by a quarter near the middle, and as steeply on the whole farther out") {
  const ElementType type = GENERATE(ElementType::fp16, ElementType::bf16);
  const int seqlen = type == ElementType::fp16 ? 6000 : 2000;
  const int near = type == ElementType::fp16 ? 1990 : 245;
  Problem p{.seqlen_q = 3, .seqlen_kv = seqlen, .head_dim = 64};
  p.element_type = type;
  const double ulp = attention::unit_in_last_place(type);
  for_each_row_of_scores(p, make_inputs(p, InputKind::rising_scores, 5), [&](const std::vector<double>& scores) {
    CHECK(std::is_sorted(scores.begin(), scores.end()));
    const double slope = (scores.back() - scores.front()) / (seqlen - 1);  // 0.25 times the mean of the row of Q
    CHECK_THAT(slope, WithinAbs(0.25, 0.05));
    const double middle = 0.5 * (seqlen - 1);
    double largest_step = 0, smallest_step = 1, farthest = 0;
    for (int j = 0; j + 1 < seqlen; ++j) {
      farthest = std::max(farthest, std::abs(scores[j] - slope * (j - middle)) - 0.1);
      if (std::abs(j - middle) > near) continue;
      largest_step = std::max(largest_step, scores[j + 1] - scores[j]);
      smallest_step = std::min(smallest_step, scores[j + 1] - scores[j]);
    }
    CHECK(smallest_step > 0.05);
    CHECK(largest_step < 0.45);
    CHECK(farthest < ulp * slope * middle);
  });
}

TEST_CASE("a scale that fp16 cannot make large scores of is refused") {
  Problem p{.seqlen_q = 2, .seqlen_kv = 4, .head_dim = 32, .softmax_scale = 1e-9f};
  p.element_type = ElementType::fp16;
  CHECK_THROWS_WITH(make_inputs(p, InputKind::huge_scores, 1),
                    ContainsText("is too small for scores this large in fp16"));
  p.element_type = ElementType::bf16;
  CHECK_NOTHROW(make_inputs(p, InputKind::huge_scores, 1));
}

TEST_CASE("constant scores make every visible key count the same") {
  const Problem p{.seqlen_q = 3, .seqlen_kv = 8, .head_dim = 8};
  const Inputs in = make_inputs(p, InputKind::constant_scores, 6);
  for (const double lse : attention::reference_forward(p, in.q, in.k, in.v).lse)
    CHECK_THAT(lse, WithinAbs(std::log(8.0), 1e-12));
}

TEST_CASE("an input kind has a name") {
  CHECK(name(InputKind::normal) == "normal");
  CHECK(name(InputKind::huge_scores) == "huge_scores");
}
