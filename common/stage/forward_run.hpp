#pragma once
/// \file
/// One kernel on one problem: is it taken, does it fit, is it right, what does it move.

#include <cstdint>
#include <optional>
#include <span>

#include "common/attention/accuracy.hpp"
#include "common/attention/inputs.hpp"
#include "common/stage/kernel.hpp"
#include "common/stage/program.hpp"

namespace stage {

/// \throws Refused if the kernel does not take the problem, or if its arrays and workspace do not fit in memory (with
/// the bytes needed and available). Allocates nothing.
void admit(const ForwardKernel& kernel, const attention::Problem& p);

/// Rows that are compared where the float64 reference of all rows would take too long.
inline constexpr int kSampledRows = 64;

/// True if the whole problem is too long for the reference on a CPU.
bool is_sampled(const attention::Problem& p);

/// A problem with seeded inputs and what its results are measured against, made once for all kernels.
class ForwardCase {
 public:
  ForwardCase(const attention::Problem& p, std::uint64_t seed);
  const attention::Problem& problem() const { return problem_; }
  const attention::Inputs& inputs() const { return inputs_; }

  /// The accuracy rule on all rows, or on a fixed sample of them where `is_sampled`. Beside a sample, all of O must
  /// still be finite and no LSE may be NaN. Without an LSE (an empty one) O is judged alone.
  attention::Verdict judge(std::span<const float> o, std::span<const float> lse);

 private:
  attention::Problem problem_;
  attention::Inputs inputs_;
  std::optional<attention::ForwardYardstick> yardstick_;
};

/// Runs an admitted kernel once, checks O, LSE and the elements around them, and compares the counts with the model.
///
/// A gpu::Error of the kernel becomes a row that is not right, so that the next kernel still runs.
Row run_admitted(const ForwardKernel& kernel, ForwardCase& forward);

/// The accuracy rule on `kSampledRows` rows: the first, the last, and others drawn with a fixed seed. The rows' errors
/// are taken together before they are compared, as the rule does with all rows. An empty LSE is not judged.
attention::Verdict judge_sample(const attention::Problem& p, const attention::Inputs& inputs, std::span<const float> o,
                                std::span<const float> lse);

}  // namespace stage
