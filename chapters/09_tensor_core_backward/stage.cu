/// \file
/// Chapter 09: the backward on tensor cores. `./learn run 09`, or with a problem of your own:
/// `./learn run 09 --dtype fp16 --causal --seqlen-q 100 --seqlen-kv 1000 --head-dim 128`.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "chapters/09_tensor_core_backward/kernels.hpp"
#include "chapters/09_tensor_core_backward/model.hpp"
#include "common/attention/cost.hpp"
#include "common/attention/inputs.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/papers_grid.hpp"
#include "common/stage/program.hpp"
#include "common/stage/text.hpp"

namespace {

using attention::ElementType;
using attention::format_bytes;
using attention::Mask;
using attention::Problem;
using stage::text;
using tensor_core_backward::BackwardTile, tensor_core_backward::BackwardTileCounts, tensor_core_backward::BackwardWork;
using Table = std::vector<std::vector<std::string>>;

/// Calls f with the problem's head_dim as a constant.
template <class F>
auto for_head_dim(const Problem& p, F f) {
  if (p.head_dim == 64) return f(std::integral_constant<int, 64>());
  return f(std::integral_constant<int, 128>());
}

/// What a division of the block's work asks of shared memory, and what that allows.
void show_work(stage::Program& program) {
  const std::vector<BackwardWork> works =
      for_head_dim(program.options().problem, [](auto d) { return tensor_core_backward::backward_works<d()>(); });
  const auto kib = [](double bytes) { return text("%g", bytes / 1024); };
  Table loads, cycles;
  for (const BackwardWork& w : works) {
    loads.push_back({w.division.name, text("%d", w.division.warps), text("%d x %d", w.division.br, w.division.bc),
                     kib(w.s_bytes), kib(w.s_bytes), kib(w.kv_bytes), kib(w.kv_bytes), kib(w.dq_bytes),
                     kib(w.stored_bytes), kib(w.operand_bytes() + w.stored_bytes), text("%d", w.products),
                     text("%.2f", double(w.matrix_loads()) / w.products)});
    cycles.push_back({w.division.name, text("%.0f", w.flops()), text("%.0f", w.tensor_cycles()),
                      text("%.0f", w.mma_sync_cycles()), text("%.0f", w.data_cycles()), text("%.0f", w.issue_cycles()),
                      text("%.0f", w.exponential_cycles()), text("%.0f", w.flops_a_cycle())});
  }
  program.say(text(
      "By formula, head_dim %d: what a warp loads by ldmatrix for each product and stores for others, in KiB, for\n"
      "one tile that no mask cuts. \"kv_outer\" is this chapter's; the other two are beside it for comparison.",
      works.front().division.head_dim));
  program.table(
      "loads",
      {"division", "warps", "tile", "S", "dP", "dV", "dK", "dQ", "stored", "together", "mma", "ldmatrix / mma"}, loads);
  program.say(text(
      "How many cycles all warps of a block keep the units of a multiprocessor busy for it: tensor cores at their\n"
      "peak, and by mma.sync at %.0f FLOP a cycle; the path to shared memory, with statistics and copies; the\n"
      "schedulers; the units for exponentials. And how many FLOP a cycle that allows.",
      BackwardWork::kMmaSyncFlops));
  program.table("work", {"division", "FLOP", "mma, peak", "mma.sync", "data", "issue", "exp", "FLOP / cycle"}, cycles);
}

/// Five products or seven, and what goes to device memory.
void show_kernels(stage::Program& program) {
  const Problem& p = program.options().problem;
  const double product = attention::backward_flops(p) / 5;
  Table rows;
  for (const stage::BackwardKernel& kernel : tensor_core_backward::backward_kernels()) {
    try {
      kernel.require(p);
    } catch (const stage::Refused&) {
      continue;  // the table above says why
    }
    const int products = kernel.deterministic ? 7 : 5;
    const attention::Traffic traffic = kernel.traffic(p);
    rows.push_back({kernel.name, text("%d", products), text("%.3g", products * product / 1e9),
                    format_bytes(traffic.loaded), format_bytes(traffic.stored),
                    format_bytes(double(kernel.workspace_bytes(p)))});
  }
  program.say(
      "On this problem: products of visible pairs, and what the threads load and store in device memory, an\n"
      "atomic both:");
  program.table("products", {"kernel", "products", "GFLOP", "loaded", "stored", "workspace"}, rows);
}

/// Requests and wavefronts of shared memory, counted, and the formula for kv_outer's.
void show_counts(stage::Program& program) {
  if (!gpu::device().checked) {
    return program.say("The checking build of the emulator counts them (./learn run 09).");
  }
  const Problem& p = program.options().problem;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope counting(options);
  Table rows;
  for (const stage::BackwardKernel& kernel : tensor_core_backward::backward_kernels()) {
    program.run_backward(kernel);
    for (const gpu::KernelCounts& counts : gpu::kernel_counts()) {
      if (counts.shared_loads.requests + counts.shared_stores.requests == 0) continue;
      std::string loads = "-", stores = "-";
      if (!kernel.deterministic && counts.kernel.starts_with("kv_outer_kernel")) {
        std::tie(loads, stores) = for_head_dim(p, [&](auto d) {
          using Tile = BackwardTile<gpu::bf16, d()>;
          const BackwardWork w =
              tensor_core_backward::backward_work(tensor_core_backward::division_of<Tile>(kernel.name));
          const double heads = double(p.batch) * p.heads_q, blocks = double(counts.blocks);
          const double tiles = heads * tensor_core_backward::count_tiles<Tile>(p.mask, p.seqlen_q, p.seqlen_kv).visited;
          // Copies are stores of 512 bytes: K and V of a block, Q and dO of a tile. Its statistics fit one.
          const double copies =
              blocks * 2 * w.division.bc * d() * 2 / 512 + tiles * (2 * w.division.br * d() * 2 / 512 + 1);
          const auto out = tensor_core_backward::way_out_of_head<Tile>(p.seqlen_kv);
          const double kv_heads = double(p.batch) * p.heads_kv, warps = w.division.warps;
          return std::pair(text("%.0f", tiles * warps * (w.matrix_loads() + w.statistics_loads) + kv_heads * out.loads),
                           text("%.0f", tiles * warps * w.pair_stores() + copies + kv_heads * out.stores));
        });
      }
      const auto a_request = [](const gpu::SharedAccesses& accesses) {
        return accesses.requests ? text("%.2f", double(accesses.wavefronts) / double(accesses.requests)) : "-";
      };
      rows.push_back({kernel.name, counts.kernel.substr(0, counts.kernel.find('<')),
                      text("%.0f", double(counts.shared_loads.requests)), loads, a_request(counts.shared_loads),
                      text("%.0f", double(counts.shared_loads.conflicts)),
                      text("%.0f", double(counts.shared_stores.requests)), stores, a_request(counts.shared_stores),
                      text("%.0f", double(counts.shared_stores.conflicts))});
    }
  }
  if (rows.empty()) return program.say("No kernel was launched.");
  program.say(
      "Instructions of warps on shared memory, counted on the whole problem; for kv_outer by formula, too. Loads are\n"
      "ldmatrix, those of statistics, and those of gradients on their way out; stores are copies by cp.async, P and\n"
      "dS, and gradients.");
  program.table("shared_memory",
                {"step", "kernel", "loads", "by formula", "wavefronts / load", "conflicts", "stores", "by formula",
                 "wavefronts / store", "conflicts"},
                rows);
}

/// Tiles that blocks visit.
void show_tiles(stage::Program& program) {
  const Problem& p = program.options().problem;
  Table rows;
  const auto add = [&](const Mask& mask, int seqlen_q, int seqlen_kv) {
    const BackwardTileCounts tiles = for_head_dim(p, [&](auto d) {
      return tensor_core_backward::count_tiles<BackwardTile<gpu::bf16, d()>>(mask, seqlen_q, seqlen_kv);
    });
    const double share = tiles.squares ? 100.0 * tiles.hidden_squares / tiles.squares : 0;
    rows.push_back({mask.name(), text("%d x %d", seqlen_q, seqlen_kv), text("%d", tiles.all),
                    text("%d", tiles.all - tiles.visited), text("%d", tiles.visited - tiles.masked),
                    text("%d", tiles.masked), text("%d of %d", tiles.hidden_squares, tiles.squares),
                    text("%.1f %%", share)});
  };
  for (const Mask mask : {Mask::none(), Mask::causal(), Mask::window(p.seqlen_kv / 8, 0)}) {
    add(mask, p.seqlen_q, p.seqlen_kv);
  }
  for (const int n : {1024, 2048, 8192}) add(Mask::causal(), n, n);
  program.say(
      "Tiles of one head's S, 64 queries x 128 keys, in step 1; and of the visited ones the squares of 32 x 32, each "
      "the\n"
      "work of a warp, in which no query sees a key. They are computed all the same:");
  program.table("tiles",
                {"mask", "N", "tiles", "skipped", "visited, no mask", "visited, masked", "hidden squares", "share"},
                rows);
}

/// Relative errors of dQ, worst row.
struct SumErrors {
  double fp32 = 0, sixteen_bits = 0;
};

/// dQ of some queries over many keys: a part for each block of keys, exact to fp32, and the parts added up in fp32 and
/// in the element type.
SumErrors add_up_dq(const Problem& p, std::uint64_t seed) {
  constexpr int kBlockKeys = 128;
  const attention::Inputs inputs = attention::make_inputs(p, attention::InputKind::normal, seed);
  const std::vector<float> dout = attention::make_output_gradient(p, seed);
  const int d = p.head_dim, keys = p.seqlen_kv;
  SumErrors worst;
  for (int row = 0; row < p.seqlen_q; ++row) {
    std::vector<double> weight(static_cast<std::size_t>(keys)), dp(weight.size());
    double sum = 0, d_of_row = 0;
    for (int key = 0; key < keys; ++key) {
      double score = 0;
      for (int c = 0; c < d; ++c) {
        score += double(inputs.q[row * d + c]) * inputs.k[key * d + c];
        dp[key] += double(dout[row * d + c]) * inputs.v[key * d + c];
      }
      weight[key] = std::exp(score * p.scale());  // small enough for no maximum
      sum += weight[key];
      d_of_row += weight[key] * dp[key];
    }
    d_of_row /= sum;
    std::vector<double> exact(static_cast<std::size_t>(d));
    std::vector<float> parts;
    for (int first = 0; first < keys; first += kBlockKeys) {
      std::vector<double> part(exact.size());
      for (int key = first; key < std::min(first + kBlockKeys, keys); ++key) {
        const double ds = weight[key] / sum * (dp[key] - d_of_row);
        for (int c = 0; c < d; ++c) part[c] += ds * inputs.k[key * d + c];
      }
      for (int c = 0; c < d; ++c) {
        exact[c] += part[c];
        parts.push_back(static_cast<float>(part[c]));
      }
    }
    const auto error = [&](ElementType sums) {
      const std::vector<float> dq = tensor_core_backward::add_parts(parts, d, sums);
      double apart = 0, norm = 0;
      for (int c = 0; c < d; ++c) {
        const double difference = attention::rounded(dq[c], p.element_type) - exact[c];
        apart += difference * difference;
        norm += exact[c] * exact[c];
      }
      return std::sqrt(apart / norm);
    };
    worst.fp32 = std::fmax(worst.fp32, error(ElementType::fp32));
    worst.sixteen_bits = std::fmax(worst.sixteen_bits, error(p.element_type));
  }
  return worst;
}

/// What is lost where the sums of dQ are rounded to 16 bits, on the host.
void show_sums(stage::Program& program) {
  constexpr int kQueries = 16, d = 64;
  Table rows;
  for (const int keys : {128, 1024, 4096, 16384}) {
    program.progress(text("%d keys", keys));
    std::vector<std::string> row = {text("%d", keys), text("%d", keys / 128)};
    for (const ElementType type : {ElementType::bf16, ElementType::fp16}) {
      const SumErrors errors = add_up_dq({.seqlen_q = kQueries, .seqlen_kv = keys, .head_dim = d, .element_type = type},
                                         program.options().seed);
      row.push_back(text("%.1e", errors.fp32));
      row.push_back(text("%.1e", errors.sixteen_bits));
    }
    rows.push_back(row);
  }
  program.say(text(
      "On the host: dQ of %d queries, head_dim %d, out of one exact part for each 128 keys. Relative error of the\n"
      "worst row, where the parts are added up in fp32 and rounded at the end, and where every sum is rounded:",
      kQueries, d));
  program.table("sums", {"keys", "parts", "bf16, sums fp32", "sums bf16", "fp16, sums fp32", "sums fp16"}, rows);
}

/// P and its product with dP - D for a score of 0, as the kernels compute them, with three values of LSE.
void show_statistics(stage::Program& program) {
  Table rows;
  for (const auto& [name, lse] : std::vector<std::pair<std::string, float>>{
           {"of a row with a key", 0.5f}, {"-inf, as a forward leaves it", -INFINITY}, {"+inf, as stored", INFINITY}}) {
    volatile float s = 0;  // of rows of zeros
    const float p = std::exp2(s - lse), product = p * 0.0f;
    const auto number = [](float x) { return std::isnan(x) ? std::string("NaN") : text("%g", double(x)); };
    rows.push_back({name, number(p), number(product)});
  }
  program.say(
      "A row of the last tile that does not exist: S = 0, and Q, dO and D are 0. What P and P * 0 are with which LSE:");
  program.table("statistics", {"LSE", "P", "P * 0"}, rows);
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "09";
  chapter.name = "tensor_core_backward";
  chapter.idea = "The backward's five products on tensor cores: what stays in registers, what all warps have to see.";
  chapter.gpu_problem = {.batch = 2,
                         .heads_q = 16,
                         .heads_kv = 16,
                         .seqlen_q = 8192,
                         .seqlen_kv = 8192,
                         .head_dim = 128,
                         .element_type = ElementType::bf16};
  chapter.emulator_problem = {.heads_q = 2,
                              .heads_kv = 1,
                              .seqlen_q = 192,
                              .seqlen_kv = 256,
                              .head_dim = 64,
                              .element_type = ElementType::bf16};
  chapter.backward = tensor_core_backward::backward_kernels();
  chapter.bench_problems = stage::papers_grid({128}, {1024, 8192});
  chapter.sections = {{"A tile on paper", show_work},         {"Shared memory, counted", show_counts},
                      {"Tiles under a mask", show_tiles},     {"Five products, or seven", show_kernels},
                      {"dQ, added up in 16 bits", show_sums}, {"Rows that do not exist", show_statistics}};
  return stage::run(argc, argv, chapter);
}
