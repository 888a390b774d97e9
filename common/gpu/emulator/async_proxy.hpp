#pragma once
/// \file
/// fence.proxy.async on the emulator.

#include "common/gpu/emulator/language.hpp"

namespace gpu {
namespace emulator {

void fence_async_proxy(Site site);

}  // namespace emulator

inline void async_proxy_fence(emulator::Site site = emulator::Site::here()) { emulator::fence_async_proxy(site); }

}  // namespace gpu
