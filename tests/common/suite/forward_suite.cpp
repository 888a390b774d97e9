/// \file
/// What the suite asks of a kernel in each case.

#include "tests/common/suite/forward_suite.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "common/attention/accuracy.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/common/suite/guarded_run.hpp"
#include "tests/common/suite/preparations.hpp"

namespace suite {
namespace {

using attention::ElementType;

bool has_16_bits(const Taken& taken) {
  return std::any_of(taken.element_types.begin(), taken.element_types.end(),
                     [](ElementType type) { return type != ElementType::fp32; });
}

template <class Kernel>
Taken taken_by_either(const Kernel& kernel) {
  Taken taken{.element_types = {}, .head_dims = {}};
  for (const ElementType type : {ElementType::fp32, ElementType::fp16, ElementType::bf16}) {
    if (kernel.run.takes(type)) taken.element_types.push_back(type);
  }
  const auto takes = [&](int head_dim) {
    return std::any_of(taken.element_types.begin(), taken.element_types.end(), [&](ElementType type) {
      try {
        stage::require_taken(kernel, {.seqlen_q = 1, .seqlen_kv = 1, .head_dim = head_dim, .element_type = type});
        return true;
      } catch (const stage::Refused&) {
        return false;
      }
    });
  };
  for (const int head_dim : {32, 64, 128, 256}) {
    if ((head_dim < 256 || has_16_bits(taken)) && takes(head_dim)) taken.head_dims.push_back(head_dim);
  }
  return taken;
}

/// Inputs of a case and what they are judged by.
struct Prepared {
  attention::Inputs inputs;
  attention::ForwardYardstick yardstick;
  std::size_t bytes() const {
    return sizeof(float) * (inputs.q.size() + inputs.k.size() + inputs.v.size()) +
           sizeof(double) * (yardstick.reference.o.size() + yardstick.reference.lse.size());
  }
};

Prepared prepare(const SuiteCase& c) {
  attention::Inputs inputs = attention::make_inputs(c.problem, c.inputs, c.seed);
  attention::ForwardYardstick yardstick = attention::make_forward_yardstick(c.problem, inputs.q, inputs.k, inputs.v);
  return {std::move(inputs), std::move(yardstick)};
}

Preparations<SuiteCase, Prepared>& preparations() {
  static Preparations<SuiteCase, Prepared> kept(prepare);
  return kept;
}

std::string delivery_name(gpu::Delivery delivery) {
  return delivery == gpu::Delivery::on_wait ? "copies landing when waited for" : "copies landing at once";
}

}  // namespace

void prepare_ahead(std::span<const SuiteCase> cases) { preparations().ahead(cases); }

Failures case_failures(const stage::ForwardKernel& kernel, const SuiteCase& c) {
  Failures failures;
  const auto add = [&](const Failures& sentences, const std::string& when) {
    for (const std::string& sentence : sentences) {
      failures.push_back(kernel.name + ", " + c.describe() + (when.empty() ? "" : ", " + when) + ": " + sentence);
    }
  };
  try {
    const std::shared_ptr<const Prepared> prepared = preparations().of(c);
    GuardedRun run(kernel, c.problem, prepared->inputs);
    add(run.launch(), "");
    if (!failures.empty()) return failures;
    const attention::Verdict verdict = attention::judge_forward(c.problem, run.o(), run.lse(), prepared->yardstick);
    if (!verdict.right) add({verdict.sentence}, "");
    if (!failures.empty()) return failures;

    const std::vector<float> o = run.o(), lse = run.lse();
    const auto launch_again = [&](const std::string& when) {
      add(run.launch(), when);
      if (failures.empty() && !(same_bits(run.o(), o) && same_bits(run.lse(), lse))) {
        add({"O or LSE differs from the first launch"}, when);
      }
    };
    if (c.repeat) launch_again("second launch");
    if (c.reschedule && gpu::device().emulated && kernel.memory == stage::Memory::device) {
      for (const std::uint64_t seed : {0, 1, 2})
        for (const gpu::Delivery delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately}) {
          const gpu::EmulatorOptionsScope schedule(with_schedule(seed, delivery));
          launch_again("schedule seed " + std::to_string(seed) + ", " + delivery_name(delivery));
          if (!failures.empty()) return failures;
        }
    }
  } catch (const std::exception& error) {
    add({error.what()}, "");
  }
  return failures;
}

attention::Problem problem_of_head_dim_48(const Taken& taken) {
  return {.heads_q = 2,
          .heads_kv = 1,
          .seqlen_q = 5,
          .seqlen_kv = 9,
          .head_dim = 48,
          .element_type = taken.element_types.empty() ? ElementType::fp32 : taken.element_types.front()};
}

std::optional<Failures> refusal_of_head_dim_48(const std::string& kernel, const std::function<void()>& require) {
  const std::size_t memory_before = gpu::memory_in_use();
  try {
    require();
  } catch (const stage::Refused& refused) {
    const std::string sentence = refused.what();
    Failures failures;
    if (sentence.find(kernel) == std::string::npos || sentence.find("48") == std::string::npos) {
      failures.push_back(kernel + ": the refusal of head_dim 48 names neither kernel nor value: " + sentence);
    }
    if (gpu::memory_in_use() != memory_before) failures.push_back(kernel + ": a refusal kept device memory");
    return failures;
  } catch (const std::exception& error) {
    return Failures{kernel + ": head_dim 48 was refused by another type than stage::Refused: " + error.what()};
  }
  return std::nullopt;
}

Failures refusal_failures(const stage::ForwardKernel& kernel) {
  SuiteCase c;
  c.problem = problem_of_head_dim_48(taken_by(kernel));
  const std::optional<Failures> refusal =
      refusal_of_head_dim_48(kernel.name, [&] { stage::require_taken(kernel, c.problem); });
  return refusal ? *refusal : case_failures(kernel, c);
}

Taken taken_by(const stage::ForwardKernel& kernel) { return taken_by_either(kernel); }
Taken taken_by(const stage::BackwardKernel& kernel) { return taken_by_either(kernel); }

Failures too_little_taken(const std::string& kernel, const Taken& taken) {
  Failures failures;
  if (taken.element_types.empty()) failures.push_back(kernel + " takes no element type");
  for (const int head_dim : Taken().head_dims) {
    if (head_dim == 32 && has_16_bits(taken)) continue;
    if (std::find(taken.head_dims.begin(), taken.head_dims.end(), head_dim) == taken.head_dims.end()) {
      failures.push_back(kernel + " does not take head_dim " + std::to_string(head_dim));
    }
  }
  return failures;
}

Failures forward_suite_failures(const stage::ForwardKernel& kernel, Depth depth, std::size_t stop_after) {
  const Taken taken = taken_by(kernel);
  if (taken.head_dims.empty()) return {kernel.name + " takes no head_dim"};
  Failures failures = refusal_failures(kernel);
  for (const SuiteCase& c : forward_cases(depth, taken)) {
    if (failures.size() >= stop_after) break;
    for (std::string& sentence : case_failures(kernel, c)) failures.push_back(std::move(sentence));
  }
  return failures;
}

}  // namespace suite
