#pragma once
/// \file
/// The machine that kernels run on, seen from the host: what it is, its memory, its clock.
///
/// Plain C++ without a CUDA header, so that any host file may include it. `cuda/device.cpp` and `emulator/device.cpp`
/// implement it; a build contains one of them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace gpu {

/// Anything that went wrong on the device or in the use of it. The message is a sentence a user can act on; where a
/// kernel is at fault it names file and line, block and thread.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What the program runs on.
struct DeviceInfo {
  std::string name;  ///< "NVIDIA H200", or "emulator"
  bool emulated = false;
  bool checked = false;        ///< the checking build of the emulator: races, bounds, counts
  int compute_capability = 0;  ///< 90 for sm_90; what the emulator imitates
  int multiprocessors = 0;
  int max_threads_per_multiprocessor = 0;
  std::size_t shared_memory_per_block = 0;           ///< with opt-in, bytes
  std::size_t shared_memory_per_multiprocessor = 0;  ///< bytes
  std::size_t memory_total = 0;                      ///< bytes
  std::size_t l2_bytes = 0;
  int clock_khz = 0;      ///< highest multiprocessor clock; 0 on the emulator
  std::string driver;     ///< "580.159", empty on the emulator
  std::string cuda;       ///< "13.0", empty on the emulator
  std::string built_for;  ///< the architectures in this binary, "sm_80, sm_90a"; empty on the emulator
};

/// \throws Error when there is no usable GPU, or when this binary holds no code for it (names both).
const DeviceInfo& device();

/// Bytes of shared memory that a block may have here; on the emulator what EmulatorOptions says.
std::size_t shared_memory_limit();

/// Waits for all launched kernels. \throws Error with what a kernel did wrong.
void synchronize();

/// Bytes that an allocation could still get now.
std::size_t memory_available();

/// Bytes held by device buffers, and the most held at once since the last reset.
std::size_t memory_in_use();
std::size_t memory_peak();
void reset_memory_peak();

/// Device memory; every byte is 0xFF (NaN in any float format) until written. \p label names it in reports.
/// \throws Error naming the bytes wanted and available.
void* allocate(std::size_t bytes, const char* label);
void deallocate(void* pointer) noexcept;
void copy_to_device(void* to, const void* from, std::size_t bytes);
void copy_to_host(void* to, const void* from, std::size_t bytes);
void fill_bytes(void* to, unsigned char value, std::size_t bytes);

/// A pair of events around launches. On the emulator it measures the host's time, which says nothing about a GPU.
class Stopwatch {
 public:
  Stopwatch();
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start();
  double stop_seconds();  ///< waits for the work between start() and now

 private:
  struct Events;
  std::unique_ptr<Events> events_;
};

}  // namespace gpu
