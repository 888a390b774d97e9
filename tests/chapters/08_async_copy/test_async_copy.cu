/// \file
/// The three kernels beyond the forward suite: bytes, tiles, banks, refusals, scales, lazy rescaling, needed waits and
/// barriers.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "chapters/08_async_copy/kernels.hpp"
#include "chapters/08_async_copy/model.hpp"
#include "common/attention/accuracy.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/sixteen_bit_kernels.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using async_copy::async_copy_kernels;
using attention::ElementType;
using attention::InputKind;
using attention::KeyRange;
using attention::Mask;
using attention::Problem;
using attention::Strides;
using suite::check_case, suite::Outcome, suite::problem, suite::run;

constexpr ElementType kTypes[] = {ElementType::fp16, ElementType::bf16};

/// AsyncWork against what a block does more for one tile of keys more.
template <int kHeadDim>
void check_shared_counts() {
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope counting(options);
  const std::vector<async_copy::AsyncWork> works = async_copy::async_works<kHeadDim>();
  const std::vector<stage::ForwardKernel> kernels = async_copy_kernels();
  REQUIRE(works.size() == kernels.size());
  for (std::size_t i = 0; i < works.size(); ++i) {
    const async_copy::AsyncWork& work = works[i];
    INFO(work.kernel << ", head_dim " << kHeadDim);
    REQUIRE(work.kernel == kernels[i].name);
    const auto counted = [&](int tiles) {
      run(kernels[i], problem(ElementType::bf16, 1, 1, work.br, tiles * work.bc, kHeadDim, Mask::none()));
      return gpu::kernel_counts().at(0);
    };
    const gpu::KernelCounts one = counted(1), two = counted(2);
    CHECK(one.blocks == 1);
    const auto loads = two.shared_loads.requests - one.shared_loads.requests;
    CHECK(loads == std::uint64_t(work.warps) * (work.loads_q + work.loads_kv));
    CHECK(two.shared_loads.wavefronts - one.shared_loads.wavefronts == loads * 4);
    const auto copies = two.shared_stores.requests - one.shared_stores.requests;
    CHECK(copies == std::uint64_t(work.copied_bytes) / 512);  // 16 bytes a lane
    CHECK(two.shared_stores.wavefronts - one.shared_stores.wavefronts == copies * 4);
    CHECK(two.barriers - one.barriers == 1);
    CHECK(two.shared_loads.conflicts == 0);
    CHECK(two.shared_stores.conflicts == 0);
  }
}

/// The decisions of steps 2 and 3 against the rows' own keys, tile by tile.
template <int kHeadDim>
void check_tiles() {
  using Tile = async_copy::RowTiles<gpu::bf16, kHeadDim>;
  const Mask masks[] = {Mask::none(),        Mask::causal(),      Mask::window(0, 0),
                        Mask::window(40, 0), Mask::window(3, 70), Mask::window(100, attention::kUnlimited),
                        Mask::window(0, 200)};
  for (const Mask mask : masks)
    for (const int seqlen_q : {1, 63, 64, 65, 200, 300, 520})
      for (const int seqlen_kv : {0, 1, 16, 64, 65, 150, 300}) {
        CAPTURE(mask.name(), seqlen_q, seqlen_kv);
        async_copy::TileCounts expected;
        for (int first = 0; first < seqlen_q; first += Tile::kBr) {
          const int rows = std::min(Tile::kBr, seqlen_q - first);
          for (int key = 0; key < seqlen_kv; key += Tile::kBc) {
            bool seen = false, seen_whole = true;
            // A warp's last row that is a query, and no warp passes over what one of its rows sees.
            for (int query = first; query < first + rows; ++query) {
              const KeyRange keys = attention::visible_keys(mask, query, seqlen_q, seqlen_kv);
              const int of_tile = std::max(0, std::min(keys.end, key + Tile::kBc) - std::max(keys.begin, key));
              seen = seen || of_tile > 0;
              seen_whole = seen_whole && of_tile == Tile::kBc;
              const int warp_row = first + (query - first) / Tile::kWarpRows * Tile::kWarpRows;
              const int warp_end =
                  attention::keys_of_any(mask, warp_row, warp_row + Tile::kWarpRows - 1, seqlen_q, seqlen_kv).end;
              if (of_tile > 0) REQUIRE(key < warp_end);
            }
            expected.all += 1;
            expected.visited += seen;
            expected.masked += seen && !seen_whole;
          }
        }
        const async_copy::TileCounts counts = async_copy::count_tiles<Tile>(mask, seqlen_q, seqlen_kv);
        REQUIRE(counts.all == expected.all);
        REQUIRE(counts.visited == expected.visited);
        REQUIRE(counts.masked == expected.masked);
        REQUIRE(counts.of_warps == counts.visited * Tile::kWarps);
        REQUIRE(counts.skipped_by_warps < counts.of_warps + 1);
        if (mask == Mask::none()) REQUIRE(counts.skipped_by_warps == 0);
      }
}

