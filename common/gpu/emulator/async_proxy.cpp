/// \file
/// The fence between the proxies. Only the checking build knows what it is good for: here, memory is memory.

#include "common/gpu/emulator/async_proxy.hpp"

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {

void fence_async_proxy(Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  RaceChecker* const race = t_thread->block->race;
  if (race) race->async_proxy_fence(race->agent_of(*t_thread));
}

}  // namespace gpu::emulator
