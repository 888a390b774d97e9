/// \file
/// The kernels beyond the forward suite: bytes, refusals, scales, needed waits, fences and barriers.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "chapters/12_warp_specialization/kernels.hpp"
#include "common/attention/accuracy.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/sixteen_bit_kernels.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::ElementType;
using attention::InputKind;
using attention::Mask;
using attention::Problem;
using suite::check_case, suite::Outcome, suite::problem, suite::run;
using warp_specialization::warp_specialization_kernels;

constexpr ElementType kTypes[] = {ElementType::fp16, ElementType::bf16};

/// Whether step 4 has small tiles for the problem.
bool takes_small_tiles(const Problem& p) {
  return p.head_dim == 256 && warp_specialization::takes_small_tiles<256>(p.mask, p.seqlen_q, p.seqlen_kv);
}

/// Step 4 with one place each for K and V, and half as many keys in them: of three warpgroups the first passes over two
/// tiles under a causal mask, while the others have their turns.
template <class T>
struct OnePlace : warp_specialization::SpecializedTile<T, 64> {
  static constexpr int kStages = 1, kBc = 64, kKeySteps = kBc / 16, kKeyTiles = kBc / 8;
};
stage::ForwardKernel persistent_with_one_place() {
  stage::ForwardKernel kernel = warp_specialization::persistent<64>();
  kernel.traffic = [](const Problem& p) {
    const attention::Traffic traffic = attention::tiled_forward_traffic(p, 192, 64);
    const double asked = warp_specialization::Schedule::asks(p.mask) * p.heads_q * ((p.seqlen_q + 191) / 192) * 4;
    return attention::Traffic{traffic.loaded + asked, traffic.stored + asked};
  };
  kernel.run = []<stage::SixteenBits T>(const attention::ForwardArgs<T>& args, void* workspace) {
    using Tile = OnePlace<T>;
    const auto schedule = warp_specialization::Schedule::of<Tile>(args, static_cast<int*>(workspace));
    if (schedule.counter) gpu::fill_bytes(schedule.counter, 0, sizeof(int));
    gpu::launch<warp_specialization::PersistentShared<Tile>>(
        warp_specialization::persistent_kernel<Tile>, {.grid = 1, .block = Tile::kThreads},
        warp_specialization::make_maps<Tile>(args, kernel::kWarpgroupRows), args, schedule);
  };
  return kernel;
}

}  // namespace

TEST_CASE("right, with the predicted bytes, in both types and all head_dims") {
  suite::check_shapes(warp_specialization_kernels());
}

TEST_CASE("the bytes of a causal case, by hand") {
  // Two tiles of 128 queries: the first sees 128 keys, the second all 130.
  const Problem p = problem(ElementType::bf16, 1, 1, 130, 130, 128, Mask::causal());
  for (const stage::ForwardKernel& kernel : warp_specialization_kernels()) {
    const int counter = kernel.name == "persistent" ? 2 * 4 : 0;  // asked after each of the two works
    CHECK(kernel.traffic(p).loaded == 2 * 128 * (130 + 2 * (128 + 130)) + counter);
    CHECK(kernel.traffic(p).stored == 130 * (2 * 128 + 4) + counter);
  }
}

TEST_CASE("blocks that take one work after the other") {
  // Ten works and more for two blocks, with one tile of keys, with several, and with none; equal works and unequal
  // ones.
  const auto check = [](const stage::ForwardKernel& kernel, int head_dim, int seqlen_q, std::vector<int> lengths_kv) {
    int small = 0, large = 0;  // cases with several tiles of keys
    for (const Mask mask : {Mask::none(), Mask::causal(), Mask::window(20, 0)}) {
      for (const int seqlen_kv : lengths_kv) {
        const Problem p = problem(ElementType::bf16, 6, 2, seqlen_q, seqlen_kv, head_dim, mask);
        INFO(p.describe());
        check_case(kernel, p, InputKind::normal, true);
        if (seqlen_kv > 128) ++(takes_small_tiles(p) ? small : large);
      }
    }
    return std::pair(small, large);
  };
  using Counts = std::pair<int, int>;
  CHECK(check(warp_specialization::persistent<64>(2), 64, 200, {40, 0, 300}) == Counts(0, 3));
  CHECK(check(warp_specialization::persistent<64>(2), 64, 370, {300}) == Counts(0, 3));
  CHECK(check(warp_specialization::persistent<128>(2), 128, 200, {40, 0, 300}) == Counts(0, 3));
  CHECK(check(warp_specialization::persistent<256>(2), 256, 200, {40, 0, 300, 180}) == Counts(4, 2));
}

