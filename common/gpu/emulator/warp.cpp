/// \file
/// What lanes of a warp do together: a rendezvous of the lanes in a mask; shuffles, votes and the warp barrier.

#include "common/gpu/emulator/warp.hpp"

#include <bit>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

// The reports are functions of their own, which are not inlined: the room for their texts would be part of the frames
// that a suspended thread keeps in the cache.

[[noreturn, gnu::noinline]] void report_unsound_mask(const Block& block, const Thread& me, unsigned mask,
                                                     unsigned missing, const char* name, Site site) {
  if (!(mask >> me.lane & 1u)) fault(site, std::string(name) + ": the calling lane is not in its own mask");
  const int lane = std::countr_zero(missing);
  const bool never = static_cast<std::size_t>(me.warp * 32 + lane) >= block.threads.size();
  fault(site, std::string(name) + ": lane " + std::to_string(lane) + " is named in the mask, but " +
                  (never ? "the block has no such thread" : "its thread has exited"));
}

void require_sound_mask(const Block& block, const Thread& me, unsigned mask, const char* name, Site site) {
  const unsigned missing = mask & ~block.alive_lanes[static_cast<std::size_t>(me.warp)];
  if (!(mask >> me.lane & 1u) || missing) report_unsound_mask(block, me, mask, missing, name, site);
}

[[noreturn, gnu::noinline]] void report_divergence(const WarpMeeting& meeting, const WarpOperation& operation,
                                                   Site site) {
  fault(site, std::string("divergent warp: ") + operation.name + " here, but lanes of the same mask are in " +
                  meeting.operation->name + " at " + short_path(meeting.site.file) + ":" +
                  std::to_string(meeting.site.line));
}

void complete_shuffle(const WarpMeeting& meeting, Thread* lanes) {
  for (unsigned bits = meeting.mask; bits; bits &= bits - 1) {
    Thread& thread = lanes[std::countr_zero(bits)];
    if (meeting.mask >> thread.source & 1u) {
      thread.result = lanes[thread.source].value;
    } else {
      fault(meeting.site, "a warp shuffle: lane " + std::to_string(thread.lane) + " reads lane " +
                              std::to_string(thread.source) + ", which the mask does not name");
    }
  }
}

void complete_vote(const WarpMeeting& meeting, Thread* lanes) {
  unsigned ballot = 0;
  for (unsigned bits = meeting.mask; bits; bits &= bits - 1) {
    const int lane = std::countr_zero(bits);
    ballot |= static_cast<unsigned>(lanes[lane].value != 0) << lane;
  }
  for (unsigned bits = meeting.mask; bits; bits &= bits - 1) lanes[std::countr_zero(bits)].result = ballot;
}

const WarpOperation kBarrier{"__syncwarp", true, [](const WarpMeeting&, Thread*) {}};
const WarpOperation kShuffle{"a warp shuffle", false, complete_shuffle};
const WarpOperation kVote{"a warp vote", false, complete_vote};
const WarpOperation kElect{"elect_one", false, [](const WarpMeeting&, Thread*) {}};

/// All lanes are here.
[[gnu::noinline]] void complete(Block& block, const WarpMeeting& meeting, int warp) {
  if (block.accesses || (block.race && meeting.operation->is_barrier)) {
    std::vector<int> members;
    for (unsigned bits = meeting.mask; bits; bits &= bits - 1) members.push_back(warp * 32 + std::countr_zero(bits));
    if (block.accesses) block.accesses->meet(members);
    if (meeting.operation->is_barrier) block.race->meet(block.rank, members);
  }
  meeting.operation->complete(meeting, &block.threads[static_cast<std::size_t>(warp) * 32]);
}

}  // namespace

bool arrive_at_meeting(unsigned mask, const WarpOperation& operation, Site site) {
  Thread& me = *t_thread;
  Block& block = *me.block;
  require_sound_mask(block, me, mask, operation.name, site);
  std::vector<WarpMeeting>& meetings = block.meetings[static_cast<std::size_t>(me.warp)];
  WarpMeeting* meeting = nullptr;
  for (WarpMeeting& m : meetings) {
    if (m.arrived && m.mask == mask) meeting = &m;
  }
  if (!meeting) {
    for (WarpMeeting& m : meetings) {
      if (!m.arrived) meeting = &m;
    }
    if (!meeting) meeting = &meetings.emplace_back();
    *meeting = {mask, 0, &operation, site};
  } else if (meeting->operation != &operation || (!operation.is_barrier && !(meeting->site == site))) {
    report_divergence(*meeting, operation, site);
  }
  meeting->arrived |= 1u << me.lane;
  if (meeting->arrived != mask) return false;
  complete(block, *meeting, me.warp);
  meeting->arrived = 0;
  block.progress();
  block.queue.push_lanes(me.warp, mask & ~(1u << me.lane));
  return true;
}

std::uint64_t shuffle(unsigned mask, std::uint64_t bits, int source, Site site) {
  const Unwatched scope;
  t_thread->value = bits;
  t_thread->source = source;
  meet(mask, kShuffle, site);
  return t_thread->result;
}

unsigned vote(unsigned mask, int predicate, Site site) {
  const Unwatched scope;
  t_thread->value = predicate != 0;
  meet(mask, kVote, site);
  return static_cast<unsigned>(t_thread->result);
}

bool elect(Site site) {
  const Unwatched scope;
  meet(~0u, kElect, site);
  return t_thread->lane == 0;
}

void warp_barrier(unsigned mask, Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  meet(mask, kBarrier, site);
}

}  // namespace gpu::emulator
