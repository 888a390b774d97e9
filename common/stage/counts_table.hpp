#pragma once
/// \file
/// What the checking emulator counted of each kernel, as tables.

#include <span>
#include <string>
#include <vector>

#include "common/gpu/emulation.hpp"

namespace stage {

/// A table, and what its columns mean, a line each.
struct CountsTable {
  std::string name;  ///< its key in the JSON
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> explanations;
};

/// Device memory first; then, if any kernel used them, shared memory and barriers. Nothing if there is no kernel.
std::vector<CountsTable> counts_tables(std::span<const gpu::KernelCounts> kernels);

/// Adds counts of kernels that may be in the sum already, by name.
void add_counts(std::vector<gpu::KernelCounts>& sum, const std::vector<gpu::KernelCounts>& more);

}  // namespace stage
