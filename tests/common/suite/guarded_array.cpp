/// \file
/// Guard bands, poison, counted bytes.

#include "tests/common/suite/guarded_array.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

namespace suite {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// The alignment of a device buffer survives a guard of so many bytes before it.
constexpr std::size_t kGuardBytes = 256;

/// Host arrays start at a multiple of it.
constexpr std::size_t kHostAlignment = 64;

std::size_t guard_bytes(stage::Memory memory) {
  return memory == stage::Memory::device && gpu::device().checked ? 0 : kGuardBytes;
}

std::string bytes_text(double bytes) { return std::to_string(static_cast<long long>(bytes)); }

}  // namespace

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

std::vector<float> rounded(std::vector<float> values, attention::ElementType type) {
  for (float& value : values) value = attention::rounded(value, type);
  return values;
}

std::vector<float> relayout(std::span<const float> from, const attention::Strides& from_strides, int batch, int seqlen,
                            int heads, int head_dim, const attention::Strides& to_strides, float gap) {
  std::vector<float> to;
  if (batch > 0 && seqlen > 0 && heads > 0) {
    to.assign(static_cast<std::size_t>(to_strides.offset(batch - 1, seqlen - 1, heads - 1) + head_dim), gap);
  }
  for (int b = 0; b < batch; ++b)
    for (int i = 0; i < seqlen; ++i)
      for (int h = 0; h < heads; ++h) {
        const auto source = from.begin() + from_strides.offset(b, i, h);
        std::copy(source, source + head_dim, to.begin() + to_strides.offset(b, i, h));
      }
  return to;
}

std::vector<float> poisoned_result(std::int64_t elements, const attention::Strides& strides, int batch, int seqlen,
                                   int heads, int head_dim) {
  std::vector<float> image(static_cast<std::size_t>(elements), kSentinel);
  for (int b = 0; b < batch; ++b)
    for (int i = 0; i < seqlen; ++i)
      for (int h = 0; h < heads; ++h) {
        const auto row = image.begin() + strides.offset(b, i, h);
        std::fill(row, row + head_dim, kNaN);
      }
  return image;
}

GuardedArray::GuardedArray(stage::Memory memory, const char* label, attention::ElementType type,
                           std::vector<float> content, float guard)
    : GuardedArray(memory, label, type, guard, attention::encode(content, type)) {
  const std::vector<float> stored = attention::decode(attention::encode(content, type), type);
  for (std::size_t i = 0; i < content.size(); ++i) {
    if (stored[i] == content[i] || (std::isnan(stored[i]) && std::isnan(content[i]))) continue;
    throw std::invalid_argument(label_ + ": element " + std::to_string(i) + ", " + std::to_string(content[i]) +
                                ", is no number of " + attention::name(type) + "; round what a kernel is to be given");
  }
  content_ = std::move(content);
}

GuardedArray::GuardedArray(stage::Memory memory, const char* label, attention::ElementType type, float guard,
                           const Bytes& content)
    : label_(label), type_(type), guard_(guard_bytes(memory)) {
  const Bytes band = attention::encode(
      std::vector<float>(guard_ / static_cast<std::size_t>(attention::element_bytes(type)), guard), type);
  for (const Bytes* part : {&band, &content, &band}) image_.insert(image_.end(), part->begin(), part->end());
  if (memory == stage::Memory::host) {
    host_.resize(image_.size() + kHostAlignment);
    host_shift_ = (kHostAlignment - reinterpret_cast<std::uintptr_t>(host_.data()) % kHostAlignment) % kHostAlignment;
  } else {
    device_ = gpu::DeviceBuffer<std::byte>(image_.size(), label);
  }
  reset();
}

GuardedArray GuardedArray::workspace(stage::Memory memory, std::size_t bytes) {
  return {memory, "workspace", attention::ElementType::fp32, kSentinel, Bytes(bytes, std::byte{0xFF})};
}

void GuardedArray::reset() {
  if (!host_.empty()) {
    std::copy(image_.begin(), image_.end(), host_.begin() + static_cast<std::ptrdiff_t>(host_shift_));
  } else {
    device_.upload(image_);
  }
}

void GuardedArray::poison() {
  reset();
  if (!host_.empty()) {
    std::memset(data(), 0xFF, size_bytes());
  } else if (size_bytes() > 0) {
    gpu::fill_bytes(data(), 0xFF, size_bytes());
  }
}

void* GuardedArray::data() {
  if (!host_.empty()) return host_.data() + host_shift_ + guard_;
  return device_.size() ? device_.data() + guard_ : nullptr;
}

GuardedArray::Bytes GuardedArray::read_bytes(Failures& failures) const {
  const std::byte* host = host_.data() + host_shift_;
  const Bytes all = host_.empty() ? device_.download() : Bytes(host, host + image_.size());
  const std::size_t end = guard_ + size_bytes();
  for (std::size_t i = 0; i < guard_; ++i) {
    if (all[i] == image_[i]) continue;
    failures.push_back(label_ + ": something was written " + std::to_string(guard_ - i) + " bytes before it");
    break;
  }
  for (std::size_t i = end; i < all.size(); ++i) {
    if (all[i] == image_[i]) continue;
    failures.push_back(label_ + ": something was written " + std::to_string(i - end + 1) + " bytes past its end");
    break;
  }
  return {all.begin() + static_cast<std::ptrdiff_t>(guard_), all.begin() + static_cast<std::ptrdiff_t>(end)};
}

std::vector<float> GuardedArray::read(Failures& failures) const {
  return attention::decode(read_bytes(failures), type_);
}

std::vector<float> GuardedArray::read_result(Failures& failures) const {
  std::vector<float> values = read(failures);
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Every number of the type is another float: this compares bits.
    if (content_[i] == kSentinel && values[i] != kSentinel) {
      failures.push_back(label_ + ": something was written into the gap at element " + std::to_string(i));
      break;
    }
  }
  return values;
}

void GuardedArray::expect_unchanged(Failures& failures) const {
  const Bytes bytes = read_bytes(failures);
  if (!std::equal(bytes.begin(), bytes.end(), image_.begin() + static_cast<std::ptrdiff_t>(guard_))) {
    failures.push_back(label_ + " was changed");
  }
}

void compare_traffic(stage::Memory memory, const attention::Traffic& predicted, double may_load_besides,
                     Failures& failures) {
  const std::optional<gpu::Counts> counts = gpu::counts();
  if (!counts || memory != stage::Memory::device) return;
  const auto compare = [&](const char* what, std::uint64_t counted, double least, double most) {
    if (static_cast<double>(counted) >= least && static_cast<double>(counted) <= most) return;
    failures.push_back(std::string("bytes ") + what + ": counted " + std::to_string(counted) + ", predicted " +
                       bytes_text(least) + (most > least ? " to " + bytes_text(most) : ""));
  };
  compare("loaded", counts->global_loaded, predicted.loaded, predicted.loaded + may_load_besides);
  compare("stored", counts->global_stored, predicted.stored, predicted.stored);
}

gpu::EmulatorOptions with_schedule(std::uint64_t seed, gpu::Delivery delivery) {
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.schedule_seed = seed;
  options.delivery = delivery;
  return options;
}

}  // namespace suite
