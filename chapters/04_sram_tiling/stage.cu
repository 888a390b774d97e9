/// \file
/// Chapter 04: tiles of S in shared memory. `./learn run 04`, or as another GPU would take it:
/// `./learn run 04 --emulator --shared-memory-limit 101376`.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chapters/04_sram_tiling/kernels.hpp"
#include "chapters/04_sram_tiling/sweep.hpp"
#include "common/attention/cost.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/program.hpp"
#include "common/stage/table.hpp"

namespace {

using attention::format_bytes;
using attention::Problem;
using sram_tiling::SweptTile;
using Table = std::vector<std::vector<std::string>>;

/// Shared memory's wavefronts without and with the padding.
void show_bank_conflicts(stage::Program& program) {
  if (!gpu::device().checked) {
    return program.say(
        "Counted by the checking emulator (./learn run); on a GPU by ./learn profile and ./learn count.");
  }
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope counting(options);
  Table rows;
  for (const stage::ForwardKernel& kernel : sram_tiling::tiled_kernels()) {
    program.run_forward(kernel);
    for (const gpu::KernelCounts& counts : gpu::kernel_counts()) {
      const gpu::SharedAccesses& loads = counts.shared_loads;
      rows.push_back({kernel.name, stage::format_count(double(loads.requests)),
                      stage::format_count(double(loads.wavefronts)), stage::format_count(double(loads.conflicts))});
    }
  }
  program.say("Loads from shared memory. Without conflicts a warp's load of 32 floats takes one wavefront.");
  program.table("bank_conflicts", {"kernel", "loads of a warp", "wavefronts", "conflicts"}, rows);
}

/// By the formulas: what the threads ask for, and what has to be held, as N grows.
void show_growth(stage::Program& program) {
  const std::vector<stage::ForwardKernel> kernels = sram_tiling::tiled_kernels();
  const stage::ForwardKernel &kv_outer = kernels.front(), &q_outer = kernels.back();
  Table moved, held;
  const auto times_least = [](double bytes, double least) {
    return format_bytes(bytes) + " (" + stage::format_ratio(bytes / least) + ")";
  };
  for (int seqlen = 1 << 10; seqlen <= 1 << 17; seqlen *= 2) {
    Problem p = program.options().problem;
    p.seqlen_q = p.seqlen_kv = seqlen;
    p.q_strides = p.k_strides = p.v_strides = p.o_strides = std::nullopt;
    const double least = attention::compulsory_traffic(p, sizeof(float)).total();
    const double square = sizeof(float) * double(p.batch) * p.heads_q * double(seqlen) * seqlen;
    moved.push_back({std::to_string(seqlen), format_bytes(least), times_least(q_outer.traffic(p).total(), least),
                     times_least(kv_outer.traffic(p).total(), least), times_least(4 * square + least, least)});
    held.push_back({std::to_string(seqlen), format_bytes(least), format_bytes(double(q_outer.workspace_bytes(p))),
                    format_bytes(double(kv_outer.workspace_bytes(p))), format_bytes(2 * square)});
  }
  program.say(
      "By the formulas, seqlen_q = seqlen_kv = N: bytes that the tiled kernels' threads ask for, beside the least\n"
      "that attention moves, and that three kernels move if each reads its part of S and P only once:");
  program.table("bytes", {"N", "least", "Q outside", "K and V outside", "S and P written, read"}, moved);
  program.say("Device memory held: the arrays, and beside them each kernel's workspace.");
  program.table("memory", {"N", "Q, K, V, O, LSE", "Q outside", "K and V outside", "S and P of three kernels"}, held);
}

/// One loop order with every tile of the sweep. K and V outside are not timed: a launch takes a second with small
/// tiles. \return the sentences that refuse tiles
std::vector<std::string> sweep(stage::Program& program, const std::vector<SweptTile>& tiles, const std::string& name,
                               stage::ForwardKernel SweptTile::*kernel) {
  std::vector<std::string> header = {"Br",   "Bc",     "shared bytes a block", "verdict", "bytes predicted", "counted",
                                     "time", "TFLOP/s"};
  std::vector<std::string> refusals;
  Table rows;
  for (const SweptTile& tile : tiles) {
    const bool timed = kernel == &SweptTile::q_outer;
    const stage::Row row = timed ? program.run_forward(tile.*kernel) : program.check_forward(tile.*kernel);
    if (!row.right) program.fail(row.kernel + ": " + row.verdict);
    if (row.verdict.starts_with("refused")) refusals.push_back(row.verdict);
    rows.push_back({std::to_string(tile.br), std::to_string(tile.bc), stage::format_count(double(tile.shared_bytes)),
                    stage::short_verdict(row), stage::format_count_or_dash(row.bytes_predicted),
                    stage::format_count_or_dash(row.bytes_counted),
                    row.seconds ? stage::format_seconds(*row.seconds) : "-", stage::format_teraflops(row)});
  }
  stage::drop_empty_columns(header, rows);
  program.table("sweep_" + name, header, rows);
  return refusals;
}

/// What the limits of several GPUs leave of the sweep.
void show_limits(stage::Program& program, const std::vector<SweptTile>& tiles) {
  const auto bytes = [&](const SweptTile& tile) { return tile.q_outer.traffic(program.options().problem).total(); };
  Table rows;
  for (const auto& [limit, where] : {std::pair{49152, "any, without opting in"},
                                     {101376, "sm_86, sm_89, sm_120"},
                                     {166912, "sm_80"},
                                     {232448, "sm_90, sm_100"}}) {
    const SweptTile* best = &tiles.front();
    int fit = 0;
    for (const SweptTile& tile : tiles) {
      if (tile.shared_bytes > std::size_t(limit)) continue;
      ++fit;
      if (bytes(tile) <= bytes(*best)) best = &tile;
    }
    rows.push_back({stage::format_count(limit), where, std::to_string(fit) + " of " + std::to_string(tiles.size()),
                    std::to_string(best->br) + " x " + std::to_string(best->bc), format_bytes(bytes(*best))});
  }
  program.say("Shared memory that a block may have, and the largest tile of those with the fewest bytes (Q outside):");
  program.table("limits", {"bytes", "GPUs", "tiles that fit", "Br x Bc", "bytes predicted"}, rows);
}

/// Every tile of the sweep in both loop orders.
void show_sweep(stage::Program& program) {
  const std::vector<SweptTile> tiles = sram_tiling::swept_tiles(program.options().problem.head_dim);
  if (tiles.empty()) return program.say("The sweep is compiled for head_dim 64 and 128.");
  program.say("K and V outside:");
  sweep(program, tiles, "kv_outer", &SweptTile::kv_outer);
  program.say("Q outside:");
  const std::vector<std::string> refusals = sweep(program, tiles, "q_outer", &SweptTile::q_outer);
  for (const std::string& refusal : refusals) program.say(stage::wrap(refusal, 2));
  show_limits(program, tiles);
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "04";
  chapter.name = "sram_tiling";
  chapter.idea = "Keep S in shared memory, a tile at a time, and bring softmax and O up to date after each tile.";
  chapter.gpu_problem = {.heads_q = 16, .heads_kv = 16, .seqlen_q = 4096, .seqlen_kv = 4096, .head_dim = 64};
  chapter.emulator_problem = {.heads_q = 2, .heads_kv = 1, .seqlen_q = 128, .seqlen_kv = 192, .head_dim = 64};
  chapter.forward = sram_tiling::tiled_kernels();
  chapter.sections = {{"Bank conflicts", show_bank_conflicts},
                      {"Bytes and memory as N grows", show_growth},
                      {.title = "Sizes of the tile", .run = show_sweep, .counted = true}};
  return stage::run(argc, argv, chapter);
}
