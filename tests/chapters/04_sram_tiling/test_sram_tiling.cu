/// \file
/// The tiled kernels beyond the forward suite: exact bytes of every tile, memory, the limit of shared memory, bank
/// conflicts, needed barriers.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "chapters/04_sram_tiling/kernels.hpp"
#include "chapters/04_sram_tiling/sweep.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/forward_run.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::Mask;
using attention::Problem;
using sram_tiling::DefaultTile;
using sram_tiling::kv_outer;
using sram_tiling::q_outer;
using sram_tiling::SweptTile;
using sram_tiling::TileShape;
using sram_tiling::TileShared;
using suite::Outcome, suite::problem, suite::run;

gpu::EmulatorOptions with_shared_memory_limit(std::size_t bytes) {
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.shared_memory_limit = bytes;
  return options;
}

/// The chapter's kernels for head_dim 32, where they are quick to run: 64 queries and 64 keys a tile.
std::vector<stage::ForwardKernel> both_orders() {
  return {kv_outer<DefaultTile<32>>("kv_outer"), q_outer<DefaultTile<32>>("q_outer")};
}

}  // namespace

TEST_CASE("every tile of the sweep is right and moves the bytes of the formula") {
  // Lengths off and on the tiles, several heads to one of K and V, several batch entries, hidden tiles.
  Problem batch = problem(2, 1, 33, 70, 32, Mask::causal());
  batch.batch = 2;
  const Problem problems[] = {batch, problem(1, 1, 130, 17, 32, Mask::window(40, 0)),
                              problem(1, 1, 32, 128, 32, Mask::none())};
  for (const Problem& p : problems) {
    stage::ForwardCase forward(p, 1);
    for (const SweptTile& tile : sram_tiling::swept_tiles<32>()) {
      for (const stage::ForwardKernel& kernel : {tile.kv_outer, tile.q_outer}) {
        INFO(kernel.name << ", " << p.describe());
        if (tile.shared_bytes > gpu::shared_memory_limit()) continue;
        const stage::Row row = stage::run_admitted(kernel, forward);  // loads and stores apart, where they are counted
        CHECK(row.verdict == "right");
        CHECK(row.bytes_counted.has_value() == gpu::device().checked);
        if (row.bytes_counted) CHECK(*row.bytes_counted == *row.bytes_predicted);
      }
    }
  }
}

TEST_CASE("the formulas, worked out by hand") {
  // 6 heads in all. 70 queries and 100 keys in tiles of 32 and 64: 3 tiles of Q, 2 of K and V. In elements a head:
  Problem p = problem(3, 1, 70, 100, 32, Mask::none());
  p.batch = 2;
  const auto elements = [](double bytes) { return bytes / (6 * 4); };
  const attention::Traffic q_outside = q_outer<TileShape<32, 32, 64>>("").traffic(p);
  CHECK(elements(q_outside.loaded) == 2240 + 3 * 6400);  // Q 70 · 32; K and V 2 · 100 · 32, three times
  CHECK(elements(q_outside.stored) == 2240 + 70);        // O and LSE
  const attention::Traffic kv_outside = kv_outer<TileShape<32, 32, 64>>("").traffic(p);
  CHECK(elements(kv_outside.loaded) == 6400 + 2 * (2240 + 2240 + 70 + 70));  // K and V; Q, O, m and l, twice
  CHECK(elements(kv_outside.stored) == 3 * (2240 + 70 + 70));                // O, m and l, neutral and twice
}

TEST_CASE("neither loop order loads less for a causal mask") {
  // Chapter 05 skips the tiles that the mask hides. Here each is visited.
  for (const stage::ForwardKernel& kernel : both_orders()) {
    const Problem full = problem(2, 1, 300, 300, 32, Mask::none()),
                  causal = problem(2, 1, 300, 300, 32, Mask::causal());
    CHECK(kernel.traffic(full).total() == kernel.traffic(causal).total());
  }
}

