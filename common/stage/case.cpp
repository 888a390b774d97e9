#include "common/stage/case.hpp"

#include "common/stage/backward_run.hpp"
#include "common/stage/forward_run.hpp"

namespace stage {

using attention::ElementType;

std::unique_ptr<Case> make_case(Pass pass, const attention::Problem& p, std::uint64_t seed) {
  if (pass == Pass::forward) return std::make_unique<ForwardCase>(p, seed);
  return std::make_unique<BackwardCase>(p, seed);
}

StoredArray::StoredArray(const char* name, const std::vector<float>& values, attention::ElementType type)
    : copy_(type == ElementType::fp32 ? Bytes() : attention::encode(values, type)),
      array_{name, type == ElementType::fp32 ? std::as_bytes(std::span(values)) : std::span<const std::byte>(copy_)} {}

std::vector<InputArray> arrays_of(const std::vector<StoredArray>& stored) {
  std::vector<InputArray> arrays;
  for (const StoredArray& each : stored) arrays.push_back(each.array());
  return arrays;
}

Numbers::Numbers(const Bytes& bytes, attention::ElementType type) {
  const std::size_t elements = bytes.size() / static_cast<std::size_t>(attention::element_bytes(type));
  if (type == ElementType::fp32) {
    numbers_ = std::span(reinterpret_cast<const float*>(bytes.data()), elements);
    return;
  }
  copy_ = std::make_unique_for_overwrite<float[]>(elements);
  attention::decode(bytes, type, copy_.get());
  numbers_ = std::span<const float>(copy_.get(), elements);
}

}  // namespace stage
