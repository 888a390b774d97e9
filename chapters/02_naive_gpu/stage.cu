/// \file
/// Chapter 02: three kernels with S and P in device memory. `./learn run 02`, or with a problem of your own:
/// `./learn run 02 --causal --seqlen-q 100 --seqlen-kv 1000 --head-dim 128`.

#include <optional>
#include <string>
#include <vector>

#include "chapters/02_naive_gpu/naive_attention.cuh"
#include "common/attention/cost.hpp"
#include "common/stage/forward_run.hpp"
#include "common/stage/program.hpp"
#include "common/stage/text.hpp"

namespace {

using attention::format_bytes;
using attention::Problem;
using attention::Traffic;
using stage::text;

std::string times(double ratio) { return text(ratio < 100 ? "%.1f x" : "%.0f x", ratio); }

Problem square_problem(int heads_q, int heads_kv, int seqlen) {
  Problem p;
  p.heads_q = heads_q;
  p.heads_kv = heads_kv;
  p.seqlen_q = p.seqlen_kv = seqlen;
  p.head_dim = 64;
  return p;
}

Problem with_seqlen(Problem p, int seqlen) {
  p.seqlen_q = p.seqlen_kv = seqlen;
  p.q_strides = p.k_strides = p.v_strides = p.o_strides = std::nullopt;
  return p;
}

/// What each kernel's threads ask for, and how much of it is S or P.
void show_accesses(stage::Program& program) {
  const Problem& p = program.options().problem;
  const naive_gpu::ThreeKernelsTraffic traffic = naive_gpu::three_kernels_traffic(p);
  const double pairs = double(p.batch) * p.heads_q * double(p.visible_pairs());
  const double square = double(p.batch) * p.heads_q * double(p.seqlen_q) * p.seqlen_kv;
  const double element = sizeof(float);

  const auto row = [](const std::string& name, Traffic t, double s_and_p) {
    return std::vector<std::string>{name, format_bytes(t.loaded), format_bytes(t.stored), format_bytes(s_and_p)};
  };
  const double scores = element * square;
  const double softmax = element * 4 * square;
  const double output = element * p.head_dim * pairs;
  program.say("By the model: element accesses, of which the caches serve many.");
  program.table("accesses", {"kernel", "loaded", "stored", "of these S, P"},
                {row("scores", traffic.scores, scores), row("softmax", traffic.softmax, softmax),
                 row("output", traffic.output, output), row("together", traffic.total(), scores + softmax + output)});
}

/// The least that three separate kernels move through device memory, against what attention needs at all.
void show_matrices(stage::Program& program) {
  std::vector<std::vector<std::string>> rows;
  for (int seqlen = 1 << 10; seqlen <= 1 << 17; seqlen *= 2) {
    const Problem p = with_seqlen(program.options().problem, seqlen);
    const double needed = attention::compulsory_traffic(p, sizeof(float)).total();
    const double held = double(naive_gpu::three_kernels_workspace(p));
    const double moved = 2 * held;  // each of S and P is written once and read at least once
    rows.push_back({std::to_string(seqlen), format_bytes(needed), format_bytes(held), format_bytes(moved),
                    times((needed + moved) / needed)});
  }
  program.say(
      "Q, K, V, O and LSE grow with N, S and P with N². Even if every kernel read each of its inputs from device\n"
      "memory only once, this much would move (batch, heads and head_dim as above, seqlen_q = seqlen_kv = N):");
  program.table("matrices", {"N", "needed", "S, P held", "S, P moved", "moved / needed"}, rows);
}

/// N = 128K, and what the runner says to it.
void show_refusal(stage::Program& program) {
  const Problem p = with_seqlen(program.options().problem, 1 << 17);
  try {
    stage::admit(naive_gpu::three_kernels(), p);
    program.say("N = 131072 fits this device: S and P take " +
                format_bytes(double(naive_gpu::three_kernels_workspace(p))) + " of it. Add heads until it does not.");
  } catch (const stage::Refused& refusal) {
    program.say(std::string("N = 131072 is refused before anything is allocated:\n  ") + refusal.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "02";
  chapter.name = "naive_gpu";
  chapter.idea = "Attention as three kernels with S and P in device memory: right, slow, and as large as N².";
  chapter.gpu_problem = square_problem(16, 16, 4096);
  chapter.emulator_problem = square_problem(4, 2, 96);
  chapter.forward = {naive_gpu::three_kernels()};
  chapter.sections = {{"What the threads ask for", show_accesses},
                      {"What S and P cost", show_matrices},
                      {"Where it ends", show_refusal}};
  return stage::run(argc, argv, chapter);
}
