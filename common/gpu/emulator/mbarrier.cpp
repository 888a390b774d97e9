/// \file
/// Barriers in shared memory. Their state is kept beside the block; the word in shared memory holds a mark, so that
/// whoever writes over it is noticed.

#include "common/gpu/mbarrier.cuh"

#include <algorithm>

#include "common/gpu/emulator/access.hpp"
#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

constexpr std::uint32_t kMost = (1u << 20) - 1;  ///< arrivals, and bytes under way (PTX ISA, "mbarrier")

/// The word of the barrier with this number in its block. The first part is any number that chance does not bring.
std::uint64_t mark(std::size_t number) { return 0x6d62617200000000u | number; }

std::string line_of(Site site) { return short_path(site.file) + ":" + std::to_string(site.line); }

std::string name_of(const MbarrierState& barrier) {
  return "the mbarrier at offset " + std::to_string(barrier.offset) + " of shared memory (initialised at " +
         line_of(barrier.initialised) + ")";
}

std::string state_of(const MbarrierState& barrier) {
  std::string text = "in phase " + std::to_string(barrier.phase) + ", ";
  if (barrier.missing > 0) {
    text += std::to_string(barrier.missing) + " of " + std::to_string(barrier.count) + " arrivals" +
            (barrier.bytes > 0 ? " and " : "");
  }
  if (barrier.bytes > 0) text += std::to_string(barrier.bytes) + " announced bytes";
  text += " are missing";
  if (barrier.bytes < 0) text += "; " + std::to_string(-barrier.bytes) + " bytes came that nobody has announced";
  return text;
}

std::size_t offset_of(const Mbarrier& barrier, const char* name, Site site) {
  const std::ptrdiff_t offset = t_thread->block->shared_offset(&barrier, sizeof barrier);
  if (offset < 0) fault(site, std::string(name) + ": the barrier is not in this block's shared memory");
  if (offset % 8) fault(site, std::string(name) + ": a barrier has to start at a multiple of 8 bytes");
  return static_cast<std::size_t>(offset);
}

MbarrierState& find_barrier(Block& block, std::size_t offset, const char* name, Site site) {
  std::uint64_t word = 0;
  std::memcpy(&word, block.memory->shared() + offset, sizeof word);
  const std::uint64_t number = word ^ mark(0);
  if (number < block.mbarriers.size() && block.mbarriers[number].offset == offset) return block.mbarriers[number];
  for (const MbarrierState& barrier : block.mbarriers) {
    if (barrier.offset == offset) fault(site, std::string(name) + ": somebody has written over " + name_of(barrier));
  }
  fault(site, std::string(name) + ": the barrier at offset " + std::to_string(offset) +
                  " of shared memory was never initialised");
}

/// The barrier that a thread of this block uses. Not inlined: a thread that waits need not keep the room for the texts
/// of faults in the cache.
[[gnu::noinline]] MbarrierState& use(const Mbarrier& barrier, const char* name, Site site) {
  Block& block = *t_thread->block;
  MbarrierState& state = find_barrier(block, offset_of(barrier, name, site), name, site);
  if (checking()) check_access(&barrier, sizeof barrier, AccessKind::atomic, Place::site(site));
  return state;
}

[[noreturn, gnu::noinline]] void report_parity(std::uint32_t parity, Site site) {
  fault(site, "mbarrier_wait: the parity is " + std::to_string(parity) + "; allowed: 0 and 1");
}

/// Ends the phase if nothing is missing. \param line_name says, for reports, the line of what happened last
template <class LineName>
void end_phase_if_complete(Block& block, MbarrierState& barrier, const LineName& line_name) {
  if (barrier.missing > 0 || barrier.bytes > 0) return;
  if (barrier.bytes < 0) {
    throw Error(line_name() + ": " + std::to_string(-barrier.bytes) + " bytes more have arrived at " +
                name_of(barrier) + " in phase " + std::to_string(barrier.phase) +
                " than were announced: the bytes of a copy are those of the whole box " + position(block));
  }
  for (const int t : barrier.woken) {
    const Thread& late = block.threads[static_cast<std::size_t>(t)];
    if (late.wait_object != &barrier || late.wait_number == barrier.phase) continue;  // through
    throw Error(line_name() + ": phase " + std::to_string(barrier.phase) + " of " + name_of(barrier) +
                " ends while thread " + std::to_string(late.linear) + " has not left its wait at " +
                line_of(late.site) +
                " for the phase before, and would take the next one for it: whoever arrives has to know that all "
                "waiters are through " +
                position(block, late.linear));
  }
  ++barrier.phase;
  barrier.missing = barrier.count;
  barrier.last = std::move(barrier.released);
  barrier.released.clear();
  barrier.woken = std::move(barrier.waiting);
  barrier.waiting.clear();
  for (const int t : barrier.woken) block.wake(t);
}

void arrive(Block& block, MbarrierState& barrier, const char* name, Site site) {
  if (barrier.missing == 0) {
    fault(site, std::string(name) + ": more arrivals than the " + std::to_string(barrier.count) + " that " +
                    name_of(barrier) + " expects; " + state_of(barrier));
  }
  --barrier.missing;
  if (block.race) block.race->release(block.race->agent_of(*t_thread), barrier.released);
  block.progress();
  t_thread->block->progress();
  end_phase_if_complete(block, barrier, [&] { return line_of(site); });
}