/// A problem whose scores are given: Q is 1 in column 0, K holds the scores there; the scale is ln 2, so that they are
/// exponents of 2.
Problem exponents_problem(ElementType type, int seqlen_q, int seqlen_kv) {
  Problem p = problem(type, 1, 1, seqlen_q, seqlen_kv, 64, Mask::none());
  p.softmax_scale = std::log(2.0f);
  return p;
}
attention::Inputs exponents(const Problem& p, const std::function<float(int)>& score_of_key, float v_times) {
  attention::Inputs inputs = attention::make_inputs(p, InputKind::normal, 5);
  for (std::size_t i = 0; i < inputs.q.size(); ++i) inputs.q[i] = i % 64 == 0 ? 1.0f : 0.0f;
  for (std::size_t i = 0; i < inputs.k.size(); ++i) {
    inputs.k[i] = i % 64 == 0 ? attention::rounded(score_of_key(static_cast<int>(i / 64)), p.element_type) : 0.0f;
  }
  for (float& v : inputs.v) v = attention::rounded(v * v_times, p.element_type);
  return inputs;
}

/// What step 3 does with these scores, by the model.
async_copy::RescaleCounts model_of(const Problem& p, const attention::Inputs& inputs) {
  std::vector<float> scores;
  for (std::size_t i = 0; i < inputs.k.size(); i += 64) scores.push_back(inputs.k[i]);
  return async_copy::count_rescales(scores, 1, p.seqlen_kv, 64, *p.softmax_scale * kernel::kLog2E);
}

void check_against_reference(const stage::ForwardKernel& kernel, const Problem& p, const attention::Inputs& inputs) {
  const Outcome outcome = run(kernel, p, inputs);
  const attention::Verdict verdict = attention::judge_forward(p, inputs.q, inputs.k, inputs.v, outcome.o, outcome.lse);
  INFO(kernel.name << ", " << p.describe() << ": " << verdict.sentence);
  CHECK(verdict.right);
  for (const float o : outcome.o) REQUIRE(std::isfinite(o));
}

}  // namespace

TEST_CASE("right, with the predicted bytes, in both types and all head_dims") {
  int turn = 0;
  for (const ElementType type : kTypes) {
    for (const int head_dim : {64, 128, 256}) {
      const Problem problems[] = {
          problem(type, 1, 1, 1, 1, head_dim, Mask::none()),
          problem(type, 2, 1, 140, 200, head_dim, Mask::causal()),       // warps that pass over tiles
          problem(type, 1, 1, 140, 150, head_dim, Mask::window(9, 0)),   // tiles of keys that are nobody's
          problem(type, 1, 1, 300, 30, head_dim, Mask::causal()),        // a tile of rows that see nothing
          problem(type, 1, 1, 70, 330, head_dim, Mask::window(70, 40)),  // both edges
      };
      for (Problem p : problems) {
        p.batch = p.heads_q == 1 && p.seqlen_q == 1 ? 3 : 1;
        // Each kernel gets each problem, but not in each type and head_dim.
        const std::vector<stage::ForwardKernel> kernels = async_copy_kernels();
        const stage::ForwardKernel& kernel = kernels[turn++ % kernels.size()];
        INFO(kernel.name << ", " << p.describe());
        check_case(kernel, p);
      }
      ++turn;
    }
  }
}

