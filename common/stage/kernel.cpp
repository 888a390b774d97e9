#include "common/stage/kernel.hpp"

#include <fmt/format.h>

#include "common/gpu/device.hpp"

namespace stage {

void require_head_dim_32_64_128(const std::string& kernel, const attention::Problem& p) {
  if (p.head_dim != 32 && p.head_dim != 64 && p.head_dim != 128) {
    throw Refused(fmt::format("{} does not take head_dim {}; allowed: 32, 64, 128", kernel, p.head_dim));
  }
}

void require_shared_memory(const std::string& kernel, std::size_t bytes) {
  if (bytes > gpu::shared_memory_limit()) {
    throw Refused(fmt::format("{} needs {} bytes of shared memory a block; allowed on {}: {}", kernel, bytes,
                              gpu::device().name, gpu::shared_memory_limit()));
  }
}

void require_16_byte_rows(const std::string& kernel, const attention::Problem& p) {
  const auto require = [&](const char* array, const attention::Strides& strides) {
    for (const std::int64_t stride : {strides.batch, strides.seq, strides.head}) {
      if (stride % 4 != 0) {
        throw Refused(
            fmt::format("{} loads four floats at once and does not take a stride of {} elements in {}; allowed: "
                        "multiples of 4",
                        kernel, stride, array));
      }
    }
  };
  require("Q", p.strides_q());
  require("K", p.strides_k());
  require("V", p.strides_v());
  require("O", p.strides_o());
}

}  // namespace stage
