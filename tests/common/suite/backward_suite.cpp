/// \file
/// What the suite asks of a backward kernel in each case.

#include "tests/common/suite/backward_suite.hpp"

#include <exception>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "common/attention/accuracy.hpp"
#include "common/gpu/device.hpp"
#include "tests/common/suite/guarded_run.hpp"
#include "tests/common/suite/preparations.hpp"

namespace suite {
namespace {

/// Inputs of a case and what the gradients are judged by.
struct Prepared {
  BackwardInputs inputs;
  attention::BackwardYardstick yardstick;

  std::size_t bytes() const {
    const attention::ReferenceBackward& reference = yardstick.reference;
    return sizeof(float) * (inputs.q.size() + inputs.k.size() + inputs.v.size() + 2 * inputs.o.size() +
                            inputs.dout.size() + 3 * inputs.lse.size()) +
           sizeof(double) * (reference.dq.size() + reference.dk.size() + reference.dv.size());
  }
};

Prepared prepare(const BackwardCase& c) {
  const attention::Inputs inputs = attention::make_inputs(c.problem, c.inputs, c.seed);
  const std::vector<float> dout = attention::make_output_gradient(c.problem, c.seed);
  const std::vector<float> dlse = c.with_dlse ? make_lse_gradient(c.problem, c.seed) : std::vector<float>{};
  attention::BackwardYardstick yardstick =
      attention::make_backward_yardstick(c.problem, inputs.q, inputs.k, inputs.v, dout, dlse);
  return {.inputs = {inputs.q, inputs.k, inputs.v, yardstick.o, yardstick.lse, dout, dlse}, .yardstick = yardstick};
}

Preparations<BackwardCase, Prepared>& preparations() {
  static Preparations<BackwardCase, Prepared> kept(prepare);
  return kept;
}

std::string delivery_name(gpu::Delivery delivery) {
  return delivery == gpu::Delivery::on_wait ? "copies landing when waited for" : "copies landing at once";
}

}  // namespace

std::vector<float> make_lse_gradient(const attention::Problem& p, std::uint64_t seed) {
  std::mt19937_64 engine(seed ^ 0xD15Eu);
  std::vector<float> dlse(static_cast<std::size_t>(p.elements_lse()));
  // 24 bits of the engine, whose numbers the standard fixes: exact in a float.
  for (float& value : dlse) value = static_cast<float>(engine() >> 40) * 0x1p-24f * 2.5f - 1.0f;
  return dlse;
}

void prepare_ahead(std::span<const BackwardCase> cases) { preparations().ahead(cases); }

Failures case_failures(const stage::BackwardKernel& kernel, const BackwardCase& c) {
  Failures failures;
  const auto add = [&](const Failures& sentences, const std::string& when) {
    for (const std::string& sentence : sentences) {
      failures.push_back(kernel.name + ", " + c.describe() + (when.empty() ? "" : ", " + when) + ": " + sentence);
    }
  };
  try {
    const std::shared_ptr<const Prepared> prepared = preparations().of(c);
    GuardedBackwardRun run(kernel, c.problem, prepared->inputs);
    const auto judge = [&](const std::string& when) {
      const attention::BackwardVerdict verdict =
          attention::judge_backward(c.problem, run.dq(), run.dk(), run.dv(), prepared->yardstick);
      if (!verdict.right) add({verdict.sentence}, when);
    };
    add(run.launch(), "");
    if (!failures.empty()) return failures;
    judge("");
    if (!failures.empty()) return failures;

    const std::vector<float> dq = run.dq(), dk = run.dk(), dv = run.dv();
    const auto compare = [&](const std::string& when) {
      if (!failures.empty()) return;
      if (!kernel.deterministic) return judge(when);
      const auto expect_same = [&](std::span<const float> now, std::span<const float> first, const char* array) {
        if (!same_bits(now, first)) add({std::string(array) + " differs from the first launch"}, when);
      };
      expect_same(run.dq(), dq, "dQ");
      expect_same(run.dk(), dk, "dK");
      expect_same(run.dv(), dv, "dV");
    };
    if (c.repeat) {
      add(run.launch_on_used_workspace(), "second launch");
      compare("second launch");
      if (!failures.empty()) return failures;
    }
    if (c.reschedule && gpu::device().emulated && kernel.memory == stage::Memory::device) {
      for (const std::uint64_t seed : {0, 1, 2})
        for (const gpu::Delivery delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately}) {
          const gpu::EmulatorOptionsScope schedule(with_schedule(seed, delivery));
          const std::string when = "schedule seed " + std::to_string(seed) + ", " + delivery_name(delivery);
          add(run.launch(), when);
          compare(when);
          if (!failures.empty()) return failures;
        }
    }
  } catch (const std::exception& error) {
    add({error.what()}, "");
  }
  return failures;
}

Failures refusal_failures(const stage::BackwardKernel& kernel) {
  BackwardCase c;
  c.problem = problem_of_head_dim_48(taken_by(kernel));
  const std::optional<Failures> refusal =
      refusal_of_head_dim_48(kernel.name, [&] { stage::require_taken(kernel, c.problem); });
  return refusal ? *refusal : case_failures(kernel, c);
}

Failures backward_suite_failures(const stage::BackwardKernel& kernel, Depth depth, std::size_t stop_after) {
  const Taken taken = taken_by(kernel);
  if (taken.head_dims.empty()) return {kernel.name + " takes no head_dim"};
  Failures failures = refusal_failures(kernel);
  for (const BackwardCase& c : backward_cases(depth, taken)) {
    if (failures.size() >= stop_after) break;
    for (std::string& sentence : case_failures(kernel, c)) failures.push_back(std::move(sentence));
  }
  return failures;
}

}  // namespace suite
