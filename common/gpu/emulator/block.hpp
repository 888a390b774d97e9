#pragma once
/// \file
/// The emulator's inside: threads as fibers, blocks, clusters, the workers that run them, a launch. Not for kernels.
///
/// One CUDA thread is one fiber (Boost.Context). The blocks of a cluster, one in an ordinary launch, stay together on
/// one OS thread (a worker), which switches between their fibers wherever a thread has to wait; clusters run in
/// parallel on the workers. A worker runs one cluster at a time and takes up another only when nothing in the first
/// gets anywhere without it (`Worker::rotate`).
///
/// What synchronises asks its Block: `barrier.cpp`, `warp.cpp`, `atomic.cpp`, `named_barrier.cpp`, `mbarrier.cpp`,
/// `cluster.cpp`. What runs beside the threads is in `async_engine.hpp` and, for products, `wgmma.cpp`. What is checked
/// of each memory access is in `access.cpp` (where does the address point?) and `race.hpp` (who else touched it, in
/// which order?).

#include <atomic>
#include <bit>
#include <boost/context/fiber.hpp>
#include <boost/context/stack_context.hpp>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/gpu/emulation.hpp"
#include "common/gpu/emulator/async_engine.hpp"
#include "common/gpu/emulator/language.hpp"
#include "common/gpu/emulator/launch.hpp"
#include "common/gpu/emulator/race.hpp"
#include "common/gpu/emulator/warp_accesses.hpp"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace gpu::emulator {

struct Block;
struct Cluster;
struct Launch;
struct Worker;
struct ThreadProducts;     // wgmma.cpp
struct WarpgroupProducts;  // wgmma.cpp
struct StoreGroups;        // tma.cpp

/// xorshift64*: small, seeded, the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull | 1) { (*this)(); }
  std::uint64_t operator()() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ * 2685821657736338717ull;
  }
  unsigned below(unsigned n) { return static_cast<unsigned>((((*this)() >> 32) * n) >> 32); }

 private:
  std::uint64_t state_;
};

/// A started cp.async. `from` is null where zeros arrive.
struct AsyncCopy {
  unsigned char* to;
  const void* from;
  std::size_t bytes;
  Site site;
  Place place;  ///< the same, in the checking build
};

/// The copies of a thread that it has not waited for.
struct AsyncCopies {
  std::vector<AsyncCopy> started;   ///< oldest first: those of the committed groups, then those of the open one
  std::vector<std::size_t> groups;  ///< how many each committed group has, oldest first
};

/// Something that threads wait at, and that can say more about it in a report of a deadlock.
struct WaitObject {
  virtual ~WaitObject() = default;
  /// What is missing, as the rest of a line: "; 1 of 2 arrivals is missing".
  virtual std::string describe(const Thread& waiting) const = 0;
};

/// A CUDA thread. What every switch touches comes first and fills one line of the processor's cache, what operations of
/// the warp touch the next: with hundreds of threads taking turns, this is a good part of what a turn costs.
struct alignas(64) Thread {
  boost::context::fiber own;  ///< while it is suspended
  Block* block = nullptr;
  int linear = 0, warp = 0, lane = 0;

  // While it waits: for what, where, and with which lanes.
  unsigned mask = 0;
  const char* waiting_for = nullptr;
  Site site;
  const WaitObject* wait_object = nullptr;

  // What it brings to a shuffle or vote, and what it takes home.
  std::uint64_t value = 0;
  std::uint64_t result = 0;
  void* operands = nullptr;  ///< of other operations of the warp: where both lie, on the thread's stack
  int source = 0;

  bool exited = false;
  std::uint64_t wait_number = 0;  ///< of a phase, where wait_object has them
  uint3 index{};
  std::uintptr_t stack_low = 0, stack_high = 0;

  AsyncCopies copies;
  // Most kernels have none of these; they are made when the first is started. (Shared pointers: their owners' types are
  // not known here.)
  std::shared_ptr<StoreGroups> stores;
  std::shared_ptr<ThreadProducts> products;
  bool products_in_flight = false;

  bool arrived_at_cluster = false;  ///< and not waited there since
  std::uint64_t cluster_phase = 0;  ///< at that arrival

  std::string abandoned;  ///< set by a signal handler: why this thread was stopped for good
};

