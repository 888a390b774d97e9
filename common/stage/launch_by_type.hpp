#pragma once
/// \file
/// What a kernel's host code offers to launch, by the type of its elements.

#include <functional>
#include <stdexcept>
#include <type_traits>

#include "common/attention/element_type.hpp"
#include "common/gpu/element_types.hpp"

namespace stage {

/// The types that tensor cores multiply, chapters 07 to 13.
template <class T>
concept SixteenBits = std::is_same_v<T, gpu::fp16> || std::is_same_v<T, gpu::bf16>;

/// A kernel's launches: a function of `Args<T>` and the workspace for each element type T that it takes. They do not
/// wait.
///
/// It is made from one function that takes some of `Args<float>`, `Args<fp16>` and `Args<bf16>`:
///
///     kernel.run = [](const ForwardArgs<float>& args, void* workspace) { … };
///     kernel.run = []<stage::SixteenBits T>(const ForwardArgs<T>& args, void* workspace) { … };
template <template <class> class Args>
class LaunchByType {
 public:
  template <class T>
  using Function = std::function<void(const Args<T>&, void* workspace)>;

  LaunchByType() = default;
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, LaunchByType> &&
           (std::is_invocable_v<F, const Args<float>&, void*> ||
            std::is_invocable_v<F, const Args<gpu::fp16>&, void*> ||
            std::is_invocable_v<F, const Args<gpu::bf16>&, void*>)) LaunchByType(F function) {
    if constexpr (std::is_invocable_v<F, const Args<float>&, void*>) fp32_ = function;
    if constexpr (std::is_invocable_v<F, const Args<gpu::fp16>&, void*>) fp16_ = function;
    if constexpr (std::is_invocable_v<F, const Args<gpu::bf16>&, void*>) bf16_ = function;
  }

  /// Whether there is any.
  explicit operator bool() const { return fp32_ || fp16_ || bf16_; }
  bool takes(attention::ElementType type) const {
    return type == attention::ElementType::fp32   ? static_cast<bool>(fp32_)
           : type == attention::ElementType::fp16 ? static_cast<bool>(fp16_)
                                                  : static_cast<bool>(bf16_);
  }
  /// The same for those element types only that `other` takes as well.
  LaunchByType limited_to(const LaunchByType& other) const {
    LaunchByType limited = *this;
    if (!other.fp32_) limited.fp32_ = {};
    if (!other.fp16_) limited.fp16_ = {};
    if (!other.bf16_) limited.bf16_ = {};
    return limited;
  }

  /// \throws std::bad_function_call if it does not take the type.
  template <class T>
  void operator()(const Args<T>& args, void* workspace) const {
    if constexpr (std::is_same_v<T, float>) {
      fp32_(args, workspace);
    } else if constexpr (std::is_same_v<T, gpu::fp16>) {
      fp16_(args, workspace);
    } else {
      static_assert(std::is_same_v<T, gpu::bf16>, "elements are fp32, fp16 or bf16");
      bf16_(args, workspace);
    }
  }

 private:
  Function<float> fp32_;
  Function<gpu::fp16> fp16_;
  Function<gpu::bf16> bf16_;
};

}  // namespace stage
