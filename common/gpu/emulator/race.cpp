/// \file
/// Vector clocks of one cluster.

#include "common/gpu/emulator/race.hpp"

#include <algorithm>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

/// Agents for operations are added in such numbers: few are under way at once.
constexpr std::size_t kOperations = 96;

void join(Clocks& into, const std::uint32_t* from, std::size_t agents) {
  if (into.size() < agents) into.resize(agents, 0);
  for (std::size_t i = 0; i < agents; ++i) into[i] = std::max(into[i], from[i]);
}

const char* did(AccessKind kind) {
  return kind == AccessKind::load ? "read" : kind == AccessKind::store ? "wrote" : "updated";
}
const char* does(AccessKind kind) {
  return kind == AccessKind::load ? "reads" : kind == AccessKind::store ? "writes" : "updates";
}

}  // namespace

RaceChecker::RaceChecker(Cluster& cluster)
    : cluster_(cluster),
      serial_(cluster.launch.serial),
      cluster_number_(static_cast<std::uint32_t>(cluster.number)),
      threads_per_block_(cluster.launch.threads),
      threads_(threads_per_block_ * cluster.launch.cluster_blocks),
      words_per_block_((cluster.launch.shared_bytes + 3) / 4),
      agents_(static_cast<std::size_t>(threads_)),
      clocks_(agents_ * agents_, 0),
      shared_(words_per_block_ * static_cast<std::size_t>(cluster.launch.cluster_blocks)),
      fences_(agents_),
      visits_(static_cast<std::size_t>(cluster.launch.cluster_blocks)) {
  for (int t = 0; t < threads_; ++t) clocks(t)[t] = 1;
  if (cluster.launch.previous_serial) {
    previous_launch_ = cluster.launch.previous_serial;
    more_operations();
    previous_kernel_ = free_.back();
    free_.pop_back();
  }
}

int RaceChecker::agent_of(const Thread& thread) const { return agent_of(thread.block->rank, thread.linear); }

// ---- what orders threads

void RaceChecker::meet(int rank, const std::vector<int>& threads) {
  Clocks joined(agents_, 0);
  for (const int t : threads) join(joined, clocks(agent_of(rank, t)), agents_);
  for (const int t : threads) {
    const int agent = agent_of(rank, t);
    std::copy(joined.begin(), joined.end(), clocks(agent));
    tick(agent);
  }
}

void RaceChecker::atomic_order(int agent, std::uintptr_t address) {
  Clocks& word = atomics_[address];
  word.resize(agents_, 0);
  std::uint32_t* mine = clocks(agent);
  for (std::size_t i = 0; i < agents_; ++i) word[i] = mine[i] = std::max(mine[i], word[i]);
  tick(agent);
}

void RaceChecker::release(int agent, Clocks& into) {
  join(into, clocks(agent), agents_);
  tick(agent);
}

void RaceChecker::acquire(int agent, const Clocks& from) {
  std::uint32_t* mine = clocks(agent);
  for (std::size_t i = 0; i < from.size(); ++i) mine[i] = std::max(mine[i], from[i]);
}

void RaceChecker::previous_kernel_ended(int agent) {
  if (previous_launch_) clocks(agent)[previous_kernel_] = 1;
}

// ---- asynchronous operations

void RaceChecker::more_operations() {
  const std::size_t more = agents_ + kOperations;
  Clocks grown(more * more, 0);
  for (std::size_t a = 0; a < agents_; ++a) {
    std::copy_n(&clocks_[a * agents_], agents_, &grown[a * more]);
  }
  for (std::size_t a = agents_; a < more; ++a) free_.push_back(static_cast<int>(a));
  clocks_ = std::move(grown);
  agents_ = more;
  times_.resize(agents_ - static_cast<std::size_t>(threads_), 0);
}

int RaceChecker::start_operation(const int* issuers, int count, const char* name, Place place) {
  if (free_.empty()) more_operations();
  const int operation = free_.front();
  free_.pop_front();
  ++times_[static_cast<std::size_t>(operation - threads_)];
  inform(operation, issuers, count, name, place);
  return operation;
}

