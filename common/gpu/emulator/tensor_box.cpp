/// \file
/// Boxes of arrays: tensor_map.hpp on the emulator, and the bytes that TMA moves.

#include "common/gpu/emulator/tensor_box.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/gpu/numeric.cuh"

namespace gpu {
namespace emulator {
namespace {

constexpr std::uint64_t kMark = 0x70616d726f736e74;  // any number that chance does not bring
constexpr std::uint32_t kChunk = 16;                 ///< what a swizzle moves as a whole
constexpr std::uint32_t kMaxRowBytes = 256 * 4;

static_assert(sizeof(TensorDescription) <= sizeof(TensorMap));

/// Calls move(place of the chunk, offset in the row) for each chunk of a row.
template <class Byte, class Move>
void for_each_chunk(const TensorDescription& map, const BoxRow& row, Byte* shared, std::size_t tile, Move&& move) {
  const std::uint32_t start = static_cast<std::uint32_t>(tile) + row.offset;
  for (std::uint32_t i = 0; i < map.row_bytes(); i += kChunk) {
    move(shared + swizzled_offset(map.swizzle, start + i), i);
  }
}

void gather_row(const TensorDescription& map, const BoxRow& row, const unsigned char* shared, std::size_t tile,
                unsigned char* bytes) {
  for_each_chunk(map, row, shared, tile,
                 [&](const unsigned char* chunk, std::uint32_t i) { std::memcpy(bytes + i, chunk, kChunk); });
}

std::uint32_t sum(std::uint32_t a, std::uint32_t b) {
  const float x = std::bit_cast<float>(a) + std::bit_cast<float>(b);
  return std::isnan(x) ? 0x7fffffffu : std::bit_cast<std::uint32_t>(x);
}

/// fp32 has more than twice the fraction bits of both formats, so rounding twice is rounding once.
template <class Format>
std::uint16_t sum(std::uint16_t a, std::uint16_t b) {
  return from_float<Format>(to_float(Format{a}) + to_float(Format{b})).bits;
}

template <class Word, class Sum>
void add_each(unsigned char* to, const unsigned char* values, std::uint32_t bytes, Sum&& sum_of) {
  for (std::uint32_t i = 0; i < bytes; i += sizeof(Word)) {
    Word value;
    std::memcpy(&value, values + i, sizeof value);
    const std::atomic_ref<Word> word(*reinterpret_cast<Word*>(to + i));
    Word old = word.load(std::memory_order_relaxed);
    while (!word.compare_exchange_weak(old, sum_of(old, value), std::memory_order_relaxed)) {
    }
  }
}

}  // namespace

bool is_tensor_map(const TensorMap& map) { return map.words[0] == kMark; }

TensorDescription describe(const TensorMap& map) {
  TensorDescription description;
  std::memcpy(&description, &map, sizeof description);
  return description;
}

std::string box_fault(const TensorDescription& map, std::span<const int> at, std::size_t tile, std::size_t shared_bytes,
                      BoxMove move) {
  if (at.size() != map.rank) {
    return std::to_string(at.size()) + " coordinates for a tensor map of " + std::to_string(map.rank) + " dimensions";
  }
  const std::int64_t x_bytes = std::int64_t{at[0]} * element_bytes(map.element);
  if (x_bytes % kChunk != 0) {
    return "the innermost coordinate is " + std::to_string(at[0]) + ", which is " + std::to_string(x_bytes) +
           " bytes; it has to be a multiple of 16 bytes (an H200 stops with 'illegal instruction')";
  }
  if (move == BoxMove::store) {
    for (std::size_t d = 0; d < at.size(); ++d) {
      if (at[d] >= 0) continue;
      return "a store at coordinate " + std::to_string(at[d]) + " in dimension " + std::to_string(d) +
             "; allowed: 0 and more (an H200 stops with 'illegal instruction')";
    }
    const std::int64_t end = static_cast<std::int64_t>(map.sizes[0]);
    const std::int64_t end_bytes = end * element_bytes(map.element);
    if (at[0] < end && at[0] + map.box[0] > end && end_bytes % kChunk != 0) {
      return "a store cut " + std::to_string(end_bytes) +
             " bytes into a row, which is no multiple of 16: an H200 writes the rest of the 16 bytes, too, past the "
             "end "
             "of the array";
    }
  }
  if (tile % 128 != 0) {
    return "the tile starts " + std::to_string(tile) + " bytes into shared memory; allowed: multiples of 128";
  }
  if (tile + map.box_bytes() > shared_bytes) {
    return "the box of " + std::to_string(map.box_bytes()) + " bytes at byte " + std::to_string(tile) +
           " runs past the end of the " + std::to_string(shared_bytes) + " bytes of shared memory";
  }
  return {};
}

std::string reduce_fault(const TensorDescription& map) {
  if (map.element != TensorElement::bytes_1) return {};
  return "tma_reduce_add on elements of 1 byte; allowed: fp16, bf16, fp32";
}

BoxRow box_row(const TensorDescription& map, std::span<const int> at, std::uint32_t number) {
  BoxRow row{nullptr, number * map.row_bytes(), 0, 0};
  std::int64_t offset = 0;
  for (std::size_t d = 1; d < at.size(); ++d) {
    const std::int64_t i = std::int64_t{at[d]} + number % map.box[d];
    number /= map.box[d];
    if (i < 0 || i >= static_cast<std::int64_t>(map.sizes[d])) return row;
    offset += i * static_cast<std::int64_t>(map.stride_bytes[d - 1]);
  }
  const std::int64_t bytes = element_bytes(map.element), x = at[0];
  const std::int64_t begin = std::max<std::int64_t>(x, 0);
  const std::int64_t end = std::min<std::int64_t>(x + map.box[0], static_cast<std::int64_t>(map.sizes[0]));
  if (begin >= end) return row;
  row.global = map.base + offset + begin * bytes;
  row.inside_from = static_cast<std::uint32_t>((begin - x) * bytes);
  row.inside_bytes = static_cast<std::uint32_t>((end - begin) * bytes);
  return row;
}

void load_row(const TensorDescription& map, const BoxRow& row, unsigned char* shared, std::size_t tile) {
  unsigned char bytes[kMaxRowBytes];
  if (row.inside_bytes < map.row_bytes()) std::memset(bytes, 0, map.row_bytes());
  if (row.inside_bytes) std::memcpy(bytes + row.inside_from, row.global, row.inside_bytes);
  for_each_chunk(map, row, shared, tile,
                 [&](unsigned char* chunk, std::uint32_t i) { std::memcpy(chunk, bytes + i, kChunk); });
}

void store_row(const TensorDescription& map, const BoxRow& row, const unsigned char* shared, std::size_t tile) {
  if (!row.inside_bytes) return;
  unsigned char bytes[kMaxRowBytes];
  gather_row(map, row, shared, tile, bytes);
  std::memcpy(row.global, bytes + row.inside_from, row.inside_bytes);
}

void reduce_add_row(const TensorDescription& map, const BoxRow& row, const unsigned char* shared, std::size_t tile) {
  if (!row.inside_bytes) return;
  unsigned char bytes[kMaxRowBytes];
  gather_row(map, row, shared, tile, bytes);
  const unsigned char* const values = bytes + row.inside_from;
  switch (map.element) {
    case TensorElement::fp32:
      add_each<std::uint32_t>(row.global, values, row.inside_bytes,
                              [](std::uint32_t a, std::uint32_t b) { return sum(a, b); });
      break;
    case TensorElement::fp16:
      add_each<std::uint16_t>(row.global, values, row.inside_bytes, sum<fp16>);
      break;
    case TensorElement::bf16:
      add_each<std::uint16_t>(row.global, values, row.inside_bytes, sum<bf16>);
      break;
    case TensorElement::bytes_1:
      throw Error(reduce_fault(map));
  }
}

}  // namespace emulator

TensorMap make_tensor_map(const TensorMapShape& shape) {
  check_tensor_map_shape(shape);
  emulator::TensorDescription description{};
  description.mark = emulator::kMark;
  description.base = static_cast<unsigned char*>(shape.base);
  description.rank = static_cast<std::uint8_t>(shape.sizes.size());
  description.element = shape.element;
  description.swizzle = shape.swizzle;
  std::fill(std::begin(description.sizes), std::end(description.sizes), 1);
  std::fill(std::begin(description.box), std::end(description.box), std::uint16_t{1});
  std::copy(shape.sizes.begin(), shape.sizes.end(), description.sizes);
  std::copy(shape.stride_bytes.begin(), shape.stride_bytes.end(), description.stride_bytes);
  std::transform(shape.box.begin(), shape.box.end(), description.box,
                 [](std::uint32_t elements) { return static_cast<std::uint16_t>(elements); });
  TensorMap map{};
  std::memcpy(&map, &description, sizeof description);
  return map;
}

}  // namespace gpu