TEST_CASE("the forward suite reaches both shapes of step 4's tiles") {
  const stage::ForwardKernel kernel = warp_specialization_kernels().back();
  REQUIRE(kernel.name == "persistent");
  int small[3] = {}, large[3] = {};
  // The checking build's cases are fewer and smaller.
  const suite::Depth depth = std::max(suite::depth_for(kernel), suite::Depth::plain);
  for (const suite::SuiteCase& c : suite::forward_cases(depth, suite::taken_by(kernel))) {
    if (c.problem.seqlen_q == 0 || c.problem.seqlen_kv == 0) continue;
    ++(takes_small_tiles(c.problem) ? small : large)[c.problem.head_dim / 128];
  }
  INFO("head_dim 256: " << small[2] << " small, " << large[2] << " large");
  CHECK(small[2] >= 3);
  CHECK(large[2] >= 3);
  CHECK(small[0] + small[1] == 0);
}

TEST_CASE("both shapes of step 4's tiles: right, with the predicted bytes, in both types") {
  const auto check = [](bool small, int head_dim, int seqlen_q, int seqlen_kv, Mask mask) {
    for (const ElementType type : kTypes) {
      const Problem p = problem(type, 2, 1, seqlen_q, seqlen_kv, head_dim, mask);
      INFO(p.describe());
      CHECK(takes_small_tiles(p) == small);
      check_case(warp_specialization_kernels().back(), p);
    }
  };
  check(true, 256, 70, 180, Mask::none());
  check(true, 256, 200, 180, Mask::causal());
  check(true, 256, 66, 180, Mask::window(100, 120));
  check(false, 256, 70, 150, Mask::none());
  check(false, 256, 200, 150, Mask::causal());
  check(false, 256, 66, 150, Mask::window(100, 120));
}

TEST_CASE("warpgroups that pass over tiles of which their rows see nothing") {
  // Of five tiles of keys and more, so that each place comes round: tiles passed over at the beginning, at the end, all
  // of them; by the first warpgroup, the last, two of three; in one work and in the next, which has another number.
  const auto check = [](int head_dim, int seqlen_q, int seqlen_kv, Mask mask, InputKind inputs = InputKind::normal) {
    const Problem p = problem(ElementType::bf16, 3, 1, seqlen_q, seqlen_kv, head_dim, mask);
    INFO(p.describe());
    const stage::ForwardKernel kernel = head_dim == 64    ? warp_specialization::persistent<64>(2)
                                        : head_dim == 128 ? warp_specialization::persistent<128>(2)
                                                          : warp_specialization::persistent<256>(2);
    check_case(kernel, p, inputs, true);
  };
  // Rows 0 to 191 at 192 queries: the first warpgroup does not see the last tile of keys, which comes first.
  check(64, 192, 5 * 128, Mask::causal(), InputKind::rising_scores);
  check(64, 400, 5 * 128 + 30, Mask::causal());
  // The last warpgroup does not see the first tile of keys, which comes last.
  check(64, 192, 6 * 128, Mask::window(500, 0), InputKind::rising_scores);
  check(64, 300, 6 * 128, Mask::window(500, 60));
  // The third warpgroup has no rows, then the second neither.
  check(64, 100, 5 * 128, Mask::none());
  check(64, 60, 5 * 128 - 3, Mask::causal());
  check(64, 192 + 5, 5 * 128, Mask::window(400, 10));
  // The first warpgroup sees nothing at all: 100 rows of 192, then 64 and all of the work before.
  check(64, 192, 92, Mask::causal());
  check(64, 384, 90, Mask::causal(), InputKind::rising_scores);
  check(64, 500, 3, Mask::window(0, attention::kUnlimited));  // with other rows: the last see all or nothing
  // A narrow window: each tile is seen by some warpgroups alone.
  check(64, 700, 700, Mask::window(5, 0), InputKind::rising_scores);
  check(128, 60, 5 * 128, Mask::causal());
  check(128, 300, 5 * 128, Mask::window(300, 0));
  check(256, 192, 5 * 80, Mask::causal());
  check(256, 60, 5 * 64, Mask::window(170, 0));
}

