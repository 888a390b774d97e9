/// \file
/// Launches between guard bands.

#include "tests/common/suite/guarded_run.hpp"

#include <exception>
#include <limits>

#include "common/gpu/device.hpp"

namespace suite {
namespace {

using attention::ElementType;
using attention::Problem;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// So that a kernel is asked before anything is allocated.
const Problem& required(const auto& kernel, const Problem& problem) {
  stage::require_taken(kernel, problem);
  return problem;
}

std::size_t index(std::int64_t offset, int column) { return static_cast<std::size_t>(offset + column); }

}  // namespace

GuardedRun::GuardedRun(const stage::ForwardKernel& kernel, const Problem& p, const attention::Inputs& inputs)
    : kernel_(kernel),
      problem_(required(kernel, p)),
      q_array_(kernel.memory, "Q", p.element_type, inputs.q, kNaN),
      k_array_(kernel.memory, "K", p.element_type, inputs.k, kNaN),
      v_array_(kernel.memory, "V", p.element_type, inputs.v, kNaN),
      o_array_(kernel.memory, "O", p.element_type,
               poisoned_result(p.elements_o(), p.strides_o(), p.batch, p.seqlen_q, p.heads_q, p.head_dim), kSentinel),
      lse_array_(kernel.memory, "LSE", ElementType::fp32,
                 std::vector<float>(static_cast<std::size_t>(p.elements_lse()), kNaN), kSentinel),
      workspace_array_(GuardedArray::workspace(kernel.memory, kernel.workspace_bytes(p))) {}

Failures GuardedRun::launch() {
  Failures failures;
  o_array_.reset();
  lse_array_.reset();
  workspace_array_.poison();
  try {
    gpu::reset_counts();
    with_element_type(problem_.element_type, [&]<class T>(std::type_identity<T>) {
      kernel_.run(attention::make_forward_args<T>(problem_, q_array_.as<T>(), k_array_.as<T>(), v_array_.as<T>(),
                                                  o_array_.as<T>(), lse_array_.as<float>()),
                  workspace_array_.data());
    });
    gpu::synchronize();
  } catch (const std::exception& error) {
    return {std::string("the launch failed: ") + error.what()};
  }
  if (kernel_.traffic) compare_traffic(kernel_.memory, kernel_.traffic(problem_), 0, failures);

  o_ = o_array_.read_result(failures);
  lse_ = lse_array_.read(failures);
  workspace_array_.check_guards(failures);
  for (const GuardedArray* input : {&q_array_, &k_array_, &v_array_}) input->expect_unchanged(failures);
  return failures;
}

float GuardedRun::o(int b, int query, int head, int column) const {
  return o_[index(problem_.strides_o().offset(b, query, head), column)];
}

float GuardedRun::lse(int b, int query, int head) const {
  return lse_[(static_cast<std::size_t>(b) * problem_.heads_q + head) * problem_.seqlen_q + query];
}

GuardedBackwardRun::GuardedBackwardRun(const stage::BackwardKernel& kernel, const Problem& p,
                                       const BackwardInputs& inputs)
    : kernel_(kernel),
      problem_(required(kernel, p)),
      has_dlse_(!inputs.dlse.empty()),
      q_array_(kernel.memory, "Q", p.element_type, inputs.q, kNaN),
      k_array_(kernel.memory, "K", p.element_type, inputs.k, kNaN),
      v_array_(kernel.memory, "V", p.element_type, inputs.v, kNaN),
      o_array_(kernel.memory, "O", p.element_type, inputs.o, kNaN),
      lse_array_(kernel.memory, "LSE", ElementType::fp32, inputs.lse, kNaN),
      dout_array_(kernel.memory, "dO", p.element_type, inputs.dout, kNaN),
      dlse_array_(kernel.memory, "dLSE", ElementType::fp32, inputs.dlse, kNaN),
      dq_array_(kernel.memory, "dQ", p.element_type,
                poisoned_result(p.elements_dq(), p.strides_dq(), p.batch, p.seqlen_q, p.heads_q, p.head_dim),
                kSentinel),
      dk_array_(kernel.memory, "dK", p.element_type,
                poisoned_result(p.elements_dk(), p.strides_dk(), p.batch, p.seqlen_kv, p.heads_kv, p.head_dim),
                kSentinel),
      dv_array_(kernel.memory, "dV", p.element_type,
                poisoned_result(p.elements_dv(), p.strides_dv(), p.batch, p.seqlen_kv, p.heads_kv, p.head_dim),
                kSentinel),
      workspace_array_(GuardedArray::workspace(kernel.memory, kernel.workspace_bytes(p))) {}

void GuardedBackwardRun::call(const stage::LaunchByType<attention::BackwardArgs>& launch) {
  with_element_type(problem_.element_type, [&]<class T>(std::type_identity<T>) {
    launch(attention::make_backward_args<T>(problem_, {.q = q_array_.as<T>(),
                                                       .k = k_array_.as<T>(),
                                                       .v = v_array_.as<T>(),
                                                       .o = o_array_.as<T>(),
                                                       .lse = lse_array_.as<float>(),
                                                       .dout = dout_array_.as<T>(),
                                                       .dlse = has_dlse_ ? dlse_array_.as<float>() : nullptr,
                                                       .dq = dq_array_.as<T>(),
                                                       .dk = dk_array_.as<T>(),
                                                       .dv = dv_array_.as<T>()}),
           workspace_array_.data());
  });
}

Failures GuardedBackwardRun::launch() {
  workspace_array_.poison();
  if (kernel_.prepare) {
    try {
      call(kernel_.prepare);
      gpu::synchronize();
    } catch (const std::exception& error) {
      return {std::string("the preparation failed: ") + error.what()};
    }
  }
  return launch_prepared();
}

Failures GuardedBackwardRun::launch_on_used_workspace() { return launch_prepared(); }

Failures GuardedBackwardRun::launch_prepared() {
  Failures failures;
  dq_array_.reset();
  dk_array_.reset();
  dv_array_.reset();
  try {
    gpu::reset_counts();
    call(kernel_.run);
    gpu::synchronize();
  } catch (const std::exception& error) {
    return {std::string("the launch failed: ") + error.what()};
  }
  if (kernel_.traffic) {
    // `traffic` is told sizes and mask only. Where a dLSE is given, an element of it a row may come on top.
    const double dlse = has_dlse_ ? sizeof(float) * static_cast<double>(problem_.elements_lse()) : 0;
    compare_traffic(kernel_.memory, kernel_.traffic(problem_), dlse, failures);
  }

  dq_ = dq_array_.read_result(failures);
  dk_ = dk_array_.read_result(failures);
  dv_ = dv_array_.read_result(failures);
  workspace_array_.check_guards(failures);
  for (const GuardedArray* input :
       {&q_array_, &k_array_, &v_array_, &o_array_, &lse_array_, &dout_array_, &dlse_array_}) {
    input->expect_unchanged(failures);
  }
  return failures;
}

float GuardedBackwardRun::dq(int b, int query, int head, int column) const {
  return dq_[index(problem_.strides_dq().offset(b, query, head), column)];
}
float GuardedBackwardRun::dk(int b, int key, int head, int column) const {
  return dk_[index(problem_.strides_dk().offset(b, key, head), column)];
}
float GuardedBackwardRun::dv(int b, int key, int head, int column) const {
  return dv_[index(problem_.strides_dv().offset(b, key, head), column)];
}

}  // namespace suite
