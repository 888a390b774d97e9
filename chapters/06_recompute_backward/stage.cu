/// \file
/// Chapter 06: the backward pass. `./learn run 06`, or with a problem of your own:
/// `./learn run 06 --causal --seqlen-q 100 --seqlen-kv 300 --heads-q 4 --heads-kv 2`.

#include <string>
#include <vector>

#include "chapters/06_recompute_backward/kernels.hpp"
#include "chapters/06_recompute_backward/training.hpp"
#include "common/attention/cost.hpp"
#include "common/stage/program.hpp"
#include "common/stage/text.hpp"

namespace {

using attention::format_bytes;
using attention::Mask;
using attention::Problem;
using stage::text;
using Table = std::vector<std::vector<std::string>>;

/// What a model would have to keep, and what the products cost.
void show_storage(stage::Program& program) {
  constexpr int kHeads = 32, kLayers = 32;
  Table rows;
  for (const int n : {1024, 4096, 16384, 131072}) {
    const double head = 2.0 * n * n;
    rows.push_back({text("%d", n), format_bytes(head), format_bytes(head * kHeads),
                    format_bytes(head * kHeads * kLayers), format_bytes(4.0 * n * kHeads * kLayers)});
  }
  program.say(
      text("P of one sequence in 16 bits, and what is kept in its place: an LSE of 4 bytes a row. %d heads, %d "
           "layers.",
           kHeads, kLayers));
  program.table("storage", {"N", "P, a head", "P, a layer", "P, all layers", "LSE, all layers"}, rows);

  const Problem& p = program.options().problem;
  const double product = attention::backward_flops(p) / 5;
  rows.clear();
  for (const stage::BackwardKernel& kernel : recompute_backward::backward_kernels()) {
    try {
      kernel.require(p);
    } catch (const stage::Refused&) {
      continue;  // the table above says why
    }
    const int products = kernel.name == "deterministic" ? 7 : kernel.name.starts_with("stored_p") ? 4 : 5;
    const attention::Traffic traffic = kernel.traffic(p);
    rows.push_back({kernel.name, text("%d", products), text("%.3g", products * product / 1e9),
                    format_bytes(traffic.loaded), format_bytes(traffic.stored),
                    format_bytes(double(kernel.workspace_bytes(p)))});
  }
  program.say("On this problem: products of visible pairs, and what the threads load and store in device memory:");
  program.table("work", {"kernel", "products", "GFLOP", "loaded", "stored", "workspace"}, rows);
}

/// Two keys in two blocks, one number each: what D must be made of. (Case C51.)
void show_d(stage::Program& program) {
  // Scores 0 and 0, so that P = 1/2 each; V = 1 and 0; dO = 1.
  constexpr float kP[] = {0.5f, 0.5f}, kV[] = {1, 0}, kDo = 1;
  const float o = kP[0] * kV[0] + kP[1] * kV[1];
  Table rows;
  for (const int tile : {0, 1}) {
    const float whole = kP[tile] * (kDo * kV[tile] - kDo * o);
    const float own = kP[tile] * (kDo * kV[tile] - kDo * kV[tile]);  // of a tile alone: O = V of its only key
    rows.push_back({text("%d", tile), text("%g", kV[tile]), text("%g", kDo * o), text("%g", whole),
                    text("%g", kDo * kV[tile]), text("%g", own)});
  }
  program.say(
      "Two keys with equal scores, V = 1 and 0, dO = 1, each key in a tile of its own. By hand, with D of the final "
      "O,\n"
      "and with D of the O that the tile alone would give:");
  program.table("partial_d", {"tile", "dP", "D, final O", "dS", "D, own O", "dS, wrong"}, rows);
  program.say("rowsum(P*dP) is a sum over all keys. Only the final O knows them all.");
}

/// Gradient descent through the kernels beside the reference's.
void show_training(stage::Program& program) {
  constexpr int kSteps = 10, kEvery = 2;
  constexpr float kRate = 5.0f;  // at 20 the steps leap to and fro, and the smallest rounding grows with each
  Problem p;
  p.heads_q = 2;
  p.heads_kv = 1;
  p.seqlen_q = 70;
  p.seqlen_kv = 90;
  p.head_dim = 32;
  p.mask = Mask::causal();
  Table rows;
  std::vector<std::string> header{"step", "reference, float64"};
  std::vector<recompute_backward::Training> curves;
  for (const stage::BackwardKernel& kernel : recompute_backward::backward_kernels()) {
    try {
      kernel.require(p);
    } catch (const stage::Refused& refusal) {
      program.say(refusal.what());
      continue;
    }
    program.progress("training with " + kernel.name);
    header.push_back(kernel.name);
    curves.push_back(recompute_backward::train(kernel, p, kSteps, kRate, program.options().seed));
    const double apart = recompute_backward::largest_difference(curves.back());
    program.figure("training_" + kernel.name + "_apart", apart);
    if (!(apart < recompute_backward::kCurvesEqual)) {
      program.fail(text("training with %s: the loss is %.1e apart from the reference's", kernel.name.c_str(), apart));
    }
  }
  if (curves.empty()) return;
  for (int step = 0; step < kSteps; step += kEvery) {
    rows.push_back({text("%d", step), text("%.6f", curves.front().reference[step])});
    for (const recompute_backward::Training& curve : curves) rows.back().push_back(text("%.6f", curve.kernels[step]));
  }
  program.say(
      text("Q, K and V of %s\nare moved against their gradients, at a rate of %g, until O is near a random target. "
           "The loss:",
           p.describe().c_str(), kRate));
  program.table("training", header, rows);
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "06";
  chapter.name = "recompute_backward";
  chapter.idea = "Keep LSE, not P: the backward computes P again, tile by tile.";
  chapter.gpu_problem = {.heads_q = 16, .heads_kv = 16, .seqlen_q = 8192, .seqlen_kv = 8192, .head_dim = 128};
  chapter.emulator_problem = {.heads_q = 2, .heads_kv = 1, .seqlen_q = 160, .seqlen_kv = 160, .head_dim = 64};
  chapter.backward = recompute_backward::backward_kernels();
  for (const int head_dim : {64, 128}) {
    for (const int n : {1024, 2048, 4096}) {
      for (const Mask mask : {Mask::none(), Mask::causal()}) {
        chapter.bench_problems.push_back(
            {.heads_q = 16, .heads_kv = 16, .seqlen_q = n, .seqlen_kv = n, .head_dim = head_dim, .mask = mask});
      }
    }
  }
  chapter.sections = {{"Store P, or compute it again", show_storage},
                      {"D needs the whole O", show_d},
                      {"A toy training", show_training}};
  return stage::run(argc, argv, chapter);
}
