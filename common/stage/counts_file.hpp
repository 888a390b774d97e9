#pragma once
/// \file
/// The files docs/results/*-counts.json: what the emulator counted and what a GPU's counters said, by kernel.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/stage/results_file.hpp"

namespace stage {

/// A quantity that both sides count.
struct CountedQuantity {
  const char* accesses;  ///< "global_loads", as in the JSON of a chapter's program
  const char* name;      ///< "sectors", likewise
  const char* metric;    ///< ncu's name
};

/// The counters that are added up for it: its own, and in device memory those of atomics, which are a load and a store
/// here and have counters of their own there (`red`, and `atom` where the old value is asked for).
std::vector<std::string> metrics_of(const CountedQuantity& quantity);

/// All of them: requests and sectors of device memory, requests, wavefronts and conflicts of shared memory.
std::span<const CountedQuantity> counted_quantities();

/// One kernel of one chapter on one machine.
struct CountedKernel {
  std::string kernel;  ///< in normal form, "scores_kernel<64>"
  std::uint64_t launches = 0;
  std::map<std::string, std::map<std::string, double>> accesses;  ///< ["global_loads"]["sectors"]

  std::optional<double> value(const CountedQuantity& quantity) const;
};

struct CountedChapter {
  std::string folder;  ///< "02_naive_gpu"
  std::string problem;
  attention::ElementType element_type = attention::ElementType::fp32;
  std::map<std::string, std::string> hashes;  ///< of its kernel files; a GPU's file only
  std::vector<CountedKernel> kernels;
};

/// One file. Driver, CUDA, date and commit are those of a GPU, and empty in the emulator's file.
struct MachineCounts {
  gpu::DeviceInfo machine;
  std::string date, commit;
  std::map<std::string, std::string> common;  ///< hashes of kCommon; a GPU's file only
  std::vector<CountedChapter> chapters;       ///< in the book's order
};

/// True for "docs/results/nvidia-h200-counts.json".
bool is_counts_file(const std::string& path);

/// \throws BadArgument naming the file and what is wrong with it.
MachineCounts read_counts(const std::string& path);

/// Collects what chapters wrote with `--count --json` on the checking emulator: the text of
/// docs/results/emulator-counts.json, which depends on nothing but the counts. Chapters without kernels are left out.
/// \throws BadArgument for a file that is malformed, not of the checking emulator, not right, or second of a chapter
/// in the same element type.
std::string collect_emulator_counts(const std::vector<std::string>& paths);

/// A chapter's program under ncu: what it wrote with `--count --json`, and ncu's CSV of the same run.
struct GpuCountFiles {
  std::string json, csv;
};

/// Collects these into one text, the counters summed over all launches of a kernel.
/// \param[out] file_name "nvidia-h200-counts.json".
/// \throws BadArgument like collect_emulator_counts, and for files of two machines and a chapter without a hash.
std::string collect_gpu_counts(const std::vector<GpuCountFiles>& files, const std::string& date,
                               const std::string& commit, const KernelHashes& hashes, std::string& file_name);

/// `counts metrics` prints the list for `ncu --metrics`; `counts emulator FILE [--check] JSON…` writes the emulator's
/// counts to FILE, or with --check only compares them with it; `counts gpu FOLDER --date DATE --commit COMMIT --hashes
/// FILE JSON CSV [JSON CSV…]` writes `FOLDER/<gpu>-counts.json`.
///
/// \return 0; 1 if `--check` finds another text in FILE, or a file cannot be written; 2 for an argument or a file that
/// is not as it should be. After 1 and 2 there is one line on standard error.
int counts(int argc, const char* const* argv);

}  // namespace stage
