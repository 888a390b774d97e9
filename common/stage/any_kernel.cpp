#include "common/stage/any_kernel.hpp"

namespace stage {
namespace {

using attention::Problem;

const float* input(const Pointers& arrays, std::size_t i) { return static_cast<const float*>(arrays.inputs.at(i)); }
float* output(const Pointers& arrays, std::size_t i) { return static_cast<float*>(arrays.outputs.at(i)); }

attention::ForwardArgs<float> forward_args(const Problem& p, const Pointers& a) {
  return attention::make_forward_args<float>(p, input(a, 0), input(a, 1), input(a, 2), output(a, 0), output(a, 1));
}

attention::BackwardArgs<float> backward_args(const Problem& p, const Pointers& a) {
  return attention::make_backward_args<float>(p, {.q = input(a, 0),
                                                  .k = input(a, 1),
                                                  .v = input(a, 2),
                                                  .o = input(a, 3),
                                                  .lse = input(a, 4),
                                                  .dout = input(a, 5),
                                                  .dlse = nullptr,
                                                  .dq = output(a, 0),
                                                  .dk = output(a, 1),
                                                  .dv = output(a, 2)});
}

/// `function` of a chapter's kernel, on arrays instead of arguments.
template <class Args>
AnyKernel::Call bound(const std::function<void(const Args&, void*)>& function,
                      Args (*bind)(const Problem&, const Pointers&)) {
  if (!function) return {};
  return [function, bind](const Problem& p, const Pointers& arrays, void* workspace) {
    function(bind(p, arrays), workspace);
  };
}

}  // namespace

AnyKernel::AnyKernel(const ForwardKernel& kernel)
    : pass(Pass::forward),
      name(kernel.name),
      summary(kernel.summary),
      memory(kernel.memory),
      require(kernel.require),
      workspace_bytes(kernel.workspace_bytes),
      traffic(kernel.traffic),
      run(bound(kernel.run, forward_args)),
      is_peer(kernel.is_peer),
      outputs_given(kernel.gives_lse ? 2 : 1),
      promises_equal_bits(false) {
  if (kernel.fetch) {
    fetch = [fetch_o = kernel.fetch](const Problem& p, const Pointers& arrays, void*) {
      fetch_o(forward_args(p, arrays));
    };
  }
}

AnyKernel::AnyKernel(const BackwardKernel& kernel)
    : pass(Pass::backward),
      name(kernel.name),
      summary(kernel.summary),
      memory(kernel.memory),
      require(kernel.require),
      workspace_bytes(kernel.workspace_bytes),
      traffic(kernel.traffic),
      prepare(bound(kernel.prepare, backward_args)),
      run(bound(kernel.run, backward_args)),
      is_peer(kernel.is_peer),
      outputs_given(3),
      promises_equal_bits(kernel.deterministic) {
  if (!kernel.deterministic) summary += summary.empty() ? "not deterministic" : "; not deterministic";
}

std::string label(const AnyKernel& kernel) {
  return kernel.memory == Memory::host ? kernel.name + " (CPU)" : kernel.name;
}

}  // namespace stage
