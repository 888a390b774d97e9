/// \file
/// Chapter 03: the merge of softmax states. `./learn run 03`; the softmax table takes seqlen_q rows of seqlen_kv
/// columns:
/// `./learn run 03 --seqlen-q 64 --seqlen-kv 5000`.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "chapters/03_online_softmax/blockwise_attention.hpp"
#include "chapters/03_online_softmax/softmax.cuh"
#include "common/attention/cost.hpp"
#include "common/gpu/buffer.hpp"
#include "common/gpu/emulation.hpp"
#include "common/kernel/softmax_state.cuh"
#include "common/stage/program.hpp"
#include "common/stage/text.hpp"

namespace {

using attention::format_bytes;
using kernel::log_sum_exp;
using kernel::merge;
using kernel::SoftmaxState;
using stage::text;

/// (m = 2, ℓ = 3) merged with (m = 5, ℓ = 1), a step a line.
void show_worked_example(stage::Program& program) {
  SoftmaxState a, b;
  a.m = 2, a.l = 3;
  b.m = 5, b.l = 1;
  const SoftmaxState merged = merge(a, b);
  const float factor_a = kernel::rescale(a.m, merged.m);
  const float factor_b = kernel::rescale(b.m, merged.m);
  std::string steps;
  steps += text("a: m = %g, l = %g, which stands for l·exp(m) = %.4f\n", a.m, a.l, a.l * std::exp(a.m));
  steps += text("b: m = %g, l = %g, which stands for %.4f\n", b.m, b.l, b.l * std::exp(b.m));
  steps += text("the larger maximum:     m = max(%g, %g) = %g\n", a.m, b.m, merged.m);
  steps += text("a's sum, brought to it: exp(%g - %g) = %.6f, times %g = %.6f\n", a.m, merged.m, factor_a, a.l,
                a.l * factor_a);
  steps += text("b's sum, brought to it: exp(%g - %g) = %.6f, times %g = %.6f\n", b.m, merged.m, factor_b, b.l,
                b.l * factor_b);
  steps += text("merged:                 m = %g, l = %.6f, which stands for %.4f\n", merged.m, merged.l,
                merged.l * std::exp(merged.m));
  steps += text("its LSE:                m + ln l = %.6f; from the two LSE alone: %.6f", log_sum_exp(merged),
                kernel::merge_lse(log_sum_exp(a), log_sum_exp(b)));
  program.say(steps);
}

/// Scores with mean 0.3 and deviation 3, so that running maxima do change.
std::vector<float> random_scores(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.3f, 3.0f);
  std::vector<float> scores(size);
  for (float& score : scores) score = normal(random);
  return scores;
}

/// ln Σ exp in float64.
double exact_log_sum_exp(const float* x, int cols) {
  double m = -INFINITY;
  for (int i = 0; i < cols; ++i) m = std::max(m, double(x[i]));
  double l = 0;
  for (int i = 0; i < cols; ++i) l += std::exp(x[i] - m);
  return cols == 0 ? m : m + std::log(l);
}

/// Largest |y / exact − 1| over a matrix; infinite if anything is NaN.
double worst_error(const std::vector<float>& x, const std::vector<float>& y, std::int64_t rows, int cols) {
  double worst = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double lse = exact_log_sum_exp(&x[row * cols], cols);
    for (std::int64_t i = row * cols; i < (row + 1) * cols; ++i) {
      const double error = std::abs(y[i] / std::exp(x[i] - lse) - 1);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
  }
  return worst;
}

/// Largest |y / exact − 1| that rounding explains: some ten ulps each of the exponent x − m and of exp, and half an ulp
/// for each of the additions that a thread makes one after the other.
double allowed_error(int cols) { return 1e-5 + cols / online_softmax::kSoftmaxThreads * 0x1p-24; }

