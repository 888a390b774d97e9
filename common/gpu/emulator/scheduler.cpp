/// \file
/// Runs a launch: clusters over workers, threads over the blocks of a cluster, and what happens when nothing moves.

#include <sched.h>

#include <bit>
#include <chrono>
#include <map>
#include <numeric>
#include <thread>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {

namespace context = boost::context;

constinit thread_local Thread* t_thread = nullptr;
constinit thread_local Worker* t_worker = nullptr;
constinit thread_local Thread* t_watched = nullptr;

namespace {

/// Time that this OS thread has computed. Wall time would accuse kernels on a busy or suspended machine.
double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

uint3 unpack(std::uint64_t linear, const uint3& size) {
  return {static_cast<unsigned>(linear % size.x), static_cast<unsigned>(linear / size.x % size.y),
          static_cast<unsigned>(linear / (std::uint64_t{size.x} * size.y))};
}

/// So often a worker looks at the clock.
constexpr unsigned kTurnsBetweenLooks = 4096;

/// Hands a stack that BlockMemory owns to a fiber.
struct BorrowedStack {
  context::stack_context stack;
  context::stack_context allocate() { return stack; }
  void deallocate(context::stack_context&) {}
};

std::mutex g_pool_mutex;
std::vector<std::unique_ptr<BlockMemory>> g_pool;

std::unique_ptr<BlockMemory> take_memory(int threads, std::size_t shared_bytes) {
  std::unique_ptr<BlockMemory> memory;
  {
    const std::lock_guard lock(g_pool_mutex);
    if (!g_pool.empty()) {
      memory = std::move(g_pool.back());
      g_pool.pop_back();
    }
  }
  if (!memory) return std::make_unique<BlockMemory>(threads, shared_bytes);
  memory->reserve(threads, shared_bytes);
  return memory;
}

void give_memory_back(std::unique_ptr<BlockMemory> memory) {
  const std::lock_guard lock(g_pool_mutex);
  if (g_pool.size() < 64) g_pool.push_back(std::move(memory));
}

}  // namespace

// ---- which thread is next

void RunQueue::reset(std::uint64_t seed, Random& random) {
  *this = RunQueue();
  seed_ = seed;
  std::iota(priority_, priority_ + 32, 0);
  if (seed_ == 0) return;
  for (unsigned i = 31; i > 0; --i) std::swap(priority_[i], priority_[random.below(i + 1)]);
  next_drop_ = 1 + random.below(4096);
}

int RunQueue::take(int warp, int lane) {
  if (!(lanes_[warp] &= ~(1u << lane))) warps_ &= ~(1u << warp);
  warp_ = warp;
  lane_ = lane;
  return warp * 32 + lane;
}

int RunQueue::pop(Random& random) {
  if (seed_ != 0) return pop_any(random);
  const std::uint32_t later_lanes = lane_ >= 31 ? 0u : lanes_[warp_] & (~0u << (lane_ + 1));
  if (later_lanes) return take(warp_, std::countr_zero(later_lanes));
  const std::uint32_t later_warps = warp_ >= 31 ? 0u : warps_ & (~0u << (warp_ + 1));
  const int warp = std::countr_zero(later_warps ? later_warps : warps_);
  return take(warp, std::countr_zero(lanes_[warp]));
}

int RunQueue::pop_any(Random& random) {
  const auto random_bit = [&](std::uint32_t bits) {
    for (unsigned skip = random.below(static_cast<unsigned>(std::popcount(bits))); skip > 0; --skip) bits &= bits - 1;
    return std::countr_zero(bits);
  };
  int warp = 0;
  if (seed_ % 2 == 0) {
    warp = random_bit(warps_);
  } else {
    int best = -1;
    for (std::uint32_t bits = warps_; bits; bits &= bits - 1) {
      const int w = std::countr_zero(bits);
      if (priority_[w] > best) {
        best = priority_[w];
        warp = w;
      }
    }
    if (++steps_ >= next_drop_) {
      next_drop_ = steps_ + 1 + random.below(4096);
      const int old = priority_[warp];
      for (int& p : priority_) p += p < old;
      priority_[warp] = 0;
    }
  }
  return take(warp, random_bit(lanes_[warp]));
}

