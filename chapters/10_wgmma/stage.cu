/// \file
/// Chapter 10: WGMMA. `./learn run 10`, or with a problem of your own:
/// `./learn run 10 --dtype fp16 --causal --seqlen-q 100 --seqlen-kv 1000 --head-dim 128`.

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "chapters/10_wgmma/kernels.hpp"
#include "chapters/10_wgmma/model.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/papers_grid.hpp"
#include "common/stage/program.hpp"
#include "common/stage/shared_memory.hpp"
#include "common/stage/text.hpp"

namespace {

using attention::ElementType;
using attention::Problem;
using stage::text;
using wgmma::Operand, wgmma::WgmmaWork;
using Table = std::vector<std::vector<std::string>>;

/// Calls f with the problem's head_dim as a constant.
template <class F>
auto for_head_dim(const Problem& p, F f) {
  if (p.head_dim == 64) return f(std::integral_constant<int, 64>());
  if (p.head_dim == 128) return f(std::integral_constant<int, 128>());
  return f(std::integral_constant<int, 256>());
}

std::string number(std::uint32_t n) { return text("%u", n); }

/// Which 16 bytes of shared memory hold which chunk of a tile, and where the descriptors of the products look for it.
template <int kHeadDim>
void show_layout_of(stage::Program& program) {
  using Tile = wgmma::SharedTiles<gpu::bf16, kHeadDim>;
  using QTile = typename wgmma::WgmmaShared<Tile>::QTile;
  using KTile = typename wgmma::WgmmaShared<Tile>::KTile;
  Table lines;
  const auto add_line = [&](int panel, int row) {
    std::vector<std::string> line = {text("%d", 2 * (KTile::kPanel * panel + KTile::kPanelColumns * row)),
                                     text("%d", row), text("%d - %d", 64 * panel, 64 * panel + 63)};
    for (int place = 0; place < 8; ++place) {
      line.push_back(text("%d", wgmma::chunk_at<KTile>(row, panel, place)));
    }
    lines.push_back(line);
  };
  for (int row = 0; row < 10; ++row) add_line(0, row);
  for (int panel = 1; panel < kHeadDim / 64; ++panel) add_line(panel, 1);
  program.say(text(
      "By formula, head_dim %d: a tile of K or V, %d rows. Each line is 128 bytes of shared memory; below 0 to 7,\n"
      "its 16-byte places from left to right, stands the chunk (8 columns) of the tile's row that lies there.",
      kHeadDim, KTile::kRows));
  program.table("layout", {"byte", "row", "columns", "0", "1", "2", "3", "4", "5", "6", "7"}, lines);

  const std::vector<Operand> operands = wgmma::operands<Tile>();
  Table descriptors, reads;
  for (const Operand& operand : operands) {
    const bool along_rows = operand.major == gpu::Major::k;
    const wgmma::DescriptorFields f = wgmma::fields_of(operand.descriptor);
    descriptors.push_back({operand.name, operand.meaning, along_rows ? "K" : "MN", number(f.address), number(f.leading),
                           number(f.stride), text("%d", f.swizzle_code),
                           text("%016llx", static_cast<unsigned long long>(operand.descriptor.bits))});
    for (const int step : {0, 1, 3, 4}) {
      if (step >= static_cast<int>(operand.added.size())) continue;
      // Elements of the product, and the tile's row and column that each of them is.
      const std::uint32_t added = operand.added[static_cast<std::size_t>(step)];
      std::vector<std::string> row = {operand.name, text("%d", step), number(added)};
      for (const auto& [mn, k] : {std::pair(0, 0), std::pair(0, 8), std::pair(1, 0), std::pair(8, 0)}) {
        const std::uint32_t read = wgmma::operand_byte(operand.descriptor + added, operand.major, mn, k) - f.address;
        const int tile_row = along_rows ? mn : 16 * step + k, column = along_rows ? 16 * step + k : mn;
        const std::uint32_t laid =
            operand.name == "Q" ? wgmma::tile_byte<QTile>(tile_row, column) : wgmma::tile_byte<KTile>(tile_row, column);
        row.push_back(text("(%d, %d): %u", tile_row, column, read));
        if (read != laid)
          program.fail(text("%s, step %d: read at %u, laid at %u", operand.name.c_str(), step, read, laid));
      }
      reads.push_back(row);
    }
  }
  program.say(
      "What shared_tiles tells WGMMA: the descriptors of Q (the second warpgroup's), K and V of step 0, in bytes from\n"
      "the start of the block's shared memory. Swizzle 1 means 128 bytes.");
  program.table("descriptors", {"operand", "M or N, and K", "major", "address", "leading", "stride", "swizzle", "bits"},
                descriptors);
  program.say(
      "What a step adds to the descriptor, and where WGMMA then reads four elements, (row, column) of the tile: byte\n"
      "from the tile's start. The copies have laid them there.");
  program.table("reads", {"operand", "step", "adds", "mn 0, k 0", "mn 0, k 8", "mn 1, k 0", "mn 8, k 0"}, reads);
}

void show_layout(stage::Program& program) {
  for_head_dim(program.options().problem, [&](auto d) { show_layout_of<d()>(program); });
}

/// Something that runs beside the warp that started it.
struct Started {
  std::string what;
  std::uint64_t at = 0, waited_at = 0;
};

/// What a warp of the first block starts, in its order, and when it comes to the wait for it.
std::vector<Started> started_by(int warp) {
  std::vector<Started> list;
  int copies = 0, products = 0;
  bool in_products = false;
  for (const gpu::TimelineEvent& event : gpu::emulator_timeline()) {
    if (event.block != 0 || event.warp != warp || event.kind == gpu::TimelineEvent::Kind::wait_end) continue;
    const bool of_product = event.line.file.ends_with("kernel/warpgroup.cuh");
    if (event.kind == gpu::TimelineEvent::Kind::issue) {
      if (of_product && in_products) continue;  // a group is one
      in_products = of_product;
      if (of_product) {
        list.push_back({text(products % 2 == 0 ? "S of tile %d" : "O += P V, tile %d", products / 2), event.step});
        products += 1;
      } else {
        list.push_back({copies == 0 ? "copies: Q, tile 0" : text("copies: tile %d", copies), event.step});
        copies += 1;
      }
    } else {
      // The first wait after products is for them, the next one for copies.
      for (Started& started : list) {
        const bool is_copy = started.what.starts_with("copies");
        if (started.waited_at == 0 && is_copy != in_products) started.waited_at = event.step;
      }
      in_products = false;
    }
  }
  return list;
}

/// When a warp of each warpgroup starts copies and products, and when it waits for them.
void show_timeline(stage::Program& program) {
  if (!gpu::device().emulated) return program.say("The emulator records it (./learn run 10 --emulator).");
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.record_timeline = true;
  const gpu::EmulatorOptionsScope recording(options);
  program.run_forward(wgmma::wgmma_kernels().back());
  const std::vector<Started> first = started_by(0), second = started_by(4);
  Table rows;
  for (std::size_t i = 0; i < std::min({first.size(), second.size(), std::size_t{9}}); ++i) {
    rows.push_back({first[i].what, text("%.0f", double(first[i].at)), text("%.0f", double(first[i].waited_at)),
                    text("%.0f", double(second[i].at)), text("%.0f", double(second[i].waited_at))});
  }
  if (rows.empty()) return program.say("Nothing was started.");
  program.say(
      "The first warp of each warpgroup of shared_tiles, in the first block: when it starts copies and groups of\n"
      "products, and when it comes to the wait for them. The numbers count turns of threads on the emulator: an "
      "order,\n"
      "not a time.");
  program.table("timeline", {"what", "warpgroup 0 starts", "waits", "warpgroup 1 starts", "waits"}, rows);
}

/// What a tile costs the units of a multiprocessor, and what follows for the speed.
void show_work(stage::Program& program) {
  const std::vector<WgmmaWork> works =
      for_head_dim(program.options().problem, [](auto d) { return wgmma::wgmma_works<d()>(); });
  Table counts, cycles, shares;
  for (const WgmmaWork& w : works) {
    counts.push_back({w.kernel, text("%d x %d", w.blocks, w.warpgroups), text("%d x %d", w.br, w.bc),
                      text("%d", w.products_s), text("%d", w.products_o), text("%g", w.read_bytes / 1024.0),
                      text("%g", w.copied_bytes / 1024.0), text("%d", w.copies), text("%d", w.exponentials),
                      text("%d", w.other_softmax), text("%d", w.shared_bytes)});
    cycles.push_back({w.kernel, text("%.0f", w.tensor_cycles()), text("%.0f", w.data_cycles()),
                      text("%.0f", w.l2_cycles()), text("%.0f", w.exponential_cycles()), text("%.0f", w.issue_cycles()),
                      text("%.0f %%", 100 * w.share_of_units())});
    shares.push_back({w.kernel, text("%.0f", w.own_copy_cycles()), text("%.0f", w.own_tensor_cycles()),
                      text("%.0f", w.own_softmax_cycles()), text("%.0f %%", 100 * w.share_in_step()),
                      text("%.0f %%", 100 * w.share_apart())});
  }
  program.say(text(
      "By formula, head_dim %d, a tile of keys that no mask cuts. Of a warpgroup: WGMMA for S and for O, and KiB of\n"
      "shared memory that they read. Of a block: KiB copied. Of a lane: copies, exponentials, other instructions of "
      "the\nsoftmax.",
      works.front().head_dim));
  program.table("work",
                {"kernel", "blocks x warpgroups", "Br x Bc", "WGMMA S", "WGMMA O", "KiB read", "KiB copied", "copies",
                 "exp", "other", "shared bytes"},
                counts);
  program.say(
      "Cycles for which a block's warpgroups keep the units of a multiprocessor busy with it: tensor cores, the path "
      "to\n"
      "shared memory, the multiprocessor's part of the L2, exponentials, schedulers. At most: the share of the tensor\n"
      "cores' peak, if all of them run beside each other.");
  program.table("cycles", {"kernel", "tensor", "shared", "L2", "exp", "issue", "at most"}, cycles);
  program.say(
      "Cycles of one warpgroup's tile, one thing after the other, each at least so long. In step: the share of the "
      "peak\n"
      "if all warpgroups of the multiprocessor do the same at the same time. Apart: if one multiplies while the "
      "others\n"
      "do something else.");
  program.table("shares", {"kernel", "copies", "products", "softmax", "in step", "apart"}, shares);
}

/// Requests and wavefronts of shared memory, counted.
void show_counts(stage::Program& program) {
  stage::show_shared_memory(
      program, "10", wgmma::wgmma_kernels(),
      "Instructions of warps on shared memory, counted on the whole problem. Stores are copies by cp.async, and O on "
      "its\n"
      "way out; loads are O on its way out, and nothing else: what WGMMA reads is no instruction of a warp.");
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "10";
  chapter.name = "wgmma";
  chapter.idea = "Four warps multiply straight from shared memory.";
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
  chapter.forward = wgmma::wgmma_kernels();
  chapter.peers = {"pytorch_flash_bf16", "pytorch_cudnn_bf16"};
  chapter.bench_problems = stage::papers_grid({128}, {1024, 8192});
  chapter.sections = {{"Where a byte lies", show_layout},
                      {"Products and waits", show_timeline},
                      {"A tile on paper", show_work},
                      {"Shared memory, counted", show_counts}};
  return stage::run(argc, argv, chapter);
}
