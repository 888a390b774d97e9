/// \file
/// The two kernels beyond the forward suite: bytes, refusals, scales, needed waits, fences and barriers.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "chapters/11_tma_pipeline/kernels.hpp"
#include "common/attention/accuracy.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/sixteen_bit_kernels.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::ElementType;
using attention::InputKind;
using attention::Mask;
using attention::Problem;
using suite::check_case, suite::Outcome, suite::problem, suite::run;
using tma_pipeline::tma_pipeline_kernels;

}  // namespace

TEST_CASE("right, with the predicted bytes, in both types and all head_dims") {
  suite::check_shapes(tma_pipeline_kernels());
}

TEST_CASE("the bytes of a causal case, by hand") {
  // Two tiles of 128 queries: the first sees 128 keys, the second all 130.
  const Problem p = problem(ElementType::bf16, 1, 1, 130, 130, 128, Mask::causal());
  const std::vector<stage::ForwardKernel> kernels = tma_pipeline_kernels();
  CHECK(kernels[0].traffic(p).loaded == 2 * 128 * (130 + 2 * (128 + 130)));
  CHECK(kernels[1].traffic(p).loaded == 2 * 128 * (130 + 2 * (128 + 130)));
  for (const stage::ForwardKernel& kernel : kernels) CHECK(kernel.traffic(p).stored == 130 * (2 * 128 + 4));
}

TEST_CASE("negative scales, a scale of 0, and scales that leave one key") {
  suite::check_scales(tma_pipeline_kernels());
}

TEST_CASE("scores of 10000 and more, of both signs") { suite::check_huge_scores(tma_pipeline_kernels()); }

TEST_CASE("the same bits under every schedule and in both deliveries") {
  for (const stage::ForwardKernel& kernel : tma_pipeline_kernels()) {
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
  for (const stage::ForwardKernel& kernel : tma_pipeline_kernels()) {
    const std::vector<std::string> unnoticed = suite::unnoticed_lines(kernel, p, nothing_seen);
    for (const std::string& line : unnoticed) UNSCOPED_INFO(line);
    INFO(kernel.name);
    // Step 2's __syncwarp brings the thread that loads back to its warp, which has to wait for products as one. The
    // emulator has a warp's lanes meet there in any case.
    CHECK(static_cast<int>(unnoticed.size()) == (kernel.name == "ring" ? 1 : 0));
  }
}