TEST_CASE("the bytes of a causal case, by hand") {
  // Step 1 has three tiles of 64 queries: the first sees 64 keys, the second 128, the third all 130. Steps 2 and 3 have
  // two of 128: the first sees 128 keys, the second all 130.
  const Problem p = problem(ElementType::bf16, 1, 1, 130, 130, 128, Mask::causal());
  const std::vector<stage::ForwardKernel> kernels = async_copy_kernels();
  CHECK(kernels[0].traffic(p).loaded == 2 * 128 * (130 + 2 * (64 + 128 + 130)));
  CHECK(kernels[1].traffic(p).loaded == 2 * 128 * (130 + 2 * (128 + 130)));
  CHECK(kernels[2].traffic(p).loaded == 2 * 128 * (130 + 2 * (128 + 130)));
  for (const stage::ForwardKernel& kernel : kernels) CHECK(kernel.traffic(p).stored == 130 * (2 * 128 + 4));
}

TEST_CASE("instructions on shared memory are as many as the model says, without bank conflicts") {
  if (!gpu::device().checked) return;
  check_shared_counts<64>();
  check_shared_counts<128>();
  check_shared_counts<256>();
}

TEST_CASE("the model's cycles, by hand") {
  const std::vector<async_copy::AsyncWork> works = async_copy::async_works<128>();
  // 8 steps of 16 columns · 8 tiles of 8 keys, as many for PV; of K and V a load serves two products a row tile.
  CHECK(works[0].products == 128);
  CHECK(works[0].loads_q + works[0].loads_kv == 64);
  CHECK(works[0].data_cycles() == 4 * 64 * 4 + 256);
  CHECK(works[1].products == 256);
  CHECK(works[1].loads_q == 16);
  CHECK(works[1].loads_kv == 64);
  // 4 warps · 256 products · 4 cycles, on four tensor cores; 4 wavefronts a load, and copies of 2 · 64 rows of 256
  // bytes.
  CHECK(works[1].tensor_cycles() == 1024);
  CHECK(works[1].data_cycles() == 4 * 80 * 4 + 256);
  CHECK(works[1].bound() == 1024.0 / 1536);
  // A lane has 2 · 2 rows of 16 numbers of S: 64 exponentials, and 4 for the rows. Half a cycle for one of each lane.
  CHECK(works[1].exponential_cycles() == 4 * 68 * 2);
  CHECK(works[2].exponential_cycles() == 4 * 64 * 2);
  // Q, and two tiles each of K and V.
  CHECK(works[1].shared_bytes == 256 * (128 + 4 * 64));
  CHECK(works[2].other_floating == works[1].other_floating - 128);
  CHECK(async_copy::async_works<64>()[1].loads_q == 0);
  CHECK(async_copy::async_works<256>()[1].row_tiles == 1);
}

TEST_CASE("steps 2 and 3 visit the tiles in which a row sees a key, and warps pass over none that they see") {
  check_tiles<64>();
  check_tiles<128>();
  check_tiles<256>();
  // Causal, N = 1024, by hand: eight blocks of 128 rows visit 2, 4, … 16 tiles; of the last two, which are masked, the
  // warps see 1, 1, 2, 2.
  const auto counts = async_copy::count_tiles<async_copy::RowTiles<gpu::bf16, 128>>(Mask::causal(), 1024, 1024);
  CHECK(counts.visited == 72);
  CHECK(counts.masked == 16);
  CHECK(counts.of_warps == 4 * 72);
  CHECK(counts.skipped_by_warps == 8 * 2);
}

