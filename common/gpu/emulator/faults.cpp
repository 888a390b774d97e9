/// \file
/// Faults that the operating system sees first, and threads that never give way.
///
/// A signal handler stops the running CUDA thread by switching back to its scheduler, which reports the fault as an
/// Error of the launch. The thread's frames are left as they are.

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

constexpr int kMemoryFaults[] = {SIGSEGV, SIGBUS};

std::mutex g_mutex;
std::vector<Worker*> g_workers;

void on_memory_fault(int signal_number, siginfo_t* info, void*) {
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
  std::string what;
  if (address - (me.stack_low - 4096) < 8192) {
    what = "stack overflow: the thread's local variables need more than 64 KB";
  } else if (address - (shared - 4096) < (bytes + 4095) / 4096 * 4096 + 3 * 4096) {  // up to the guard behind it
    what = "out of bounds: shared memory at offset " + std::to_string(static_cast<std::ptrdiff_t>(address - shared)) +
           ", the kernel has " + std::to_string(bytes) + " bytes";
  } else if (address < 4096) {
    what = "access through a null pointer";
  } else {
    what = "out of bounds: " + describe_address(address);
  }
  if (!checking()) what += "; the checking build (preset emulator-check) names the line";
  abandon("memory fault: " + what + " " + position(me));
}

void on_watchdog(int, siginfo_t*, void*) {
  if (t_watched) {
    abandon_endless();
  } else if (t_worker) {
    t_worker->interrupted =
        true;  // inside the emulator, which must not be left in the middle of things: at its next entry
  }
}

/// Looks at all workers now and then; one whose thread has not given way for too long is interrupted.
void watch() {
  struct Look {
    const Worker* worker;
    std::uint64_t turns;
    double since;
  };
  std::vector<Look> looks;
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    const std::lock_guard lock(g_mutex);
    std::vector<Look> next;
    for (Worker* worker : g_workers) {
      Look look{worker, worker->turns.load(), now};
      for (const Look& l : looks) {
        if (l.worker == worker && l.turns == look.turns) look.since = l.since;
      }
      if (worker->in_thread.load() && now - look.since > worker->launch.options.stall_seconds) {
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
  me.scheduler = std::move(me.scheduler).resume();
  std::abort();  // nobody resumes an abandoned thread
}

void abandon_endless() {
  t_watched = nullptr;
  abandon("a thread computes without end: no barrier, atomic or exit for " +
          seconds(t_thread->block->launch.options.stall_seconds) +
          ". A loop that waits for another thread must read with gpu::load_acquire or an atomic " +
          position(*t_thread));
}

FaultHandlers::FaultHandlers() {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // the handler does not return: keep the signal unblocked
  action.sa_sigaction = on_memory_fault;
  for (std::size_t i = 0; i < std::size(kMemoryFaults); ++i) sigaction(kMemoryFaults[i], &action, &saved_[i]);
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
  for (std::size_t i = 0; i < std::size(kMemoryFaults); ++i) sigaction(kMemoryFaults[i], &saved_[i], nullptr);
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
