/// \file
/// The four kernels beyond the forward suite: bytes, tiles that a mask leaves, scales, strides, needed barriers.

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chapters/05_warp_shuffle/kernels.hpp"
#include "chapters/05_warp_shuffle/model.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::InputKind;
using attention::KeyRange;
using attention::Mask;
using attention::Problem;
using attention::Strides;
using suite::check_case, suite::Outcome, suite::problem, suite::run;

stage::ForwardKernel kernel_named(const std::string& name) {
  for (const stage::ForwardKernel& kernel : warp_shuffle::shuffle_kernels()) {
    if (kernel.name == name) return kernel;
  }
  FAIL("there is no kernel " + name);
  return {};
}

/// Step 3's decisions against the rows' own keys, tile by tile.
template <int kHeadDim>
void check_tiles() {
  using Tile = warp_shuffle::RegisterTile<kHeadDim>;
  const Mask masks[] = {Mask::none(),        Mask::causal(),      Mask::window(0, 0),
                        Mask::window(40, 0), Mask::window(3, 70), Mask::window(100, attention::kUnlimited),
                        Mask::window(0, 200)};
  for (const Mask mask : masks)
    for (const int seqlen_q : {1, 63, 64, 65, 200, 300, 520})
      for (const int seqlen_kv : {0, 1, 16, 17, 64, 150, 300}) {
        const Problem p = problem(1, 1, seqlen_q, seqlen_kv, kHeadDim, mask);
        CAPTURE(p.describe());
        warp_shuffle::TileCounts expected;
        for (int first = 0; first < seqlen_q; first += Tile::kBr) {
          const int rows = std::min(Tile::kBr, seqlen_q - first);
          const KeyRange visited = warp_shuffle::visited_keys<Tile>(mask, first, rows, seqlen_q, seqlen_kv);
          const KeyRange unmasked = attention::keys_of_all(mask, first, first + rows - 1, seqlen_q, seqlen_kv);
          REQUIRE(visited.end <= seqlen_kv);
          for (int key = 0; key < seqlen_kv; key += Tile::kBc) {
            bool seen = false, seen_whole = true;
            for (int query = first; query < first + rows; ++query) {
              const KeyRange keys = attention::visible_keys(mask, query, seqlen_q, seqlen_kv);
              const int of_tile = std::max(0, std::min(keys.end, key + Tile::kBc) - std::max(keys.begin, key));
              seen = seen || of_tile > 0;
              seen_whole = seen_whole && of_tile == Tile::kBc;
            }
            const bool visits = key >= visited.begin && key < visited.end && (key - visited.begin) % Tile::kBc == 0;
            REQUIRE(visits == seen);
            if (seen) REQUIRE(warp_shuffle::needs_mask<Tile>(key, unmasked) == !seen_whole);
            expected.all += 1;
            expected.visited += seen;
            expected.masked += seen && !seen_whole;
          }
        }
        const warp_shuffle::TileCounts counts = warp_shuffle::count_tiles<kHeadDim>(mask, seqlen_q, seqlen_kv);
        REQUIRE(counts.all == expected.all);
        REQUIRE(counts.visited == expected.visited);
        REQUIRE(counts.masked == expected.masked);
      }
}

/// TileWork against what a block does more for one tile of keys more.
template <int kHeadDim>
void check_shared_counts() {
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope counting(options);
  for (const warp_shuffle::TileWork& work : warp_shuffle::tile_works<kHeadDim>()) {
    INFO(work.kernel << ", head_dim " << kHeadDim);
    const auto counted = [&work](int tiles) {
      run(kernel_named(work.kernel), problem(1, 1, work.br, tiles * work.bc, kHeadDim, Mask::none()));
      return gpu::kernel_counts().at(0);
    };
    const gpu::KernelCounts one = counted(1), two = counted(2);
    CHECK(one.blocks == 1);
    CHECK(two.shared_loads.requests - one.shared_loads.requests == std::uint64_t(work.warps) * work.loads);
    CHECK(two.shared_stores.requests - one.shared_stores.requests == std::uint64_t(work.warps) * work.stores);
    CHECK(two.shared_loads.conflicts == one.shared_loads.conflicts);
    CHECK(two.shared_stores.conflicts == one.shared_stores.conflicts);
  }
}

}  // namespace

