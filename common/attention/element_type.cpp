#include "common/attention/element_type.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace attention {
namespace {

template <class Stored>
std::vector<std::byte> encode_as(std::span<const float> values) {
  std::vector<Stored> stored(values.size());
  std::transform(values.begin(), values.end(), stored.begin(), [](float x) { return static_cast<Stored>(x); });
  const auto bytes = std::as_bytes(std::span(stored));
  return {bytes.begin(), bytes.end()};
}

template <class Stored>
std::vector<float> decode_from(std::span<const std::byte> bytes) {
  if (bytes.size() % sizeof(Stored) != 0) {
    throw std::invalid_argument(std::to_string(bytes.size()) + " bytes are no whole number of elements of " +
                                std::to_string(sizeof(Stored)));
  }
  std::vector<Stored> stored(bytes.size() / sizeof(Stored));
  if (!bytes.empty()) std::memcpy(static_cast<void*>(stored.data()), bytes.data(), bytes.size());
  std::vector<float> values(stored.size());
  std::transform(stored.begin(), stored.end(), values.begin(), [](Stored x) { return static_cast<float>(x); });
  return values;
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
  if (type == ElementType::fp16) return decode_from<Eigen::half>(bytes);
  if (type == ElementType::bf16) return decode_from<Eigen::bfloat16>(bytes);
  return decode_from<float>(bytes);
}

}  // namespace attention
