/// \file
/// The suite catches kernels of this chapter's kind with a fault: masks that are not there, D forgotten, a head or a
/// tile left out, sums that do not begin at zero, statistics of −∞, waits and barriers in the wrong place.
///
/// The kernels are the chapter's own. They take their pieces by the tile's type, so that a fault is a tile of another
/// type; or they get statistics that have been spoiled after prepare_kernel.

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "chapters/09_tensor_core_backward/step1_kv_outer.cuh"
#include "chapters/09_tensor_core_backward/step2_deterministic.cuh"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/backward_hard_cases.hpp"
#include "tests/common/suite/backward_suite.hpp"
#include "tests/common/suite/check_none.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace broken_backward_tiles {

using T = gpu::bf16;

using KeyTile = tensor_core_backward::BackwardTile<T, 64>;
struct PaddingNotMasked : KeyTile {};
struct NothingMasked : KeyTile {};
struct OneTileTooFew : KeyTile {};
struct FirstTileForgotten : KeyTile {};
struct WaitOneGroupShort : KeyTile {};
struct WaitBehindBarrier : KeyTile {};
struct BarrierBehindLoads : KeyTile {};
/// Of a head_dim at which two warps share their keys.
struct HalvesSwapped : tensor_core_backward::BackwardTile<T, 128> {};

using QueryTile = tensor_core_backward::QueryTile<T, 64>;
struct PaddingNotMaskedOfQueries : QueryTile {};
struct NothingMaskedOfQueries : QueryTile {};
struct OneTileTooFewOfQueries : QueryTile {};

}  // namespace broken_backward_tiles

namespace tensor_core_backward {

namespace broken = broken_backward_tiles;

template <>
__device__ void mask_probabilities<broken::PaddingNotMasked>(Square<broken::PaddingNotMasked>& p,
                                                             const BackwardArgs<broken::T>& args, int first_key,
                                                             int first_query, int lane) {
  BackwardArgs<broken::T> longer = args;
  longer.seqlen_q += broken::KeyTile::kBc;
  longer.seqlen_kv += broken::KeyTile::kBc;
  mask_probabilities<broken::KeyTile>(p, longer, first_key, first_query, lane);
}

template <>
__device__ void mask_probabilities<broken::NothingMasked>(Square<broken::NothingMasked>&,
                                                          const BackwardArgs<broken::T>&, int, int, int) {}

template <>
__host__ __device__ constexpr VisitedTiles<broken::OneTileTooFew> visited_tiles<broken::OneTileTooFew>(
    attention::Mask mask, int first_key, int keys, int seqlen_q, int seqlen_kv) {
  const auto visited = visited_tiles<broken::KeyTile>(mask, first_key, keys, seqlen_q, seqlen_kv);
  return {visited.begin, visited.end - (visited.end - visited.begin > 1)};
}

template <>
__host__ __device__ constexpr VisitedTiles<broken::FirstTileForgotten> visited_tiles<broken::FirstTileForgotten>(
    attention::Mask mask, int first_key, int keys, int seqlen_q, int seqlen_kv) {
  const auto visited = visited_tiles<broken::KeyTile>(mask, first_key, keys, seqlen_q, seqlen_kv);
  return {visited.begin + (visited.end - visited.begin > 1), visited.end};
}

/// P and dS stand where those of the partner's queries should.
template <>
__device__ void store_operand<broken::HalvesSwapped>(SquareTile<broken::HalvesSwapped>& to_smem, int offset,
                                                     const Operand<broken::HalvesSwapped>& a_reg, int i) {
  using Tile = BackwardTile<broken::T, 128>;
  store_operand<Tile>(to_smem, offset ^ Tile::kWarpQueries, a_reg, i);
}

/// Takes the place of a wait in front of the loop's barrier, which has been switched off: behind it the next tile has
/// been started, and this leaves that and the one that is read now.
template <>
__device__ void multiply_rows<broken::WaitOneGroupShort>(Square<broken::WaitOneGroupShort>& square,
                                                         const BackwardShared<broken::WaitOneGroupShort>::KTile& a_smem,
                                                         int a_offset,
                                                         const BackwardShared<broken::WaitOneGroupShort>::QTile& b_smem,
                                                         int b_offset) {
  gpu::copy_async_wait<2>();
  multiply_rows<broken::KeyTile>(square, a_smem, a_offset, b_smem, b_offset);
}

/// The same, but waits for the tile that is read now: of each thread's own copies, since no barrier follows.
template <>
__device__ void multiply_rows<broken::WaitBehindBarrier>(Square<broken::WaitBehindBarrier>& square,
                                                         const BackwardShared<broken::WaitBehindBarrier>::KTile& a_smem,
                                                         int a_offset,
                                                         const BackwardShared<broken::WaitBehindBarrier>::QTile& b_smem,
                                                         int b_offset) {
  gpu::copy_async_wait<1>();
  multiply_rows<broken::KeyTile>(square, a_smem, a_offset, b_smem, b_offset);
}

/// Takes the place of the loop's barrier: behind it the next tile has been started, perhaps into a buffer that others
/// still read.
template <>
__device__ void multiply_rows<broken::BarrierBehindLoads>(
    Square<broken::BarrierBehindLoads>& square, const BackwardShared<broken::BarrierBehindLoads>::KTile& a_smem,
    int a_offset, const BackwardShared<broken::BarrierBehindLoads>::QTile& b_smem, int b_offset) {
  __syncthreads();
  multiply_rows<broken::KeyTile>(square, a_smem, a_offset, b_smem, b_offset);
}

template <>
__device__ void mask_query_rows<broken::PaddingNotMaskedOfQueries>(float (&p)[broken::QueryTile::kKeyTiles][4],
                                                                   const BackwardArgs<broken::T>& args, int first_query,
                                                                   int first_key, int lane) {
  BackwardArgs<broken::T> longer = args;
  longer.seqlen_q += broken::QueryTile::kBc;
  longer.seqlen_kv += broken::QueryTile::kBc;
  mask_query_rows<broken::QueryTile>(p, longer, first_query, first_key, lane);
}

template <>
__device__ void mask_query_rows<broken::NothingMaskedOfQueries>(float (&)[broken::QueryTile::kKeyTiles][4],
                                                                const BackwardArgs<broken::T>&, int, int, int) {}

/// P of the last keys is 0 where they do not fill a tile.
template <>
__device__ void mask_query_rows<broken::OneTileTooFewOfQueries>(float (&p)[broken::QueryTile::kKeyTiles][4],
                                                                const BackwardArgs<broken::T>& args, int first_query,
                                                                int first_key, int lane) {
  mask_query_rows<broken::QueryTile>(p, args, first_query, first_key, lane);
  if (first_key + broken::QueryTile::kBc <= args.seqlen_kv) return;
  for (auto& of_tile : p)
    for (float& entry : of_tile) entry = 0;
}

}  // namespace tensor_core_backward

