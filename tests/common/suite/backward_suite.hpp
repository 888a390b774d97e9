#pragma once
/// \file
/// The suite that every backward kernel of the book must pass: as the forward's (forward_suite.hpp), whose depths,
/// layouts and covering arrays it uses.
///
/// Axes of the cases: lengths, mask, inputs, head ratio, layout of Q, K, V and O, layout of dO, layout of dQ, dK and
/// dV, batch, head_dim, scale, with and without a gradient of LSE, element type. What is asked of a kernel in each case
/// is written at `case_failures`. `backward_tests.hpp` turns the functions into Catch2 tests.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "common/attention/inputs.hpp"
#include "common/attention/problem.hpp"
#include "common/stage/kernel.hpp"
#include "tests/common/suite/forward_suite.hpp"

namespace suite {

/// How much is run of a kernel on the machine that the test runs on.
inline Depth depth_for(const stage::BackwardKernel& kernel) { return depth_for(kernel.memory); }

/// How dO lies in memory. Gaps hold NaN.
enum class OutputGradientLayout {
  as_o,              ///< as O, whatever that is
  dense,             ///< [batch, seqlen, heads, head_dim]
  heads_first,       ///< stored [batch, heads, seqlen, head_dim]
  same_for_queries,  ///< one row for all positions: stride 0
  same_for_all,      ///< one row in all: the gradient of a sum over O, expanded
};

/// "as O", "dense", …
std::string name(OutputGradientLayout layout);

/// Sets the strides of dO.
void apply_layout(attention::Problem& p, OutputGradientLayout layout);

/// Sets the strides of dQ, dK and dV to those that `apply_layout` gives Q, K and V.
void apply_gradient_layout(attention::Problem& p, Layout layout);

/// One case of the suite.
struct BackwardCase {
  attention::Problem problem;  ///< with its strides
  attention::InputKind inputs = attention::InputKind::normal;
  Layout layout = Layout::dense;  ///< of Q, K, V and O
  OutputGradientLayout dout_layout = OutputGradientLayout::as_o;
  Layout gradient_layout = Layout::dense;  ///< of dQ, dK and dV
  bool with_dlse = false;
  std::uint64_t seed = 1;   ///< of the inputs
  bool repeat = true;       ///< launch a second time
  bool reschedule = false;  ///< emulator: also schedule seeds 0, 1, 2 with both deliveries of asynchronous copies
  std::string describe() const;
};

/// The cases, always the same ones in the same order. Without `taken` those of a kernel that takes fp32 alone.
std::vector<BackwardCase> backward_cases(Depth depth, const Taken& taken = {});

/// A gradient of LSE, dense [batch, heads_q, seqlen_q], uniform between −1 and 1.5; the same on every machine.
std::vector<float> make_lse_gradient(const attention::Problem& p, std::uint64_t seed);

/// Makes inputs and references of cases on all cores, for the calls of case_failures that follow.
void prepare_ahead(std::span<const BackwardCase> cases);

/// Runs a kernel on a case. It must
///  - take it (`stage::require_taken` must not refuse);
///  - be right by the accuracy rule in dQ, dK and dV, with the gradients and the workspace poisoned before, and with
///    NaN round all inputs and in their gaps;
///  - leave the guard bands round the gradients and the workspace, the gaps in the gradients and all inputs alone;
///  - give the same bits in a second launch, whose workspace holds what the first one left there, and, on the emulator,
///    under other schedules and deliveries (some cases). A kernel that is not deterministic must be right there;
///  - move exactly the bytes that its `traffic` predicts (checking build), and where a dLSE is given at most one
///    element of it a row besides; what `prepare` moves does not count.
Failures case_failures(const stage::BackwardKernel& kernel, const BackwardCase& c);

/// A head_dim of 48 is either refused with stage::Refused, naming the value and touching nothing, or computed rightly.
Failures refusal_failures(const stage::BackwardKernel& kernel);

/// All cases of a depth and the refusals, until `stop_after` failures have been found.
Failures backward_suite_failures(const stage::BackwardKernel& kernel, Depth depth,
                                 std::size_t stop_after = std::numeric_limits<std::size_t>::max());

}  // namespace suite
