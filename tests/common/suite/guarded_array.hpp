#pragma once
/// \file
/// Arrays between guard bands: what a test hands to a kernel, and what shows where else the kernel wrote.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/attention/problem.hpp"
#include "common/gpu/buffer.hpp"
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

/// What a result holds before a launch: NaN where it belongs, the sentinel in the gaps. For an array of `elements`.
std::vector<float> poisoned_result(std::int64_t elements, const attention::Strides& strides, int batch, int seqlen,
                                   int heads, int head_dim);

/// An array between two guards, on the host or on the device. Its image, guards included, is kept on the host.
///
/// In the checking build an array on the device has no guards of ours: there the emulator itself reports what lies
/// outside.
class GuardedArray {
 public:
  /// `guard` is what the guards hold: NaN round what a kernel reads, the sentinel round what it writes.
  GuardedArray(stage::Memory memory, const char* label, std::vector<float> content, float guard);

  /// Puts the image back.
  void reset();
  /// As reset, but everything between the guards becomes memory that nobody has written.
  void poison();

  /// Null if the array is empty and has no guards.
  float* data();
  std::size_t size() const { return image_.size() - 2 * guard_; }
  /// Of the image, between the guards.
  std::span<const float> content() const { return {image_.data() + guard_, size()}; }

  /// What lies between the guards. Writes into the guards are added to `failures`.
  std::vector<float> read(Failures& failures) const;
  /// The same of a result: writes into its gaps, which hold the sentinel, are added as well.
  std::vector<float> read_result(Failures& failures) const;
  /// Adds a failure if something between or in the guards differs from the image.
  void expect_unchanged(Failures& failures) const;

 private:
  std::string label_;
  std::size_t guard_;
  std::vector<float> image_;
  std::vector<float> host_;
  std::size_t host_shift_ = 0;
  gpu::DeviceBuffer<float> device_;
};

/// Scratch of so many bytes between guards.
GuardedArray guarded_workspace(stage::Memory memory, std::size_t bytes);

/// Adds a failure unless the bytes that the checking build counted since the last reset are those predicted; nothing on
/// other machines. `may_load_besides` are bytes that the prediction does not know of.
void compare_traffic(stage::Memory memory, const attention::Traffic& predicted, double may_load_besides,
                     Failures& failures);

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
