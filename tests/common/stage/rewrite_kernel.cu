#include "common/gpu/barrier.cuh"
#include "common/gpu/launch.cuh"
#include "tests/common/stage/rewrite_kernel.hpp"

namespace stage_test {
namespace {

struct RewriteShared {
  float value[32];
};

template <int kVersion>
__global__ void rewrite(float* x_gmem) {
  auto& shared = gpu::shared_memory<RewriteShared>();
  const unsigned thread = threadIdx.x;
  shared.value[thread] = x_gmem[blockIdx.x * 32 + thread];
  __syncthreads();
  x_gmem[blockIdx.x * 32 + 31 - thread] = shared.value[31 - thread];
}

}  // namespace

void launch_rewrite(float* x_gmem, int size) {
  gpu::launch<RewriteShared>(rewrite<1>, {.grid = size / 32, .block = 32}, x_gmem);
}

void launch_other_rewrite(float* x_gmem, int size) {
  gpu::launch<RewriteShared>(rewrite<2>, {.grid = size / 32, .block = 32}, x_gmem);
}

}  // namespace stage_test
