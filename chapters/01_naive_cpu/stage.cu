/// \file
/// The program of chapter 01: attention in three loops, the softmax that overflows, and what S and P cost.

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "chapters/01_naive_cpu/intensity.hpp"
#include "chapters/01_naive_cpu/naive_attention.hpp"
#include "common/attention/cost.hpp"
#include "common/stage/program.hpp"
#include "common/stage/text.hpp"

namespace {

using namespace naive_cpu;
using stage::text;

/// The largest float whose exp is still finite, found by halving.
float last_finite_exponent() {
  float finite = 0;
  float infinite = 1000;
  while (std::nextafter(finite, infinite) < infinite) {
    const float middle = finite + (infinite - finite) / 2;
    (std::isfinite(std::exp(middle)) ? finite : infinite) = middle;
  }
  return finite;
}

void compare_softmaxes(stage::Program& program) {
  const float limit = last_finite_exponent();
  program.say("exp(x) is finite in fp32 up to x = " + text("%.7g", double{limit}) +
              " and inf from x = " + text("%.7g", double{std::nextafter(limit, 1000.0f)}) +
              " on.\n"
              "Three scores x, x-1, x-2: whatever x is, softmax gives 0.6652, 0.2447, 0.0900.");

  std::vector<std::vector<std::string>> rows;
  for (const float x : {-110.0f, -100.0f, 0.0f, 10.0f, 80.0f, 88.0f, 88.5f, limit, 88.73f, 100.0f, 1.0e4f}) {
    const std::array<float, 3> scores{x, x - 1, x - 2};
    auto unsafe = scores;
    auto safe = scores;
    float sum = 0;
    for (const float s : scores) sum += std::exp(s);
    unsafe_softmax(unsafe);
    safe_softmax(safe);
    const auto triple = [](const std::array<float, 3>& p) {
      return text("%.4f", double{p[0]}) + " " + text("%.4f", double{p[1]}) + " " + text("%.4f", double{p[2]});
    };
    rows.push_back({text("%.7g", double{x}), text("%.3g", double{std::exp(x)}), text("%.3g", double{sum}),
                    triple(unsafe), triple(safe)});
  }
  program.table("softmax", {"x", "exp(x)", "sum of exp", "unsafe softmax", "safe softmax"}, rows);
  program.say(
      "Three ways to be wrong: the sum overflows first and every probability is 0, which looks like a result; then "
      "exp(x)\n"
      "itself is inf, and inf/inf is nan; far below zero every exp is 0, and 0/0 is nan. Just above that, exp is\n"
      "subnormal, has lost most of its digits, and the probabilities are a little off.");
}

/// "memory" if a program of this intensity is limited by memory, otherwise "math".
std::string side(double intensity, double ridge) { return intensity < ridge ? "memory" : "math"; }

void weigh_the_matrices(stage::Program& program) {
  constexpr int kHeadDim = 128;
  std::vector<std::vector<std::string>> ridges;
  for (const attention::Machine& machine : attention::known_machines()) {
    ridges.push_back({machine.name, text("%.1f", ridge(machine, 4)), text("%.0f", ridge(machine, 2))});
  }
  program.say("The ridge, FLOP/B: a program below it waits for memory, one above it for the arithmetic units.");
  program.table("ridges", {"machine", "fp32 units", "tensor cores, bf16"}, ridges);

  std::vector<std::string> header{"N", "type", "S and P", "FLOP", "FLOP/B", "fused FLOP/B"};
  for (const attention::Machine& machine : attention::known_machines()) header.push_back(machine.name);
  std::vector<std::vector<std::string>> rows;
  for (const int element_bytes : {4, 2}) {
    for (int n = 1024; n <= 128 * 1024; n *= 2) {
      const Intensity head = intensity(n, kHeadDim, element_bytes);
      std::vector<std::string> row{std::to_string(n / 1024) + "K",
                                   element_bytes == 4 ? "fp32" : "bf16",
                                   attention::format_bytes(head.matrix_bytes),
                                   text("%.2e", head.flops),
                                   text("%.1f", head.unfused_intensity()),
                                   text("%.0f", head.fused_intensity())};
      for (const attention::Machine& machine : attention::known_machines()) {
        const double at = ridge(machine, element_bytes);
        row.push_back(side(head.unfused_intensity(), at) + " -> " + side(head.fused_intensity(), at));
      }
      rows.push_back(row);
    }
  }
  program.say("One head, d = " + std::to_string(kHeadDim) +
              ", no mask. FLOP/B: of attention with S and P in memory; fused: without. The last columns say what\n"
              "limits the two, memory or math, on the tensor cores for bf16 and on the fp32 units for fp32.");
  program.table("intensity", header, rows);

  std::string bound = "With S and P in memory, bf16 attention at N = 128K can at best reach";
  for (const attention::Machine& machine : attention::known_machines()) {
    const double reached = attention::attainable_flops(intensity(128 * 1024, kHeadDim, 2).unfused_intensity(),
                                                       machine.tensor_flops, machine.bytes_per_second);
    bound += "\n  " + std::string(machine.name) + ": " + text("%.0f", reached / 1e12) + " of " +
             text("%.0f", machine.tensor_flops / 1e12) + " TFLOP/s";
  }
  program.say(bound);
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "01";
  chapter.name = "naive_cpu";
  chapter.idea = "softmax(QK^T * scale) V in three loops, safe softmax, and what S and P cost.";
  chapter.gpu_problem.heads_q = 2;
  chapter.gpu_problem.seqlen_q = 512;
  chapter.gpu_problem.seqlen_kv = 512;
  chapter.gpu_problem.head_dim = 64;
  chapter.emulator_problem = chapter.gpu_problem;
  chapter.forward = {naive_forward()};
  chapter.sections = {
      {"Safe against unsafe softmax", compare_softmaxes},
      {"What S and P cost", weigh_the_matrices},
  };
  return stage::run(argc, argv, chapter);
}
