/// \file
/// Shuffles, votes and the warp barrier: a rendezvous of the lanes in a mask.

#include "common/gpu/emulator/warp.hpp"

#include <bit>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

using Kind = WarpMeeting::Kind;

const char* name(Kind kind) {
  switch (kind) {
    case Kind::barrier:
      return "__syncwarp";
    case Kind::shuffle:
      return "a warp shuffle";
    default:
      return "a warp vote";
  }
}

void require_sound_mask(const Block& block, const Thread& me, unsigned mask, Kind kind, Site site) {
  if (!(mask >> me.lane & 1u)) fault(site, std::string(name(kind)) + ": the calling lane is not in its own mask");
  const unsigned missing = mask & ~block.alive_lanes[static_cast<std::size_t>(me.warp)];
  if (!missing) return;
  const int lane = std::countr_zero(missing);
  const bool never = static_cast<std::size_t>(me.warp * 32 + lane) >= block.threads.size();
  fault(site, std::string(name(kind)) + ": lane " + std::to_string(lane) + " is named in the mask, but " +
                  (never ? "the block has no such thread" : "its thread has exited"));
}

/// All lanes are here: gives each what it takes home.
void complete(Block& block, const WarpMeeting& meeting, int warp) {
  Thread* lanes = &block.threads[static_cast<std::size_t>(warp) * 32];
  if (meeting.kind == Kind::barrier) {
    if (!block.race) return;
    std::vector<int> members;
    for (unsigned bits = meeting.mask; bits; bits &= bits - 1) members.push_back(warp * 32 + std::countr_zero(bits));
    block.race->meet(members);
    return;
  }
  unsigned ballot = 0;
  for (unsigned bits = meeting.mask; bits; bits &= bits - 1) {
    const int lane = std::countr_zero(bits);
    ballot |= static_cast<unsigned>(lanes[lane].value != 0) << lane;
  }
  for (unsigned bits = meeting.mask; bits; bits &= bits - 1) {
    Thread& thread = lanes[std::countr_zero(bits)];
    if (meeting.kind == Kind::vote) {
      thread.result = ballot;
    } else if (meeting.mask >> thread.source & 1u) {
      thread.result = lanes[thread.source].value;
    } else {
      fault(meeting.site, "a warp shuffle: lane " + std::to_string(thread.lane) + " reads lane " +
                              std::to_string(thread.source) + ", which the mask does not name");
    }
  }
}

/// Waits until all lanes of the mask are here.
void meet(unsigned mask, Kind kind, Site site) {
  Thread& me = *t_thread;
  Block& block = *me.block;
  require_sound_mask(block, me, mask, kind, site);
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
    *meeting = {mask, 0, kind, site};
  } else if (meeting->kind != kind || (kind != Kind::barrier && !(meeting->site == site))) {
    fault(site, std::string("divergent warp: ") + name(kind) + " here, but lanes of the same mask are in " +
                    name(meeting->kind) + " at " + short_path(meeting->site.file) + ":" +
                    std::to_string(meeting->site.line));
  }
  meeting->arrived |= 1u << me.lane;
  if (meeting->arrived != mask) {
    wait_for(name(kind), site, mask);
    return;
  }
  complete(block, *meeting, me.warp);
  meeting->arrived = 0;
  block.progress();
  for (unsigned bits = mask & ~(1u << me.lane); bits; bits &= bits - 1)
    block.wake(me.warp * 32 + std::countr_zero(bits));
}

}  // namespace

std::uint64_t shuffle(unsigned mask, std::uint64_t bits, int source, Site site) {
  const Unwatched scope;
  t_thread->value = bits;
  t_thread->source = source;
  meet(mask, Kind::shuffle, site);
  return t_thread->result;
}

unsigned vote(unsigned mask, int predicate, Site site) {
  const Unwatched scope;
  t_thread->value = predicate != 0;
  meet(mask, Kind::vote, site);
  return static_cast<unsigned>(t_thread->result);
}

void warp_barrier(unsigned mask, Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  meet(mask, Kind::barrier, site);
}

}  // namespace gpu::emulator