/// Which threads of a block can run, and which of them is next.
///
/// Seed 0 goes round robin. An odd seed gives the warps random priorities and lets the highest run, dropping it to the
/// bottom at random moments (probabilistic concurrency testing: Burckhardt et al., ASPLOS 2010); an even seed picks any
/// runnable thread each time.
class RunQueue {
 public:
  void reset(std::uint64_t seed, Random& random);
  void push(int thread) {
    lanes_[thread / 32] |= 1u << thread % 32;
    warps_ |= 1u << thread / 32;
  }
  void push_lanes(int warp, std::uint32_t lanes) {
    lanes_[warp] |= lanes;
    warps_ |= (lanes != 0 ? 1u : 0u) << warp;
  }
  bool empty() const { return warps_ == 0; }
  int pop(Random& random);

 private:
  int pop_any(Random& random);
  int take(int warp, int lane);
  std::uint32_t lanes_[32]{};
  std::uint32_t warps_ = 0;
  int warp_ = 0, lane_ = -1;
  std::uint64_t seed_ = 0;
  int priority_[32]{};
  std::uint64_t steps_ = 0, next_drop_ = 0;
};

/// The block barrier, between its first arrival and its release.
struct Barrier {
  std::vector<int> waiting;
  Site first;              ///< of the first arrival
  bool divergent = false;  ///< somebody has come at another line
};

/// A barrier for a part of the block (named_barrier.cpp), between its first arrival and its release.
struct NamedBarrier : WaitObject {
  int id = 0;
  int threads = 0;  ///< for how many this round is; 0: nobody has come
  int arrived = 0;  ///< those that wait too
  Site first;
  std::uint32_t lanes[32]{};  ///< by warp: who has come
  std::vector<int> waiting;
  Clocks clocks;
  std::string describe(const Thread& waiting_thread) const override;
};

/// What the emulator knows of a barrier in shared memory (mbarrier.cpp). The word itself holds a mark.
struct MbarrierState : WaitObject {
  std::size_t offset = 0;
  std::uint32_t count = 0;    ///< arrivals of a phase
  std::uint32_t missing = 0;  ///< of this phase
  std::int64_t bytes = 0;     ///< announced and not delivered; negative: delivered and not announced
  std::uint64_t phase = 0;
  Site initialised;
  int initialiser = 0;           ///< the thread
  bool fenced = false;           ///< the initialiser has called mbarrier_init_fence
  std::uint32_t fence_time = 0;  ///< its time then
  std::vector<int> waiting;      ///< for the end of this phase
  std::vector<int> woken;        ///< at the end of the phase before
  Clocks released;               ///< by arrivals and deliveries of this phase
  Clocks last;                   ///< of the phase before
  std::string describe(const Thread& waiting_thread) const override;
};

/// The barrier of all threads of a cluster (cluster.cpp).
struct ClusterBarrier : WaitObject {
  Cluster* cluster = nullptr;
  std::uint64_t phase = 0;
  int arrived = 0;  ///< in this phase
  std::vector<Thread*> waiting;
  Clocks released, last;
  std::string describe(const Thread& waiting_thread) const override;
};

/// Who has how many registers (register_budget.cpp).
struct RegisterBudget : WaitObject {
  int free = 0;              ///< registers a thread, of whole warps
  std::vector<int> of_warp;  ///< empty until the first request
  struct Request {
    int registers = 0, warps = 0;
    Site site;
  };
  std::vector<Request> of_warpgroup;  ///< the last one
  std::vector<int> waiting;
  std::string describe(const Thread& waiting_thread) const override;
};

struct WarpMeeting;

/// What lanes of a warp do together. One static object each: meetings compare addresses.
struct WarpOperation {
  const char* name;  ///< for reports
  bool is_barrier;   ///< orders memory, and its lanes may come from different lines
  /// Does the work for all lanes, when the last of them has come. `lanes` are the warp's 32 threads.
  void (*complete)(const WarpMeeting& meeting, Thread* lanes);
};

/// A rendezvous of the lanes of one warp that named the same mask.
struct WarpMeeting {
  unsigned mask = 0, arrived = 0;
  const WarpOperation* operation = nullptr;
  Site site;
};

/// Stacks and shared memory of a block; reused by the next block, since mapping them costs more than running it.
class BlockMemory {
 public:
  BlockMemory(int threads, std::size_t shared_bytes);
  ~BlockMemory();
  BlockMemory(const BlockMemory&) = delete;
  BlockMemory& operator=(const BlockMemory&) = delete;

  void reserve(int threads, std::size_t shared_bytes);
  boost::context::stack_context stack(int thread) const;
  unsigned char* shared() const { return shared_; }
  std::size_t shared_bytes() const { return shared_bytes_; }
  /// Every byte 0xFF, so that a read before a write gives NaN.
  void poison_shared();
  /// Its block has ended, and others of the cluster have not: whoever touches the storage now is in for a fault.
  void forbid_shared();
  /// The first byte behind the storage that somebody wrote, or -1.
  std::ptrdiff_t first_damage() const;

