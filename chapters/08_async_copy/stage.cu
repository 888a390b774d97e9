/// \file
/// Chapter 08: asynchronous copies. `./learn run 08`, or with a problem of your own:
/// `./learn run 08 --dtype fp16 --causal --seqlen-q 100 --seqlen-kv 1000 --head-dim 128`.

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "chapters/08_async_copy/kernels.hpp"
#include "chapters/08_async_copy/model.hpp"
#include "common/attention/inputs.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/papers_grid.hpp"
#include "common/stage/program.hpp"
#include "common/stage/shared_memory.hpp"
#include "common/stage/text.hpp"

namespace {

using async_copy::AsyncWork, async_copy::RescaleCounts, async_copy::TileCounts;
using attention::ElementType;
using attention::InputKind;
using attention::Mask;
using attention::Problem;
using stage::text;
using Table = std::vector<std::vector<std::string>>;

/// Calls f with the problem's head_dim as a constant.
template <class F>
auto for_head_dim(const Problem& p, F f) {
  if (p.head_dim == 64) return f(std::integral_constant<int, 64>());
  if (p.head_dim == 128) return f(std::integral_constant<int, 128>());
  return f(std::integral_constant<int, 256>());
}

/// When the first warp of the first block starts copies, and when it waits for them.
void show_timeline(stage::Program& program) {
  if (!gpu::device().emulated) return program.say("The emulator records it (./learn run 08 --emulator).");
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.record_timeline = true;
  const gpu::EmulatorOptionsScope recording(options);
  program.run_forward(async_copy::async_copy_kernels().front());
  // The first wait of all is for Q alone, where Q is kept in registers, and a barrier follows: tile 0 is waited for
  // next.
  const bool keeps_q =
      for_head_dim(program.options().problem, [](auto d) { return async_copy::DoubleBufferTile<d()>::kKeepsQ; });
  Table rows;
  int waits = 0;
  for (const gpu::TimelineEvent& event : gpu::emulator_timeline()) {
    if (event.block != 0 || event.warp != 0) continue;
    const int started = static_cast<int>(rows.size());
    if (event.kind == gpu::TimelineEvent::Kind::issue) {
      rows.push_back({started == 0 ? "Q" : text("K, V of tile %d", started - 1), text("%.0f", double(event.step)), "-",
                      started < 2 ? "nothing" : text("tile %d", started - 2)});
    } else if (event.kind == gpu::TimelineEvent::Kind::wait_begin) {
      waits += 1;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i][2] == "-" && !(keeps_q && i == 1 && waits < 3)) rows[i][2] = text("%.0f", double(event.step));
      }
    }
  }
  if (rows.empty()) return program.say("No copy was started.");
  program.say(
      "The first warp of the first block of double_buffer: when it starts copies, when it waits for them, and\n"
      "what it computes in between. The numbers count turns of threads on the emulator: an order, not a time.");
  program.table("timeline", {"copies of", "started at", "waited for at", "computed meanwhile"}, rows);
}

/// What a warp executes for a tile, and what follows for the speed.
void show_work(stage::Program& program) {
  Table rows;
  const std::vector<AsyncWork> works =
      for_head_dim(program.options().problem, [](auto d) { return async_copy::async_works<d()>(); });
  for (const AsyncWork& w : works) {
    rows.push_back({w.kernel, text("%d x %d", w.warps, 16 * w.row_tiles), text("%d", w.products), text("%d", w.loads_q),
                    text("%d", w.loads_kv), text("%.2f", w.loads_a_product()), text("%.0f", w.tensor_cycles()),
                    text("%.0f", w.data_cycles()), text("%.0f", w.issue_cycles()), text("%.0f", w.exponential_cycles()),
                    text("%.0f %%", 100 * w.bound()), text("%d", w.shared_bytes)});
  }
  program.say(
      "By formula: what a warp executes for a tile of 64 keys that no mask cuts. Cycles: how long a block's warps "
      "keep\n"
      "the tensor cores, the path to shared memory, the schedulers and the exponentials' units busy for it.\n"
      "At most: the share of the tensor cores' peak that this leaves. lazy_rescale: a tile without rescaling.");
  program.table("work",
                {"kernel", "warps x rows", "mma", "ldmatrix Q", "ldmatrix K, V", "ldmatrix / mma", "mma cycles",
                 "data cycles", "issue cycles", "exp cycles", "at most", "shared bytes"},
                rows);
}

/// Requests and wavefronts of shared memory, counted.
void show_counts(stage::Program& program) {
  stage::show_shared_memory(
      program, "08", async_copy::async_copy_kernels(),
      "Instructions of warps on shared memory, counted on the whole problem. Loads are ldmatrix, and stores are "
      "copies\n"
      "by cp.async; steps 2 and 3 have both for O on its way out, too.");
}