TEST_CASE("negative scales, a scale of 0, and scales that leave one key") { suite::check_scales(async_copy_kernels()); }

TEST_CASE("scores of 10000 and more, of both signs") { suite::check_huge_scores(async_copy_kernels()); }

TEST_CASE("the same bits under every schedule and in both deliveries") {
  for (const stage::ForwardKernel& kernel : async_copy_kernels()) {
    check_case(kernel, problem(ElementType::fp16, 1, 1, 70, 330, 64, Mask::window(270, 3)), InputKind::rising_scores,
               true);
  }
}

TEST_CASE("rows that see nothing, alone in a tile and beside others", "[C01]") {
  for (const int head_dim : {64, 256}) {
    const Problem p = problem(ElementType::bf16, 1, 1, 300, 20, head_dim, Mask::causal());
    for (const stage::ForwardKernel& kernel : async_copy_kernels()) {
      INFO(kernel.name);
      const Outcome outcome = run(kernel, p);
      for (int query = 0; query < p.seqlen_q; ++query) {
        const bool empty = query < 280;
        INFO("query " << query);
        REQUIRE((outcome.lse[query] == -INFINITY) == empty);
        for (int c = 0; c < p.head_dim; ++c) {
          const float o = outcome.o[query * p.head_dim + c];
          REQUIRE(std::isfinite(o));
          if (empty) REQUIRE(o == 0);
        }
      }
    }
  }
}

TEST_CASE("scores that grow by just under and by just over the threshold, tile after tile") {
  // Six tiles of 64 keys. In the last tile's units all tiles but one or two have next to no weight, so each sequence is
  // run in both directions, and from the middle.
  const auto staircase = [](float step, int from) {
    return [step, from](int key) { return step * static_cast<float>(std::abs(key / 64 - from)) - float(key % 3) / 4; };
  };
  const std::vector<stage::ForwardKernel> kernels = async_copy_kernels();
  for (const ElementType type : kTypes) {
    const Problem p = exponents_problem(type, 20, 6 * 64);
    struct Expected {
      float step;
      int from, rescaled;
    };
    // Under 8 in one step, but twice that is more: every second tile. Just over: every tile. Well under: the sum of
    // many small steps counts.
    for (const Expected& e : {Expected{7.75f, 0, 3}, Expected{8.25f, 0, 6}, Expected{2.5f, 0, 2}, Expected{8.0f, 0, 3},
                              Expected{8.25f, 5, 1}, Expected{7.75f, 3, 1}}) {
      CAPTURE(attention::name(type), e.step, e.from);
      const attention::Inputs inputs = exponents(p, staircase(e.step, e.from), 1);
      const async_copy::RescaleCounts counts = model_of(p, inputs);
      CHECK(counts.rescaled == e.rescaled);
      CHECK(counts.largest_p <= 256.001f);
      for (const stage::ForwardKernel& kernel : kernels) check_against_reference(kernel, p, inputs);
    }
  }
}

TEST_CASE("P up to 256 fits fp16, and so do sums of it beyond its range") {
  // One key of weight 1, then every key 2^7.75 times as much: l and O pass 65504 in fp32, never in fp16.
  const Problem p = exponents_problem(ElementType::fp16, 4, 6 * 64);
  const attention::Inputs inputs = exponents(
      p, [](int key) { return key == 0   ? 0.0f
                              : key < 64 ? -20.0f
                                         : 7.75f; }, 300);
  const async_copy::RescaleCounts counts = model_of(p, inputs);
  CHECK(counts.rescaled == 1);
  CHECK(counts.largest_p > 200);
  for (const stage::ForwardKernel& kernel : async_copy_kernels()) check_against_reference(kernel, p, inputs);
}

