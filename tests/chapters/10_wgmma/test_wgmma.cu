/// \file
/// The two kernels beyond the forward suite: bytes, refusals, scales, needed waits, fences and barriers.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "chapters/10_wgmma/kernels.hpp"
#include "common/attention/accuracy.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::ElementType;
using attention::InputKind;
using attention::Mask;
using attention::Problem;
using suite::check_case, suite::Outcome, suite::problem, suite::run;
using wgmma::wgmma_kernels;

constexpr ElementType kTypes[] = {ElementType::fp16, ElementType::bf16};

/// What a run without a line says; empty if nothing was noticed.
std::string report_without(const stage::ForwardKernel& kernel, const Problem& p, const gpu::SourceLine& line,
                           std::uint64_t seed, gpu::Delivery delivery) {
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.without = {line};
  options.schedule_seed = seed;
  options.delivery = delivery;
  const gpu::EmulatorOptionsScope without(options);
  try {
    run(kernel, p);
  } catch (const gpu::Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("right, with the predicted bytes, in both types and all head_dims") {
  int turn = 0;
  for (const ElementType type : kTypes) {
    for (const int head_dim : {64, 128, 256}) {
      const Problem problems[] = {
          problem(type, 1, 1, 1, 1, head_dim, Mask::none()),
          problem(type, 2, 1, 140, 200, head_dim, Mask::causal()),
          problem(type, 1, 1, 140, 150, head_dim, Mask::window(9, 0)),   // tiles of keys that are nobody's
          problem(type, 1, 1, 300, 30, head_dim, Mask::causal()),        // a tile of rows that see nothing
          problem(type, 1, 1, 70, 330, head_dim, Mask::window(70, 40)),  // both edges
      };
      for (Problem p : problems) {
        p.batch = p.heads_q == 1 && p.seqlen_q == 1 ? 3 : 1;
        const std::vector<stage::ForwardKernel> kernels = wgmma_kernels();
        const stage::ForwardKernel& kernel = kernels[turn++ % kernels.size()];
        INFO(kernel.name << ", " << p.describe());
        check_case(kernel, p);
      }
    }
  }
}

TEST_CASE("the bytes of a causal case, by hand") {
  // Step 1 has three tiles of 64 queries: the first two see 128 keys, the last all 130. Step 2 has two of 128.
  const Problem p = problem(ElementType::bf16, 1, 1, 130, 130, 128, Mask::causal());
  const std::vector<stage::ForwardKernel> kernels = wgmma_kernels();
  CHECK(kernels[0].traffic(p).loaded == 2 * 128 * (130 + 2 * (128 + 128 + 130)));
  CHECK(kernels[1].traffic(p).loaded == 2 * 128 * (130 + 2 * (128 + 130)));
  for (const stage::ForwardKernel& kernel : kernels) CHECK(kernel.traffic(p).stored == 130 * (2 * 128 + 4));
}

TEST_CASE("negative scales, a scale of 0, and scales that leave one key") {
  const std::vector<stage::ForwardKernel> kernels = wgmma_kernels();
  int turn = 0;
  for (const float scale : {-0.25f, 0.0f, 1.5f, 1e4f, -1e4f}) {
    for (const ElementType type : kTypes) {
      Problem p = problem(type, 1, 1, 20, 200, 64, turn % 3 == 0 ? Mask::causal() : Mask::none());
      p.softmax_scale = scale;
      check_case(kernels[turn++ % kernels.size()], p);
    }
  }
}

TEST_CASE("scores of 10000 and more, of both signs") {
  const std::vector<stage::ForwardKernel> kernels = wgmma_kernels();
  int turn = 0;
  for (const float scale : {0.25f, -0.25f}) {
    for (const ElementType type : kTypes) {
      for (const Mask mask : {Mask::none(), Mask::causal()}) {
        Problem p = problem(type, 1, 1, 70, 140, 64, mask);
        p.softmax_scale = scale;
        check_case(kernels[turn++ % kernels.size()], p, InputKind::huge_scores);
      }
    }
  }
}

TEST_CASE("the same bits under every schedule and in both deliveries") {
  for (const stage::ForwardKernel& kernel : wgmma_kernels()) {
    check_case(kernel, problem(ElementType::fp16, 1, 1, 70, 400, 64, Mask::window(270, 3)), InputKind::rising_scores,
               true);
  }
}

TEST_CASE("no wait, no fence and no barrier can be left out unnoticed") {
  if (!gpu::device().checked) return;
  // More than 2 · stages tiles of keys, so that each buffer is loaded again after it has been read, and twice.
  const Problem p = problem(ElementType::bf16, 1, 1, 66, 5 * 128 - 30, 64, Mask::none());
  // A block none of whose rows sees a key: what guards the end of a block that has visited no tile.
  const Problem nothing_seen = problem(ElementType::bf16, 1, 1, 132, 3, 64, Mask::causal());
  for (const stage::ForwardKernel& kernel : wgmma_kernels()) {
    gpu::reset_synchronisations_seen();
    run(kernel, p);
    run(kernel, nothing_seen);
    std::vector<std::string> unnoticed;
    for (const gpu::SourceLine& line : gpu::synchronisations_seen()) {
      bool noticed = false;
      for (const gpu::Delivery delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately})
        for (const std::uint64_t seed : {0, 1, 2}) {
          noticed = noticed || !report_without(kernel, p, line, seed, delivery).empty() ||
                    !report_without(kernel, nothing_seen, line, seed, delivery).empty();
        }
      if (!noticed) unnoticed.push_back(line.file + ":" + std::to_string(line.line));
    }
    for (const std::string& line : unnoticed) UNSCOPED_INFO(line);
    INFO(kernel.name);
    CHECK(unnoticed.empty());
  }
}
