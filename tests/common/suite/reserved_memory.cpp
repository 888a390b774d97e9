/// \file
/// Reserved address space and large device allocations.

#include "tests/common/suite/reserved_memory.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"

namespace suite {

ReservedMemory::ReservedMemory(stage::Memory memory, std::size_t elements)
    : bytes_(elements * sizeof(float)), on_device_(memory == stage::Memory::device && !gpu::device().emulated) {
  if (on_device_) {
    if (gpu::memory_available() > bytes_ + (std::size_t{1} << 30)) {
      data_ = static_cast<float*>(gpu::allocate(bytes_, "far rows"));
    }
    return;
  }
  // The checking build reports every access outside the allocations that it knows.
  if (memory == stage::Memory::device && gpu::device().checked) return;
  void* reserved = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved != MAP_FAILED) data_ = static_cast<float*>(reserved);
}

ReservedMemory::~ReservedMemory() {
  if (!data_) return;
  if (on_device_) {
    gpu::deallocate(data_);
  } else {
    munmap(data_, bytes_);
  }
}

void ReservedMemory::write(std::size_t offset, std::span<const float> values) {
  if (on_device_) {
    gpu::copy_to_device(data_ + offset, values.data(), values.size_bytes());
  } else {
    std::copy(values.begin(), values.end(), data_ + offset);
  }
}

void ReservedMemory::read(std::size_t offset, std::span<float> values) const {
  if (on_device_) {
    gpu::copy_to_host(values.data(), data_ + offset, values.size_bytes());
  } else {
    std::copy_n(data_ + offset, values.size(), values.begin());
  }
}

std::vector<float> ReservedMemory::run(const stage::ForwardKernel& kernel, const attention::Problem& p, std::size_t q,
                                       std::size_t k, std::size_t v, std::size_t o) {
  const auto launch = [&](float* lse, void* workspace) {
    kernel.run(attention::make_forward_args<float>(p, data_ + q, data_ + k, data_ + v, data_ + o, lse), workspace);
  };
  const auto rows = static_cast<std::size_t>(p.elements_lse());
  const std::size_t workspace_bytes = kernel.workspace_bytes(p);
  if (kernel.memory == stage::Memory::host) {
    std::vector<float> lse(rows), workspace(workspace_bytes / sizeof(float) + 1);
    launch(lse.data(), workspace.data());
    return lse;
  }
  gpu::DeviceBuffer<float> lse(rows, "LSE");
  gpu::DeviceBuffer<unsigned char> workspace(workspace_bytes, "workspace");
  launch(lse.data(), workspace.data());
  gpu::synchronize();
  return lse.download();
}

}  // namespace suite
