/// \file
/// device.hpp on the emulator: an H200's limits on this machine's memory.

#include "common/gpu/device.hpp"

#include <unistd.h>

#include <chrono>

#include "common/gpu/emulator/block.hpp"

namespace gpu {

const DeviceInfo& device() {
  static const DeviceInfo info = [] {
    DeviceInfo d;
    d.name = "emulator";
    d.emulated = true;
    d.checked = emulator::checking();
    // Compute capability 9.0 (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"); an H200
    // has 132 multiprocessors.
    d.compute_capability = 90;
    d.multiprocessors = 132;
    d.max_threads_per_multiprocessor = 2048;
    d.shared_memory_per_block = 227 * 1024;
    d.shared_memory_per_multiprocessor = 228 * 1024;
    d.memory_total =
        static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return d;
  }();
  return info;
}

std::size_t shared_memory_limit() {
  const std::size_t chosen = emulator_options().shared_memory_limit;
  return chosen ? chosen : device().shared_memory_per_block;
}

void synchronize() { emulator::host_waited(); }  // a launch returns when it is done

struct Stopwatch::Events {
  std::chrono::steady_clock::time_point begin;
};
Stopwatch::Stopwatch() : events_(std::make_unique<Events>()) {}
Stopwatch::~Stopwatch() = default;
void Stopwatch::start() { events_->begin = std::chrono::steady_clock::now(); }
double Stopwatch::stop_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - events_->begin).count();
}

}  // namespace gpu
