#pragma once
/// \file
/// The emulator's inside: threads as fibers, blocks, the workers that run them, a launch. Not for kernels.
///
/// One CUDA thread is one fiber (Boost.Context). A block stays on one OS thread (a worker), which switches between its
/// fibers wherever a thread has to wait; blocks run in parallel on the workers. A worker runs one block at a time and
/// takes up another only when nothing in the first gets anywhere without it (`Worker::rotate`).
///
/// What synchronises asks its Block: `barrier.cpp`, `warp.cpp`, `atomic.cpp`. What is checked of each memory access is
/// in `access.cpp` (where does the address point?) and `race.hpp` (who else touched it, in which order?).

#include <atomic>
#include <boost/context/fiber.hpp>
#include <boost/context/stack_context.hpp>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/gpu/emulation.hpp"
#include "common/gpu/emulator/language.hpp"
#include "common/gpu/emulator/launch.hpp"
#include "common/gpu/emulator/race.hpp"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace gpu::emulator {

struct Block;
struct Launch;
struct Worker;

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
  Place place;
};

/// The copies of a thread that it has not waited for: committed groups, oldest first, and the open one.
struct AsyncCopies {
  std::deque<std::vector<AsyncCopy>> groups;
  std::vector<AsyncCopy> open;
};

/// A CUDA thread.
struct Thread {
  boost::context::fiber own;        ///< the suspended thread, while the scheduler runs
  boost::context::fiber scheduler;  ///< the suspended scheduler, while the thread runs
  Block* block = nullptr;
  uint3 index{};
  int linear = 0, warp = 0, lane = 0;
  std::uintptr_t stack_low = 0, stack_high = 0;
  bool exited = false;

  // While it waits: for what, where, and with which lanes.
  const char* waiting_for = nullptr;
  Site site;
  unsigned mask = 0;

  // What it brings to a shuffle or vote, and what it takes home.
  std::uint64_t value = 0;
  int source = 0;
  std::uint64_t result = 0;

  AsyncCopies copies;

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
  bool empty() const { return warps_ == 0; }
  int pop(Random& random);

 private:
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
};

/// A rendezvous of the lanes of one warp that named the same mask.
struct WarpMeeting {
  enum class Kind { barrier, shuffle, vote };
  unsigned mask = 0, arrived = 0;
  Kind kind{};
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
};

/// A running block.
struct Block {
  Block(Launch& launch, std::uint64_t linear, std::unique_ptr<BlockMemory> memory);

  Launch& launch;
  std::uint64_t linear;
  uint3 index{};
  std::unique_ptr<BlockMemory> memory;
  Random random;
  RunQueue queue;
  std::vector<Thread> threads;
  int alive = 0;
  int polls = 0;  ///< turns in a row that changed nothing
  Barrier barrier;
  std::vector<std::vector<WarpMeeting>> meetings;  ///< by warp
  std::vector<unsigned> alive_lanes;               ///< by warp: one bit a thread that has not exited
  std::unique_ptr<RaceChecker> race;               ///< in the checking build

  void progress();
  void wake(int thread) { queue.push(thread); }
  void on_exit(Thread& thread);
  std::string describe_waits() const;
};

/// An OS thread that runs blocks.
struct Worker {
  explicit Worker(Launch& l) : launch(l) {}
  Launch& launch;
  std::vector<std::unique_ptr<Block>> resident;
  std::size_t current = 0;
  std::atomic<std::uint64_t> turns{0};  ///< context switches: a worker whose count stands still computes (faults.cpp)
  std::atomic<std::uint64_t> progress{0};  ///< events that moved some thread on
  std::atomic<std::uint64_t> exits{0};     ///< threads that finished
  std::atomic<bool> in_thread{false};
  std::atomic<std::uint64_t> suspected{0};  ///< the count of turns that stood still
  std::atomic<bool> interrupted{false};     ///< the running thread has computed for too long
  unsigned long handle = 0;                 ///< pthread_t
  Counts counts;
  std::vector<Site> seen;

  void run();

 private:
  bool admit();
  bool rotate();
  void resume(Block& block, Thread& thread);
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
  uint3 grid{}, block{};
  std::uint64_t blocks = 0;
  int threads = 0;
  std::uint64_t resident_limit = 0;  ///< blocks that the GPU would hold at once
  std::uint32_t serial = 0;          ///< tells the accesses of this launch from those of earlier ones

  std::atomic<std::uint64_t> next{0};
  std::atomic<std::uint64_t> resident{0};
  std::atomic<std::uint64_t> finished{0};
  std::atomic<bool> stop{false};
  std::vector<std::unique_ptr<Worker>> workers;
  /// By block: it used device-scope order (atomics, fences). calloc: a grid may have two thousand million blocks.
  std::unique_ptr<unsigned char[], decltype(&std::free)> synchronised{nullptr, &std::free};

  void fail(std::exception_ptr error);
  void fail(const std::string& message) { fail(std::make_exception_ptr(Error(message))); }
  void find(const std::string& key, const std::string& text);
  std::uint64_t block_at(std::uint64_t position) const;
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
bool checking() noexcept;

/// Suspends the running thread until somebody wakes it.
void wait_for(const char* what, Site site, unsigned mask = 0);
/// Gives others a turn; `changed` says whether the caller got anywhere.
void take_turns(const char* what, Site site, bool changed);
/// Throws from the running kernel thread.
[[noreturn]] void fault(Site site, const std::string& sentence);
/// True if this synchronisation is switched off; notes that it was passed.
bool switched_off(Site site);

std::string position(const Block& block, int thread);
std::string position(const Thread& thread);
/// "0-31,40": for lists of threads.
std::string ranges(std::vector<int> numbers);
/// "0.3 s"
std::string seconds(double value);

// async_copy.cpp
void require_no_copies(const Thread& thread);

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