TEST_CASE("rescalings are counted by hand") {
  const float inf = std::numeric_limits<float>::infinity();
  // Two rows, three tiles of two keys. Row 1 sees nothing at first; what one row needs, both get.
  const std::vector<float> scores = {0,    1,    5,    5, 9, 9.5f,  //
                                     -inf, -inf, -inf, 2, 3, 3};
  const async_copy::RescaleCounts counts = async_copy::count_rescales(scores, 2, 6, 2, 1);
  CHECK(counts.tiles == 3);
  CHECK(counts.grown == 3);
  CHECK(counts.rescaled == 2);  // at the start, and for row 1's first key
  CHECK(counts.largest_p == std::exp2(4.5f));
}

TEST_CASE("element types and head_dims that are not taken are refused by name") {
  for (const stage::ForwardKernel& kernel : async_copy_kernels()) {
    const auto refused = [&kernel](const Problem& p) {
      try {
        stage::require_taken(kernel, p);
      } catch (const stage::Refused& refusal) {
        return std::string(refusal.what());
      }
      return std::string("nothing");
    };
    const std::string fp32 = refused(problem(ElementType::fp32, 1, 1, 64, 64, 64, Mask::none()));
    CHECK_THAT(fp32, ContainsText(kernel.name) && ContainsText("fp32") && ContainsText("bf16"));
    const std::string small = refused(problem(ElementType::bf16, 1, 1, 64, 64, 32, Mask::none()));
    CHECK_THAT(small, ContainsText(kernel.name) && ContainsText("32") && ContainsText("256"));
  }
}

TEST_CASE("strides that are no multiples of 8 are refused", "[C18]") {
  const Problem dense = problem(ElementType::bf16, 2, 2, 20, 40, 64, Mask::causal());
  const Strides odd[] = {{8000, 136, 68, 1}, {8000, 132, 64, 1}, {8004, 128, 64, 1}};
  for (const stage::ForwardKernel& kernel : async_copy_kernels()) {
    for (const Strides& strides : odd) {
      for (int array = 0; array < 4; ++array) {
        Problem p = dense;
        p.batch = 2;
        std::optional<Strides>* fields[] = {&p.q_strides, &p.k_strides, &p.v_strides, &p.o_strides};
        *fields[array] = strides;
        CAPTURE(p.describe(), array);
        CHECK_THROWS_AS(stage::require_taken(kernel, p), stage::Refused);
        CHECK_THROWS_WITH(stage::require_taken(kernel, p), ContainsText(kernel.name) && ContainsText("multiples of 8"));
      }
    }
    Problem p = dense;
    p.q_strides = p.k_strides = p.v_strides = p.o_strides = Strides{8000, 144, 72, 1};
    check_case(kernel, p);
  }
}

TEST_CASE("a block that needs more shared memory than there is is refused with both figures") {
  if (!gpu::device().emulated) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.shared_memory_limit = 101376;  // sm_86, sm_89, sm_120
  const gpu::EmulatorOptionsScope small(options);
  const Problem p = problem(ElementType::fp16, 1, 1, 64, 64, 128, Mask::none());
  const Problem wide = problem(ElementType::bf16, 1, 1, 64, 64, 256, Mask::none());
  const std::vector<stage::ForwardKernel> kernels = async_copy_kernels();
  const auto refused = [&kernels](std::size_t i, const Problem& q, const char* needed, const char* limit) {
    CHECK_THROWS_AS(stage::require_taken(kernels[i], q), stage::Refused);
    CHECK_THROWS_WITH(stage::require_taken(kernels[i], q),
                      ContainsText(kernels[i].name) && ContainsText(needed) && ContainsText(limit));
  };
  // 5 · 64 rows of 256 bytes, 81920, and 128 + 4 · 64 rows, 98304, fit. Of 512 bytes a row neither does.
  for (const stage::ForwardKernel& kernel : kernels) CHECK_NOTHROW(stage::require_taken(kernel, p));
  refused(0, wide, "163840", "101376");
  for (const std::size_t i : {1, 2}) refused(i, wide, "196608", "101376");

  options.shared_memory_limit = 98303;
  const gpu::EmulatorOptionsScope smaller(options);
  CHECK_NOTHROW(stage::require_taken(kernels[0], p));
  for (const std::size_t i : {1, 2}) {
    refused(i, p, "98304", "98303");
    CHECK_NOTHROW(stage::require_taken(kernels[i], problem(ElementType::fp16, 1, 1, 64, 64, 64, Mask::none())));
  }
}

