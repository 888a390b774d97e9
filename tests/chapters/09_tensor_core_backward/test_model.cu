/// \file
/// The chapter on paper: what a division of the work loads, stores and executes, against what the emulator counts and
/// by hand; which tiles and squares a mask leaves, pair by pair; sums in 16 bits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "chapters/09_tensor_core_backward/kernels.hpp"
#include "chapters/09_tensor_core_backward/model.hpp"
#include "common/attention/cost.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/backward_suite.hpp"
#include "tests/common/suite/check_none.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::ElementType;
using attention::KeyRange;
using attention::Mask;
using attention::Problem;
using suite::check_none, suite::problem;
using tensor_core_backward::backward_work, tensor_core_backward::backward_works, tensor_core_backward::BackwardTile,
    tensor_core_backward::BackwardTileCounts, tensor_core_backward::BackwardWork, tensor_core_backward::count_tiles,
    tensor_core_backward::Division;

/// What the kernel of a step counts on a problem: "kv_outer_kernel" of the step "kv_outer", say.
gpu::KernelCounts counted(const std::string& step, const std::string& kernel_name, const Problem& p) {
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope counting(options);
  for (const stage::BackwardKernel& kernel : tensor_core_backward::backward_kernels()) {
    if (kernel.name != step) continue;
    suite::BackwardCase c;
    c.problem = p;
    c.repeat = false;
    check_none(suite::case_failures(kernel, c));
    for (const gpu::KernelCounts& counts : gpu::kernel_counts()) {
      if (!counts.kernel.starts_with(kernel_name)) continue;
      CHECK(counts.launches == 1);
      return counts;
    }
  }
  FAIL(step << " has launched no " << kernel_name);
  return {};
}

/// The work of kv_outer_kernel, and of the same without dQ, as step 2 has it.
template <int kHeadDim>
BackwardWork work_of(const std::string& step) {
  Division division = tensor_core_backward::division_of<BackwardTile<gpu::bf16, kHeadDim>>(step);
  if (step == "deterministic") division.dq_queries = division.dq_columns = 0;
  return backward_work(division);
}

/// A division's work against what a block does more for one tile of queries more.
template <int kHeadDim>
void check_counts(const std::string& step) {
  const BackwardWork work = work_of<kHeadDim>(step);
  const Division& d = work.division;
  const auto of_tiles = [&](int tiles) {
    return counted(step, "kv_outer_kernel",
                   problem(ElementType::bf16, 1, 1, tiles * d.br, d.bc, kHeadDim, Mask::none()));
  };
  const gpu::KernelCounts one = of_tiles(1), two = of_tiles(2);
  INFO(step << ", head_dim " << kHeadDim);
  CHECK(one.blocks == 1);
  CHECK(two.blocks == 1);
  const auto warps = static_cast<std::uint64_t>(d.warps);
  const auto loads = two.shared_loads.requests - one.shared_loads.requests;
  CHECK(loads == warps * (work.matrix_loads() + work.statistics_loads));
  CHECK(two.shared_loads.bytes - one.shared_loads.bytes ==
        warps * (work.operand_bytes() + 512 * work.statistics_loads));
  const auto stores = two.shared_stores.requests - one.shared_stores.requests;
  CHECK(stores == warps * work.pair_stores() + work.copied_bytes / 512);
  CHECK(two.shared_stores.bytes - one.shared_stores.bytes == warps * work.stored_bytes + work.copied_bytes);
  // What the path to shared memory is busy for: a wavefront a cycle.
  CHECK(double(two.shared_loads.wavefronts - one.shared_loads.wavefronts + two.shared_stores.wavefronts -
               one.shared_stores.wavefronts) == work.data_cycles());
  // Device memory: dK and dV are stored once, so that a tile's stores are its atomics, of 512 bytes without gaps.
  const auto atomics = two.global_stores.requests - one.global_stores.requests;
  CHECK(atomics == warps * work.atomics);
  CHECK(two.global_stores.bytes - one.global_stores.bytes == 512 * atomics);
  CHECK(two.global_stores.sectors - one.global_stores.sectors == 16 * atomics);
  CHECK(two.global_loads.bytes - one.global_loads.bytes == work.copied_bytes + 512 * atomics);
}