namespace {

using attention::BackwardArgs;
using attention::Mask;
using broken_backward_tiles::T;
using tensor_core_backward::RowStatistics, tensor_core_backward::Workspace;
namespace broken = broken_backward_tiles;

/// What is wrong with the statistics.
enum class Spoil {
  nothing,
  no_d,                        ///< D = 0: dS = P∘dP
  last_head_of_group,          ///< an LSE of +∞, with which a head adds nothing
  padding_at_minus_infinity,   ///< rows that do not exist have an LSE of −∞
  unseeing_at_minus_infinity,  ///< rows that see nothing have it, as the forward gives it
};

__global__ void spoil_kernel(RowStatistics* statistics_gmem, Workspace layout, int seqlen_q, int heads_q, int heads_kv,
                             Spoil spoil) {
  const std::int64_t index = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index >= layout.rows) return;
  const int query = static_cast<int>(index % layout.padded_rows);
  const int group = heads_q / heads_kv;
  RowStatistics& row = statistics_gmem[index];
  const bool last_head = group > 1 && index / layout.padded_rows % group == group - 1;
  if (spoil == Spoil::no_d) row.d = 0;
  if (spoil == Spoil::last_head_of_group && last_head) row.lse_log2 = INFINITY;
  if (spoil == Spoil::padding_at_minus_infinity && query >= seqlen_q) row.lse_log2 = -INFINITY;
  if (spoil == Spoil::unseeing_at_minus_infinity && query < seqlen_q && row.lse_log2 == INFINITY) {
    row.lse_log2 = -INFINITY;
  }
}

void launch_spoil(const BackwardArgs<T>& args, const Workspace& layout, void* workspace, Spoil spoil) {
  if (layout.rows == 0 || spoil == Spoil::nothing) return;
  gpu::launch(spoil_kernel, {.grid = (layout.rows + 127) / 128, .block = 128}, layout.statistics(workspace), layout,
              args.seqlen_q, args.heads_q, args.heads_kv, spoil);
}