 private:
  void release_stacks();

  unsigned char* stacks_ = nullptr;
  int stack_count_ = 0;
  bool guarded_ = false;
  unsigned char* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  unsigned char* shared_ = nullptr;
  std::size_t shared_bytes_ = 0;
  bool forbidden_ = false;
  std::ptrdiff_t damage_ = -1;  ///< when it was forbidden
};

/// A running block.
struct Block {
  Block(Cluster& cluster, int rank, std::uint64_t linear, std::unique_ptr<BlockMemory> memory);

  Cluster& cluster;
  Launch& launch;
  int rank;  ///< in the cluster
  std::uint64_t linear;
  uint3 index{};
  std::unique_ptr<BlockMemory> memory;
  Random random;
  RunQueue queue;
  std::vector<Thread> threads;
  int alive = 0;
  bool started = false;  ///< a thread has had a turn
  Barrier barrier;
  NamedBarrier named_barriers[16];
  std::deque<MbarrierState> mbarriers;                       ///< in the order of their initialisation
  std::vector<std::shared_ptr<WarpgroupProducts>> products;  ///< by warpgroup; empty until the first product
  RegisterBudget registers;
  std::vector<std::vector<WarpMeeting>> meetings;  ///< by warp
  std::vector<unsigned> alive_lanes;               ///< by warp: one bit a thread that has not exited
  RaceChecker* race = nullptr;                     ///< the cluster's, in the checking build
  std::unique_ptr<WarpAccesses> accesses;          ///< in the checking build, where requests are counted

  void progress();
  void wake(int thread) { queue.push(thread); }
  void on_exit(Thread& thread);
  std::string describe_waits() const;
  /// The offset of these bytes in the block's shared memory, or -1 if they are not in it.
  std::ptrdiff_t shared_offset(const void* address, std::size_t bytes) const;

 private:
  void end();
};

/// Blocks that run together: one, or what LaunchShape::cluster says.
struct Cluster {
  Cluster(Launch& launch, std::uint64_t number);
  ~Cluster();

  Launch& launch;
  std::uint64_t number;  ///< in the grid, x first
  Random random;
  std::vector<std::unique_ptr<Block>> blocks;  ///< by rank
  std::unique_ptr<RaceChecker> race;           ///< in the checking build
  AsyncEngine async;
  ClusterBarrier barrier;
  int polls = 0;            ///< turns in a row that changed nothing
  std::uint64_t steps = 0;  ///< turns of its threads

  int alive() const;
  /// Every thread that can run has had its turns, and only polled.
  bool stands_still() const { return polls > 0 && polls > 2 * alive(); }
  /// A block some thread of which can run; null if there is none.
  Block* next_block();
  std::string describe_waits() const;

 private:
  std::size_t current_ = 0;
};

/// An OS thread that runs blocks.
struct Worker {
  explicit Worker(Launch& l) : launch(l) {}
  Launch& launch;
  std::vector<std::unique_ptr<Cluster>> resident;
  std::size_t current = 0;
  std::atomic<std::uint64_t> turns{0};  ///< context switches: a worker whose count stands still computes (faults.cpp)
  std::atomic<std::uint64_t> progress{0};  ///< events that moved some thread on
  std::atomic<std::uint64_t> exits{0};     ///< threads that finished
  std::atomic<bool> in_thread{false};
  std::atomic<std::uint64_t> suspected{0};  ///< the count of turns that stood still
  std::atomic<bool> interrupted{false};     ///< the running thread has computed for too long
  unsigned long handle = 0;                 ///< pthread_t
  KernelCounts counts;                      ///< but for launches and blocks
  std::vector<Site> seen;
  std::vector<TimelineEvent> timeline;
  /// Synchronisations that are known to be in `seen` and switched on, by their lines' last bits: what nearly every one
  /// is, without a search.
  Site switched_on[64];

  boost::context::fiber scheduler;             ///< run(), while a thread has its turn
  boost::context::fiber* came_from = nullptr;  ///< where to keep who has just given way

  void run();
  /// Whose turn it is after this thread's, which begins it; null where run() has to see about it.
  Thread* next_after(const Thread& thread);

 private:
  bool admit();
  bool rotate();
  void finish(Cluster& cluster);
  void begin_turn(Block& block, Thread& thread);
  void resume(Thread& thread);
  void unwind_all();
  bool ends();
  std::uint64_t last_total_ = 0, last_exits_ = 0;
  double last_change_ = 0, last_exit_ = 0;  ///< seconds of CPU time
  std::size_t fruitless_rotations_ = 0;
  unsigned turns_since_look_ = 0;
};