void RaceChecker::inform(int operation, const int* issuers, int count, const char* name, Place place) {
  names_.emplace(place.word(), name);
  std::uint32_t* row = clocks(operation);
  std::copy_n(clocks(issuers[0]), agents_, row);
  for (int k = 1; k < count; ++k) {
    const std::uint32_t* other = clocks(issuers[k]);
    for (std::size_t i = 0; i < agents_; ++i) row[i] = std::min(row[i], other[i]);
  }
  for (int k = 0; k < count; ++k) tick(issuers[k]);
}

void RaceChecker::release_operation(int operation, std::uint32_t time, Clocks& into) const {
  // Its issuer's own writes are not handed on: only what the operation has done.
  if (into.size() < agents_) into.resize(agents_, 0);
  std::uint32_t& known_time = into[static_cast<std::size_t>(operation)];
  known_time = std::max(known_time, time);
}

void RaceChecker::acquire_operation(int agent, int operation, std::uint32_t time) {
  std::uint32_t& known_time = clocks(agent)[operation];
  known_time = std::max(known_time, time);
}

// ---- an access

std::uint32_t RaceChecker::now(int agent) {
  return is_operation(agent) ? times_[static_cast<std::size_t>(agent - threads_)] : clocks(agent)[agent];
}

/// An agent's number serves many operations, one after the other.
bool RaceChecker::same(int agent, const Access& earlier) {
  return earlier.agent == agent && earlier.cluster == cluster_number_ && earlier.launch == serial_ &&
         (!is_operation(agent) || earlier.clock == now(agent));
}

bool RaceChecker::known(int agent, const Access& earlier) {
  if (earlier.launch != serial_) {
    return !previous_launch_ || earlier.launch != previous_launch_ || clocks(agent)[previous_kernel_];
  }
  if (earlier.cluster == cluster_number_) return earlier.clock <= clocks(agent)[earlier.agent];
  // Between clusters the emulator only knows whether both used device-scope order at all.
  const unsigned char* synchronised = cluster_.launch.synchronised.get();
  return synchronised[earlier.cluster] && synchronised[cluster_number_];
}

/// Whether the operation knows of a fence that the writer passed after this write. async_proxy_fence is for the block's
/// own shared memory.
bool RaceChecker::fenced(int agent, int rank, const Access& write) {
  if (rank < 0 || write.agent / threads_per_block_ != rank) return false;
  const std::vector<std::uint32_t>& times = fences_[write.agent];
  const auto fence = std::lower_bound(times.begin(), times.end(), write.clock);
  return fence != times.end() && knows(agent, write.agent, *fence);
}

/// \param rank of the block whose shared memory it is; -1: device memory
template <int kWrites, int kReads>
void RaceChecker::check(int agent, ShadowWord<kWrites, kReads>& word, std::uint8_t mask, AccessKind kind, Place place,
                        int rank, std::uint64_t where) {
  const auto conflicts = [&](const Access& earlier) {
    return (earlier.bytes & mask) && !same(agent, earlier) &&
           !(kind == AccessKind::atomic && earlier.kind == AccessKind::atomic) && !known(agent, earlier);
  };
  for (const Access& write : word.writes) {
    if (conflicts(write)) {
      report(rank, where, agent, kind, place, write);
    } else if (is_operation(agent) && (write.bytes & mask) && write.launch == serial_ && write.agent < threads_ &&
               !fenced(agent, rank, write)) {
      report_proxy(rank, where, agent, kind, place, write);
    }
  }
  const Access access{place, now(agent), serial_, cluster_number_, static_cast<std::uint16_t>(agent), mask, kind};
  const auto remember = [&](Access* slots, int count) {
    // Best the slot of the same bytes and agent, else one whose access everybody here knows, else any.
    int best = -1;
    for (int i = 0; i < count; ++i) {
      if (slots[i].bytes == mask && slots[i].agent == agent && slots[i].cluster == cluster_number_) {
        slots[i] = access;
        return;
      }
      if (best < 0 && (!slots[i].bytes || known(agent, slots[i]))) best = i;
    }
    if (best < 0) best = static_cast<int>(cluster_.random.below(static_cast<unsigned>(count)));
    slots[best] = access;
  };
  if (kind == AccessKind::load) {
    remember(word.reads, kReads);
    return;
  }
  for (Access& read : word.reads) {
    if (conflicts(read)) report(rank, where, agent, kind, place, read);
    if (read.bytes & mask) read.bytes = 0;
  }
  remember(word.writes, kWrites);
}