/// Tiles that blocks and warps visit.
void show_tiles(stage::Program& program) {
  const Problem& p = program.options().problem;
  Table rows;
  const auto add = [&](const Mask& mask, int seqlen_q, int seqlen_kv) {
    const TileCounts tiles = for_head_dim(p, [&](auto d) {
      return async_copy::count_tiles<async_copy::RowTiles<gpu::bf16, d()>>(mask, seqlen_q, seqlen_kv);
    });
    const double share = tiles.of_warps ? 100.0 * tiles.skipped_by_warps / tiles.of_warps : 0;
    rows.push_back({mask.name(), text("%d x %d", seqlen_q, seqlen_kv), text("%d", tiles.all),
                    text("%d", tiles.all - tiles.visited), text("%d", tiles.visited - tiles.masked),
                    text("%d", tiles.masked), text("%d of %d", tiles.skipped_by_warps, tiles.of_warps),
                    text("%.1f %%", share)});
  };
  for (const Mask mask : {Mask::none(), Mask::causal(), Mask::window(p.seqlen_kv / 8, 0)}) {
    add(mask, p.seqlen_q, p.seqlen_kv);
  }
  for (const int n : {1024, 2048, 8192}) add(Mask::causal(), n, n);
  program.say(
      "Tiles of one head's S in steps 2 and 3: of blocks, and those of warps (a tile that a block visits is one for\n"
      "each of its warps) of which the warp's own rows see nothing:");
  program.table("tiles",
                {"mask", "N", "tiles", "skipped", "visited, no mask", "visited, masked", "skipped by a warp", "share"},
                rows);
}

/// How often O is rescaled, on the host.
void show_rescales(stage::Program& program) {
  constexpr int kWarps = 8, kRows = 32, kKeys = 4096, kTileKeys = 64, d = 64;
  struct Example {
    std::string name;
    InputKind inputs;
    float times;  // of the usual scale
  };
  Table rows;
  for (const Example& example :
       {Example{"normal", InputKind::normal, 1}, Example{"normal, scores x 8", InputKind::normal, 8},
        Example{"rising", InputKind::rising_scores, 1}, Example{"falling", InputKind::falling_scores, 1}}) {
    program.progress(example.name);
    const Problem p{.seqlen_q = kWarps * kRows, .seqlen_kv = kKeys, .head_dim = d, .element_type = ElementType::bf16};
    const attention::Inputs inputs = attention::make_inputs(p, example.inputs, program.options().seed);
    RescaleCounts sum;
    for (int warp = 0; warp < kWarps; ++warp) {
      std::vector<float> scores(std::size_t{kRows} * kKeys);
      for (int row = 0; row < kRows; ++row)
        for (int key = 0; key < kKeys; ++key) {
          float score = 0;
          for (int c = 0; c < d; ++c) score += inputs.q[(warp * kRows + row) * d + c] * inputs.k[key * d + c];
          scores[std::size_t(row) * kKeys + key] = score;
        }
      const RescaleCounts counts =
          async_copy::count_rescales(scores, kRows, kKeys, kTileKeys, example.times * p.scale() * kernel::kLog2E);
      sum.tiles += counts.tiles;
      sum.grown += counts.grown;
      sum.rescaled += counts.rescaled;
      sum.largest_p = std::fmax(sum.largest_p, counts.largest_p);
    }
    rows.push_back({example.name, text("%d", sum.tiles), text("%d", sum.grown), text("%d", sum.rescaled),
                    text("%.1f", double(sum.largest_p))});
  }
  program.say(text(
      "On the host: %d warps of %d rows and %d keys, head_dim %d. In how many of their tiles a maximum grows, in how\n"
      "many it has grown by more than %g in the exponent of 2, so that lazy_rescale rescales, and the largest P then:",
      kWarps, kRows, kKeys, d, double(async_copy::kLargestExponent)));
  program.table("rescales", {"scores", "tiles of warps", "a maximum grows", "rescaled", "largest P"}, rows);
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "08";
  chapter.name = "async_copy";
  chapter.idea = "K and V on their way while the tile before is computed, and fewer loads a product.";
  chapter.gpu_problem = {.batch = 2,
                         .heads_q = 16,
                         .heads_kv = 16,
                         .seqlen_q = 8192,
                         .seqlen_kv = 8192,
                         .head_dim = 128,
                         .element_type = ElementType::bf16};
  chapter.emulator_problem = {.heads_q = 2,
                              .heads_kv = 1,
                              .seqlen_q = 256,
                              .seqlen_kv = 320,
                              .head_dim = 64,
                              .element_type = ElementType::bf16};
  chapter.forward = async_copy::async_copy_kernels();
  chapter.peers = {"pytorch_flash_bf16", "pytorch_cudnn_bf16"};
  chapter.bench_problems = stage::papers_grid({128}, {1024, 8192});
  chapter.sections = {{"Copies and waits", show_timeline},
                      {"A tile on paper", show_work},
                      {"Shared memory, counted", show_counts},
                      {"Tiles under a mask", show_tiles},
                      {"How often O is rescaled", show_rescales}};
  return stage::run(argc, argv, chapter);
}
