// The launch: its indices, its limits, the barrier and shared memory. Everything here also holds on a GPU.

#include <cmath>
#include <cstdint>

#include "common/gpu/atomic.cuh"
#include "tests/common/gpu/launch_report.cuh"

namespace {

using namespace gpu_tests;

struct Whereabouts {
  unsigned thread[3], block[3], block_size[3], grid_size[3];
};

__global__ void write_whereabouts(Whereabouts* out_gmem) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  Whereabouts& out = out_gmem[block * (blockDim.x * blockDim.y * blockDim.z) + thread];
  out = {{threadIdx.x, threadIdx.y, threadIdx.z},
         {blockIdx.x, blockIdx.y, blockIdx.z},
         {blockDim.x, blockDim.y, blockDim.z},
         {gridDim.x, gridDim.y, gridDim.z}};
}

/// Each thread notes the linear index of its warp's first thread.
__global__ void write_first_of_warp(unsigned* out_gmem) {
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out_gmem[thread] = __shfl_sync(gpu::kFullWarp, thread, 0);
}

__global__ void count_blocks(unsigned* count_gmem) { atomicAdd(count_gmem, 1u); }

struct ReversalShared {
  int value[1024];
};

/// Threads from `leave_at` on go home first; the others still meet.
__global__ void reverse_the_rest(int* out_gmem, unsigned leave_at, int rounds) {
  auto& shared = gpu::shared_memory<ReversalShared>();
  if (threadIdx.x >= leave_at) return;
  int value = static_cast<int>(threadIdx.x);
  for (int round = 0; round < rounds; ++round) {
    shared.value[threadIdx.x] = value;
    __syncthreads();
    value = shared.value[leave_at - 1 - threadIdx.x] + 1;
    __syncthreads();
  }
  out_gmem[threadIdx.x] = value;
}

template <std::size_t kBytes>
struct WholeShared {
  unsigned char byte[kBytes];
};

/// Fills the first and the last kilobyte, and reads them back from the other end.
template <std::size_t kBytes>
__global__ void use_whole_shared(int* sum_gmem) {
  auto& shared = gpu::shared_memory<WholeShared<kBytes>>();
  shared.byte[threadIdx.x] = 1;
  shared.byte[kBytes - 1 - threadIdx.x] = 2;
  __syncthreads();
  atomicAdd(sum_gmem, shared.byte[1023 - threadIdx.x] + shared.byte[kBytes - 1024 + threadIdx.x]);
}

template <std::size_t kBytes>
void check_shared_size() {
  CAPTURE(kBytes);
  gpu::DeviceBuffer<int> sum_gmem(std::vector<int>{0}, "sum");
  const auto launch = [&] {
    gpu::launch<WholeShared<kBytes>>(use_whole_shared<kBytes>, {.grid = 2, .block = 1024}, sum_gmem.data());
  };
  const std::size_t allowed = gpu::device().shared_memory_per_block;
  if (kBytes <= allowed) {
    launch();
    CHECK(sum_gmem.download() == std::vector<int>{2 * 1024 * 3});
  } else {
    const std::string report = fault_of(launch);
    CHECK_THAT(report, ContainsText(std::to_string(kBytes)));
    CHECK_THAT(report, ContainsText(std::to_string(allowed)));
  }
}

__global__ void scale_by_float4(const float* x_gmem, float* y_gmem, float factor) {
  float4 v = reinterpret_cast<const float4*>(x_gmem)[threadIdx.x];
  v = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
  reinterpret_cast<float4*>(y_gmem)[threadIdx.x] = v;
}

__global__ void write_all_but(float* out_gmem, unsigned left_out) {
  if (threadIdx.x != left_out) out_gmem[threadIdx.x] = 1.0f;
}

struct Weights {
  double factor;
  int shift[3];
};
__global__ void take_parameters(Weights weights, const int* x_gmem, char c, double* out_gmem) {
  out_gmem[threadIdx.x] = weights.factor * x_gmem[threadIdx.x] + weights.shift[threadIdx.x % 3] + c;
}

__global__ void nothing() {}

}  // namespace

