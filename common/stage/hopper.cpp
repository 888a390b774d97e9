#include "common/stage/hopper.hpp"

#include <fmt/format.h>

#include "common/gpu/device.hpp"
#include "common/stage/kernel.hpp"

namespace stage {

void require_hopper(const std::string& kernel) {
  constexpr int kHopper = 90;
  const gpu::DeviceInfo& device = gpu::device();
  if (device.compute_capability != kHopper) {
    throw Refused(
        fmt::format("{} uses instructions of sm_90a and does not run on {} (compute capability {}.{}); "
                    "allowed: Hopper GPUs (9.0) and the emulator",
                    kernel, device.name, device.compute_capability / 10, device.compute_capability % 10));
  }
}

void require_tensor_maps(const std::string& kernel, const attention::Problem& p) {
  const std::int64_t limit = (std::int64_t{1} << 40) / attention::element_bytes(p.element_type);
  const auto check = [&](const char* array, const attention::Strides& strides) {
    for (const std::int64_t stride : {strides.batch, strides.seq, strides.head}) {
      if (stride >= 0 && stride < limit) continue;
      throw Refused(fmt::format(
          "{} has its rows moved by TMA and does not take a stride of {} {} elements in {}; allowed: 0 to {}", kernel,
          stride, attention::name(p.element_type), array, limit - 1));
    }
  };
  check("Q", p.strides_q());
  check("K", p.strides_k());
  check("V", p.strides_v());
  check("O", p.strides_o());
}

}  // namespace stage
