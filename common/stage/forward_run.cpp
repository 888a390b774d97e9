#include "common/stage/forward_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/attention/in_parallel.hpp"

namespace stage {
namespace {

using attention::Problem;

/// The reference's LSE in fp32: in the place of one that is not there, it passes the rule and leaves O to be judged.
std::vector<float> reference_lse(const attention::ForwardYardstick& yardstick) {
  std::vector<float> lse;
  for (const double l : yardstick.reference.lse) lse.push_back(static_cast<float>(l));
  return lse;
}

/// A row that a sample need not contain to be seen to be wrong: O not finite or LSE NaN. Empty if there is none.
std::string find_unwritten(const Problem& p, std::span<const float> o, std::span<const float> lse) {
  const auto place = find_row(p.batch, p.seqlen_q, p.heads_q, [&](const RowPlace& at) {
    const auto row = part(o, p.strides_o().offset(at.batch, at.position, at.head), p.head_dim);
    const auto entry =
        static_cast<std::size_t>((std::int64_t{at.batch} * p.heads_q + at.head) * p.seqlen_q + at.position);
    return (!lse.empty() && std::isnan(lse[entry])) || !is_finite(row);
  });
  if (!place) return {};
  return fmt::format("wrong: batch {}, head {}, query {} is not finite", place->batch, place->head, place->position);
}

}  // namespace

bool is_sampled(const Problem& p) {
  constexpr double kLongestReference = 2e10;  // products in QKᵀ; some 20 seconds on one core
  return static_cast<double>(p.visible_pairs()) * p.heads_q * p.batch * p.head_dim > kLongestReference;
}

ForwardSample::ForwardSample(const Problem& p, const attention::Inputs& inputs) : problem_(p) {
  const std::vector<std::int64_t> indices = sampled_rows(p.elements_lse());
  rows_.resize(indices.size());
  attention::in_parallel(static_cast<std::int64_t>(indices.size()), [&](std::int64_t i) {
    rows_[static_cast<std::size_t>(i)] = make_row(inputs, indices[static_cast<std::size_t>(i)]);
  });
}

ForwardSample::Row ForwardSample::make_row(const attention::Inputs& inputs, std::int64_t index) const {
  const Problem& p = problem_;
  const int query = static_cast<int>(index % p.seqlen_q);
  const int head = static_cast<int>(index / p.seqlen_q % p.heads_q);
  const int b = static_cast<int>(index / p.seqlen_q / p.heads_q);
  const attention::KeyRange keys = attention::visible_keys(p.mask, query, p.seqlen_q, p.seqlen_kv);
  const int head_kv = head / (p.heads_q / p.heads_kv);

  Problem row;
  row.seqlen_q = 1;
  row.seqlen_kv = keys.size();
  row.head_dim = p.head_dim;
  row.element_type = p.element_type;
  row.softmax_scale = p.scale();
  row.q_strides = p.strides_q();
  row.k_strides = p.strides_k();
  row.v_strides = p.strides_v();
  row.o_strides = p.strides_o();
  return {b, head, query, row,
          attention::make_forward_yardstick(
              row, part<float>(inputs.q, p.strides_q().offset(b, query, head), row.elements_q()),
              part<float>(inputs.k, p.strides_k().offset(b, keys.begin, head_kv), row.elements_k()),
              part<float>(inputs.v, p.strides_v().offset(b, keys.begin, head_kv), row.elements_v()))};
}

attention::Verdict ForwardSample::judge_row(const Row& row, std::span<const float> o,
                                            std::span<const float> lse) const {
  const Problem& p = problem_;
  const std::int64_t entry = (std::int64_t{row.batch} * p.heads_q + row.head) * p.seqlen_q + row.query;
  const std::vector<float> unjudged = lse.empty() ? reference_lse(row.yardstick) : std::vector<float>();
  return attention::judge_forward(
      row.problem, part(o, p.strides_o().offset(row.batch, row.query, row.head), row.problem.elements_o()),
      lse.empty() ? std::span<const float>(unjudged) : part(lse, entry, 1), row.yardstick);
}

attention::Verdict ForwardSample::judge(std::span<const float> o, std::span<const float> lse) const {
  attention::Verdict verdict{.right = true, .error = {}, .allowed = {}, .sentence = {}};
  std::string worst_row;
  double worst_ratio = -1;
  const auto grow = [](double& largest, double x) { largest = x > largest ? x : largest; };

  for (const Row& sampled : rows_) {
    const attention::Verdict row = judge_row(sampled, o, lse);
    grow(verdict.error.relative, row.error.relative);
    grow(verdict.error.absolute, row.error.absolute);
    grow(verdict.error.lse, row.error.lse);
    grow(verdict.allowed.relative, row.allowed.relative);
    grow(verdict.allowed.absolute, row.allowed.absolute);
    grow(verdict.allowed.lse, row.allowed.lse);
    const double ratio = std::max({row.error.relative / row.allowed.relative, row.error.absolute / row.allowed.absolute,
                                   row.error.lse / row.allowed.lse});
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      worst_row = fmt::format("batch {}, head {}, query {}", sampled.batch, sampled.head, sampled.query);
    }
  }
  const auto within = [](double error, double allowed) { return std::isfinite(error) && error <= allowed; };
  verdict.right = within(verdict.error.relative, verdict.allowed.relative) &&
                  within(verdict.error.absolute, verdict.allowed.absolute) &&
                  within(verdict.error.lse, verdict.allowed.lse);
  if (problem_.element_type != attention::ElementType::fp32 &&
      !(verdict.allowed.absolute <= attention::kLargestAllowedError)) {
    verdict.right = false;
    verdict.sentence = fmt::format("not judged: with these inputs {} leaves plain attention no digits of O",
                                   attention::name(problem_.element_type));
    return verdict;
  }
  verdict.sentence =
      verdict.right
          ? fmt::format("right (sample of {} rows)", kSampledRows)
          : fmt::format(
                "wrong in a sample of {} rows, worst at {}: error {:.1e} of O (allowed {:.1e}), {:.1e} of O over V "
                "(allowed {:.1e}), {:.1e} of LSE (allowed {:.1e})",
                kSampledRows, worst_row, verdict.error.relative, verdict.allowed.relative, verdict.error.absolute,
                verdict.allowed.absolute, verdict.error.lse, verdict.allowed.lse);
  return verdict;
}