/// The loads of a whole problem: those of a tile for each tile that count_tiles finds visited, and of dK and dV on
/// their way out.
template <int kHeadDim>
void check_loads(const Problem& p) {
  using Tile = BackwardTile<gpu::bf16, kHeadDim>;
  const int visited = count_tiles<Tile>(p.mask, p.seqlen_q, p.seqlen_kv).visited;
  const int out = tensor_core_backward::way_out_of_head<Tile>(p.seqlen_kv).loads;
  for (const std::string step : {"kv_outer", "deterministic"}) {
    INFO(step << ", " << p.describe());
    const BackwardWork work = work_of<kHeadDim>(step);
    const int of_a_tile = work.division.warps * (work.matrix_loads() + work.statistics_loads);
    CHECK(counted(step, "kv_outer_kernel", p).shared_loads.requests ==
          std::uint64_t(p.batch) * (p.heads_q * visited * of_a_tile + p.heads_kv * out));
  }
}

/// What a block of `keys` keys does apart from its tiles: what it does for one, but for the tile's own work.
template <int kHeadDim>
void check_way_out(const std::string& step, int keys, std::uint64_t stores, std::uint64_t loads) {
  using Tile = BackwardTile<gpu::bf16, kHeadDim>;
  INFO(step << ", head_dim " << kHeadDim << ", " << keys << " keys");
  const auto out = tensor_core_backward::way_out<Tile>(keys);
  CHECK(std::uint64_t(out.stores) == stores);
  CHECK(std::uint64_t(out.loads) == loads);
  const BackwardWork work = work_of<kHeadDim>(step);
  const gpu::KernelCounts block =
      counted(step, "kv_outer_kernel", problem(ElementType::bf16, 1, 1, Tile::kBr, keys, kHeadDim, Mask::none()));
  CHECK(block.blocks == 1);
  const auto warps = static_cast<std::uint64_t>(Tile::kWarps);
  // K and V are copied whole: past the last key they are zeros.
  const std::uint64_t copies = (work.copied_bytes + 2 * Tile::kBc * kHeadDim * 2) / 512;
  CHECK(block.shared_stores.requests == warps * work.pair_stores() + copies + stores);
  CHECK(block.shared_stores.conflicts == 0);
  CHECK(block.shared_loads.requests == warps * (work.matrix_loads() + work.statistics_loads) + loads);
  CHECK(block.shared_loads.conflicts == 0);
  // Out of the chunks that are loaded nothing is lost: as many instructions store them, and sectors are whole.
  const auto atomics = warps * work.atomics;
  CHECK(block.global_stores.requests == atomics + loads);
  CHECK(block.global_stores.sectors - 16 * atomics == std::uint64_t(2 * keys * kHeadDim * 2 / 32));
}

/// Each element of each result is one warp's, and the products are those of all pairs.
template <int kHeadDim>
void check_divisions() {
  for (const BackwardWork& work : backward_works<kHeadDim>()) {
    const Division& d = work.division;
    INFO(d.name << ", head_dim " << kHeadDim);
    CHECK(d.head_dim == kHeadDim);
    CHECK(d.br * d.bc % (d.warps * d.s_keys * d.s_queries) == 0);  // whole passes
    CHECK(d.warps * d.kv_keys * d.kv_columns == d.bc * kHeadDim);
    CHECK(d.warps * d.dq_queries * d.dq_columns == d.br * kHeadDim);
    CHECK(work.flops() == attention::backward_flops(problem(1, 1, d.br, d.bc, kHeadDim, Mask::none())));
    CHECK(work.exponentials * gpu::kWarpSize * d.warps == d.br * d.bc);
  }
}

