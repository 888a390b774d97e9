/// \file
/// The two kernels beyond the forward suite: bytes, banks, refusals, scales, needed barriers.

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "chapters/07_tensor_cores/kernels.hpp"
#include "chapters/07_tensor_cores/model.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::ElementType;
using attention::InputKind;
using attention::Mask;
using attention::Problem;
using attention::Strides;
using suite::check_case, suite::Outcome, suite::problem, suite::run;
using tensor_cores::tensor_core_kernels;

constexpr ElementType kTypes[] = {ElementType::fp16, ElementType::bf16};

/// MmaWork against what a block does more for one tile of keys more.
template <int kHeadDim>
void check_shared_counts() {
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope counting(options);
  const std::vector<tensor_cores::MmaWork> works = tensor_cores::mma_works<kHeadDim>();
  const std::vector<stage::ForwardKernel> kernels = tensor_core_kernels();
  REQUIRE(works.size() == kernels.size());
  for (std::size_t i = 0; i < works.size(); ++i) {
    const tensor_cores::MmaWork& work = works[i];
    INFO(work.kernel << ", head_dim " << kHeadDim);
    REQUIRE(work.kernel == kernels[i].name);
    const auto counted = [&](int tiles) {
      run(kernels[i], problem(ElementType::bf16, 1, 1, work.br, tiles * work.bc, kHeadDim, Mask::none()));
      return gpu::kernel_counts().at(0);
    };
    const gpu::KernelCounts one = counted(1), two = counted(2);
    CHECK(one.blocks == 1);
    const auto loads = two.shared_loads.requests - one.shared_loads.requests;
    const auto stores = two.shared_stores.requests - one.shared_stores.requests;
    CHECK(loads == std::uint64_t(work.warps) * work.matrix_loads);
    CHECK(stores == std::uint64_t(work.warps) * work.stores);
    CHECK(two.shared_loads.wavefronts - one.shared_loads.wavefronts == loads * work.wavefronts);
    CHECK(two.shared_stores.wavefronts - one.shared_stores.wavefronts == stores * 4);
    CHECK(two.shared_stores.conflicts == 0);
    // Of a row of Q one load serves all tiles of keys; nothing else is in shared memory.
    const bool swizzled = work.kernel == "swizzled";
    CHECK(work.wavefronts == (swizzled ? 4 : 32));
    CHECK(two.shared_loads.conflicts == (swizzled ? 0 : two.shared_loads.requests * 28));
  }
}

}  // namespace

TEST_CASE("right, with the predicted bytes, in both types and all head_dims") {
  int turn = 0;
  for (const ElementType type : kTypes) {
    for (const int head_dim : {64, 128, 256}) {
      const Problem problems[] = {
          problem(type, 1, 1, 1, 1, head_dim, Mask::none()),
          problem(type, 2, 1, 70, 65, head_dim, Mask::causal()),       // the second tile of keys is one key
          problem(type, 1, 1, 70, 150, head_dim, Mask::window(9, 0)),  // the first tile of keys is nobody's
          problem(type, 1, 1, 130, 30, head_dim, Mask::causal()),      // a tile of rows that see nothing
      };
      for (Problem p : problems) {
        p.batch = p.heads_q == 1 && p.seqlen_q == 1 ? 3 : 1;
        // Each kernel gets each problem, but not in each type and head_dim.
        const std::vector<stage::ForwardKernel> kernels = tensor_core_kernels();
        const stage::ForwardKernel& kernel = kernels[turn++ % kernels.size()];
        INFO(kernel.name << ", " << p.describe());
        check_case(kernel, p);
      }
      ++turn;
    }
  }
}

TEST_CASE("the bytes of a causal case, by hand") {
  // Three tiles of 64 queries: the first sees 64 keys, the second 128, the third all 130.
  const Problem p = problem(ElementType::bf16, 1, 1, 130, 130, 128, Mask::causal());
  for (const stage::ForwardKernel& kernel : tensor_core_kernels()) {
    CHECK(kernel.traffic(p).loaded == 2 * 128 * (130 + 2 * (64 + 128 + 130)));
    CHECK(kernel.traffic(p).stored == 130 * (2 * 128 + 4));
  }
}

