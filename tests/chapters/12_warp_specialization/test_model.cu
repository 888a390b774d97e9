/// \file
/// The model: registers, cycles and timelines, works and when blocks are done, by hand and by small brute force; and
/// against the works that the kernels take and the order in which they start products.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "chapters/12_warp_specialization/kernels.hpp"
#include "chapters/12_warp_specialization/model.hpp"
#include "chapters/12_warp_specialization/turns.hpp"
#include "common/gpu/buffer.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::ElementType;
using attention::Mask;
using attention::Problem;
using suite::problem, suite::run;
using warp_specialization::Order, warp_specialization::PaperSpan, warp_specialization::PaperWork,
    warp_specialization::RegisterBudget, warp_specialization::SpecializedTile, warp_specialization::StepOnPaper,
    warp_specialization::TileWork;
using What = PaperSpan::What;

// Sizes that the tests calculate with by hand, whatever the kernels have.
constexpr TileWork kSmall{.head_dim = 64, .bc = 128, .consumers = 3};
constexpr TileWork kMiddle{.head_dim = 128, .bc = 128, .consumers = 2};
constexpr TileWork kLarge{.head_dim = 256, .bc = 80, .consumers = 2};

StepOnPaper step_of(Order order, const TileWork& tile, bool persistent = false) {
  return {"step", order, tile, persistent ? 0 : 65536, 0};
}

auto near(double value) { return Catch::Matchers::WithinRel(value, 1e-12); }

/// The one span of that kind.
PaperSpan find(const std::vector<PaperSpan>& spans, What what, int consumer, int work, int tile) {
  std::vector<PaperSpan> found;
  for (const PaperSpan& span : spans) {
    if (span.what == what && span.consumer == consumer && span.work == work && span.tile == tile) found.push_back(span);
  }
  REQUIRE(found.size() == 1);
  return found.front();
}
void check_span(const std::vector<PaperSpan>& spans, What what, int consumer, int tile, double begin, double end) {
  const PaperSpan span = find(spans, what, consumer, 0, tile);
  CHECK(span.begin == begin);
  CHECK(span.end == end);
}

/// Tiles of keys of which some query of the tile sees one, pair by pair.
int tiles_by_pairs(const Problem& p, int first_query, int br, int bc) {
  int count = 0;
  for (int first_key = 0; first_key < p.seqlen_kv; first_key += bc) {
    bool seen = false;
    for (int i = first_query; i < std::min(first_query + br, p.seqlen_q); ++i) {
      const attention::KeyRange keys = attention::visible_keys(p.mask, i, p.seqlen_q, p.seqlen_kv);
      seen = seen || std::max(keys.begin, first_key) < std::min(keys.end, first_key + bc);
    }
    count += seen;
  }
  return count;
}

/// The works that the kernels' blocks take, by themselves: head and tile of queries, of a block and from the schedule.
template <class Tile>
__global__ void list_works(attention::ForwardArgs<typename Tile::T> args, warp_specialization::Schedule schedule,
                           int query_tiles, int* of_blocks, int* of_schedule) {
  if (threadIdx.x != 0) return;
  const int block = static_cast<int>(blockIdx.x);
  const auto one = warp_specialization::work_of_block<Tile>(args, query_tiles);
  const auto scheduled = schedule.work<Tile>(args, block);
  const auto put = [&](int* to, const warp_specialization::Work<Tile>& work) {
    to[3 * block] = work.batch * args.heads_q + work.head;
    to[3 * block + 1] = work.first_query / Tile::kBr;
    to[3 * block + 2] = work.tiles();
  };
  put(of_blocks, one);
  put(of_schedule, scheduled);
}