/// A step in bf16 with one head_dim. Without its prediction of bytes: a wrong result is to be noticed, not wrong bytes.
template <int kHeadDim, class Run>
stage::BackwardKernel variant(stage::BackwardKernel kernel, const std::string& name, Run run) {
  kernel.name = name;
  kernel.traffic = nullptr;
  kernel.require = [name](const attention::Problem& p) {
    stage::require_head_dim(name, p, {kHeadDim});
    stage::require_16_byte_gradients(name, p);
  };
  kernel.run = run;
  return kernel;
}

/// Step 1 on tiles of that type. \param zero_sums false: the sums of dQ are not set to zero before
template <class KeyTile>
stage::BackwardKernel step1(const std::string& name, Spoil spoil = Spoil::nothing, bool zero_sums = true) {
  return variant<KeyTile::kHeadDim>(
      tensor_core_backward::kv_outer<KeyTile::kHeadDim>(), name,
      [spoil, zero_sums](const BackwardArgs<T>& args, void* workspace) {
        const Workspace layout = Workspace::of(args, true);
        tensor_core_backward::launch_prepare<T, KeyTile::kHeadDim>(args, Workspace::of(args, zero_sums), workspace);
        launch_spoil(args, layout, workspace, spoil);
        tensor_core_backward::launch_kv_outer<KeyTile, true>(args, layout, workspace);
        tensor_core_backward::launch_finish<T, KeyTile::kHeadDim>(args, layout, workspace);
      });
}

/// Step 2 on tiles of one type for dK and dV, and of another for dQ, whose statistics are spoiled only where that is
/// said.
template <class KeyTile, class QueryTile>
stage::BackwardKernel step2(const std::string& name, Spoil of_keys = Spoil::nothing,
                            Spoil of_queries = Spoil::nothing) {
  return variant<KeyTile::kHeadDim>(
      tensor_core_backward::deterministic<KeyTile::kHeadDim>(), name,
      [of_keys, of_queries](const BackwardArgs<T>& args, void* workspace) {
        const Workspace layout = Workspace::of(args, false);
        tensor_core_backward::launch_prepare<T, KeyTile::kHeadDim>(args, layout, workspace);
        launch_spoil(args, layout, workspace, of_keys);
        tensor_core_backward::launch_kv_outer<KeyTile, false>(args, layout, workspace);
        tensor_core_backward::launch_prepare<T, KeyTile::kHeadDim>(args, layout, workspace);
        launch_spoil(args, layout, workspace, of_queries);
        tensor_core_backward::launch_q_outer<QueryTile>(args, layout, workspace);
      });
}

suite::Depth depth() { return gpu::device().checked ? suite::Depth::checking : suite::Depth::plain; }

/// The suite's cases in which a block of keys has several tiles of queries; in the checking build, which has none, all.
std::vector<suite::BackwardCase> cases_for(const stage::BackwardKernel& kernel) {
  std::vector<suite::BackwardCase> cases;
  for (const suite::BackwardCase& c : suite::backward_cases(depth(), suite::taken_by(kernel))) {
    if (gpu::device().checked || c.problem.seqlen_q > broken::KeyTile::kBr) cases.push_back(c);
  }
  return cases;
}

/// What the suite says in these cases (no more than so many), up to the first complaint. All kernels here take the
/// same.
suite::Failures suite_failures(const stage::BackwardKernel& kernel, int most = std::numeric_limits<int>::max()) {
  static const std::vector<suite::BackwardCase> cases = cases_for(kernel);
  for (const suite::BackwardCase& c : cases) {
    if (most-- == 0) break;
    const suite::Failures failures = suite::case_failures(kernel, c);
    if (!failures.empty()) return failures;
  }
  return {};
}

suite::Failures failures_of(const stage::BackwardKernel& kernel, int heads_q, int seqlen_q, int seqlen_kv,
                            Mask mask = Mask::causal()) {
  suite::BackwardCase c;
  c.problem = suite::problem(attention::ElementType::bf16, heads_q, 1, seqlen_q, seqlen_kv,
                             suite::taken_by(kernel).head_dims.front(), mask);
  c.with_dlse = true;
  c.repeat = false;
  return suite::case_failures(kernel, c);
}

/// The case in which the faults show: tiles enough in both loops, a group of three heads, a causal mask.
suite::Failures case_failures(const stage::BackwardKernel& kernel) { return failures_of(kernel, 3, 130, 135); }

/// A fault, and where the accuracy rule sees it first. It looks at dQ, dK and dV in turn.
struct Fault {
  stage::BackwardKernel kernel;
  std::string wrong;
};

void check_caught(const Fault& fault) {
  INFO(fault.kernel.name);
  const suite::Failures failures = case_failures(fault.kernel);
  REQUIRE_FALSE(failures.empty());
  INFO(failures.front());
  CHECK(failures.front().find("error of a row of " + fault.wrong) != std::string::npos);
}