void RaceChecker::set_pending(int rank, std::size_t offset, std::size_t bytes, Place place) {
  pending_.resize(shared_.size());
  const std::size_t base = static_cast<std::size_t>(rank) * words_per_block_;
  for (std::size_t word = offset / 4; word * 4 < offset + bytes; ++word) pending_[base + word] = place;
}

void RaceChecker::shared_access(int agent, int rank, std::size_t offset, std::size_t bytes, AccessKind kind,
                                Place place) {
  const std::size_t base = static_cast<std::size_t>(rank) * words_per_block_;
  if (!is_operation(agent) && agent / threads_per_block_ != rank) access_from_another_block(agent, rank, place);
  for (std::size_t word = offset / 4; word * 4 < offset + bytes; ++word) {
    const std::size_t first = std::max(offset, word * 4) - word * 4,
                      end = std::min(offset + bytes - word * 4, std::size_t{4});
    const auto mask = static_cast<std::uint8_t>((0xfu << first) & (0xfu >> (4 - end)));
    SharedShadow& shadow = shared_[base + word];
    if (!pending_.empty() && !(pending_[base + word] == Place())) {
      const std::string line = place.name(), copy = pending_[base + word].name();
      cluster_.launch.find("pending " + line + copy, line + ": touches offset " + std::to_string(word * 4) +
                                                         " of shared memory while the copy_async at " + copy +
                                                         " may still be under way: nobody has waited for it " +
                                                         position_of(agent));
    }
    if (kind != AccessKind::store && (shadow.written & mask) != mask) {
      const std::string line = place.name();
      cluster_.launch.find("uninitialised " + line, line + ": uninitialised: reads offset " + std::to_string(word * 4) +
                                                        " of shared memory, which nobody has written " +
                                                        position_of(agent));
    }
    check(agent, shadow, mask, kind, place, rank, word * 4);
    if (kind != AccessKind::load) shadow.written = static_cast<std::uint8_t>(shadow.written | mask);
  }
}

void RaceChecker::global_access(int agent, GlobalShadow& word, std::uint8_t mask, AccessKind kind, Place place,
                                std::uintptr_t address) {
  check(agent, word, mask, kind, place, -1, address);
}

// ---- other blocks' shared memory

void RaceChecker::access_from_another_block(int agent, int rank, Place place) {
  visits_[static_cast<std::size_t>(rank)][agent] = {now(agent), place};
  const std::uint32_t* known_times = clocks(agent) + agent_of(rank, 0);
  if (std::any_of(known_times, known_times + threads_per_block_, [](std::uint32_t time) { return time > 0; })) return;
  const std::string line = place.name();
  cluster_.launch.find("not started " + line,
                       line + ": touches the shared memory of block " + std::to_string(rank) +
                           " of the cluster, which may not have started: a cluster_sync() has to come first " +
                           position_of(agent));
}

void RaceChecker::end_block(int rank) {
  const auto& visits = visits_[static_cast<std::size_t>(rank)];
  if (visits.empty()) return;
  Clocks known_at_end(agents_, 0);
  for (int t = 0; t < threads_per_block_; ++t) join(known_at_end, clocks(agent_of(rank, t)), agents_);
  for (const auto& [agent, visit] : visits) {
    if (visit.clock <= known_at_end[static_cast<std::size_t>(agent)]) continue;
    const std::string line = visit.place.name();
    cluster_.launch.find("ended " + line, line + ": touches the shared memory of block " + std::to_string(rank) +
                                              " of the cluster, which may have ended: a cluster_sync() has to follow " +
                                              position_of(agent));
  }
}

// ---- reports

