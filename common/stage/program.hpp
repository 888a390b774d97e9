#pragma once
/// \file
/// The runner that all chapter programs share: command line, checks, timing, tables, JSON.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/attention/problem.hpp"
#include "common/stage/kernel.hpp"
#include "common/stage/rounds.hpp"

namespace stage {

/// What the command line said, beyond the problem.
struct Options {
  attention::Problem problem;
  std::string kernel;      ///< only the kernel of this name; empty: all
  std::uint64_t seed = 1;  ///< of the inputs
  bool bench = false;      ///< time it (GPU only)
  bool count = false;      ///< run what is counted, once, on the problem that the emulator and a GPU have in common
  std::string json;        ///< file for the results, "-" for standard output, empty for none
};

/// One row of a chapter's table. Absent figures print as a dash.
struct Row {
  std::string kernel;
  std::string summary;
  Pass pass = Pass::forward;
  attention::ElementType element_type = attention::ElementType::fp32;  ///< of its problem
  /// Worst relative error against float64; backward of the gradient that takes the largest share of what it is allowed.
  std::optional<double> error;
  std::optional<double> allowed;          ///< what the accuracy rule allows
  std::string verdict;                    ///< "right", or what is wrong
  std::optional<double> seconds;          ///< median of the samples
  std::optional<double> flops;            ///< credited FLOPs of the problem
  std::optional<double> peak_flops;       ///< the roof it is compared with (timing.hpp), FLOP/s
  std::optional<double> bytes_counted;    ///< global bytes, by the checking emulator
  std::optional<double> bytes_predicted;  ///< the same by the model
  std::optional<double> workspace_bytes;
  std::optional<double> peak_bytes;  ///< most device memory held
  std::vector<double> samples;       ///< seconds, raw; of a kernel that was timed in rounds two a round, in their order
  std::optional<Ratio> step_before;  ///< time of the row before over this one's, where both took part in rounds
  std::optional<Ratio> best_peer;    ///< time of the fastest right peer over this one's
  std::string best_peer_name;
  bool is_peer = false;  ///< another library's, measured beside the chapter's kernels
  bool on_host = false;  ///< ran on the CPU
  bool right = true;
};

/// Those of one pass, in their order.
std::vector<Row> rows_of(const std::vector<Row>& rows, Pass pass);

/// A running chapter program: where its parts print and record.
class Program {
 public:
  virtual ~Program() = default;
  virtual const Options& options() const = 0;
  /// Prints text with a blank line before it, wrapped by the caller.
  virtual void say(const std::string& text) = 0;
  /// Prints a table: a header, then rows of cells; numbers right-aligned. `name` is its key in the JSON.
  virtual void table(const std::string& name, const std::vector<std::string>& header,
                     const std::vector<std::vector<std::string>>& rows) = 0;
  /// Records and prints rows in the chapters' common table.
  virtual void rows(const std::vector<Row>& rows) = 0;
  /// Records a single figure in the JSON, e.g. ("dram_read_bytes_per_second", 4.5e12).
  virtual void figure(const std::string& name, double value) = 0;
  /// The same for a measured one, with what it was made of: the seconds of each launch, and the FLOPs or bytes of one.
  virtual void figure(const std::string& name, double value, const std::vector<double>& seconds, double work) = 0;
  /// Says that something came out wrong; the program then exits with 1.
  virtual void fail(const std::string& sentence) = 0;
  /// Shows progress on a terminal, nothing elsewhere.
  virtual void progress(const std::string& text) = 0;

  /// Runs a kernel on the options' problem: check against the reference, count, and time when asked (alone: what is to
  /// be compared belongs in Chapter::forward or Chapter::bench_problems).
  ///
  /// A problem that the kernel does not take, or that does not fit in memory, gives a row whose verdict is
  /// "refused: …"; a kernel that the device stopped gives one whose verdict is "failed: …" and that is not right.
  /// \throws Refused instead if this is the only kernel that was asked for.
  virtual Row run_forward(const ForwardKernel& kernel) = 0;
  /// The same, never timed: for kernels so slow that their bytes are the point.
  virtual Row check_forward(const ForwardKernel& kernel) = 0;
  /// The same two for a backward kernel.
  virtual Row run_backward(const BackwardKernel& kernel) = 0;
  virtual Row check_backward(const BackwardKernel& kernel) = 0;
  /// Seconds of each timed launch: warm-up, then at least 20 samples, 5 of a slow one. `median` makes one figure of
  /// them. \throws gpu::Error on the emulator, whose times say nothing about a GPU.
  virtual std::vector<double> time(const std::function<void()>& launch) = 0;
};

/// The middle sample, or the mean of the two in the middle; NaN of none.
double median(std::vector<double> samples);

/// A part of a chapter's program.
struct Section {
  std::string title;
  std::function<void(Program&)> run;
  /// Runs with `--count`, too. It then launches the same on the emulator and on a GPU, and does not reset the counts.
  bool counted = false;
};

/// A chapter's program.
struct Chapter {
  std::string number;                    ///< "02"
  std::string name;                      ///< "naive_gpu", as the folder
  std::string idea;                      ///< one sentence, printed first
  attention::Problem gpu_problem;        ///< the default problem on a GPU
  attention::Problem emulator_problem;   ///< the default problem on the emulator: seconds, not minutes
  bool takes_problem = true;             ///< false: the sizes mean nothing here, and giving one is refused
  std::vector<ForwardKernel> forward;    ///< run and tabled in this order; with --bench timed in rounds (rounds.hpp)
  std::vector<BackwardKernel> backward;  ///< likewise, in a table and in rounds of their own after the forward's
  /// Names of peers (peers.hpp) that --bench checks and times beside the forward kernels, e.g.
  /// "pytorch_efficient_fp32". Those of an element type that none of the problems has are left out.
  std::vector<std::string> peers;
  /// --bench times the kernels and peers on these, too, and tables them as "grid"; not where the command line names a
  /// kernel or a problem. An element type alone it may name: it is then that of all of these.
  std::vector<attention::Problem> bench_problems;
  std::vector<Section> sections;  ///< run after the table; left out when `--kernel` picks one kernel
};

/// Parses the command line, runs the chapter, prints and writes the results.
///
/// \return 0 if everything came out right; 1 if a result was wrong or the device failed; 2 for an argument that is not
/// allowed, after one line on standard error that says what is wrong and what is allowed.
int run(int argc, const char* const* argv, const Chapter& chapter);

}  // namespace stage