TEST_CASE("a tile's copies are on their way while the tile before is computed") {
  if (!gpu::device().emulated) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.record_timeline = true;
  const gpu::EmulatorOptionsScope recording(options);
  for (const stage::ForwardKernel& kernel : async_copy_kernels()) {
    run(kernel, problem(ElementType::bf16, 1, 1, 64, 5 * 64, 64, Mask::none()));
    std::vector<std::uint64_t> started, waited;  // of warp 0: groups, and the first wait after each
    for (const gpu::TimelineEvent& event : gpu::emulator_timeline()) {
      if (event.warp != 0) continue;
      if (event.kind == gpu::TimelineEvent::Kind::issue) started.push_back(event.step);
      if (event.kind == gpu::TimelineEvent::Kind::wait_begin && waited.size() < started.size()) {
        waited.resize(started.size(), event.step);
      }
    }
    INFO(kernel.name);
    REQUIRE(started.size() == 6);  // Q, and five tiles
    REQUIRE(waited.size() == 6);
    CHECK(started[1] == waited[1]);  // nothing to do before the first tile is there
    for (std::size_t tile = 1; tile < 5; ++tile) {
      CHECK(waited[tile + 1] > started[tile + 1]);
      if (tile < 4) CHECK(started[tile + 2] > waited[tile + 1]);  // never more than one tile on its way
    }
  }
}

TEST_CASE("no wait and no barrier can be left out unnoticed") {
  if (!gpu::device().checked) return;
  // More than 2 · stages tiles of keys, so that each buffer is loaded again after it has been read, and twice.
  static_assert(async_copy::RowTiles<gpu::bf16, 64>::kStages == 2);
  for (const int head_dim : {64, 256}) {
    const Problem p = problem(ElementType::bf16, 1, 1, 66, 270, head_dim, Mask::none());
    // A block none of whose rows sees a key: what guards the end of a block that has visited no tile.
    const Problem nothing_seen = problem(ElementType::bf16, 1, 1, 132, 3, head_dim, Mask::causal());
    for (const stage::ForwardKernel& kernel : async_copy_kernels()) {
      gpu::reset_synchronisations_seen();
      run(kernel, p);
      run(kernel, nothing_seen);
      const std::vector<gpu::SourceLine> lines = gpu::synchronisations_seen();
      // At head_dim 64: Q's wait and barrier, the loop's, and those at the end (step 1: no barrier; else write_rows'
      // own).
      CHECK(static_cast<int>(lines.size()) == (kernel.name == "double_buffer" ? 5 : 7) - (head_dim == 64 ? 0 : 2));
      int unnoticed = 0;
      for (const gpu::SourceLine& line : lines) {
        INFO(kernel.name << ", head_dim " << head_dim << ", without " << line.file << ":" << line.line);
        int noticed = 0, runs = 0;
        for (const gpu::Delivery delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately})
          for (const std::uint64_t seed : {0, 1, 2}) {
            if (head_dim != 64 && seed != 0) continue;
            std::string report = suite::report_without(kernel, p, line, seed, delivery);
            if (report.empty()) report = suite::report_without(kernel, nothing_seen, line, seed, delivery);
            runs += 1;
            noticed += !report.empty();
            CHECK(report.find("language.hpp") == std::string::npos);
          }
        if (noticed == 0) {
          unnoticed += 1;
        } else {
          CHECK(noticed == runs);
        }
      }
      // Where Q stays in registers it has been waited for before the loop, and the last tile in it: nothing is on its
      // way at the end, and the wait there is one for head_dim 256 alone (where it is noticed).
      CHECK(unnoticed == (head_dim == 64 ? 1 : 0));
    }
  }
}