/// What each warpgroup's rows of a work see, a work a block: the work's tiles and their first key, then of each
/// warpgroup the steps in which it computes, and the keys that need no mask.
template <class Tile>
__global__ void list_seen(attention::ForwardArgs<typename Tile::T> args, int* list) {
  if (threadIdx.x != 0) return;
  const auto work = warp_specialization::make_work<Tile>(args, 0, static_cast<int>(blockIdx.x));
  int* of_work = list + blockIdx.x * (2 + 4 * Tile::kConsumers);
  *of_work++ = work.tiles();
  *of_work++ = work.visited.begin;
  for (int consumer = 0; consumer < Tile::kConsumers; ++consumer) {
    const warp_specialization::Seen own = work.seen_by_rows(args, work.first_query + 64 * consumer);
    for (const int number : {own.begin, own.end, own.unmasked.begin, own.unmasked.end}) *of_work++ = number;
  }
}

}  // namespace

TEST_CASE("registers by hand") {
  constexpr RegisterBudget two{2, 24, 240}, three{3, 32, 160};
  CHECK(two.threads() == 384);
  CHECK(two.at_start() == 168);  // 65536 / 384 = 170.7
  CHECK(two.held() == 64512);    // 128 · (24 + 480)
  CHECK(two.spare() == 0);
  CHECK(three.threads() == 512);
  CHECK(three.at_start() == 128);
  CHECK(three.held() == 65536);
  CHECK(three.spare() == 0);
  CHECK(RegisterBudget{2, 24, 232}.spare() == 2048);
  CHECK(RegisterBudget{2, 40, 240}.spare() == -2048);
  CHECK(RegisterBudget{0, 24, 24}.at_start() == 255);
  CHECK(warp_specialization::accumulator_registers(64, 128) == 64 + 32 + 32);
  CHECK(warp_specialization::accumulator_registers(128, 128) == 64 + 32 + 64);
  CHECK(warp_specialization::accumulator_registers(256, 80) == 40 + 20 + 128);
}

TEST_CASE("the kernels' registers add up") {
  const auto check = [](auto tile) {
    using Tile = decltype(tile);
    const RegisterBudget b{Tile::kConsumers, Tile::kProducerRegisters, Tile::kConsumerRegisters};
    INFO("head_dim " << Tile::kHeadDim);
    CHECK(b.threads() == Tile::kThreads);
    CHECK(b.held() <= RegisterBudget::kRegisters);
    CHECK(b.spare() >= 0);
    CHECK(b.producer_registers % 8 == 0);
    CHECK(b.consumer_registers % 8 == 0);
    CHECK(warp_specialization::accumulator_registers(Tile::kHeadDim, Tile::kBc) < b.consumer_registers);
  };
  check(SpecializedTile<gpu::bf16, 64>());
  check(SpecializedTile<gpu::bf16, 128>());
  check(SpecializedTile<gpu::bf16, 256>());
  check(SpecializedTile<gpu::bf16, 256, true>());
}

TEST_CASE("a tile on paper, by hand") {
  CHECK(kMiddle.own_product() == 512);  // 8 of 64 cycles
  CHECK(kMiddle.own_maximum() == 64);
  CHECK(kMiddle.own_exponentials() == 528);  // 66 · 128 / 16
  CHECK(kMiddle.own_softmax() == 592);
  CHECK(kMiddle.own_finish() == 32 + 64);
  CHECK(kMiddle.own_issue() == 66 + 128 + 96);
  CHECK(kMiddle.products() == 2048);
  CHECK(kMiddle.exponentials() == 1056);
  CHECK(kMiddle.l2() == 1638.4);           // 64 KiB
  CHECK(kMiddle.shared_memory() == 1792);  // as in chapter 10, whose products are the same
  CHECK(kMiddle.floor() == 2048);
  CHECK(kSmall.own_product() == 256);
  CHECK(kSmall.products() == 1536);
  CHECK(kSmall.exponentials() == 1584);
  CHECK(kSmall.floor() == 1584);
  CHECK(kLarge.own_product() == 640);
  CHECK(kLarge.own_exponentials() == 336);  // 42 · 128 / 16
  CHECK(kLarge.own_finish() == 20 + 128);
  CHECK(kLarge.l2() == 2048);             // 80 KiB
  CHECK(kLarge.shared_memory() == 2432);  // (2 · (16 · 144 · 32 + 5 · 256 · 32) + 81920) / 128
  // What the schedulers have to do fits beside the exponentials.
  for (const TileWork& w : {kSmall, kMiddle, kLarge}) CHECK(w.own_issue() < w.own_exponentials());
}

