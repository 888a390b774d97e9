#pragma once
/// \file
/// What a forward kernel is given, and how its O and LSE are judged.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/attention/accuracy.hpp"
#include "common/attention/inputs.hpp"
#include "common/stage/case.hpp"
#include "common/stage/kernel_run.hpp"
#include "common/stage/sample.hpp"

namespace stage {

/// True if the whole problem is too long for the forward's reference on a CPU.
bool is_sampled(const attention::Problem& p);

/// Rows in place of all (sample.hpp), each with what it is measured against. Made once for all kernels.
class ForwardSample {
 public:
  ForwardSample(const attention::Problem& p, const attention::Inputs& inputs);

  /// The accuracy rule on `kSampledRows` rows. The rows' errors are taken together before they are compared, as the
  /// rule does with all rows. An empty LSE is not judged.
  attention::Verdict judge(std::span<const float> o, std::span<const float> lse) const;

 private:
  /// A row as a problem of its own: one query, and of the keys only the run that the mask leaves, so that no mask is
  /// needed.
  struct Row {
    int batch, head, query;
    attention::Problem problem;
    attention::ForwardYardstick yardstick;
  };
  Row make_row(const attention::Inputs& inputs, std::int64_t index) const;
  attention::Verdict judge_row(const Row& row, std::span<const float> o, std::span<const float> lse) const;

  attention::Problem problem_;
  std::vector<Row> rows_;
};

/// Q, K, V → O, LSE.
class ForwardCase : public Case {
 public:
  ForwardCase(const attention::Problem& p, std::uint64_t seed);
  Pass pass() const override { return Pass::forward; }
  const attention::Problem& problem() const override { return problem_; }
  const attention::Inputs& inputs() const { return inputs_; }
  std::vector<InputArray> inputs_in_order() const override { return arrays_of(stored_); }
  std::vector<OutputArray> outputs_in_order() const override;

  /// The accuracy rule on all rows, or on a fixed sample of them where `is_sampled`. Beside a sample, all of O must
  /// still be finite and no LSE may be NaN. Without an LSE (an empty one) O is judged alone.
  attention::Verdict judge(std::span<const float> o, std::span<const float> lse);
  Judgement judge_outputs(const std::vector<Bytes>& outputs) override;

 private:
  attention::Problem problem_;
  attention::Inputs inputs_;
  std::vector<StoredArray> stored_;  // Q, K, V
  std::optional<attention::ForwardYardstick> yardstick_;
  std::optional<ForwardSample> sample_;
};

}  // namespace stage