/// The three softmax kernels on seqlen_q rows of seqlen_kv columns; on a GPU on as many rows as make x larger than its
/// L2.
void show_softmax_kernels(stage::Program& program) {
  constexpr std::int64_t kGpuElements = 1 << 25;  // 134 MB
  const bool timed = program.options().bench && !gpu::device().emulated;
  const int cols = program.options().problem.seqlen_kv;
  std::int64_t rows = program.options().problem.seqlen_q;
  if (!gpu::device().emulated && cols > 0) rows = std::max(rows, kGpuElements / cols);
  if (rows == 0 || cols == 0) return program.say("No rows or no columns: nothing to run.");

  const std::vector<float> x = random_scores(rows * cols, program.options().seed);
  const gpu::DeviceBuffer<float> x_gmem(x, "x");
  gpu::DeviceBuffer<float> y_gmem(x.size(), "y");
  gpu::DeviceBuffer<SoftmaxState> state_gmem(rows, "states");

  std::vector<std::vector<std::string>> table;
  for (const online_softmax::SoftmaxKernel& kernel : online_softmax::softmax_kernels()) {
    program.progress(kernel.name);
    gpu::DeviceBuffer<SoftmaxState> workspace(kernel.workspace_states(rows, cols), "partial states");
    const online_softmax::SoftmaxArgs args{x_gmem.data(), y_gmem.data(), state_gmem.data(), rows, cols};
    y_gmem.poison();
    gpu::reset_counts();
    kernel.run(args, workspace.data());
    const double error = worst_error(x, y_gmem.download(), rows, cols);

    const attention::Traffic traffic = kernel.traffic(rows, cols);
    const auto counts = gpu::counts();
    std::string counted = "-";
    std::vector<std::string> times;
    if (counts) {
      const double bytes = double(counts->global_loaded) + double(counts->global_stored);
      counted = format_bytes(bytes);
      if (bytes != traffic.total()) {
        program.fail(kernel.name + text(": counted %.0f bytes, predicted %.0f", bytes, traffic.total()));
      }
    }
    if (timed) {
      const std::vector<double> seconds = program.time([&] { kernel.run(args, workspace.data()); });
      const double median = stage::median(seconds);
      times = {text("%.1f us", median * 1e6), text("%.0f GB/s", traffic.total() / median / 1e9)};
      program.figure("softmax_" + kernel.name + "_seconds", median, seconds, traffic.total());
    }
    if (!(error < allowed_error(cols))) program.fail(kernel.name + text(": an error of %.2e against float64", error));
    table.push_back({kernel.name, text("%.1e", error), counted, format_bytes(traffic.total())});
    table.back().insert(table.back().end(), times.begin(), times.end());
  }
  program.say(text("Softmax of %lld rows of %d columns; error: largest |y / exact - 1| against float64.",
                   static_cast<long long>(rows), cols));
  std::vector<std::string> header{"kernel", "error", "bytes counted", "predicted"};
  if (timed) header.insert(header.end(), {"time", "bytes / time"});
  program.table("softmax", header, table);
}

/// Cuts a row at random places and merges the pieces in random pairs, many times over.
void show_any_split(stage::Program& program) {
  constexpr int kCols = 1000, kTrials = 1000;
  const std::vector<float> x = random_scores(kCols, program.options().seed + 1);
  const double exact = exact_log_sum_exp(x.data(), kCols);

  std::mt19937_64 random(program.options().seed);
  double worst = 0, lowest = INFINITY, highest = -INFINITY;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<SoftmaxState> pieces(1 + random() % 64);
    for (const float score : x) {
      SoftmaxState& piece = pieces[random() % pieces.size()];
      piece = merge(piece, SoftmaxState::of(score));
    }
    while (pieces.size() > 1) {
      std::swap(pieces[random() % pieces.size()], pieces.back());
      const SoftmaxState last = pieces.back();
      pieces.pop_back();
      SoftmaxState& other = pieces[random() % pieces.size()];
      other = merge(other, last);
    }
    const double lse = pieces[0].m + std::log(double(pieces[0].l));
    worst = std::max(worst, std::abs(lse - exact));
    lowest = std::min(lowest, lse);
    highest = std::max(highest, lse);
  }
  program.say(
      text("%d scores dealt to 1 to 64 pieces at random, the pieces merged in random pairs, %d times:\n"
           "  LSE in float64                        %.9f\n"
           "  largest distance from it              %.1e\n"
           "  largest distance between two outcomes %.1e",
           kCols, kTrials, exact, worst, highest - lowest));
  program.figure("any_split_worst", worst);
  if (!(worst < 1e-5)) program.fail("splitting a row changed its LSE by more than rounding does");
}

attention::Problem problem(int heads_q, int heads_kv, int seqlen_q, int seqlen_kv) {
  attention::Problem p;
  p.heads_q = heads_q;
  p.heads_kv = heads_kv;
  p.seqlen_q = seqlen_q;
  p.seqlen_kv = seqlen_kv;
  p.head_dim = 64;
  return p;
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "03";
  chapter.name = "online_softmax";
  chapter.idea = "The states (m, l, o) of any pieces of a row merge, in any order, into the state of the row.";
  chapter.gpu_problem = problem(2, 1, 64, 16384);
  chapter.emulator_problem = problem(2, 1, 48, 2500);
  chapter.forward = online_softmax::blockwise_kernels();
  chapter.sections = {{"A merge, step by step", show_worked_example},
                      {"Any split, any order", show_any_split},
                      {"Three softmax kernels", show_softmax_kernels}};
  return stage::run(argc, argv, chapter);
}
