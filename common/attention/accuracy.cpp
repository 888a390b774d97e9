#include "common/attention/accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

namespace attention {
namespace {

/// 2 ulps at 1, the "plus" of the rule.
constexpr double two_ulps(ElementType type) { return 2 * unit_in_last_place(type); }

/// Those of LSE, and of all that is computed on the way.
constexpr double kTwoUlps = two_ulps(ElementType::fp32);

/// The size below which 16 bits do not become finer. In fp32 a row is measured against itself however small it is.
double least_size(const Problem& p) { return p.element_type == ElementType::fp32 ? 0 : least_normal(p.element_type); }

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void require_size(const char* array, std::size_t size, std::size_t needed) {
  if (size >= needed) return;
  throw std::invalid_argument(std::string(array) + " must hold " + std::to_string(needed) + " elements: it holds " +
                              std::to_string(size));
}

/// The row that gave an error its value, and the entry to show.
struct Place {
  int batch = 0;
  int head = 0;
  int position = 0;  ///< of a query, or of a key
  int column = 0;    ///< of the row's entry farthest from the reference, or of a NaN
  double value = 0;
  double expected = 0;
};

struct Measurement {
  ForwardError error;
  Place relative, absolute, lse;
};

/// Takes over a larger error and its place; NaN counts as infinite.
void worsen(double& worst, Place& worst_place, double error, const Place& place) {
  if (std::isnan(error)) error = kInfinity;
  if (error <= worst) return;
  worst = error;
  worst_place = place;
}

/// How far a row is from the reference.
struct RowDifference {
  double norm = 0;           ///< ‖row − expected‖₂; NaN counts as infinite
  double largest = -1;       ///< max |row − expected|
  double expected_norm = 0;  ///< ‖expected‖₂
  int column = 0;            ///< where the largest is
};

RowDifference row_difference(const float* row, const double* expected, int head_dim) {
  RowDifference result;
  double squared_difference = 0, squared_norm = 0;
  for (int c = 0; c < head_dim; ++c) {
    double difference = std::abs(row[c] - expected[c]);
    if (std::isnan(difference)) difference = kInfinity;
    squared_difference += difference * difference;
    squared_norm += expected[c] * expected[c];
    if (difference > result.largest) {
      result.largest = difference;
      result.column = c;
    }
  }
  result.norm = std::sqrt(squared_difference);
  result.expected_norm = std::sqrt(squared_norm);
  return result;
}

/// Where the size is 0, an exact 0 is right and anything else is infinitely wrong.
double ratio(double difference, double size) {
  return difference == 0 ? 0.0 : size > 0 ? difference / size : kInfinity;
}

/// The same, with a size above 0 counted as `least` at least.
double ratio(double difference, double size, double least) {
  return ratio(difference, size > 0 ? std::max(size, least) : size);
}

/// The largest value(key) ≥ 0 of the keys that each query of a head sees, 0 where it sees none. Both ends of the
/// visible run only move to the right as the query grows, so a queue of candidates in falling order serves all queries
/// in one pass.
template <class Value>
std::vector<double> largest_of_seen(const Problem& p, Value value) {
  std::vector<double> largest(static_cast<std::size_t>(p.seqlen_q), 0.0);
  struct Candidate {
    int key;
    double value;
  };
  std::deque<Candidate> candidates;
  int next = 0;
  for (int i = 0; i < p.seqlen_q; ++i) {
    const KeyRange keys = visible_keys(p.mask, i, p.seqlen_q, p.seqlen_kv);
    if (keys.empty()) continue;
    for (; next < keys.end; ++next) {
      const Candidate candidate{next, value(next)};
      while (!candidates.empty() && candidates.back().value <= candidate.value) candidates.pop_back();
      candidates.push_back(candidate);
    }
    while (candidates.front().key < keys.begin) candidates.pop_front();
    largest[static_cast<std::size_t>(i)] = candidates.front().value;
  }
  return largest;
}

double largest_entry(const float* row, int head_dim) {
  double value = 0;
  for (int c = 0; c < head_dim; ++c) value = std::max(value, std::abs(double(row[c])));
  return value;
}

template <class T>
double norm(const T* row, int head_dim) {
  double squared = 0;
  for (int c = 0; c < head_dim; ++c) squared += double(row[c]) * row[c];
  return std::sqrt(squared);
}

/// |scale| · ‖q‖ · ‖k‖ of each query and the largest of the keys that it sees: no score is larger, nor any part of its
/// sum by much. Dense [batch, heads_q, seqlen_q].
std::vector<double> largest_possible_scores(const Problem& p, std::span<const float> q, std::span<const float> k) {
  std::vector<double> largest;
  const int group = p.heads_q / p.heads_kv;
  std::vector<double> largest_key;
  for (int b = 0; b < p.batch; ++b)
    for (int head = 0; head < p.heads_q; ++head) {
      const int head_kv = head / group;
      if (head % group == 0)
        largest_key = largest_of_seen(
            p, [&](int key) { return norm(k.data() + p.strides_k().offset(b, key, head_kv), p.head_dim); });
      for (int i = 0; i < p.seqlen_q; ++i)
        largest.push_back(std::abs(double(p.scale())) * norm(q.data() + p.strides_q().offset(b, i, head), p.head_dim) *
                          largest_key[static_cast<std::size_t>(i)]);
    }
  return largest;
}

/// ForwardYardstick::largest_v.
std::vector<double> largest_v(const Problem& p, std::span<const float> v) {
  require_size("v", v.size(), static_cast<std::size_t>(p.elements_v()));
  std::vector<double> largest;
  const int group = p.heads_q / p.heads_kv;
  std::vector<double> of_head;
  for (int b = 0; b < p.batch; ++b)
    for (int head = 0; head < p.heads_q; ++head) {
      const int head_kv = head / group;
      if (head % group == 0)
        of_head = largest_of_seen(
            p, [&](int key) { return largest_entry(v.data() + p.strides_v().offset(b, key, head_kv), p.head_dim); });
      largest.insert(largest.end(), of_head.begin(), of_head.end());
    }
  return largest;
}

/// What an LSE may be off because tensor cores cut off the digits of a sum that do not fit, where other units round:
/// always towards zero, so that a score's errors add up. They add eight products at a time or more (Fasi, Higham,
/// Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021), and each time at most a unit in the last
/// place of fp32 is lost, in proportion to the score.
double lse_of_cut_sums(const Problem& p, std::span<const float> q, std::span<const float> k,
                       const ReferenceForward& reference) {
  if (p.element_type == ElementType::fp32) return 0;
  const std::vector<double> scores = largest_possible_scores(p, q, k);
  double largest = 0;
  for (std::size_t row = 0; row < scores.size(); ++row) {
    if (std::isfinite(reference.lse[row])) {
      largest = std::max(largest, scores[row] / std::max(1.0, std::abs(reference.lse[row])));
    }
  }
  return p.head_dim / 8.0 * unit_in_last_place(ElementType::fp32) * largest;
}

Measurement measure(const Problem& p, std::span<const float> o, std::span<const float> lse,
                    const std::vector<double>& largest_v, const ReferenceForward& reference) {
  p.validate();
  require_size("o", o.size(), static_cast<std::size_t>(p.elements_o()));
  require_size("lse", lse.size(), static_cast<std::size_t>(p.elements_lse()));
  require_size("largest_v", largest_v.size(), static_cast<std::size_t>(p.elements_lse()));
  require_size("reference.lse", reference.lse.size(), static_cast<std::size_t>(p.elements_lse()));
  require_size("reference.o", reference.o.size(), static_cast<std::size_t>(p.elements_lse()) * p.head_dim);
  const Strides dense = contiguous_strides(p.seqlen_q, p.heads_q, p.head_dim);
  const Strides strides = p.strides_o();
  const double least = least_size(p), least_norm = least * std::sqrt(double(p.head_dim));

  Measurement worst;
  for (int b = 0; b < p.batch; ++b) {
    for (int head = 0; head < p.heads_q; ++head) {
      for (int i = 0; i < p.seqlen_q; ++i) {
        const float* row = o.data() + strides.offset(b, i, head);
        const double* expected = reference.o.data() + dense.offset(b, i, head);
        const RowDifference difference = row_difference(row, expected, p.head_dim);
        const int c = difference.column;
        const auto entry = (static_cast<std::size_t>(b) * p.heads_q + head) * p.seqlen_q + i;
        const Place place{b, head, i, c, row[c], expected[c]};
        const double relative = ratio(difference.norm, difference.expected_norm, least_norm);
        const double absolute = ratio(difference.largest, largest_v[entry], least);
        worsen(worst.error.relative, worst.relative, relative, place);
        worsen(worst.error.absolute, worst.absolute, absolute, place);

        const double lse_expected = reference.lse[entry];
        const double lse_value = lse[entry];
        const double lse_error = lse_value == lse_expected
                                     ? 0.0  // also −∞ = −∞, whose difference would be NaN
                                     : std::abs(lse_value - lse_expected) / std::max(1.0, std::abs(lse_expected));
        worsen(worst.error.lse, worst.lse, lse_error, {b, head, i, 0, lse_value, lse_expected});
      }
    }
  }
  return worst;
}

ForwardError allow(const ForwardError& plain, ElementType type) {
  return {2 * plain.relative + two_ulps(type), 2 * plain.absolute + two_ulps(type), 2 * plain.lse + kTwoUlps};
}

/// The value as a person reads it: "nan" without a sign, whatever its bits.
std::string show(double value, int digits) {
  std::ostringstream out;
  out.precision(digits);
  if (std::isnan(value)) return "nan";
  out << value;
  return out.str();
}

std::string complaint(const std::string& what, double error, double allowed, const Place& place, const char* position,
                      const std::string& entry) {
  std::ostringstream out;
  out << what << " " << show(error, 3) << ", allowed " << show(allowed, 3) << ", at batch " << place.batch << ", head "
      << place.head << ", " << position << " " << place.position << ": " << entry << " is " << show(place.value, 9)
      << ", the reference " << show(place.expected, 9);
  return out.str();
}

std::string element(const char* array, const Place& place) {
  return std::string(array) + "[" + std::to_string(place.column) + "]";
}

/// An infinite error is wrong even where plain attention itself overflowed: no yardstick excuses a NaN.
bool within(double error, double allowed) { return std::isfinite(error) && error <= allowed; }

/// The worst row of one gradient: its error over its magnitude.
struct GradientMeasurement {
  double error = 0;
  Place place;
};

GradientMeasurement measure_gradient(const char* name, const Problem& p, std::span<const float> gradient,
                                     const Strides& strides, std::int64_t elements, int seqlen, int heads,
                                     const std::vector<double>& reference, const std::vector<double>& magnitudes) {
  const std::size_t rows = static_cast<std::size_t>(p.batch) * seqlen * heads;
  require_size(name, gradient.size(), static_cast<std::size_t>(elements));
  require_size((std::string("reference.") + name).c_str(), reference.size(), rows * p.head_dim);
  require_size((std::string("magnitudes.") + name).c_str(), magnitudes.size(), rows);
  GradientMeasurement worst;
  std::size_t row_index = 0;
  for (int b = 0; b < p.batch; ++b)
    for (int position = 0; position < seqlen; ++position)
      for (int head = 0; head < heads; ++head, ++row_index) {
        const float* row = gradient.data() + strides.offset(b, position, head);
        const double* expected = reference.data() + row_index * p.head_dim;
        const RowDifference difference = row_difference(row, expected, p.head_dim);
        const int c = difference.column;
        worsen(worst.error, worst.place, ratio(difference.norm, magnitudes[row_index]),
               {b, head, position, c, row[c], expected[c]});
      }
  return worst;
}

struct BackwardMeasurement {
  GradientMeasurement dq, dk, dv;
  BackwardError error() const { return {dq.error, dk.error, dv.error}; }
};

BackwardMeasurement measure(const Problem& p, std::span<const float> dq, std::span<const float> dk,
                            std::span<const float> dv, const ReferenceBackward& reference,
                            const BackwardMagnitudes& magnitudes) {
  p.validate();
  return {measure_gradient("dq", p, dq, p.strides_dq(), p.elements_dq(), p.seqlen_q, p.heads_q, reference.dq,
                           magnitudes.dq),
          measure_gradient("dk", p, dk, p.strides_dk(), p.elements_dk(), p.seqlen_kv, p.heads_kv, reference.dk,
                           magnitudes.dk),
          measure_gradient("dv", p, dv, p.strides_dv(), p.elements_dv(), p.seqlen_kv, p.heads_kv, reference.dv,
                           magnitudes.dv)};
}

}  // namespace

ForwardError forward_error(const Problem& p, std::span<const float> o, std::span<const float> lse,
                           std::span<const float> v, const ReferenceForward& reference) {
  p.validate();
  return measure(p, o, lse, largest_v(p, v), reference).error;
}

ForwardYardstick make_forward_yardstick(const Problem& p, std::span<const float> q, std::span<const float> k,
                                        std::span<const float> v) {
  ForwardYardstick yardstick;
  yardstick.reference = reference_forward(p, q, k, v);
  yardstick.largest_v = largest_v(p, v);
  Problem dense = p;
  dense.o_strides.reset();
  // With few rows one form may be right by luck, which no kernel could repeat; the worse of two is a fair measure.
  for (const PlainForm form : {PlainForm::textbook, PlainForm::folded_scale}) {
    const PlainForward plain = plain_forward(p, q, k, v, form);
    const ForwardError error = measure(dense, plain.o, plain.lse, yardstick.largest_v, yardstick.reference).error;
    yardstick.plain = {std::max(yardstick.plain.relative, error.relative),
                       std::max(yardstick.plain.absolute, error.absolute), std::max(yardstick.plain.lse, error.lse)};
  }
  yardstick.allowed = allow(yardstick.plain, p.element_type);
  yardstick.allowed.lse += lse_of_cut_sums(p, q, k, yardstick.reference);
  return yardstick;
}

Verdict judge_forward(const Problem& p, std::span<const float> o, std::span<const float> lse,
                      const ForwardYardstick& yardstick) {
  const Measurement found = measure(p, o, lse, yardstick.largest_v, yardstick.reference);
  const ForwardError& error = found.error;
  const ForwardError& allowed = yardstick.allowed;
  Verdict verdict{false, error, allowed, ""};
  if (p.element_type != ElementType::fp32 && !(allowed.absolute <= kLargestAllowedError))
    verdict.sentence = "not judged: with these inputs " + name(p.element_type) +
                       " leaves plain attention no digits of O," + " and an error of " + show(allowed.absolute, 2) +
                       " max |V| would have to be allowed";
  else if (!within(error.relative, allowed.relative))
    verdict.sentence = complaint("wrong: relative error of a row of O is", error.relative, allowed.relative,
                                 found.relative, "query", element("O", found.relative));
  else if (!within(error.absolute, allowed.absolute))
    verdict.sentence = complaint("wrong: error of O over max |V| is", error.absolute, allowed.absolute, found.absolute,
                                 "query", element("O", found.absolute));
  else if (!within(error.lse, allowed.lse))
    verdict.sentence = complaint("wrong: error of LSE is", error.lse, allowed.lse, found.lse, "query", "LSE");
  else {
    verdict.right = true;
    verdict.sentence = "right";
  }
  return verdict;
}

Verdict judge_forward(const Problem& p, std::span<const float> q, std::span<const float> k, std::span<const float> v,
                      std::span<const float> o, std::span<const float> lse) {
  return judge_forward(p, o, lse, make_forward_yardstick(p, q, k, v));
}

double BackwardError::largest() const { return std::max({dq, dk, dv}); }

double backward_magnitude(const Problem& p, double terms, double rounded_terms, double norm, double exponent) {
  if (p.element_type == ElementType::fp32 || terms == 0) return terms;
  const double of_fp32 = unit_in_last_place(ElementType::fp32) / unit_in_last_place(p.element_type);
  return std::max({norm, rounded_terms, least_size(p) * std::sqrt(double(p.head_dim))}) + exponent * of_fp32 * terms;
}

double allowed_backward_error(const Problem& p, double plain, double exponent) {
  return 2 * plain + (p.element_type == ElementType::fp32 ? kTwoUlps * exponent : two_ulps(p.element_type));
}

BackwardYardstick make_backward_yardstick(const Problem& p, std::span<const float> q, std::span<const float> k,
                                          std::span<const float> v, std::span<const float> dout,
                                          std::span<const float> dlse) {
  ReferencePass pass = reference_pass(p, q, k, v, dout, dlse);
  BackwardYardstick yardstick;
  yardstick.o.assign(static_cast<std::size_t>(p.elements_o()), std::numeric_limits<float>::quiet_NaN());
  const Strides dense = contiguous_strides(p.seqlen_q, p.heads_q, p.head_dim);
  for (int b = 0; b < p.batch; ++b)
    for (int i = 0; i < p.seqlen_q; ++i)
      for (int head = 0; head < p.heads_q; ++head) {
        const double* row = pass.forward.o.data() + dense.offset(b, i, head);
        std::transform(row, row + p.head_dim, yardstick.o.data() + p.strides_o().offset(b, i, head),
                       [&p](double x) { return rounded(static_cast<float>(x), p.element_type); });
      }
  yardstick.lse.assign(pass.forward.lse.begin(), pass.forward.lse.end());
  yardstick.reference = std::move(pass.gradients);
  for (const double score : largest_possible_scores(p, q, k)) yardstick.exponent = std::max(yardstick.exponent, score);
  for (const float lse : yardstick.lse)
    if (std::isfinite(lse)) yardstick.exponent = std::max(yardstick.exponent, std::abs(double(lse)));
  const auto magnitudes = [&](const std::vector<double>& terms, const std::vector<double>& rounded_terms,
                              const std::vector<double>& reference) {
    std::vector<double> result(terms.size());
    for (std::size_t row = 0; row < terms.size(); ++row)
      result[row] = backward_magnitude(p, terms[row], rounded_terms.empty() ? 0 : rounded_terms[row],
                                       norm(reference.data() + row * p.head_dim, p.head_dim), yardstick.exponent);
    return result;
  };
  yardstick.magnitudes = {magnitudes(pass.magnitudes.dq, pass.rounded_terms.dq, yardstick.reference.dq),
                          magnitudes(pass.magnitudes.dk, pass.rounded_terms.dk, yardstick.reference.dk),
                          magnitudes(pass.magnitudes.dv, pass.rounded_terms.dv, yardstick.reference.dv)};

  Problem dense_gradients = p;
  dense_gradients.dq_strides = dense_gradients.dk_strides = dense_gradients.dv_strides = std::nullopt;
  for (const PlainForm form : {PlainForm::textbook, PlainForm::folded_scale}) {
    const PlainBackward plain = plain_backward(p, q, k, v, yardstick.o, yardstick.lse, dout, dlse, form);
    const BackwardError error =
        measure(dense_gradients, plain.dq, plain.dk, plain.dv, yardstick.reference, yardstick.magnitudes).error();
    yardstick.plain = {std::max(yardstick.plain.dq, error.dq), std::max(yardstick.plain.dk, error.dk),
                       std::max(yardstick.plain.dv, error.dv)};
  }
  yardstick.allowed = {allowed_backward_error(p, yardstick.plain.dq, yardstick.exponent),
                       allowed_backward_error(p, yardstick.plain.dk, yardstick.exponent),
                       allowed_backward_error(p, yardstick.plain.dv, yardstick.exponent)};
  return yardstick;
}

// Only dQ and dK use dS and D; dQ sums over keys, dK and dV over queries and over the group.
std::string suspicion(bool dq_wrong, bool dk_wrong, bool dv_wrong) {
  if (dq_wrong && dk_wrong)
    return dv_wrong ? "look at P and LSE, and for heads or tiles that nobody visits" : "dV is right: look at D and dP";
  if (dk_wrong && dv_wrong) return "dQ is right: look at the sum over queries and over the heads of a group";
  if (dq_wrong && dv_wrong) return "dK is right: look at the sums of the two others";
  return dq_wrong   ? "dK and dV are right: look at the sum over keys"
         : dk_wrong ? "dQ and dV are right: look at the sum that makes dK"
                    : "dQ and dK are right: look at the sum that makes dV";
}

BackwardVerdict judge_backward(const Problem& p, std::span<const float> dq, std::span<const float> dk,
                               std::span<const float> dv, const BackwardYardstick& yardstick) {
  const BackwardMeasurement found = measure(p, dq, dk, dv, yardstick.reference, yardstick.magnitudes);
  const BackwardError& allowed = yardstick.allowed;
  BackwardVerdict verdict{false, found.error(), allowed, ""};
  const bool dq_wrong = !within(found.dq.error, allowed.dq);
  const bool dk_wrong = !within(found.dk.error, allowed.dk);
  const bool dv_wrong = !within(found.dv.error, allowed.dv);
  verdict.right = !dq_wrong && !dk_wrong && !dv_wrong;
  const double of_exponent = kTwoUlps * yardstick.exponent;
  if (!(std::max(allowed.largest(), of_exponent) <= kLargestAllowedError)) {
    verdict.right = false;
    const bool exponent_is_why = p.element_type == ElementType::fp32 || of_exponent > kLargestAllowedError;
    verdict.sentence = (exponent_is_why ? "not judged: with scores this large fp32 leaves exp(S - LSE) no digits"
                                        : "not judged: with these inputs " + name(p.element_type) +
                                              " leaves plain attention no digits of the gradients") +
                       ", and an error of " + show(std::max(allowed.largest(), of_exponent), 2) +
                       " would have to be allowed";
    return verdict;
  }
  if (verdict.right) {
    verdict.sentence = "right";
    return verdict;
  }
  const auto wrong = [](const char* array, const GradientMeasurement& worst, double limit, const char* position) {
    return complaint("wrong: error of a row of " + std::string(array) + " over its terms is", worst.error, limit,
                     worst.place, position, element(array, worst.place));
  };
  verdict.sentence = dq_wrong   ? wrong("dQ", found.dq, allowed.dq, "query")
                     : dk_wrong ? wrong("dK", found.dk, allowed.dk, "key")
                                : wrong("dV", found.dv, allowed.dv, "key");
  verdict.sentence += " (" + suspicion(dq_wrong, dk_wrong, dv_wrong) + ")";
  return verdict;
}

}  // namespace attention
