#pragma once
/// \file
/// Timing of launches, and the roof that a time is compared with.

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "common/attention/cost.hpp"
#include "common/attention/problem.hpp"
#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"
#include "common/stage/any_kernel.hpp"
#include "common/stage/case.hpp"
#include "common/stage/rounds.hpp"

namespace stage {

/// Seconds of each launch of one kernel alone: warm-up, then at least 20 samples (5 of a slow one), and more while they
/// take less than a second in all. What is to be compared is timed in rounds instead (rounds.hpp).
std::vector<double> time_launches(const Clock& clock, const std::function<void()>& launch);

/// Copies of a case's inputs in device memory, used in turn so that a launch finds its inputs in no cache.
class RotatedInputs {
 public:
  /// As many copies as make more than 240 MB (four times the L2 of an H200), or as fit in half the memory available.
  explicit RotatedInputs(const std::vector<InputArray>& inputs);
  /// Points a kernel's inputs at the next copy.
  void bind_next(Pointers& arrays);

 private:
  std::vector<std::size_t> offsets_;  // of the arrays in a copy, bytes
  std::size_t stride_ = 0;            // from one copy to the next
  std::size_t copies_ = 0, next_ = 0;
  gpu::DeviceBuffer<std::byte> arena_;
};

/// The datasheet's figures for this device; null if attention::known_machines() has none for it. They are those of the
/// SXM parts: PCIe, NVL and partitioned devices are other machines.
const attention::Machine* known_machine(const gpu::DeviceInfo& device);

/// FLOPs that a kernel of this pass is credited with; recomputation earns none.
double credited_flops(const attention::Problem& p, Pass pass);

/// FLOP/s that a kernel could reach on this machine: the peak of the fp32 units, or in 16 bits that of the tensor
/// cores, or what device memory allows when each of the pass's arrays (any_kernel.hpp) crosses it once. Nothing for a
/// machine whose datasheet figures are not in attention::known_machines().
std::optional<double> roof(const gpu::DeviceInfo& device, const attention::Problem& p, Pass pass = Pass::forward);

}  // namespace stage
