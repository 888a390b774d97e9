#pragma once
/// \file
/// The results of a run as JSON: written whole or not at all, and read again by the ladder and the tables.
///
/// Nothing in the file depends on the commit, the time or the path, so that two runs that came out the same compare
/// equal.

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/program.hpp"

namespace stage {

/// What a measured figure was made of.
struct FigureSamples {
  double work = 0;              ///< FLOPs or bytes of one launch
  std::vector<double> seconds;  ///< of each launch
};

/// The rows of one problem.
struct ProblemRows {
  attention::Problem problem;
  std::vector<Row> rows;
};

/// What a run recorded.
struct Results {
  struct Table {
    std::string name;
    std::vector<std::string> header;
    std::vector<std::vector<std::string>> rows;
  };

  std::string chapter_number, chapter_name;
  gpu::DeviceInfo machine;
  gpu::EmulatorOptions emulator;
  std::optional<attention::Problem> problem;  ///< absent in a chapter that takes none
  std::uint64_t seed = 1;
  bool right = true;
  std::vector<Row> rows;
  std::vector<std::pair<std::string, double>> figures;
  std::map<std::string, FigureSamples> figure_samples;  ///< of the measured ones, by the figure's name
  std::vector<Table> tables;
  std::optional<std::vector<gpu::KernelCounts>> kernel_counts;  ///< with `--count`; empty where nothing counts
  std::vector<ProblemRows> grid;                                ///< Chapter::bench_problems
};

/// The text with blanks for line breaks, since an error is one line.
std::string one_line(std::string text);

/// JSON as text: two blanks a level, a list of numbers on one line, a newline at the end.
std::string to_text(const nlohmann::ordered_json& json);

/// The results as text. A figure that is not finite becomes null; samples have the seven digits of the fp32 numbers
/// that GPU events give.
std::string to_json(const Results& results);

/// \throws BadArgument unless a file can be created in the path's folder and the path is free or an ordinary file.
void check_writable(const std::string& path);

/// Writes beside the file and renames, so that a reader sees the old file or the new one and never half of one.
/// \throws std::runtime_error naming the path if that fails; the old file is then untouched.
void write_atomically(const std::string& path, const std::string& text);

/// What the ladder and the tables need of a chapter's results.
struct Step {
  std::string chapter;      ///< "02 naive_gpu"
  std::string machine;      ///< its name
  std::string problem;      ///< one line; empty in a chapter that takes none
  std::string problem_key;  ///< equal exactly for equal problems
  attention::ElementType element_type = attention::ElementType::fp32;
  std::vector<Row> rows;
  std::vector<Results::Table> tables;  ///< empty if there are none
  std::map<std::string, double> figures;
};

/// The element type that JSON of a problem names; fp32 where it names none. \throws std::exception if there is no such
/// type.
attention::ElementType read_element_type(const nlohmann::ordered_json& problem);

/// Reads the results of one chapter. \throws std::exception saying what is wrong with them.
Step read_step(const nlohmann::ordered_json& object);

/// The same from a file. \throws BadArgument naming the file and what is wrong with it.
Step read_step(const std::string& path);

/// The JSON in a file. \throws BadArgument naming the file; `allowed` says which files there may be.
nlohmann::ordered_json read_json(const std::string& path, const std::string& allowed);

}  // namespace stage