TEST_CASE("the three orders, by hand") {
  using warp_specialization::cycles_of_tile, warp_specialization::own_chain, warp_specialization::slack;
  CHECK(own_chain(Order::turns, kMiddle) == 1024 + 592);
  CHECK(own_chain(Order::overlap, kMiddle) == 512 + 592 + 96);  // the softmax is longer than O
  CHECK(own_chain(Order::overlap, kLarge) == 640 + 640 + 148);  // O is longer
  CHECK(cycles_of_tile(Order::in_step, kMiddle) == 2 * 1616);
  CHECK(cycles_of_tile(Order::turns, kMiddle) == 2048);
  CHECK(cycles_of_tile(Order::turns, kSmall) == 1584);
  CHECK(slack(Order::in_step, kMiddle) == 0);
  CHECK(slack(Order::turns, kMiddle) == 432);
  CHECK(slack(Order::overlap, kMiddle) == 848);
  // With one consumer nobody multiplies meanwhile.
  constexpr TileWork kAlone{.head_dim = 64, .bc = 128, .consumers = 1};
  CHECK(cycles_of_tile(Order::turns, kAlone) == 512 + 592);
  CHECK(cycles_of_tile(Order::overlap, kAlone) == 256 + 592 + 64);
}

TEST_CASE("timelines by hand") {
  const std::vector<PaperSpan> turns = paper_timeline(step_of(Order::turns, kMiddle), 1, 3);
  check_span(turns, What::scores, 0, 0, 0, 512);
  check_span(turns, What::scores, 1, 0, 512, 1024);
  check_span(turns, What::softmax, 0, 0, 512, 1104);
  check_span(turns, What::softmax, 1, 0, 1040, 1632);  // its exponentials wait for the other's
  check_span(turns, What::output, 0, 0, 1104, 1616);
  check_span(turns, What::scores, 0, 1, 1616, 2128);
  check_span(turns, What::output, 1, 0, 2128, 2640);
  const std::vector<PaperSpan> overlap = paper_timeline(step_of(Order::overlap, kMiddle), 1, 3);
  check_span(overlap, What::scores, 0, 1, 1104, 1616);
  check_span(overlap, What::output, 0, 0, 1616, 2128);
  check_span(overlap, What::softmax, 0, 1, 1616, 2208);
  check_span(overlap, What::finish, 0, 1, 2208, 2304);
  const std::vector<PaperSpan> step = paper_timeline(step_of(Order::in_step, kMiddle), 1, 1);
  check_span(step, What::scores, 1, 0, 0, 1024);
  check_span(step, What::softmax, 1, 0, 1024, 2208);
  check_span(step, What::output, 1, 0, 2208, 3232);
  // Eight tiles: S of both, 80 cycles until the first softmax is done, seven turns of both, O of both.
  CHECK(end_of(paper_timeline(step_of(Order::overlap, kMiddle), 1, 8)) == 1024 + 80 + 7 * 2048 + 1024);
  CHECK_THAT(cycles_of_work(step_of(Order::overlap, kMiddle), 8), near(16464 + 65536 / 40.0));
  CHECK_THAT(cycles_of_work(step_of(Order::overlap, kMiddle, true), 8), near(16464));
  CHECK_THAT(share_of_peak(step_of(Order::overlap, kMiddle, true), 8), near(16384 / 16464.0));
}

