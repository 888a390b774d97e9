#include "common/stage/program.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "common/gpu/emulation.hpp"
#include "common/stage/command_line.hpp"
#include "common/stage/forward_run.hpp"
#include "common/stage/json.hpp"
#include "common/stage/table.hpp"
#include "common/stage/timing.hpp"

namespace stage {
namespace {

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
  for (const gpu::SourceLine& line : emulator.without) text += fmt::format("; without {}:{}", line.file, line.line);
  return text;
}

/// Sets the emulator's options for one run, and puts the earlier ones back.
class EmulatorOptionsGuard {
 public:
  EmulatorOptionsGuard(const gpu::DeviceInfo& machine, const gpu::EmulatorOptions& options)
      : emulated_(machine.emulated), before_(gpu::emulator_options()) {
    if (emulated_) gpu::set_emulator_options(options);
  }
  ~EmulatorOptionsGuard() {
    if (emulated_) gpu::set_emulator_options(before_);
  }
  EmulatorOptionsGuard(const EmulatorOptionsGuard&) = delete;
  EmulatorOptionsGuard& operator=(const EmulatorOptionsGuard&) = delete;

 private:
  bool emulated_;
  gpu::EmulatorOptions before_;
};

class Runner : public Program {
 public:
  Runner(const Chapter& chapter, const CommandLine& line)
      : chapter_(chapter),
        line_(line),
        options_(resolve(line, chapter, gpu::device())),
        emulator_guard_(gpu::device(), line.emulator),
        prints_(options_.json != "-") {
    for (const ForwardKernel& kernel : chapter.forward) {
      if (options_.kernel.empty() || options_.kernel == kernel.name) kernels_.push_back(&kernel);
    }
    results_.chapter_number = chapter.number;
    results_.chapter_name = chapter.name;
    results_.machine = gpu::device();
    results_.emulator = line.emulator;
    if (chapter.takes_problem) results_.problem = options_.problem;
    results_.seed = options_.seed;
  }

  /// The whole run. \return the exit code, but for what is thrown.
  int run_all() {
    refuse_early();
    gpu::reset_synchronisations_seen();
    print_header();
    if (!kernels_.empty()) {
      std::vector<Row> all;
      for (const ForwardKernel* kernel : kernels_) all.push_back(run_forward(*kernel));
      rows(all);
    }
    if (options_.kernel.empty()) {
      for (const Section& section : chapter_.sections) {
        print(fmt::format("\n{}\n{}\n", section.title, std::string(section.title.size(), '-')));
        section.run(*this);
        note_synchronisations();
        clear_progress();
      }
    }
    refuse_without_effect();
    results_.right = right_;
    if (options_.json == "-") {
      print_always(to_json(results_));
    } else if (!options_.json.empty()) {
      write_atomically(options_.json, to_json(results_));
    }
    if (std::fflush(stdout) != 0) throw std::runtime_error("standard output could not be written");
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
    const auto& machine = gpu::device();
    const bool predicted =
        std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.bytes_predicted.has_value(); });
    if (machine.emulated && !machine.checked && predicted && !said_how_to_count_) {
      said_how_to_count_ = true;
      print("\nBytes are predicted here; the checking build counts them (./learn run).\n");
    }
    for (const Row& row : rows) {
      if (!row.right) fail(fmt::format("{}: {}", row.kernel, row.verdict));
    }
  }

  void figure(const std::string& name, double value) override { results_.figures.emplace_back(name, value); }

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

  Row run_forward(const ForwardKernel& kernel) override {
    progress(fmt::format("{}: running", kernel.name));
    Row row;
    try {
      admit(kernel, options_.problem);
      if (!forward_) forward_.emplace(options_.problem, options_.seed);
      row = run_admitted(kernel, *forward_, options_.bench);
    } catch (const Refused& refusal) {
      if (kernels_.size() == 1 && kernels_.front()->name == kernel.name) throw;
      row.kernel = label(kernel);
      row.summary = kernel.summary;
      row.verdict = fmt::format("refused: {}", refusal.what());
    }
    clear_progress();
    note_synchronisations();
    return row;
  }

  std::vector<double> time(const std::function<void()>& launch) override {
    if (gpu::device().emulated) throw gpu::Error("a launch on the emulator has no time that says anything about a GPU");
    return time_launches(Memory::device, launch);
  }

  /// Writes to standard error, after what was printed so far.
  void report(const std::string& text) {
    clear_progress();
    std::fflush(stdout);
    fmt::print(stderr, "{}: {}\n", chapter_.name, text);
  }

 private:
  /// A problem that none of the kernels takes is refused before anything is printed or run.
  void refuse_early() const {
    std::string first;
    for (const ForwardKernel* kernel : kernels_) {
      try {
        admit(*kernel, options_.problem);
        return;
      } catch (const Refused& refusal) {
        if (first.empty()) first = refusal.what();
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
    // describe() names the scale where one was given.
    const std::string scale =
        options_.problem.softmax_scale ? "" : fmt::format(", scale {:.6g}", options_.problem.scale());
    print(wrap(fmt::format("problem:  {}{}, fp32, seed {}", options_.problem.describe(), scale, options_.seed), 10) +
          "\n");
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
  EmulatorOptionsGuard emulator_guard_;
  std::vector<const ForwardKernel*> kernels_;
  std::optional<ForwardCase> forward_;  // made when the first kernel runs
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

int run(int argc, const char* const* argv, const Chapter& chapter) {
  try {
    const CommandLine line = parse_command_line(argc, argv, chapter);
    if (line.help) {
      fmt::print("{}", line.help_text);
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
