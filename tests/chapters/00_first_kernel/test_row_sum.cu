// The first kernel: right sums for every shape, exact bytes, and a barrier that is needed at each line.

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "chapters/00_first_kernel/row_sum.cuh"
#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"

namespace {

using namespace first_kernel;

/// A whole number from −8 to 23, so that every order of additions gives the same, exact sum.
float element(std::int64_t i) {
  return static_cast<float>((static_cast<std::uint64_t>(i) * 2654435761ULL >> 9) % 32) - 8;
}

std::vector<float> matrix(std::int64_t rows, std::int64_t cols) {
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = element(static_cast<std::int64_t>(i));
  return x;
}

std::vector<float> sums_on_device(const std::vector<float>& x, std::int64_t rows, std::int64_t cols,
                                  int threads = kRowSumThreads) {
  const gpu::DeviceBuffer<float> x_gmem(x, "x");
  gpu::DeviceBuffer<float> sum_gmem(static_cast<std::size_t>(rows), "sum");
  launch_row_sum(x_gmem.data(), sum_gmem.data(), rows, cols, threads);
  return sum_gmem.download();
}

std::vector<float> sums_on_host(const std::vector<float>& x, std::int64_t rows, std::int64_t cols) {
  std::vector<float> sums;
  for (std::int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (std::int64_t col = 0; col < cols; ++col) sum += double{x[static_cast<std::size_t>(row * cols + col)]};
    sums.push_back(static_cast<float>(sum));
  }
  return sums;
}

}  // namespace

TEST_CASE("row_sum adds up rows of any length") {
  const std::int64_t rows = GENERATE(0, 1, 3, 33);
  const std::int64_t cols = GENERATE(0, 1, 31, 32, 33, 127, 128, 129, 1000);
  CAPTURE(rows, cols);
  const auto x = matrix(rows, cols);
  CHECK(sums_on_device(x, rows, cols) == sums_on_host(x, rows, cols));
}

TEST_CASE("row_sum takes every power of two up to 256 as block size") {
  const int threads = GENERATE(1, 2, 32, 64, 256);
  CAPTURE(threads);
  const auto x = matrix(2, 300);
  CHECK(sums_on_device(x, 2, 300, threads) == sums_on_host(x, 2, 300));
}

TEST_CASE("row_sum takes more rows than grid.y could count") {
  const std::int64_t rows = 65535 + 2;
  const auto x = matrix(rows, 2);
  CHECK(sums_on_device(x, rows, 2, 2) == sums_on_host(x, rows, 2));
}

TEST_CASE("row_sum refuses what it cannot launch") {
  CHECK_THROWS_AS(launch_row_sum(nullptr, nullptr, -1, 1), std::invalid_argument);
  CHECK_THROWS_AS(launch_row_sum(nullptr, nullptr, 1, -1), std::invalid_argument);
  CHECK_THROWS_WITH(launch_row_sum(nullptr, nullptr, 1, 1, 96), ContainsText("power of two"));
  CHECK_THROWS_WITH(launch_row_sum(nullptr, nullptr, 1, 1, 512), ContainsText("256"));
  CHECK_THROWS_WITH(launch_row_sum(nullptr, nullptr, std::int64_t{1} << 31, 1), ContainsText("2147483647"));
}

TEST_CASE("row_sum: a NaN or an infinity stays in its row") {
  auto x = matrix(3, 200);
  x[200 + 137] = std::numeric_limits<float>::quiet_NaN();
  x[400 + 5] = std::numeric_limits<float>::infinity();
  const auto sums = sums_on_device(x, 3, 200);
  CHECK(sums[0] == sums_on_host(x, 3, 200)[0]);
  CHECK(std::isnan(sums[1]));
  CHECK(sums[2] == std::numeric_limits<float>::infinity());
}

TEST_CASE("row_sum: two runs are equal bit for bit, in any order of threads") {
  std::vector<float> x;
  for (int i = 0; i < 5 * 777; ++i) x.push_back(std::sin(static_cast<float>(i)));  // sums that depend on the order
  const auto first = sums_on_device(x, 5, 777);
  CHECK(sums_on_device(x, 5, 777) == first);
  if (!gpu::device().emulated) return;

  for (const std::uint64_t seed : {1, 2, 3}) {
    gpu::EmulatorOptions options = gpu::emulator_options();
    options.schedule_seed = seed;
    const gpu::EmulatorOptionsScope scope(options);
    CAPTURE(seed);
    CHECK(sums_on_device(x, 5, 777) == first);
  }
}

TEST_CASE("row_sum: the bytes counted are the bytes of the model") {
  if (!gpu::counts()) return;  // only the checking build of the emulator counts
  const std::int64_t rows = GENERATE(1, 7);
  const std::int64_t cols = GENERATE(0, 1, 128, 333);
  CAPTURE(rows, cols);
  const auto x = matrix(rows, cols);
  gpu::reset_counts();
  sums_on_device(x, rows, cols);
  const gpu::Counts counts = gpu::counts().value();
  const attention::Traffic traffic = row_sum_traffic(rows, cols);
  CHECK(static_cast<double>(counts.global_loaded) == traffic.loaded);
  CHECK(static_cast<double>(counts.global_stored) == traffic.stored);
  CHECK(counts.launches == 1);
  CHECK(counts.barriers == static_cast<std::uint64_t>(rows) * 8);  // before the tree, and after each of 7 levels
}

TEST_CASE("row_sum: the checking build catches each barrier that is left out") {
  if (!gpu::device().checked) return;
  const auto x = matrix(2, 300);
  gpu::reset_synchronisations_seen();
  sums_on_device(x, 2, 300);
  const auto barriers = gpu::synchronisations_seen();
  REQUIRE(!barriers.empty());

  for (const gpu::SourceLine& barrier : barriers) {
    CAPTURE(barrier.file, barrier.line);
    CHECK(barrier.file.ends_with("row_sum.cuh"));
    gpu::EmulatorOptions options = gpu::emulator_options();
    options.without.push_back(barrier);
    const gpu::EmulatorOptionsScope without(options);
    CHECK_THROWS_WITH(sums_on_device(x, 2, 300), ContainsText("row_sum.cuh"));
  }
  CHECK(sums_on_device(x, 2, 300) == sums_on_host(x, 2, 300));  // a fault does not spoil the next launch
}

TEST_CASE("row_sum: a sum is as exact as its depth allows") {
  CHECK(row_sum_depth(0) == 7);
  CHECK(row_sum_depth(128) == 8);
  CHECK(row_sum_depth(129) == 9);
  CHECK(row_sum_depth(1000, 1) == 1000);
}
