/// \file
/// Barriers for a part of a block.

#include "common/gpu/emulator/named_barrier.hpp"

#include <algorithm>
#include <bit>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

std::string name_of(const NamedBarrier& barrier) { return "named barrier " + std::to_string(barrier.id); }

std::vector<int> participants(const NamedBarrier& barrier) {
  std::vector<int> threads;
  for (int warp = 0; warp < 32; ++warp) {
    for (std::uint32_t lanes = barrier.lanes[warp]; lanes; lanes &= lanes - 1) {
      threads.push_back(warp * 32 + std::countr_zero(lanes));
    }
  }
  return threads;
}

[[gnu::noinline]] void open(Block& block, NamedBarrier& barrier, Site site) {
  for (int warp = 0; warp < 32; ++warp) {
    if (barrier.lanes[warp] == 0 || barrier.lanes[warp] == ~0u) continue;
    fault(site, name_of(barrier) + ", for " + std::to_string(barrier.threads) +
                    " threads, opens with only a part of warp " + std::to_string(warp) +
                    ": whole warps take part, and the count is that of all that arrive and wait "
                    "(threads " +
                    ranges(participants(barrier)) + " have come)");
  }
  if (block.race) {
    for (const int t : barrier.waiting) block.race->acquire(block.race->agent_of(block.rank, t), barrier.clocks);
  }
  if (block.accesses && !barrier.waiting.empty()) block.accesses->meet(barrier.waiting);
  for (const int t : barrier.waiting) block.wake(t);
  barrier.threads = barrier.arrived = 0;
  std::fill(std::begin(barrier.lanes), std::end(barrier.lanes), 0u);
  barrier.waiting.clear();
  barrier.clocks.clear();
}

/// The thread has come. Not inlined: a thread that waits need not keep the room for the texts of faults in the cache.
[[gnu::noinline]] NamedBarrier& arrive(const char* what, int id, int threads, Site site) {
  Thread& me = *t_thread;
  Block& block = *me.block;
  if (id < 1 || id > 15) {
    fault(site, std::string(what) + ": the barrier's number is " + std::to_string(id) +
                    "; allowed: 1 to 15 (0 is the one of __syncthreads)");
  }
  const int all = static_cast<int>(block.threads.size());
  if (threads < 32 || threads % 32 || threads > all) {
    fault(site, std::string(what) + ": the count is " + std::to_string(threads) +
                    "; allowed: multiples of 32 up to the " + std::to_string(all) + " threads of the block");
  }
  NamedBarrier& barrier = block.named_barriers[id];
  if (barrier.threads && barrier.threads != threads) {
    fault(site, name_of(barrier) + " is for " + std::to_string(threads) + " threads here, and for " +
                    std::to_string(barrier.threads) + " at " + short_path(barrier.first.file) + ":" +
                    std::to_string(barrier.first.line));
  }
  if (barrier.lanes[me.warp] >> me.lane & 1u) {
    fault(site, "the thread comes to " + name_of(barrier) +
                    " a second time in one round: " + std::to_string(barrier.arrived) + " of " +
                    std::to_string(threads) + " threads have come (threads " + ranges(participants(barrier)) + ")");
  }
  if (!barrier.threads) barrier.first = site;
  barrier.threads = threads;
  barrier.lanes[me.warp] |= 1u << me.lane;
  ++barrier.arrived;
  if (block.race) block.race->release(block.race->agent_of(me), barrier.clocks);
  block.progress();
  return barrier;
}

}  // namespace

std::string NamedBarrier::describe(const Thread&) const {
  return ": " + name_of(*this) + ", " + std::to_string(arrived) + " of " + std::to_string(threads) +
         " threads have come (threads " + ranges(participants(*this)) + ")";
}

void meet_named_barrier(int id, int threads, bool waits, Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  Block& block = *t_thread->block;
  const char* const what = waits ? "named_barrier_sync" : "named_barrier_arrive";
  NamedBarrier& barrier = arrive(what, id, threads, site);
  if (!waits) {
    if (barrier.arrived == threads) open(block, barrier, site);
    return;
  }
  const TimelineWait wait(site);
  barrier.waiting.push_back(t_thread->linear);
  if (barrier.arrived == threads) open(block, barrier, site);
  // As at __syncthreads, the last one was woken like the others.
  wait_for(what, site, 0, &barrier);
}

/// All threads have exited: an arrival that nobody waited for belongs to a count that is wrong.
void require_no_arrivals(const Block& block) {
  for (const NamedBarrier& barrier : block.named_barriers) {
    if (!barrier.arrived) continue;
    throw Error(short_path(barrier.first.file) + ":" + std::to_string(barrier.first.line) + ": the block ends with " +
                std::to_string(barrier.arrived) + " of " + std::to_string(barrier.threads) + " threads at " +
                name_of(barrier) + " (threads " + ranges(participants(barrier)) +
                "): the counts of its rounds do not fit those that come " +
                position(block, participants(barrier).front()));
  }
}

}  // namespace gpu::emulator
