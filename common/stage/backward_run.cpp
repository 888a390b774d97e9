#include "common/stage/backward_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/attention/in_parallel.hpp"
#include "common/attention/reference.hpp"

namespace stage {
namespace {

using attention::BackwardError;
using attention::BackwardVerdict;
using attention::KeyRange;
using attention::Problem;

constexpr double kLeastExactP = 0x1p-102;  // of attention::BackwardMagnitudes
constexpr double kLongestReference = 4e9;  // products in QKᵀ; some 10 seconds on one core

/// One head with sizes and layout of its own; what is left out is that of `p`.
Problem part_of(const Problem& p, int heads_q, int seqlen_q, int seqlen_kv, attention::Mask mask) {
  Problem part = p;
  part.batch = 1;
  part.heads_q = heads_q;
  part.heads_kv = 1;
  part.seqlen_q = seqlen_q;
  part.seqlen_kv = seqlen_kv;
  part.mask = mask;
  part.softmax_scale = p.scale();
  part.q_strides = p.strides_q();
  part.k_strides = p.strides_k();
  part.v_strides = p.strides_v();
  part.o_strides = p.strides_o();
  part.dout_strides = p.strides_dout();
  part.dq_strides = part.dk_strides = part.dv_strides = std::nullopt;
  return part;
}

template <class T>
double norm(std::span<const T> row) {
  double sum = 0;
  for (const T x : row) sum += double(x) * double(x);
  return std::sqrt(sum);
}

/// ‖x − reference‖₂.
double distance(std::span<const float> x, std::span<const double> reference) {
  double sum = 0;
  for (std::size_t c = 0; c < reference.size(); ++c) sum += (x[c] - reference[c]) * (x[c] - reference[c]);
  return std::sqrt(sum);
}

/// A distance over the row's magnitude; what must be 0 has an infinite error if it is not.
double row_error(double distance, double magnitude) {
  if (distance == 0) return 0;
  const double error = distance / magnitude;
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

/// The first row of a gradient that is not finite; empty if there is none.
std::string find_unwritten(const char* name, const char* position_name, const Problem& p, std::span<const float> x,
                           const attention::Strides& strides, int seqlen, int heads) {
  const auto place = find_row(p.batch, seqlen, heads, [&](const RowPlace& at) {
    return !is_finite(part(x, strides.offset(at.batch, at.position, at.head), p.head_dim));
  });
  if (!place) return {};
  return fmt::format("wrong: {} of batch {}, head {}, {} {} is not finite", name, place->batch, place->head,
                     position_name, place->position);
}

}  // namespace

bool is_backward_sampled(const Problem& p) {
  return static_cast<double>(p.visible_pairs()) * p.heads_q * p.batch * p.head_dim > kLongestReference;
}

/// What the forward leaves for the rows of dK and dV: [batch, heads_q, seqlen_q], float64.
struct BackwardSample::Forward {
  std::vector<double> lse, d, d_size;
};

BackwardSample::BackwardSample(const Problem& p, const attention::Inputs& inputs, std::span<const float> dout)
    : problem_(p) {
  const Forward forward = run_forward(p, inputs, dout);
  const std::vector<std::int64_t> queries = sampled_rows(p.elements_lse());
  const std::vector<std::int64_t> keys = sampled_rows(std::int64_t{p.batch} * p.heads_kv * p.seqlen_kv);
  dq_.resize(queries.size());
  dk_.resize(keys.size());
  dv_.resize(keys.size());
  attention::in_parallel(static_cast<std::int64_t>(queries.size() + keys.size()), [&](std::int64_t i) {
    const auto query = static_cast<std::size_t>(i), key = query - queries.size();
    if (query < queries.size()) {
      dq_[query] = query_row(p, inputs, dout, queries[query]);
    } else {
      key_rows(p, inputs, dout, forward, keys[key], dk_[key], dv_[key]);
    }
  });
  for (const Row& row : dq_) exponent_ = std::max(exponent_, row.exponent);
  for (std::vector<Row>* rows : {&dq_, &dk_, &dv_}) {
    for (Row& row : *rows) {
      row.magnitude = attention::backward_magnitude(p, row.terms, row.rounded_terms,
                                                    norm(std::span<const double>(row.reference)), exponent_);
    }
  }
}

BackwardSample::Forward BackwardSample::run_forward(const Problem& p, const attention::Inputs& inputs,
                                                    std::span<const float> dout) {
  const auto rows = static_cast<std::size_t>(p.elements_lse());
  Forward forward{std::vector<double>(rows), std::vector<double>(rows), std::vector<double>(rows)};
  o_.assign(static_cast<std::size_t>(p.elements_o()), std::numeric_limits<float>::quiet_NaN());
  lse_.resize(rows);
  const Problem head_alone = part_of(p, 1, p.seqlen_q, p.seqlen_kv, p.mask);
  attention::in_parallel(std::int64_t{p.batch} * p.heads_q, [&](std::int64_t index) {
    const int head = static_cast<int>(index % p.heads_q), b = static_cast<int>(index / p.heads_q);
    const int head_kv = head / (p.heads_q / p.heads_kv);
    const attention::ReferenceForward reference = attention::reference_forward(
        head_alone, part<float>(inputs.q, p.strides_q().offset(b, 0, head), head_alone.elements_q()),
        part<float>(inputs.k, p.strides_k().offset(b, 0, head_kv), head_alone.elements_k()),
        part<float>(inputs.v, p.strides_v().offset(b, 0, head_kv), head_alone.elements_v()));
    const bool in_fp32 = p.element_type == attention::ElementType::fp32;
    for (int i = 0; i < p.seqlen_q; ++i) {
      const double* o = reference.o.data() + std::int64_t{i} * p.head_dim;
      const float* d_out = dout.data() + p.strides_dout().offset(b, i, head);
      float* o_stored = o_.data() + p.strides_o().offset(b, i, head);
      const auto row = static_cast<std::size_t>(index * p.seqlen_q + i);
      for (int c = 0; c < p.head_dim; ++c) {
        o_stored[c] = attention::rounded(static_cast<float>(o[c]), p.element_type);
        // D is the sum over O as it is stored; to fp32 the reference does not round.
        forward.d[row] += d_out[c] * (in_fp32 ? o[c] : o_stored[c]);
        forward.d_size[row] += std::abs(d_out[c] * o[c]);
      }
      forward.lse[row] = reference.lse[static_cast<std::size_t>(i)];
      lse_[row] = static_cast<float>(forward.lse[row]);
    }
  });
  return forward;
}

BackwardSample::Row BackwardSample::query_row(const Problem& p, const attention::Inputs& inputs,
                                              std::span<const float> dout, std::int64_t index) {
  const int query = static_cast<int>(index % p.seqlen_q);
  const int head = static_cast<int>(index / p.seqlen_q % p.heads_q);
  const int b = static_cast<int>(index / p.seqlen_q / p.heads_q);
  const int head_kv = head / (p.heads_q / p.heads_kv);
  const KeyRange keys = attention::visible_keys(p.mask, query, p.seqlen_q, p.seqlen_kv);
  const Problem alone = part_of(p, 1, 1, keys.size(), attention::Mask::none());
  const auto q = part<float>(inputs.q, p.strides_q().offset(b, query, head), alone.elements_q());
  const auto k = part<float>(inputs.k, p.strides_k().offset(b, keys.begin, head_kv), alone.elements_k());
  const auto v = part<float>(inputs.v, p.strides_v().offset(b, keys.begin, head_kv), alone.elements_v());
  const auto d_out = part(dout, p.strides_dout().offset(b, query, head), alone.elements_dout());
  const attention::BackwardYardstick yardstick = attention::make_backward_yardstick(alone, q, k, v, d_out);
  // Its magnitude is made of these and of an exponent, which is that of all rows only when all are known.
  const attention::ReferencePass pass = attention::reference_pass(alone, q, k, v, d_out);
  return {.place = fmt::format("batch {}, head {}, query {}", b, head, query),
          .offset = p.strides_dq().offset(b, query, head),
          .reference = yardstick.reference.dq,
          .terms = pass.magnitudes.dq.at(0),
          .rounded_terms = pass.rounded_terms.dq.empty() ? 0 : pass.rounded_terms.dq.at(0),
          .plain_distance = yardstick.plain.dq * yardstick.magnitudes.dq.at(0),
          .exponent = yardstick.exponent};
}

void BackwardSample::key_rows(const Problem& p, const attention::Inputs& inputs, std::span<const float> dout,
                              const Forward& forward, std::int64_t index, Row& dk, Row& dv) const {
  const int key = static_cast<int>(index % p.seqlen_kv);
  const int head_kv = static_cast<int>(index / p.seqlen_kv % p.heads_kv);
  const int b = static_cast<int>(index / p.seqlen_kv / p.heads_kv);
  const int group = p.heads_q / p.heads_kv;
  const attention::QueryRange queries = attention::queries_of_any(p.mask, key, key, p.seqlen_q, p.seqlen_kv);
  const auto head_dim = static_cast<std::size_t>(p.head_dim);
  const double scale = p.scale();
  dk.place = dv.place = fmt::format("batch {}, head {}, key {}", b, head_kv, key);
  dk.offset = p.strides_dk().offset(b, key, head_kv);
  dv.offset = p.strides_dv().offset(b, key, head_kv);

  // The sums of attention::reference_pass for one key.
  const double least = attention::least_normal(p.element_type);
  const float* k = inputs.k.data() + p.strides_k().offset(b, key, head_kv);
  const float* v = inputs.v.data() + p.strides_v().offset(b, key, head_kv);
  std::vector<double> dk_size(head_dim), dv_size(head_dim);
  double dk_squares = 0, dv_squares = 0;
  dk.reference.assign(head_dim, 0);
  dv.reference.assign(head_dim, 0);
  std::vector<float> lse;  // of these queries, dense
  for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
    for (int i = queries.begin; i < queries.end; ++i) {
      const auto row = static_cast<std::size_t>((std::int64_t{b} * p.heads_q + head) * p.seqlen_q + i);
      const float* q = inputs.q.data() + p.strides_q().offset(b, i, head);
      const float* d_out = dout.data() + p.strides_dout().offset(b, i, head);
      lse.push_back(lse_[row]);
      double s = 0, dp = 0, dp_size = 0, q_square = 0, d_out_square = 0;
      for (std::size_t c = 0; c < head_dim; ++c) {
        s += double(q[c]) * k[c];
        dp += double(d_out[c]) * v[c];
        dp_size += std::abs(double(d_out[c]) * v[c]);
        q_square += double(q[c]) * q[c];
        d_out_square += double(d_out[c]) * d_out[c];
      }
      const double probability = std::exp(scale * s - forward.lse[row]);
      const double ds = probability * (dp - forward.d[row]);
      dk_squares += std::pow(std::max(std::abs(ds), least), 2) * q_square;
      dv_squares += std::pow(std::max(probability, least), 2) * d_out_square;
      const double ds_size = (probability + kLeastExactP) * (dp_size + forward.d_size[row]);
      for (std::size_t c = 0; c < head_dim; ++c) {
        dk.reference[c] += scale * ds * q[c];
        dk_size[c] += std::abs(scale) * ds_size * std::abs(q[c]);
        dv.reference[c] += probability * d_out[c];
        dv_size[c] += (probability + kLeastExactP) * std::abs(d_out[c]);
      }
    }
  }
  dk.terms = norm<double>(dk_size);
  dv.terms = norm<double>(dv_size);
  dk.rounded_terms = std::abs(scale) * std::sqrt(dk_squares);
  dv.rounded_terms = std::sqrt(dv_squares);
  if (queries.empty()) return;

