#pragma once
/// \file
/// More device memory than a machine has, of which only a few pages are touched: for offsets that no small array
/// reaches.

#include <cstddef>

namespace gpu {

/// Addresses of so many bytes of device memory, to be given back with `deallocate`. Their values are anything. Null
/// where it cannot be had: on a GPU with less memory (there it is an allocation like others), and in the checking
/// build, which keeps book of every byte.
/// \param label names it in reports
void* reserve(std::size_t bytes, const char* label);

}  // namespace gpu
