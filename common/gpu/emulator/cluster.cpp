/// \file
/// Who a block's neighbours in its cluster are, the barrier of all their threads, and the way into their shared memory.

#include "common/gpu/emulator/cluster.hpp"

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

void open_if_complete(Cluster& cluster) {
  ClusterBarrier& barrier = cluster.barrier;
  if (barrier.arrived == 0 || barrier.arrived < cluster.alive()) return;
  ++barrier.phase;
  barrier.arrived = 0;
  barrier.last = std::move(barrier.released);
  barrier.released.clear();
  for (Thread* thread : barrier.waiting) thread->block->wake(thread->linear);
  barrier.waiting.clear();
}

void arrive(Site site) {
  Thread& me = *t_thread;
  Cluster& cluster = me.block->cluster;
  if (me.arrived_at_cluster) fault(site, "cluster_arrive: the thread has arrived already, and not waited since");
  me.arrived_at_cluster = true;
  me.cluster_phase = cluster.barrier.phase;
  ++cluster.barrier.arrived;
  if (cluster.race) cluster.race->release(cluster.race->agent_of(me), cluster.barrier.released);
  me.block->progress();
  open_if_complete(cluster);
}

void wait(const char* what, Site site) {
  Thread& me = *t_thread;
  Cluster& cluster = me.block->cluster;
  if (!me.arrived_at_cluster) fault(site, "cluster_wait: the thread has not arrived: cluster_arrive comes first");
  const TimelineWait timeline(site);
  if (cluster.barrier.phase == me.cluster_phase) {
    cluster.barrier.waiting.push_back(&me);
    wait_for(what, site, 0, &cluster.barrier);
  }
  // The next phase cannot end before this thread arrives again, so `last` is still that of its own.
  me.arrived_at_cluster = false;
  if (cluster.race) cluster.race->acquire(cluster.race->agent_of(me), cluster.barrier.last);
}

}  // namespace

std::string ClusterBarrier::describe(const Thread&) const {
  std::string text = ": " + std::to_string(arrived) + " of " + std::to_string(cluster->alive()) +
                     " threads of the cluster have arrived";
  for (const auto& block : cluster->blocks) {
    std::vector<int> missing;
    for (const Thread& thread : block->threads) {
      if (!thread.exited && !(thread.arrived_at_cluster && thread.cluster_phase == phase)) {
        missing.push_back(thread.linear);
      }
    }
    if (missing.empty()) continue;
    text += "; of block " + std::to_string(block->rank) + " threads " + ranges(missing) + " are missing";
  }
  return text;
}

void leave_cluster_barrier(Thread& thread) {
  ClusterBarrier& barrier = thread.block->cluster.barrier;
  // Arrived, and gone without waiting: it no longer counts among the threads, so its arrival must not either.
  if (thread.arrived_at_cluster && thread.cluster_phase == barrier.phase) --barrier.arrived;
  open_if_complete(thread.block->cluster);
}

std::uint32_t rank_in_cluster() noexcept { return static_cast<std::uint32_t>(t_thread->block->rank); }
std::uint32_t blocks_in_cluster() noexcept {
  return static_cast<std::uint32_t>(t_thread->block->cluster.blocks.size());
}

void arrive_at_cluster_barrier(Site site) {
  const Unwatched scope;
  if (!switched_off(site)) arrive(site);
}

void wait_at_cluster_barrier(Site site) {
  const Unwatched scope;
  if (!switched_off(site)) wait("cluster_wait", site);
}

void meet_cluster_barrier(Site site) {
  const Unwatched scope;
  if (switched_off(site)) return;
  arrive(site);
  wait("cluster_sync", site);
}

Block& block_in_cluster(std::uint32_t rank, const char* name, Site site) {
  Cluster& cluster = t_thread->block->cluster;
  if (rank >= cluster.blocks.size()) {
    fault(site, std::string(name) + ": block " + std::to_string(rank) + " of a cluster of " +
                    std::to_string(cluster.blocks.size()));
  }
  Block& block = *cluster.blocks[rank];
  if (!block.started) {
    fault(site, std::string(name) + ": block " + std::to_string(rank) +
                    " of the cluster has not started: a cluster_sync() has to come first");
  }
  if (block.alive == 0) {
    fault(site, std::string(name) + ": block " + std::to_string(rank) +
                    " of the cluster has ended: a cluster_sync() has to follow the last access");
  }
  return block;
}

void* same_place_in_block(std::uint32_t rank, const void* smem, Site site) {
  const Unwatched scope;
  const std::ptrdiff_t offset = t_thread->block->shared_offset(smem, 1);
  if (offset < 0) fault(site, "in_block: the address is not in this block's shared memory");
  const auto& blocks = t_thread->block->cluster.blocks;
  if (rank >= blocks.size()) {
    fault(site, "in_block: block " + std::to_string(rank) + " of a cluster of " + std::to_string(blocks.size()));
  }
  return blocks[rank]->memory->shared() + offset;
}

}  // namespace gpu::emulator
