// What a hostile reader wrote against the emulator: each of these once hung, went unseen, or ended the program. CMake
// leaves this file out for a GPU, where some of them would hang.

#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/gpu/atomic.cuh"
#include "common/gpu/barrier.cuh"
#include "common/gpu/warp.cuh"
#include "tests/common/gpu/launch_report.cuh"

namespace {

using namespace gpu_tests;

__global__ void barriers_without_end() {
  for (;;) __syncthreads();
}
__global__ void warp_barriers_without_end() {
  for (;;) __syncwarp();
}
__global__ void atomics_without_end(unsigned* x_gmem) {
  for (;;) atomicAdd(x_gmem, 1u);
}
__global__ void shuffles_without_end(int* out_gmem) {
  int v = 1;
  while (v >= 0) v = __shfl_xor_sync(gpu::kFullWarp, v, 1);
  out_gmem[threadIdx.x] = v;
}

constexpr int kBytes = 1000;
constexpr int kCopy = __LINE__ + 2;
__global__ void copy_bytes(unsigned char* to_gmem, const unsigned char* from_gmem, std::size_t bytes) {
  std::memcpy(to_gmem, from_gmem, bytes);
}
__global__ void move_bytes(unsigned char* to_gmem, const unsigned char* from_gmem, std::size_t bytes) {
  std::memmove(to_gmem, from_gmem, bytes);
}
__global__ void set_bytes(unsigned char* to_gmem, const unsigned char*, std::size_t bytes) {
  std::memset(to_gmem, 7, bytes);
}

constexpr int kFreedWrite = __LINE__ + 1;
__global__ void write_one(float* out_gmem) { out_gmem[threadIdx.x] = 1; }

__global__ void stop(int how) {
  if (threadIdx.x == 3) {
    if (how == 0) std::abort();
    __trap();
  }
  __syncthreads();
}

float g_host_values[32];

}  // namespace

TEST_CASE("fault: a kernel that synchronises for ever", "[fault]") {
  gpu::EmulatorOptions options;
  options.endless_seconds = 0.3;
  const gpu::EmulatorOptionsScope scope(options);
  gpu::DeviceBuffer<unsigned> word(std::vector<unsigned>{0}, "word");
  gpu::DeviceBuffer<int> out_gmem(32, "out");
  for (const std::string& report :
       {fault_of([] { gpu::launch(barriers_without_end, {.grid = 1, .block = 64}); }),
        fault_of([] { gpu::launch(warp_barriers_without_end, {.grid = 3, .block = 32}); }),
        fault_of([&] { gpu::launch(atomics_without_end, {.grid = 1, .block = 32}, word.data()); }),
        fault_of([&] { gpu::launch(shuffles_without_end, {.grid = 1, .block = 32}, out_gmem.data()); })}) {
    CHECK_THAT(report, ContainsText("no thread has exited for 0.3 s"));
    CHECK_THAT(report, ContainsText("emulator_only_hostile.cu:"));
  }
}

TEST_CASE("checks: memcpy, memmove and memset are seen as any access", "[checks]") {
  if (!gpu::device().checked) return;
  gpu::DeviceBuffer<unsigned char> from(std::vector<unsigned char>(kBytes, 1), "from");
  const auto kernel = GENERATE(copy_bytes, move_bytes, set_bytes);
  {
    gpu::DeviceBuffer<unsigned char> to(kBytes, "to");
    gpu::reset_counts();
    gpu::launch(kernel, {.grid = 1, .block = 1}, to.data(), from.data(), std::size_t{kBytes});
    CHECK(gpu::counts()->global_loaded == (kernel == set_bytes ? 0u : 1000u));
    CHECK(gpu::counts()->global_stored == 1000);
  }
  gpu::DeviceBuffer<unsigned char> to(kBytes, "to");
  std::string report =
      fault_of([&] { gpu::launch(kernel, {.grid = 1, .block = 32}, to.data(), from.data(), std::size_t{kBytes}); });
  CHECK_THAT(report, ContainsText("race on device memory"));
  gpu::DeviceBuffer<unsigned char> small(kBytes - 1, "small");
  report =
      fault_of([&] { gpu::launch(kernel, {.grid = 1, .block = 1}, small.data(), from.data(), std::size_t{kBytes}); });
  CHECK_THAT(report, ContainsText("out of bounds"));
  CHECK_THAT(report, ContainsText("emulator_only_hostile.cu:"));
  if (kernel != set_bytes) {
    gpu::DeviceBuffer<unsigned char> unwritten(kBytes, "unwritten");
    report =
        fault_of([&] { gpu::launch(kernel, {.grid = 1, .block = 1}, to.data(), unwritten.data(), std::size_t{8}); });
    CHECK_THAT(report, ContainsText("uninitialised"));
    if (kernel == copy_bytes) CHECK(names(report, line_of(__FILE__, kCopy)));
  }
}

TEST_CASE("fault: a freed buffer, its place not yet taken or taken again", "[fault]") {
  auto old = std::make_unique<gpu::DeviceBuffer<float>>(32, "old");
  float* const pointer = old->data();
  old.reset();
  const gpu::DeviceBuffer<float> next(32, "next");
  const std::string report = fault_of([&] { gpu::launch(write_one, {.grid = 1, .block = 32}, pointer); });
  CHECK_THAT(report, ContainsText("the freed buffer 'old'"));
  CHECK(names(report, line_of(__FILE__, kFreedWrite)));
  CHECK_THROWS_AS(gpu::fill_bytes(pointer, 0, 4), gpu::Error);
}

TEST_CASE("buffers come and go, more than are remembered", "[fault]") {
  for (int i = 0; i < 1000; ++i) {
    gpu::DeviceBuffer<float> buffer(32, "buffer");
    if (i % 100 == 0) gpu::launch(write_one, {.grid = 1, .block = 32}, buffer.data());
  }
  CHECK(gpu::memory_in_use() == 0);
}

TEST_CASE("checks: a variable of the host is no device memory", "[checks]") {
  if (!gpu::device().checked) return;
  const std::string report = fault_of([] { gpu::launch(write_one, {.grid = 1, .block = 32}, g_host_values); });
  CHECK_THAT(report, ContainsText("foreign memory"));
}

TEST_CASE("fault: a kernel that stops itself", "[fault]") {
  const int how = GENERATE(0, 1);
  const std::string report = fault_of([&] { gpu::launch(stop, {.grid = 1, .block = 32}, how); });
  CHECK_THAT(report, ContainsText("the kernel stopped itself"));
  CHECK_THAT(report, ContainsText("thread 3]"));
}
