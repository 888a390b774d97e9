#pragma once
/// \file
/// What TMA does with one box, as functions of the tensor map, the coordinates and the bytes. Not for kernels.
///
/// When a copy starts and arrives, who may see it and who is told is not decided here.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/gpu/tensor_map.hpp"

namespace gpu::emulator {

/// What the emulator keeps in the 128 bytes of a TensorMap.
struct TensorDescription {
  std::uint64_t mark;             ///< tells a tensor map from 128 bytes of something else
  unsigned char* base;            ///< element (0, 0, …)
  std::uint64_t sizes[5];         ///< elements; 1 in dimensions that there are not
  std::uint64_t stride_bytes[4];  ///< of dimensions 1 to 4
  std::uint16_t box[5];           ///< elements; 1 in dimensions that there are not
  std::uint8_t rank;
  TensorElement element;
  Swizzle swizzle;

  std::uint32_t row_bytes() const { return box[0] * element_bytes(element); }
  std::uint32_t rows() const { return std::uint32_t{box[1]} * box[2] * box[3] * box[4]; }
  /// What arrives at the mbarrier.
  std::uint32_t box_bytes() const { return row_bytes() * rows(); }
};

/// False for 128 bytes that make_tensor_map did not write: a default-constructed map, say.
bool is_tensor_map(const TensorMap& map);
TensorDescription describe(const TensorMap& map);

/// Which way a box goes. A reduce-add is a store.
enum class BoxMove { load, store };

/// Empty if TMA can move the box between these coordinates and a tile `tile` bytes behind the start of a block's
/// `shared_bytes` of shared memory; otherwise a sentence: a wrong number of coordinates, an innermost coordinate or a
/// tile off their alignment, a store to a negative coordinate, a tile past the end.
std::string box_fault(const TensorDescription& map, std::span<const int> at, std::size_t tile, std::size_t shared_bytes,
                      BoxMove move);
/// Empty if tma_reduce_add takes arrays of this element; otherwise a sentence.
std::string reduce_fault(const TensorDescription& map);

/// One row of a box: neighbours in the innermost dimension. The part inside the array lies at `global`; in front of it
/// and behind it, or everywhere if `inside_bytes` is 0, the row is outside.
struct BoxRow {
  unsigned char* global;       ///< the first byte inside the array; null if the row is outside
  std::uint32_t offset;        ///< where the row would start in the tile without a swizzle
  std::uint32_t inside_from;   ///< bytes of the row in front of the array
  std::uint32_t inside_bytes;  ///< bytes of the row in the array
};

/// The row with this number, 0 ≤ number < rows(), in the order in which they lie in the tile.
BoxRow box_row(const TensorDescription& map, std::span<const int> at, std::uint32_t number);

/// \name One row between device memory and the tile
/// A swizzle permutes the 16-byte chunks within each row, so the tile's bytes are `tile` … `tile + box_bytes()` with
/// and without one. It follows the address, that is `shared` has to be aligned to 1024 bytes.
/// @{
void load_row(const TensorDescription& map, const BoxRow& row, unsigned char* shared, std::size_t tile);
void store_row(const TensorDescription& map, const BoxRow& row, const unsigned char* shared, std::size_t tile);
/// Each element by itself is added atomically, also against other OS threads: rounded to nearest even in its own type.
/// Subnormal numbers are kept in all types, also in fp32, where red.add.f32 would take them for zero (seen on an H200,
/// tests/golden); a NaN becomes the type's 0x7FFF….
void reduce_add_row(const TensorDescription& map, const BoxRow& row, const unsigned char* shared, std::size_t tile);
/// @}

/// \name The whole box
/// `observe(row)` is called before a row is moved, for every row: to check the access to its bytes inside the array.
/// @{
template <class Observe>
void load_box(const TensorDescription& map, std::span<const int> at, unsigned char* shared, std::size_t tile,
              Observe&& observe) {
  for (std::uint32_t i = 0; i < map.rows(); ++i) {
    const BoxRow row = box_row(map, at, i);
    observe(row);
    load_row(map, row, shared, tile);
  }
}
template <class Observe>
void store_box(const TensorDescription& map, std::span<const int> at, const unsigned char* shared, std::size_t tile,
               Observe&& observe) {
  for (std::uint32_t i = 0; i < map.rows(); ++i) {
    const BoxRow row = box_row(map, at, i);
    observe(row);
    store_row(map, row, shared, tile);
  }
}
template <class Observe>
void reduce_add_box(const TensorDescription& map, std::span<const int> at, const unsigned char* shared,
                    std::size_t tile, Observe&& observe) {
  for (std::uint32_t i = 0; i < map.rows(); ++i) {
    const BoxRow row = box_row(map, at, i);
    observe(row);
    reduce_add_row(map, row, shared, tile);
  }
}
/// @}

}  // namespace gpu::emulator
