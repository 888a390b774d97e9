/// \file
/// cp.async: copies that arrive when their thread waits for them, or at once.

#include "common/gpu/emulator/async_copy.hpp"

#include <cstring>
#include <numeric>

#include "common/gpu/emulator/access.hpp"
#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

/// How many of the copies belong to groups.
std::size_t committed(const AsyncCopies& copies) {
  return std::accumulate(copies.groups.begin(), copies.groups.end(), std::size_t{0});
}

void arrive(const AsyncCopy& copy) {
  if (copy.from) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  } else {
    std::memset(copy.to, 0, copy.bytes);
  }
}

}  // namespace

void start_copy(void* to_smem, const void* from_gmem, std::size_t bytes, bool valid, Site site) {
  const Unwatched scope;
  Thread& me = *t_thread;
  Block& block = *me.block;
  const std::size_t offset = static_cast<std::size_t>(static_cast<unsigned char*>(to_smem) - block.memory->shared());
  if (offset > block.memory->shared_bytes() || offset + bytes > block.memory->shared_bytes()) {
    fault(site, "copy_async: the destination is not in this block's shared memory");
  }
  if (offset % bytes || (valid && reinterpret_cast<std::uintptr_t>(from_gmem) % bytes)) {
    fault(site, "copy_async: source and destination must be aligned to the " + std::to_string(bytes) + " bytes copied");
  }
  Place place;
  if (checking()) {
    place = Place::site(site);
    if (valid) observe_access(from_gmem, bytes, AccessKind::load, place);
    // From here until the wait it may write at any moment.
    observe_access(to_smem, bytes, AccessKind::store, place);
    block.race->set_pending(block.rank, offset, bytes, place);
  }
  if (leads_warp() && me.copies.started.size() == committed(me.copies)) record(TimelineEvent::Kind::issue, site);
  const AsyncCopy copy{static_cast<unsigned char*>(to_smem), valid ? from_gmem : nullptr, bytes, site, place};
  if (block.launch.options.delivery == Delivery::immediately) {
    arrive(copy);
  } else {
    std::memset(to_smem, 0xFF, bytes);
  }
  me.copies.started.push_back(copy);
}

void commit_copies() {
  const Unwatched scope;
  AsyncCopies& copies = t_thread->copies;
  copies.groups.push_back(copies.started.size() - committed(copies));
}

void wait_copies(std::size_t newest_left, Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  const TimelineWait timeline(site);
  Block& block = *t_thread->block;
  auto& [started, groups] = t_thread->copies;
  if (groups.size() <= newest_left) return;
  const auto groups_end = groups.end() - static_cast<std::ptrdiff_t>(newest_left);
  const auto end =
      started.begin() + static_cast<std::ptrdiff_t>(std::accumulate(groups.begin(), groups_end, std::size_t{0}));
  for (auto copy = started.begin(); copy != end; ++copy) {
    if (block.launch.options.delivery == Delivery::on_wait) arrive(*copy);
    if (!checking()) continue;
    block.race->set_pending(block.rank, static_cast<std::size_t>(copy->to - block.memory->shared()), copy->bytes,
                            Place());
    check_access(copy->to, copy->bytes, AccessKind::store, copy->place);  // counted when it started
  }
  started.erase(started.begin(), end);
  groups.erase(groups.begin(), groups_end);
}

/// A thread may not leave copies behind: its block's shared memory goes to the next block.
void require_no_copies(const Thread& thread) {
  const AsyncCopies& copies = thread.copies;
  if (copies.started.empty()) return;
  throw Error(Place::site(copies.started.front().site).name() + ": the thread exits without " +
              (committed(copies) > 0 ? "waiting for" : "committing") + " this copy_async " + position(thread));
}

}  // namespace gpu::emulator
