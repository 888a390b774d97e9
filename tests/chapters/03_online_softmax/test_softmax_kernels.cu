/// \file
/// The three softmax kernels: right, repeatable, byte for byte what their models say, and in need of every barrier.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "chapters/03_online_softmax/softmax.cuh"
#include "common/gpu/buffer.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"

namespace {

using kernel::SoftmaxState;
using online_softmax::SoftmaxArgs;
using online_softmax::SoftmaxKernel;

struct Outcome {
  std::vector<float> y;
  std::vector<SoftmaxState> states;
};

Outcome run(const SoftmaxKernel& kernel, const std::vector<float>& x, std::int64_t rows, int cols) {
  const gpu::DeviceBuffer<float> x_gmem(x, "x");
  gpu::DeviceBuffer<float> y_gmem(x.size(), "y");
  gpu::DeviceBuffer<SoftmaxState> state_gmem(static_cast<std::size_t>(rows), "states");
  gpu::DeviceBuffer<SoftmaxState> workspace(kernel.workspace_states(rows, cols), "partial states");
  kernel.run(SoftmaxArgs{x_gmem.data(), y_gmem.data(), state_gmem.data(), rows, cols}, workspace.data());
  gpu::synchronize();
  return {y_gmem.download(), state_gmem.download()};
}

std::vector<float> normal_matrix(std::int64_t rows, int cols, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.3f, 3.0f);
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  for (float& value : x) value = normal(random);
  return x;
}

/// Against float64, with room for the rounding of a sum of a few thousand terms. Rows of −∞ must give zeros.
void check_outcome(const std::vector<float>& x, const Outcome& outcome, std::int64_t rows, int cols) {
  int wrong = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* x_row = x.data() + row * cols;
    double m = -INFINITY, l = 0;
    for (int i = 0; i < cols; ++i) m = std::max(m, double(x_row[i]));
    for (int i = 0; i < cols; ++i) l += m == -INFINITY ? 0 : std::exp(x_row[i] - m);
    const SoftmaxState& state = outcome.states[row];
    wrong += !(state.m == m && std::abs(state.l - l) <= 1e-5 * l);
    for (int i = 0; i < cols; ++i) {
      const double exact = l == 0 ? 0 : std::exp(x_row[i] - m) / l;
      const double error = std::abs(outcome.y[row * cols + i] - exact);
      wrong += !(error <= 1e-5 * exact + 1e-37);  // below that, fp32 has fewer digits
    }
  }
  CHECK(wrong == 0);
}

bool equal_bits(const Outcome& a, const Outcome& b) {
  return std::equal(a.y.begin(), a.y.end(), b.y.begin(), b.y.end()) &&
         std::equal(a.states.begin(), a.states.end(), b.states.begin(), b.states.end(),
                    [](const SoftmaxState& s, const SoftmaxState& t) { return s.m == t.m && s.l == t.l; });
}

}  // namespace

TEST_CASE("softmax kernels over shapes, with counted bytes") {
  for (const SoftmaxKernel& kernel : online_softmax::softmax_kernels()) {
    for (const int cols : {0, 1, 31, 33, 128, 1000, 1024, 1025, 5000}) {
      for (const std::int64_t rows : {1, 3}) {
        INFO(kernel.name << ", " << rows << " rows of " << cols);
        const std::vector<float> x = normal_matrix(rows, cols);
        gpu::reset_counts();
        check_outcome(x, run(kernel, x, rows, cols), rows, cols);
        if (const auto counts = gpu::counts()) {
          CHECK(double(counts->global_loaded) == kernel.traffic(rows, cols).loaded);
          CHECK(double(counts->global_stored) == kernel.traffic(rows, cols).stored);
        }
      }
    }
    const Outcome nothing = run(kernel, {}, 0, 7);
    CHECK(nothing.y.empty());
  }
}

TEST_CASE("the online kernel moves a quarter fewer bytes than the two passes") {
  const auto kernels = online_softmax::softmax_kernels();
  const double x_bytes = 4.0 * 64 * 4096;
  CHECK(kernels[0].traffic(64, 4096).loaded == 3 * x_bytes);
  CHECK(kernels[1].traffic(64, 4096).loaded == 2 * x_bytes);
}

TEST_CASE("softmax kernels on hard rows", "[C01][C08]") {
  constexpr int kCols = 1500, kRows = 7;
  std::vector<float> x(kRows * kCols);
  const auto fill = [&x](int row, auto value) {
    for (int i = 0; i < kCols; ++i) x[row * kCols + i] = value(i);
  };
  fill(0, [](int) { return -INFINITY; });
  fill(1, [](int) { return 0.25f; });
  fill(2, [](int i) { return 0.125f * static_cast<float>(i); });
  fill(3, [](int i) { return -0.125f * static_cast<float>(i); });
  fill(4, [](int i) { return i < 1100 ? -INFINITY : 1.0f; });  // the first block of the tree sees nothing
  fill(5, [](int) { return -200000.0f; });
  fill(6, [](int i) { return i % 2 ? 1e30f : -1e30f; });
  for (const SoftmaxKernel& kernel : online_softmax::softmax_kernels()) {
    INFO(kernel.name);
    const Outcome outcome = run(kernel, x, kRows, kCols);
    check_outcome(x, outcome, kRows, kCols);
    CHECK(outcome.states[0].m == -INFINITY);
    CHECK(outcome.states[0].l == 0);
    CHECK(outcome.states[1].l == kCols);
  }
}

TEST_CASE("more rows than a grid has room for along y", "[C12]") {
  if (gpu::device().checked) return;  // the same launch, many times slower
  constexpr std::int64_t kRows = 65537;
  const std::vector<float> x = normal_matrix(kRows, 3);
  for (const SoftmaxKernel& kernel : online_softmax::softmax_kernels<32>()) {
    if (kernel.name == "two_pass") continue;  // launched just as online is
    INFO(kernel.name);
    check_outcome(x, run(kernel, x, kRows, 3), kRows, 3);
  }
}

TEST_CASE("softmax kernels give the same bits under every schedule") {
  const std::vector<float> x = normal_matrix(2, 1100);
  for (const SoftmaxKernel& kernel : online_softmax::softmax_kernels()) {
    INFO(kernel.name);
    const Outcome first = run(kernel, x, 2, 1100);
    CHECK(equal_bits(first, run(kernel, x, 2, 1100)));
    if (!gpu::device().emulated) continue;
    for (const std::uint64_t seed : {1, 2, 3}) {
      gpu::EmulatorOptions options = gpu::emulator_options();
      options.schedule_seed = seed;
      const gpu::EmulatorOptionsScope scope(options);
      CHECK(equal_bits(first, run(kernel, x, 2, 1100)));
    }
  }
}

TEST_CASE("no barrier can be left out unnoticed") {
  if (!gpu::device().checked) return;
  const std::vector<float> x = normal_matrix(2, 1100);
  for (const SoftmaxKernel& kernel : online_softmax::softmax_kernels()) {
    gpu::reset_synchronisations_seen();
    run(kernel, x, 2, 1100);
    const std::vector<gpu::SourceLine> lines = gpu::synchronisations_seen();
    REQUIRE(lines.size() == (kernel.name == "two_pass" ? 3 : 2));
    for (const gpu::SourceLine& line : lines) {
      gpu::EmulatorOptions options = gpu::emulator_options();
      options.without = {line};
      const gpu::EmulatorOptionsScope scope(options);
      INFO(kernel.name << " without " << line.file << ":" << line.line);
      CHECK_THROWS_AS(run(kernel, x, 2, 1100), gpu::Error);
    }
  }
}