  // Plain attention takes P from the LSE that it is given, so that for it one key is a problem of its own.
  const Problem alone = part_of(p, group, queries.size(), 1, attention::Mask::none());
  const int head = head_kv * group;
  for (const auto form : {attention::PlainForm::textbook, attention::PlainForm::folded_scale}) {
    const attention::PlainBackward plain = attention::plain_backward(
        alone, part<float>(inputs.q, p.strides_q().offset(b, queries.begin, head), alone.elements_q()),
        part<float>(inputs.k, p.strides_k().offset(b, key, head_kv), alone.elements_k()),
        part<float>(inputs.v, p.strides_v().offset(b, key, head_kv), alone.elements_v()),
        part<float>(o_, p.strides_o().offset(b, queries.begin, head), alone.elements_o()), lse,
        part(dout, p.strides_dout().offset(b, queries.begin, head), alone.elements_dout()), {}, form);
    dk.plain_distance = std::max(dk.plain_distance, distance(plain.dk, dk.reference));
    dv.plain_distance = std::max(dv.plain_distance, distance(plain.dv, dv.reference));
  }
}

BackwardVerdict BackwardSample::judge(std::span<const float> dq, std::span<const float> dk,
                                      std::span<const float> dv) const {
  BackwardVerdict verdict{.right = true, .error = {}, .allowed = {}, .sentence = {}};
  const auto compare = [&](const char* name, const std::vector<Row>& rows, std::span<const float> gradient,
                           double& error, double& allowed) -> bool {
    const Row* worst = nullptr;
    double plain_error = 0;
    for (const Row& row : rows) {
      const auto x = gradient.subspan(static_cast<std::size_t>(row.offset), row.reference.size());
      const double of_row = row_error(distance(x, row.reference), row.magnitude);
      plain_error = std::max(plain_error, row_error(row.plain_distance, row.magnitude));
      if (worst && of_row <= error) continue;
      error = of_row;
      worst = &row;
    }
    allowed = attention::allowed_backward_error(problem_, plain_error, exponent_);
    if (std::isfinite(error) && error <= allowed) return true;
    if (verdict.right) {
      verdict.sentence = fmt::format(
          "wrong in a sample of {} rows: error of a row of {} over its terms is {:.2e}, allowed {:.2e}, at {}",
          kSampledRows, name, error, allowed, worst ? worst->place : "");
    }
    verdict.right = false;
    return false;
  };
  const bool dq_right = compare("dQ", dq_, dq, verdict.error.dq, verdict.allowed.dq);
  const bool dk_right = compare("dK", dk_, dk, verdict.error.dk, verdict.allowed.dk);
  const bool dv_right = compare("dV", dv_, dv, verdict.error.dv, verdict.allowed.dv);
  const double of_exponent = 2 * attention::unit_in_last_place(attention::ElementType::fp32) * exponent_;
  if (!(std::max(verdict.allowed.largest(), of_exponent) <= attention::kLargestAllowedError)) {
    verdict.right = false;
    verdict.sentence = fmt::format("not judged: with these inputs {} leaves plain attention no digits of the gradients",
                                   attention::name(problem_.element_type));
  } else if (!verdict.right) {
    verdict.sentence += fmt::format(" ({})", attention::suspicion(!dq_right, !dk_right, !dv_right));
  } else {
    verdict.sentence = fmt::format("right (sample: {} rows each)", kSampledRows);
  }
  return verdict;
}

BackwardCase::BackwardCase(const attention::Problem& p, std::uint64_t seed, bool sampled)
    : problem_(p),
      inputs_(attention::make_inputs(p, attention::InputKind::normal, seed)),
      dout_(attention::make_output_gradient(p, seed)) {
  if (sampled) {
    sample_.emplace(p, inputs_, dout_);
  } else {
    yardstick_ = attention::make_backward_yardstick(p, inputs_.q, inputs_.k, inputs_.v, dout_);
  }
  stored_.emplace_back("Q", inputs_.q, p.element_type);
  stored_.emplace_back("K", inputs_.k, p.element_type);
  stored_.emplace_back("V", inputs_.v, p.element_type);
  stored_.emplace_back("O", sample_ ? sample_->o() : yardstick_->o, p.element_type);
  stored_.emplace_back("LSE", sample_ ? sample_->lse() : yardstick_->lse, attention::ElementType::fp32);
  stored_.emplace_back("dO", dout_, p.element_type);
}

std::vector<OutputArray> BackwardCase::outputs_in_order() const {
  const auto element = static_cast<std::size_t>(attention::element_bytes(problem_.element_type));
  return {{"dQ", static_cast<std::size_t>(problem_.elements_dq()) * element},
          {"dK", static_cast<std::size_t>(problem_.elements_dk()) * element},
          {"dV", static_cast<std::size_t>(problem_.elements_dv()) * element}};
}

BackwardVerdict BackwardCase::judge(std::span<const float> dq, std::span<const float> dk,
                                    std::span<const float> dv) const {
  if (yardstick_) return attention::judge_backward(problem_, dq, dk, dv, *yardstick_);
  const Problem& p = problem_;
  BackwardVerdict verdict = sample_->judge(dq, dk, dv);
  if (!verdict.right) return verdict;
  for (const std::string& sentence : {find_unwritten("dQ", "query", p, dq, p.strides_dq(), p.seqlen_q, p.heads_q),
                                      find_unwritten("dK", "key", p, dk, p.strides_dk(), p.seqlen_kv, p.heads_kv),
                                      find_unwritten("dV", "key", p, dv, p.strides_dv(), p.seqlen_kv, p.heads_kv)}) {
    if (!verdict.right || sentence.empty()) continue;
    verdict.right = false;
    verdict.sentence = sentence;
  }
  return verdict;
}

Judgement BackwardCase::judge_outputs(const std::vector<Bytes>& outputs) {
  const attention::ElementType type = problem_.element_type;
  const BackwardVerdict verdict =
      judge(Numbers(outputs.at(0), type), Numbers(outputs.at(1), type), Numbers(outputs.at(2), type));
  Judgement judgement{.right = verdict.right, .error = 0, .allowed = 0, .sentence = verdict.sentence};
  double largest_share = -1;
  for (const auto& [error, allowed] :
       {std::pair(verdict.error.dq, verdict.allowed.dq), std::pair(verdict.error.dk, verdict.allowed.dk),
        std::pair(verdict.error.dv, verdict.allowed.dv)}) {
    if (error / allowed <= largest_share) continue;
    largest_share = error / allowed;
    judgement.error = error;
    judgement.allowed = allowed;
  }
  return judgement;
}

}  // namespace stage