/// What a row of the text's tables must be.
struct Expected {
  int kib[6];  ///< of a warp: S, dP, dV, dK, dQ, stores
  int kib_of_block;
  int products;
  double data_cycles, issue_cycles;
};
void check_rows(const std::vector<BackwardWork>& works, const std::vector<Expected>& rows) {
  REQUIRE(works.size() == rows.size());
  for (std::size_t i = 0; i < works.size(); ++i) {
    const BackwardWork& w = works[i];
    const Expected& row = rows[i];
    INFO(w.division.name << ", head_dim " << w.division.head_dim);
    const int bytes[] = {w.s_bytes, w.s_bytes, w.kv_bytes, w.kv_bytes, w.dq_bytes, w.stored_bytes};
    int sum = 0;
    for (int j = 0; j < 6; ++j) {
      CHECK(bytes[j] == 1024 * row.kib[j]);
      sum += row.kib[j];
    }
    CHECK(w.operand_bytes() + w.stored_bytes == 1024 * sum);
    CHECK(w.division.warps * sum == row.kib_of_block);
    CHECK(w.products == row.products);
    CHECK(w.data_cycles() == row.data_cycles);
    CHECK(w.issue_cycles() == row.issue_cycles);
  }
}

/// Whether one of the queries that there are, from first_query on, sees one of the keys from first_key on; and whether
/// each of them sees each key of them.
struct Seen {
  bool any = false, all = true;
};
Seen seen(Mask mask, int first_query, int queries, int first_key, int keys, int seqlen_q, int seqlen_kv) {
  Seen result;
  for (int query = first_query; query < std::min(first_query + queries, seqlen_q); ++query) {
    const KeyRange range = attention::visible_keys(mask, query, seqlen_q, seqlen_kv);
    for (int key = first_key; key < first_key + keys; ++key) {
      const bool sees = key >= range.begin && key < range.end;
      result.any = result.any || sees;
      result.all = result.all && sees;
    }
  }
  return result;
}

}  // namespace

TEST_CASE("a tile's loads, stores, copies, atomics and cycles are what the emulator counts") {
  if (!gpu::device().checked) return;
  for (const std::string step : {"kv_outer", "deterministic"}) {
    check_counts<64>(step);
    check_counts<128>(step);
  }
}

TEST_CASE("tiles visited times a tile's loads are the loads of a whole problem") {
  if (!gpu::device().checked) return;
  for (const Mask mask : {Mask::none(), Mask::causal(), Mask::window(20, 3)}) {
    Problem p = problem(ElementType::bf16, 2, 1, 150, 200, 64, mask);
    p.batch = 2;
    check_loads<64>(p);
    check_loads<128>(problem(ElementType::bf16, 1, 1, 200, 150, 128, mask));
  }
}

TEST_CASE("dK and dV leave in chunks of 16 bytes, without conflicts") {
  if (!gpu::device().checked) return;
  // By hand. Stored: 128 keys × head_dim of both, 8 rows × 8 columns an instruction. Loaded: 4 rows × 64 columns an
  // instruction, of the keys that there are: of 70 a warp has 32, the next 32, the third 6, for which it takes two.
  for (const std::string step : {"kv_outer", "deterministic"}) {
    check_way_out<64>(step, 128, 2 * 16 * 8, 2 * 32);
    check_way_out<128>(step, 128, 2 * 16 * 16, 2 * 2 * 32);
    check_way_out<64>(step, 70, 2 * 16 * 8, 2 * (8 + 8 + 2));
    check_way_out<128>(step, 70, 2 * 16 * 16, 2 * 2 * (8 + 8 + 2));
  }
}