TEST_CASE("counted bytes equal predicted bytes") {
  if (!gpu::device().checked) return;
  const Problem problems[] = {
      problem(1, 1, 1, 1, 32, Mask::none()),
      problem(4, 2, 70, 65, 64, Mask::none()),
      problem(2, 1, 65, 130, 128, Mask::causal()),
      problem(1, 1, 70, 140, 128, Mask::window(9, 0)),   // the first two tiles of keys are nobody's
      problem(2, 2, 270, 100, 32, Mask::window(5, 20)),  // nor is the last one the first rows'
      problem(1, 1, 140, 30, 64, Mask::causal()),        // rows that see nothing
      problem(2, 1, 5, 0, 32, Mask::none()),
      problem(2, 1, 0, 5, 32, Mask::none()),
  };
  for (Problem p : problems) {
    p.batch = p.heads_q == 1 ? 2 : 1;
    for (const stage::ForwardKernel& kernel : warp_shuffle::shuffle_kernels()) {
      INFO(kernel.name << ", " << p.describe());
      gpu::reset_counts();
      CHECK_NOTHROW(run(kernel, p));
      CHECK(double(gpu::counts()->global_loaded) == kernel.traffic(p).loaded);
      CHECK(double(gpu::counts()->global_stored) == kernel.traffic(p).stored);
    }
  }
}

TEST_CASE("the bytes of a causal case, by hand") {
  // Three tiles of 64 queries. Step 2 loads all 130 keys for each; in step 3 the first sees 64 of them, the second 128.
  const Problem p = problem(1, 1, 130, 130, 128, Mask::causal());
  const double row = 4 * 128;
  CHECK(kernel_named("shuffle").traffic(p).loaded == row * (130 + 3 * 2 * 130));
  CHECK(kernel_named("register_tiles").traffic(p).loaded == row * (130 + 3 * 2 * 130));
  CHECK(kernel_named("exp2").traffic(p).loaded == row * (130 + 2 * (64 + 128 + 130)));
  // Nine tiles of 16 queries.
  CHECK(kernel_named("split_keys").traffic(p).loaded == row * (130 + 9 * 2 * 130));
  for (const stage::ForwardKernel& kernel : warp_shuffle::shuffle_kernels()) {
    CHECK(kernel.traffic(p).stored == 4 * 130 * 129);
  }
}

TEST_CASE("step 3 loads less than step 2 under a mask, and the same without") {
  const auto loaded = [](const std::string& name, Mask mask) {
    return kernel_named(name).traffic(problem(2, 1, 1000, 1000, 64, mask)).loaded;
  };
  CHECK(loaded("exp2", Mask::none()) == loaded("register_tiles", Mask::none()));
  CHECK(loaded("exp2", Mask::causal()) < 0.6 * loaded("register_tiles", Mask::causal()));
  CHECK(loaded("exp2", Mask::window(20, 0)) < 0.3 * loaded("register_tiles", Mask::window(20, 0)));
}

TEST_CASE("step 3 visits the tiles in which a row sees a key, and masks those it has to") {
  check_tiles<32>();
  check_tiles<64>();
  check_tiles<128>();
}

TEST_CASE("instructions on shared memory are as many as the model says, without bank conflicts") {
  if (!gpu::device().checked) return;
  check_shared_counts<32>();
  check_shared_counts<64>();
  check_shared_counts<128>();
}

TEST_CASE("a block that needs more shared memory than there is is refused with both figures", "[C44]") {
  if (!gpu::device().emulated) return;
  const Problem p = problem(1, 1, 3, 5, 128, Mask::none());
  // By hand, in floats: rows of Q and K with one of padding or four, V without; split_keys has 16 rows, and four warps'
  // m, l and O of them.
  const std::pair<const char*, std::size_t> shared_bytes[] = {
      {"shuffle", 4 * (64 * 129 + 32 * 129 + 32 * 128)},
      {"split_keys", 4 * (16 * 132 + 64 * 132 + 64 * 128 + 4 * 16 * (1 + 1 + 128))},
      {"register_tiles", 4 * (64 * 132 + 64 * 132 + 64 * 128)},
      {"exp2", 4 * (64 * 132 + 64 * 132 + 64 * 128)}};
  // Without opting in, and a byte too few for each.
  for (const std::size_t limit : {49152, 65919, 65920, 100351, 100352, 108287, 108288}) {
    gpu::EmulatorOptions options = gpu::emulator_options();
    options.shared_memory_limit = limit;
    const gpu::EmulatorOptionsScope scope(options);
    for (const auto& [name, bytes] : shared_bytes) {
      CAPTURE(name, limit);
      const stage::ForwardKernel kernel = kernel_named(name);
      if (bytes <= limit) {
        CHECK_NOTHROW(kernel.require(p));
        continue;
      }
      CHECK_THROWS_AS(kernel.require(p), stage::Refused);
      CHECK_THROWS_WITH(kernel.require(p),
                        ContainsText(std::string(name) + " needs " + std::to_string(bytes) + " bytes") &&
                            ContainsText("allowed") && ContainsText(std::to_string(limit)));
    }
  }
}