/// One launch, from the check of its shape to its result.
struct Launch {
  Launch(const KernelCall& call, const LaunchShape& shape, std::size_t shared_bytes);
  void run();

  const KernelCall call;
  const std::size_t shared_bytes;
  const EmulatorOptions options;
  uint3 grid{}, block{}, cluster{};
  std::uint64_t blocks = 0;
  int threads = 0;         ///< of a block
  int cluster_blocks = 0;  ///< of a cluster
  std::uint64_t clusters = 0;
  std::uint64_t resident_limit = 0;   ///< blocks that the GPU would hold at once
  std::uint32_t serial = 0;           ///< tells the accesses of this launch from those of earlier ones
  std::uint32_t previous_serial = 0;  ///< of the launch that this one may overlap; 0: none

  std::atomic<std::uint64_t> next{0};  ///< cluster
  std::atomic<std::uint64_t> resident{0};
  std::atomic<std::uint64_t> finished{0};
  std::atomic<bool> stop{false};
  std::vector<std::unique_ptr<Worker>> workers;
  /// By cluster: it used device-scope order (atomics, fences). calloc: a grid may have two thousand million blocks.
  std::unique_ptr<unsigned char[], decltype(&std::free)> synchronised{nullptr, &std::free};

  void fail(std::exception_ptr error);
  void fail(const std::string& message) { fail(std::make_exception_ptr(Error(message))); }
  void find(const std::string& key, const std::string& text);
  std::uint64_t cluster_at(std::uint64_t position) const;
  /// The number in the grid of a block of a cluster.
  std::uint64_t block_number(std::uint64_t cluster_number, int rank) const;
  std::uint64_t total_progress() const;
  std::uint64_t total_exits() const;

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  std::vector<std::pair<std::string, std::string>> findings_;
};

/// The running CUDA thread, or null on the host.
extern constinit thread_local Thread* t_thread;
extern constinit thread_local Worker* t_worker;
/// The same while it runs the kernel's own code, whose accesses are checked; null inside the emulator.
extern constinit thread_local Thread* t_watched;

/// Inside the emulator. Its functions share the standard library's templates with kernels, and the linker may keep a
/// kernel's instrumented copy: the hooks must not see what the emulator does with it.
class Unwatched {
 public:
  Unwatched() : saved_(t_watched) { t_watched = nullptr; }
  ~Unwatched() { t_watched = saved_; }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;

 private:
  Thread* saved_;
};

/// Whether this is the checking build.
constexpr bool checking() noexcept {
#ifdef BOOK_EMULATOR_CHECK
  return true;
#else
  return false;
#endif
}

/// Suspends the running thread until somebody wakes it, and goes straight on with the next one.
///
/// Inline, as are the functions between it and the kernel where this is easy: the processor predicts where a function
/// returns to by who called it last, and behind a switch each return is one prediction gone wrong.
inline void wait_for(const char* what, Site site, unsigned mask = 0, const WaitObject* object = nullptr,
                     std::uint64_t number = 0) {
  Thread& me = *t_thread;
  me.waiting_for = what;
  me.site = site;
  me.mask = mask;
  me.wait_object = object;
  me.wait_number = number;
  Worker& worker = *t_worker;
  Thread* const next = worker.next_after(me);
  if (next != &me) {
    worker.came_from = &me.own;
    boost::context::fiber who = std::move(next ? next->own : worker.scheduler).resume();
    *worker.came_from = std::move(who);
  }
  t_watched = nullptr;  // still inside the emulator: the caller's Unwatched ends that
  me.waiting_for = nullptr;
  me.wait_object = nullptr;
}
/// Gives others a turn; `changed` says whether the caller got anywhere.
inline void take_turns(const char* what, Site site, bool changed) {
  Block& block = *t_thread->block;
  if (changed) {
    block.progress();
  } else {
    ++block.cluster.polls;
  }
  block.wake(t_thread->linear);
  wait_for(what, site);
}
/// Throws from the running kernel thread.
[[noreturn]] void fault(Site site, const std::string& sentence);
/// What switched_off() does where it does not know the answer yet.
bool look_up_switch(Site site);
/// True if this synchronisation is switched off; notes that it was passed.
inline bool switched_off(Site site) {
  const Site& known = t_worker->switched_on[site.line % std::size(t_worker->switched_on)];
  return (known.file != site.file || known.line != site.line) && look_up_switch(site);
}

