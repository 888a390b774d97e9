/// \file
/// device.hpp on CUDA.

#include "common/gpu/device.hpp"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <unordered_map>

#include "common/gpu/cuda/check.hpp"
#include "common/gpu/emulation.hpp"
#include "common/gpu/foreign_memory.hpp"
#include "common/gpu/memory_account.hpp"
#include "common/gpu/reserved_memory.hpp"

namespace gpu {
namespace {

std::mutex g_mutex;
std::unordered_map<void*, std::size_t> g_sizes;

std::string version(int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); }

/// The driver's own number, "580.159.04". The runtime only tells the newest CUDA that the driver supports.
std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return {};
}

/// compute-sanitizer's initcheck takes poison for a value. With BOOK_UNINITIALISED in the environment (tests/sanitize
/// sets it) fresh and poisoned memory is left alone, so that it sees reads of what no kernel has written.
bool poison_wanted() {
  static const bool wanted = std::getenv("BOOK_UNINITIALISED") == nullptr;
  return wanted;
}

std::string architecture(int capability) { return "sm_" + std::to_string(capability); }

DeviceInfo query() {
  DeviceInfo info;
  info.built_for = BOOK_BUILT_FOR;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    cudaGetLastError();
    throw Error(std::string("no usable NVIDIA GPU: ") +
                (status == cudaSuccess ? "none is present" : cudaGetErrorString(status)) +
                "; build with --emulator (preset emulator) to run without one");
  }
  int id = 0;
  cuda::check(cudaGetDevice(&id), "cudaGetDevice");
  cudaDeviceProp p;
  cuda::check(cudaGetDeviceProperties(&p, id), "cudaGetDeviceProperties");
  info.name = p.name;
  info.compute_capability = p.major * 10 + p.minor;
  info.multiprocessors = p.multiProcessorCount;
  info.max_threads_per_multiprocessor = p.maxThreadsPerMultiProcessor;
  info.shared_memory_per_block = p.sharedMemPerBlockOptin;
  info.shared_memory_per_multiprocessor = p.sharedMemPerMultiprocessor;
  info.memory_total = p.totalGlobalMem;
  info.l2_bytes = static_cast<std::size_t>(p.l2CacheSize);
  cuda::check(cudaDeviceGetAttribute(&info.clock_khz, cudaDevAttrClockRate, id), "clock rate");
  info.driver = driver_version();
  int runtime = 0;
  cuda::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  info.cuda = version(runtime);
  return info;
}

}  // namespace

namespace cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(std::string(what) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}

void prepare_kernel(const void* kernel, std::size_t shared_bytes) {
  static std::mutex mutex;
  static std::set<std::pair<const void*, std::size_t>> prepared;
  const std::lock_guard lock(mutex);
  if (prepared.count({kernel, shared_bytes})) return;
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();
    throw Error("this program was built for " + device().built_for + " and holds no code for " + device().name + " (" +
                architecture(device().compute_capability) +
                "); configure again with -DCMAKE_CUDA_ARCHITECTURES=native");
  }
  check(status, "cudaFuncGetAttributes");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
        "opting in to shared memory");
  prepared.insert({kernel, shared_bytes});
}

}  // namespace cuda

const DeviceInfo& device() {
  static const DeviceInfo info = query();
  return info;
}

std::size_t shared_memory_limit() { return device().shared_memory_per_block; }

void synchronize() { cuda::check(cudaDeviceSynchronize(), "a kernel failed"); }

std::size_t memory_available() {
  std::size_t free = 0, total = 0;
  cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

void* allocate(std::size_t bytes, const char* label) {
  device();
  void* p = nullptr;
  // Asked for more than there is, cudaMalloc fails as well; looking first keeps sanitizers and debuggers quiet.
  const bool too_much = bytes > memory_available();
  const cudaError_t status = too_much ? cudaErrorMemoryAllocation : cudaMalloc(&p, bytes);
  if (status == cudaErrorMemoryAllocation) {
    if (!too_much) cudaGetLastError();
    throw Error(std::string(label) + ": " + std::to_string(bytes) + " bytes of device memory wanted, " +
                std::to_string(memory_available()) + " available");
  }
  cuda::check(status, "cudaMalloc");
  if (poison_wanted()) cuda::check(cudaMemset(p, 0xFF, bytes), "cudaMemset");
  account_allocated(bytes);
  const std::lock_guard lock(g_mutex);
  g_sizes[p] = bytes;
  return p;
}

void allow_foreign_memory() {}

void* reserve(std::size_t bytes, const char* label) {
  constexpr std::size_t kSpare = std::size_t{1} << 30;
  return memory_available() > bytes + kSpare ? allocate(bytes, label) : nullptr;
}

void deallocate(void* pointer) noexcept {
  {
    const std::lock_guard lock(g_mutex);
    const auto it = g_sizes.find(pointer);
    if (it != g_sizes.end()) {
      account_freed(it->second);
      g_sizes.erase(it);
    }
  }
  cudaFree(pointer);  // a failure here has been reported by the launch that caused it
}

void copy_to_device(void* to, const void* from, std::size_t bytes) {
  cuda::check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
}
void copy_to_host(void* to, const void* from, std::size_t bytes) {
  cuda::check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy to the host");
}
void fill_bytes(void* to, unsigned char value, std::size_t bytes) {
  if (value == 0xFF && !poison_wanted()) return;
  cuda::check(cudaMemset(to, value, bytes), "fill");
}

// emulation.hpp: a GPU has nothing to switch and counts nothing by itself.
void set_emulator_options(const EmulatorOptions& options) {
  const EmulatorOptions plain;
  if (options.schedule_seed != plain.schedule_seed || options.delivery != plain.delivery || !options.without.empty() ||
      options.workers != plain.workers || options.count_requests || options.record_timeline ||
      options.shared_memory_limit != plain.shared_memory_limit || options.grid_limit != plain.grid_limit) {
    throw Error(
        "schedule seeds, delivery modes, switched-off synchronisations, counted requests, timelines and other limits "
        "exist on "
        "the emulator only; this is a build for a GPU (use --emulator)");
  }
}
const EmulatorOptions& emulator_options() {
  static const EmulatorOptions options;
  return options;
}
std::optional<Counts> counts() { return std::nullopt; }
std::vector<KernelCounts> kernel_counts() { return {}; }
std::vector<TimelineEvent> emulator_timeline() { return {}; }
void reset_counts() {}
std::vector<SourceLine> synchronisations_seen() { return {}; }
void reset_synchronisations_seen() {}

}  // namespace gpu
