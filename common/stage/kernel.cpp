#include "common/stage/kernel.hpp"

#include <fmt/format.h>

namespace stage {

void require_head_dim_32_64_128(const std::string& kernel, const attention::Problem& p) {
  if (p.head_dim != 32 && p.head_dim != 64 && p.head_dim != 128) {
    throw Refused(fmt::format("{} does not take head_dim {}; allowed: 32, 64, 128", kernel, p.head_dim));
  }
}

}  // namespace stage
