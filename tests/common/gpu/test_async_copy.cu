/// \file
/// cp.async: both ways of arriving, and what happens without its waits and barriers.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/gpu/async_copy.cuh"
#include "common/gpu/barrier.cuh"
#include "common/gpu/buffer.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"

namespace {

constexpr int kThreads = 32;
constexpr int kTiles = 5;

struct TwoTiles {
  float4 tile[2][kThreads];
};

/// y[t] = sum over the tiles of the tile's element at the mirrored place, tiles loaded one ahead.
__global__ void mirrored_sum(const float4* x_gmem,  // [kTiles, kThreads]
                             float4* y_gmem,        // [kThreads]
                             int valid_tiles) {
  auto& shared = gpu::shared_memory<TwoTiles>();
  const int t = static_cast<int>(threadIdx.x);
  gpu::copy_async<16>(&shared.tile[0][t], x_gmem + t, 0 < valid_tiles);
  gpu::copy_async_commit();
  float4 sum = make_float4(0, 0, 0, 0);
  for (int i = 0; i < kTiles; ++i) {
    if (i + 1 < kTiles) {
      gpu::copy_async<16>(&shared.tile[(i + 1) % 2][t], x_gmem + (i + 1) * kThreads + t, i + 1 < valid_tiles);
    }
    gpu::copy_async_commit();
    gpu::copy_async_wait<1>();
    __syncthreads();
    const float4 x = shared.tile[i % 2][kThreads - 1 - t];
    sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
    __syncthreads();
  }
  gpu::copy_async_wait<0>();
  y_gmem[t] = sum;
}

struct Bytes {
  unsigned char bytes[64];
};

__global__ void copy_4_8_16(const unsigned char* x_gmem, unsigned char* y_gmem) {
  auto& shared = gpu::shared_memory<Bytes>();
  if (threadIdx.x == 0) {
    gpu::copy_async<4>(shared.bytes, x_gmem);
    gpu::copy_async<4>(shared.bytes + 4, x_gmem + 4);
    gpu::copy_async<8>(shared.bytes + 8, x_gmem + 8);
    gpu::copy_async<16>(shared.bytes + 16, x_gmem + 16);
    gpu::copy_async<16>(shared.bytes + 32, x_gmem + 32, false);
    gpu::copy_async<8>(shared.bytes + 48, x_gmem + 48, false);
    gpu::copy_async<4>(shared.bytes + 56, x_gmem + 56, false);
    gpu::copy_async<4>(shared.bytes + 60, x_gmem + 60);
    gpu::copy_async_commit();
    gpu::copy_async_wait<0>();
    for (int i = 0; i < 64; ++i) y_gmem[i] = shared.bytes[i];
  }
}

__global__ void misaligned(const unsigned char* x_gmem) {
  gpu::copy_async<16>(gpu::shared_memory<Bytes>().bytes, x_gmem + 4);
}

__global__ void into_device_memory(unsigned char* x_gmem) { gpu::copy_async<16>(x_gmem, x_gmem); }

__global__ void never_waits(const unsigned char* x_gmem) {
  gpu::copy_async<16>(gpu::shared_memory<Bytes>().bytes, x_gmem);
  gpu::copy_async_commit();
}

std::vector<float4> input() {
  std::vector<float4> x;
  for (int i = 0; i < kTiles * kThreads; ++i) x.push_back(make_float4(static_cast<float>(i), 1, 2, 3));
  return x;
}

bool mirrored_sum_is_right(int valid_tiles) {
  const std::vector<float4> x = input();
  gpu::DeviceBuffer<float4> x_device(std::span<const float4>(x), "x"), y_device(kThreads, "y");
  gpu::launch<TwoTiles>(mirrored_sum, {.grid = 1, .block = kThreads}, x_device.data(), y_device.data(), valid_tiles);
  const std::vector<float4> y = y_device.download();
  for (int t = 0; t < kThreads; ++t) {
    float expected = 0;
    for (int i = 0; i < valid_tiles; ++i) expected += static_cast<float>(i * kThreads + kThreads - 1 - t);
    if (y[static_cast<std::size_t>(t)].x != expected ||
        y[static_cast<std::size_t>(t)].w != 3.0f * static_cast<float>(valid_tiles))
      return false;
  }
  return true;
}

std::string error_of(const std::function<void()>& launch) {
  try {
    launch();
    gpu::synchronize();
  } catch (const gpu::Error& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("cp.async brings 4, 8 and 16 bytes, or zeros", "[async_copy]") {
  std::vector<unsigned char> x(64);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<unsigned char>(i + 1);
  gpu::DeviceBuffer<unsigned char> x_device(std::span<const unsigned char>(x), "x"), y_device(64, "y");
  gpu::launch<Bytes>(copy_4_8_16, {.grid = 1, .block = 32}, x_device.data(), y_device.data());
  const std::vector<unsigned char> y = y_device.download();
  for (std::size_t i = 0; i < 64; ++i) {
    INFO("byte " << i);
    CHECK(y[i] == (i < 32 || i >= 60 ? x[i] : 0));
  }
}

TEST_CASE("a double-buffered pipeline is right, with tiles beyond the end as zeros", "[async_copy]") {
  for (const int valid_tiles : {kTiles, 3, 0}) CHECK(mirrored_sum_is_right(valid_tiles));
}

TEST_CASE("a pipeline is right in both deliveries and any schedule", "[async_copy]") {
  if (!gpu::device().emulated) return;
  for (const auto delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      gpu::EmulatorOptions options;
      options.delivery = delivery;
      options.schedule_seed = seed;
      const gpu::EmulatorOptionsScope scope(options);
      INFO("seed " << seed);
      CHECK(mirrored_sum_is_right(kTiles));
    }
  }
}

TEST_CASE("each wait and barrier of a pipeline is needed", "[async_copy]") {
  if (!gpu::device().emulated) return;
  gpu::reset_synchronisations_seen();
  REQUIRE(mirrored_sum_is_right(kTiles));
  const auto lines = gpu::synchronisations_seen();
  REQUIRE(lines.size() == 4);  // two waits, two barriers
  // The last wait is for the loop's last, empty group: the others are needed.
  for (std::size_t i = 0; i < 3; ++i) {
    gpu::EmulatorOptions options;
    options.without = {lines[i]};
    const gpu::EmulatorOptionsScope scope(options);
    INFO("without line " << lines[i].line);
    if (gpu::device().checked) {
      CHECK_FALSE(error_of([] { mirrored_sum_is_right(kTiles); }).empty());
    } else if (i == 0) {
      CHECK_FALSE(mirrored_sum_is_right(kTiles));  // what has not been waited for is NaN
      options.delivery = gpu::Delivery::immediately;
      const gpu::EmulatorOptionsScope other_delivery(options);
      CHECK(mirrored_sum_is_right(kTiles));  // right by luck: why there are two modes
    }
  }
}

TEST_CASE("cp.async used wrongly is reported", "[async_copy]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<unsigned char> x(64, "x");
  x.upload(std::vector<unsigned char>(64, 1));
  CHECK_THAT(error_of([&] { gpu::launch<Bytes>(misaligned, {.grid = 1, .block = 1}, x.data()); }),
             ContainsText("aligned to the 16 bytes"));
  CHECK_THAT(error_of([&] { gpu::launch<Bytes>(into_device_memory, {.grid = 1, .block = 1}, x.data()); }),
             ContainsText("not in this block's shared memory"));
  CHECK_THAT(error_of([&] { gpu::launch<Bytes>(never_waits, {.grid = 1, .block = 1}, x.data()); }),
             ContainsText("exits without waiting"));
  CHECK(mirrored_sum_is_right(kTiles));
}