TEST_CASE("a thread knows where it is in three dimensions", "[vocabulary]") {
  const gpu::LaunchShape shape{.grid = {3, 2, 4}, .block = {5, 3, 2}};
  const unsigned blocks = 3 * 2 * 4, threads = 5 * 3 * 2;
  gpu::DeviceBuffer<Whereabouts> out_gmem(blocks * threads, "out");
  gpu::launch(write_whereabouts, shape, out_gmem.data());
  const auto out = out_gmem.download();
  unsigned wrong = 0;
  for (unsigned i = 0; i < blocks * threads; ++i) {
    const unsigned t = i % threads, b = i / threads;
    const Whereabouts expected{{t % 5, t / 5 % 3, t / 15}, {b % 3, b / 3 % 2, b / 6}, {5, 3, 2}, {3, 2, 4}};
    for (int axis = 0; axis < 3; ++axis) {
      wrong += out[i].thread[axis] != expected.thread[axis] || out[i].block[axis] != expected.block[axis] ||
               out[i].block_size[axis] != expected.block_size[axis] ||
               out[i].grid_size[axis] != expected.grid_size[axis];
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a warp is 32 threads in a row, x first", "[vocabulary]") {
  gpu::DeviceBuffer<unsigned> out_gmem(8 * 4 * 3, "out");
  gpu::launch(write_first_of_warp, {.grid = 1, .block = {8, 4, 3}}, out_gmem.data());
  const auto out = out_gmem.download();
  for (unsigned i = 0; i < out.size(); ++i) CHECK(out[i] == i / 32 * 32);
}

TEST_CASE("every block of a grid at its limits runs once", "[vocabulary]") {
  const gpu::Extent grid = GENERATE(gpu::Extent(70000), gpu::Extent(1, 65535), gpu::Extent(1, 1, 65535));
  CAPTURE(grid.x, grid.y, grid.z);
  gpu::DeviceBuffer<unsigned> count_gmem(std::vector<unsigned>{0}, "count");
  gpu::launch(count_blocks, {.grid = grid, .block = 1}, count_gmem.data());
  CHECK(count_gmem.download()[0] == static_cast<unsigned>(grid.x * grid.y * grid.z));
}

TEST_CASE("a barrier holds for the threads that have not exited", "[vocabulary]") {
  const unsigned threads = GENERATE(1u, 33u, 128u, 1024u);
  const unsigned leave_at = GENERATE(1u, 31u, 64u, 1000u);
  if (leave_at > threads) return;
  const int rounds = 3;
  CAPTURE(threads, leave_at);
  gpu::DeviceBuffer<int> out_gmem(leave_at, "out");
  gpu::launch<ReversalShared>(reverse_the_rest, {.grid = 1, .block = threads}, out_gmem.data(), leave_at, rounds);
  const auto out = out_gmem.download();
  unsigned wrong = 0;
  for (unsigned i = 0; i < leave_at; ++i) wrong += out[i] != static_cast<int>(leave_at - 1 - i) + rounds;
  CHECK(wrong == 0);
}

TEST_CASE("shared memory goes up to the device's limit", "[vocabulary]") {
  check_shared_size<2048>();
  check_shared_size<48 * 1024 + 4>();    // more than a kernel gets on a GPU without asking
  check_shared_size<163 * 1024>();       // all of an A100
  check_shared_size<227 * 1024>();       // all of an H100
  check_shared_size<227 * 1024 + 16>();  // more than any of them
}

TEST_CASE("four floats move as one float4", "[vocabulary]") {
  std::vector<float> x(128);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const gpu::DeviceBuffer<float> x_gmem(x, "x");
  gpu::DeviceBuffer<float> y_gmem(128, "y");
  gpu::launch(scale_by_float4, {.grid = 1, .block = 32}, x_gmem.data(), y_gmem.data(), 0.5f);
  const auto y = y_gmem.download();
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == x[i] / 2);
}

TEST_CASE("kernel parameters arrive by value, converted to what the kernel declares", "[vocabulary]") {
  const gpu::DeviceBuffer<int> x_gmem(std::vector<int>{10, 20, 30, 40}, "x");
  gpu::DeviceBuffer<double> out_gmem(4, "out");
  gpu::launch(take_parameters, {.grid = 1, .block = 4}, Weights{0.5, {100, 200, 300}}, x_gmem.data(), 3,
              out_gmem.data());
  CHECK(out_gmem.download() == std::vector<double>{108, 213, 318, 123});
}

TEST_CASE("a result that nobody wrote stays NaN", "[vocabulary][poison]") {
  gpu::DeviceBuffer<float> out_gmem(64, "out");
  gpu::launch(write_all_but, {.grid = 1, .block = 64}, out_gmem.data(), 17u);
  const auto out = out_gmem.download();
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(std::isnan(out[i]) == (i == 17));
}

TEST_CASE("a launch out of range is refused by name, value and limit, and the next one works", "[vocabulary]") {
  struct Refused {
    gpu::LaunchShape shape;
    std::string what, value, allowed;
  };
  const std::vector<Refused> all{
      {{.grid = 0, .block = 1}, "grid.x", "0", "1 to 2147483647"},
      {{.grid = -1, .block = 1}, "grid.x", "-1", "1 to 2147483647"},
      {{.grid = std::int64_t{1} << 31, .block = 1}, "grid.x", "2147483648", "1 to 2147483647"},
      {{.grid = (std::int64_t{1} << 32) + 1, .block = 1}, "grid.x", "4294967297", "1 to 2147483647"},
      {{.grid = {1, 0}, .block = 1}, "grid.y", "0", "1 to 65535"},
      {{.grid = {1, 65536}, .block = 1}, "grid.y", "65536", "1 to 65535"},
      {{.grid = {1, 1, 65536}, .block = 1}, "grid.z", "65536", "1 to 65535"},
      {{.grid = 1, .block = 0}, "block.x", "0", "1 to 1024"},
      {{.grid = 1, .block = 1025}, "block.x", "1025", "1 to 1024"},
      {{.grid = 1, .block = {1, 1, 65}}, "block.z", "65", "1 to 64"},
      {{.grid = 1, .block = {32, 33}}, "threads in a block", "1056", "1 to 1024"},
      {{.grid = 1, .block = {1024, 1024, 64}}, "threads in a block", "67108864", "1 to 1024"},
  };
  for (const Refused& refused : all) {
    CAPTURE(refused.what, refused.value);
    const std::string report = fault_of([&] { gpu::launch(nothing, refused.shape); });
    CHECK_THAT(report, ContainsText("launch refused"));
    CHECK_THAT(report, ContainsText(refused.what + " is " + refused.value + ";"));
    CHECK_THAT(report, ContainsText(refused.allowed));
  }
}
