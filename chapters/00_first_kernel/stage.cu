/// \file
/// The program of chapter 00: a first kernel, the same kernel without its first barrier, and the machine's ceilings.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "chapters/00_first_kernel/matrix_product.hpp"
#include "chapters/00_first_kernel/measurements.cuh"
#include "chapters/00_first_kernel/row_sum.cuh"
#include "common/attention/cost.hpp"
#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/program.hpp"
#include "common/stage/text.hpp"
#include "common/stage/timing.hpp"

namespace {

using namespace first_kernel;
using stage::text;

/// A matrix on the host and on the device, and room for its row sums.
struct RowSums {
  std::int64_t rows, cols;
  std::vector<float> x;
  gpu::DeviceBuffer<float> x_gmem, sum_gmem;

  RowSums(std::int64_t rows_, std::int64_t cols_, std::uint64_t seed) : rows(rows_), cols(cols_) {
    std::mt19937_64 engine(seed);
    // From −0.7 to 1.3: a sum that forgets elements is visibly too small.
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      x.push_back(static_cast<float>(engine() >> 40) / float{1 << 23} - 0.7f);
    }
    x_gmem = gpu::DeviceBuffer<float>(x, "x");
    sum_gmem = gpu::DeviceBuffer<float>(static_cast<std::size_t>(rows), "sum");
  }

  /// Runs the kernel over poisoned output and waits for it.
  std::vector<float> run() {
    sum_gmem.poison();
    launch_row_sum(x_gmem.data(), sum_gmem.data(), rows, cols);
    return sum_gmem.download();
  }

  double exact(std::int64_t row) const {
    double sum = 0;
    for (std::int64_t col = 0; col < cols; ++col) sum += double{x[static_cast<std::size_t>(row * cols + col)]};
    return sum;
  }

  /// Largest error of a sum over Σ|x| of its row; infinite if a sum is not a number.
  double worst_error(std::span<const float> sums) const {
    double worst = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      double magnitude = 0;
      for (std::int64_t col = 0; col < cols; ++col) {
        magnitude += std::abs(double{x[static_cast<std::size_t>(row * cols + col)]});
      }
      const double error = std::abs(double{sums[static_cast<std::size_t>(row)]} - exact(row)) / magnitude;
      worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
    }
    return worst;
  }
};

void sum_rows(stage::Program& program) {
  const bool emulated = gpu::device().emulated;
  RowSums sums(emulated ? 64 : 16384, 1000, program.options().seed);
  program.say("x is " + std::to_string(sums.rows) + " x " + std::to_string(sums.cols) + ", a block of " +
              std::to_string(kRowSumThreads) + " threads a row. The error is |sum - float64 sum| / sum of |x|.");

  gpu::reset_counts();
  const std::vector<float> result = sums.run();
  const auto counted = gpu::counts();

  stage::Row row;
  row.kernel = "row_sum";
  row.summary = "one block a row, a tree of additions in shared memory";
  row.error = sums.worst_error(result);
  // n additions in a chain, each rounded to within 2^-24, are off by at most n · 2^-24 · Σ|x| (Higham, section 4.2).
  row.allowed = std::ldexp(static_cast<double>(row_sum_depth(sums.cols)), -24);
  row.right = *row.error <= *row.allowed;
  row.verdict = row.right ? "right" : "the error is larger than rounding explains";
  row.bytes_predicted = row_sum_traffic(sums.rows, sums.cols).total();
  if (counted) row.bytes_counted = static_cast<double>(counted->global_loaded + counted->global_stored);
  program.rows({row});
  if (row.bytes_counted && row.bytes_counted != row.bytes_predicted) {
    program.fail("row_sum: the bytes counted are not the bytes predicted");
  }
  if (counted) {
    program.say("Each of the " + std::to_string(sums.rows) + " blocks passed " +
                std::to_string(counted->barriers / static_cast<std::uint64_t>(sums.rows)) + " barriers; its tree has " +
                std::to_string(row_sum_depth(0)) + " levels.");
  }
}

/// The lines of row_sum.cuh that synchronise, in order.
std::vector<gpu::SourceLine> barriers_of(RowSums& sums) {
  gpu::reset_synchronisations_seen();
  sums.run();
  auto seen = gpu::synchronisations_seen();
  std::ranges::sort(seen, {}, &gpu::SourceLine::line);
  return seen;
}