/// Notes, if EmulatorOptions::record_timeline asks for it, what the running thread does.
void record(TimelineEvent::Kind kind, Site site);
/// Whether this thread stands for its warp in the timeline, of what all its lanes do: the first one that has not
/// exited.
inline bool leads_warp() {
  const Block& block = *t_thread->block;
  return block.launch.options.record_timeline &&
         t_thread->lane == std::countr_zero(block.alive_lanes[static_cast<std::size_t>(t_thread->warp)]);
}
/// A wait, from its beginning to its end.
class TimelineWait {
 public:
  explicit TimelineWait(Site site) : site_(site), recorded_(leads_warp()) {
    if (recorded_) record(TimelineEvent::Kind::wait_begin, site_);
  }
  ~TimelineWait() {
    if (recorded_) record(TimelineEvent::Kind::wait_end, site_);
  }
  TimelineWait(const TimelineWait&) = delete;
  TimelineWait& operator=(const TimelineWait&) = delete;

 private:
  Site site_;
  bool recorded_;
};

/// The host has waited for all launches, or copied something: the next launch overlaps none of them.
void host_waited() noexcept;

/// "block (0,0,0)"
std::string place_in_grid(const Block& block);
/// "[block (0,0,0)]", "[block (0,0,0) thread 5]"
std::string position(const Block& block);
std::string position(const Block& block, int thread);
std::string position(const Thread& thread);
/// "0-31,40": for lists of threads.
std::string ranges(std::vector<int> numbers);
/// "0.3 s"
std::string seconds(double value);

// place.cpp
/// "scores_kernel<64>": a function without namespaces, result and parameters; "unknown kernel" where addr2line is
/// missing.
std::string kernel_name(const void* function);

// warp.cpp
/// The part of meet() before the wait. True where this was the last lane, and the work is done.
bool arrive_at_meeting(unsigned mask, const WarpOperation& operation, Site site);
/// Waits until all lanes of the mask are at this operation and line, and the work is done. Faults when they are not, or
/// cannot all come.
inline void meet(unsigned mask, const WarpOperation& operation, Site site) {
  if (!arrive_at_meeting(mask, operation, site)) wait_for(operation.name, site, mask);
}

// async_copy.cpp
void require_no_copies(const Thread& thread);

// mbarrier.cpp
/// The barrier that an operation reports to. Faults unless it can be used by the async proxy.
MbarrierState& mbarrier_for_operation(Block& block, std::size_t offset, const char* name, Site site);
/// Bytes have arrived. \param operation in the checking build: who brought them, and its time then
void deliver_bytes(Block& block, MbarrierState& barrier, std::uint32_t bytes, int operation, std::uint32_t time,
                   Place place);

// named_barrier.cpp
void require_no_arrivals(const Block& block);

// cluster.cpp
/// An exiting thread no longer counts.
void leave_cluster_barrier(Thread& thread);
/// The block with this rank, whose shared memory `name` is about to touch. Faults if there is none, or if its memory is
/// not there.
Block& block_in_cluster(std::uint32_t rank, const char* name, Site site);

// tma.cpp
void require_no_stores(const Thread& thread);

// wgmma.cpp
void require_no_products(Thread& thread);
void require_whole_warpgroups(const Block& block);
/// In the checking build: the kernel touches its own stack while products are under way.
void check_registers(const Thread& thread, std::uintptr_t address, std::size_t bytes, AccessKind kind, Place place);

// register_budget.cpp
void require_whole_budget(const Block& block);

// memory.cpp
/// Damage to the red zones of device buffers since the last look; empty if none.
std::string device_memory_damage();
/// What lies at an address, for reports: "16 bytes past the end of 'V' (1024 bytes)".
std::string describe_address(std::uintptr_t address);

// faults.cpp
/// Leaves the running thread for good: its frames are neither resumed nor unwound.
[[noreturn]] void abandon(std::string reason);
/// \p line: "row_sum.cuh:41: ", or nothing.
[[noreturn]] void abandon_endless(const std::string& line);
/// While it lives, what the operating system stops a kernel for becomes a report; then the program's own handlers are
/// back. One a launch, since test frameworks set handlers of their own for each test.
class FaultHandlers {
 public:
  FaultHandlers();
  ~FaultHandlers();
  FaultHandlers(const FaultHandlers&) = delete;
  FaultHandlers& operator=(const FaultHandlers&) = delete;

 private:
  struct sigaction saved_[6];
};
void enter_worker(Worker& worker);
void leave_worker(Worker& worker);

}  // namespace gpu::emulator