TEST_CASE("instructions on shared memory are as many as the model says, and step 2 has no bank conflicts") {
  if (!gpu::device().checked) return;
  check_shared_counts<64>();
  check_shared_counts<128>();
  check_shared_counts<256>();
}

TEST_CASE("the model's cycles, by hand") {
  // d = 128: 8 steps of 16 columns · 8 tiles of 8 keys, and as many for PV.
  const std::vector<tensor_cores::MmaWork> works = tensor_cores::mma_works<128>();
  CHECK(works[0].products == 128);
  CHECK(works[0].matrix_loads == 8 * (1 + 4) + 4 * 8);
  CHECK(works[0].tensor_cycles() == 512);
  CHECK(works[0].data_cycles() == 4 * (72 * 32 + 16 * 4));
  CHECK(works[1].data_cycles() == 4 * (72 * 4 + 16 * 4));
  CHECK(works[1].bound() == 512.0 / 1408);
}

TEST_CASE("negative scales, a scale of 0, and scales that leave one key") {
  const std::vector<stage::ForwardKernel> kernels = tensor_core_kernels();
  int turn = 0;
  for (const float scale : {-0.25f, 0.0f, 1.5f, 1e8f, -1e10f}) {
    for (const ElementType type : kTypes) {
      Problem p = problem(type, 1, 1, 20, 70, 64, turn % 3 == 0 ? Mask::causal() : Mask::none());
      p.softmax_scale = scale;
      check_case(kernels[turn++ % kernels.size()], p);
    }
  }
}

TEST_CASE("scores of 10000 and more, of both signs") {
  const std::vector<stage::ForwardKernel> kernels = tensor_core_kernels();
  int turn = 0;
  for (const float scale : {0.25f, -0.25f}) {
    for (const ElementType type : kTypes) {
      for (const Mask mask : {Mask::none(), Mask::causal()}) {
        Problem p = problem(type, 1, 1, 70, 70, 64, mask);
        p.softmax_scale = scale;
        check_case(kernels[turn++ % kernels.size()], p, InputKind::huge_scores);
      }
    }
  }
}

TEST_CASE("the same bits under every schedule") {
  for (const stage::ForwardKernel& kernel : tensor_core_kernels()) {
    check_case(kernel, problem(ElementType::fp16, 1, 1, 70, 140, 64, Mask::window(70, 3)), InputKind::rising_scores,
               true);
  }
}

TEST_CASE("the two steps give the same bits") {
  const std::vector<stage::ForwardKernel> kernels = tensor_core_kernels();
  for (const ElementType type : kTypes) {
    const Problem p = problem(type, 1, 1, 70, 100, 64, Mask::causal());
    const Outcome first = run(kernels[0], p), second = run(kernels[1], p);
    CHECK(first.o == second.o);
    CHECK(first.lse == second.lse);
  }
}

TEST_CASE("rows that see nothing, alone in a tile and beside others", "[C01]") {
  const Problem p = problem(ElementType::bf16, 1, 1, 150, 20, 64, Mask::causal());
  for (const stage::ForwardKernel& kernel : tensor_core_kernels()) {
    INFO(kernel.name);
    const Outcome outcome = run(kernel, p);
    for (int query = 0; query < p.seqlen_q; ++query) {
      const bool empty = query < 130;
      INFO("query " << query);
      REQUIRE((outcome.lse[query] == -INFINITY) == empty);
      for (int c = 0; c < p.head_dim; ++c) {
        const float o = outcome.o[query * p.head_dim + c];
        REQUIRE(std::isfinite(o));
        if (empty) REQUIRE(o == 0);
      }
    }
  }
}

