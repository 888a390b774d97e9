/// \file
/// The block barrier.

#include "common/gpu/emulator/barrier.hpp"

#include <map>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

/// The threads of a block have met in different barriers.
[[noreturn]] void report_divergence(const Block& block) {
  std::map<std::string, std::vector<int>> lines;
  for (const int t : block.barrier.waiting) {
    const Site site = block.threads[static_cast<std::size_t>(t)].site;
    lines[short_path(site.file) + ":" + std::to_string(site.line)].push_back(t);
  }
  std::string text = "divergent barrier: the threads of " + place_in_grid(block) + " meet at different __syncthreads";
  for (const auto& [line, who] : lines) text += "\n  threads " + ranges(who) + " at " + line;
  throw Error(text);
}

/// The barrier opens for the threads that wait in it.
void release(Block& block) {
  std::vector<int>& waiting = block.barrier.waiting;
  if (block.barrier.divergent) report_divergence(block);
  if (block.race) block.race->meet(block.rank, waiting);
  if (block.accesses) block.accesses->meet(waiting);
  ++t_worker->counts.barriers;
  block.progress();
  for (const int t : waiting) block.wake(t);
  waiting.clear();
}

}  // namespace

/// An exiting thread no longer counts: those that wait may have been waiting for it alone.
void Block::on_exit(Thread& thread) {
  --alive;
  alive_lanes[static_cast<std::size_t>(thread.warp)] &= ~(1u << thread.lane);
  progress();
  t_worker->exits.store(t_worker->exits.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  for (const WarpMeeting& meeting : meetings[static_cast<std::size_t>(thread.warp)]) {
    if (meeting.arrived && (meeting.mask >> thread.lane & 1u)) {
      fault(meeting.site, std::string(meeting.operation->name) + ": lane " + std::to_string(thread.lane) +
                              " is named in the mask, but its thread has exited; lanes wait for it");
    }
  }
  if (alive > 0 && static_cast<int>(barrier.waiting.size()) == alive) release(*this);
  leave_cluster_barrier(thread);
  if (alive == 0) end();
}

}  // namespace gpu::emulator

void __syncthreads(gpu::emulator::Site site) {
  using namespace gpu::emulator;
  const Unwatched scope;
  if (switched_off(site)) return;
  Block& block = *t_thread->block;
  t_thread->site = site;
  const TimelineWait wait(site);
  Barrier& barrier = block.barrier;
  if (barrier.waiting.empty()) barrier.first = site;
  if (!(barrier.first == site)) barrier.divergent = true;
  barrier.waiting.push_back(t_thread->linear);
  if (static_cast<int>(barrier.waiting.size()) == block.alive) release(block);
  // The last to arrive was woken by release() like the others, and gives way to the schedule here.
  wait_for("__syncthreads", site);
}