TEST_CASE("no unit of a timeline does two things at once, and nothing begins before what it needs") {
  for (const TileWork& w : {kSmall, kMiddle, kLarge}) {
    for (const Order order : {Order::turns, Order::overlap}) {
      for (const bool persistent : {false, true}) {
        INFO("head_dim " << w.head_dim << ", order " << static_cast<int>(order) << ", persistent " << persistent);
        const int works = 2, tiles = 4;
        const std::vector<PaperSpan> spans = paper_timeline(step_of(order, w, persistent), works, tiles);
        std::vector<PaperSpan> tensor, exponentials;
        for (PaperSpan span : spans) {
          if (span.what == What::scores || span.what == What::output) tensor.push_back(span);
          if (span.what == What::softmax) span.begin += w.own_maximum(), exponentials.push_back(span);
        }
        CHECK(tensor.size() == std::size_t(2 * works * tiles * w.consumers));
        CHECK(exponentials.size() == std::size_t(works * tiles * w.consumers));
        for (std::vector<PaperSpan>* unit : {&tensor, &exponentials}) {
          std::sort(unit->begin(), unit->end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
          for (std::size_t i = 1; i < unit->size(); ++i) CHECK((*unit)[i].begin >= (*unit)[i - 1].end);
        }
        for (int c = 0; c < w.consumers; ++c)
          for (int work = 0; work < works; ++work)
            for (int tile = 0; tile < tiles; ++tile) {
              const PaperSpan softmax = find(spans, What::softmax, c, work, tile);
              CHECK(find(spans, What::scores, c, work, tile).end <= softmax.begin);
              CHECK(softmax.end <= find(spans, What::output, c, work, tile).begin);
            }
      }
    }
  }
}

TEST_CASE("a long timeline takes the formula's cycles a tile") {
  for (const TileWork& w : {kSmall, kMiddle, kLarge}) {
    for (const Order order : {Order::in_step, Order::turns, Order::overlap}) {
      INFO("head_dim " << w.head_dim << ", order " << static_cast<int>(order));
      const double more = end_of(paper_timeline(step_of(order, w), 1, 60)),
                   less = end_of(paper_timeline(step_of(order, w), 1, 40));
      CHECK_THAT((more - less) / 20, near(cycles_of_tile(order, w)));
    }
  }
}

TEST_CASE("what each step brings on paper") {
  const auto check = [](const std::vector<StepOnPaper>& steps) {
    REQUIRE(steps.size() == 4);
    INFO("head_dim " << steps[0].tile.head_dim);
    for (const int tiles : {8, 64}) {
      CHECK(share_of_peak(steps[1], tiles) > share_of_peak(steps[0], tiles));
      CHECK(share_of_peak(steps[3], tiles) > share_of_peak(steps[2], tiles));
      for (const StepOnPaper& step : steps) CHECK(share_of_peak(step, tiles) <= 1);
    }
    CHECK(slack(steps[2].order, steps[2].tile) > slack(steps[1].order, steps[1].tile));
    // O stands in Q's place at head_dim 256 alone: 128 rows of 512 bytes.
    CHECK(steps[3].bytes_between_works == (steps[3].tile.head_dim == 256 ? 65536 : 0));
    CHECK(steps[0].bytes_between_works ==
          2 * steps[0].tile.head_dim * (64 * steps[0].tile.consumers + steps[0].tile.bc));
  };
  check(warp_specialization::steps_on_paper<64>());
  check(warp_specialization::steps_on_paper<128>());
  check(warp_specialization::steps_on_paper<256>());
}

TEST_CASE("works in order, by hand and pair by pair") {
  const Problem p = problem(ElementType::bf16, 2, 1, 300, 300, 64, Mask::causal());
  CHECK(warp_specialization::works_in_order(p, 128, 128, 2) ==
        std::vector<PaperWork>{{0, 2, 3}, {1, 2, 3}, {0, 1, 2}, {1, 1, 2}, {0, 0, 1}, {1, 0, 1}});
  CHECK(warp_specialization::works_in_order(p, 128, 128, 1) ==
        std::vector<PaperWork>{{0, 2, 3}, {0, 1, 2}, {0, 0, 1}, {1, 2, 3}, {1, 1, 2}, {1, 0, 1}});
  for (const Mask mask : {Mask::none(), Mask::causal(), Mask::window(40, 0), Mask::window(9, 70)}) {
    for (const int seqlen_kv : {0, 30, 300, 517}) {
      const Problem q = problem(ElementType::bf16, 1, 1, 300, seqlen_kv, 64, mask);
      INFO(q.describe());
      for (const PaperWork& work : warp_specialization::works_in_order(q, 64, 80, 1)) {
        CHECK(work.tiles == tiles_by_pairs(q, 64 * work.query_tile, 64, 80));
      }
    }
  }
}

TEST_CASE("the works on paper are those of the kernels") {
  const Mask mask = GENERATE(Mask::window(300, 0), Mask::none());
  const bool even = mask == Mask::none();
  const auto check = [&](auto tile) {
    using Tile = decltype(tile);
    Problem p = problem(ElementType::bf16, 6, 2, 500, 700, Tile::kHeadDim, mask);
    p.batch = 2;
    attention::ForwardArgs<gpu::bf16> args{};
    args.batch = p.batch, args.heads_q = p.heads_q, args.heads_kv = p.heads_kv;
    args.seqlen_q = p.seqlen_q, args.seqlen_kv = p.seqlen_kv, args.head_dim = p.head_dim, args.mask = p.mask;
    auto schedule = warp_specialization::Schedule::of<Tile>(args, nullptr);
    if (!even) schedule.sections.section = 5;  // which leaves two heads for the last one
    const auto count = static_cast<std::size_t>(schedule.works);
    CHECK(count == std::size_t(12 * ((500 + Tile::kBr - 1) / Tile::kBr)));
    gpu::DeviceBuffer<int> of_blocks(3 * count), of_schedule(3 * count);
    gpu::launch(list_works<Tile>, {.grid = schedule.works, .block = 32}, args, schedule, schedule.sections.tiles,
                of_blocks.data(), of_schedule.data());
    const auto same = [&](const gpu::DeviceBuffer<int>& listed, int section) {
      const std::vector<int> numbers = listed.download();
      const std::vector<PaperWork> works = warp_specialization::works_in_order(p, Tile::kBr, Tile::kBc, section);
      REQUIRE(works.size() == count);
      for (std::size_t i = 0; i < count; ++i) {
        INFO("head_dim " << Tile::kHeadDim << ", work " << i);
        CHECK(works[i] == PaperWork{numbers[3 * i], numbers[3 * i + 1], numbers[3 * i + 2]});
      }
    };
    same(of_blocks, even ? 1 : p.batch * p.heads_q);
    same(of_schedule, even ? 1 : 5);
  };
  check(SpecializedTile<gpu::bf16, 64>());
  check(SpecializedTile<gpu::bf16, 128>());
  check(SpecializedTile<gpu::bf16, 256>());
}

TEST_CASE("scores that tiles compute, pair by pair") {
  const auto check = [](auto tile) {
    using Tile = decltype(tile);
    for (const Mask mask : {Mask::none(), Mask::causal(), Mask::window(40, 0), Mask::window(9, 70)}) {
      for (const int seqlen_q : {0, 1, 128, 257, 500}) {
        for (const int seqlen_kv : {0, 30, 300, 517}) {
          const Problem p = problem(ElementType::bf16, 1, 1, seqlen_q, seqlen_kv, Tile::kHeadDim, mask);
          INFO(p.describe() << ", " << Tile::kBr << " x " << Tile::kBc);
          int tiles = 0;
          for (int first = 0; first < seqlen_q; first += 64) tiles += tiles_by_pairs(p, first, 64, Tile::kBc);
          CHECK(warp_specialization::computed_scores<Tile>(mask, seqlen_q, seqlen_kv) == tiles * 64 * Tile::kBc);
        }
      }
    }
  };
  check(SpecializedTile<gpu::bf16, 64>());
  check(SpecializedTile<gpu::bf16, 256>());
  check(SpecializedTile<gpu::bf16, 256, true>());
}

TEST_CASE("what 64 rows of a work see, pair by pair") {
  int leading = 0, trailing = 0, idle = 0, nothing = 0;  // tiles passed over before and behind, and warpgroups
  const auto check = [&](auto tile) {
    using Tile = decltype(tile);
    for (const Mask mask : {Mask::none(), Mask::causal(), Mask::window(40, 0), Mask::window(9, 70),
                            Mask::window(150, 0), Mask::window(0, attention::kUnlimited)}) {
      for (const int seqlen_q : {1, 128, 257, 500}) {
        for (const int seqlen_kv : {0, 30, 300, 517}) {
          const Problem p = problem(ElementType::bf16, 1, 1, seqlen_q, seqlen_kv, Tile::kHeadDim, mask);
          INFO(p.describe() << ", " << Tile::kBr << " x " << Tile::kBc);
          attention::ForwardArgs<gpu::bf16> args{};
          args.batch = args.heads_q = args.heads_kv = 1, args.head_dim = p.head_dim, args.mask = mask;
          args.seqlen_q = seqlen_q, args.seqlen_kv = seqlen_kv;
          const int works = (seqlen_q + Tile::kBr - 1) / Tile::kBr;
          constexpr std::size_t kOfWork = 2 + 4 * Tile::kConsumers;
          gpu::DeviceBuffer<int> seen(kOfWork * static_cast<std::size_t>(works));
          gpu::launch(list_seen<Tile>, {.grid = works, .block = 32}, args, seen.data());
          const std::vector<int> numbers = seen.download();
          for (int work = 0; work < works; ++work) {
            const int* const of_work = &numbers[kOfWork * static_cast<std::size_t>(work)];
            const int tiles = of_work[0], first_visited = of_work[1];
            for (int consumer = 0; consumer < Tile::kConsumers; ++consumer) {
              const int* const own = of_work + 2 + 4 * consumer;
              const int first = work * Tile::kBr + 64 * consumer, end = std::min(first + 64, seqlen_q);
              CAPTURE(work, consumer, own[0], own[1], own[2], own[3]);
              CHECK((0 <= own[0] && own[0] <= own[1] && own[1] <= tiles));
              int wrong = 0, seen_tiles = 0;
              for (int step = 0; step < tiles; ++step) {
                // The last tile comes first.
                const int first_key = first_visited + (tiles - 1 - step) * Tile::kBc;
                bool any = false, all = true;
                for (int i = first; i < end; ++i) {
                  const attention::KeyRange keys = attention::visible_keys(mask, i, seqlen_q, seqlen_kv);
                  any = any || std::max(keys.begin, first_key) < std::min(keys.end, first_key + Tile::kBc);
                  all = all && keys.begin <= first_key && keys.end >= first_key + Tile::kBc;
                }
                const bool computed = step >= own[0] && step < own[1];
                wrong += computed != any;
                if (computed) wrong += all != (own[2] <= first_key && own[3] >= first_key + Tile::kBc);
                seen_tiles += any;
              }
              CHECK(wrong == 0);
              if (seen_tiles > 0) leading += own[0], trailing += tiles - own[1];
              if (seen_tiles == 0 && tiles > 0) ++(first >= seqlen_q ? idle : nothing);
            }
          }
        }
      }
    }
  };
  check(SpecializedTile<gpu::bf16, 64>());
  check(SpecializedTile<gpu::bf16, 128>());
  check(SpecializedTile<gpu::bf16, 256>());
  check(SpecializedTile<gpu::bf16, 256, true>());
  for (const int count : {leading, trailing, idle, nothing}) CHECK(count >= 10);
}

TEST_CASE("who gets small tiles, by hand") {
  // Tiles of 64 rows, in small ones and in large ones, at head_dim 256. A small one has 4/5 of the scores of a large
  // one: there have to be fewer than 1.2125 times as many.
  struct Row {
    Mask mask;
    int seqlen_q, seqlen_kv, small_tiles, large_tiles;
    bool small;
  };
  const Row rows[] = {
      // 64 k keys are k tiles of 64, and 4 k / 5 of 80, rounded up: 14 for k = 1 to 5, 20 more for each five that
      // follow.
      {Mask::causal(), 512, 512, 36, 1 + 2 + 3 + 4 + 4 + 5 + 6 + 7, true},
      {Mask::causal(), 1024, 1024, 136, 14 + 34 + 54 + 13, true},
      {Mask::causal(), 2048, 2048, 528, 6 * 14 + 15 * 20 + 25 + 26, false},  // 1.214 times as many
      {Mask::causal(), 4096, 4096, 2080, 12 * 14 + 66 * 20 + 49 + 50 + 51 + 52, false},
      {Mask::none(), 512, 512, 8 * 8, 8 * 7, true},
      {Mask::none(), 1024, 1024, 16 * 16, 16 * 13, false},
      {Mask::none(), 128, 64, 2, 2, true},
      {Mask::none(), 128, 80, 4, 2, false},
      {Mask::none(), 64, 400, 7, 5, false},  // the second warpgroup computes nothing
      // Rows 64 i to 64 i + 63 see the keys from 64 i − 63 on: two tiles of 64, but for the first; of 80 two or three.
      {Mask::window(63, 0), 512, 512, 1 + 7 * 2, 1 + 2 + 3 + 3 + 2 + 2 + 2 + 3, true},
      {Mask::causal(), 200, 3, 1, 1, true},  // rows 197 to 199 alone see a key, which are in the fourth 64
      {Mask::causal(), 257, 3, 2, 2, true},  // rows 254 to 256 do: in the fourth and the fifth
      {Mask::causal(), 0, 0, 0, 0, false},
      {Mask::causal(), 512, 0, 0, 0, false},
  };
  using Small = SpecializedTile<gpu::bf16, 256, true>;
  using Large = SpecializedTile<gpu::bf16, 256>;
  for (const Row& row : rows) {
    INFO(row.mask.name() << ", " << row.seqlen_q << " x " << row.seqlen_kv);
    CHECK(warp_specialization::computed_scores<Small>(row.mask, row.seqlen_q, row.seqlen_kv) ==
          row.small_tiles * 64 * 64);
    CHECK(warp_specialization::computed_scores<Large>(row.mask, row.seqlen_q, row.seqlen_kv) ==
          row.large_tiles * 64 * 80);
    CHECK(warp_specialization::takes_small_tiles<256>(row.mask, row.seqlen_q, row.seqlen_kv) == row.small);
    warp_specialization::with_tile<gpu::fp16, 256>(row.mask, row.seqlen_q, row.seqlen_kv, [&]<class Tile>(Tile) {
      CHECK(Tile::kSmall == row.small);
      CHECK(Tile::kBc == (row.small ? 64 : 80));
    });
    CHECK(!warp_specialization::takes_small_tiles<64>(row.mask, row.seqlen_q, row.seqlen_kv));
    CHECK(!warp_specialization::takes_small_tiles<128>(row.mask, row.seqlen_q, row.seqlen_kv));
  }
  // At head_dim 64 there is one shape, and what its warpgroups pass over is not computed: of a causal mask's 512 x 512
  // 1 + 1 + 2 + 2 + 3 + 3 + 4 + 4 tiles of 64 rows.
  CHECK(warp_specialization::computed_scores<SpecializedTile<gpu::bf16, 64>>(Mask::causal(), 512, 512) ==
        20 * 64 * 128);
}

TEST_CASE("when blocks are done, by hand") {
  using warp_specialization::busy_share, warp_specialization::dealt_out, warp_specialization::makespan,
      warp_specialization::queued;
  const std::vector<PaperWork> longest_first = {{0, 3, 4}, {0, 2, 3}, {0, 1, 2}, {0, 0, 1}};
  const std::vector<PaperWork> shortest_first(longest_first.rbegin(), longest_first.rend());
  CHECK(dealt_out(longest_first, 2) == std::vector<double>{6, 4});
  CHECK(queued(longest_first, 2) == std::vector<double>{5, 5});
  CHECK(queued(shortest_first, 2) == std::vector<double>{4, 6});
  CHECK(dealt_out(longest_first, 2, 0.5) == std::vector<double>{7, 5});
  CHECK(queued(longest_first, 2, 0.5) == std::vector<double>{6, 6});
  CHECK(makespan(dealt_out(longest_first, 2)) == 6);
  CHECK_THAT(busy_share(dealt_out(longest_first, 2)), near(10 / 12.0));
  CHECK_THAT(busy_share(queued(longest_first, 3)), near(10 / 12.0));  // 4, 3, 2 + 1
  CHECK(busy_share(queued({}, 3)) == 1);
}

TEST_CASE("longest first is never later than the average and the longest work") {
  for (const int head_dim : {64, 128, 256}) {
    const int heads = 2048 / head_dim;
    const Problem p = problem(ElementType::bf16, heads, heads, 4096, 4096, head_dim, Mask::causal());
    const std::vector<PaperWork> works = warp_specialization::works_in_order(p, 128, 128, heads);
    double sum = 0;
    for (const PaperWork& work : works) sum += work.tiles;
    CHECK(sum == heads * 32 * 33 / 2);
    const double end = warp_specialization::makespan(warp_specialization::queued(works, 132));
    CHECK(end >= sum / 132);
    CHECK(end <= sum / 132 + 32);  // whoever takes the last work begins before all others are done
    CHECK(end <= warp_specialization::makespan(warp_specialization::dealt_out(works, 132)));
  }
}

TEST_CASE("bytes of K and V at once") {
  Problem p = problem(ElementType::bf16, 4, 2, 256, 1024, 64, Mask::none());
  p.batch = 2;  // 256 KiB a KV head
  const std::vector<PaperWork> all = warp_specialization::works_in_order(p, 128, 128, 8);
  CHECK(warp_specialization::kv_bytes_at_once(all, 2, p) == 262144);  // two heads share one
  CHECK(warp_specialization::kv_bytes_at_once(all, 3, p) == 2 * 262144);
  CHECK(warp_specialization::kv_bytes_at_once(all, 5, p) == 3 * 262144);  // of the second batch entry
  CHECK(warp_specialization::kv_bytes_at_once(all, 99, p) == 4 * 262144);
  CHECK(warp_specialization::kv_bytes_at_once(warp_specialization::works_in_order(p, 128, 128, 2), 4, p) == 262144);
}

TEST_CASE("turns on the emulator are those on paper") {
  if (!gpu::device().emulated) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.record_timeline = true;
  const gpu::EmulatorOptionsScope recording(options);
  constexpr int kTiles = 5, kConsumers = SpecializedTile<gpu::bf16, 64>::kConsumers;
  for (const std::size_t step : {1, 2}) {
    const stage::ForwardKernel kernel = warp_specialization::warp_specialization_kernels()[step];
    INFO(kernel.name);
    run(kernel, problem(ElementType::bf16, 1, 1, 192, 128 * kTiles, 64, Mask::none()));
    const std::vector<std::uint64_t> asked = warp_specialization::asked(1);
    REQUIRE(asked.size() == 2 * kTiles);
    std::uint64_t before = 0;  // the last product of the turn before
    std::vector<std::vector<warp_specialization::TurnEvents>> turns;
    for (int c = 0; c < kConsumers; ++c) turns.push_back(warp_specialization::turns_of(4 + 4 * c));
    for (std::size_t t = 0; t <= kTiles; ++t) {
      for (const auto& own : turns) {
        REQUIRE(own.size() == kTiles + 1);
        const warp_specialization::TurnEvents& turn = own[t];
        const bool scores = t<kTiles, output = t> 0;
        CHECK((turn.scores > 0) == scores);
        CHECK((turn.output > 0) == output);
        if (scores) CHECK(turn.scores > asked[2 * t]);
        if (output) CHECK(turn.output > asked[2 * t - 1]);
        if (scores && output) {
          CHECK((turn.scores < turn.output) == (kernel.name == "overlap"));
          CHECK((turn.scores_there < turn.output_there) == (kernel.name == "overlap"));
        }
        CHECK((scores && output ? std::min(turn.scores, turn.output) : turn.scores + turn.output) > before);
        before = std::max(turn.scores, turn.output);
      }
    }
  }
}
