/// \file
/// The three kernels beyond the forward suite: exact bytes, the refusal of what does not fit, needed barriers.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "chapters/02_naive_gpu/naive_attention.cuh"
#include "common/attention/inputs.hpp"
#include "common/gpu/buffer.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/forward_run.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::Mask;
using attention::Problem;
using suite::problem;

struct Outcome {
  std::vector<float> o, lse;
};

/// Runs the three kernels once on normal inputs, or on those given.
Outcome run(const Problem& p, const attention::Inputs& inputs) {
  const stage::ForwardKernel kernel = naive_gpu::three_kernels();
  kernel.require(p);
  const gpu::DeviceBuffer<float> q(inputs.q, "Q"), k(inputs.k, "K"), v(inputs.v, "V");
  gpu::DeviceBuffer<float> o(static_cast<std::size_t>(p.elements_o()), "O");
  gpu::DeviceBuffer<float> lse(static_cast<std::size_t>(p.elements_lse()), "LSE");
  gpu::DeviceBuffer<float> workspace(kernel.workspace_bytes(p) / sizeof(float), "S, P");
  kernel.run(attention::make_forward_args<float>(p, q.data(), k.data(), v.data(), o.data(), lse.data()),
             workspace.data());
  gpu::synchronize();
  return {o.download(), lse.download()};
}

Outcome run(const Problem& p) { return run(p, attention::make_inputs(p, attention::InputKind::normal, 1)); }

}  // namespace

TEST_CASE("counted bytes equal predicted bytes") {
  if (!gpu::device().checked) return;
  const Problem problems[] = {
      problem(1, 1, 1, 1, 32, Mask::none()),         problem(1, 1, 33, 65, 32, Mask::none()),
      problem(1, 1, 33, 65, 64, Mask::causal()),     problem(4, 2, 17, 40, 32, Mask::window(7, 0)),
      problem(6, 1, 40, 17, 32, Mask::causal()),     problem(2, 2, 20, 129, 128, Mask::window(30, 5)),
      problem(1, 1, 50, 20, 32, Mask::window(3, 2)), problem(1, 1, 260, 40, 32, Mask::causal()),
      problem(2, 1, 5, 0, 32, Mask::none()),         problem(2, 1, 0, 5, 32, Mask::none()),
  };
  for (Problem p : problems) {
    for (const int batch : {1, 3}) {
      p.batch = batch;
      INFO(p.describe());
      gpu::reset_counts();
      run(p);
      const attention::Traffic traffic = naive_gpu::three_kernels().traffic(p);
      CHECK(double(gpu::counts()->global_loaded) == traffic.loaded);
      CHECK(double(gpu::counts()->global_stored) == traffic.stored);
    }
  }
}

TEST_CASE("a matrix that fits no device is refused with its bytes") {
  // 64 heads: S and P of 131072 x 131072 take 2 * 64 * 4 * 2^34 bytes.
  const Problem p = problem(64, 64, 1 << 17, 1 << 17, 64, Mask::causal());
  const stage::ForwardKernel kernel = naive_gpu::three_kernels();
  CHECK(kernel.workspace_bytes(p) == std::size_t{512} << 34);
  CHECK_THROWS_AS(stage::admit(kernel, p), stage::Refused);
  CHECK_THROWS_WITH(stage::admit(kernel, p), ContainsText("three_kernels") && ContainsText("workspace 8.80 TB"));
}

TEST_CASE("the bytes of S and P do not wrap") {
  const Problem longest = problem(64, 64, attention::kMaxSeqlen, attention::kMaxSeqlen, 64, Mask::none());
  CHECK(naive_gpu::three_kernels_workspace(longest) == std::numeric_limits<std::size_t>::max());
  const Problem p = problem(1, 1, 1 << 16, 1 << 16, 64, Mask::none());
  CHECK(naive_gpu::three_kernels_workspace(p) == std::size_t{1} << 35);
}

TEST_CASE("offsets into S and P pass 2^31 and 2^32", "[C10]") {
  using naive_gpu::row_index;
  using naive_gpu::score_offset;
  constexpr int kLength = 16384;
  constexpr int kLast = kLength - 1;
  const auto last_score = [](int heads) constexpr {
    return score_offset(row_index(heads - 1, kLength, kLast), kLength, kLast);
  };
  // 8 heads have 2^31 scores: the last one has the largest offset that int32 holds. The next head begins past it.
  static_assert(last_score(8) == std::numeric_limits<std::int32_t>::max());
  static_assert(score_offset(row_index(8, kLength, 0), kLength, 0) == std::int64_t{1} << 31);
  static_assert(last_score(16) == std::numeric_limits<std::uint32_t>::max());
  static_assert(score_offset(row_index(16, kLength, 0), kLength, 0) == std::int64_t{1} << 32);
  // No power of two: 3 batch entries of 5 heads, 100003 queries and keys.
  static_assert(score_offset(row_index(14, 100003, 100002), 100003, 100002) == 15 * 10000600009 - 1);

  const auto workspace = [](int heads) {
    return naive_gpu::three_kernels_workspace(problem(heads, heads, kLength, kLength, 64, Mask::none()));
  };
  CHECK(workspace(8) == 2 * sizeof(float) * (std::size_t{1} << 31));
  CHECK(workspace(16) == 2 * sizeof(float) * (std::size_t{1} << 32));
  Problem batch = problem(5, 5, 100003, 100003, 64, Mask::none());
  batch.batch = 3;
  CHECK(naive_gpu::three_kernels_workspace(batch) == 2 * sizeof(float) * 15 * std::size_t{10000600009});
}

TEST_CASE("a head_dim that the kernels are not compiled for is refused") {
  CHECK_THROWS_AS(naive_gpu::three_kernels().require(problem(1, 1, 4, 4, 48, Mask::none())), stage::Refused);
}

TEST_CASE("rows that see nothing give zeros, also where V holds NaN", "[C01]") {
  const Problem p = problem(1, 1, 46, 32, 32, Mask::causal());
  attention::Inputs inputs = attention::make_inputs(p, attention::InputKind::normal, 1);
  for (int c = 0; c < p.head_dim; ++c) inputs.v[31 * p.head_dim + c] = NAN;  // only the last query sees the last key
  const Outcome outcome = run(p, inputs);
  for (int query = 0; query < 45; ++query) {
    INFO("query " << query);
    CHECK((outcome.lse[query] == -INFINITY) == (query < 14));
    for (int c = 0; c < p.head_dim; ++c) {
      const float o = outcome.o[query * p.head_dim + c];
      REQUIRE(std::isfinite(o));
      REQUIRE((o == 0) == (query < 14));
    }
  }
  CHECK(std::isnan(outcome.o[45 * p.head_dim]));
}

TEST_CASE("no barrier can be left out unnoticed") {
  if (!gpu::device().checked) return;
  const Problem p = problem(2, 1, 9, 150, 32, Mask::causal());
  gpu::reset_synchronisations_seen();
  run(p);
  const std::vector<gpu::SourceLine> lines = gpu::synchronisations_seen();
  REQUIRE(lines.size() == 3);

  for (const gpu::SourceLine& line : lines) {
    gpu::EmulatorOptions options = gpu::emulator_options();
    options.without = {line};
    const gpu::EmulatorOptionsScope scope(options);
    INFO(line.file << ":" << line.line);
    CHECK_THROWS_AS(run(p), gpu::Error);
  }
  CHECK_NOTHROW(run(p));
}
