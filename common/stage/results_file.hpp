#pragma once
/// \file
/// The files in docs/results: what one GPU measured, with the hash of every kernel file that it was measured with.

#include <map>
#include <string>
#include <vector>

#include "common/stage/json.hpp"

namespace stage {

/// SHA-256 of the kernel files: folder of the chapter ("02_naive_gpu"), then file ("naive_attention.cuh").
using KernelHashes = std::map<std::string, std::map<std::string, std::string>>;

/// Reads what `sha256sum chapters/NN_name/file…` printed. \throws BadArgument naming `source` and the line that is
/// none.
KernelHashes parse_hashes(const std::string& text, const std::string& source);

/// One chapter on one GPU.
struct MeasuredChapter {
  std::string folder;  ///< "02_naive_gpu"
  Step step;
  std::map<std::string, std::string> hashes;  ///< of its kernel files when it was measured
};

/// One file of docs/results.
struct MeasuredMachine {
  gpu::DeviceInfo machine;
  std::string date, commit;
  std::vector<MeasuredChapter> chapters;  ///< in the book's order
};

/// Collects files that chapters wrote with `--bench --json` on one GPU into one text, chapters in the book's order.
/// \param[out] file_name of the results of this GPU, "nvidia-h200.json".
/// \throws BadArgument for a file that is malformed, of the emulator, not right, of another GPU or of a chapter that
/// came before, and for a chapter without a hash.
std::string merge_results(const std::vector<std::string>& paths, const std::string& date, const std::string& commit,
                          const KernelHashes& hashes, std::string& file_name);

/// \throws BadArgument naming the file and what is wrong with it.
MeasuredMachine read_results(const std::string& path);

}  // namespace stage
