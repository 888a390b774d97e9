#pragma once
/// \file
/// A toy training: Q, K and V themselves are the parameters, and gradient descent moves them until O is near a random
/// target. A gradient that is wrong anywhere bends the curve of the loss away from the reference's.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "chapters/06_recompute_backward/forward.cuh"
#include "common/attention/inputs.hpp"
#include "common/attention/problem.hpp"
#include "common/attention/reference.hpp"
#include "common/gpu/buffer.hpp"
#include "common/stage/kernel.hpp"

namespace recompute_backward {

/// The loss in front of each step, ½ Σ (O − target)² / rows of O; dO is (O − target) / rows.
struct Training {
  std::vector<double> kernels;    ///< with O, LSE and gradients from the kernels, in fp32
  std::vector<double> reference;  ///< with those of the reference, in float64
};

/// How far apart the two curves may be, relative to the loss: fp32 rounds every parameter in every step.
inline constexpr double kCurvesEqual = 1e-5;

/// The largest |kernels / reference − 1|; infinite if a loss is NaN.
inline double largest_difference(const Training& training) {
  double largest = 0;
  for (std::size_t i = 0; i < training.kernels.size(); ++i) {
    const double apart = std::abs(training.kernels[i] / training.reference[i] - 1);
    largest = std::isnan(apart) ? std::numeric_limits<double>::infinity() : std::max(largest, apart);
  }
  return largest;
}

/// Q, K, V on their way down. Parameters are fp32 for both.
class Descent {
 public:
  Descent(const attention::Problem& p, std::uint64_t seed, float rate)
      : values_(attention::make_inputs(p, attention::InputKind::normal, seed)), rate_(rate) {}

  const attention::Inputs& values() const { return values_; }

  /// One step against the gradients.
  template <class Real>
  void step(std::span<const Real> dq, std::span<const Real> dk, std::span<const Real> dv) {
    move(values_.q, dq);
    move(values_.k, dk);
    move(values_.v, dv);
  }

 private:
  template <class Real>
  void move(std::vector<float>& x, std::span<const Real> dx) const {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] -= rate_ * static_cast<float>(dx[i]);
  }

  attention::Inputs values_;
  float rate_;
};

/// dO of the loss, and the loss.
template <class Real>
double loss_and_gradient(std::span<const Real> o, std::span<const float> target, double rows,
                         std::vector<float>& dout) {
  double loss = 0;
  for (std::size_t i = 0; i < target.size(); ++i) {
    const double difference = double(o[i]) - target[i];
    loss += difference * difference / 2 / rows;
    dout[i] = static_cast<float>(difference / rows);
  }
  return loss;
}

/// Trains for `steps` steps twice: with the kernel's gradients, and with the reference's.
///
/// \param p dense, with at least one query and one key
inline Training train(const stage::BackwardKernel& kernel, const attention::Problem& p, int steps, float rate,
                      std::uint64_t seed) {
  std::vector<float> target(static_cast<std::size_t>(p.elements_o())), dout(target.size());
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (float& x : target) x = normal(random);
  const double rows = double(p.elements_lse());

  Training training;
  Descent exact(p, seed, rate);
  for (int i = 0; i < steps; ++i) {
    const attention::Inputs& x = exact.values();
    const attention::ReferenceForward forward = attention::reference_forward(p, x.q, x.k, x.v);
    training.reference.push_back(loss_and_gradient<double>(forward.o, target, rows, dout));
    const attention::ReferenceBackward gradient = attention::reference_backward(p, x.q, x.k, x.v, dout);
    exact.step<double>(gradient.dq, gradient.dk, gradient.dv);
  }

  Descent descent(p, seed, rate);
  gpu::DeviceBuffer<float> o(target.size(), "O"), lse(static_cast<std::size_t>(p.elements_lse()), "LSE");
  gpu::DeviceBuffer<float> dq(static_cast<std::size_t>(p.elements_dq()), "dQ");
  gpu::DeviceBuffer<float> dk(static_cast<std::size_t>(p.elements_dk()), "dK");
  gpu::DeviceBuffer<float> dv(static_cast<std::size_t>(p.elements_dv()), "dV");
  gpu::DeviceBuffer<unsigned char> workspace(kernel.workspace_bytes(p), "workspace");
  for (int i = 0; i < steps; ++i) {
    const attention::Inputs& x = descent.values();
    const gpu::DeviceBuffer<float> q(x.q, "Q"), k(x.k, "K"), v(x.v, "V");
    run_forward(attention::make_forward_args<float>(p, q.data(), k.data(), v.data(), o.data(), lse.data()));
    const std::vector<float> o_values = o.download();
    training.kernels.push_back(loss_and_gradient<float>(o_values, target, rows, dout));
    const gpu::DeviceBuffer<float> dout_gmem(dout, "dO");
    const auto args = attention::make_backward_args<float>(p, {.q = q.data(),
                                                               .k = k.data(),
                                                               .v = v.data(),
                                                               .o = o.data(),
                                                               .lse = lse.data(),
                                                               .dout = dout_gmem.data(),
                                                               .dq = dq.data(),
                                                               .dk = dk.data(),
                                                               .dv = dv.data()});
    if (kernel.prepare) kernel.prepare(args, workspace.data());
    kernel.run(args, workspace.data());
    descent.step<float>(dq.download(), dk.download(), dv.download());
  }
  return training;
}

}  // namespace recompute_backward
