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

RotatedInputs::RotatedInputs(const std::vector<InputArray>& inputs) {
  constexpr std::size_t kAlign = 256;  // as an allocation of its own would have
  for (const InputArray& input : inputs) {
    offsets_.push_back(stride_);
    stride_ += (input.bytes.size() + kAlign - 1) / kAlign * kAlign;
  }
  stride_ = std::max(kAlign, stride_);

  constexpr std::size_t kColdBytes = 240'000'000;
  copies_ = std::max<std::size_t>(1, std::min(kColdBytes / stride_ + 1, gpu::memory_available() / 2 / stride_));
  arena_ = gpu::DeviceBuffer<std::byte>(copies_ * stride_, "rotated inputs");
  for (std::size_t copy = 0; copy < copies_; ++copy) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto bytes = inputs[i].bytes;
      if (!bytes.empty()) gpu::copy_to_device(arena_.data() + copy * stride_ + offsets_[i], bytes.data(), bytes.size());
    }
  }
}

void RotatedInputs::bind_next(Pointers& arrays) {
  const std::byte* base = arena_.data() + next_ * stride_;
  arrays.inputs.clear();
  for (const std::size_t offset : offsets_) arrays.inputs.push_back(base + offset);
  next_ = (next_ + 1) % copies_;
}

const attention::Machine* known_machine(const gpu::DeviceInfo& device) {
  for (const attention::Machine& machine : attention::known_machines()) {
    if (is_machine(device, machine.name)) return &machine;
  }
  return nullptr;
}

double credited_flops(const attention::Problem& p, Pass pass) {
  return pass == Pass::forward ? attention::forward_flops(p) : attention::backward_flops(p);
}

std::optional<double> roof(const gpu::DeviceInfo& device, const attention::Problem& p, Pass pass) {
  const double forward_bytes = attention::compulsory_traffic(p, attention::element_bytes(p.element_type)).total();
  // Backward, dO, dQ, dK and dV come on top: as large as O, Q, K and V.
  const double lse_bytes = sizeof(float) * static_cast<double>(p.elements_lse());
  const double bytes = pass == Pass::forward ? forward_bytes : 2 * forward_bytes - lse_bytes;
  const attention::Machine* machine = known_machine(device);
  if (bytes <= 0 || !machine) return std::nullopt;
  const bool fp32 = p.element_type == attention::ElementType::fp32;
  return attention::attainable_flops(credited_flops(p, pass) / bytes,
                                     fp32 ? machine->fp32_flops : machine->tensor_flops, machine->bytes_per_second);
}

}  // namespace stage