TEST_CASE("memory grows with the length, not with its square") {
  for (const stage::ForwardKernel& kernel : both_orders()) {
    INFO(kernel.name);
    const bool keeps_l = kernel.name == "kv_outer";
    std::vector<double> peaks;
    for (const int length : {64, 128, 256}) {
      const Problem p = problem(2, 1, length, length, 32, Mask::none());
      CHECK(kernel.workspace_bytes(p) == (keeps_l ? 2 * sizeof(float) * static_cast<std::size_t>(length) : 0));
      stage::ForwardCase forward(p, 1);
      const stage::Row row = stage::run_admitted(kernel, forward);
      REQUIRE(row.verdict == "right");
      peaks.push_back(row.peak_bytes.value());
    }
    // Twice as many rows more, twice as many bytes more. A square would make it four times.
    CHECK(peaks[2] - peaks[1] == 2 * (peaks[1] - peaks[0]));

    const Problem longest = problem(2, 1, 1 << 17, 1 << 17, 32, Mask::causal());
    CHECK_NOTHROW(stage::admit(kernel, longest));
    CHECK(kernel.workspace_bytes(longest) <= std::size_t{1} << 20);
  }
}

TEST_CASE("a tile that does not fit is refused with the bytes required and allowed", "[C44]") {
  // By hand: Q, K, V and S with their padding, and three floats a row.
  static_assert(sizeof(TileShared<TileShape<64, 128, 64>>) == 4 * (128 * 64 + 64 * 65 + 64 * 64 + 128 * 65 + 3 * 128));
  static_assert(sizeof(TileShared<TileShape<64, 128, 64>>) == 100608);
  static_assert(sizeof(TileShared<TileShape<64, 128, 128>>) == 166400);
  static_assert(sizeof(TileShared<TileShape<128, 128, 128>>) == 264704);

  struct Sized {
    std::size_t bytes;
    int head_dim;
    stage::ForwardKernel kernel;
  };
  const std::vector<Sized> kernels = {{100608, 64, q_outer<TileShape<64, 128, 64>>("small")},
                                      {166400, 64, kv_outer<TileShape<64, 128, 128>>("large")},
                                      {264704, 128, q_outer<TileShape<128, 128, 128>>("too_large")},
                                      {264704, 128, kv_outer<TileShape<128, 128, 128>>("too_large_as_well")}};
  const auto check_all = [&] {
    const std::size_t limit = gpu::shared_memory_limit();
    for (const Sized& sized : kernels) {
      INFO(sized.kernel.name << ", limit " << limit);
      const Problem p = problem(1, 1, 3, 5, sized.head_dim, Mask::none());
      if (sized.bytes <= limit) {
        CHECK(std::isfinite(run(sized.kernel, p).lse.front()));
        continue;
      }
      CHECK_THROWS_AS(stage::admit(sized.kernel, p), stage::Refused);
      CHECK_THROWS_WITH(stage::admit(sized.kernel, p),
                        ContainsText(sized.kernel.name + " needs " + std::to_string(sized.bytes) + " bytes") &&
                            ContainsText("allowed") && ContainsText(": " + std::to_string(limit)));
    }
  };
  check_all();
  if (!gpu::device().emulated) return;
  // Without opting in; sm_86, sm_89 and sm_120; sm_80; sm_90. And a byte less than the smallest of the tiles needs.
  for (const std::size_t limit : {49152, 101376, 166912, 232448, 100607}) {
    const gpu::EmulatorOptionsScope scope(with_shared_memory_limit(limit));
    REQUIRE(gpu::shared_memory_limit() == limit);
    check_all();
  }
}

TEST_CASE("the launch refuses what require would have refused", "[C44]") {
  if (!gpu::device().emulated) return;
  const gpu::EmulatorOptionsScope scope(with_shared_memory_limit(49152));
  stage::ForwardKernel kernel = q_outer<TileShape<64, 128, 64>>("q_outer");
  kernel.require = [](const Problem&) {};
  CHECK_THROWS_WITH(run(kernel, problem(1, 1, 3, 5, 64, Mask::none())),
                    ContainsText("100608 bytes") && ContainsText("49152"));
}

