#pragma once
/// \file
/// How much device memory is held: the books behind memory_in_use() and memory_peak(), kept by both machines.

#include <cstddef>

namespace gpu {

void account_allocated(std::size_t bytes) noexcept;
void account_freed(std::size_t bytes) noexcept;

}  // namespace gpu
