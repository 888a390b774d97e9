/// \file
/// Registers from one warpgroup to another: the books only.
///
/// A kernel under __launch_bounds__(threads, 1) starts with what a multiprocessor's 65536 registers give to each
/// thread, in eights.

#include "common/gpu/emulator/register_budget.hpp"

#include <algorithm>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

constexpr int kRegisters = 65536;  ///< of a multiprocessor
constexpr int kMostAThread = 256;

int at_start(const Block& block) {
  return std::min(kMostAThread, kRegisters / static_cast<int>(block.threads.size()) / 8 * 8);
}

/// The books of one warp, when its lanes have met. Their `result` is whether it has what it wants.
void settle(const WarpMeeting& meeting, Thread* lanes) {
  Block& block = *lanes[0].block;
  RegisterBudget& budget = block.registers;
  for (int i = 1; i < 32; ++i) {
    if (lanes[i].value != lanes[0].value) {
      fault(meeting.site, "the lanes of a warp set different numbers of registers");
    }
  }
  const int wanted = static_cast<int>(lanes[0].value);
  int& mine = budget.of_warp[static_cast<std::size_t>(lanes[0].warp)];
  const bool has_them = wanted - mine <= budget.free;
  if (has_them) {
    if (wanted < mine) {
      for (const int t : budget.waiting) block.wake(t);
      budget.waiting.clear();
    }
    budget.free += mine - wanted;
    mine = wanted;
  }
  for (int i = 0; i < 32; ++i) lanes[i].result = has_them;
}

const WarpOperation kRelease{"release_registers", false, settle};
const WarpOperation kTake{"take_registers", false, settle};

/// All four warps of a warpgroup say the same, one after the other.
void note_request(Block& block, const Thread& me, int registers, const char* name, Site site) {
  RegisterBudget& budget = block.registers;
  if (budget.of_warp.empty()) {
    budget.of_warp.assign(block.threads.size() / 32, at_start(block));
    budget.of_warpgroup.resize(block.threads.size() / 128);
  }
  RegisterBudget::Request& request = budget.of_warpgroup[static_cast<std::size_t>(me.warp / 4)];
  if (request.warps % 4 == 0) {
    request.registers = registers;
    request.site = site;
  } else if (request.registers != registers) {
    fault(site, std::string(name) + ": " + std::to_string(registers) +
                    " here, but another warp of the warpgroup said " + std::to_string(request.registers) + " at " +
                    short_path(request.site.file) + ":" + std::to_string(request.site.line));
  }
  ++request.warps;
}

}  // namespace

std::string RegisterBudget::describe(const Thread& waiting_thread) const {
  return ": it wants " + std::to_string(waiting_thread.value) + " a thread, its warp has " +
         std::to_string(of_warp[static_cast<std::size_t>(waiting_thread.warp)]) + ", and " + std::to_string(free) +
         " are free; a block of " + std::to_string(waiting_thread.block->threads.size()) + " threads starts with " +
         std::to_string(at_start(*waiting_thread.block)) + " each";
}

void set_registers(int registers, bool more, Site site) {
  const Unwatched scope;
  Thread& me = *t_thread;
  Block& block = *me.block;
  const char* const name = more ? "take_registers" : "release_registers";
  if (block.threads.size() % 128) {
    fault(site, std::string(name) + " is for whole warpgroups of 128 threads; the block has " +
                    std::to_string(block.threads.size()));
  }
  if (me.lane == 0) note_request(block, me, registers, name, site);
  const int now =
      block.registers.of_warp.empty() ? at_start(block) : block.registers.of_warp[static_cast<std::size_t>(me.warp)];
  if (more ? registers < now : registers > now) {
    fault(site, std::string(name) + ": " + std::to_string(registers) + ", but the warp has " + std::to_string(now));
  }
  me.value = static_cast<std::uint64_t>(registers);
  for (;;) {
    meet(~0u, more ? kTake : kRelease, site);
    if (me.result) return;
    // Each lane by itself: by the time it sleeps, another warp may have given some back and woken the others.
    while (registers - block.registers.of_warp[static_cast<std::size_t>(me.warp)] > block.registers.free) {
      block.registers.waiting.push_back(me.linear);
      wait_for(name, site, 0, &block.registers);
    }
    me.value = static_cast<std::uint64_t>(registers);
  }
}

void require_whole_budget(const Block& block) {
  for (const RegisterBudget::Request& request : block.registers.of_warpgroup) {
    if (request.warps % 4 == 0) continue;
    throw Error(short_path(request.site.file) + ":" + std::to_string(request.site.line) +
                ": only a part of a warpgroup's four warps has set its registers " + position(block));
  }
}

}  // namespace gpu::emulator
