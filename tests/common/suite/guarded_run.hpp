#pragma once
/// \file
/// Runs a forward or a backward kernel between guard bands.

#include <string>
#include <vector>

#include "common/attention/inputs.hpp"
#include "common/stage/kernel.hpp"
#include "tests/common/suite/guarded_array.hpp"

namespace suite {

/// The arrays of one problem where the kernel wants them, in the problem's element type, and launches on them.
///
/// Inputs must be numbers of that type already (GuardedArray), so that the kernel sees what the reference sees. Results
/// are shown as floats, which hold every number of 16 bits exactly.
///
/// NaN stands before and after Q, K and V, a sentinel before and after O, LSE and the workspace and in O's gaps.
class GuardedRun {
 public:
  /// \throws stage::Refused if the kernel does not take the problem.
  GuardedRun(const stage::ForwardKernel& kernel, const attention::Problem& problem, const attention::Inputs& inputs);

  /// Poisons O, LSE and the workspace, launches, waits, and checks guards, gaps, inputs and counted bytes.
  Failures launch();

  /// O under the problem's strides and LSE, as the last launch left them.
  const std::vector<float>& o() const { return o_; }
  const std::vector<float>& lse() const { return lse_; }
  /// One element of O, and one of LSE.
  float o(int b, int query, int head, int column) const;
  float lse(int b, int query, int head) const;

 private:
  const stage::ForwardKernel& kernel_;
  attention::Problem problem_;
  GuardedArray q_array_, k_array_, v_array_, o_array_, lse_array_, workspace_array_;
  std::vector<float> o_, lse_;
};

/// What a backward kernel reads, laid out by the problem's strides; LSE and dLSE dense and fp32. All but these are
/// numbers of the problem's element type. An empty dLSE means that none is given.
struct BackwardInputs {
  std::vector<float> q, k, v, o, lse, dout, dlse;
};

/// The same for a backward kernel: NaN round all it reads, a sentinel round dQ, dK, dV, the workspace and in the gaps.
class GuardedBackwardRun {
 public:
  /// \throws stage::Refused if the kernel does not take the problem.
  GuardedBackwardRun(const stage::BackwardKernel& kernel, const attention::Problem& problem,
                     const BackwardInputs& inputs);

  /// Poisons the gradients and the workspace, lets the kernel prepare it, launches, waits, and checks guards, gaps,
  /// inputs and the bytes that the launch moved.
  Failures launch();
  /// The same, but the workspace stays as the last launch left it: as programs launch that prepare once.
  Failures launch_on_used_workspace();

  /// The gradients under the problem's strides, as the last launch left them.
  const std::vector<float>& dq() const { return dq_; }
  const std::vector<float>& dk() const { return dk_; }
  const std::vector<float>& dv() const { return dv_; }
  /// One element.
  float dq(int b, int query, int head, int column) const;
  float dk(int b, int key, int head, int column) const;
  float dv(int b, int key, int head, int column) const;

 private:
  void call(const stage::LaunchByType<attention::BackwardArgs>& launch);
  Failures launch_prepared();

  const stage::BackwardKernel& kernel_;
  attention::Problem problem_;
  bool has_dlse_;
  GuardedArray q_array_, k_array_, v_array_, o_array_, lse_array_, dout_array_, dlse_array_;
  GuardedArray dq_array_, dk_array_, dv_array_, workspace_array_;
  std::vector<float> dq_, dk_, dv_;
};

}  // namespace suite
