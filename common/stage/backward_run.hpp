#pragma once
/// \file
/// What a backward kernel is given, and how its dQ, dK and dV are judged.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/attention/accuracy.hpp"
#include "common/attention/inputs.hpp"
#include "common/stage/case.hpp"
#include "common/stage/kernel_run.hpp"
#include "common/stage/sample.hpp"

namespace stage {

/// True if the whole problem is too long for the backward's reference on a CPU.
bool is_backward_sampled(const attention::Problem& p);

/// The accuracy rule on `kSampledRows` rows of dQ and as many of dK and dV (sample.hpp), and the O and LSE that kernels
/// are given with it.
///
/// O and LSE are the float64 reference's for every row, O rounded to the element type, as they are on a small problem:
/// the forward is two of the ten products that the whole rule needs, and its heads are computed side by side on all
/// cores. A row of dQ needs one query and the keys it sees, and is a small problem of its own. A row of dK and dV needs
/// one key and, of all queries that see it, LSE and D, which the forward leaves: so both are exact, at a cost that
/// grows with seqlen and not its square.
class BackwardSample {
 public:
  BackwardSample(const attention::Problem& p, const attention::Inputs& inputs, std::span<const float> dout);

  const std::vector<float>& o() const { return o_; }
  const std::vector<float>& lse() const { return lse_; }
  /// The rows' errors are taken together before they are compared, as the rule does with all rows.
  attention::BackwardVerdict judge(std::span<const float> dq, std::span<const float> dk,
                                   std::span<const float> dv) const;

 private:
  /// A row of a gradient, and what it is measured against.
  struct Row {
    std::string place;  ///< "batch 0, head 1, query 2"
    std::int64_t offset = 0;
    std::vector<double> reference;
    double terms = 0, rounded_terms = 0;  ///< as attention::ReferencePass has them
    double plain_distance = 0;            ///< of plain attention from the reference
    double exponent = 0;                  ///< attention::BackwardYardstick's for this row alone; of dQ only
    double magnitude = 0;                 ///< what errors are measured against, with the exponent of all rows
  };
  struct Forward;

  Forward run_forward(const attention::Problem& p, const attention::Inputs& inputs, std::span<const float> dout);
  static Row query_row(const attention::Problem& p, const attention::Inputs& inputs, std::span<const float> dout,
                       std::int64_t index);
  void key_rows(const attention::Problem& p, const attention::Inputs& inputs, std::span<const float> dout,
                const Forward& forward, std::int64_t index, Row& dk, Row& dv) const;

  attention::Problem problem_;
  std::vector<float> o_, lse_;
  std::vector<Row> dq_, dk_, dv_;
  double exponent_ = 1;  // the largest of the queries, each with all keys that it sees
};

/// Q, K, V, O, LSE, dO → dQ, dK, dV, where O is rounded to the element type. Nothing depends on the LSE: there is no
/// dLSE.
class BackwardCase : public Case {
 public:
  BackwardCase(const attention::Problem& p, std::uint64_t seed) : BackwardCase(p, seed, is_backward_sampled(p)) {}
  /// \param sampled whether a sample is judged instead of all rows
  BackwardCase(const attention::Problem& p, std::uint64_t seed, bool sampled);
  Pass pass() const override { return Pass::backward; }
  const attention::Problem& problem() const override { return problem_; }
  std::vector<InputArray> inputs_in_order() const override { return arrays_of(stored_); }
  std::vector<OutputArray> outputs_in_order() const override;

  /// The accuracy rule on all rows, or on a sample of them. Beside a sample, all
  /// gradients must still be finite.
  attention::BackwardVerdict judge(std::span<const float> dq, std::span<const float> dk,
                                   std::span<const float> dv) const;
  /// Shows the gradient that takes the largest share of what it is allowed.
  Judgement judge_outputs(const std::vector<Bytes>& outputs) override;

 private:
  attention::Problem problem_;
  attention::Inputs inputs_;
  std::vector<float> dout_;
  std::optional<attention::BackwardYardstick> yardstick_;
  std::optional<BackwardSample> sample_;  // instead, where the problem is too long
  std::vector<StoredArray> stored_;       // Q, K, V, O, LSE, dO
};

}  // namespace stage
