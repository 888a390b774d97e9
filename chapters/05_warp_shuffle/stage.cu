/// \file
/// Chapter 05: shuffles, register tiles, exp2. `./learn run 05`, or with a problem of your own:
/// `./learn run 05 --causal --seqlen-q 100 --seqlen-kv 1000 --head-dim 128`.

#include <string>
#include <type_traits>
#include <vector>

#include "chapters/05_warp_shuffle/kernels.hpp"
#include "chapters/05_warp_shuffle/model.hpp"
#include "chapters/05_warp_shuffle/reductions.cuh"
#include "common/gpu/buffer.hpp"
#include "common/stage/program.hpp"
#include "common/stage/shared_memory.hpp"
#include "common/stage/text.hpp"

namespace {

using attention::Mask;
using attention::Problem;
using stage::text;
using warp_shuffle::kShown, warp_shuffle::kSteps;
using warp_shuffle::Reductions;
using warp_shuffle::TileWork;
using Table = std::vector<std::vector<std::string>>;

/// Butterfly and shfl_down, lane by lane.
void show_reductions(stage::Program& program) {
  gpu::DeviceBuffer<Reductions> shown_gmem(1, "lanes");
  gpu::launch(warp_shuffle::reductions_kernel, {.grid = 1, .block = gpu::kWarpSize}, shown_gmem.data());
  const Reductions shown = shown_gmem.download().front();
  const auto table = [](const float(&steps)[kSteps + 1][kShown], const char* name) {
    Table rows;
    for (int step = 0, bit = kShown / 2; step <= kSteps; ++step) {
      rows.push_back({step == 0 ? "start" : text(name, bit)});
      if (step > 0) bit /= 2;
      for (const float x : steps[step]) rows.back().push_back(text("%.0f", x));
    }
    return rows;
  };
  std::vector<std::string> header{"sum over 8 lanes"};
  for (int lane = 0; lane < kShown; ++lane) header.push_back(text("lane %d", lane));
  program.say("The butterfly: a lane adds what its partner holds, and the partner adds the same the other way round.");
  program.table("butterfly", header, table(shown.butterfly, "+ lane ^ %d"));
  program.say("Down: a lane adds what a lane further up holds; past the last lane, its own. Lane 0 alone is right.");
  program.table("down", header, table(shown.down, "+ lane + %d"));
  constexpr float kSum = kShown * (kShown + 1) / 2;
  bool right = shown.for_first[0] == kSum && shown.down[kSteps][0] == kSum;
  for (int lane = 0; lane < kShown; ++lane) {
    right = right && shown.for_all[lane] == kSum && shown.butterfly[kSteps][lane] == kSum;
  }
  if (!right) program.fail("a sum over 8 lanes is not 36");
}

/// Calls f with the problem's head_dim as a constant.
template <class F>
auto for_head_dim(const Problem& p, F f) {
  if (p.head_dim == 32) return f(std::integral_constant<int, 32>());
  if (p.head_dim == 64) return f(std::integral_constant<int, 64>());
  return f(std::integral_constant<int, 128>());
}

/// What a thread executes for a tile, and what follows for the speed.
void show_work(stage::Program& program) {
  Table rows;
  const std::vector<TileWork> works =
      for_head_dim(program.options().problem, [](auto d) { return warp_shuffle::tile_works<d()>(); });
  for (const TileWork& w : works) {
    rows.push_back({w.kernel, text("%d", w.br), text("%d", w.bc), text("%d", w.multiply_adds), text("%d", w.loads),
                    text("%d", w.stores), text("%d", w.shuffles), text("%d", w.exponentials),
                    text("%.2f", double(w.loads) / w.multiply_adds), text("%.0f", w.multiply_cycles()),
                    text("%.0f", w.data_cycles()), text("%.0f", w.issue_cycles()), text("%.0f %%", 100 * w.bound())});
  }
  program.say(
      "By formula: what a thread executes for a tile, loads and stores of shared memory alone. Cycles: how long a "
      "warp\n"
      "keeps the FMA units, the path to shared memory (which moves shuffles, too) and the schedulers busy for that.\n"
      "At most: the share of the FMA peak that this leaves.");
  program.table("work",
                {"kernel", "Br", "Bc", "FMA", "loads", "stores", "shuffles", "exp", "loads / FMA", "FMA cycles",
                 "data cycles", "issue cycles", "at most"},
                rows);
}

/// Requests and wavefronts of shared memory, counted.
void show_counts(stage::Program& program) {
  stage::show_shared_memory(program, "05", warp_shuffle::shuffle_kernels(),
                            "Instructions of warps on shared memory, and what they cost by the rule of the banks:");
}

/// Tiles that step 3 visits.
void show_tiles(stage::Program& program) {
  const Problem& p = program.options().problem;
  Table rows;
  for (const Mask mask : {Mask::none(), Mask::causal(), Mask::window(p.seqlen_kv / 8, 0)}) {
    const warp_shuffle::TileCounts tiles =
        for_head_dim(p, [&](auto d) { return warp_shuffle::count_tiles<d()>(mask, p.seqlen_q, p.seqlen_kv); });
    rows.push_back({mask.name(), text("%d", tiles.all), text("%d", tiles.all - tiles.visited),
                    text("%d", tiles.visited - tiles.masked), text("%d", tiles.masked)});
  }
  program.say("Tiles of one head's S at the problem's lengths:");
  program.table("tiles", {"mask", "tiles", "skipped", "visited, no mask", "visited, masked"}, rows);
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "05";
  chapter.name = "warp_shuffle";
  chapter.idea = "A row's maximum and sum inside a warp, and S, P and O in registers.";
  chapter.gpu_problem = {.heads_q = 16, .heads_kv = 16, .seqlen_q = 8192, .seqlen_kv = 8192, .head_dim = 128};
  chapter.emulator_problem = {.heads_q = 2, .heads_kv = 1, .seqlen_q = 192, .seqlen_kv = 192, .head_dim = 64};
  chapter.forward = warp_shuffle::shuffle_kernels();
  chapter.peers = {"pytorch_efficient_fp32"};
  chapter.sections = {{"Two ways to add up", show_reductions},
                      {"A tile on paper", show_work},
                      {"Shared memory, counted", show_counts},
                      {"Tiles under a mask", show_tiles}};
  return stage::run(argc, argv, chapter);
}
