#include "common/stage/program.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iterator>
#include <map>
#include <memory>

#include "common/gpu/emulation.hpp"
#include "common/stage/command_line.hpp"
#include "common/stage/counts_table.hpp"
#include "common/stage/json.hpp"
#include "common/stage/kernel_bench.hpp"
#include "common/stage/kernel_run.hpp"
#include "common/stage/memory.hpp"
#include "common/stage/peers.hpp"
#include "common/stage/table.hpp"
#include "common/stage/timing.hpp"

namespace stage {
namespace {

/// \throws std::runtime_error if something that was printed has not arrived: a full disk, a closed output. What failed
/// once leaves nothing to be flushed, but stays known.
void require_written_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::runtime_error("standard output could not be written");
}

std::string describe(const gpu::DeviceInfo& machine, const gpu::EmulatorOptions& emulator) {
  if (!machine.emulated) {
    return fmt::format("{} (sm_{}, {} multiprocessors), driver {}, CUDA {}, up to {} MHz", machine.name,
                       machine.compute_capability, machine.multiprocessors, machine.driver, machine.cuda,
                       machine.clock_khz / 1000);
  }
  std::string text = machine.checked ? "emulator, checking build: faults and counted bytes, no times"
                                     : "emulator, plain build: results, no counts and no times";
  if (emulator.schedule_seed) text += fmt::format("; schedule seed {}", emulator.schedule_seed);
  if (emulator.delivery == gpu::Delivery::immediately) text += "; delivery immediately";
  if (emulator.shared_memory_limit) {
    text += fmt::format("; {} bytes of shared memory a block", emulator.shared_memory_limit);
  }
  for (const gpu::SourceLine& line : emulator.without) text += fmt::format("; without {}:{}", line.file, line.line);
  return text;
}

class Runner : public Program {
 public:
  Runner(const Chapter& chapter, const CommandLine& line)
      : chapter_(chapter),
        line_(line),
        options_(resolve(line, chapter, gpu::device())),
        emulator_options_(gpu::device().emulated ? line.emulator : gpu::EmulatorOptions()),
        prints_(options_.json != "-") {
    const auto choose = [&](const AnyKernel& kernel) {
      if (options_.kernel.empty() || options_.kernel == kernel.name) kernels_[kernel.pass].push_back(kernel);
    };
    for (const ForwardKernel& kernel : chapter.forward) choose(kernel);
    for (const BackwardKernel& kernel : chapter.backward) choose(kernel);
    results_.chapter_number = chapter.number;
    results_.chapter_name = chapter.name;
    results_.machine = gpu::device();
    results_.emulator = line.emulator;
    if (chapter.takes_problem) results_.problem = options_.problem;
    results_.seed = options_.seed;
    if (options_.count) results_.kernel_counts.emplace();
  }

  /// The whole run. \return the exit code, but for what is thrown.
  int run_all() {
    refuse_early();
    if (options_.bench) keep_freed_memory();
    gpu::reset_synchronisations_seen();
    print_header();
    if (kernels_.contains(Pass::forward)) find_peers();
    for (const auto& [pass, kernels] : kernels_) {
      if (kernels_.size() > 1) say(pass == Pass::forward ? "Forward:" : "Backward:");
      rows(run_kernels(with_peers(pass), options_.problem, cases_[pass]));
    }
    run_grid();
    if (options_.kernel.empty()) {
      for (const Section& section : chapter_.sections) {
        if (options_.count && !section.counted) continue;
        gpu::reset_counts();
        print(fmt::format("\n{}\n{}\n", section.title, std::string(section.title.size(), '-')));
        section.run(*this);
        note_synchronisations();
        note_counts();
        clear_progress();
      }
    }
    if (options_.count) show_counts();
    refuse_without_effect();
    results_.right = right_;
    if (options_.json == "-") {
      print_always(to_json(results_));
    } else if (!options_.json.empty()) {
      write_atomically(options_.json, to_json(results_));
    }
    require_written_output();
    return right_ ? 0 : 1;
  }

  const Options& options() const override { return options_; }

  void say(const std::string& text) override { print("\n" + text + "\n"); }

  void table(const std::string& name, const std::vector<std::string>& header,
             const std::vector<std::vector<std::string>>& rows) override {
    results_.tables.push_back({name, header, rows});
    print("\n" + layout_table(header, rows));
  }

