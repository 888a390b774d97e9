#pragma once
/// \file
/// A kernel of either pass as the runner sees it: named arrays in, named arrays out, and what it says of itself.
///
/// What runs, checks, counts and times kernels is written once, on this. What the arrays are and mean, a case knows
/// (case.hpp): it puts pointers to them in the order that the conversions here expect.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "common/stage/kernel.hpp"

namespace stage {

/// Where a kernel's arrays are, in the order of its case. Forward: Q, K, V → O, LSE. Backward: Q, K, V, O, LSE, dO →
/// dQ, dK, dV.
struct Pointers {
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
};

struct AnyKernel {
  using Call = std::function<void(const attention::Problem&, const Pointers&, void* workspace)>;

  AnyKernel(const ForwardKernel& kernel);
  /// A kernel whose last bits may differ from run to run says so in its summary.
  AnyKernel(const BackwardKernel& kernel);

  Pass pass;
  std::string name, summary;
  Memory memory;
  std::function<void(const attention::Problem&)> require;
  std::function<std::size_t(const attention::Problem&)> workspace_bytes;
  std::function<attention::Traffic(const attention::Problem&)> traffic;  ///< empty where there is no model
  Call prepare;                                                          ///< empty, like `fetch`, where there is none
  Call run;
  Call fetch;
  bool is_peer;
  std::size_t outputs_given;  ///< a peer may give the first ones only
  bool promises_equal_bits;   ///< of two runs; the runner then compares them
};

/// How tables name it: kernels on the host say so, since their time is not the device's.
std::string label(const AnyKernel& kernel);

}  // namespace stage
