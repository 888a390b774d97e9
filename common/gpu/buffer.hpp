#pragma once
/// \file
/// An array in device memory.

#include <span>
#include <utility>
#include <vector>

#include "common/gpu/device.hpp"

namespace gpu {

/// Owns `size` elements of device memory, 256-byte aligned. Fresh memory holds NaN (bytes 0xFF), so that a result
/// nobody wrote cannot look right.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t size, const char* label = "buffer")
      : data_(size ? static_cast<T*>(allocate(size * sizeof(T), label)) : nullptr), size_(size) {}
  explicit DeviceBuffer(std::span<const T> values, const char* label = "buffer") : DeviceBuffer(values.size(), label) {
    upload(values);
  }
  ~DeviceBuffer() {
    if (data_) deallocate(data_);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  /// \throws Error if the sizes differ.
  void upload(std::span<const T> values) {
    if (values.size() != size_) {
      throw Error("upload: the buffer has " + std::to_string(size_) + " elements, the host array " +
                  std::to_string(values.size()));
    }
    if (size_) copy_to_device(data_, values.data(), size_ * sizeof(T));
  }
  /// Waits for the kernels that write it, then copies.
  std::vector<T> download() const {
    synchronize();
    std::vector<T> values(size_);
    if (size_) copy_to_host(values.data(), data_, size_ * sizeof(T));
    return values;
  }
  /// Makes every byte 0xFF again: NaN in any float format.
  void poison() {
    if (size_) fill_bytes(data_, 0xFF, size_ * sizeof(T));
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace gpu