// ---- a block

Block::Block(Cluster& c, int block_rank, std::uint64_t block_linear, std::unique_ptr<BlockMemory> m)
    : cluster(c),
      launch(c.launch),
      rank(block_rank),
      linear(block_linear),
      index(unpack(block_linear, launch.grid)),
      memory(std::move(m)),
      random((launch.options.schedule_seed + 1) * 0xD1B54A32D192ED03ull + block_linear),
      threads(static_cast<std::size_t>(launch.threads)),
      alive(launch.threads),
      meetings(static_cast<std::size_t>((launch.threads + 31) / 32)),
      alive_lanes(meetings.size()) {
  memory->poison_shared();
  queue.reset(launch.options.schedule_seed, random);
  for (int id = 0; id < 16; ++id) named_barriers[id].id = id;
  if (checking() && launch.options.count_requests) accesses = std::make_unique<WarpAccesses>(*this);
  for (int i = 0; i < launch.threads; ++i) {
    Thread& thread = threads[static_cast<std::size_t>(i)];
    thread.block = this;
    thread.index = unpack(static_cast<std::uint64_t>(i), launch.block);
    thread.linear = i;
    thread.warp = i / 32;
    thread.lane = i % 32;
    const context::stack_context stack = memory->stack(i);
    thread.stack_high = reinterpret_cast<std::uintptr_t>(stack.sp);
    thread.stack_low = thread.stack_high - stack.size;
    thread.own = context::fiber(std::allocator_arg, BorrowedStack{stack}, [&thread, this](context::fiber&& who) {
      *t_worker->came_from = std::move(who);
      try {
        launch.call.invoke(launch.call.object);
        const Unwatched scope;
        require_no_copies(thread);
        require_no_stores(thread);
        require_no_products(thread);
        thread.exited = true;
        on_exit(thread);
      } catch (const context::detail::forced_unwind&) {
        throw;
      } catch (const Error&) {
        t_watched = nullptr;
        launch.fail(std::current_exception());
      } catch (const std::exception& e) {
        t_watched = nullptr;
        launch.fail(std::string("the kernel threw an exception: ") + e.what() + " " + position(thread));
      } catch (...) {
        t_watched = nullptr;
        launch.fail("the kernel threw an exception " + position(thread));
      }
      thread.exited = true;
      t_worker->came_from = &thread.own;
      return std::move(t_worker->scheduler);
    });
    alive_lanes[static_cast<std::size_t>(thread.warp)] |= 1u << thread.lane;
    queue.push(i);
  }
}

