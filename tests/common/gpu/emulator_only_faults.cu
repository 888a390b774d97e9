// Faults that only the emulator can have, since CUDA does not compile them. CMake leaves this file out for a GPU.

#include <stdexcept>

#include "common/gpu/atomic.cuh"
#include "tests/common/gpu/launch_report.cuh"

namespace {

using namespace gpu_tests;

__global__ void throw_from_thread_3(bool standard) {
  if (threadIdx.x == 3) {
    if (standard) throw std::runtime_error("no such head");
    throw 42;
  }
  __syncthreads();
}

/// Counts the frames that were left in good order.
struct Counted {
  explicit Counted(int* c) : count(c) {}
  ~Counted() { ++*count; }
  int* count;
};
int g_unwound = 0;

__global__ void throw_while_others_wait() {
  const Counted counted(&g_unwound);
  if (threadIdx.x == 31) throw std::runtime_error("enough");
  __syncthreads();
}

/// A frame of 1 KB, and one more below it for each of `depth`.
__global__ void descend(int* out_gmem, int depth) {
  volatile char local[1024];
  local[depth] = static_cast<char>(depth);
  if (depth > 0) descend(out_gmem, depth - 1);
  if (local[depth] == 0) out_gmem[threadIdx.x] = depth;
}

/// One frame of 160 KB: its far end lies beyond the guard page, in memory of other threads.
__global__ void huge_locals(int* out_gmem, int first) {
  volatile int local[40 * 1024];
  local[first] = 1;
  for (int i = first; i < 40 * 1024; i += 256) local[i] = i;
  out_gmem[threadIdx.x] = local[first];
}

__global__ void launch_inside(int* out_gmem) {
  gpu::launch(throw_from_thread_3, {.grid = 1, .block = 32}, true);
  out_gmem[threadIdx.x] = 1;
}

}  // namespace

TEST_CASE("fault: an exception in a kernel", "[fault]") {
  std::string report = fault_of([] { gpu::launch(throw_from_thread_3, {.grid = 1, .block = 32}, true); });
  CHECK(report == "the kernel threw an exception: no such head [block (0,0,0) thread 3]");
  report = fault_of([] { gpu::launch(throw_from_thread_3, {.grid = 1, .block = 32}, false); });
  CHECK_THAT(report, ContainsText("the kernel threw an exception [block (0,0,0) thread 3]"));
}

TEST_CASE("after a fault the other threads' frames are unwound", "[fault]") {
  g_unwound = 0;
  gpu::EmulatorOptions options;
  options.workers = 1;
  const gpu::EmulatorOptionsScope scope(options);
  const std::string report = report_of([] { gpu::launch(throw_while_others_wait, {.grid = 1, .block = 32}); });
  CHECK_THAT(report, ContainsText("enough"));
  CHECK(g_unwound == 32);
}

TEST_CASE("fault: a stack overflow", "[fault]") {
  gpu::DeviceBuffer<int> out_gmem(64, "out");
  gpu::launch(descend, {.grid = 1, .block = 64}, out_gmem.data(), 40);  // some 45 KB
  CHECK(out_gmem.download() == std::vector<int>(64, 0));

  const std::string report = fault_of([&] { gpu::launch(descend, {.grid = 1, .block = 64}, out_gmem.data(), 100); });
  CHECK_THAT(report, ContainsText("stack overflow"));
  CHECK_THAT(report, ContainsText("64 KB"));
  CHECK_THAT(report, ContainsText("[block (0,0,0) thread 0]"));
}

TEST_CASE("fault: one frame larger than the stack", "[fault]") {
  gpu::DeviceBuffer<int> out_gmem(64, "out");
  const int first = GENERATE(0, 30 * 1024);
  const std::string report =
      fault_of([&] { gpu::launch(huge_locals, {.grid = 1, .block = 64}, out_gmem.data(), first); });
  CAPTURE(report, first);
  CHECK_THAT(report, ContainsText("stack overflow"));
}

TEST_CASE("fault: a kernel launches a kernel", "[fault]") {
  gpu::DeviceBuffer<int> out_gmem(32, "out");
  const std::string report = fault_of([&] { gpu::launch(launch_inside, {.grid = 1, .block = 32}, out_gmem.data()); });
  CHECK_THAT(report, ContainsText("a kernel cannot launch a kernel"));
}
