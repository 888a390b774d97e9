#pragma once
/// \file
/// The suite that every forward kernel of the book must pass.
///
/// A case is a problem with its layout and inputs. The cases are a covering array: every two values of any two axes
/// (lengths, mask, head ratio, batch, head_dim, layout, inputs, scale, element type) occur together in some case,
/// without the full product. Element types and head_dims are those that the kernel takes. What is asked of a kernel in
/// each case is written at `case_failures`.
///
/// The functions return what went wrong as sentences, so that a test can also show that the suite catches broken
/// kernels (tests/common/suite_can_fail). `forward_tests.hpp` turns them into Catch2 tests.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/attention/inputs.hpp"
#include "common/attention/problem.hpp"
#include "common/stage/kernel.hpp"

namespace suite {

/// Sentences that say what went wrong, each with the problem; empty if nothing did.
using Failures = std::vector<std::string>;

/// How much is run.
enum class Depth {
  checking,  ///< the checking build of the emulator: a covering array over fewer and smaller lengths, one schedule
  plain,     ///< the plain emulator and kernels on the host: a covering array, small enough for seconds on two cores
  product,   ///< a GPU: all lengths × masks × head ratios × head_dims; the other axes, element types too, take turns
};

/// What fits the machine that the test runs on. Kernels on the host's memory never get Depth::product.
Depth depth_for(stage::Memory memory);
inline Depth depth_for(const stage::ForwardKernel& kernel) { return depth_for(kernel.memory); }

/// While it lives, kernels get no more than `most`: for tests of the suite itself, whose kernels are slow.
class DepthLimit {
 public:
  explicit DepthLimit(Depth most);
  ~DepthLimit();
  DepthLimit(const DepthLimit&) = delete;
  DepthLimit& operator=(const DepthLimit&) = delete;

 private:
  Depth before_;
};

/// What a kernel takes of two axes.
struct Taken {
  std::vector<attention::ElementType> element_types = {attention::ElementType::fp32};
  std::vector<int> head_dims = {32, 64, 128};
  friend bool operator==(const Taken&, const Taken&) = default;
};

/// Asks the kernel, with tiny problems. Of head_dims 32, 64 and 128 are asked for, of a kernel that takes 16 bits 256
/// too; one counts that it takes with any of its element types, and then the suite wants it with all.
Taken taken_by(const stage::ForwardKernel& kernel);
Taken taken_by(const stage::BackwardKernel& kernel);

/// What every kernel of the book must take: in fp32 all head_dims that are asked for, in 16 bits 64 and 128. Empty if
/// this is so.
Failures too_little_taken(const std::string& kernel, const Taken& taken);

/// Kernels that get the same cases: case by case, what they are judged by has to be computed only once.
template <class Kernel>
struct SameCases {
  Depth depth;
  Taken taken;
  std::vector<const Kernel*> kernels;
};

template <class Kernel>
std::vector<SameCases<Kernel>> with_same_cases(const std::vector<Kernel>& kernels) {
  std::vector<SameCases<Kernel>> groups;
  for (const Kernel& kernel : kernels) {
    const Depth depth = depth_for(kernel.memory);
    const Taken taken = taken_by(kernel);
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const SameCases<Kernel>& other) {
      return other.depth == depth && other.taken == taken;
    });
    if (group == groups.end()) {
      groups.push_back({depth, taken, {&kernel}});
    } else {
      group->kernels.push_back(&kernel);
    }
  }
  return groups;
}

/// How the arrays of a case lie in memory. Gaps hold NaN in Q, K, V and must stay untouched in O.
enum class Layout {
  dense,               ///< [batch, seqlen, heads, head_dim]
  heads_first,         ///< stored [batch, heads, seqlen, head_dim], seen through transposed strides
  fused_projection,    ///< Q, K, V rows stand side by side in one wide row; O rows have a gap after the last head
  k_every_second_row,  ///< K is every second row of a buffer of double length, V is dense
};

/// "dense", "heads first", …
std::string name(Layout layout);

/// Sets the strides of a problem whose sizes are given.
void apply_layout(attention::Problem& p, Layout layout);

/// One case of the suite.
struct SuiteCase {
  attention::Problem problem;  ///< with its strides
  attention::InputKind inputs = attention::InputKind::normal;
  Layout layout = Layout::dense;
  std::uint64_t seed = 1;   ///< of the inputs
  bool repeat = true;       ///< launch twice and compare the bits
  bool reschedule = false;  ///< emulator: also schedule seeds 0, 1, 2 with both deliveries of asynchronous copies
  std::string describe() const;
};

/// The cases, always the same ones in the same order. Without `taken` those of a kernel that takes fp32 alone.
std::vector<SuiteCase> forward_cases(Depth depth, const Taken& taken = {});

/// Rows of values of the axes with the given sizes such that every pair of values of two axes occurs in a row.
///
/// `allowed` is asked about rows in which −1 stands for "not chosen yet"; it must say yes if some completion is
/// allowed. Pairs that no allowed row can hold are left out. Greedy and deterministic.
std::vector<std::vector<int>> covering_array(const std::vector<int>& sizes,
                                             const std::function<bool(const std::vector<int>&)>& allowed);

/// Makes inputs and references of cases on all cores, for the calls of case_failures that follow.
void prepare_ahead(std::span<const SuiteCase> cases);

/// Runs a kernel on a case. It must
///  - take it (`stage::require_taken` must not refuse);
///  - be right by the accuracy rule in O and LSE, with O, LSE and the workspace poisoned before each launch, and with
///    NaN before and after Q, K and V and in their gaps;
///  - leave the guard bands round O, LSE and the workspace, and the gaps in O, as they were;
///  - give the same bits in a second launch and, on the emulator, under other schedules and deliveries (some cases);
///  - move exactly the bytes that its `traffic` predicts (checking build).
Failures case_failures(const stage::ForwardKernel& kernel, const SuiteCase& c);

/// A head_dim of 48 is either refused with stage::Refused, naming the value and touching nothing, or computed rightly.
Failures refusal_failures(const stage::ForwardKernel& kernel);

/// A problem that a kernel may refuse, of an element type that it takes.
attention::Problem problem_of_head_dim_48(const Taken& taken);

/// Asks about it, with `require`. \return What is wrong with the way in which the kernel refuses; no list at all if it
/// does not.
std::optional<Failures> refusal_of_head_dim_48(const std::string& kernel, const std::function<void()>& require);

/// All cases of a depth and the refusals, until `stop_after` failures have been found.
Failures forward_suite_failures(const stage::ForwardKernel& kernel, Depth depth,
                                std::size_t stop_after = std::numeric_limits<std::size_t>::max());

}  // namespace suite
