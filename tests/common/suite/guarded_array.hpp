#pragma once
/// \file
/// Arrays between guard bands: what a test hands to a kernel, and what shows where else the kernel wrote.

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "common/attention/problem.hpp"
#include "common/gpu/buffer.hpp"
#include "common/gpu/element_types.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/kernel.hpp"
#include "tests/common/suite/forward_suite.hpp"

namespace suite {

/// What stands where a kernel has no business to write: an ordinary number in fp32, fp16 and bf16, unlike any result.
inline constexpr float kSentinel = -54272;

/// Calls `function` with `std::type_identity<T>`, where T is what kernels call elements of this type.
template <class Function>
void with_element_type(attention::ElementType type, Function&& function) {
  switch (type) {
    case attention::ElementType::fp32:
      return function(std::type_identity<float>());
    case attention::ElementType::fp16:
      return function(std::type_identity<gpu::fp16>());
    case attention::ElementType::bf16:
      return function(std::type_identity<gpu::bf16>());
  }
}

/// The bits of both arrays are equal; NaN equals itself here. Of 16-bit elements every number is another float, so that
/// comparing them as floats is as strict.
bool same_bits(std::span<const float> a, std::span<const float> b);

/// The numbers nearest to these, of two the even ones: what an array of this element type can hold.
std::vector<float> rounded(std::vector<float> values, attention::ElementType type);

/// Copies the rows of an array between two layouts; elements of the target between rows become `gap`.
std::vector<float> relayout(std::span<const float> from, const attention::Strides& from_strides, int batch, int seqlen,
                            int heads, int head_dim, const attention::Strides& to_strides, float gap);

/// What a result holds before a launch: NaN where it belongs, the sentinel in the gaps. For an array of `elements`.
std::vector<float> poisoned_result(std::int64_t elements, const attention::Strides& strides, int batch, int seqlen,
                                   int heads, int head_dim);

/// An array between two guards, on the host or on the device, in bytes of its element type. Its image, guards included,
/// is kept on the host. Tests see floats.
///
/// In the checking build an array on the device has no guards of ours: there the emulator itself reports what lies
/// outside.
class GuardedArray {
 public:
  /// `guard` is what the guards hold: NaN round what a kernel reads, the sentinel round what it writes.
  /// \throws std::invalid_argument if an element of `content` is no number of the type: the kernel would see another
  /// one than the reference.
  GuardedArray(stage::Memory memory, const char* label, attention::ElementType type, std::vector<float> content,
               float guard);
  /// Scratch of so many bytes between sentinels.
  static GuardedArray workspace(stage::Memory memory, std::size_t bytes);

  /// Puts the image back.
  void reset();
  /// As reset, but everything between the guards becomes memory that nobody has written.
  void poison();

  /// Null if the array is empty and has no guards.
  void* data();
  template <class T>
  T* as() {
    return static_cast<T*>(data());
  }
  /// Of the image, between the guards.
  std::span<const float> content() const { return content_; }

  /// Writes into the guards are added to `failures`.
  void check_guards(Failures& failures) const { read_bytes(failures); }
  /// What lies between the guards. Writes into the guards are added to `failures`.
  std::vector<float> read(Failures& failures) const;
  /// The same of a result: writes into its gaps, which hold the sentinel, are added as well.
  std::vector<float> read_result(Failures& failures) const;
  /// Adds a failure if something between or in the guards differs from the image.
  void expect_unchanged(Failures& failures) const;

 private:
  using Bytes = std::vector<std::byte>;
  GuardedArray(stage::Memory memory, const char* label, attention::ElementType type, float guard, const Bytes& content);
  std::size_t size_bytes() const { return image_.size() - 2 * guard_; }
  Bytes read_bytes(Failures& failures) const;

  std::string label_;
  attention::ElementType type_;
  std::vector<float> content_;
  std::size_t guard_;  // bytes of each of both
  Bytes image_;
  Bytes host_;
  std::size_t host_shift_ = 0;
  gpu::DeviceBuffer<std::byte> device_;
};

/// Adds a failure unless the bytes that the checking build counted since the last reset are those predicted; nothing on
/// other machines. `may_load_besides` are bytes that the prediction does not know of.
void compare_traffic(stage::Memory memory, const attention::Traffic& predicted, double may_load_besides,
                     Failures& failures);

/// The emulator's options with another schedule and delivery.
gpu::EmulatorOptions with_schedule(std::uint64_t seed, gpu::Delivery delivery);

}  // namespace suite
