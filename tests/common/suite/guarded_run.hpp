#pragma once
/// \file
/// Runs a forward kernel between guard bands.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/attention/accuracy.hpp"
#include "common/attention/inputs.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/kernel.hpp"
#include "tests/common/suite/forward_suite.hpp"

namespace suite {

/// What stands where a kernel has no business to write: an ordinary number, unlike any result.
inline constexpr float kSentinel = -54321.125f;

/// The bits of both arrays are equal; NaN equals itself here.
bool same_bits(std::span<const float> a, std::span<const float> b);

/// Copies the rows of an array between two layouts; elements of the target between rows become `gap`.
std::vector<float> relayout(std::span<const float> from, const attention::Strides& from_strides, int batch, int seqlen,
                            int heads, int head_dim, const attention::Strides& to_strides, float gap);

/// The arrays of one problem where the kernel wants them, and launches on them.
///
/// NaN stands before and after Q, K and V, a sentinel before and after O, LSE and the workspace and in O's gaps. In the
/// checking build the arrays on the device have no guards of ours: there the emulator itself reports what lies outside.
class GuardedRun {
 public:
  /// \throws stage::Refused if the kernel does not take the problem.
  GuardedRun(const stage::ForwardKernel& kernel, const attention::Problem& problem, const attention::Inputs& inputs);
  ~GuardedRun();

  /// Poisons O, LSE and the workspace, launches, waits, and checks guards, gaps, inputs and counted bytes.
  Failures launch();

  /// O under the problem's strides and LSE, as the last launch left them.
  const std::vector<float>& o() const { return o_; }
  const std::vector<float>& lse() const { return lse_; }
  /// One element of O, and one of LSE.
  float o(int b, int query, int head, int column) const;
  float lse(int b, int query, int head) const;

 private:
  class Array;
  const stage::ForwardKernel& kernel_;
  attention::Problem problem_;
  std::unique_ptr<Array> q_array_, k_array_, v_array_, o_array_, lse_array_, workspace_array_;
  std::vector<float> o_, lse_;
};

/// Sets the schedule and the delivery of the emulator for a while; other options stay as they are.
class ScheduleScope {
 public:
  ScheduleScope(std::uint64_t seed, gpu::Delivery delivery);
  ~ScheduleScope();
  ScheduleScope(const ScheduleScope&) = delete;
  ScheduleScope& operator=(const ScheduleScope&) = delete;

 private:
  gpu::EmulatorOptions saved_;
};

}  // namespace suite
