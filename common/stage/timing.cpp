#include "common/stage/timing.hpp"

#include <algorithm>
#include <limits>
#include <string_view>

#include "common/attention/cost.hpp"
#include "common/stage/program.hpp"

namespace stage {
namespace {

constexpr std::size_t kMinSamples = 20;
constexpr std::size_t kMinLongSamples = 5;  // of a kernel that takes more than kLongSeconds for them
constexpr double kLongSeconds = 1.5;
constexpr std::size_t kMaxSamples = 200;
constexpr double kSampleSeconds = 1;

/// "NVIDIA H100 80GB HBM3" is "H100"; the PCIe, NVL and partitioned forms have other figures than the SXM's.
bool is_machine(const gpu::DeviceInfo& device, std::string_view known) {
  const std::string_view model = known.substr(0, known.find(' '));
  const std::string_view name = device.name;
  for (const char* other : {"PCIe", "PCIE", "NVL", "MIG"}) {
    if (name.find(other) != std::string_view::npos) return false;
  }
  const auto at = name.find(model);
  if (at == std::string_view::npos || device.memory_total < 70'000'000'000) return false;
  const auto after = at + model.size();
  return (at == 0 || name[at - 1] == ' ') && (after == name.size() || name[after] == ' ' || name[after] == '-');
}

}  // namespace

double median(std::vector<double> samples) {
  if (samples.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(samples.begin(), samples.end());
  const std::size_t middle = samples.size() / 2;
  return samples.size() % 2 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
}

std::vector<double> time_launches(const Clock& clock, const std::function<void()>& launch) {
  warm_up([&] { return clock(launch); });
  std::vector<double> samples;
  double spent = 0;
  const auto enough = [&] {
    if (spent > kLongSeconds) return samples.size() >= kMinLongSamples;
    return samples.size() >= kMinSamples && (spent >= kSampleSeconds || samples.size() >= kMaxSamples);
  };
  while (!enough()) {
    samples.push_back(clock(launch));
    spent += samples.back();
  }
  return samples;
}

RotatedInputs::RotatedInputs(const attention::Problem& p, const attention::Inputs& inputs) {
  constexpr std::size_t kAlign = 64;  // 256 bytes, as an allocation of its own would have
  const auto aligned = [](std::size_t elements) { return (elements + kAlign - 1) / kAlign * kAlign; };
  k_offset_ = aligned(static_cast<std::size_t>(p.elements_q()));
  v_offset_ = k_offset_ + aligned(static_cast<std::size_t>(p.elements_k()));
  stride_ = std::max(kAlign, v_offset_ + aligned(static_cast<std::size_t>(p.elements_v())));

  constexpr std::size_t kColdBytes = 240'000'000;
  const std::size_t bytes = stride_ * sizeof(float);
  copies_ = std::max<std::size_t>(1, std::min(kColdBytes / bytes + 1, gpu::memory_available() / 2 / bytes));
  arena_ = gpu::DeviceBuffer<float>(copies_ * stride_, "rotated inputs");
  const auto put = [&](std::size_t offset, const std::vector<float>& values) {
    if (!values.empty()) gpu::copy_to_device(arena_.data() + offset, values.data(), values.size() * sizeof(float));
  };
  for (std::size_t copy = 0; copy < copies_; ++copy) {
    put(copy * stride_, inputs.q);
    put(copy * stride_ + k_offset_, inputs.k);
    put(copy * stride_ + v_offset_, inputs.v);
  }
}

void RotatedInputs::bind_next(attention::ForwardArgs<float>& args) {
  const float* base = arena_.data() + next_ * stride_;
  args.q_gmem = base;
  args.k_gmem = base + k_offset_;
  args.v_gmem = base + v_offset_;
  next_ = (next_ + 1) % copies_;
}

const attention::Machine* known_machine(const gpu::DeviceInfo& device) {
  for (const attention::Machine& machine : attention::known_machines()) {
    if (is_machine(device, machine.name)) return &machine;
  }
  return nullptr;
}

std::optional<double> fp32_roof(const gpu::DeviceInfo& device, const attention::Problem& p) {
  const double bytes = attention::compulsory_traffic(p, sizeof(float)).total();
  const attention::Machine* machine = known_machine(device);
  if (bytes <= 0 || !machine) return std::nullopt;
  return attention::attainable_flops(attention::forward_flops(p) / bytes, machine->fp32_flops,
                                     machine->bytes_per_second);
}

}  // namespace stage
