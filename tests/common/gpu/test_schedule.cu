// The emulator's schedule, its seeds, and synchronisations that are switched off by their line.

#include <algorithm>
#include <cstdint>
#include <set>

#include "common/gpu/atomic.cuh"
#include "tests/common/gpu/launch_report.cuh"

namespace {

using namespace gpu_tests;

/// The order in which the threads of all blocks come by.
__global__ void sign_in(unsigned* counter_gmem, unsigned* order_gmem) {
  order_gmem[atomicAdd(counter_gmem, 1u)] = blockIdx.x * blockDim.x + threadIdx.x;
}

std::vector<unsigned> order_of(std::uint64_t seed, int blocks, int threads, int workers = 1) {
  gpu::EmulatorOptions options;
  options.schedule_seed = seed;
  options.workers = workers;
  const gpu::EmulatorOptionsScope scope(options);
  gpu::DeviceBuffer<unsigned> counter_gmem(std::vector<unsigned>{0}, "counter");
  gpu::DeviceBuffer<unsigned> order_gmem(static_cast<std::size_t>(blocks * threads), "order");
  gpu::launch(sign_in, {.grid = blocks, .block = threads}, counter_gmem.data(), order_gmem.data());
  return order_gmem.download();
}

struct Words {
  int value[64];
};

constexpr int kFirstBarrier = __LINE__ + 4, kSecondBarrier = __LINE__ + 6, kWarpBarrier = __LINE__ + 8;
__global__ void three_barriers(int* out_gmem, bool third) {
  auto& shared = gpu::shared_memory<Words>();
  shared.value[threadIdx.x] = 1;
  __syncthreads();
  const int across = shared.value[63 - threadIdx.x];
  __syncthreads();
  shared.value[threadIdx.x] = across + 1;
  if (third) __syncwarp();
  out_gmem[threadIdx.x] = third ? shared.value[threadIdx.x ^ 1] : across + 1;
}

std::string run_three_barriers(bool third) {
  gpu::DeviceBuffer<int> out_gmem(64, "out");
  return report_of([&] {
    gpu::launch<Words>(three_barriers, {.grid = 1, .block = 64}, out_gmem.data(), third);
    if (out_gmem.download() != std::vector<int>(64, 2)) throw gpu::Error("a wrong result");
  });
}

gpu::EmulatorOptions without(const std::string& line, std::uint64_t seed = 0) {
  gpu::EmulatorOptions options;
  options.schedule_seed = seed;
  options.without = {gpu::SourceLine::parse(line)};
  return options;
}

}  // namespace

TEST_CASE("seed 0 is round robin, each time", "[schedule]") {
  if (!gpu::device().emulated) return;
  const auto order = order_of(0, 3, 64);
  CHECK(std::is_sorted(order.begin(), order.end()));
  CHECK(order_of(0, 3, 64) == order);
}

TEST_CASE("a seed fixes the order, another seed changes it", "[schedule]") {
  if (!gpu::device().emulated) return;
  std::set<std::vector<unsigned>> orders;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    const auto order = order_of(seed, 5, 64);
    CHECK(order_of(seed, 5, 64) == order);
    orders.insert(order);
    auto sorted = order;
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == order_of(0, 5, 64));  // everybody came by once
  }
  CHECK(orders.size() == 10);
}

TEST_CASE("a seed changes the order of warps, of lanes and of blocks", "[schedule]") {
  if (!gpu::device().emulated) return;
  std::set<unsigned> first_warps, first_lanes, first_blocks;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto order = order_of(seed, 1, 128);
    first_warps.insert(order[0] / 32);
    first_lanes.insert(order[0] % 32);
    first_blocks.insert(order_of(seed, 7, 1)[0]);
  }
  CHECK(first_warps.size() > 1);
  CHECK(first_lanes.size() > 1);
  CHECK(first_blocks.size() > 1);
}

TEST_CASE("one block runs in the same order on any number of workers", "[schedule]") {
  if (!gpu::device().emulated) return;
  CHECK(order_of(3, 1, 256, 2) == order_of(3, 1, 256, 1));
}

