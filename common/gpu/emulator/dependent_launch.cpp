/// \file
/// Kernels that overlap. Here they do not; the checking build reports what would go wrong if they did (race.hpp).

#include "common/gpu/emulator/dependent_launch.hpp"

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {

void wait_for_kernel_before(Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  RaceChecker* const race = t_thread->block->race;
  if (race) race->previous_kernel_ended(race->agent_of(*t_thread));
}

}  // namespace gpu::emulator