/// What the loop over queries begins with: the wait for a tile, and the barrier behind it.
struct LoopLines {
  gpu::SourceLine wait, barrier;
};
LoopLines loop_lines() {
  gpu::reset_synchronisations_seen();
  case_failures(step2<broken::KeyTile, broken::QueryTile>("right"));
  std::vector<gpu::SourceLine> lines;
  for (const gpu::SourceLine& line : gpu::synchronisations_seen()) {
    if (line.file.find("step1_kv_outer.cuh") != std::string::npos) lines.push_back(line);
  }
  REQUIRE(lines.size() == 5);  // and, at the end, a wait, a barrier, and the warp's own
  return {lines[0], lines[1]};
}

suite::Failures failures_without(const stage::BackwardKernel& kernel, const gpu::SourceLine& line) {
  for (const gpu::Delivery delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately})
    for (const std::uint64_t seed : {0, 1, 2}) {
      gpu::EmulatorOptions options = gpu::emulator_options();
      options.without = {line};
      options.schedule_seed = seed;
      options.delivery = delivery;
      const gpu::EmulatorOptionsScope without(options);
      const suite::Failures failures = failures_of(kernel, 2, 300, 100);
      if (!failures.empty()) return failures;
    }
  return {};
}

}  // namespace

TEST_CASE("the suite lets the unbroken tiles through", "[suite_can_fail]") {
  for (const stage::BackwardKernel& kernel :
       {step1<broken::KeyTile>("right_step1"), step2<broken::KeyTile, broken::QueryTile>("right_step2")}) {
    suite::check_none(suite_failures(kernel, 4));
    suite::check_none(case_failures(kernel));
    suite::check_none(suite::backward_c23_few_keys(kernel));
  }
}

TEST_CASE("the suite catches tiles with a fault", "[suite_can_fail]") {
  using broken::KeyTile, broken::QueryTile;
  const std::vector<Fault> faults = {
      {step1<broken::NothingMasked>("nothing_masked_step1"), "dQ"},
      {step2<broken::NothingMasked, QueryTile>("nothing_masked_for_keys"), "dK"},
      {step2<KeyTile, broken::NothingMaskedOfQueries>("nothing_masked_for_queries"), "dQ"},
      {step1<broken::OneTileTooFew>("one_tile_of_queries_too_few_step1"), "dQ"},
      {step2<broken::OneTileTooFew, QueryTile>("one_tile_of_queries_too_few"), "dK"},
      {step2<KeyTile, broken::OneTileTooFewOfQueries>("one_tile_of_keys_too_few"), "dQ"},
      {step1<broken::FirstTileForgotten>("first_tile_of_queries_forgotten_step1"), "dQ"},
      {step2<broken::FirstTileForgotten, QueryTile>("first_tile_of_queries_forgotten"), "dK"},
      {step1<KeyTile>("no_d_step1", Spoil::no_d), "dQ"},
      {step2<KeyTile, QueryTile>("no_d_for_keys", Spoil::no_d), "dK"},
      {step2<KeyTile, QueryTile>("no_d_for_queries", Spoil::nothing, Spoil::no_d), "dQ"},
      {step1<KeyTile>("head_left_out_step1", Spoil::last_head_of_group), "dQ"},
      {step2<KeyTile, QueryTile>("head_left_out", Spoil::last_head_of_group), "dK"},
      {step1<KeyTile>("padding_at_minus_infinity_step1", Spoil::padding_at_minus_infinity), "dK"},
      {step2<KeyTile, QueryTile>("padding_at_minus_infinity", Spoil::padding_at_minus_infinity), "dK"}};
  for (const Fault& fault : faults) {
    check_caught(fault);
    // The checking build's own cases have a single tile: too few for some of these.
    if (!gpu::device().checked) CHECK_FALSE(suite_failures(fault.kernel).empty());
  }
}

TEST_CASE("the suite catches what one of two warps with the same keys leaves to the other", "[suite_can_fail]") {
  using Right = tensor_core_backward::BackwardTile<T, 128>;
  using QueryTile = tensor_core_backward::QueryTile<T, 128>;
  suite::check_none(case_failures(step1<Right>("right_step1")));
  suite::check_none(case_failures(step2<Right, QueryTile>("right_step2")));
  check_caught({step1<broken::HalvesSwapped>("halves_swapped_step1"), "dQ"});
  check_caught({step2<broken::HalvesSwapped, QueryTile>("halves_swapped"), "dK"});
}

