#pragma once
/// \file
/// What the tests of the machine share: launches that have to fail, and the lines that their reports name.

#include <string>
#include <vector>

#include "common/gpu/barrier.cuh"
#include "common/gpu/buffer.hpp"
#include "common/gpu/emulation.hpp"
#include "common/gpu/launch.cuh"
#include "common/gpu/warp.cuh"
#include "tests/catch.hpp"

namespace gpu_tests {

template <int kThreads>
struct OrdinaryShared {
  int value[kThreads];
};

/// Uses what a fault could have left behind: a barrier, a shuffle, shared and device memory.
template <int kThreads>
__global__ void ordinary(int* out_gmem) {
  auto& shared = gpu::shared_memory<OrdinaryShared<kThreads>>();
  const int thread = static_cast<int>(threadIdx.x);
  shared.value[thread] = __shfl_xor_sync(gpu::kFullWarp, thread, 1);
  __syncthreads();
  out_gmem[static_cast<int>(blockIdx.x) * kThreads + thread] = shared.value[kThreads - 1 - thread];
}

/// Whether an ordinary launch gives what it should.
inline bool ordinary_launch_works() {
  gpu::DeviceBuffer<int> out_gmem(4 * 64, "out");
  gpu::launch<OrdinaryShared<64>>(ordinary<64>, {.grid = 4, .block = 64}, out_gmem.data());
  const std::vector<int> out = out_gmem.download();
  for (int i = 0; i < 4 * 64; ++i) {
    if (out[static_cast<std::size_t>(i)] != ((63 - i % 64) ^ 1)) return false;
  }
  return true;
}

/// What the launch reports as gpu::Error; empty if it reports nothing.
template <class Launch>
std::string report_of(Launch&& launch) {
  try {
    launch();
    gpu::synchronize();
  } catch (const gpu::Error& error) {
    return error.what();
  }
  return {};
}

/// The report of a launch that has to fail. The next launch has to work.
template <class Launch>
std::string fault_of(Launch&& launch) {
  const std::string report = report_of(launch);
  CHECK(report != "");
  CHECK(report_of([] { CHECK(ordinary_launch_works()); }) == "");
  return report;
}

/// How reports spell a line of `file`, the __FILE__ of a test: "test_faults.cu:41".
inline std::string line_of(const std::string& file, int line) {
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(line);
}

/// Whether the report names that line. ("test_faults.cu:41" is not in "test_faults.cu:412".)
inline bool names(const std::string& report, const std::string& line) {
  for (auto at = report.find(line); at != std::string::npos; at = report.find(line, at + 1)) {
    const auto next = at + line.size();
    const bool whole = at == 0 || report[at - 1] == '/' || report[at - 1] == ' ' || report[at - 1] == '\n';
    if (whole && (next == report.size() || report[next] < '0' || report[next] > '9')) return true;
  }
  return false;
}

}  // namespace gpu_tests
