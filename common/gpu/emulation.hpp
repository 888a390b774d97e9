#pragma once
/// \file
/// The emulator's controls and reports, for programs and tests.
///
/// They exist in every build, so that chapter code needs no `#if`: on a GPU, changing an option throws and a report is
/// empty.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpu {

/// When an asynchronous copy lands. Each mode finds faults that the other hides.
enum class Delivery {
  on_wait,      ///< as late as the rules allow: when somebody waits for it, or when nothing else can run
  immediately,  ///< as early as the rules allow: when it is issued
};

/// A line of a kernel file, as `--without row_sum.cuh:41` names it. The file is matched by its last path components.
struct SourceLine {
  std::string file;
  unsigned line = 0;
  /// \throws Error unless the text is FILE:LINE.
  static SourceLine parse(const std::string& text);
};

/// What the emulator does at the freedoms that the hardware has.
struct EmulatorOptions {
  std::uint64_t schedule_seed = 0;  ///< 0: round robin; otherwise the order of threads and blocks is shuffled
  Delivery delivery = Delivery::on_wait;
  std::vector<SourceLine> without;  ///< synchronisations to skip
  int workers = 0;                  ///< OS threads; 0: one a core
  /// Checking build: also count the requests of warps, their sectors, wavefronts and conflicts. Launches take longer.
  bool count_requests = false;
  /// Bytes of shared memory that a block may have. 0: an H200's 232448. Other GPUs: 49152 without opting in, 101376 on
  /// sm_86, sm_89 and sm_120, 166912 on sm_80.
  std::size_t shared_memory_limit = 0;
  /// Blocks that a grid may have along y and z. 0: the hardware's 65535. A low limit shows with a few blocks whether a
  /// kernel counts along x what may be many.
  int grid_limit = 0;
  bool record_timeline = false;  ///< emulator_timeline()
  double stall_seconds = 10;     ///< nothing but polling, or one thread computing, for so long is reported
  double endless_seconds = 100;  ///< and so is a kernel none of whose threads exits. Both in CPU time of a worker
};

/// \throws Error on a GPU unless the options are the default ones.
void set_emulator_options(const EmulatorOptions& options);
const EmulatorOptions& emulator_options();

/// Sets options for the length of a scope, and puts those from before back however it ends.
class EmulatorOptionsScope {
 public:
  /// \throws Error as set_emulator_options does.
  explicit EmulatorOptionsScope(const EmulatorOptions& options) : before_(emulator_options()) {
    set_emulator_options(options);
  }
  ~EmulatorOptionsScope() { set_emulator_options(before_); }
  EmulatorOptionsScope(const EmulatorOptionsScope&) = delete;
  EmulatorOptionsScope& operator=(const EmulatorOptionsScope&) = delete;

 private:
  EmulatorOptions before_;
};

/// Loads or stores of device memory, by warps. Only `bytes` is counted without EmulatorOptions::count_requests.
///
/// A request is one instruction of one warp. It touches so many sectors, pieces of 32 bytes that start at a multiple of
/// 32: 4 if its 32 threads take neighbouring floats from an aligned address, 32 if every float lies elsewhere. Atomics
/// count as a load and a store.
struct GlobalAccesses {
  std::uint64_t bytes = 0;  ///< that threads asked for
  std::uint64_t requests = 0;
  std::uint64_t sectors = 0;

  void add(const GlobalAccesses& more) {
    bytes += more.bytes;
    requests += more.requests;
    sectors += more.sectors;
  }
};

/// Loads or stores of shared memory, by warps. Only `bytes` is counted without EmulatorOptions::count_requests.
///
/// Shared memory has 32 banks of 4 bytes; address a lies in bank a / 4 mod 32. In one cycle each bank delivers one
/// word, to any number of threads. So a request takes as many wavefronts as the busiest bank has different words to
/// deliver; threads that want 8 or 16 bytes go in two or four groups. What this is above the number that the request
/// would need without conflicts is counted as conflicts.
struct SharedAccesses {
  std::uint64_t bytes = 0;  ///< that threads asked for
  std::uint64_t requests = 0;
  std::uint64_t wavefronts = 0;
  std::uint64_t conflicts = 0;

  void add(const SharedAccesses& more) {
    bytes += more.bytes;
    requests += more.requests;
    wavefronts += more.wavefronts;
    conflicts += more.conflicts;
  }
};

/// What one kernel did, over all its launches.
struct KernelCounts {
  std::string kernel;  ///< function and template arguments, "scores_kernel<64>"
  std::uint64_t launches = 0, blocks = 0;
  GlobalAccesses global_loads, global_stores;
  SharedAccesses shared_loads, shared_stores;
  std::uint64_t barriers = 0;  ///< block barriers completed, once a block

  void add(const KernelCounts& more) {
    launches += more.launches;
    blocks += more.blocks;
    global_loads.add(more.global_loads);
    global_stores.add(more.global_stores);
    shared_loads.add(more.shared_loads);
    shared_stores.add(more.shared_stores);
    barriers += more.barriers;
  }
};

/// What the checking build counted during launches, summed over all threads.
struct Counts {
  std::uint64_t global_loaded = 0;  ///< bytes loaded from device memory by threads
  std::uint64_t global_stored = 0;  ///< bytes stored (atomics count as a load and a store)
  std::uint64_t shared_loaded = 0;  ///< bytes
  std::uint64_t shared_stored = 0;
  std::uint64_t barriers = 0;  ///< block barriers completed
  std::uint64_t launches = 0;
};

/// One thing that a warp did.
struct TimelineEvent {
  enum class Kind {
    issue,       ///< started something that runs beside it: a group of copies by cp.async, TMA, a product by WGMMA
    wait_begin,  ///< came to a barrier or to a wait for such a thing
    wait_end,    ///< got past it
  };
  Kind kind{};
  /// Turns of the threads of its cluster until then: an order, not a time.
  std::uint64_t step = 0;
  std::uint64_t block = 0;  ///< its number in the grid
  int warp = 0;
  SourceLine line;
};

/// What the warps of the last launch did, if EmulatorOptions::record_timeline was set: block by block, in order.
std::vector<TimelineEvent> emulator_timeline();

/// Counts since the last reset; empty unless this is the checking build of the emulator.
std::optional<Counts> counts();
/// The same by kernel, in the order of their first launches; empty unless this is the checking build.
std::vector<KernelCounts> kernel_counts();
/// Both start from nothing again.
void reset_counts();

/// The synchronisations that kernels passed since the last reset, each once: candidates for `without`.
std::vector<SourceLine> synchronisations_seen();
void reset_synchronisations_seen();

}  // namespace gpu
