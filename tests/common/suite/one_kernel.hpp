#pragma once
/// \file
/// One forward kernel on one problem, for the tests of a chapter beyond the suite.

#include <cstdint>
#include <vector>

#include "common/attention/inputs.hpp"
#include "common/gpu/device.hpp"
#include "common/stage/kernel.hpp"
#include "tests/common/suite/check_none.hpp"
#include "tests/common/suite/forward_suite.hpp"
#include "tests/common/suite/guarded_run.hpp"

namespace suite {

/// What a launch left behind.
struct Outcome {
  std::vector<float> o, lse;
};

/// One launch between guards.
/// \throws stage::Refused if the kernel does not take the problem.
/// \throws gpu::Error if the device stopped it, or if it touched or moved what it should not.
inline Outcome run(const stage::ForwardKernel& kernel, const attention::Problem& p, const attention::Inputs& inputs) {
  GuardedRun guarded(kernel, p, inputs);
  const Failures failures = guarded.launch();
  if (!failures.empty()) throw gpu::Error(failures.front());
  return {guarded.o(), guarded.lse()};
}
/// The same on normal inputs.
inline Outcome run(const stage::ForwardKernel& kernel, const attention::Problem& p) {
  return run(kernel, p, attention::make_inputs(p, attention::InputKind::normal, 1));
}

/// Right, bit-equal in two launches, within its arrays, and with the predicted bytes: what the suite asks in a case.
inline void check_case(const stage::ForwardKernel& kernel, const attention::Problem& p,
                       attention::InputKind inputs = attention::InputKind::normal, bool reschedule = false) {
  static std::uint64_t seed = 0;
  SuiteCase c;
  c.problem = p;
  c.inputs = inputs;
  c.seed = ++seed;  // the suite keeps inputs by the case's description, which does not tell all strides apart
  c.reschedule = reschedule;
  check_none(case_failures(kernel, c));
}

}  // namespace suite
