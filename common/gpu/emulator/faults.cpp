/// \file
/// Faults that the operating system sees first, and threads that never give way.
///
/// A signal handler stops the running CUDA thread by switching back to its scheduler, which reports the fault as an
/// Error of the launch. The thread's frames are left as they are.

#include <pthread.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};

std::mutex g_mutex;
std::vector<Worker*> g_workers;

/// "row_sum.cuh:41: " of the instruction that the signal interrupted; empty if that is not the program's own code.
std::string interrupted_line(const void* context) {
  const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  const auto instruction = static_cast<std::uintptr_t>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
  const auto instruction = static_cast<std::uintptr_t>(machine.pc);
#else
#error "which register holds the instruction's address?"
#endif
  // A Place expects the address behind the instruction.
  const std::string line = Place::code(reinterpret_cast<const void*>(instruction + 1)).name();
  return line.find(':') == std::string::npos ? std::string() : line + ": ";
}

void on_memory_fault(int signal_number, siginfo_t* info, void* context) {
  t_watched = nullptr;
  if (!t_thread) {  // not a kernel: the program's own fault
    signal(signal_number, SIG_DFL);
    raise(signal_number);
    return;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const Thread& me = *t_thread;
  const auto shared = reinterpret_cast<std::uintptr_t>(me.block->memory->shared());
  const std::size_t bytes = me.block->memory->shared_bytes();
  const Block* ended = nullptr;  // whose shared memory it would have been
  for (const auto& block : me.block->cluster.blocks) {
    const auto storage = reinterpret_cast<std::uintptr_t>(block->memory->shared());
    if (block->alive == 0 && address - storage < bytes) ended = block.get();
  }
  std::string what;
  if (signal_number == SIGILL || signal_number == SIGTRAP || signal_number == SIGABRT) {
    abandon(interrupted_line(context) + "the kernel stopped itself (a trap, abort, or a failed assert) " +
            position(me));
  } else if (signal_number == SIGFPE) {
    abandon(interrupted_line(context) + "an integer was divided by zero, which on a GPU gives an arbitrary number " +
            position(me));
  } else if (info->si_code == SI_KERNEL) {  // x86 does not tell the address then
    what = "a misaligned access: a float4 has to start at a multiple of 16 bytes";
  } else if (ended) {
    what = "shared memory of block " + std::to_string(ended->rank) +
           " of the cluster, which has ended: a cluster_sync() has to follow the last access";
  } else if (address - (me.stack_low - 4096) < 8192) {
    what = "stack overflow: the thread's local variables need more than 64 KB";
  } else if (address - (shared - 4096) < (bytes + 4095) / 4096 * 4096 + 3 * 4096) {  // up to the guard behind it
    what = "out of bounds: shared memory at offset " + std::to_string(static_cast<std::ptrdiff_t>(address - shared)) +
           ", the kernel has " + std::to_string(bytes) + " bytes";
  } else if (address < 4096) {
    what = "access through a null pointer";
  } else {
    what = "out of bounds: " + describe_address(address);
  }
  abandon(interrupted_line(context) + "memory fault: " + what + " " + position(me));
}

void on_watchdog(int, siginfo_t*, void* context) {
  // By the time the signal arrives, the suspected thread may have given way after all.
  if (!t_worker || t_worker->turns != t_worker->suspected) return;
  if (t_watched) {
    t_watched = nullptr;
    abandon_endless(interrupted_line(context));
  } else {
    // Inside the emulator, which must not be left in the middle of things: at its next entry.
    t_worker->interrupted = true;
  }
}

/// Looks at all workers now and then; one whose thread has not given way for too long is interrupted.
void watch() {
  struct Look {
    const Worker* worker;
    std::uint32_t launch;  ///< a later launch may have its worker at the same address
    std::uint64_t turns;
    double since;
  };
  std::vector<Look> looks;
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const std::lock_guard lock(g_mutex);
    std::vector<Look> next;
    for (Worker* worker : g_workers) {
      // CPU time of the worker: a busy or suspended machine is no fault of the kernel.
      clockid_t clock;
      timespec time;
      if (pthread_getcpuclockid(worker->handle, &clock) != 0 || clock_gettime(clock, &time) != 0) continue;
      const double now = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
      Look look{worker, worker->launch.serial, worker->turns.load(), now};
      for (const Look& l : looks) {
        if (l.worker == worker && l.launch == look.launch && l.turns == look.turns) look.since = l.since;
      }
      if (worker->in_thread.load() && now - look.since > worker->launch.options.stall_seconds) {
        worker->suspected = look.turns;
        pthread_kill(worker->handle, SIGUSR2);
        look.since = now;
      }
      next.push_back(look);
    }
    looks = std::move(next);
  }
}

}  // namespace

void abandon(std::string reason) {
  Thread& me = *t_thread;
  me.abandoned = std::move(reason);
  t_worker->came_from = &me.own;
  std::move(t_worker->scheduler).resume();
  std::abort();  // nobody resumes an abandoned thread
}

void abandon_endless(const std::string& line) {
  t_watched = nullptr;
  abandon(line + "a thread computes without end: no barrier, atomic or exit for " +
          seconds(t_thread->block->launch.options.stall_seconds) +
          ". A loop that waits for another thread must read with gpu::load_acquire or an atomic " +
          position(*t_thread));
}

FaultHandlers::FaultHandlers() {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler does not return: keep the signal unblocked
  action.sa_sigaction = on_memory_fault;
  for (std::size_t i = 0; i < std::size(kFaults); ++i) sigaction(kFaults[i], &action, &saved_[i]);
  static const bool once = [&] {
    // For good: an interruption may arrive when its launch is over, and is ignored then.
    action.sa_sigaction = on_watchdog;
    sigaction(SIGUSR2, &action, nullptr);
    std::thread(watch).detach();
    return true;
  }();
  (void)once;
}

FaultHandlers::~FaultHandlers() {
  for (std::size_t i = 0; i < std::size(kFaults); ++i) sigaction(kFaults[i], &saved_[i], nullptr);
}

void enter_worker(Worker& worker) {
  // A handler for stack overflow cannot run on the overflown stack.
  static thread_local char alternate[64 * 1024];
  stack_t stack{};
  stack.ss_sp = alternate;
  stack.ss_size = sizeof alternate;
  sigaltstack(&stack, nullptr);
  worker.handle = pthread_self();
  const std::lock_guard lock(g_mutex);
  g_workers.push_back(&worker);
}

void leave_worker(Worker& worker) {
  const std::lock_guard lock(g_mutex);
  std::erase(g_workers, &worker);
}

}  // namespace gpu::emulator
