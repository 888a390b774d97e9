#pragma once
/// \file
/// The files in docs/results: what one GPU measured, with the hash of every kernel file that it was measured with.

#include <map>
#include <string>
#include <vector>

#include "common/stage/json.hpp"

namespace stage {

/// The folder of those headers that all kernels are compiled from.
inline constexpr const char* kCommon = "common";

/// SHA-256 of the kernel files: folder of the chapter ("02_naive_gpu"), then file ("naive_attention.cuh"). All sources
/// in the folder are meant, stage.cu too, which says what is measured. The headers in `common` stand under `kCommon`,
/// by their path in it ("gpu/launch.cuh").
using KernelHashes = std::map<std::string, std::map<std::string, std::string>>;

/// Reads what `sha256sum chapters/NN_name/file… common/path/file…` printed. \throws BadArgument naming `source` and the
/// line that is none.
KernelHashes parse_hashes(const std::string& text, const std::string& source);

/// Where and when something was measured, and with which headers.
struct Measurement {
  gpu::DeviceInfo machine;
  std::string date, commit;
  std::map<std::string, std::string> common;  ///< hashes of kCommon then; empty where none were taken
};

/// One chapter on one GPU. Chapters of a file may have been measured at different times.
struct MeasuredChapter {
  std::string folder;  ///< "02_naive_gpu"
  Step step;
  std::map<std::string, std::string> hashes;  ///< of its kernel files when it was measured
  Measurement measurement;
};

/// One file of docs/results: the chapters on one GPU, in the book's order.
struct MeasuredMachine {
  std::vector<MeasuredChapter> chapters;
};

/// The new form of a GPU's file.
struct MergedResults {
  std::string file_name;  ///< "nvidia-h200.json"
  std::string text;
  std::vector<std::string> dropped;  ///< chapters that it held and that have no hash, since they are gone
};

/// Puts files that chapters wrote with `--bench --json` on one GPU into the GPU's file in `folder`: in place of what it
/// holds of these chapters, beside the others, which stay as they are. Another driver or CUDA than the others' is
/// allowed, since each chapter names its own; another number of multiprocessors is another GPU.
///
/// \param seen what the GPU said about its clocks meanwhile, a line a look; kept as it is.
/// \throws BadArgument for a file that is malformed, of the emulator, not right, of another GPU or of a chapter that
/// came before in the same element type, for a chapter without a hash, and where the GPU's file cannot be read or is of
/// another GPU whose name gives the same file name.
MergedResults merge_results(const std::string& folder, const std::vector<std::string>& paths, const std::string& date,
                            const std::string& commit, const KernelHashes& hashes, const std::string& seen);

/// \throws BadArgument naming the file and what is wrong with it.
MeasuredMachine read_results(const std::string& path);

/// "NVIDIA H200" is "nvidia-h200".
std::string slug(const std::string& name);

/// "02_naive_gpu" of the JSON's `chapter`. \throws std::exception if it is malformed, like those below.
std::string folder_of(const nlohmann::ordered_json& chapter);

/// "07_tensor_cores, bf16"; in fp32 the folder alone.
std::string in_type(const std::string& folder, attention::ElementType type);

/// The JSON's `machine`, a GPU.
gpu::DeviceInfo read_machine(const nlohmann::ordered_json& object);

/// The part of a chapter's `machine` that all chapters share; `built_for` may differ from one to the next.
nlohmann::ordered_json shared_machine(const nlohmann::ordered_json& machine);

}  // namespace stage
