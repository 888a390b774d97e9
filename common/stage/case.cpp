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

Numbers::Numbers(const Bytes& bytes, attention::ElementType type)
    : copy_(type == ElementType::fp32 ? std::vector<float>() : attention::decode(bytes, type)),
      numbers_(type == ElementType::fp32
                   ? std::span(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float))
                   : std::span<const float>(copy_)) {}

}  // namespace stage