TEST_CASE("dQ leaves in chunks of 16 bytes, without conflicts, in both steps") {
  if (!gpu::device().checked) return;
  for (const int head_dim : {64, 128}) {
    const Problem p = problem(ElementType::bf16, 1, 1, 64, 64, head_dim, Mask::none());
    for (const auto& [step, kernel] : {std::pair{"kv_outer", "finish_kernel"}, {"deterministic", "q_outer_kernel"}}) {
      INFO(kernel << ", head_dim " << head_dim);
      const gpu::KernelCounts counts = counted(step, kernel, p);
      CHECK(counts.shared_stores.conflicts + counts.shared_loads.conflicts == 0);
      CHECK(counts.global_stores.requests == std::uint64_t(64 * head_dim * 2 / 512));
      CHECK(counts.global_stores.sectors == std::uint64_t(64 * head_dim * 2 / 32));
    }
  }
}

TEST_CASE("the warps of a division have each result once, and five products of all pairs") {
  check_divisions<64>();
  check_divisions<128>();
}

TEST_CASE("FlashAttention-2's division follows from its template arguments") {
  // Flash_bwd_kernel_traits<d, Br, Bc, warps, MSdP, NdKV, MdQ>: how many warps share the queries of S, the keys of dK
  // and dV, and the queries of dQ. The others share the other side.
  struct Traits {
    int head_dim, br, bc, warps, ms_dp, n_dkv, m_dq;
  };
  for (const Traits& t : {Traits{64, 128, 128, 8, 4, 4, 4}, Traits{128, 64, 128, 8, 2, 4, 2}}) {
    const Division d = tensor_core_backward::flash_attention_2(t.head_dim);
    INFO("head_dim " << t.head_dim);
    CHECK(d.br == t.br);
    CHECK(d.bc == t.bc);
    CHECK(d.warps == t.warps);
    CHECK(d.s_queries == t.br / t.ms_dp);
    CHECK(d.s_keys == t.bc / (t.warps / t.ms_dp));
    CHECK(d.kv_keys == t.bc / t.n_dkv);
    CHECK(d.kv_columns == t.head_dim / (t.warps / t.n_dkv));
    CHECK(d.dq_queries == t.br / t.m_dq);
    CHECK(d.dq_columns == t.head_dim / (t.warps / t.m_dq));
  }
}

TEST_CASE("KiB and cycles of the three divisions, by hand") {
  // KiB of a warp. Head_dim 128: a row is 1/4 KiB, and so are 128 keys of a column; 64 queries of one are 1/8.
  //   16 keys     S (16 + 64) / 4; dV 128 columns / 8; dQ (16 queries + 64 columns) / 4; dS of 16 · 64: 2.
  //   kv_outer    S (32 + 32) / 4; dV 64 columns / 8, and the partner's P of 32 · 32: 2; dQ (32 + 32) / 4; P and dS of
  //               32 · 32: 2 + 2.
  //   FA-2        the same, but all of P, of 64 · 32: 4.
  // Cycles of shared memory: 8 a KiB; copies of Q, dO and statistics, 65 times 512 bytes, are 260; and 4 for each load
  // of statistics, of which a warp has 8, 4 or none.
  // Instructions of a warp: products, two loads a KiB, eight stores a KiB, loads of statistics, atomics of 128
  // elements, exponentials and four others for each. The four schedulers start one each a cycle.
  check_rows(
      backward_works<128>(),
      {{{20, 20, 16, 16, 20, 2}, 752, 320, 752 * 8 + 260 + 8 * 8 * 4, 2 * (320 + 2 * 92 + 8 * 2 + 8 + 8 + 5 * 32)},
       {{16, 16, 10, 10, 16, 4}, 576, 320, 576 * 8 + 260 + 8 * 4 * 4, 2 * (320 + 2 * 68 + 8 * 4 + 4 + 8 + 5 * 32)},
       {{16, 16, 12, 12, 16, 4}, 608, 320, 608 * 8 + 260, 2 * (320 + 2 * 72 + 8 * 4 + 8 + 5 * 32)}});
  // Head_dim 64: a row is 1/8 KiB.
  //   16 keys     S (16 + 64) / 8; dV 64 columns / 8; dQ (16 queries + 32 columns) / 4; dS of 16 · 64: 2.
  //   kv_outer    four warps. S (32 + 32) / 8, twice; dV 64 / 8; dQ (32 + 32) / 4; dS of 32 · 64: 4.
  //   FA-2        128 queries. S (64 + 32) / 8; dV 32 columns / 4, and P of 128 · 32: 8; dQ (32 + 32) / 4; P and dS of
  //               64 · 32: 4 + 4.
  // Copies are 33 times 512 bytes for 64 queries.
  check_rows(backward_works<64>(),
             {{{10, 10, 8, 8, 12, 2}, 400, 160, 400 * 8 + 132 + 8 * 8 * 4, 2 * (160 + 2 * 48 + 8 * 2 + 8 + 4 + 5 * 32)},
              {{16, 16, 8, 8, 16, 4}, 272, 320, 272 * 8 + 132 + 4 * 8 * 4, 1 * (320 + 2 * 64 + 8 * 4 + 8 + 8 + 5 * 64)},
              {{12, 12, 16, 16, 16, 8}, 640, 320, 640 * 8 + 264, 2 * (320 + 2 * 72 + 8 * 8 + 8 + 5 * 64)}});
}