void leave_the_barrier_out(stage::Program& program) {
  if (!gpu::device().emulated) {
    program.say(
        "A GPU runs a kernel with a missing barrier and says nothing; often the sum is even right, because 32 threads "
        "of a\n"
        "warp move together. Two ways to see the fault:\n"
        "  ./learn run 00 --emulator\n"
        "  delete the first __syncthreads() in a copy of row_sum.cuh, build it, and run it under\n"
        "  compute-sanitizer --tool racecheck");
    return;
  }

  RowSums sums(1, 1000, program.options().seed);
  const std::vector<gpu::SourceLine> barriers = barriers_of(sums);
  if (barriers.empty()) {
    program.fail("the emulator saw no barrier in row_sum");
    return;
  }
  const gpu::SourceLine first = barriers.front();

  gpu::EmulatorOptions options = gpu::emulator_options();
  options.without.push_back(first);
  std::string report;
  float sum = 0;
  try {
    const gpu::EmulatorOptionsScope without(options);
    sum = sums.run()[0];
  } catch (const gpu::Error& error) {
    report = error.what();
  }

  program.say("The same kernel, one row, with the barrier of line " + std::to_string(first.line) + " switched off:");
  if (!report.empty()) {
    program.say(report);
    program.say(
        "How to read it: each line is one fault: where, what, and in brackets who. A race is two accesses to the same\n"
        "bytes by two threads, one of them a write. The missing barrier belongs between the two lines it names.");
  } else if (gpu::device().checked) {
    program.fail("the checking build did not notice the missing barrier");
  } else {
    program.say(
        "  the sum is " + text("%.6g", double{sum}) + ", and should be " + text("%.6g", sums.exact(0)) +
        ".\n"
        "This build of the emulator runs the threads one after another and does not watch their accesses: it shows\n"
        "the wrong result, not the reason. The checking build (./learn run 00) names both lines.");
  }
}

/// The datasheet's figure for a ceiling of this machine, 0 where there is none.
double datasheet(const std::string& key) {
  const attention::Machine* machine = stage::known_machine(gpu::device());
  if (!machine) return 0;
  if (key == "fp32_flops_per_second") return machine->fp32_flops;
  if (key == "bf16_matrix_product_flops_per_second") return machine->tensor_flops;
  return key.starts_with("device_memory") ? machine->bytes_per_second : 0;
}

/// A row of the table of ceilings; records the figure. `work`: FLOPs or bytes of one launch.
std::vector<std::string> ceiling_row(stage::Program& program, const std::string& name, const std::string& key,
                                     double work, const std::vector<double>& seconds) {
  const double rate = work / stage::median(seconds);
  program.figure(key, rate, seconds, work);
  const bool flops = key.find("flops") != std::string::npos;
  const double sheet = datasheet(key);
  const auto tera = [&](double value) { return text("%.2f", value / 1e12) + (flops ? " TFLOP/s" : " TB/s"); };
  return {name, tera(rate), sheet > 0 ? tera(sheet) : "-", sheet > 0 ? text("%.0f %%", 100 * rate / sheet) : "-"};
}

void measure_ceilings(stage::Program& program) {
  const bool emulated = gpu::device().emulated;
  const auto sizes = emulated ? CeilingSizes::tiny() : CeilingSizes::for_device(gpu::device());
  std::vector<std::vector<std::string>> rows;
  for (const Ceiling& ceiling : make_ceilings(sizes)) {
    program.progress(ceiling.name);
    ceiling.launch();
    const std::string fault = ceiling.check();
    if (!fault.empty()) program.fail(ceiling.name + ": " + fault);
    if (emulated) {
      rows.push_back({ceiling.name, fault.empty() ? "right" : "wrong", "on a GPU only"});
    } else {
      rows.push_back(ceiling_row(program, ceiling.name, ceiling.key, ceiling.work, program.time(ceiling.launch)));
    }
  }

  const std::string product = "bf16 matrix product, 8192 x 8192 x 8192, cuBLAS";
  if (emulated) {
    rows.push_back({product, "-", "on a GPU only"});
    program.table("ceilings", {"ceiling", "result", "measured"}, rows);
    program.say(
        "The emulator runs these kernels to show that they compute what they should. A time taken here would be that "
        "of\n"
        "this computer's processor, so none is printed.");
    return;
  }

  // The chapter's own kernel under its ceiling: the same additions, one float at a time.
  const std::int64_t cols = 8192;
  const std::int64_t row_count =
      std::min<std::int64_t>(65536, static_cast<std::int64_t>(gpu::memory_available() / 4 / (4 * cols)));
  gpu::DeviceBuffer<float> x(static_cast<std::size_t>(row_count * cols), "x");
  gpu::DeviceBuffer<float> sum(static_cast<std::size_t>(row_count), "sum");
  gpu::fill_bytes(x.data(), 0x3F, x.size() * sizeof(float));
  const auto seconds = program.time([&] { launch_row_sum(x.data(), sum.data(), row_count, cols); });
  rows.push_back(ceiling_row(program, "for comparison: row_sum, bytes of its model",
                             "device_memory_row_sum_bytes_per_second", row_sum_traffic(row_count, cols).total(),
                             seconds));

  program.progress(product);
  if (const auto times = bf16_matrix_product_seconds(8192); !times.empty()) {
    rows.push_back(ceiling_row(program, product, "bf16_matrix_product_flops_per_second", 2 * std::pow(8192, 3), times));
  } else {
    rows.push_back({product, "built without cuBLAS", "-", "-"});
  }
  program.table("ceilings", {"ceiling", "measured", "datasheet", "share"}, rows);
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "00";
  chapter.name = "first_kernel";
  chapter.idea = "Threads of a block share memory and meet at barriers; the machine's ceilings, measured.";
  chapter.takes_problem = false;
  chapter.sections = {
      {"Sums of rows", sum_rows},
      {"The same kernel without its first barrier", leave_the_barrier_out},
      {"Ceilings of this machine", measure_ceilings},
  };
  return stage::run(argc, argv, chapter);
}
