#pragma once
/// \file
/// Happens-before checking of one cluster's accesses by vector clocks (FastTrack: Flanagan and Freund, PLDI 2009).
///
/// Agents are the threads of the cluster, and the asynchronous operations that they start. Each thread counts its own
/// time and knows how much of every other agent's time lies before its own present. A barrier makes all of them know
/// everything. An access races with an earlier one if that one is not known and one of the two writes.
///
/// An operation knows what its issuer knew when it started, and it becomes known to those who wait for it: through a
/// mbarrier, or by name. It belongs to the async proxy: what threads wrote with ordinary stores to shared memory it may
/// touch only if the writer called async_proxy_fence() after the write and before whatever told the operation of it.

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/gpu/emulator/language.hpp"

namespace gpu::emulator {

struct Cluster;
struct Thread;

/// A place in the program: the return address of an instrumented access, or a Site. One word, so that shadow cells stay
/// small.
class Place {
 public:
  Place() = default;
  static Place code(const void* return_address) { return Place(reinterpret_cast<std::uintptr_t>(return_address)); }
  static Place site(Site site);
  /// "row_sum.cuh:41"; looks the address up in the program's debug information.
  std::string name() const;
  std::uintptr_t word() const { return word_; }
  friend bool operator==(Place, Place) = default;

 private:
  explicit Place(std::uintptr_t word) : word_(word) {}
  std::uintptr_t word_ = 0;
};

/// "chapters/00_first_kernel/row_sum.cuh:41" for any spelling of the path.
std::string short_path(const std::string& path);

enum class AccessKind : std::uint8_t { load, store, atomic };

/// Who touched some bytes of a word last, and when.
struct Access {
  Place place;
  std::uint32_t clock = 0;
  std::uint32_t launch = 0;
  std::uint32_t cluster = 0;
  std::uint16_t agent = 0;
  std::uint8_t bytes = 0;  ///< one bit for each of the word's four bytes; 0: empty
  AccessKind kind = AccessKind::load;
};

/// The remembered accesses to one 4-byte word.
template <int kWrites, int kReads>
struct ShadowWord {
  Access writes[kWrites];
  Access reads[kReads];
};
struct SharedShadow : ShadowWord<2, 3> {
  std::uint8_t written = 0;  ///< one bit a byte: has a value
};
using GlobalShadow = ShadowWord<1, 2>;  ///< device memory keeps those bits in its Allocation

/// What is known of each agent's time: by an agent, or handed on by something that agents meet at.
using Clocks = std::vector<std::uint32_t>;

/// The clocks of one cluster and the shadow of its blocks' shared memory. A block is named by its rank in the cluster,
/// a thread by its number among all threads of the cluster (`agent_of`).
class RaceChecker {
 public:
  explicit RaceChecker(Cluster& cluster);

  int agent_of(const Thread& thread) const;
  int agent_of(int rank, int thread) const { return rank * threads_per_block_ + thread; }

  void shared_access(int agent, int rank, std::size_t offset, std::size_t bytes, AccessKind kind, Place place);
  /// \p word is the shadow of the word, `mask` the bytes touched.
  void global_access(int agent, GlobalShadow& word, std::uint8_t mask, AccessKind kind, Place place,
                     std::uintptr_t address);

  /// These bytes belong to an asynchronous copy started at `place`, until it is set again to no place.
  void set_pending(int rank, std::size_t offset, std::size_t bytes, Place place);

  /// \name What orders threads
  /// @{
  /// All these threads of a block now know what any of them knew.
  void meet(int rank, const std::vector<int>& threads);
  /// An atomic on this address orders its users.
  void atomic_order(int agent, std::uintptr_t address);
  /// Whoever acquires these clocks knows what the agent has done up to now.
  void release(int agent, Clocks& into);
  void acquire(int agent, const Clocks& from);
  /// The thread's ordinary writes so far may be seen by the async proxy.
  void async_proxy_fence(int agent) { fences_[static_cast<std::size_t>(agent)].push_back(tick(agent)); }
  /// The thread's time so far, and a new one begins: whoever knows this time knows everything before it.
  std::uint32_t tick(int agent) { return clocks(agent)[agent]++; }
  bool knows(int agent, int other, std::uint32_t time) { return clocks(agent)[other] >= time; }
  /// The kernel in front of this one, which this one overlaps, has ended.
  void previous_kernel_ended(int agent);
  /// @}

  /// \name Asynchronous operations
  /// @{
  /// An operation that these threads start together; it knows what all of them know. `name` lives forever.
  int start_operation(const int* issuers, int count, const char* name, Place place);
  /// The operation goes on at another place, with what its issuers know by now.
  void inform(int operation, const int* issuers, int count, const char* name, Place place);
  /// What the operation has done up to now; what it does from here on is later.
  std::uint32_t operation_time(int operation) { return times_[static_cast<std::size_t>(operation - threads_)]++; }
  void release_operation(int operation, std::uint32_t time, Clocks& into) const;
  void acquire_operation(int agent, int operation, std::uint32_t time);
  /// Nobody has to wait for it any more.
  void end_operation(int operation) { free_.push_back(operation); }
  /// @}

  /// All threads of the block have exited: whoever has touched its memory from another block has to be known to them.
  void end_block(int rank);

 private:
  std::uint32_t* clocks(int agent) { return &clocks_[static_cast<std::size_t>(agent) * agents_]; }
  bool is_operation(int agent) const { return agent >= threads_; }
  std::uint32_t now(int agent);
  bool known(int agent, const Access& earlier);
  bool same(int agent, const Access& earlier);
  bool fenced(int agent, int rank, const Access& write);
  void more_operations();
  void access_from_another_block(int agent, int rank, Place place);
  template <int kWrites, int kReads>
  void check(int agent, ShadowWord<kWrites, kReads>& word, std::uint8_t mask, AccessKind kind, Place place, int rank,
             std::uint64_t where);
  std::string memory(int agent, int rank) const;
  std::string who(int agent, const Access* earlier, Place place) const;
  std::string position_of(int agent) const;
  void report(int rank, std::uint64_t where, int agent, AccessKind kind, Place place, const Access& earlier);
  void report_proxy(int rank, std::uint64_t where, int agent, AccessKind kind, Place place, const Access& earlier);

  Cluster& cluster_;
  const std::uint32_t serial_, cluster_number_;
  const int threads_per_block_, threads_;
  const std::size_t words_per_block_;
  std::size_t agents_;  ///< threads, and operations behind them once there is one
  Clocks clocks_;       ///< [agents][agents]
  std::vector<SharedShadow> shared_;
  std::vector<Place> pending_;  ///< by word of shared memory; sized when the first copy starts
  std::unordered_map<std::uintptr_t, Clocks> atomics_;
  std::vector<std::vector<std::uint32_t>> fences_;  ///< by thread: its times at async_proxy_fence, ascending

  std::vector<std::uint32_t>
      times_;             ///< by operation: its own time. Its row of clocks has what is known of earlier ones
  std::deque<int> free_;  ///< agents for operations; first the ones that have been idle for longest
  std::unordered_map<std::uintptr_t, const char*> names_;  ///< by place: what was started there

  std::uint32_t previous_launch_ = 0;  ///< the serial of the launch that this one overlaps; 0: none
  int previous_kernel_ = 0;            ///< the agent that stands for it

  struct Visit {
    std::uint32_t clock;
    Place place;
  };
  std::vector<std::unordered_map<int, Visit>> visits_;  ///< by rank: last accesses of other blocks' threads
};

}  // namespace gpu::emulator
