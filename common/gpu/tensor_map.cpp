/// \file
/// What a tensor map may describe: the rules that both machines share.

#include "common/gpu/tensor_map.hpp"

#include <string>

namespace gpu {
namespace {

constexpr std::size_t kMaxRank = 5;
constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 32;
constexpr std::uint64_t kStrideLimit = std::uint64_t{1} << 40;
constexpr std::uint32_t kMaxBox = 256;
constexpr std::uint32_t kUnit = 16;  ///< TMA moves whole pieces of so many bytes

[[noreturn]] void refuse(const std::string& what, const std::string& value, const std::string& allowed) {
  throw Error("tensor map refused: " + what + " is " + value + "; allowed: " + allowed);
}

std::string nth(const char* name, std::size_t i) { return std::string(name) + "[" + std::to_string(i) + "]"; }

void require_entries(const char* name, std::size_t entries, std::size_t wanted, std::size_t rank) {
  if (entries != wanted) {
    refuse(std::string("the number of entries in ") + name, std::to_string(entries),
           std::to_string(wanted) + ", for an array of " + std::to_string(rank) + " dimensions");
  }
}

std::uint64_t bytes_of_box(const TensorMapShape& shape) {
  std::uint64_t bytes = element_bytes(shape.element);
  for (const std::uint32_t elements : shape.box) bytes *= elements;  // at most 256⁵ · 4
  return bytes;
}

}  // namespace

void check_tensor_map_shape(const TensorMapShape& shape) {
  const std::size_t rank = shape.sizes.size();
  if (rank < 1 || rank > kMaxRank)
    refuse("the number of dimensions (entries in sizes)", std::to_string(rank), "1 to 5");
  require_entries("stride_bytes", shape.stride_bytes.size(), rank - 1, rank);
  require_entries("box", shape.box.size(), rank, rank);

  const auto base = reinterpret_cast<std::uintptr_t>(shape.base);
  if (base == 0) refuse("base", "null", "an address in device memory");
  if (base % kUnit) {
    refuse("base", std::to_string(base % kUnit) + " bytes past a multiple of 16", "multiples of 16 bytes");
  }
  for (std::size_t i = 0; i < rank; ++i) {
    if (shape.sizes[i] < 1 || shape.sizes[i] > kMaxSize) {
      refuse(nth("sizes", i), std::to_string(shape.sizes[i]), "1 to 4294967296 elements");
    }
    if (shape.box[i] < 1 || shape.box[i] > kMaxBox) {
      refuse(nth("box", i), std::to_string(shape.box[i]), "1 to 256 elements");
    }
  }
  for (std::size_t i = 0; i + 1 < rank; ++i) {
    const std::uint64_t stride = shape.stride_bytes[i];
    if (stride % kUnit || stride >= kStrideLimit) {
      refuse(nth("stride_bytes", i) + " (of dimension " + std::to_string(i + 1) + ")", std::to_string(stride),
             "multiples of 16 bytes below 1099511627776");
    }
  }
  const std::uint32_t row_bytes = shape.box[0] * element_bytes(shape.element);
  if (row_bytes % kUnit) {
    refuse("the innermost box", std::to_string(row_bytes) + " bytes wide", "multiples of 16 bytes");
  }
  if (shape.swizzle != Swizzle::none && row_bytes != swizzle_bytes(shape.swizzle)) {
    refuse("the innermost box", std::to_string(row_bytes) + " bytes wide",
           std::to_string(swizzle_bytes(shape.swizzle)) + " bytes, the width of its swizzle");
  }
  if (bytes_of_box(shape) > shared_memory_limit()) {
    refuse("the box", std::to_string(bytes_of_box(shape)) + " bytes large",
           "what a block's shared memory holds, " + std::to_string(shared_memory_limit()) + " bytes");
  }
}

std::uint32_t box_bytes(const TensorMapShape& shape) {
  check_tensor_map_shape(shape);
  return static_cast<std::uint32_t>(bytes_of_box(shape));
}

}  // namespace gpu