/// "thread 3", "block 1's thread 3" where that is another one, "the tma_load".
std::string RaceChecker::who(int agent, const Access* earlier, Place place) const {
  if (is_operation(agent)) {
    const auto name = names_.find(place.word());
    return name == names_.end() ? "an asynchronous operation" : std::string("the ") + name->second;
  }
  const std::string thread = "thread " + std::to_string(agent % threads_per_block_);
  if (!earlier) return thread;
  if (earlier->cluster != cluster_number_) {
    const std::uint64_t block = cluster_.launch.block_number(earlier->cluster, agent / threads_per_block_);
    return "block " + std::to_string(block) + "'s " + thread;
  }
  return cluster_.blocks.size() == 1
             ? thread
             : thread + " of block " + std::to_string(agent / threads_per_block_) + " of the cluster";
}

std::string RaceChecker::position_of(int agent) const {
  if (!is_operation(agent)) {
    return position(*cluster_.blocks[static_cast<std::size_t>(agent / threads_per_block_)], agent % threads_per_block_);
  }
  const Block& first = *cluster_.blocks[0];
  return cluster_.blocks.size() == 1 ? position(first) : "[cluster of " + place_in_grid(first) + "]";
}

std::string RaceChecker::memory(int agent, int rank) const {
  if (rank < 0) return "device memory";
  if (cluster_.blocks.size() == 1 || (!is_operation(agent) && agent / threads_per_block_ == rank)) {
    return "shared memory";
  }
  return "shared memory of block " + std::to_string(rank) + " of the cluster";
}

void RaceChecker::report(int rank, std::uint64_t where, int agent, AccessKind kind, Place place,
                         const Access& earlier) {
  const std::string here = place.name(), there = earlier.place.name();
  const bool earlier_kernel = earlier.launch != serial_;
  const bool other_cluster = !earlier_kernel && earlier.cluster != cluster_number_;
  const bool unfinished = !earlier_kernel && !other_cluster && is_operation(earlier.agent);
  std::string text =
      here + ": race on " + memory(agent, rank) + ": " + who(agent, nullptr, place) + " " + does(kind) + " " +
      (rank >= 0 ? "offset " + std::to_string(where) : describe_address(static_cast<std::uintptr_t>(where))) +
      ", which ";
  if (earlier_kernel) {
    text += "the kernel before this one " + std::string(did(earlier.kind)) + " at " + there +
            ", and no wait_for_previous_kernel() lies between ";
  } else {
    text += who(earlier.agent, &earlier, earlier.place) + " " + (unfinished ? does(earlier.kind) : did(earlier.kind)) +
            " at " + there +
            (other_cluster ? ", and nothing orders the two blocks "
             : unfinished  ? ", and no wait for it lies between "
                           : ", and no barrier lies between ");
  }
  text += position_of(agent);
  // Once per pair of lines, whichever came first.
  cluster_.launch.find("race " + std::min(here, there) + " " + std::max(here, there), text);
}

void RaceChecker::report_proxy(int rank, std::uint64_t where, int agent, AccessKind kind, Place place,
                               const Access& earlier) {
  const std::string here = place.name(), there = earlier.place.name();
  std::string text = here + ": proxy: " + who(agent, nullptr, place) + " " + does(kind) + " ";
  if (rank < 0) {
    text += describe_address(static_cast<std::uintptr_t>(where)) + ", which " +
            who(earlier.agent, &earlier, earlier.place) + " " + did(earlier.kind) + " at " + there +
            " in the same launch: async_proxy_fence() is for shared memory, and nothing else here orders ordinary "
            "accesses to device memory with those of TMA ";
  } else {
    text += "offset " + std::to_string(where) + " of " + memory(agent, rank) + ", which " +
            who(earlier.agent, &earlier, earlier.place) + " " + did(earlier.kind) + " at " + there +
            ": a barrier does not order ordinary accesses with those of TMA and WGMMA; the writing thread has to call "
            "async_proxy_fence() between the write and the barrier ";
  }
  text += position_of(agent);
  cluster_.launch.find("proxy " + here + " " + there, text);
}

}  // namespace gpu::emulator
