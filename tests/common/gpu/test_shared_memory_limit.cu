// Shared memory a block may have: the emulator refuses what another GPU would refuse.

#include "tests/common/gpu/launch_report.cuh"

namespace {

using namespace gpu_tests;

struct Large {
  float value[131072 / sizeof(float)];
};

__global__ void use_both_ends(float* out_gmem) {
  auto& shared = gpu::shared_memory<Large>();
  float* ends[2] = {&shared.value[0], &shared.value[131072 / sizeof(float) - 1]};
  if (threadIdx.x < 2) *ends[threadIdx.x] = 1.0f + static_cast<float>(threadIdx.x);
  __syncthreads();
  if (threadIdx.x < 2) out_gmem[threadIdx.x] = *ends[1 - threadIdx.x];
}

void launch_large() {
  gpu::DeviceBuffer<float> out_gmem(2, "out");
  gpu::launch<Large>(use_both_ends, {.grid = 1, .block = 32}, out_gmem.data());
  CHECK(out_gmem.download() == std::vector<float>{2, 1});
}

gpu::EmulatorOptions with_limit(std::size_t bytes) {
  gpu::EmulatorOptions options;
  options.shared_memory_limit = bytes;
  return options;
}

}  // namespace

TEST_CASE("131072 bytes of shared memory are refused where a GPU has fewer, and used where it has more", "[C44]") {
  if (gpu::shared_memory_limit() >= sizeof(Large)) launch_large();
  if (!gpu::device().emulated) return;
  for (const std::size_t limit : {49152, 101376, 131071}) {
    CAPTURE(limit);
    const gpu::EmulatorOptionsScope scope(with_limit(limit));
    CHECK(gpu::shared_memory_limit() == limit);
    const std::string report = fault_of(launch_large);
    CHECK_THAT(report, ContainsText("needs 131072 bytes of shared memory"));
    CHECK_THAT(report, ContainsText("allows " + std::to_string(limit)));
  }
  for (const std::size_t limit : {131072, 166912, 232448}) {
    CAPTURE(limit);
    const gpu::EmulatorOptionsScope scope(with_limit(limit));
    CHECK(report_of(launch_large) == "");
  }
}
