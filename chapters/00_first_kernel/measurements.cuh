#pragma once
/// \file
/// How the kernels of ceilings.cuh are launched, how much work a launch does, and how its result is checked.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "chapters/00_first_kernel/ceilings.cuh"
#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"

namespace first_kernel {

/// Threads of a block in these kernels: four blocks fill a multiprocessor of 2048 threads.
inline constexpr int kCeilingThreads = 512;

/// One measurement.
struct Ceiling {
  std::string name;                    ///< "device memory, read"
  std::string key;                     ///< its name in the JSON, with the unit: "device_memory_read_bytes_per_second"
  double work = 0;                     ///< FLOPs or bytes of one launch
  std::function<void()> launch;        ///< does not wait
  std::function<std::string()> check;  ///< after a launch: empty if the result is right, otherwise a sentence
};

/// How much of it. The sizes decide whether device memory or a cache answers.
struct CeilingSizes {
  int blocks;                 ///< of kCeilingThreads threads
  int fma_rounds;             ///< turns of the multiply-add loop
  std::int64_t memory_slots;  ///< float4 elements read from device memory; far more than the L2 cache holds
  int l2_chunks;              ///< chunks of kCeilingThreads float4 that every block reads; a multiple of kLoadsInFlight
  int shared_rounds;          ///< turns of the shared-memory loop

