/// \file
/// Guard bands, poison, counted bytes.

#include "tests/common/suite/guarded_array.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

namespace suite {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// 256 bytes: the alignment of a device buffer survives a guard before it.
constexpr std::size_t kGuard = 64;

std::size_t guard_elements(stage::Memory memory) {
  return memory == stage::Memory::device && gpu::device().checked ? 0 : kGuard;
}

std::string bytes_text(double bytes) { return std::to_string(static_cast<long long>(bytes)); }

}  // namespace

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
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

GuardedArray::GuardedArray(stage::Memory memory, const char* label, std::vector<float> content, float guard)
    : label_(label), guard_(guard_elements(memory)), image_(content.size() + 2 * guard_, guard) {
  std::copy(content.begin(), content.end(), image_.begin() + guard_);
  if (memory == stage::Memory::host) {
    // Room to start at a multiple of 64 bytes.
    host_.resize(image_.size() + 16);
    host_shift_ = (64 - reinterpret_cast<std::uintptr_t>(host_.data()) % 64) % 64 / sizeof(float);
  } else {
    device_ = gpu::DeviceBuffer<float>(image_.size(), label);
  }
  reset();
}

void GuardedArray::reset() {
  if (!host_.empty()) {
    std::copy(image_.begin(), image_.end(), host_.begin() + host_shift_);
  } else {
    device_.upload(image_);
  }
}

void GuardedArray::poison() {
  reset();
  if (!host_.empty()) {
    std::memset(data(), 0xFF, size() * sizeof(float));
  } else if (size() > 0) {
    gpu::fill_bytes(data(), 0xFF, size() * sizeof(float));
  }
}

float* GuardedArray::data() {
  if (!host_.empty()) return host_.data() + host_shift_ + guard_;
  return device_.size() ? device_.data() + guard_ : nullptr;
}

std::vector<float> GuardedArray::read(Failures& failures) const {
  std::vector<float> all =
      host_.empty() ? device_.download()
                    : std::vector<float>(host_.begin() + host_shift_, host_.begin() + host_shift_ + image_.size());
  for (std::size_t i = 0; i < guard_; ++i) {
    if (!same_bits({&all[i], 1}, {&image_[i], 1})) {
      failures.push_back(label_ + ": something was written " + std::to_string(guard_ - i) + " elements before it");
      break;
    }
  }
  for (std::size_t i = guard_ + size(); i < all.size(); ++i) {
    if (!same_bits({&all[i], 1}, {&image_[i], 1})) {
      failures.push_back(label_ + ": something was written " + std::to_string(i - guard_ - size() + 1) +
                         " elements past its end");
      break;
    }
  }
  return {all.begin() + guard_, all.begin() + guard_ + size()};
}

std::vector<float> GuardedArray::read_result(Failures& failures) const {
  std::vector<float> values = read(failures);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (content()[i] == kSentinel && values[i] != kSentinel) {
      failures.push_back(label_ + ": something was written into the gap at element " + std::to_string(i));
      break;
    }
  }
  return values;
}

void GuardedArray::expect_unchanged(Failures& failures) const {
  if (!same_bits(read(failures), content())) failures.push_back(label_ + " was changed");
}

GuardedArray guarded_workspace(stage::Memory memory, std::size_t bytes) {
  const std::size_t elements = (bytes + sizeof(float) - 1) / sizeof(float);
  return {memory, "workspace", std::vector<float>(elements, kNaN), kSentinel};
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

ScheduleScope::ScheduleScope(std::uint64_t seed, gpu::Delivery delivery) : saved_(gpu::emulator_options()) {
  gpu::EmulatorOptions options = saved_;
  options.schedule_seed = seed;
  options.delivery = delivery;
  gpu::set_emulator_options(options);
}

ScheduleScope::~ScheduleScope() { gpu::set_emulator_options(saved_); }

}  // namespace suite