/// The async proxy and other blocks see a barrier only behind its initialiser's fence.
void require_fenced(const MbarrierState& barrier, const Block& block, const char* name, Site site) {
  if (!barrier.fenced) {
    fault(site, std::string(name) + ": the initialisation of " + name_of(barrier) +
                    " may not be visible: its thread has not called mbarrier_init_fence()");
  }
  if (!block.race) return;
  const int me = block.race->agent_of(*t_thread), other = block.race->agent_of(block.rank, barrier.initialiser);
  if (me == other || block.race->knows(me, other, barrier.fence_time)) return;
  const std::string line = line_of(site);
  block.launch.find("init fence " + line, line + ": " + name + ": the initialisation of " + name_of(barrier) +
                                              " may not be visible: no barrier lies between mbarrier_init_fence() and "
                                              "this " +
                                              position(*t_thread));
}

}  // namespace

std::string MbarrierState::describe(const Thread& waiting_thread) const {
  return " for the end of phase " + std::to_string(waiting_thread.wait_number) + ": " + name_of(*this) + "; " +
         state_of(*this);
}

void init_mbarrier(Mbarrier& barrier, std::uint32_t arrivals, Site site) {
  const Unwatched scope;
  Thread& me = *t_thread;
  const std::size_t offset = offset_of(barrier, "mbarrier_init", site);
  if (arrivals < 1 || arrivals > kMost) {
    fault(site, "mbarrier_init: the number of arrivals is " + std::to_string(arrivals) + "; allowed: 1 to " +
                    std::to_string(kMost));
  }
  for (const MbarrierState& known : me.block->mbarriers) {
    if (known.offset != offset) continue;
    fault(site, "mbarrier_init: " + name_of(known) + " is in use: it is initialised once" +
                    (known.waiting.empty() ? "" : ", and threads wait at it"));
  }
  if (checking()) check_access(&barrier, sizeof barrier, AccessKind::store, Place::site(site));
  barrier.word = mark(me.block->mbarriers.size());
  MbarrierState& state = me.block->mbarriers.emplace_back();
  state.offset = offset;
  state.count = state.missing = arrivals;
  state.initialised = site;
  state.initialiser = me.linear;
}

void fence_mbarrier_init(Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  Thread& me = *t_thread;
  const std::uint32_t time = me.block->race ? me.block->race->tick(me.block->race->agent_of(me)) : 0;
  for (MbarrierState& barrier : me.block->mbarriers) {
    if (barrier.initialiser != me.linear || barrier.fenced) continue;
    barrier.fenced = true;
    barrier.fence_time = time;
  }
}

void arrive_at_mbarrier(Mbarrier& barrier, Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  arrive(*t_thread->block, use(barrier, "mbarrier_arrive", site), "mbarrier_arrive", site);
}

void expect_bytes(Mbarrier& barrier, std::uint32_t bytes, bool arrives, Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  const char* const name = arrives ? "mbarrier_arrive_expect_bytes" : "mbarrier_expect_bytes";
  MbarrierState& state = use(barrier, name, site);
  if (state.bytes + bytes > kMost) {
    fault(site, std::string(name) + ": " + std::to_string(state.bytes + bytes) +
                    " bytes would be under way; a barrier counts up to " + std::to_string(kMost));
  }
  state.bytes += bytes;
  if (arrives) {
    arrive(*t_thread->block, state, name, site);
  } else {
    end_phase_if_complete(*t_thread->block, state, [&] { return line_of(site); });
  }
}

void arrive_at_remote_mbarrier(Mbarrier& barrier, std::uint32_t rank, Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  const char* const name = "mbarrier_arrive_remote";
  const std::size_t offset = offset_of(barrier, name, site);
  Block& block = block_in_cluster(rank, name, site);
  MbarrierState& state = find_barrier(block, offset, name, site);
  if (&block != t_thread->block) require_fenced(state, block, name, site);
  if (checking()) {
    check_access(block.memory->shared() + offset, sizeof barrier, AccessKind::atomic, Place::site(site));
  }
  arrive(block, state, name, site);
}

void wait_at_mbarrier(Mbarrier& barrier, std::uint32_t parity, Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  MbarrierState& state = use(barrier, "mbarrier_wait", site);
  if (parity > 1) report_parity(parity, site);
  Thread& me = *t_thread;
  const TimelineWait wait(site);
  if (state.phase % 2 == parity) {
    state.waiting.push_back(me.linear);
    wait_for("mbarrier_wait", site, 0, &state, state.phase);
  }
  if (me.block->race) me.block->race->acquire(me.block->race->agent_of(me), state.last);
}

MbarrierState& mbarrier_for_operation(Block& block, std::size_t offset, const char* name, Site site) {
  MbarrierState& barrier = find_barrier(block, offset, name, site);
  require_fenced(barrier, block, name, site);
  return barrier;
}

void deliver_bytes(Block& block, MbarrierState& barrier, std::uint32_t bytes, int operation, std::uint32_t time,
                   Place place) {
  barrier.bytes -= bytes;
  if (barrier.bytes < -std::int64_t{kMost}) {
    throw Error(place.name() + ": " + std::to_string(-barrier.bytes) + " bytes have arrived at " + name_of(barrier) +
                " that nobody has announced " + position(block));
  }
  if (block.race) block.race->release_operation(operation, time, barrier.released);
  block.progress();
  end_phase_if_complete(block, barrier, [&] { return place.name(); });
}

}  // namespace gpu::emulator
