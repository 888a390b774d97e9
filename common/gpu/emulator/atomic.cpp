/// \file
/// Atomics and the order between blocks.

#include "common/gpu/emulator/atomic.hpp"

#include <atomic>
#include <cstring>

#include "common/gpu/emulator/access.hpp"
#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

void note_device_order() {
  Launch& launch = t_thread->block->launch;
  if (launch.synchronised) launch.synchronised[t_thread->block->cluster.number] = 1;
}

/// Checks the address, and lets the checker know that the users of these words are ordered.
void prepare(const void* address, std::size_t bytes, Site site, std::size_t words = 1) {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  if (first % bytes) fault(site, "atomic on a misaligned address");
  note_device_order();
  if (!checking()) return;
  observe_access(address, bytes, AccessKind::atomic, Place::site(site));
  RaceChecker& race = *t_thread->block->race;
  for (std::size_t i = 0; i < words; ++i) race.atomic_order(race.agent_of(*t_thread), first + i * (bytes / words));
}

template <class T>
T apply(AtomicOperation operation, T old, T value) {
  switch (operation) {
    case AtomicOperation::add:
      return static_cast<T>(old + value);
    case AtomicOperation::maximum:
      return std::max(old, value);
    case AtomicOperation::minimum:
      return std::min(old, value);
    default:
      return value;
  }
}

}  // namespace

template <class T>
T atomic_update(AtomicOperation operation, T* address, T value, Site site) {
  const Unwatched scope;
  prepare(address, sizeof(T), site);
  const std::atomic_ref<T> word(*address);
  T old = word.load();
  while (!word.compare_exchange_weak(old, apply(operation, old, value))) {
  }
  const T now = apply(operation, old, value);
  take_turns("an atomic", site, std::memcmp(&old, &now, sizeof(T)) != 0);
  return old;
}
template int atomic_update(AtomicOperation, int*, int, Site);
template unsigned atomic_update(AtomicOperation, unsigned*, unsigned, Site);
template unsigned long long atomic_update(AtomicOperation, unsigned long long*, unsigned long long, Site);
template float atomic_update(AtomicOperation, float*, float, Site);
template double atomic_update(AtomicOperation, double*, double, Site);

void atomic_add4(float* address, const float4& x, Site site) {
  const Unwatched scope;
  prepare(address, sizeof x, site, 4);
  const float values[] = {x.x, x.y, x.z, x.w};
  for (int i = 0; i < 4; ++i) {
    const std::atomic_ref<float> word(address[i]);
    float old = word.load();
    while (!word.compare_exchange_weak(old, old + values[i])) {
    }
  }
  // Nobody waits for a sum that this call does not return: it always counts as progress.
  take_turns("an atomic", site, true);
}

template <class T>
T atomic_compare_and_swap(T* address, T expected, T desired, Site site) {
  const Unwatched scope;
  prepare(address, sizeof(T), site);
  T old = expected;
  const bool swapped = std::atomic_ref<T>(*address).compare_exchange_strong(old, desired);
  take_turns("an atomic", site, swapped && expected != desired);
  return old;
}
template int atomic_compare_and_swap(int*, int, int, Site);
template unsigned atomic_compare_and_swap(unsigned*, unsigned, unsigned, Site);

unsigned atomic_load(const unsigned* address, Site site) {
  const Unwatched scope;
  take_turns("a poll (load_acquire)", site, false);
  prepare(address, sizeof(unsigned), site);
  return std::atomic_ref<unsigned>(*const_cast<unsigned*>(address)).load();
}

void atomic_store(unsigned* address, unsigned value, Site site) {
  const Unwatched scope;
  prepare(address, sizeof(unsigned), site);
  std::atomic_ref<unsigned>(*address).store(value);
  take_turns("a signal (store_release)", site, true);
}

void memory_fence() noexcept { note_device_order(); }

void pause(Site site) {
  const Unwatched scope;
  take_turns("__nanosleep", site, false);
}

}  // namespace gpu::emulator
