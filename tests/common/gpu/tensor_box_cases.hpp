#pragma once
// Boxes of arrays of 1 to 5 dimensions, and by definition which element of the array belongs where in the tile. Host
// only.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "common/gpu/tensor_map.hpp"

namespace gpu_tests {

/// An array that a tensor map describes. Its first element is 16 bytes into `storage`, and no better aligned.
struct BoxArray {
  static constexpr std::size_t kBase = 16;
  gpu::TensorMapShape shape;  ///< without a base
  std::vector<unsigned char> storage;

  /// Random bytes, everywhere in storage.
  BoxArray(const gpu::TensorMapShape& s, unsigned seed) : shape(s) {
    std::size_t extent = shape.sizes[0] * gpu::element_bytes(shape.element);
    for (std::size_t d = 1; d < shape.sizes.size(); ++d) extent += (shape.sizes[d] - 1) * shape.stride_bytes[d - 1];
    storage.resize(kBase + extent + 64);
    std::mt19937 random(seed);
    for (unsigned char& byte : storage) byte = static_cast<unsigned char>(random());
  }
  /// The map, when storage lies at `address`.
  gpu::TensorMapShape at(unsigned char* address) const {
    gpu::TensorMapShape placed = shape;
    placed.base = address + kBase;
    return placed;
  }
  std::size_t element_bytes() const { return gpu::element_bytes(shape.element); }
  /// Index into storage of an element, or -1 outside of the array.
  std::ptrdiff_t place(const std::vector<std::int64_t>& index) const {
    std::size_t offset = kBase;
    for (std::size_t d = 0; d < index.size(); ++d) {
      if (index[d] < 0 || index[d] >= static_cast<std::int64_t>(shape.sizes[d])) return -1;
      offset += static_cast<std::size_t>(index[d]) * (d ? shape.stride_bytes[d - 1] : element_bytes());
    }
    return static_cast<std::ptrdiff_t>(offset);
  }
};

/// Where in shared memory byte `byte` of row `row` of a tile lies: chunk c of row r goes where chunk c ^ f(r) would be
/// (swizzle.cuh). Rows are counted from the last multiple of 1024 before the tile.
inline std::size_t swizzled_place(gpu::Swizzle swizzle, std::size_t tile, std::size_t row_bytes, std::size_t row,
                                  std::size_t byte) {
  if (swizzle == gpu::Swizzle::none) return tile + row * row_bytes + byte;
  const std::size_t r = tile % 1024 / row_bytes + row;
  const std::size_t f = swizzle == gpu::Swizzle::bytes_32   ? r / 4 % 2
                        : swizzle == gpu::Swizzle::bytes_64 ? r / 2 % 4
                                                            : r % 8;
  return tile / 1024 * 1024 + r * row_bytes + (byte / 16 ^ f) * 16 + byte % 16;
}

/// Calls visit(place in storage or -1, place in shared memory) for each element of the box at these coordinates.
template <class Visit>
void for_each_element(const BoxArray& array, const std::vector<int>& at, std::size_t tile, Visit&& visit) {
  const gpu::TensorMapShape& s = array.shape;
  const std::size_t bytes = array.element_bytes(), row_bytes = s.box[0] * bytes;
  std::size_t elements = 1;
  for (const auto b : s.box) elements *= b;
  for (std::size_t i = 0; i < elements; ++i) {
    std::vector<std::int64_t> index;
    std::size_t rest = i;
    for (std::size_t d = 0; d < s.box.size(); ++d) {
      index.push_back(at[d] + static_cast<std::int64_t>(rest % s.box[d]));
      rest /= s.box[d];
    }
    visit(array.place(index), swizzled_place(s.swizzle, tile, row_bytes, i / s.box[0], i % s.box[0] * bytes));
  }
}

struct BoxCase {
  gpu::TensorMapShape shape;
  std::vector<std::vector<int>> coordinates;
};

/// Rows as wide as the swizzle, 48 bytes without one; strides with gaps, one over the other, and zero; coordinates
/// inside and off every end. The innermost coordinate is a multiple of 16 bytes.
inline std::vector<BoxCase> box_cases(gpu::Swizzle swizzle) {
  using gpu::TensorElement;
  const std::uint32_t width = swizzle == gpu::Swizzle::none ? 48 : gpu::swizzle_bytes(swizzle);
  const std::uint32_t w1 = width, w2 = width / 2, w4 = width / 4;
  const int x2 = static_cast<int>(w2), x4 = static_cast<int>(w4);
  const std::uint64_t row = width * 2 + 16;
  return {
      {{TensorElement::bf16, nullptr, {w2 * 2 + 8}, {}, {w2}, swizzle},
       {{0}, {x2}, {x2 + 16}, {x2 * 2 + 8}, {-8}, {-x2}, {8000}}},
      {{TensorElement::bf16, nullptr, {w2 * 2 + 3, 21}, {row}, {w2, 11}, swizzle},
       {{8, 5}, {-8, -3}, {x2 + 8, 20}, {0, 0}, {x2, 10}, {-8, 15}, {0, -11}, {0, 21}, {x2, -20}}},
      {{TensorElement::bytes_1, nullptr, {w1 + 5, 6, 4}, {width + 16, 6 * (width + 16) + 32}, {w1, 4, 3}, swizzle},
       {{-16, -1, -1}, {0, 0, 0}, {16, 3, 2}, {0, 5, 3}, {0, -3, 0}}},
      {{TensorElement::fp32, nullptr, {w4 * 2, 3, 5, 2}, {row, 3 * row, 16 * row}, {w4, 2, 3, 2}, swizzle},
       {{-4, 2, 4, 1}, {0, 0, 0, 0}, {4, 1, 2, 0}, {x4, -1, -2, -1}}},
      // Dimension 1 strides over dimension 2, and dimension 3 repeats.
      {{TensorElement::fp16,
        nullptr,
        {w2, 3, 2, 3, 2},
        {3 * width * 2, width, 0, 32 * width},
        {w2, 2, 2, 2, 2},
        swizzle},
       {{8, 2, -1, 2, -1}, {0, 0, 0, 0, 0}, {0, 1, 1, 1, 1}}},
  };
}

/// Whether a box may be stored there. An H200 stops at negative coordinates, which loads may have; and it writes pieces
/// of 16 bytes whole, past the end of a row that ends inside one.
inline bool is_storable(const gpu::TensorMapShape& shape, const std::vector<int>& at) {
  const auto end = static_cast<std::int64_t>(shape.sizes[0]), x = std::int64_t{at[0]};
  const bool cut = x < end && x + shape.box[0] > end;
  return std::all_of(at.begin(), at.end(), [](int coordinate) { return coordinate >= 0; }) &&
         !(cut && end * gpu::element_bytes(shape.element) % 16 != 0);
}

}  // namespace gpu_tests