TEST_CASE("rows that see nothing give zeros, in tiles of their own and beside others", "[C01]") {
  // 80 rows more than keys: the first tile of Q sees nothing at all, the second has rows of both kinds.
  const Problem p = problem(1, 1, 150, 70, 32, Mask::causal());
  for (const stage::ForwardKernel& kernel : both_orders()) {
    const Outcome outcome = run(kernel, p);
    for (int query = 0; query < 150; ++query) {
      INFO(kernel.name << ", query " << query);
      REQUIRE((outcome.lse[query] == -INFINITY) == (query < 80));
      for (int c = 0; c < p.head_dim; ++c) {
        const float o = outcome.o[query * p.head_dim + c];
        REQUIRE(std::isfinite(o));
        REQUIRE((o == 0) == (query < 80));
      }
    }
  }
}

TEST_CASE("no barrier can be left out unnoticed") {
  if (!gpu::device().checked) return;
  // Three tiles in both loops, and no keys at all: then ℓ = 0 has to reach the threads that divide by it.
  const Problem problems[] = {problem(1, 1, 130, 150, 32, Mask::causal()), problem(1, 1, 130, 0, 32, Mask::none())};
  for (const stage::ForwardKernel& kernel : both_orders()) {
    gpu::reset_synchronisations_seen();
    for (const Problem& p : problems) CHECK_NOTHROW(run(kernel, p));
    const std::vector<gpu::SourceLine> lines = gpu::synchronisations_seen();
    REQUIRE(lines.size() == 5);
    for (const gpu::SourceLine& line : lines) {
      gpu::EmulatorOptions options = gpu::emulator_options();
      options.without = {line};
      const gpu::EmulatorOptionsScope scope(options);
      INFO(kernel.name << " without " << line.file << ":" << line.line);
      bool caught = false;
      for (const Problem& p : problems) {
        try {
          run(kernel, p);
        } catch (const gpu::Error& error) {
          caught = caught || ContainsText(".cuh:").match(error.what());  // the race, by its lines
        }
      }
      CHECK(caught);
    }
  }
}

TEST_CASE("the padding takes the bank conflicts away") {
  if (!gpu::device().checked) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope scope(options);
  const auto counts_of = [](const stage::ForwardKernel& kernel) {
    gpu::reset_counts();
    run(kernel, problem(1, 1, 64, 128, 64, Mask::none()));
    const std::vector<gpu::KernelCounts> counts = gpu::kernel_counts();
    REQUIRE(counts.size() == 1);
    return counts.front();
  };
  const gpu::KernelCounts padded = counts_of(q_outer<DefaultTile<64>>("q_outer"));
  const gpu::KernelCounts unpadded = counts_of(q_outer<DefaultTile<64, 0>>("q_outer_unpadded"));
  CHECK(padded.shared_loads.conflicts == 0);
  CHECK(padded.shared_stores.conflicts == 0);
  CHECK(padded.shared_loads.wavefronts == padded.shared_loads.requests);
  CHECK(unpadded.shared_loads.requests == padded.shared_loads.requests);
  CHECK(unpadded.shared_loads.bytes == padded.shared_loads.bytes);
  // K by columns: 2 tiles · 64 · 64 scores, 32 of them a warp, 64 columns each. 32 words of one bank: 31 too many.
  const std::uint64_t loads_of_k = 2 * (64 * 64 / 32) * 64;
  // S by columns: 2 tiles, 2 warps of rows, 64 keys, read at least for the maximum.
  const std::uint64_t loads_of_s = 2 * 2 * 64;
  CHECK(unpadded.shared_loads.conflicts >= 31 * (loads_of_k + loads_of_s));
  CHECK(unpadded.shared_loads.conflicts <= 31 * (loads_of_k + 3 * loads_of_s));
  CHECK(unpadded.shared_stores.conflicts == 31 * loads_of_s);  // P, once
}

TEST_CASE("a head_dim that the kernels are not compiled for is refused") {
  for (const stage::ForwardKernel& kernel : sram_tiling::tiled_kernels()) {
    CHECK_THROWS_WITH(kernel.require(problem(1, 1, 4, 4, 48, Mask::none())), ContainsText("48"));
  }
}