TEST_CASE("the bytes of both shapes, by hand") {
  const stage::ForwardKernel kernel = warp_specialization_kernels().back();
  // Causal, 512 queries and keys: 192 queries at a time load 256, 384 and 512 keys, though the first 64 pass over half
  // of the first 256.
  const Problem causal = problem(ElementType::bf16, 1, 1, 512, 512, 64, Mask::causal());
  CHECK(kernel.traffic(causal).loaded == 2 * 64 * (512 + 2 * (256 + 384 + 512)) + 3 * 4);
  // 192 queries load all keys once, where 128 at a time would do so twice.
  const Problem all = problem(ElementType::bf16, 1, 1, 192, 300, 64, Mask::none());
  CHECK(kernel.traffic(all).loaded == 2 * 64 * (192 + 2 * 300));
  // Causal, 256 queries and keys. In tiles of 64 keys the first 128 queries load 128, in tiles of 80 it would be 160.
  const Problem few = problem(ElementType::bf16, 1, 1, 256, 256, 256, Mask::causal());
  CHECK(takes_small_tiles(few));
  CHECK(kernel.traffic(few).loaded == 2 * 256 * (256 + 2 * (128 + 256)) + 2 * 4);
  const Problem many = problem(ElementType::bf16, 1, 1, 4096, 4096, 256, Mask::causal());
  int keys = 0;
  for (int end = 128; end <= 4096; end += 128) keys += std::min(4096, (end + 79) / 80 * 80);
  CHECK(kernel.traffic(many).loaded == 2.0 * 256 * (4096 + 2.0 * keys) + 32 * 4);
}

TEST_CASE("the schedule's sections and counter") {
  using Tile = warp_specialization::SpecializedTile<gpu::bf16, 128>;
  // 4096 keys of 128 columns are 2 MiB of K and V: 16 KV heads a section, 32 heads of Q.
  attention::ForwardArgs<gpu::bf16> args{};
  args.batch = 3, args.heads_q = 24, args.heads_kv = 12, args.seqlen_q = 1000, args.seqlen_kv = 4096;
  args.head_dim = 128, args.mask = Mask::causal();
  int counter = 0;
  const auto schedule = warp_specialization::Schedule::of<Tile>(args, &counter);
  CHECK(schedule.sections.tiles == 8);
  CHECK(schedule.sections.heads == 72);
  CHECK(schedule.works == 3 * 24 * 8);
  CHECK(schedule.sections.section == 32);
  CHECK(schedule.counter == &counter);
  args.seqlen_kv = 1 << 20;  // one KV head alone is more than a section
  CHECK(warp_specialization::Schedule::of<Tile>(args, &counter).sections.section == 1);
  args.seqlen_kv = 0;
  CHECK(warp_specialization::Schedule::of<Tile>(args, &counter).sections.section == 72);
  // Without a mask one head follows the other, and nobody asks.
  args.mask = Mask::none();
  for (const int seqlen_kv : {0, 4096, 1 << 20}) {
    args.seqlen_kv = seqlen_kv;
    const auto even = warp_specialization::Schedule::of<Tile>(args, &counter);
    CHECK(even.sections.section == 1);
    CHECK(even.works == 3 * 24 * 8);
    CHECK(even.counter == nullptr);
  }
}

TEST_CASE("negative scales, a scale of 0, and scales that leave one key") {
  suite::check_scales(warp_specialization_kernels());
}

TEST_CASE("scores of 10000 and more, of both signs") { suite::check_huge_scores(warp_specialization_kernels()); }

TEST_CASE("the same bits under every schedule and in both deliveries") {
  for (const stage::ForwardKernel& kernel : warp_specialization_kernels()) {
    check_case(kernel, problem(ElementType::fp16, 1, 1, 70, 400, 64, Mask::window(270, 3)), InputKind::rising_scores,
               true);
  }
}

