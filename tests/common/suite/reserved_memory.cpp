/// \file
/// Reserved memory of the host and of the device.

#include "tests/common/suite/reserved_memory.hpp"

#include <sys/mman.h>

#include <cstring>

#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/reserved_memory.hpp"
#include "tests/common/suite/guarded_array.hpp"

namespace suite {

ReservedMemory::ReservedMemory(stage::Memory memory, attention::ElementType type, std::size_t elements)
    : type_(type), bytes_(elements * element_bytes()), on_device_(memory == stage::Memory::device) {
  if (on_device_) {
    data_ = static_cast<std::byte*>(gpu::reserve(bytes_, "far rows"));
    return;
  }
  void* reserved = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved != MAP_FAILED) data_ = static_cast<std::byte*>(reserved);
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
  const std::vector<std::byte> bytes = attention::encode(values, type_);
  if (on_device_) {
    gpu::copy_to_device(at(offset), bytes.data(), bytes.size());
  } else {
    std::memcpy(at(offset), bytes.data(), bytes.size());
  }
}

std::vector<float> ReservedMemory::read(std::size_t offset, std::size_t elements) const {
  std::vector<std::byte> bytes(elements * element_bytes());
  const std::byte* from = data_ + offset * element_bytes();
  if (on_device_) {
    gpu::copy_to_host(bytes.data(), from, bytes.size());
  } else {
    std::memcpy(bytes.data(), from, bytes.size());
  }
  return attention::decode(bytes, type_);
}

std::vector<float> ReservedMemory::run(const stage::ForwardKernel& kernel, const attention::Problem& p, std::size_t q,
                                       std::size_t k, std::size_t v, std::size_t o) {
  const auto launch = [&](float* lse, void* workspace) {
    with_element_type(type_, [&]<class T>(std::type_identity<T>) {
      const auto array = [&](std::size_t offset) { return static_cast<T*>(at(offset)); };
      kernel.run(attention::make_forward_args<T>(p, array(q), array(k), array(v), array(o), lse), workspace);
    });
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