void Block::progress() {
  cluster.polls = 0;
  t_worker->progress.store(t_worker->progress.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

std::string Block::describe_waits() const {
  std::map<std::string, std::vector<int>> groups;
  for (const Thread& t : threads) {
    if (t.exited || !t.waiting_for) continue;
    std::string text =
        std::string(t.waiting_for) + " at " + short_path(t.site.file) + ":" + std::to_string(t.site.line);
    if (t.mask != 0 && t.mask != 0xffffffffu) {
      char mask[32];
      std::snprintf(mask, sizeof mask, " (mask 0x%08x)", t.mask);
      text += mask;
    }
    if (t.wait_object) text += t.wait_object->describe(t);
    groups[text].push_back(t.linear);
  }
  std::string text;
  for (const auto& [what, who] : groups) text += "\n  threads " + ranges(who) + " wait in " + what;
  const int gone = static_cast<int>(threads.size()) - alive;
  if (gone) text += "\n  " + std::to_string(gone) + " of " + std::to_string(threads.size()) + " threads have exited";
  return text;
}

std::ptrdiff_t Block::shared_offset(const void* address, std::size_t bytes) const {
  const auto offset = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(memory->shared());
  const std::size_t size = memory->shared_bytes();
  return offset < size && size - offset >= bytes ? static_cast<std::ptrdiff_t>(offset) : -1;
}

/// All threads have exited: what they have left behind is a fault.
void Block::end() {
  require_no_arrivals(*this);
  require_whole_warpgroups(*this);
  require_whole_budget(*this);
  if (const AsyncOperation* copy = cluster.async.user_of(rank)) {
    throw Error(copy->place.name() + ": the block ends while this " + copy->name +
                " is under way: nobody has waited for it " + position(*this));
  }
  if (race) race->end_block(rank);
  if (cluster.blocks.size() > 1) memory->forbid_shared();
}

// ---- a cluster

Cluster::Cluster(Launch& l, std::uint64_t cluster_number)
    : launch(l),
      number(cluster_number),
      random((l.options.schedule_seed + 1) * 0x9FB21C651E98DF25ull + cluster_number) {
  barrier.cluster = this;
  for (int rank = 0; rank < launch.cluster_blocks; ++rank) {
    blocks.push_back(std::make_unique<Block>(*this, rank, launch.block_number(number, rank),
                                             take_memory(launch.threads, launch.shared_bytes)));
  }
  if (!checking()) return;
  race = std::make_unique<RaceChecker>(*this);
  for (const auto& block : blocks) block->race = race.get();
}

Cluster::~Cluster() = default;

int Cluster::alive() const {
  int sum = 0;
  for (const auto& block : blocks) sum += block->alive;
  return sum;
}

/// Blocks take turns like threads: round robin with seed 0; any with an even seed; with an odd one the same for a
/// while.
Block* Cluster::next_block() {
  if (blocks.size() == 1) return blocks[0]->queue.empty() ? nullptr : blocks[0].get();
  const std::uint64_t seed = launch.options.schedule_seed;
  if (seed == 0) {
    ++current_;
  } else if (seed % 2 == 0 || random.below(64) == 0) {
    current_ = random.below(static_cast<unsigned>(blocks.size()));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    current_ %= blocks.size();
    if (!blocks[current_]->queue.empty()) return blocks[current_].get();
    ++current_;
  }
  return nullptr;
}

/// "block (1,0,0):" and who waits there, for each block.
std::string Cluster::describe_waits() const {
  std::string text;
  for (const auto& block : blocks) {
    text += (text.empty() ? "" : "\n") + place_in_grid(*block) + ":" + block->describe_waits();
  }
  return text;
}

// ---- a worker

bool Worker::admit() {
  const auto size = static_cast<std::uint64_t>(launch.cluster_blocks);
  if (launch.resident.fetch_add(size) + size > launch.resident_limit) {
    launch.resident.fetch_sub(size);
    return false;
  }
  const std::uint64_t position = launch.next.fetch_add(1);
  if (position >= launch.clusters) {
    launch.resident.fetch_sub(size);
    return false;
  }
  resident.push_back(std::make_unique<Cluster>(launch, launch.cluster_at(position)));
  current = resident.size() - 1;
  progress.store(progress.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return true;
}

/// Nothing in the current cluster gets anywhere by itself: take up another. False when the whole launch stands still.
bool Worker::rotate() {
  if (!admit()) {
    current = (current + 1) % resident.size();
    sched_yield();
  }
  const std::uint64_t total = launch.total_progress();
  const double time = cpu_seconds();
  if (total != last_total_) {
    last_total_ = total;
    last_change_ = time;
    fruitless_rotations_ = 0;
  }
  // Every cluster here has had its turns, several times over, and nobody anywhere got on.
  return ++fruitless_rotations_ < 4 * resident.size() || time - last_change_ < launch.options.stall_seconds;
}

/// A kernel that keeps meeting in barriers or changing words may still never end. False after too long without an exit.
bool Worker::ends() {
  if (turns_since_look_ < kTurnsBetweenLooks) return true;
  turns_since_look_ = 0;
  const std::uint64_t total = launch.total_exits();
  const double time = cpu_seconds();
  if (total != last_exits_) {
    last_exits_ = total;
    last_exit_ = time;
  }
  return time - last_exit_ < launch.options.endless_seconds;
}

/// The next turn is this thread's.
inline void Worker::begin_turn(Block& block, Thread& thread) {
  t_thread = &thread;
  block.started = true;
  ++block.cluster.steps;
  ++turns_since_look_;
  turns.store(turns.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  interrupted.store(false, std::memory_order_relaxed);
  in_thread.store(true, std::memory_order_relaxed);
  t_watched = &thread;
}

Thread* Worker::next_after(const Thread& thread) {
  Cluster& cluster = thread.block->cluster;
  if (launch.stop.load(std::memory_order_relaxed) || turns_since_look_ >= kTurnsBetweenLooks ||
      cluster.stands_still()) {
    return nullptr;
  }
  Block* const block = cluster.next_block();
  if (!block) return nullptr;
  Thread& next = block->threads[static_cast<std::size_t>(block->queue.pop(block->random))];
  begin_turn(*block, next);
  return &next;
}

/// Gives the turn to a thread. Comes back when a thread, this one or another, finds none to follow it, or has ended.
void Worker::resume(Thread& thread) {
  begin_turn(*thread.block, thread);
  came_from = &scheduler;
  context::fiber who = std::move(thread.own).resume();
  *came_from = std::move(who);
  Thread& last = *t_thread;
  t_watched = nullptr;
  in_thread.store(false, std::memory_order_relaxed);
  t_thread = nullptr;
  if (!last.abandoned.empty()) {
    // The thread was stopped in the middle of an instruction. Its frames can be neither resumed nor unwound: leave
    // them.
    new context::fiber(std::move(last.own));
    last.exited = true;
    --last.block->alive;
    launch.fail(last.abandoned);
  }
}

/// All threads of a cluster have exited.
void Worker::finish(Cluster& cluster) {
  try {
    cluster.async.finish();  // what has been read and not yet written
  } catch (...) {
    launch.fail(std::current_exception());
  }
  for (const auto& block : cluster.blocks) {
    const std::ptrdiff_t damage = block->memory->first_damage();
    if (damage >= 0) {
      launch.fail("shared memory was written past its end: the kernel has " + std::to_string(launch.shared_bytes) +
                  " bytes, byte " + std::to_string(damage) + " was changed " + position(*block));
    }
    if (block->accesses) block->accesses->close_all();
    give_memory_back(std::move(block->memory));
  }
  launch.resident.fetch_sub(cluster.blocks.size());
  launch.finished.fetch_add(cluster.blocks.size());
  progress.store(progress.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void Worker::run() {
  t_worker = this;
  enter_worker(*this);
  last_change_ = last_exit_ = cpu_seconds();
  const bool any_copy = launch.options.schedule_seed != 0;
  while (!launch.stop.load(std::memory_order_relaxed)) {
    if (resident.empty() && !admit()) break;
    Cluster& cluster = *resident[current];
    if (cluster.alive() == 0) {
      finish(cluster);
      resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(current));
      current = 0;
      continue;
    }
    Block* const block = cluster.next_block();
    if (!block || cluster.stands_still()) {
      // Nothing here moves by itself: a copy may arrive.
      try {
        if (cluster.async.advance_one(cluster.random, any_copy)) {
          cluster.polls = 0;
          continue;
        }
      } catch (...) {
        launch.fail(std::current_exception());
        break;
      }
    }
    if (!block) {
      launch.fail("deadlock in " + cluster.describe_waits());
      break;
    }
    if (cluster.stands_still()) {
      cluster.polls = 0;
      if (!rotate()) {
        launch.fail("nothing moved for " + seconds(launch.options.stall_seconds) +
                    ": every thread that can run only polls. In " + cluster.describe_waits() + "\n  " +
                    std::to_string(launch.finished.load()) + " of " + std::to_string(launch.blocks) +
                    " blocks have finished, " + std::to_string(launch.resident.load()) + " run, at most " +
                    std::to_string(launch.resident_limit) + " fit on the GPU at once");
        break;
      }
      continue;
    }
    if (!ends()) {
      launch.fail("a kernel without end: no thread has exited for " + seconds(launch.options.endless_seconds) +
                  ". In " + cluster.describe_waits());
      break;
    }
    resume(block->threads[static_cast<std::size_t>(block->queue.pop(block->random))]);
  }
  unwind_all();
  leave_worker(*this);
  t_worker = nullptr;
}

/// After a fault, suspended threads still hold frames: destroying a fiber unwinds it.
void Worker::unwind_all() {
  for (const auto& cluster : resident) {
    for (const auto& block : cluster->blocks) {
      for (Thread& thread : block->threads) {
        t_thread = &thread;
        thread.own = context::fiber();
        t_watched = nullptr;  // the unwinding restored it
      }
      t_thread = nullptr;
      if (block->memory) give_memory_back(std::move(block->memory));
    }
  }
  resident.clear();
}

// ---- a launch

namespace {
std::atomic<std::uint32_t> g_serial{0};
std::uint32_t g_last_serial = 0;  ///< of the last launch, if the host has not waited for it since; or 0
std::atomic<bool> g_running{false};
}  // namespace

Launch::Launch(const KernelCall& c, const LaunchShape& shape, std::size_t bytes)
    : call(c), shared_bytes(bytes), options(emulator_options()), serial(++g_serial) {
  const DeviceInfo& gpu = device();
  check_launch_shape(shape, shared_bytes);
  const auto narrow = [](const Extent& e) {
    return uint3{static_cast<unsigned>(e.x), static_cast<unsigned>(e.y), static_cast<unsigned>(e.z)};
  };
  grid = narrow(shape.grid);
  block = narrow(shape.block);
  cluster = narrow(shape.cluster);
  blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  threads = static_cast<int>(block.x * block.y * block.z);
  cluster_blocks = static_cast<int>(cluster.x * cluster.y * cluster.z);
  clusters = blocks / static_cast<std::uint64_t>(cluster_blocks);
  if (shape.overlaps_previous) previous_serial = g_last_serial;
  // Registers also limit what fits; the emulator does not know them.
  std::uint64_t per_multiprocessor =
      std::min<std::uint64_t>(32, static_cast<std::uint64_t>(gpu.max_threads_per_multiprocessor) /
                                      static_cast<std::uint64_t>((threads + 31) / 32 * 32));
  if (shared_bytes) {
    // The hardware keeps 1 KB of each block's shared memory for itself.
    per_multiprocessor =
        std::min<std::uint64_t>(per_multiprocessor, gpu.shared_memory_per_multiprocessor / (shared_bytes + 1024));
  }
  resident_limit = std::max<std::uint64_t>(1, per_multiprocessor) * static_cast<std::uint64_t>(gpu.multiprocessors);
  if (checking()) synchronised.reset(static_cast<unsigned char*>(std::calloc(clusters, 1)));
}

/// With a seed, the clusters start in another order too: position ↦ position · odd + shift, a permutation when the
/// factor and the number of clusters have no common divisor.
std::uint64_t Launch::cluster_at(std::uint64_t position) const {
  if (options.schedule_seed == 0 || clusters < 3) return position;
  std::uint64_t factor = (options.schedule_seed * 2654435761u) % clusters | 1;
  while (std::gcd(factor, clusters) != 1) factor += 2;
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(position) * factor + options.schedule_seed) %
                                    clusters);
}

std::uint64_t Launch::block_number(std::uint64_t cluster_number, int rank) const {
  if (cluster_blocks == 1) return cluster_number;
  const uint3 at = unpack(cluster_number, {grid.x / cluster.x, grid.y / cluster.y, grid.z / cluster.z});
  const uint3 inside = unpack(static_cast<std::uint64_t>(rank), cluster);
  const std::uint64_t x = std::uint64_t{at.x} * cluster.x + inside.x, y = std::uint64_t{at.y} * cluster.y + inside.y,
                      z = std::uint64_t{at.z} * cluster.z + inside.z;
  return (z * grid.y + y) * grid.x + x;
}

std::uint64_t Launch::total_progress() const {
  std::uint64_t sum = 0;
  for (const auto& worker : workers) sum += worker->progress.load(std::memory_order_relaxed);
  return sum;
}

std::uint64_t Launch::total_exits() const {
  std::uint64_t sum = 0;
  for (const auto& worker : workers) sum += worker->exits.load(std::memory_order_relaxed);
  return sum;
}

void Launch::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  stop = true;
}

void Launch::find(const std::string& key, const std::string& text) {
  const std::lock_guard lock(mutex_);
  for (const auto& [known, unused] : findings_) {
    if (known == key) return;
  }
  if (findings_.size() < 16) findings_.emplace_back(key, text);
}

void record_launch(const Launch& launch);  // options.cpp

void Launch::run() {
  if (t_thread) throw Error("a kernel cannot launch a kernel: dynamic parallelism is not part of this book");
  if (g_running.exchange(true)) throw Error("two host threads launch kernels at the same time: launch from one");
  struct Done {
    ~Done() { g_running = false; }
  } done;
  const FaultHandlers handlers;
  g_last_serial = serial;

  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const std::uint64_t wanted = options.workers > 0 ? static_cast<std::uint64_t>(options.workers) : cores;
  const std::size_t count = static_cast<std::size_t>(std::min({wanted, clusters, resident_limit}));
  for (std::size_t i = 0; i < count; ++i) workers.push_back(std::make_unique<Worker>(*this));
  const auto run_worker = [this](Worker& worker) {
    try {
      worker.run();
    } catch (...) {
      fail(std::current_exception());
      leave_worker(worker);
    }
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < count; ++i) others.emplace_back(run_worker, std::ref(*workers[i]));
  run_worker(*workers[0]);
  for (std::thread& t : others) t.join();
  record_launch(*this);

  // Damage that the checks have already found by line needs no second report.
  const std::string damage = device_memory_damage();
  if (!damage.empty() && findings_.empty()) find(damage, damage);
  std::string message;
  for (const auto& [key, text] : findings_) message += (message.empty() ? "" : "\n") + text;
  if (error_) {
    try {
      std::rethrow_exception(error_);
    } catch (const std::exception& e) {
      message += (message.empty() ? "" : "\n") + std::string(e.what());
    }
  }
  if (!message.empty()) throw Error(message);
}

void host_waited() noexcept { g_last_serial = 0; }

void run_kernel(const KernelCall& call, const LaunchShape& shape, std::size_t shared_bytes) {
  Launch(call, shape, shared_bytes).run();
}

// ---- what a kernel asks about itself

uint3 thread_index() noexcept { return t_thread->index; }
uint3 block_index() noexcept { return t_thread->block->index; }
uint3 block_size() noexcept { return t_thread->block->launch.block; }
uint3 grid_size() noexcept { return t_thread->block->launch.grid; }
int lane() noexcept { return t_thread->lane; }

void* shared_storage(std::size_t bytes, Site site) {
  const Unwatched scope;
  const BlockMemory& memory = *t_thread->block->memory;
  if (bytes > memory.shared_bytes()) {
    fault(site, "the kernel uses " + std::to_string(bytes) + " bytes of shared memory, the launch gave it " +
                    std::to_string(memory.shared_bytes()) + ": name the struct in gpu::launch<Shared>(...)");
  }
  return memory.shared();
}

}  // namespace gpu::emulator
