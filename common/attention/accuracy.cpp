#include "common/attention/accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace attention {
namespace {

/// 2 ulps of fp32 at 1, the "plus" of the rule.
constexpr double kTwoUlps = 2 * 0x1p-23;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The row that gave an error its value, and the entry to show.
struct Place {
  int batch = 0;
  int head = 0;
  int query = 0;
  int column = 0;  ///< of the entry of O farthest from the reference, or of a NaN
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

/// max |V| over the keys that each query of a head sees, 0 where it sees none. Both ends of the visible run only move
/// to the right as the query grows, so a queue of candidates in falling order serves all queries in one pass.
std::vector<double> largest_visible_values(const Problem& p, std::span<const float> v, int b, int head_kv) {
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
      const float* row = v.data() + p.strides_v().offset(b, next, head_kv);
      double value = 0;
      for (int c = 0; c < p.head_dim; ++c) value = std::max(value, std::abs(double(row[c])));
      while (!candidates.empty() && candidates.back().value <= value) candidates.pop_back();
      candidates.push_back({next, value});
    }
    while (candidates.front().key < keys.begin) candidates.pop_front();
    largest[static_cast<std::size_t>(i)] = candidates.front().value;
  }
  return largest;
}

void require_size(const char* array, std::size_t size, std::size_t needed) {
  if (size >= needed) return;
  throw std::invalid_argument(std::string(array) + " must hold " + std::to_string(needed) + " elements: it holds " +
                              std::to_string(size));
}

Measurement measure(const Problem& p, std::span<const float> o, std::span<const float> lse, std::span<const float> v,
                    const ReferenceForward& reference) {
  p.validate();
  require_size("o", o.size(), static_cast<std::size_t>(p.elements_o()));
  require_size("lse", lse.size(), static_cast<std::size_t>(p.elements_lse()));
  require_size("v", v.size(), static_cast<std::size_t>(p.elements_v()));
  require_size("reference.lse", reference.lse.size(), static_cast<std::size_t>(p.elements_lse()));
  require_size("reference.o", reference.o.size(), static_cast<std::size_t>(p.elements_lse()) * p.head_dim);
  const Strides dense = contiguous_strides(p.seqlen_q, p.heads_q, p.head_dim);
  const Strides strides = p.strides_o();
  const int group = p.heads_q / p.heads_kv;

  Measurement worst;
  std::vector<double> largest;
  for (int b = 0; b < p.batch; ++b) {
    for (int head = 0; head < p.heads_q; ++head) {
      if (head % group == 0) largest = largest_visible_values(p, v, b, head / group);
      for (int i = 0; i < p.seqlen_q; ++i) {
        const float* row = o.data() + strides.offset(b, i, head);
        const double* expected = reference.o.data() + dense.offset(b, i, head);
        double squared_difference = 0, squared_norm = 0, largest_difference = -1;
        Place place{b, head, i, 0, 0, 0};
        for (int c = 0; c < p.head_dim; ++c) {
          double difference = std::abs(row[c] - expected[c]);
          if (std::isnan(difference)) difference = kInfinity;
          squared_difference += difference * difference;
          squared_norm += expected[c] * expected[c];
          if (difference > largest_difference) {
            largest_difference = difference;
            place.column = c;
            place.value = row[c];
            place.expected = expected[c];
          }
        }
        // Where the divisor is 0, an exact 0 is right and anything else is infinitely wrong.
        const auto ratio = [](double difference, double size) {
          return difference == 0 ? 0.0 : size > 0 ? difference / size : kInfinity;
        };
        const double relative = ratio(std::sqrt(squared_difference), std::sqrt(squared_norm));
        const double absolute = ratio(largest_difference, largest[static_cast<std::size_t>(i)]);
        worsen(worst.error.relative, worst.relative, relative, place);
        worsen(worst.error.absolute, worst.absolute, absolute, place);

        const auto entry = (static_cast<std::size_t>(b) * p.heads_q + head) * p.seqlen_q + i;
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

ForwardError allow(const ForwardError& plain) {
  return {2 * plain.relative + kTwoUlps, 2 * plain.absolute + kTwoUlps, 2 * plain.lse + kTwoUlps};
}

/// The value as a person reads it: "nan" without a sign, whatever its bits.
std::string show(double value, int digits) {
  std::ostringstream out;
  out.precision(digits);
  if (std::isnan(value)) return "nan";
  out << value;
  return out.str();
}

std::string complaint(const char* what, double error, double allowed, const Place& place, bool is_lse) {
  std::ostringstream out;
  out << what << " " << show(error, 3) << ", allowed " << show(allowed, 3) << ", at batch " << place.batch << ", head "
      << place.head << ", query " << place.query << ": ";
  if (is_lse)
    out << "LSE";
  else
    out << "O[" << place.column << "]";
  out << " is " << show(place.value, 9) << ", the reference " << show(place.expected, 9);
  return out.str();
}

}  // namespace

ForwardError forward_error(const Problem& p, std::span<const float> o, std::span<const float> lse,
                           std::span<const float> v, const ReferenceForward& reference) {
  return measure(p, o, lse, v, reference).error;
}

ForwardYardstick make_forward_yardstick(const Problem& p, std::span<const float> q, std::span<const float> k,
                                        std::span<const float> v) {
  ForwardYardstick yardstick;
  yardstick.reference = reference_forward(p, q, k, v);
  Problem dense = p;
  dense.o_strides.reset();
  // With few rows one form may be right by luck, which no kernel could repeat; the worse of two is a fair measure.
  for (const PlainForm form : {PlainForm::textbook, PlainForm::folded_scale}) {
    const PlainForward plain = plain_forward_f32(p, q, k, v, form);
    const ForwardError error = forward_error(dense, plain.o, plain.lse, v, yardstick.reference);
    yardstick.plain = {std::max(yardstick.plain.relative, error.relative),
                       std::max(yardstick.plain.absolute, error.absolute), std::max(yardstick.plain.lse, error.lse)};
  }
  yardstick.allowed = allow(yardstick.plain);
  return yardstick;
}

Verdict judge_forward(const Problem& p, std::span<const float> v, std::span<const float> o, std::span<const float> lse,
                      const ForwardYardstick& yardstick) {
  const Measurement found = measure(p, o, lse, v, yardstick.reference);
  const ForwardError& error = found.error;
  const ForwardError& allowed = yardstick.allowed;
  Verdict verdict{false, error, allowed, ""};
  // An infinite error is wrong even where plain attention itself overflowed: no yardstick excuses a NaN.
  const auto within = [](double value, double limit) { return std::isfinite(value) && value <= limit; };
  if (!within(error.relative, allowed.relative))
    verdict.sentence =
        complaint("wrong: relative error of a row of O is", error.relative, allowed.relative, found.relative, false);
  else if (!within(error.absolute, allowed.absolute))
    verdict.sentence =
        complaint("wrong: error of O over max |V| is", error.absolute, allowed.absolute, found.absolute, false);
  else if (!within(error.lse, allowed.lse))
    verdict.sentence = complaint("wrong: error of LSE is", error.lse, allowed.lse, found.lse, true);
  else {
    verdict.right = true;
    verdict.sentence = "right";
  }
  return verdict;
}

Verdict judge_forward(const Problem& p, std::span<const float> q, std::span<const float> k, std::span<const float> v,
                      std::span<const float> o, std::span<const float> lse) {
  return judge_forward(p, v, o, lse, make_forward_yardstick(p, q, k, v));
}

}  // namespace attention