  void rows(const std::vector<Row>& rows) override {
    results_.rows.insert(results_.rows.end(), rows.begin(), rows.end());
    print("\n" + rows_table(rows));
    if (const std::string times = times_table(rows); !times.empty()) print("\n" + times);
    const auto& machine = gpu::device();
    const bool predicted =
        std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.bytes_predicted.has_value(); });
    if (machine.emulated && !machine.checked && predicted && !said_how_to_count_) {
      said_how_to_count_ = true;
      print("\nBytes are predicted here; the checking build counts them (./learn run).\n");
    }
    complain(rows);
  }

  void figure(const std::string& name, double value) override { results_.figures.emplace_back(name, value); }

  void figure(const std::string& name, double value, const std::vector<double>& seconds, double work) override {
    figure(name, value);
    results_.figure_samples[name] = {.work = work, .seconds = seconds};
  }

  void fail(const std::string& sentence) override {
    right_ = false;
    report(sentence);
  }

  void progress(const std::string& text) override {
    if (!::isatty(STDERR_FILENO)) return;
    fmt::print(stderr, "\r{}\033[K", text);
    std::fflush(stderr);
    progress_shown_ = true;
  }

  Row check_forward(const ForwardKernel& kernel) override { return check(kernel); }
  Row run_forward(const ForwardKernel& kernel) override { return check_and_time(kernel); }
  Row check_backward(const BackwardKernel& kernel) override { return check(kernel); }
  Row run_backward(const BackwardKernel& kernel) override { return check_and_time(kernel); }

  std::vector<double> time(const std::function<void()>& launch) override {
    if (gpu::device().emulated) throw gpu::Error("a launch on the emulator has no time that says anything about a GPU");
    return time_launches(device_clock(), launch);
  }

  /// Writes to standard error, after what was printed so far.
  void report(const std::string& text) {
    clear_progress();
    std::fflush(stdout);
    fmt::print(stderr, "{}: {}\n", chapter_.name, text);
  }

 private:
  Row check(const AnyKernel& kernel) { return run_kernel(kernel, options_.problem, cases_[kernel.pass]); }

  Row check_and_time(const AnyKernel& kernel) {
    return run_kernels({kernel}, options_.problem, cases_[kernel.pass]).front();
  }

  /// Checks kernels of one pass one after the other and, if asked, times those that are right in rounds.
  std::vector<Row> run_kernels(const std::vector<AnyKernel>& kernels, const attention::Problem& problem,
                               std::unique_ptr<Case>& of_pass) {
    std::vector<Row> rows;
    for (const AnyKernel& kernel : kernels) {
      rows.push_back(run_kernel(kernel, problem, of_pass));
      note_synchronisations();
    }
    if (options_.bench && of_pass) {
      progress("timing");
      bench(kernels, rows, *of_pass, Clocks{});
      if (library_) library_->release();
    }
    clear_progress();
    return rows;
  }

  Row run_kernel(const AnyKernel& kernel, const attention::Problem& problem, std::unique_ptr<Case>& of_pass) {
    progress(fmt::format("{}: running", kernel.name));
    try {
      admit(kernel, problem);
      if (!of_pass) of_pass = make_case(kernel.pass, problem, options_.seed);
      Row row = run_admitted(kernel, *of_pass, options_.count ? Counting::all_launches : Counting::run);
      note_counts();
      return row;
    } catch (const Refused& refusal) {
      const bool asked_for = &problem == &options_.problem;  // and not one of bench_problems
      if (asked_for && is_the_only(kernel)) throw;
      Row row = row_of(kernel);
      row.verdict = fmt::format("refused: {}", refusal.what());
      return row;
    }
  }

  /// True if this is all that runs, so that its refusal is the program's.
  bool is_the_only(const AnyKernel& kernel) const {
    if (kernels_.size() != 1) return false;
    const auto& [pass, kernels] = *kernels_.begin();
    return kernels.size() == 1 && pass == kernel.pass && kernels.front().name == kernel.name;
  }

  std::vector<AnyKernel> with_peers(Pass pass) const {
    std::vector<AnyKernel> all = kernels_.at(pass);
    if (pass == Pass::forward) all.insert(all.end(), peers_.begin(), peers_.end());
    return all;
  }

  /// Loads the chapter's peers where times are asked for; says why if they are not to be had.
  void find_peers() {
    if (!options_.bench || chapter_.peers.empty()) return;
    try {
      library_.emplace(peer_library_path());
      std::vector<attention::Problem> problems = further_problems();
      problems.push_back(options_.problem);
      std::vector<std::string> left_out;
      for (const ForwardKernel& peer : library_->kernels(chapter_.peers, problems, left_out)) peers_.push_back(peer);
      if (!left_out.empty()) {
        say(wrap(fmt::format("Peers that take other elements than {} are left out: {}.",
                             attention::name(options_.problem.element_type), join(left_out))));
      }
    } catch (const NoPeers& reason) {
      peers_.clear();
      say(wrap(fmt::format("No peers: {}.", reason.what())));
    }
  }

  /// The chapter's bench_problems, where they are asked for.
  std::vector<attention::Problem> further_problems() const {
    const bool problem_given = line_.batch || line_.heads_q || line_.heads_kv || line_.seqlen_q || line_.seqlen_kv ||
                               line_.head_dim || line_.mask || line_.softmax_scale;
    if (!options_.bench || problem_given || !options_.kernel.empty() || kernels_.empty()) return {};
    std::vector<attention::Problem> problems = chapter_.bench_problems;
    for (attention::Problem& p : problems) p.element_type = line_.element_type.value_or(p.element_type);
    return problems;
  }

  /// Checks and times all on these.
  void run_grid() {
    const std::vector<attention::Problem> problems = further_problems();
    if (problems.empty()) return;
    cases_.clear();  // their inputs would take memory all the while
    for (const attention::Problem& problem : problems) {
      progress(problem.describe());
      results_.grid.push_back({problem, {}});
      std::vector<Row>& rows = results_.grid.back().rows;
      for (const auto& [pass, kernels] : kernels_) {
        std::unique_ptr<Case> of_pass;
        const std::vector<Row> more = run_kernels(with_peers(pass), problem, of_pass);
        rows.insert(rows.end(), more.begin(), more.end());
      }
      complain(rows);
    }
    for (const auto& [pass, kernels] : kernels_) {
      const Results::Table grid = grid_table(results_.grid, pass);
      const std::string what = pass == Pass::forward ? "TFLOP/s" : "TFLOP/s of the backward";
      say(what + ", and in brackets the time of the best peer over the kernel's (above 1 the kernel is faster):");
      table(grid.name, grid.header, grid.rows);
    }
  }

  /// A kernel that is not right is this program's fault; a peer that is not right is reported.
  void complain(const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      if (row.right) continue;
      const std::string sentence = fmt::format("{}: {}", row.kernel, row.verdict);
      row.is_peer ? report("peer " + sentence) : fail(sentence);
    }
  }

  /// A problem that none of the kernels takes is refused before anything is printed or run.
  void refuse_early() const {
    std::string first;
    for (const auto& [pass, kernels] : kernels_) {
      for (const AnyKernel& kernel : kernels) {
        try {
          admit(kernel, options_.problem);
          return;
        } catch (const Refused& refusal) {
          if (first.empty()) first = refusal.what();
        }
      }
    }
    if (!kernels_.empty()) throw Refused(first);
  }

  /// After each part, since a part may start the emulator's list afresh for a purpose of its own.
  void note_synchronisations() {
    for (const gpu::SourceLine& line : gpu::synchronisations_seen()) {
      const bool known = std::any_of(seen_.begin(), seen_.end(), [&](const gpu::SourceLine& other) {
        return other.line == line.line && other.file == line.file;
      });
      if (!known) seen_.push_back(line);
    }
  }

  /// After each launch of a kernel and each section, since the next one starts the counts afresh.
  void note_counts() {
    if (!options_.count) return;
    add_counts(*results_.kernel_counts, gpu::kernel_counts());
    gpu::reset_counts();  // or the end of a section would add its last launch once more
  }

  void show_counts() {
    const std::string title = "Counts by kernel";
    print(fmt::format("\n{}\n{}\n", title, std::string(title.size(), '-')));
    const gpu::DeviceInfo& machine = gpu::device();
    if (!machine.emulated) return say("The GPU's own counters count these launches: ./learn count reads them.");
    if (!machine.checked) return say("Nothing is counted here: the checking build of the emulator counts.");
    if (results_.kernel_counts->empty()) return say("No kernel was launched.");
    for (const CountsTable& counts : counts_tables(*results_.kernel_counts)) {
      table(counts.name, counts.header, counts.rows);
      print("\n");
      for (const std::string& line : counts.explanations) print(wrap(line, 2) + "\n");
    }
  }

  /// `--without` must have switched something off, or the run says nothing about it.
  void refuse_without_effect() const {
    for (const gpu::SourceLine& wanted : line_.emulator.without) {
      if (std::any_of(seen_.begin(), seen_.end(), [&](const gpu::SourceLine& line) { return is_line(wanted, line); }))
        continue;
      std::vector<std::string> lines;
      for (const gpu::SourceLine& line : seen_) {
        lines.push_back(fmt::format("{}:{}", line.file.substr(line.file.rfind('/') + 1), line.line));
      }
      throw BadArgument(fmt::format("--without {}:{} is no synchronisation that this run passed; allowed: {}",
                                    wanted.file, wanted.line, join(lines)));
    }
  }

  void print_header() {
    print(wrap(fmt::format("Chapter {}, {}: {}", chapter_.number, chapter_.name, chapter_.idea)) + "\n\n");
    print(wrap("machine:  " + describe(gpu::device(), line_.emulator), 10) + "\n");
    if (!chapter_.takes_problem) return;
    // describe() names the scale where one was given, and the element type where it is not fp32.
    const attention::Problem& p = options_.problem;
    const std::string scale = p.softmax_scale ? "" : fmt::format(", scale {:.6g}", p.scale());
    const char* type = p.element_type == attention::ElementType::fp32 ? ", fp32" : "";
    print(wrap(fmt::format("problem:  {}{}{}, seed {}", p.describe(), scale, type, options_.seed), 10) + "\n");
  }

  void print(const std::string& text) {
    if (prints_) print_always(text);
  }

  void print_always(const std::string& text) {
    clear_progress();
    std::fwrite(text.data(), 1, text.size(), stdout);
  }

  void clear_progress() {
    if (!progress_shown_) return;
    fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
    progress_shown_ = false;
  }

  const Chapter& chapter_;
  const CommandLine& line_;
  Options options_;
  gpu::EmulatorOptionsScope emulator_options_;
  std::map<Pass, std::vector<AnyKernel>> kernels_;  // no pass without kernels
  std::optional<PeerLibrary> library_;
  std::vector<AnyKernel> peers_;                 // of the forward
  std::map<Pass, std::unique_ptr<Case>> cases_;  // each made when its first kernel runs
  Results results_;
  std::vector<gpu::SourceLine> seen_;  // synchronisations passed in the parts that are over
  bool prints_;
  bool right_ = true;
  bool said_how_to_count_ = false;
  bool progress_shown_ = false;
};

