#include "common/attention/element_type.hpp"

#include <Eigen/Core>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "common/attention/in_parallel.hpp"

namespace attention {
namespace {

constexpr std::int64_t kElementsPerPart = std::int64_t{1} << 18;

template <class Stored>
std::vector<std::byte> encode_as(std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * sizeof(Stored));
  const auto elements = static_cast<std::int64_t>(values.size());
  in_parallel_parts(elements, kElementsPerPart, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const auto stored = static_cast<Stored>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(Stored), &stored, sizeof(Stored));
    }
  });
  return bytes;
}

template <class Stored>
void decode_from(std::span<const std::byte> bytes, float* values) {
  const auto elements = static_cast<std::int64_t>(bytes.size() / sizeof(Stored));
  in_parallel_parts(elements, kElementsPerPart, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      Stored stored;
      std::memcpy(static_cast<void*>(&stored), bytes.data() + i * sizeof(Stored), sizeof(Stored));
      values[i] = static_cast<float>(stored);
    }
  });
}

/// \throws std::invalid_argument if the bytes are no whole number of elements.
std::size_t elements_in(std::span<const std::byte> bytes, ElementType type) {
  const auto size = static_cast<std::size_t>(element_bytes(type));
  if (bytes.size() % size == 0) return bytes.size() / size;
  throw std::invalid_argument(std::to_string(bytes.size()) + " bytes are no whole number of elements of " +
                              std::to_string(size));
}

}  // namespace

std::string name(ElementType type) {
  switch (type) {
    case ElementType::fp32:
      return "fp32";
    case ElementType::fp16:
      return "fp16";
    case ElementType::bf16:
      return "bf16";
  }
  throw std::invalid_argument("no such element type");
}

float rounded(float x, ElementType type) {
  if (type == ElementType::fp16) return static_cast<float>(static_cast<Eigen::half>(x));
  if (type == ElementType::bf16) return static_cast<float>(static_cast<Eigen::bfloat16>(x));
  return x;
}

std::vector<std::byte> encode(std::span<const float> values, ElementType type) {
  if (type == ElementType::fp16) return encode_as<Eigen::half>(values);
  if (type == ElementType::bf16) return encode_as<Eigen::bfloat16>(values);
  return encode_as<float>(values);
}

std::vector<float> decode(std::span<const std::byte> bytes, ElementType type) {
  std::vector<float> values(elements_in(bytes, type));
  decode(bytes, type, values.data());
  return values;
}

void decode(std::span<const std::byte> bytes, ElementType type, float* values) {
  elements_in(bytes, type);
  if (type == ElementType::fp16) return decode_from<Eigen::half>(bytes, values);
  if (type == ElementType::bf16) return decode_from<Eigen::bfloat16>(bytes, values);
  decode_from<float>(bytes, values);
}

}  // namespace attention