TEST_CASE("element types and head_dims that are not taken are refused by name") {
  for (const stage::ForwardKernel& kernel : tensor_core_kernels()) {
    const auto refused = [&kernel](const Problem& p) {
      try {
        stage::require_taken(kernel, p);
      } catch (const stage::Refused& refusal) {
        return std::string(refusal.what());
      }
      return std::string("nothing");
    };
    const std::string fp32 = refused(problem(ElementType::fp32, 1, 1, 64, 64, 64, Mask::none()));
    CHECK_THAT(fp32, ContainsText(kernel.name) && ContainsText("fp32") && ContainsText("bf16"));
    const std::string small = refused(problem(ElementType::bf16, 1, 1, 64, 64, 32, Mask::none()));
    CHECK_THAT(small, ContainsText(kernel.name) && ContainsText("32") && ContainsText("256"));
    CHECK_NOTHROW(stage::require_taken(kernel, problem(ElementType::fp16, 1, 1, 64, 64, 256, Mask::none())));
  }
}

TEST_CASE("strides that are no multiples of 8 are refused", "[C18]") {
  const Problem dense = problem(ElementType::bf16, 2, 2, 20, 40, 64, Mask::causal());
  const Strides odd[] = {{8000, 136, 68, 1}, {8000, 132, 64, 1}, {8004, 128, 64, 1}};
  for (const stage::ForwardKernel& kernel : tensor_core_kernels()) {
    for (const Strides& strides : odd) {
      for (int array = 0; array < 4; ++array) {
        Problem p = dense;
        p.batch = 2;
        std::optional<Strides>* fields[] = {&p.q_strides, &p.k_strides, &p.v_strides, &p.o_strides};
        *fields[array] = strides;
        CAPTURE(p.describe(), array);
        CHECK_THROWS_AS(stage::require_taken(kernel, p), stage::Refused);
        CHECK_THROWS_WITH(stage::require_taken(kernel, p), ContainsText(kernel.name) && ContainsText("multiples of 8"));
      }
    }
    Problem p = dense;
    p.q_strides = p.k_strides = p.v_strides = p.o_strides = Strides{8000, 144, 72, 1};
    check_case(kernel, p);
  }
}

TEST_CASE("a block that needs more shared memory than there is is refused with both figures") {
  if (!gpu::device().emulated) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.shared_memory_limit = 101376;
  const gpu::EmulatorOptionsScope small(options);
  // Three tiles of 64 rows of 256 elements: 98304 bytes. They fit; a GPU without opting in would not have them.
  for (const stage::ForwardKernel& kernel : tensor_core_kernels()) {
    const Problem p = problem(ElementType::fp16, 1, 1, 64, 64, 256, Mask::none());
    CHECK_NOTHROW(stage::require_taken(kernel, p));
    options.shared_memory_limit = 49152;
    const gpu::EmulatorOptionsScope smaller(options);
    CHECK_THROWS_AS(stage::require_taken(kernel, p), stage::Refused);
    CHECK_THROWS_WITH(stage::require_taken(kernel, p), ContainsText("98304") && ContainsText("49152"));
    CHECK_NOTHROW(stage::require_taken(kernel, problem(ElementType::fp16, 1, 1, 64, 64, 128, Mask::none())));
  }
}

TEST_CASE("no barrier can be left out unnoticed") {
  if (!gpu::device().checked) return;
  // Three tiles of keys or more: a barrier at the loop's start guards what the tile before has read.
  const Problem p = problem(ElementType::bf16, 1, 1, 66, 200, 64, Mask::none());
  for (const stage::ForwardKernel& kernel : tensor_core_kernels()) {
    gpu::reset_synchronisations_seen();
    run(kernel, p);
    const std::vector<gpu::SourceLine> lines = gpu::synchronisations_seen();
    CHECK(lines.size() == 2);
    for (const gpu::SourceLine& line : lines) {
      gpu::EmulatorOptions options = gpu::emulator_options();
      options.without = {line};
      const gpu::EmulatorOptionsScope without(options);
      INFO(kernel.name << " without " << line.file << ":" << line.line);
      std::string report;
      try {
        run(kernel, p);
      } catch (const gpu::Error& error) {
        report = error.what();
      }
      CHECK_THAT(report, ContainsText(".cuh:"));
      CHECK(report.find("language.hpp") == std::string::npos);
    }
  }
}
