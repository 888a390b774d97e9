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
  if (p.head_dim == 64) return warp_specialization::takes_small_tiles<64>(p.mask, p.seqlen_q, p.seqlen_kv);
  return p.head_dim == 256 && warp_specialization::takes_small_tiles<256>(p.mask, p.seqlen_q, p.seqlen_kv);
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
  CHECK(check(warp_specialization::persistent<64>(2), 64, 200, {40, 0, 300}) == Counts(3, 0));
  CHECK(check(warp_specialization::persistent<64>(2), 64, 370, {300}) == Counts(0, 3));
  CHECK(check(warp_specialization::persistent<128>(2), 128, 200, {40, 0, 300}) == Counts(0, 3));
  CHECK(check(warp_specialization::persistent<256>(2), 256, 200, {40, 0, 300, 180}) == Counts(3, 3));
}

TEST_CASE("the forward suite reaches both shapes of step 4's tiles") {
  const stage::ForwardKernel kernel = warp_specialization_kernels().back();
  REQUIRE(kernel.name == "persistent");
  int small[3] = {}, large[3] = {};
  // The checking build's cases are fewer and smaller, and have no large tiles at head_dim 64. The next test does.
  const suite::Depth depth = std::max(suite::depth_for(kernel), suite::Depth::plain);
  for (const suite::SuiteCase& c : suite::forward_cases(depth, suite::taken_by(kernel))) {
    if (c.problem.seqlen_q == 0 || c.problem.seqlen_kv == 0) continue;
    ++(takes_small_tiles(c.problem) ? small : large)[c.problem.head_dim / 128];
  }
  for (const int i : {0, 2}) {
    INFO("head_dim " << (i == 0 ? 64 : 256) << ": " << small[i] << " small, " << large[i] << " large");
    CHECK(small[i] >= 3);
    CHECK(large[i] >= 3);
  }
  CHECK(small[1] == 0);
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
  check(true, 64, 128, 290, Mask::none());
  check(true, 64, 200, 300, Mask::causal());
  check(true, 64, 66, 290, Mask::window(100, 50));
  check(false, 64, 129, 290, Mask::none());
  check(false, 64, 192, 300, Mask::causal());
  check(false, 64, 150, 300, Mask::window(100, 50));
  check(true, 256, 70, 180, Mask::none());
  check(true, 256, 200, 180, Mask::causal());
  check(true, 256, 66, 180, Mask::window(100, 120));
  check(false, 256, 70, 150, Mask::none());
  check(false, 256, 200, 150, Mask::causal());
  check(false, 256, 66, 150, Mask::window(100, 120));
}

TEST_CASE("the bytes of both shapes, by hand") {
  const stage::ForwardKernel kernel = warp_specialization_kernels().back();
  // Causal, 512 queries and keys: 128 queries at a time load 128, 256, 384 and 512 keys; 192 at a time it would be 256,
  // 384 and 512.
  const Problem small = problem(ElementType::bf16, 1, 1, 512, 512, 64, Mask::causal());
  CHECK(takes_small_tiles(small));
  CHECK(kernel.traffic(small).loaded == 2 * 64 * (512 + 2 * (128 + 256 + 384 + 512)) + 4 * 4);
  // 192 queries load all keys once, where 128 at a time would do so twice.
  const Problem large = problem(ElementType::bf16, 1, 1, 192, 300, 64, Mask::none());
  CHECK(kernel.traffic(large).loaded == 2 * 64 * (192 + 2 * 300));
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
  CHECK(schedule.query_tiles == 8);
  CHECK(schedule.works == 3 * 24 * 8);
  CHECK(schedule.section == 32);
  CHECK(schedule.counter == &counter);
  args.seqlen_kv = 1 << 20;  // one KV head alone is more than a section
  CHECK(warp_specialization::Schedule::of<Tile>(args, &counter).section == 2);
  args.seqlen_kv = 0;
  CHECK(warp_specialization::Schedule::of<Tile>(args, &counter).section == 72);
  // Without a mask one head follows the other, and nobody asks.
  args.mask = Mask::none();
  for (const int seqlen_kv : {0, 4096, 1 << 20}) {
    args.seqlen_kv = seqlen_kv;
    const auto even = warp_specialization::Schedule::of<Tile>(args, &counter);
    CHECK(even.section == 1);
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
  runs.push_back({of_64, bf16_problem(3, 66, 2 * 128 - 30, 64, Mask::causal()),
                  bf16_problem(1, 200, 3, 64, Mask::causal()), true});
  runs.push_back({of_64, bf16_problem(3, 130, 2 * 128 - 30, 64, Mask::causal()),
                  bf16_problem(1, 257, 3, 64, Mask::causal()), false});
  runs.push_back({of_256, bf16_problem(3, 66, 3 * 64 - 12, 256, Mask::causal()),
                  bf16_problem(1, 200, 3, 256, Mask::causal()), true});
  runs.push_back({of_256, bf16_problem(3, 66, 2 * 80 - 10, 256, Mask::causal()),
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
    const bool takes_turns = kernel.name == "ping_pong" || kernel.name == "overlap";
    const int needless = takes_turns ? 1 : visited.head_dim == 256 ? 3 : 0;
    CHECK(static_cast<int>(unnoticed.size()) == needless);
  }
}