/// A refusal is one line, whatever its parts brought along.
int refuse(const Chapter& chapter, std::string sentence) {
  std::fflush(stdout);
  std::replace(sentence.begin(), sentence.end(), '\n', ' ');
  fmt::print(stderr, "{}: {}\n", chapter.name, sentence);
  return 2;
}

int stop(const Chapter& chapter, const char* report) {
  std::fflush(stdout);
  fmt::print(stderr, "{}: {}\n", chapter.name, report);
  return 1;
}

}  // namespace

std::vector<Row> rows_of(const std::vector<Row>& rows, Pass pass) {
  std::vector<Row> chosen;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(chosen), [&](const Row& row) { return row.pass == pass; });
  return chosen;
}

int run(int argc, const char* const* argv, const Chapter& chapter) {
  try {
    const CommandLine line = parse_command_line(argc, argv, chapter);
    if (line.help) {
      std::fwrite(line.help_text.data(), 1, line.help_text.size(), stdout);
      require_written_output();
      return 0;
    }
    return Runner(chapter, line).run_all();
  } catch (const BadArgument& error) {
    return refuse(chapter, error.what());
  } catch (const Refused& error) {
    return refuse(chapter, error.what());
  } catch (const std::exception& error) {
    return stop(chapter, error.what());
  }
}

}  // namespace stage