ForwardCase::ForwardCase(const Problem& p, std::uint64_t seed)
    : problem_(p), inputs_(attention::make_inputs(p, attention::InputKind::normal, seed)) {
  stored_.emplace_back("Q", inputs_.q, p.element_type);
  stored_.emplace_back("K", inputs_.k, p.element_type);
  stored_.emplace_back("V", inputs_.v, p.element_type);
}

attention::Verdict ForwardCase::judge(std::span<const float> o, std::span<const float> lse) {
  if (!is_sampled(problem_)) {
    if (!yardstick_) yardstick_ = attention::make_forward_yardstick(problem_, inputs_.q, inputs_.k, inputs_.v);
    if (lse.empty()) return attention::judge_forward(problem_, o, reference_lse(*yardstick_), *yardstick_);
    return attention::judge_forward(problem_, o, lse, *yardstick_);
  }
  if (!sample_) sample_.emplace(problem_, inputs_);
  attention::Verdict verdict = sample_->judge(o, lse);
  if (const std::string sentence = find_unwritten(problem_, o, lse); verdict.right && !sentence.empty()) {
    verdict.right = false;
    verdict.sentence = sentence;
  }
  return verdict;
}

std::vector<OutputArray> ForwardCase::outputs_in_order() const {
  const auto element = static_cast<std::size_t>(attention::element_bytes(problem_.element_type));
  return {{"O", static_cast<std::size_t>(problem_.elements_o()) * element},
          {"LSE", static_cast<std::size_t>(problem_.elements_lse()) * sizeof(float)}};
}

Judgement ForwardCase::judge_outputs(const std::vector<Bytes>& outputs) {
  const Numbers o(outputs.at(0), problem_.element_type), lse(outputs.at(1), attention::ElementType::fp32);
  const attention::Verdict verdict = judge(o, lse);
  const bool alone = verdict.right && outputs.at(1).empty() && problem_.elements_lse() > 0;
  return {.right = verdict.right,
          .error = verdict.error.relative,
          .allowed = verdict.allowed.relative,
          .sentence = verdict.sentence + (alone ? ", O alone" : "")};
}

}  // namespace stage
