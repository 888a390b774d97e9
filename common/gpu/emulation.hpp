#pragma once
/// \file
/// The emulator's controls and reports, for programs and tests.
///
/// They exist in every build, so that chapter code needs no `#if`: on a GPU, changing an option throws and a report is
/// empty.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpu {

/// When an asynchronous copy lands. Each mode finds faults that the other hides.
enum class Delivery {
  on_wait,      ///< as late as the rules allow: when somebody waits for it
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
  double stall_seconds = 10;        ///< nothing but polling, or one thread computing, for so long is reported
  double endless_seconds = 100;     ///< and so is a kernel none of whose threads exits. Both in CPU time of a worker
};

/// \throws Error on a GPU unless the options are the default ones.
void set_emulator_options(const EmulatorOptions& options);
const EmulatorOptions& emulator_options();

/// What the checking build counted during launches, summed over all threads.
struct Counts {
  std::uint64_t global_loaded = 0;  ///< bytes loaded from device memory by threads
  std::uint64_t global_stored = 0;  ///< bytes stored (atomics count as a load and a store)
  std::uint64_t shared_loaded = 0;  ///< bytes
  std::uint64_t shared_stored = 0;
  std::uint64_t barriers = 0;  ///< block barriers completed
  std::uint64_t launches = 0;
};

/// Counts since the last reset; empty unless this is the checking build of the emulator.
std::optional<Counts> counts();
void reset_counts();

/// The synchronisations that kernels passed since the last reset, each once: candidates for `without`.
std::vector<SourceLine> synchronisations_seen();
void reset_synchronisations_seen();

}  // namespace gpu
