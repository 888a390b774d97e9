#pragma once
/// \file
/// More memory than a machine has, of which only a few pages are touched: for offsets that no small array reaches.

#include <cstddef>
#include <span>
#include <vector>

#include "common/attention/problem.hpp"
#include "common/stage/kernel.hpp"

namespace suite {

/// An array of floats. Where kernels run on the host's memory (host kernels, plain emulator) it is reserved address
/// space; on a GPU it is device memory; where neither can be had it is not available.
class ReservedMemory {
 public:
  ReservedMemory(stage::Memory memory, std::size_t elements);
  ~ReservedMemory();
  ReservedMemory(const ReservedMemory&) = delete;
  ReservedMemory& operator=(const ReservedMemory&) = delete;

  bool available() const { return data_ != nullptr; }
  float* at(std::size_t offset) { return data_ + offset; }
  void write(std::size_t offset, std::span<const float> values);
  void read(std::size_t offset, std::span<float> values) const;

  /// Runs a kernel whose Q, K, V and O start at the given offsets. \return LSE.
  std::vector<float> run(const stage::ForwardKernel& kernel, const attention::Problem& p, std::size_t q, std::size_t k,
                         std::size_t v, std::size_t o);

 private:
  float* data_ = nullptr;
  std::size_t bytes_;
  bool on_device_;
};

}  // namespace suite
