/// \file
/// Guard bands, poison and launches.

#include "tests/common/suite/guarded_run.hpp"

#include <cmath>
#include <cstring>
#include <exception>

#include "common/gpu/buffer.hpp"

namespace suite {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// 256 bytes: the alignment of a device buffer survives a guard before it.
constexpr std::size_t kGuard = 64;

std::size_t guard_elements(stage::Memory memory) {
  return memory == stage::Memory::device && gpu::device().checked ? 0 : kGuard;
}

/// O before a launch: NaN where a result belongs, the sentinel in the gaps.
std::vector<float> poisoned_o(const attention::Problem& p) {
  std::vector<float> image(static_cast<std::size_t>(p.elements_o()), kSentinel);
  const attention::Strides strides = p.strides_o();
  for (int b = 0; b < p.batch; ++b)
    for (int i = 0; i < p.seqlen_q; ++i)
      for (int h = 0; h < p.heads_q; ++h) {
        const auto row = image.begin() + strides.offset(b, i, h);
        std::fill(row, row + p.head_dim, kNaN);
      }
  return image;
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

/// An array between two guards, on the host or on the device. Its image, guards included, is kept on the host.
class GuardedRun::Array {
 public:
  Array(stage::Memory memory, const char* label, std::vector<float> content, float guard)
      : guard_(guard_elements(memory)), image_(content.size() + 2 * guard_, guard) {
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

  /// Puts the image back.
  void reset() {
    if (!host_.empty()) {
      std::copy(image_.begin(), image_.end(), host_.begin() + host_shift_);
    } else {
      device_.upload(image_);
    }
  }

  /// As reset, but everything between the guards becomes memory that nobody has written.
  void poison() {
    reset();
    if (!host_.empty()) {
      std::memset(data(), 0xFF, size() * sizeof(float));
    } else if (size() > 0) {
      gpu::fill_bytes(data(), 0xFF, size() * sizeof(float));
    }
  }

  float* data() {
    if (!host_.empty()) return host_.data() + host_shift_ + guard_;
    return device_.size() ? device_.data() + guard_ : nullptr;
  }
  std::size_t size() const { return image_.size() - 2 * guard_; }

  /// What lies between the guards. Writes into the guards are added to `failures`.
  std::vector<float> read(const std::string& label, Failures& failures) const {
    std::vector<float> all =
        host_.empty() ? device_.download()
                      : std::vector<float>(host_.begin() + host_shift_, host_.begin() + host_shift_ + image_.size());
    for (std::size_t i = 0; i < guard_; ++i) {
      if (!same_bits({&all[i], 1}, {&image_[i], 1})) {
        failures.push_back(label + ": something was written " + std::to_string(guard_ - i) + " elements before it");
        break;
      }
    }
    for (std::size_t i = guard_ + size(); i < all.size(); ++i) {
      if (!same_bits({&all[i], 1}, {&image_[i], 1})) {
        failures.push_back(label + ": something was written " + std::to_string(i - guard_ - size() + 1) +
                           " elements past its end");
        break;
      }
    }
    return {all.begin() + guard_, all.begin() + guard_ + size()};
  }

  std::span<const float> content() const { return {image_.data() + guard_, size()}; }

 private:
  std::size_t guard_;
  std::vector<float> image_;
  std::vector<float> host_;
  std::size_t host_shift_ = 0;
  gpu::DeviceBuffer<float> device_;
};

GuardedRun::GuardedRun(const stage::ForwardKernel& kernel, const attention::Problem& problem,
                       const attention::Inputs& inputs)
    : kernel_(kernel), problem_(problem) {
  kernel.require(problem);
  const auto array = [&](const char* label, std::vector<float> content, float guard) {
    return std::make_unique<Array>(kernel.memory, label, std::move(content), guard);
  };
  q_array_ = array("Q", inputs.q, kNaN);
  k_array_ = array("K", inputs.k, kNaN);
  v_array_ = array("V", inputs.v, kNaN);
  o_array_ = array("O", poisoned_o(problem), kSentinel);
  lse_array_ = array("LSE", std::vector<float>(static_cast<std::size_t>(problem.elements_lse()), kNaN), kSentinel);
  const std::size_t workspace = (kernel.workspace_bytes(problem) + sizeof(float) - 1) / sizeof(float);
  workspace_array_ = array("workspace", std::vector<float>(workspace, kNaN), kSentinel);
}

GuardedRun::~GuardedRun() = default;

Failures GuardedRun::launch() {
  Failures failures;
  o_array_->reset();
  lse_array_->reset();
  workspace_array_->poison();
  try {
    gpu::reset_counts();
    kernel_.run(attention::make_forward_args<float>(problem_, q_array_->data(), k_array_->data(), v_array_->data(),
                                                    o_array_->data(), lse_array_->data()),
                workspace_array_->data());
    gpu::synchronize();
  } catch (const std::exception& error) {
    return {std::string("the launch failed: ") + error.what()};
  }
  const std::optional<gpu::Counts> counts = gpu::counts();
  if (counts && kernel_.memory == stage::Memory::device && kernel_.traffic) {
    const attention::Traffic predicted = kernel_.traffic(problem_);
    const auto compare = [&](const char* what, std::uint64_t counted, double expected) {
      if (static_cast<double>(counted) != expected) {
        failures.push_back(std::string("bytes ") + what + ": counted " + std::to_string(counted) + ", predicted " +
                           bytes_text(expected));
      }
    };
    compare("loaded", counts->global_loaded, predicted.loaded);
    compare("stored", counts->global_stored, predicted.stored);
  }

  o_ = o_array_->read("O", failures);
  lse_ = lse_array_->read("LSE", failures);
  workspace_array_->read("workspace", failures);
  for (std::size_t i = 0; i < o_.size(); ++i) {
    const bool gap = o_array_->content()[i] == kSentinel;
    if (gap && o_[i] != kSentinel) {
      failures.push_back("O: something was written into the gap at element " + std::to_string(i));
      break;
    }
  }
  const auto unchanged = [&](const Array& array, const std::string& label) {
    if (!same_bits(array.read(label, failures), array.content())) failures.push_back(label + " was changed");
  };
  unchanged(*q_array_, "Q");
  unchanged(*k_array_, "K");
  unchanged(*v_array_, "V");
  return failures;
}

float GuardedRun::o(int b, int query, int head, int column) const {
  return o_[static_cast<std::size_t>(problem_.strides_o().offset(b, query, head) + column)];
}

float GuardedRun::lse(int b, int query, int head) const {
  return lse_[(static_cast<std::size_t>(b) * problem_.heads_q + head) * problem_.seqlen_q + query];
}

ScheduleScope::ScheduleScope(std::uint64_t seed, gpu::Delivery delivery) : saved_(gpu::emulator_options()) {
  gpu::EmulatorOptions options = saved_;
  options.schedule_seed = seed;
  options.delivery = delivery;
  gpu::set_emulator_options(options);
}

ScheduleScope::~ScheduleScope() { gpu::set_emulator_options(saved_); }

}  // namespace suite