  /// Some milliseconds a launch: 5 GB of device memory (less on a small card), a third of the L2 cache.
  ///
  /// A third, because the L2 of A100 and later consists of two halves, and a line that multiprocessors on both sides
  /// read may stand in both (NVIDIA A100 architecture whitepaper, "L2 cache").
  static CeilingSizes for_device(const gpu::DeviceInfo& device) {
    const std::int64_t bytes =
        std::min<std::int64_t>(5'000'000'000, static_cast<std::int64_t>(gpu::memory_available() / 4));
    const auto chunk_bytes = static_cast<std::size_t>(kCeilingThreads) * sizeof(float4);
    const int chunks = static_cast<int>(device.l2_bytes / 3 / chunk_bytes) / kLoadsInFlight * kLoadsInFlight;
    return {.blocks = device.multiprocessors * std::max(1, device.max_threads_per_multiprocessor / kCeilingThreads),
            .fma_rounds = 1024,
            .memory_slots = bytes / static_cast<std::int64_t>(sizeof(float4)),
            .l2_chunks = std::max(chunks, kLoadsInFlight),
            .shared_rounds = 2048};
  }

  /// Just enough to see that the kernels are right.
  static CeilingSizes tiny() {
    return {
        .blocks = 2, .fma_rounds = 3, .memory_slots = 9 * 2 * kCeilingThreads + 5, .l2_chunks = 8, .shared_rounds = 5};
  }
};

/// Compares a few entries of an array of per-thread sums, first and last among them, with what they must be.
inline std::string check_sums(const gpu::DeviceBuffer<float>& sums,
                              const std::function<float(std::int64_t)>& expected) {
  const std::vector<float> got = sums.download();
  const auto size = static_cast<std::int64_t>(got.size());
  const std::int64_t step = std::max<std::int64_t>(1, size / 61);
  for (std::int64_t i = 0; i < size; i = i == size - 1 ? size : std::min(i + step, size - 1)) {
    const float want = expected(i);
    if (!(got[static_cast<std::size_t>(i)] == want)) {
      return "thread " + std::to_string(i) + " found " + std::to_string(got[static_cast<std::size_t>(i)]) +
             " instead of " + std::to_string(want);
    }
  }
  return "";
}

/// Sum of the four test values of a float4.
inline float slot_sum(std::int64_t slot) {
  return (test_value(4 * slot) + test_value(4 * slot + 1)) + (test_value(4 * slot + 2) + test_value(4 * slot + 3));
}

/// All measurements of ceilings.cuh, over buffers that they own together. Fills the buffers.
/// \throws gpu::Error if the memory does not suffice.
inline std::vector<Ceiling> make_ceilings(const CeilingSizes& sizes) {
  const auto threads = static_cast<std::int64_t>(sizes.blocks) * kCeilingThreads;
  const std::int64_t copied = sizes.memory_slots / 2;
  const auto source =
      std::make_shared<gpu::DeviceBuffer<float4>>(static_cast<std::size_t>(sizes.memory_slots), "source");
  const auto target = std::make_shared<gpu::DeviceBuffer<float4>>(static_cast<std::size_t>(copied), "target");
  const auto sums = std::make_shared<gpu::DeviceBuffer<float>>(static_cast<std::size_t>(threads), "sums");
  const gpu::LaunchShape shape{.grid = sizes.blocks, .block = kCeilingThreads};
  gpu::launch(fill, shape, source->data(), sizes.memory_slots);

  std::vector<Ceiling> ceilings;

  const float a = -0.9999f;
  const float b = 0.7f;
  ceilings.push_back({
      .name = "fp32 multiply-add",
      .key = "fp32_flops_per_second",
      .work = 2.0 * kFmaChains * kFmaUnroll * sizes.fma_rounds * static_cast<double>(threads),
      .launch = [=] { gpu::launch(fp32_multiply_add, shape, sums->data(), sizes.fma_rounds, a, b); },
      .check =
          [=] {
            float sum = 0;
            for (int chain = 0; chain < kFmaChains; ++chain) {
              float x = static_cast<float>(chain);
              for (int step = 0; step < kFmaUnroll * sizes.fma_rounds; ++step) x = std::fmaf(a, x, b);
              sum += x;
            }
            return check_sums(*sums, [=](std::int64_t) { return sum; });
          },
  });

  ceilings.push_back({
      .name = "device memory, read",
      .key = "device_memory_read_bytes_per_second",
      .work = static_cast<double>(sizes.memory_slots) * sizeof(float4),
      .launch = [=] { gpu::launch(device_memory_read, shape, source->data(), sums->data(), sizes.memory_slots); },
      .check =
          [=] {
            return check_sums(*sums, [=](std::int64_t thread) {
              float sum = 0;
              for (std::int64_t slot = thread; slot < sizes.memory_slots; slot += threads) sum += slot_sum(slot);
              return sum;
            });
          },
  });

  ceilings.push_back({
      .name = "device memory, copy (read + write)",
      .key = "device_memory_copy_bytes_per_second",
      .work = 2.0 * static_cast<double>(copied) * sizeof(float4),
      .launch =
          [=] {
            gpu::launch(device_memory_copy,
                        {.grid = (copied + kCeilingThreads - 1) / kCeilingThreads, .block = kCeilingThreads},
                        source->data(), target->data(), copied);
          },
      .check = [=]() -> std::string {
        const std::int64_t step = std::max<std::int64_t>(1, copied / 61);
        for (std::int64_t slot = copied - 1; slot >= 0; slot -= step) {
          float4 got;
          gpu::copy_to_host(&got, target->data() + slot, sizeof(got));
          if (got.x != test_value(4 * slot) || got.y != test_value(4 * slot + 1) || got.z != test_value(4 * slot + 2) ||
              got.w != test_value(4 * slot + 3)) {
            return "slot " + std::to_string(slot) + " of the copy differs from the source";
          }
        }
        return "";
      },
  });

  // The L2 kernel reads the front of the source again and again.
  const int chunks = static_cast<int>(
      std::min<std::int64_t>(sizes.l2_chunks, sizes.memory_slots / kCeilingThreads / kLoadsInFlight * kLoadsInFlight));
  ceilings.push_back({
      .name = "L2 cache, read",
      .key = "l2_read_bytes_per_second",
      .work = static_cast<double>(threads) * chunks * sizeof(float4),
      .launch = [=] { gpu::launch(l2_read, shape, source->data(), sums->data(), chunks); },
      .check =
          [=] {
            return check_sums(*sums, [=](std::int64_t thread) {
              // Every block reads everything, only in another order: the sum depends on the place in the block alone.
              float sum = 0;
              for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
                sum += slot_sum(chunk * kCeilingThreads + thread % kCeilingThreads);
              }
              return sum;
            });
          },
  });

  const unsigned step = kCeilingThreads;
  ceilings.push_back({
      .name = "shared memory, read (all multiprocessors)",
      .key = "shared_memory_read_bytes_per_second",
      .work = static_cast<double>(threads) * sizes.shared_rounds * kLoadsInFlight * sizeof(float4),
      .launch =
          [=] { gpu::launch<SharedReadStorage>(shared_memory_read, shape, sums->data(), sizes.shared_rounds, step); },
      .check =
          [=] {
            return check_sums(*sums, [=](std::int64_t thread) {
              float sum = 0;
              for (int load = 0; load < sizes.shared_rounds * kLoadsInFlight; ++load) {
                sum += slot_sum((thread % kCeilingThreads + std::int64_t{load} * step) % kSharedSlots);
              }
              return sum;
            });
          },
  });
  return ceilings;
}

}  // namespace first_kernel
