#include "common/stage/any_kernel.hpp"

namespace stage {
namespace {

using attention::Problem;

using attention::BackwardArgs;
using attention::ElementType;
using attention::ForwardArgs;

template <class T>
const T* input(const Pointers& arrays, std::size_t i) {
  return static_cast<const T*>(arrays.inputs.at(i));
}
template <class T>
T* output(const Pointers& arrays, std::size_t i) {
  return static_cast<T*>(arrays.outputs.at(i));
}

template <class T>
ForwardArgs<T> bind_arrays(const Problem& p, const Pointers& a, const LaunchByType<ForwardArgs>&) {
  return attention::make_forward_args<T>(p, input<T>(a, 0), input<T>(a, 1), input<T>(a, 2), output<T>(a, 0),
                                         output<float>(a, 1));
}

template <class T>
BackwardArgs<T> bind_arrays(const Problem& p, const Pointers& a, const LaunchByType<BackwardArgs>&) {
  return attention::make_backward_args<T>(p, {.q = input<T>(a, 0),
                                              .k = input<T>(a, 1),
                                              .v = input<T>(a, 2),
                                              .o = input<T>(a, 3),
                                              .lse = input<float>(a, 4),
                                              .dout = input<T>(a, 5),
                                              .dlse = nullptr,
                                              .dq = output<T>(a, 0),
                                              .dk = output<T>(a, 1),
                                              .dv = output<T>(a, 2)});
}

/// A chapter's launches, on arrays instead of arguments.
template <class Launch>
AnyKernel::Call bound(const Launch& launch) {
  if (!launch) return {};
  return [launch](const Problem& p, const Pointers& arrays, void* workspace) {
    switch (p.element_type) {
      case ElementType::fp32:
        return launch(bind_arrays<float>(p, arrays, launch), workspace);
      case ElementType::fp16:
        return launch(bind_arrays<gpu::fp16>(p, arrays, launch), workspace);
      case ElementType::bf16:
        return launch(bind_arrays<gpu::bf16>(p, arrays, launch), workspace);
    }
  };
}

}  // namespace

AnyKernel::AnyKernel(const ForwardKernel& kernel)
    : pass(Pass::forward),
      name(kernel.name),
      summary(kernel.summary),
      memory(kernel.memory),
      require([kernel](const Problem& p) { require_taken(kernel, p); }),
      workspace_bytes(kernel.workspace_bytes),
      traffic(kernel.traffic),
      run(bound(kernel.run)),
      fetch(bound(kernel.fetch)),
      is_peer(kernel.is_peer),
      outputs_given(kernel.gives_lse ? 2 : 1),
      promises_equal_bits(false) {}

AnyKernel::AnyKernel(const BackwardKernel& kernel)
    : pass(Pass::backward),
      name(kernel.name),
      summary(kernel.summary),
      memory(kernel.memory),
      require([kernel](const Problem& p) { require_taken(kernel, p); }),
      workspace_bytes(kernel.workspace_bytes),
      traffic(kernel.traffic),
      prepare(bound(kernel.prepare)),
      run(bound(kernel.run)),
      is_peer(kernel.is_peer),
      outputs_given(3),
      promises_equal_bits(kernel.deterministic) {
  if (!kernel.deterministic) summary += summary.empty() ? "not deterministic" : "; not deterministic";
}

std::string label(const AnyKernel& kernel) {
  return kernel.memory == Memory::host ? kernel.name + " (CPU)" : kernel.name;
}

}  // namespace stage
