/// \file
/// Seconds of a launch on the GPU, without the time it takes to get there.

#include <cuda_runtime.h>

#include "common/gpu/cuda/check.hpp"
#include "common/gpu/device.hpp"

namespace gpu {
namespace {

/// Longer than a library takes to start a kernel: PyTorch, some 50 µs.
constexpr unsigned kBusyNanoseconds = 200'000;

__global__ void be_busy() {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    __nanosleep(1000);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < kBusyNanoseconds);
}

}  // namespace

struct Stopwatch::Events {
  cudaEvent_t begin, end;
};
Stopwatch::Stopwatch() : events_(std::make_unique<Events>()) {
  cuda::check(cudaEventCreate(&events_->begin), "cudaEventCreate");
  cuda::check(cudaEventCreate(&events_->end), "cudaEventCreate");
}
Stopwatch::~Stopwatch() {
  cudaEventDestroy(events_->begin);
  cudaEventDestroy(events_->end);
}

void Stopwatch::start() {
  // An idle GPU would pass the first event at once and then wait for the host. So it is given something to do until the
  // launches stand in its queue: how long the host takes for them does not count.
  be_busy<<<1, 1>>>();
  cuda::check(cudaGetLastError(), "a launch before the one to be timed");
  cuda::check(cudaEventRecord(events_->begin), "cudaEventRecord");
}

double Stopwatch::stop_seconds() {
  cuda::check(cudaEventRecord(events_->end), "cudaEventRecord");
  cuda::check(cudaEventSynchronize(events_->end), "a timed kernel failed");
  float milliseconds = 0;
  cuda::check(cudaEventElapsedTime(&milliseconds, events_->begin, events_->end), "cudaEventElapsedTime");
  return milliseconds * 1e-3;
}

}  // namespace gpu
