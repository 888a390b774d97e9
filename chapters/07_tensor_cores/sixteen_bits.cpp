#include "chapters/07_tensor_cores/sixteen_bits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "common/attention/inputs.hpp"
#include "common/attention/reference.hpp"

namespace tensor_cores {
namespace {

using attention::ElementType;
using attention::Inputs;
using attention::Problem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double round_to(double x, ElementType type) { return attention::rounded(static_cast<float>(x), type); }

/// ‖x − exact‖₂ / ‖exact‖₂; infinite if x is not finite.
double error_of(std::span<const double> x, std::span<const double> exact) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (!std::isfinite(x[i])) return kInfinity;
    difference += (x[i] - exact[i]) * (x[i] - exact[i]);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(difference / norm);
}

/// One row's unscaled scores.
std::vector<double> scores_of(const Problem& p, const Inputs& in, int query) {
  std::vector<double> scores(static_cast<std::size_t>(p.seqlen_kv));
  const float* q = &in.q[static_cast<std::size_t>(query) * p.head_dim];
  for (int key = 0; key < p.seqlen_kv; ++key) {
    const float* k = &in.k[static_cast<std::size_t>(key) * p.head_dim];
    double sum = 0;
    for (int c = 0; c < p.head_dim; ++c) sum += double(q[c]) * k[c];
    scores[static_cast<std::size_t>(key)] = sum;
  }
  return scores;
}

/// Turns scaled scores into exp(s − max). \return their sum.
double exponentials(std::vector<double>& scores, double scale) {
  double m = -kInfinity, sum = 0;
  for (const double s : scores) m = std::max(m, scale * s);
  for (double& s : scores) sum += s = std::exp(scale * s - m);
  return sum;
}

/// Σ weight · v / divisor.
template <class Weight>
std::vector<double> average(const Problem& p, const Inputs& in, Weight weight, double divisor) {
  std::vector<double> o(static_cast<std::size_t>(p.head_dim));
  for (int key = 0; key < p.seqlen_kv; ++key) {
    const double w = weight(static_cast<std::size_t>(key));
    for (int c = 0; c < p.head_dim; ++c) {
      o[static_cast<std::size_t>(c)] += w * in.v[static_cast<std::size_t>(key) * p.head_dim + c];
    }
  }
  for (double& x : o) x /= divisor;
  return o;
}

std::vector<double> rounded_row(std::vector<double> o, ElementType type) {
  for (double& x : o) x = round_to(x, type);
  return o;
}

/// An online softmax whose O is rounded after each tile.
std::vector<double> o_kept_in_type(const Problem& p, const Inputs& in, const std::vector<double>& scores) {
  const auto columns = static_cast<std::size_t>(p.head_dim);
  std::vector<double> o(columns);
  const double scale = p.scale();
  double m = -kInfinity, sum = 0;
  for (int first = 0; first < p.seqlen_kv; first += kErrorTile) {
    const int end = std::min(first + kErrorTile, p.seqlen_kv);
    double m_new = m;
    for (int key = first; key < end; ++key) m_new = std::max(m_new, scale * scores[static_cast<std::size_t>(key)]);
    const double rescale = std::exp(m - m_new);
    sum *= rescale;
    for (double& x : o) x *= rescale;
    for (int key = first; key < end; ++key) {
      const double weight = std::exp(scale * scores[static_cast<std::size_t>(key)] - m_new);
      sum += weight;
      for (std::size_t c = 0; c < columns; ++c) o[c] += weight * in.v[static_cast<std::size_t>(key) * columns + c];
    }
    m = m_new;
    o = rounded_row(o, p.element_type);
  }
  for (double& x : o) x /= sum;
  return o;
}

/// Row `query` of a dense O of one head.
std::vector<double> row_of(const Problem& p, const std::vector<float>& o, int query) {
  const auto first = o.begin() + static_cast<std::ptrdiff_t>(query) * p.head_dim;
  return {first, first + p.head_dim};
}

Problem error_problem(ElementType type, int seqlen_kv) {
  Problem p;
  p.seqlen_q = kErrorQueries;
  p.seqlen_kv = seqlen_kv;
  p.head_dim = kErrorHeadDim;
  p.element_type = type;
  return p;
}

RoundingErrors errors_of(const Problem& p, const Inputs& in) {
  const ElementType type = p.element_type;
  const attention::PlainForward plain =
      attention::plain_forward(p, in.q, in.k, in.v, attention::PlainForm::folded_scale);
  RoundingErrors worst;
  for (int query = 0; query < p.seqlen_q; ++query) {
    const std::vector<double> scores = scores_of(p, in, query);
    std::vector<double> weights = scores;
    const double sum = exponentials(weights, p.scale());
    const std::vector<double> exact = average(
        p, in, [&](std::size_t key) { return weights[key]; }, sum);
    std::vector<double> from_rounded = rounded_row(scores, type);
    const double sum_from_rounded = exponentials(from_rounded, p.scale());

    const auto take = [&exact](double& error, const std::vector<double>& o) {
      error = std::max(error, error_of(o, exact));
    };
    take(worst.o, rounded_row(exact, type));
    take(worst.p, average(
                      p, in, [&](std::size_t key) { return round_to(weights[key], type); }, sum));
    take(worst.divided, average(
                            p, in, [&](std::size_t key) { return round_to(weights[key] / sum, type); }, 1));
    take(worst.o_kept, o_kept_in_type(p, in, scores));
    take(worst.s, average(
                      p, in, [&](std::size_t key) { return from_rounded[key]; }, sum_from_rounded));
    take(worst.attention, row_of(p, plain.o, query));
  }
  return worst;
}

}  // namespace

RoundingErrors rounding_errors(ElementType type, int seqlen_kv, double score_factor, std::uint64_t seed) {
  Problem p = error_problem(type, seqlen_kv);
  p.softmax_scale = static_cast<float>(score_factor / std::sqrt(double(p.head_dim)));
  return errors_of(p, attention::make_inputs(p, attention::InputKind::normal, seed));
}

RangeErrors range_errors(ElementType type, double input_factor, std::uint64_t seed) {
  Problem p = error_problem(ElementType::fp32, 1024);
  Inputs in = attention::make_inputs(p, attention::InputKind::normal, seed);
  p.element_type = type;
  p.softmax_scale = static_cast<float>(1 / (std::sqrt(double(p.head_dim)) * input_factor * input_factor));

  RangeErrors errors;
  for (std::vector<float>* array : {&in.q, &in.k, &in.v}) {
    for (float& x : *array) {
      x *= static_cast<float>(input_factor);
      errors.largest_input = std::max(errors.largest_input, std::abs(double(x)));
    }
  }
  for (int query = 0; query < p.seqlen_q; ++query) {
    for (const double s : scores_of(p, in, query)) errors.largest_score = std::max(errors.largest_score, std::abs(s));
  }
  const std::vector<double> v(in.v.begin(), in.v.end());
  bool finite = true;
  for (std::vector<float>* array : {&in.q, &in.k, &in.v}) {
    for (float& x : *array) {
      x = attention::rounded(x, type);
      finite = finite && std::isfinite(x);
    }
  }
  if (!finite) {
    errors.input = errors.attention = errors.s = kInfinity;
    return errors;
  }
  errors.input = error_of(std::vector<double>(in.v.begin(), in.v.end()), v);
  const RoundingErrors of_attention = errors_of(p, in);
  errors.attention = of_attention.attention;
  errors.s = of_attention.s;
  return errors;
}

}  // namespace tensor_cores
