#pragma once
/// \file
/// More memory than a machine has, of which only a few pages are touched: for offsets that no small array reaches.

#include <cstddef>
#include <span>
#include <vector>

#include "common/attention/problem.hpp"
#include "common/stage/kernel.hpp"

namespace suite {

/// An array of elements, which tests see as floats: address space for host kernels, device memory for the others
/// (common/gpu/reserved_memory.hpp); where it cannot be had it is not available.
class ReservedMemory {
 public:
  ReservedMemory(stage::Memory memory, attention::ElementType type, std::size_t elements);
  ~ReservedMemory();
  ReservedMemory(const ReservedMemory&) = delete;
  ReservedMemory& operator=(const ReservedMemory&) = delete;

  bool available() const { return data_ != nullptr; }
  attention::ElementType element_type() const { return type_; }
  /// Offsets count elements.
  void* at(std::size_t offset) { return data_ + offset * element_bytes(); }
  void write(std::size_t offset, std::span<const float> values);
  std::vector<float> read(std::size_t offset, std::size_t elements) const;

  /// Runs a kernel whose Q, K, V and O start at the given offsets, of the element type of this memory. \return LSE.
  std::vector<float> run(const stage::ForwardKernel& kernel, const attention::Problem& p, std::size_t q, std::size_t k,
                         std::size_t v, std::size_t o);

 private:
  std::size_t element_bytes() const { return static_cast<std::size_t>(attention::element_bytes(type_)); }

  attention::ElementType type_;
  std::byte* data_ = nullptr;
  std::size_t bytes_;
  bool on_device_;
};

}  // namespace suite