TEST_CASE("no wait, no fence and no barrier can be left out unnoticed") {
  if (!gpu::device().checked) return;
  struct Run {
    stage::ForwardKernel kernel;
    Problem visited;       ///< each place is loaded again after it has been read, and twice
    Problem nothing_seen;  ///< has a block, or a work, none of whose rows sees a key: what guards its end
    bool small = false;
  };
  const auto bf16_problem = [](int heads, int seqlen_q, int seqlen_kv, int head_dim, Mask mask) {
    return problem(ElementType::bf16, heads, heads, seqlen_q, seqlen_kv, head_dim, mask);
  };
  std::vector<Run> runs;
  for (const stage::ForwardKernel& kernel : warp_specialization_kernels()) {
    if (kernel.name == "persistent") continue;
    // More than 2 · stages tiles of keys.
    runs.push_back(
        {kernel, bf16_problem(1, 66, 5 * 128 - 30, 64, Mask::none()), bf16_problem(1, 200, 3, 64, Mask::causal())});
  }
  // One block with several works, for both shapes of tiles.
  const stage::ForwardKernel of_64 = warp_specialization::persistent<64>(1),
                             of_256 = warp_specialization::persistent<256>(1);
  // In each the first warpgroup does not see the first of five tiles.
  runs.push_back(
      {of_64, bf16_problem(2, 192, 5 * 128, 64, Mask::causal()), bf16_problem(1, 257, 3, 64, Mask::causal()), false});
  runs.push_back(
      {of_256, bf16_problem(2, 128, 5 * 64, 256, Mask::causal()), bf16_problem(1, 200, 3, 256, Mask::causal()), true});
  runs.push_back({of_256, bf16_problem(2, 128, 4 * 80 + 10, 256, Mask::causal()),
                  bf16_problem(1, 200, 70, 256, Mask::causal()), false});
  for (const auto& [kernel, visited, nothing_seen, small] : runs) {
    INFO(kernel.name << ", " << visited.describe());
    if (kernel.name == "persistent") {
      CHECK(takes_small_tiles(visited) == small);
      CHECK(takes_small_tiles(nothing_seen) == small);
    }
    const std::vector<std::string> unnoticed = suite::unnoticed_lines(kernel, visited, nothing_seen);
    for (const std::string& line : unnoticed) UNSCOPED_INFO(line);
    // Steps 2 and 3 share the end of step 1, where a warpgroup meets before it overwrites Q. Their last turn has been
    // such a meeting already. Where O stands in Q's place, at head_dim 256, that goes for step 4 too; and its store has
    // been waited for before the place is given back, so that the waits before the next O and at the end find nothing.
    // And of what a warpgroup waits for when it passes over a tile nothing is missed with two places: when its turn
    // comes, everybody has read what was in the tile's place before, but for a lane that is late by a whole phase,
    // which is rare. With one place each is (the next test).
    const bool takes_turns = kernel.name == "ping_pong" || kernel.name == "overlap";
    const int passing_over = kernel.name == "persistent" ? 3 : 0;
    const int needless = takes_turns ? 1 : passing_over + (visited.head_dim == 256 ? 3 : 0);
    CHECK(static_cast<int>(unnoticed.size()) == needless);
  }
}

TEST_CASE("what passing over a tile waits for") {
  if (!gpu::device().checked) return;
  // Two tiles passed over before others have their turns; then four works, of which the first has rows for one
  // warpgroup alone, so that a lane of the others may be late by a whole phase, and the last sees nothing.
  const stage::ForwardKernel kernel = persistent_with_one_place();
  const std::vector<std::string> unnoticed =
      suite::unnoticed_lines(kernel, problem(ElementType::bf16, 2, 2, 192, 5 * 64, 64, Mask::causal()),
                             problem(ElementType::bf16, 1, 1, 3 * 192 + 40, 256 + 40, 64, Mask::causal()));
  for (const std::string& line : unnoticed) UNSCOPED_INFO(line);
  CHECK(unnoticed.empty());
}