TEST_CASE("the unit that is busy the longest bounds the FLOP") {
  BackwardWork work = backward_works<128>()[1];
  const double flops = 10.0 * 64 * 128 * 128;
  CHECK(work.tensor_cycles() == 2560);  // 4 tensor cores, 1024 FLOP a cycle each
  CHECK(std::lround(work.mma_sync_cycles()) == 4033);
  CHECK(work.exponential_cycles() == 64 * 128 / 16);
  CHECK(work.flops_a_cycle() == flops / 4996);  // shared memory
  work.s_bytes = work.kv_bytes = work.dq_bytes = work.stored_bytes = work.copied_bytes = work.statistics_loads = 0;
  CHECK(std::lround(work.flops_a_cycle()) == 2600);
  work.exponentials = 1000;  // of 8 warps, half a warp's a cycle
  CHECK(work.flops_a_cycle() == flops / 16000);
  work.atomics = 20000;  // beside 320 products, and four others for each exponential
  CHECK(work.flops_a_cycle() == flops / (2 * (320 + 20000 + 5 * 1000)));
}

TEST_CASE("step 2 is busy with shared memory 1.6 times as long as step 1") {
  // Without dQ: no loads for it, and at head_dim 64 no stores.
  CHECK(work_of<128>("deterministic").data_cycles() == 8 * (16 + 16 + 10 + 10 + 4) * 8 + 260 + 8 * 4 * 4);
  CHECK(work_of<64>("deterministic").data_cycles() == 4 * (16 + 16 + 8 + 8) * 8 + 132 + 4 * 8 * 4);
  CHECK(work_of<64>("deterministic").products == 256);
  CHECK(work_of<64>("deterministic").atomics == 0);
  if (!gpu::device().checked) return;
  // The second kernel has 64 keys a tile: two tiles more are as many pairs as one of the first kernel's.
  for (const int head_dim : {64, 128}) {
    const auto wavefronts = [head_dim](int keys) {
      const gpu::KernelCounts counts = counted("deterministic", "q_outer_kernel",
                                               problem(ElementType::bf16, 1, 1, 64, keys, head_dim, Mask::none()));
      return double(counts.shared_loads.wavefronts + counts.shared_stores.wavefronts);
    };
    const double second = wavefronts(256) - wavefronts(128);
    CHECK(second == (head_dim == 64 ? 2048 : 4096));
    const auto cycles = [head_dim](const std::string& step) {
      return (head_dim == 64 ? work_of<64>(step) : work_of<128>(step)).data_cycles();
    };
    CHECK(std::lround(10 * (cycles("deterministic") + second) / cycles("kv_outer")) == 16);
  }
}

