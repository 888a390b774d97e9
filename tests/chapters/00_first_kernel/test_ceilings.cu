// The kernels that measure the ceilings compute what they should, so that their times are times of real work.

#include <cstdint>
#include <string>
#include <vector>

#include "chapters/00_first_kernel/measurements.cuh"
#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"

namespace {

using namespace first_kernel;

}  // namespace

TEST_CASE("ceilings: every kernel's result is right, and its check can fail", "[poison]") {
  for (const Ceiling& ceiling : make_ceilings(CeilingSizes::tiny())) {
    CAPTURE(ceiling.name);
    CHECK(ceiling.check() != "");  // nothing launched yet: the sums belong to another kernel, or are poison
    ceiling.launch();
    CHECK(ceiling.check() == "");
  }
}

TEST_CASE("ceilings: the bytes credited are the bytes counted") {
  if (!gpu::counts()) return;  // only the checking build of the emulator counts
  const CeilingSizes sizes = CeilingSizes::tiny();
  const double sums = static_cast<double>(sizes.blocks) * kCeilingThreads * sizeof(float);
  for (const Ceiling& ceiling : make_ceilings(sizes)) {
    CAPTURE(ceiling.name);
    gpu::reset_counts();
    ceiling.launch();
    gpu::synchronize();
    const gpu::Counts counts = gpu::counts().value();
    const auto loaded = static_cast<double>(counts.global_loaded);
    const auto stored = static_cast<double>(counts.global_stored);
    if (ceiling.key == "device_memory_read_bytes_per_second" || ceiling.key == "l2_read_bytes_per_second") {
      CHECK(loaded == ceiling.work);
      CHECK(stored == sums);  // not credited
    } else if (ceiling.key == "device_memory_copy_bytes_per_second") {
      CHECK(loaded + stored == ceiling.work);
    } else if (ceiling.key == "shared_memory_read_bytes_per_second") {
      CHECK(static_cast<double>(counts.shared_loaded) == ceiling.work);
    } else {
      CHECK(ceiling.key == "fp32_flops_per_second");
      CHECK(loaded == 0);
    }
  }
}

TEST_CASE("ceilings: reading and copying take sizes off the grid", "[poison]") {
  // One block of 32 threads; sizes around one step of the grid, and around one turn of the loop.
  const std::int64_t size = GENERATE(0, 1, 31, 32, 33, 127, 128, 129);
  CAPTURE(size);
  gpu::DeviceBuffer<float4> x(129, "x");
  gpu::DeviceBuffer<float4> y(129, "y");
  gpu::DeviceBuffer<float> sums(32, "sums");
  gpu::launch(fill, {.grid = 1, .block = 32}, x.data(), std::int64_t{129});
  gpu::launch(device_memory_copy, {.grid = 5, .block = 32}, x.data(), y.data(), size);
  gpu::launch(device_memory_read, {.grid = 1, .block = 32}, x.data(), sums.data(), size);

  float sum = 0;
  for (const float s : sums.download()) sum += s;
  float expected = 0;
  for (std::int64_t slot = 0; slot < size; ++slot) expected += slot_sum(slot);
  CHECK(sum == expected);

  const std::vector<float4> copy = y.download();
  for (std::int64_t slot = 0; slot < 129; ++slot) {
    CAPTURE(slot);
    const float4 got = copy[static_cast<std::size_t>(slot)];
    if (slot < size) {
      CHECK(sum_of(got) == slot_sum(slot));
    } else {
      CHECK(got.x != got.x);  // still poison
    }
  }
}

TEST_CASE("ceilings: the sizes for a device keep device memory out of the cache, and the cache's part within it") {
  gpu::DeviceInfo device;
  device.multiprocessors = 132;
  device.max_threads_per_multiprocessor = 2048;
  device.l2_bytes = 50 << 20;
  const CeilingSizes sizes = CeilingSizes::for_device(device);
  CHECK(sizes.blocks == 132 * 4);
  CHECK(sizes.memory_slots * 16 <= 5'000'000'000);
  CHECK(sizes.l2_chunks % kLoadsInFlight == 0);
  const double l2_bytes = static_cast<double>(sizes.l2_chunks) * kCeilingThreads * sizeof(float4);
  CHECK(l2_bytes <= (50 << 20) / 2.0);
  CHECK(l2_bytes > (50 << 20) / 4.0);
}
