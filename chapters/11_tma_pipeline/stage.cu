/// \file
/// Chapter 11: TMA. `./learn run 11`, or with a problem of your own:
/// `./learn run 11 --dtype fp16 --causal --seqlen-q 100 --seqlen-kv 1000 --head-dim 128`.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "chapters/11_tma_pipeline/kernels.hpp"
#include "chapters/11_tma_pipeline/model.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/papers_grid.hpp"
#include "common/stage/program.hpp"
#include "common/stage/shared_memory.hpp"
#include "common/stage/text.hpp"

namespace {

using attention::ElementType;
using attention::Problem;
using stage::text;
using tma_pipeline::MapOnPaper, tma_pipeline::PipelineWork, tma_pipeline::Turn;
using Table = std::vector<std::vector<std::string>>;

/// Calls f with the problem's head_dim as a constant.
template <class F>
auto for_head_dim(const Problem& p, F f) {
  if (p.head_dim == 64) return f(std::integral_constant<int, 64>());
  if (p.head_dim == 128) return f(std::integral_constant<int, 128>());
  return f(std::integral_constant<int, 256>());
}

std::string number(double n) { return text("%.0f", n); }

/// What TMA knows of the problem's arrays, and what of their last tiles is outside.
void show_maps(stage::Program& program) {
  const Problem& p = program.options().problem;
  const std::vector<MapOnPaper> maps =
      for_head_dim(p, [&](auto d) { return tma_pipeline::maps_on_paper<tma_pipeline::RingTile<gpu::bf16, d()>>(p); });
  Table arrays, tiles;
  for (const MapOnPaper& m : maps) {
    if (m.seqlen == 0 || p.batch == 0) continue;
    std::vector<std::string> array = {m.name};
    for (const std::uint64_t size : m.shape.sizes) array.push_back(number(double(size)));
    for (const std::uint64_t stride : m.shape.stride_bytes) array.push_back(number(double(stride)));
    array.push_back(text("%u x %u", m.shape.box[0], m.shape.box[1]));
    arrays.push_back(array);
    const int box_rows = static_cast<int>(m.shape.box[1]), first_row = (m.tiles - 1) * box_rows;
    const tma_pipeline::BoxRows rows = tma_pipeline::rows_of_box(first_row, box_rows, m.seqlen);
    const int row_bytes = static_cast<int>(m.box_bytes) / box_rows * m.boxes_of_tile;
    tiles.push_back({m.name, text("%d", m.tiles), text("%d", m.boxes_of_tile), text("%u", m.box_bytes),
                     text("%d", box_rows * row_bytes), text("%d - %d", first_row, first_row + box_rows - 1),
                     text("%d", rows.outside), text("%d", rows.inside * row_bytes),
                     text("%d", rows.outside * row_bytes)});
  }
  program.say(
      "By formula, what the tensor maps say: elements in each dimension, bytes from one to the next in all but the\n"
      "first, and the box, columns x rows. Along a dimension of size 1 nobody moves, and its stride is given as 16.");
  program.table("maps", {"array", "column", "row", "head", "batch", "row stride", "head stride", "batch stride", "box"},
                arrays);
  program.say(
      "Tiles of one head, from row 0 on, and what is moved for one: boxes, and bytes as the barrier counts them. Of "
      "the\nlast tile: its rows, those of them that are outside the array, bytes that TMA reads or writes, and bytes "
      "of\n"
      "zeros that it puts in, or of O that it leaves out.");
  program.table("boxes", {"array", "tiles", "boxes", "box bytes", "tile bytes", "last tile", "outside", "moved", "not"},
                tiles);
}

/// Something of a warp that has a beginning and an end.
struct Span {
  std::uint64_t begin = 0, end = 0;
};

/// What a warp does with the tiles: K in even places of the lists, V in odd ones.
struct WarpTimeline {
  std::vector<std::uint64_t> asked;  ///< the first box
  std::vector<Span> empty;           ///< the wait before asking; 0 where there was none
  std::vector<Span> full;            ///< the wait before the product
  std::vector<Span> product;         ///< from its start until it has been waited for
};

/// Reads it out of the timeline of the first block. The order of a tile is the kernel's: wait for K, S started, perhaps
/// wait and ask for K, wait and ask for V, wait for S, wait for V, O started, wait for O.
WarpTimeline timeline_of(int warp, int panels) {
  using Kind = gpu::TimelineEvent::Kind;
  WarpTimeline line;
  std::vector<Span> waits;  // since the last product was started
  Span last_wait;
  int boxes = 0;
  bool in_product = false, asked_since_wait = true;
  for (const gpu::TimelineEvent& event : gpu::emulator_timeline()) {
    if (event.block != 0 || event.warp != warp) continue;
    const bool of_product = event.line.file.ends_with("kernel/warpgroup.cuh");
    if (event.kind == Kind::wait_begin) {
      if (in_product) waits.clear();
      in_product = false;
      waits.push_back({event.step, event.step});
    } else if (event.kind == Kind::wait_end) {
      if (waits.empty()) continue;
      waits.back().end = last_wait.end = event.step;
      last_wait.begin = waits.back().begin;
      asked_since_wait = false;
    } else if (of_product && !in_product) {
      // Between S and O: … the wait for S, the wait for V. Between O and S: the wait for O, the wait for K.
      if (!line.product.empty() && waits.size() >= 2) line.product.back().end = waits[waits.size() - 2].end;
      line.full.push_back(last_wait);
      line.product.push_back({event.step, 0});
      in_product = true;
    } else if (!of_product && event.line.file.ends_with("11_tma_pipeline/tile.cuh")) {
      if (boxes >= panels && (boxes - panels) % panels == 0) {  // the first ones are Q's
        const bool waited = !line.product.empty() && !asked_since_wait;
        line.empty.push_back(waited ? last_wait : Span{});
        line.asked.push_back(event.step);
      }
      asked_since_wait = true;
      boxes += 1;
    }
  }
  if (!line.product.empty() && !waits.empty()) line.product.back().end = waits.front().end;
  return line;
}

/// For each place of the ring: when it is asked for, full, read and empty.
void show_timeline(stage::Program& program) {
  if (!gpu::device().emulated) return program.say("The emulator records it (./learn run 11 --emulator).");
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.record_timeline = true;
  const gpu::EmulatorOptionsScope recording(options);
  program.run_forward(tma_pipeline::tma_pipeline_kernels().back());
  const int panels = program.options().problem.head_dim / 64;
  const int stages =
      for_head_dim(program.options().problem, [](auto d) { return tma_pipeline::RingTile<gpu::bf16, d()>::kStages; });
  const WarpTimeline first = timeline_of(0, panels), second = timeline_of(4, panels);
  const std::size_t count = std::min({first.asked.size(), first.product.size(), second.product.size()});
  const auto span = [](const Span& s) { return number(double(s.begin)) + " - " + number(double(s.end)); };
  Table rows;
  for (const std::size_t of_v : {0, 1}) {
    for (std::size_t i = of_v; i < count; i += 2) {
      const Turn turn = tma_pipeline::turn_of(static_cast<int>(i / 2), stages);
      rows.push_back({text("%s %d", of_v ? "V" : "K", static_cast<int>(i / 2)), text("%d", turn.place),
                      text("%d", turn.phase), text("%u", turn.parity), first.empty[i].end ? span(first.empty[i]) : "-",
                      number(double(first.asked[i])), span(first.full[i]), span(first.product[i]), span(second.full[i]),
                      span(second.product[i])});
    }
  }
  if (rows.empty()) return program.say("The first block visits no tile.");
  program.say(text(
      "The ring of %d places, in the first block: for each tile its place, its phase there and the phase's parity;\n"
      "when thread 0 waits for the place to be empty and when it asks for the tile; when the first warp of each\n"
      "warpgroup waits for the place to be full, and from when to when its product reads it. The numbers count turns "
      "of\nthreads on the emulator: an order, not a time.",
      stages));
  program.table("timeline",
                {"tile", "place", "phase", "parity", "waits empty", "asks", "wg 0 waits full", "reads",
                 "wg 1 waits full", "reads"},
                rows);
  if (count <= 2 * static_cast<std::size_t>(stages)) {
    program.say(text("No place is used twice: with --seqlen-kv %d it is.", 128 * 2 * stages));
  }
}

/// What a tile costs on paper, and how early it is asked for.
void show_work(stage::Program& program) {
  const std::vector<PipelineWork> works =
      for_head_dim(program.options().problem, [](auto d) { return tma_pipeline::pipeline_works<d()>(); });
  Table sizes, cycles, leads;
  for (const PipelineWork& w : works) {
    sizes.push_back({w.kernel, text("%d x %d", w.br, w.bc), text("%d", w.stages), text("%d", w.boxes),
                     text("%d", w.tile_bytes), text("%d", w.apart_barriers ? w.tile_bytes : 2 * w.tile_bytes),
                     text("%d", w.bytes_before_first()), text("%d", w.shared_bytes)});
    cycles.push_back({w.kernel, number(w.product_cycles()), number(w.softmax_cycles()), number(w.copy_cycles()),
                      number(w.in_step()), number(w.apart())});
    leads.push_back({w.kernel, text("%d", w.lead_tiles()), number(w.latency_hidden(w.in_step())),
                     number(w.latency_hidden(w.apart()))});
  }
  program.say(text(
      "By formula, head_dim %d. Of a tile of keys: boxes that one thread asks for, bytes of K, and bytes that the\n"
      "barrier of the first product waits for; before the block's first product, Q included; shared memory of a block.",
      works.front().head_dim));
  program.table("sizes",
                {"kernel", "Br x Bc", "places", "boxes", "bytes of K", "awaited", "before first", "shared bytes"},
                sizes);
  program.say(
      "Cycles of one warpgroup for S, or for O, and for its softmax; of K and V from the L2; and of the tile for both\n"
      "warpgroups, if they do the same at the same time, and if one multiplies while the other does not.");
  program.table("cycles", {"kernel", "product", "softmax", "copies", "in step", "apart"}, cycles);
  program.say(
      "Tiles between asking for a tile and its first product, and the latency that they hide: cycles from asking "
      "until\n"
      "bytes begin to come, if they then come at the L2's rate. Less than 0: the copies limit.");
  program.table("lead", {"kernel", "tiles", "hidden, in step", "hidden, apart"}, leads);
}

/// Requests and wavefronts of shared memory, counted.
void show_counts(stage::Program& program) {
  stage::show_shared_memory(program, "11", tma_pipeline::tma_pipeline_kernels(),
                            "Instructions of warps on shared memory, counted on the whole problem. Stores are O on its "
                            "way out, and loads are\n"
                            "O, too, in step 1: what TMA and WGMMA move is no instruction of a warp.");
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "11";
  chapter.name = "tma_pipeline";
  chapter.idea = "One thread moves a tile; barriers that count bytes say when it is there.";
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
  chapter.forward = tma_pipeline::tma_pipeline_kernels();
  chapter.peers = {"pytorch_flash_bf16", "pytorch_cudnn_bf16"};
  chapter.bench_problems = stage::papers_grid({128}, {1024, 8192});
  chapter.sections = {{"Maps and boxes", show_maps},
                      {"The ring, turn by turn", show_timeline},
                      {"A tile on paper", show_work},
                      {"Shared memory, counted", show_counts}};
  return stage::run(argc, argv, chapter);
}