TEST_CASE("FILE:LINE is taken apart, anything else refused", "[schedule]") {
  const gpu::SourceLine line = gpu::SourceLine::parse("chapters/00_first_kernel/row_sum.cuh:41");
  CHECK(line.file == "chapters/00_first_kernel/row_sum.cuh");
  CHECK(line.line == 41);
  CHECK(gpu::SourceLine::parse("C:/a.cuh:7").file == "C:/a.cuh");
  CHECK(gpu::SourceLine::parse("a.cuh:4294967295").line == 4294967295u);
  for (const std::string text :
       {"", "row_sum.cuh", "row_sum.cuh:", ":41", "row_sum.cuh:0", "row_sum.cuh:-1", "row_sum.cuh:4x", "row_sum.cuh: 4",
        "row_sum.cuh:4 ", "row_sum.cuh:+4", "row_sum.cuh:4294967296", "41"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(gpu::SourceLine::parse(text), gpu::Error);
    CHECK_THROWS_WITH(gpu::SourceLine::parse(text), ContainsText("'" + text + "'") && ContainsText("FILE:LINE"));
  }
}

TEST_CASE("the synchronisations seen are those that were passed", "[schedule]") {
  if (!gpu::device().emulated) return;
  const auto seen_lines = [] {
    std::vector<int> lines;
    for (const gpu::SourceLine& line : gpu::synchronisations_seen()) {
      CHECK(line.file.ends_with("gpu/test_schedule.cu"));
      lines.push_back(static_cast<int>(line.line));
    }
    return lines;
  };
  gpu::reset_synchronisations_seen();
  CHECK(gpu::synchronisations_seen().empty());
  order_of(0, 1, 32);
  CHECK(gpu::synchronisations_seen().empty());
  CHECK(run_three_barriers(false) == "");
  CHECK(seen_lines() == std::vector<int>{kFirstBarrier, kSecondBarrier});
  CHECK(run_three_barriers(true) == "");
  CHECK(seen_lines() == std::vector<int>{kFirstBarrier, kSecondBarrier, kWarpBarrier});
  gpu::reset_synchronisations_seen();
  CHECK(seen_lines().empty());
}

TEST_CASE("a synchronisation is switched off by its line", "[schedule]") {
  if (!gpu::device().emulated) return;
  const int line = GENERATE(kFirstBarrier, kSecondBarrier, kWarpBarrier);
  const std::uint64_t seed = GENERATE(0, 1, 2, 3);
  CAPTURE(line, seed);
  const gpu::EmulatorOptionsScope scope(without(line_of(__FILE__, line), seed));
  if (gpu::device().checked) {
    const std::string report = run_three_barriers(true);
    CAPTURE(report);
    CHECK_THAT(report, ContainsText("test_schedule.cu:"));
    CHECK((report.find("race on shared memory") != std::string::npos ||
           report.find("uninitialised") != std::string::npos));
  } else if (line == kFirstBarrier && seed == 0) {
    // Thread 0 runs first and reads the poison of a thread that has not written yet.
    CHECK(run_three_barriers(true) == "a wrong result");
  }
}

TEST_CASE("a line to switch off is matched by whole path components", "[schedule]") {
  if (!gpu::device().checked) return;
  const auto off = [](const std::string& file) {
    const gpu::EmulatorOptionsScope scope(without(file + ":" + std::to_string(kFirstBarrier)));
    return run_three_barriers(false) != "";
  };
  CHECK(off("test_schedule.cu"));
  CHECK(off("gpu/test_schedule.cu"));
  CHECK(off("common/gpu/test_schedule.cu"));
  CHECK(off("tests/common/gpu/test_schedule.cu"));
  CHECK(!off("schedule.cu"));
  CHECK(!off("_schedule.cu"));
  CHECK(!off("pu/test_schedule.cu"));
  CHECK(!off("other/test_schedule.cu"));
  CHECK(!off("test_schedule"));
  CHECK(!off("test_faults.cu"));
  const gpu::EmulatorOptionsScope scope(without("test_schedule.cu:" + std::to_string(kFirstBarrier + 1)));
  CHECK(run_three_barriers(false) == "");
}