TEST_CASE("tiles and squares under masks, pair by pair") {
  using Tile = BackwardTile<gpu::bf16, 64>;
  constexpr int kSide = 32;
  // The last window hides no key of 128 from the queries of a cut tile, but would from the rows past its end.
  const Mask masks[] = {Mask::none(),         Mask::causal(),
                        Mask::window(0, 0),   Mask::window(40, 0),
                        Mask::window(3, 70),  Mask::window(100, attention::kUnlimited),
                        Mask::window(0, 200), Mask::window(130, attention::kUnlimited)};
  for (const Mask mask : masks)
    for (const int seqlen_q : {0, 1, 63, 64, 65, 97, 200, 300})
      for (const int seqlen_kv : {0, 1, 32, 127, 128, 129, 300}) {
        CAPTURE(mask.name(), seqlen_q, seqlen_kv);
        BackwardTileCounts expected;
        for (int key = 0; key < seqlen_kv; key += 128)
          for (int query = 0; query < seqlen_q; query += 64) {
            const Seen of_tile = seen(mask, query, 64, key, 128, seqlen_q, seqlen_kv);
            expected.all += 1;
            if (!of_tile.any) continue;
            expected.visited += 1;
            expected.masked += !of_tile.all;
            for (int i = 0; i < 64 * 128 / (kSide * kSide); ++i) {
              const int square_query = query + i / 4 * kSide, square_key = key + i % 4 * kSide;
              expected.squares += 1;
              expected.hidden_squares += !seen(mask, square_query, kSide, square_key, kSide, seqlen_q, seqlen_kv).any;
            }
          }
        const BackwardTileCounts counts = count_tiles<Tile>(mask, seqlen_q, seqlen_kv);
        REQUIRE(counts.all == expected.all);
        REQUIRE(counts.visited == expected.visited);
        REQUIRE(counts.masked == expected.masked);
        REQUIRE(counts.squares == expected.squares);
        REQUIRE(counts.hidden_squares == expected.hidden_squares);
      }
}

TEST_CASE("tiles and squares of a causal problem, by hand") {
  // N = 1024: 8 blocks of keys, 16 tiles of queries. Block b is seen from tile 2b on: 16 + 14 + … + 2 tiles. The first
  // two of them cross the diagonal: 128 keys × 128 queries, 4 × 4 squares, of which 3 + 2 + 1 lie above it.
  const auto check = [](const BackwardTileCounts& counts) {
    CHECK(counts.all == 128);
    CHECK(counts.visited == 72);
    CHECK(counts.masked == 16);
    CHECK(counts.squares == 72 * 8);
    CHECK(counts.hidden_squares == 8 * 6);
  };
  check(count_tiles<BackwardTile<gpu::bf16, 64>>(Mask::causal(), 1024, 1024));
  check(count_tiles<BackwardTile<gpu::bf16, 128>>(Mask::causal(), 1024, 1024));
}

TEST_CASE("sums in 16 bits are rounded at every addition, column by column") {
  using tensor_core_backward::add_parts;
  // Column 1 begins with the large part: bf16 has 8 bits, so that 256 + 1 is a tie, which goes to the even 256, every
  // time. Column 0 ends with it: the small ones have become a unit of it by then.
  const std::vector<float> parts = {1, 256, 1, 1, 256, 1};
  CHECK(add_parts(parts, 2, ElementType::fp32) == std::vector<float>{258, 258});
  CHECK(add_parts(parts, 2, ElementType::bf16) == std::vector<float>{258, 256});
  // fp16 has 11 bits: the same at 2048, and nothing is lost at 256.
  CHECK(add_parts(parts, 2, ElementType::fp16) == std::vector<float>{258, 258});
  CHECK(add_parts(std::vector<float>{2048, 1, 1}, 1, ElementType::fp16) == std::vector<float>{2048});
  CHECK(add_parts(std::vector<float>{1, 1, 2048}, 1, ElementType::fp16) == std::vector<float>{2050});
  // One part is rounded as well, and no parts are a sum of 0.
  CHECK(add_parts(std::vector<float>{257}, 1, ElementType::bf16) == std::vector<float>{256});
  CHECK(add_parts({}, 3, ElementType::bf16) == std::vector<float>(3));
}