TEST_CASE("negative scales, a scale of 0, and scales that leave one key") {
  for (const stage::ForwardKernel& kernel : warp_shuffle::shuffle_kernels()) {
    for (const float scale : {-0.25f, 0.0f, 1.5f, 1e8f, -1e10f, 1e30f}) {
      for (Problem p : {problem(2, 1, 20, 70, 64, Mask::none()), problem(1, 1, 90, 70, 32, Mask::causal())}) {
        p.softmax_scale = scale;
        check_case(kernel, p);
      }
    }
  }
}

TEST_CASE("scores of 10000 and more, of both signs") {
  for (const stage::ForwardKernel& kernel : warp_shuffle::shuffle_kernels()) {
    for (const float scale : {0.25f, -0.25f}) {
      for (Problem p : {problem(1, 1, 20, 70, 64, Mask::none()), problem(1, 1, 70, 70, 32, Mask::causal())}) {
        p.softmax_scale = scale;
        check_case(kernel, p, InputKind::huge_scores);
      }
    }
  }
}

TEST_CASE("the same bits under every schedule") {
  for (const stage::ForwardKernel& kernel : warp_shuffle::shuffle_kernels()) {
    check_case(kernel, problem(1, 1, 270, 60, 32, Mask::window(40, 3)), InputKind::rising_scores, true);
  }
}

TEST_CASE("rows that see nothing, alone in a tile and beside others", "[C01]") {
  for (const int head_dim : {32, 128}) {
    const Problem p = problem(1, 1, 300, 20, head_dim, Mask::causal());
    for (const stage::ForwardKernel& kernel : warp_shuffle::shuffle_kernels()) {
      INFO(kernel.name);
      const Outcome outcome = run(kernel, p);
      for (int query = 0; query < p.seqlen_q; ++query) {
        const bool empty = query < 280;
        INFO("query " << query);
        REQUIRE((outcome.lse[query] == -INFINITY) == empty);
        for (int c = 0; c < head_dim; ++c) {
          const float o = outcome.o[query * head_dim + c];
          REQUIRE(std::isfinite(o));
          REQUIRE((o == 0) == empty);
        }
      }
    }
  }
}

TEST_CASE("strides that are no multiples of 4 are refused where four floats are loaded at once", "[C18]") {
  const Problem dense = problem(2, 2, 20, 40, 32, Mask::causal());
  const Strides odd[] = {{5000, 66, 33, 1}, {5000, 66, 32, 1}, {5001, 64, 32, 1}};
  for (const Strides& strides : odd) {
    for (int array = 0; array < 4; ++array) {
      Problem p = dense;
      std::optional<Strides>* fields[] = {&p.q_strides, &p.k_strides, &p.v_strides, &p.o_strides};
      *fields[array] = strides;
      CAPTURE(p.describe());
      for (const std::string name : {"split_keys", "register_tiles", "exp2"}) {
        CHECK_THROWS_AS(kernel_named(name).require(p), stage::Refused);
        CHECK_THROWS_WITH(kernel_named(name).require(p), ContainsText(name) && ContainsText("multiples of 4"));
      }
      check_case(kernel_named("shuffle"), p);
    }
  }
  Problem p = dense;
  p.q_strides = p.k_strides = p.v_strides = p.o_strides = Strides{5000, 68, 32, 1};
  for (const stage::ForwardKernel& kernel : warp_shuffle::shuffle_kernels()) check_case(kernel, p);
}

TEST_CASE("no barrier can be left out unnoticed") {
  if (!gpu::device().checked) return;
  // Three tiles of queries and of keys or more, in all kernels.
  const Problem p = problem(1, 1, 514, 66, 32, Mask::none());
  for (const stage::ForwardKernel& kernel : warp_shuffle::shuffle_kernels()) {
    gpu::reset_synchronisations_seen();
    run(kernel, p);
    const std::vector<gpu::SourceLine> lines = gpu::synchronisations_seen();
    CHECK(lines.size() == (kernel.name == "split_keys" ? 4 : 2));
    for (const gpu::SourceLine& line : lines) {
      gpu::EmulatorOptions options = gpu::emulator_options();
      options.without = {line};
      const gpu::EmulatorOptionsScope without(options);
      INFO(kernel.name << " without " << line.file << ":" << line.line);
      std::string report;
      try {
        run(kernel, p);
      } catch (const gpu::Error& error) {
        report = error.what();
      }
      // The kernel's own lines, and not those of the float4 that it copies.
      CHECK_THAT(report, ContainsText(".cuh:"));
      CHECK(report.find("language.hpp") == std::string::npos);
    }
  }
}