TEST_CASE("sums that do not begin at zero are caught", "[suite_can_fail]") {
  const stage::BackwardKernel kernel = step1<broken::KeyTile>("sums_not_zeroed", Spoil::nothing, false);
  const suite::Failures failures = case_failures(kernel);
  REQUIRE_FALSE(failures.empty());
  INFO(failures.front());
  CHECK(failures.front().find(gpu::device().checked ? "uninitialised" : "error of a row of dQ") != std::string::npos);
  CHECK_FALSE(suite_failures(kernel).empty());
}

TEST_CASE("padded columns that are not masked are caught by a low LSE", "[suite_can_fail][C23]") {
  for (const stage::BackwardKernel& kernel :
       {step1<broken::PaddingNotMasked>("padding_not_masked_step1"),
        step2<broken::PaddingNotMasked, broken::QueryTile>("padding_not_masked_for_keys"),
        step2<broken::KeyTile, broken::PaddingNotMaskedOfQueries>("padding_not_masked_for_queries")}) {
    INFO(kernel.name);
    // A column that no row of K belongs to is multiplied by zeros, or is not stored: where P is finite, it does
    // nothing.
    suite::check_none(failures_of(kernel, 2, 66, 70, Mask::none()));
    const bool of_keys = kernel.name == "padding_not_masked_for_keys";
    // Rows of dK and dV that do not exist stay in their registers, whatever they are.
    CHECK(suite::backward_c23_few_keys(kernel).empty() == of_keys);
  }
}

TEST_CASE("rows that see nothing need no LSE of +∞", "[C01]") {
  // Where there is such a row, not all rows of its tile see all keys: the tile is masked, and inf becomes 0.
  for (const stage::BackwardKernel& kernel :
       {step1<broken::KeyTile>("unseeing_step1", Spoil::unseeing_at_minus_infinity),
        step2<broken::KeyTile, broken::QueryTile>("unseeing_step2", Spoil::unseeing_at_minus_infinity,
                                                  Spoil::unseeing_at_minus_infinity)}) {
    suite::check_none(failures_of(kernel, 2, 150, 40));
    suite::check_none(failures_of(kernel, 1, 70, 30, Mask::window(5, 3)));
    suite::check_none(suite::backward_c01_empty_rows(kernel));
  }
}

TEST_CASE("hard cases catch a group that is not added up, and D forgotten", "[suite_can_fail][C21][C51]") {
  using broken::KeyTile, broken::QueryTile;
  CHECK_FALSE(
      suite::backward_c21_head_mapping(step2<KeyTile, QueryTile>("head_left_out", Spoil::last_head_of_group)).empty());
  for (const stage::BackwardKernel& kernel :
       {step1<KeyTile>("no_d_step1", Spoil::no_d), step2<KeyTile, QueryTile>("no_d_step2", Spoil::no_d, Spoil::no_d)}) {
    CHECK_FALSE(suite::backward_c51_final_o(kernel).empty());
    CHECK_FALSE(suite::backward_through_lse_alone(kernel).empty());
  }
}

TEST_CASE("the emulator catches waits and barriers in the wrong place", "[suite_can_fail]") {
  if (!gpu::device().emulated) return;  // what a GPU does with these is chance
  const LoopLines lines = loop_lines();
  const std::vector<std::pair<stage::BackwardKernel, gpu::SourceLine>> faults = {
      {step1<broken::WaitOneGroupShort>("wait_one_group_short_step1"), lines.wait},
      {step2<broken::WaitOneGroupShort, broken::QueryTile>("wait_one_group_short"), lines.wait},
      {step1<broken::WaitBehindBarrier>("wait_behind_barrier_step1"), lines.wait},
      {step2<broken::WaitBehindBarrier, broken::QueryTile>("wait_behind_barrier"), lines.wait},
      {step2<broken::BarrierBehindLoads, broken::QueryTile>("barrier_behind_loads"), lines.barrier}};
  for (const auto& [kernel, line] : faults) {
    INFO(kernel.name);
    suite::check_none(failures_of(kernel, 2, 300, 100));  // what the tile adds is no fault
    const suite::Failures failures = failures_without(kernel, line);
    REQUIRE_FALSE(failures.empty());
    INFO(failures.front());
    if (gpu::device().checked) CHECK(failures.front().find(".cuh:") != std::string::npos);  // the lines, by name
  }
  // With dQ a second barrier stands behind the last that is read of Q and dO: there the next tile may be started early.
  suite::check_none(failures_without(step1<broken::BarrierBehindLoads>("barrier_behind_loads_step1"), lines.barrier));
}
