/// \file
/// Chapter 12: warp specialization. `./learn run 12`, or with a problem of your own:
/// `./learn run 12 --dtype fp16 --causal --seqlen-q 100 --seqlen-kv 1000 --head-dim 128`.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "chapters/12_warp_specialization/kernels.hpp"
#include "chapters/12_warp_specialization/model.hpp"
#include "chapters/12_warp_specialization/turns.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/papers_grid.hpp"
#include "common/stage/program.hpp"
#include "common/stage/shared_memory.hpp"
#include "common/stage/text.hpp"

namespace {

using attention::ElementType, attention::Mask, attention::Problem;
using stage::text;
using warp_specialization::PaperWork, warp_specialization::StepOnPaper, warp_specialization::TileWork,
    warp_specialization::TurnEvents;
using Table = std::vector<std::vector<std::string>>;

/// Calls f with the problem's head_dim as a constant.
template <class F>
auto for_head_dim(const Problem& p, F f) {
  if (p.head_dim == 64) return f(std::integral_constant<int, 64>());
  if (p.head_dim == 128) return f(std::integral_constant<int, 128>());
  return f(std::integral_constant<int, 256>());
}

std::string number(double n) { return text("%.0f", n); }
std::string percent(double share) { return text("%.1f %%", 100 * share); }

/// Who holds how many registers.
void show_registers(stage::Program& program) {
  Table rows;
  const auto add = [&](auto d, auto small) {
    using Tile = warp_specialization::SpecializedTile<gpu::bf16, d(), small()>;
    const warp_specialization::RegisterBudget b{Tile::kConsumers, Tile::kProducerRegisters, Tile::kConsumerRegisters};
    rows.push_back({text("%d", d()), text("%d x %d", Tile::kBr, Tile::kBc), text("1 + %d", b.consumers),
                    text("%d", b.threads()), text("%d", b.at_start()), text("%d", b.producer_registers),
                    text("%d", b.consumer_registers), text("%d", b.held()), text("%d", b.spare()),
                    text("%d", warp_specialization::accumulator_registers(d(), Tile::kBc))});
    if (b.held() > warp_specialization::RegisterBudget::kRegisters || b.spare() < 0) {
      program.fail(text("head_dim %d: more registers are taken than given back", d()));
    }
  };
  add(std::integral_constant<int, 64>(), std::false_type());
  add(std::integral_constant<int, 128>(), std::false_type());
  add(std::integral_constant<int, 256>(), std::false_type());
  add(std::integral_constant<int, 256>(), std::true_type());
  program.say(
      "By formula: queries and keys of a tile (the second shape of 256 is step 4's small one); registers of\n"
      "a lane at the start, and after setmaxnreg, of the producer and of a consumer; all that the block then holds,\n"
      "of 65536, and what is left over. At the end: a consumer's S, P and O, all alive together.");
  program.table(
      "registers",
      {"head_dim", "tile", "warpgroups", "threads", "at start", "producer", "consumer", "held", "left", "S, P and O"},
      rows);
}

/// What a tile costs the units, and what each step's order makes of it.
void show_work(stage::Program& program) {
  const Problem& p = program.options().problem;
  const std::vector<StepOnPaper> steps =
      for_head_dim(p, [](auto d) { return warp_specialization::steps_on_paper<d()>(); });
  const TileWork& w = steps.front().tile;
  program.say(text(
      "By formula, head_dim %d, a tile of %d keys that no mask cuts: cycles of one warpgroup for S, or for O; for\n"
      "the maxima, which come before its exponentials; for these; for rounding P and rescaling O. Then cycles of\n"
      "the units for all %d consumers: tensor cores, exponentials, L2 and the path to shared memory.",
      w.head_dim, w.bc, w.consumers));
  program.table(
      "units", {"product", "maxima", "exp", "finish", "tensor", "all exp", "L2", "shared"},
      {{number(w.own_product()), number(w.own_maximum()), number(w.own_exponentials()), number(w.own_finish()),
        number(w.products()), number(w.exponentials()), number(w.l2()), number(w.shared_memory())}});
  Table rows;
  for (const StepOnPaper& s : steps) {
    std::vector<std::string> row = {s.kernel,
                                    number(own_chain(s.order, w)),
                                    number(cycles_of_tile(s.order, w)),
                                    number(slack(s.order, w)),
                                    number(s.load_cycles()),
                                    text("%d", s.shared_bytes)};
    for (const int n : {1024, 8192}) row.push_back(percent(share_of_peak(s, kernel::tiles_of(n, w.bc))));
    rows.push_back(row);
  }
  program.say(
      "What the steps make of it. Chain: a warpgroup's tile, if it had the units for itself. Tile: from tile to\n"
      "tile of the block. Slack: by how much a warpgroup may be late in each tile. Loads: cycles between two\n"
      "works, while Q and K come and nothing multiplies. At the end the share of the tensor cores' peak with 1024\n"
      "and with 8192 keys. Of the first step: if its consumers do the same at the same time.");
  program.table("steps", {"kernel", "chain", "tile", "slack", "loads", "shared bytes", "N = 1024", "N = 8192"}, rows);
}

/// The producer and the consumers of ping_pong and of overlap.
void show_turns(stage::Program& program) {
  if (!gpu::device().emulated) return program.say("The emulator records it (./learn run 12 --emulator).");
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.record_timeline = true;
  const gpu::EmulatorOptionsScope recording(options);
  const int head_dim = program.options().problem.head_dim;
  const int consumers = for_head_dim(program.options().problem, [](auto d) {
    return warp_specialization::SpecializedTile<gpu::bf16, d()>::kConsumers;
  });
  program.say(
      "The first block of ping_pong, then of overlap. Turn t is S of tile t and O += P V of the tile before. K\n"
      "and V: when the producer asks for those of tile t. Of the first warp of each consumer: when it starts S\n"
      "and O, and when it has waited for each. The numbers count turns of threads on the emulator: an order, not\n"
      "a time.");
  const auto cell = [](std::uint64_t step) { return step ? number(double(step)) : std::string("-"); };
  for (const std::size_t step : {1, 2}) {
    program.run_forward(warp_specialization::warp_specialization_kernels()[step]);
    const std::vector<std::uint64_t> loads = warp_specialization::asked(head_dim / 64);
    std::vector<std::string> header = {"turn", "K", "V"};
    Table rows;
    for (int c = 0; c < consumers; ++c) {
      for (const char* what : {"S", "O", "has S", "has O"}) header.push_back(text("%s, %d", what, c));
      const std::vector<TurnEvents> turns = warp_specialization::turns_of(4 + 4 * c);
      rows.resize(std::max(rows.size(), turns.size()));
      for (std::size_t t = 0; t < turns.size(); ++t) {
        if (c == 0) {
          rows[t] = {number(double(t))};
          for (const std::size_t i : {2 * t, 2 * t + 1}) rows[t].push_back(i < loads.size() ? cell(loads[i]) : "-");
        }
        const TurnEvents& turn = turns[t];
        for (const auto at : {turn.scores, turn.output, turn.scores_there, turn.output_there}) {
          rows[t].push_back(cell(at));
        }
      }
    }
    if (rows.empty()) return program.say("The first block visits no tile.");
    program.table(step == 1 ? "ping_pong" : "overlap", header, rows);
  }
}

/// Which shape of tiles step 4 has for a problem, and why.
std::string shape_of(const Problem& p) {
  return for_head_dim(p, [&](auto d) {
    constexpr int kHeadDim = d();
    using warp_specialization::SpecializedTile, warp_specialization::computed_scores;
    std::string why;
    if constexpr (kHeadDim == 256) {
      const auto scores = [&]<class Tile>(Tile) {
        return double(computed_scores<Tile>(p.mask, p.seqlen_q, p.seqlen_kv));
      };
      const double small = scores(SpecializedTile<gpu::bf16, kHeadDim, true>()),
                   large = scores(SpecializedTile<gpu::bf16, kHeadDim>());
      if (large > 0)
        why = text(":\nsmall ones compute %s of the scores that large ones do", percent(small / large).c_str());
    }
    return warp_specialization::with_tile<gpu::bf16, kHeadDim>(p.mask, p.seqlen_q, p.seqlen_kv, [&]<class Tile>(Tile) {
      return text("%s.\nStep 4 has %s tiles, %d queries by %d keys%s.", p.describe().c_str(),
                  Tile::kSmall ? "small" : "large", Tile::kBr, Tile::kBc, why.c_str());
    });
  });
}

/// The works in the order of step 4, and when the last block is done, beside other ways to hand them out.
void show_schedule(stage::Program& program) {
  Problem p = program.options().problem;
  if (p.mask == Mask::none()) {  // nothing else to see
    program.say(text("By formula: %s\nOne head follows the other. Beside it, a causal problem:", shape_of(p).c_str()));
    const int heads = 2048 / p.head_dim;
    p = {.batch = 2, .heads_q = heads, .heads_kv = heads, .seqlen_q = 8192, .seqlen_kv = 8192, .head_dim = p.head_dim};
    p.mask = Mask::causal();
    p.element_type = ElementType::bf16;
  }
  for_head_dim(p, [&](auto d) {
    using Large = warp_specialization::SpecializedTile<gpu::bf16, d()>;
    using warp_specialization::busy_share, warp_specialization::makespan, warp_specialization::works_in_order;
    constexpr int kHeadDim = Large::kHeadDim;
    // What step 4 has.
    warp_specialization::with_tile<gpu::bf16, kHeadDim>(p.mask, p.seqlen_q, p.seqlen_kv, [&]<class Tile>(Tile) {
      const int blocks = 132, heads = p.batch * p.heads_q;
      const int section = warp_specialization::Schedule::of<Tile>(p, nullptr).sections.section;
      const StepOnPaper one_work = warp_specialization::steps_on_paper<kHeadDim>()[2],
                        staying = warp_specialization::persistent_on_paper<kHeadDim, Tile::kSmall>();
      const auto beside_of = [](const StepOnPaper& s) { return s.load_cycles() / cycles_of_tile(s.order, s.tile); };
      const double beside = beside_of(one_work), beside_staying = beside_of(staying);
      const std::vector<PaperWork> last_first = works_in_order(p, Large::kBr, Large::kBc, heads);
      const std::vector<PaperWork> first_first(last_first.rbegin(), last_first.rend());
      const std::vector<PaperWork> sections = works_in_order(p, Tile::kBr, Tile::kBc, section);
      if (sections.empty()) return program.say("There is no work.");
      const double worth_of_one = double(Tile::kBr * Tile::kBc) / (Large::kBr * Large::kBc);
      Table items, ends;
      const int section_works = section * kernel::tiles_of(p.seqlen_q, Tile::kBr);
      for (const int place : std::set<int>{0, 1, section, blocks, section_works}) {
        const auto i = static_cast<std::size_t>(place);
        if (i >= sections.size()) continue;
        const int first = sections[i].query_tile * Tile::kBr, last = std::min(first + Tile::kBr, p.seqlen_q) - 1;
        items.push_back({number(double(i)), text("%d", sections[i].head_index), text("%d - %d", first, last),
                         text("%d", sections[i].tiles)});
      }
      const auto add = [&](const char* name, const std::vector<PaperWork>& works, const std::vector<double>& done,
                           double worth) {
        ends.push_back({name, text("%.1f", worth * makespan(done)), percent(busy_share(done)),
                        text("%.0f", double(kv_bytes_at_once(works, blocks, p)) / (1 << 20))});
      };
      add("a block each, first queries first", first_first, queued(first_first, blocks, beside), 1);
      add("a block each, last queries first", last_first, queued(last_first, blocks, beside), 1);
      add("sections, dealt out", sections, dealt_out(sections, blocks, beside_staying), worth_of_one);
      add("sections, by the counter", sections, queued(sections, blocks, beside_staying), worth_of_one);
      program.say(text("By formula: %s\n%zu works, heads in sections of %d. Some of the list:", shape_of(p).c_str(),
                       sections.size(), section));
      program.table("works", {"work", "head", "queries", "tiles"}, items);
      program.say(text(
          "When the last of %d blocks is done, in large tiles of keys (%d x %d); the share of the time for which a\n"
          "block has something to do; MiB of K and V of the heads that the first %d works read. The loads between\n"
          "two works count for %.1f tiles with a block each, and for %.1f of step 4's with blocks that stay.",
          blocks, Large::kBr, Large::kBc, blocks, beside, beside_staying));
      program.table("ends", {"schedule", "last end", "busy", "MiB at once"}, ends);
    });
  });
}

/// Requests and wavefronts of shared memory, counted.
void show_counts(stage::Program& program) {
  stage::show_shared_memory(program, "12", warp_specialization::warp_specialization_kernels(),
                            "Instructions of warps on shared memory, counted on the whole problem. Stores are O on its "
                            "way out; loads, in the\nlast step, the works.");
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "12";
  chapter.name = "warp_specialization";
  chapter.idea = "Some warps load, others compute; and nobody waits for what another could do meanwhile.";
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
  chapter.forward = warp_specialization::warp_specialization_kernels();
  chapter.peers = {"pytorch_flash_bf16", "pytorch_cudnn_bf16"};
  chapter.bench_problems = stage::papers_grid({128}, {1024, 8192});
  chapter.sections = {{"Registers on paper", show_registers},
                      {"A tile on paper", show_work},
                      {"Turn by turn", show_turns},
                      {"Who computes what", show_schedule},
                      {"Shared memory, counted", show_counts}};
  return stage::run(argc, argv, chapter);
}
