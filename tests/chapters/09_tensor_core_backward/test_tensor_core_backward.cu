/// \file
/// Both steps beyond the backward suite: bytes, tiles, banks, refusals, scales, dLSE, rows that see nothing, what lies
/// past the end, schedules, needed waits and barriers.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chapters/09_tensor_core_backward/kernels.hpp"
#include "common/attention/accuracy.hpp"
#include "common/attention/inputs.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/backward_suite.hpp"
#include "tests/common/suite/check_none.hpp"
#include "tests/common/suite/guarded_array.hpp"
#include "tests/common/suite/guarded_run.hpp"
#include "tests/common/suite/reserved_memory.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::ElementType;
using attention::InputKind;
using attention::Mask;
using attention::Problem;
using attention::Strides;
using suite::check_none, suite::problem, suite::same_bits;
using tensor_core_backward::backward_kernels, tensor_core_backward::BackwardShared, tensor_core_backward::BackwardTile,
    tensor_core_backward::QueryShared, tensor_core_backward::QueryTile;

constexpr ElementType kTypes[] = {ElementType::fp16, ElementType::bf16};

stage::BackwardKernel kernel_named(const std::string& name) {
  for (const stage::BackwardKernel& kernel : backward_kernels()) {
    if (kernel.name == name) return kernel;
  }
  FAIL("there is no kernel " + name);
  return {};
}

/// A problem, and what is asked of a kernel on it besides being right, within its arrays, and with the predicted bytes.
suite::BackwardCase case_of(const Problem& p, std::uint64_t seed = 1) {
  suite::BackwardCase c;
  c.problem = p;
  c.repeat = false;
  c.seed = seed;
  return c;
}

/// O and LSE are those of the reference.
suite::BackwardInputs inputs_of(const Problem& p, std::uint64_t seed = 1, bool with_dlse = false) {
  const attention::Inputs in = attention::make_inputs(p, InputKind::normal, seed);
  const std::vector<float> dout = attention::make_output_gradient(p, seed);
  const std::vector<float> dlse = with_dlse ? suite::make_lse_gradient(p, seed) : std::vector<float>{};
  const attention::BackwardYardstick yardstick = attention::make_backward_yardstick(p, in.q, in.k, in.v, dout, dlse);
  return {in.q, in.k, in.v, yardstick.o, yardstick.lse, dout, dlse};
}

struct Gradients {
  std::vector<float> dq, dk, dv;
};
Gradients gradients(const suite::GuardedBackwardRun& run) { return {run.dq(), run.dk(), run.dv()}; }
Gradients gradients(const stage::BackwardKernel& kernel, const Problem& p, const suite::BackwardInputs& inputs) {
  suite::GuardedBackwardRun run(kernel, p, inputs);
  check_none(run.launch());
  return gradients(run);
}

void check_same(const Gradients& a, const Gradients& b) {
  CHECK(same_bits(a.dq, b.dq));
  CHECK(same_bits(a.dk, b.dk));
  CHECK(same_bits(a.dv, b.dv));
}

void check_finite(const std::vector<float>& values) {
  CHECK(std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }));
}

/// Whether a query of rows first_query … sees a key of first_key …, asked pair by pair.
bool tiles_meet(const Problem& p, int first_query, int rows, int first_key, int keys) {
  for (int query = first_query; query < std::min(first_query + rows, p.seqlen_q); ++query) {
    const attention::KeyRange seen = attention::visible_keys(p.mask, query, p.seqlen_q, p.seqlen_kv);
    if (std::max(seen.begin, first_key) < std::min(seen.end, first_key + keys)) return true;
  }
  return false;
}

/// What a kernel is refused for; "nothing" if it is taken.
std::string refusal(const stage::BackwardKernel& kernel, const Problem& p) {
  try {
    stage::require_taken(kernel, p);
  } catch (const stage::Refused& refused) {
    return refused.what();
  }
  return "nothing";
}

/// What the suite says of a run without a line, up to the first complaint; empty if nothing was noticed.
std::string report_without(const stage::BackwardKernel& kernel, const std::vector<Problem>& problems,
                           const gpu::SourceLine& line, std::uint64_t seed, gpu::Delivery delivery) {
  gpu::EmulatorOptions options = suite::with_schedule(seed, delivery);
  options.without = {line};
  const gpu::EmulatorOptionsScope without(options);
  for (const Problem& p : problems) {
    const suite::Failures failures = suite::case_failures(kernel, case_of(p));
    if (!failures.empty()) return failures.front();
  }
  return {};
}

}  // namespace

TEST_CASE("results are right and counted bytes equal predicted bytes") {
  int turn = 0;
  for (const ElementType type : kTypes) {
    for (const int head_dim : {64, 128}) {
      Problem batches = problem(type, 2, 1, 3, 5, head_dim, Mask::causal());
      batches.batch = 2;
      const Problem problems[] = {
          problem(type, 1, 1, 1, 1, head_dim, Mask::none()),
          batches,
          problem(type, 3, 1, 70, 65, head_dim, Mask::causal()),
          problem(type, 4, 2, 65, 130, head_dim, Mask::none()),
          problem(type, 1, 1, 20, 300, head_dim, Mask::window(9, 0)),   // tiles of keys that are nobody's
          problem(type, 2, 2, 170, 40, head_dim, Mask::window(5, 20)),  // and of queries that see nothing
          problem(type, 1, 1, 140, 30, head_dim, Mask::causal()),       // beside others in their tile, too
          problem(type, 6, 2, 40, 30, head_dim, Mask::window(0, 0)),
          problem(type, 1, 1, 66, 129, head_dim, Mask::window(30, attention::kUnlimited)),
          problem(type, 2, 1, 5, 0, head_dim, Mask::none()),
          problem(type, 2, 1, 0, 5, head_dim, Mask::causal()),
      };
      for (const Problem& p : problems) {
        // Each kernel gets each problem, but not in each type: the types differ in conversions alone.
        const stage::BackwardKernel kernel = backward_kernels()[(turn++ + (type == ElementType::bf16)) % 2];
        INFO(kernel.name << ", " << p.describe());
        check_none(suite::case_failures(kernel, case_of(p)));
        if (!gpu::device().checked) continue;
        CHECK(double(gpu::counts()->global_loaded) == kernel.traffic(p).loaded);
        CHECK(double(gpu::counts()->global_stored) == kernel.traffic(p).stored);
      }
    }
  }
}

TEST_CASE("the bytes of a causal case, by hand") {
  // Three tiles of 64 queries. Keys 0 to 127 are seen by all 130, keys 128 and 129 by the two of the last tile.
  const Problem p = problem(ElementType::bf16, 1, 1, 130, 130, 128, Mask::causal());
  const double row = 2 * 128, number = 4, statistics = 8;
  const double queries = 130 + 2, padded = 3 * 64, padded_visited = 3 * 64 + 64;
  // O and dO and the LSE of each query; statistics of each padded one.
  const double prepare_loads = 130 * (2 * row + number), prepare_stores = padded * statistics;
  // K and V once, dK and dV once; Q, dO and statistics of each tile.
  const double kv_loads = 130 * 2 * row + queries * 2 * row + padded_visited * statistics, kv_stores = 130 * 2 * row;
  const double sums = padded * 128 * number, atomics = padded_visited * 128 * number;

  const stage::BackwardKernel kv_outer = kernel_named("kv_outer");
  CHECK(kv_outer.traffic(p).loaded == prepare_loads + kv_loads + atomics + sums);
  CHECK(kv_outer.traffic(p).stored == prepare_stores + sums + kv_stores + atomics + 130 * row);
  CHECK(kv_outer.workspace_bytes(p) == prepare_stores + sums);

  // Tiles of 64 queries see 64, 128 and 130 keys; each of four lanes loads a row's statistics.
  const double q_loads = 130 * 2 * row + padded * 4 * statistics + (64 + 128 + 130) * 2 * row;
  const stage::BackwardKernel deterministic = kernel_named("deterministic");
  CHECK(deterministic.traffic(p).loaded == prepare_loads + kv_loads + q_loads);
  CHECK(deterministic.traffic(p).stored == prepare_stores + kv_stores + 130 * row);
  CHECK(deterministic.workspace_bytes(p) == prepare_stores);
}

TEST_CASE("a block of keys goes through the tiles of queries that see them, and no others") {
  using Tile = BackwardTile<gpu::bf16, 64>;
  const Mask masks[] = {Mask::none(),        Mask::causal(),      Mask::window(0, 0),
                        Mask::window(40, 0), Mask::window(3, 70), Mask::window(100, attention::kUnlimited),
                        Mask::window(0, 200)};
  for (const Mask mask : masks)
    for (const int seqlen_q : {0, 1, 63, 64, 65, 200, 300})
      for (const int seqlen_kv : {1, 16, 127, 128, 129, 300}) {
        const Problem p = problem(1, 1, seqlen_q, seqlen_kv, 64, mask);
        CAPTURE(p.describe());
        for (int key = 0; key < seqlen_kv; key += Tile::kBc) {
          const int keys = std::min(Tile::kBc, seqlen_kv - key);
          const auto visited = tensor_core_backward::visited_tiles<Tile>(mask, key, keys, seqlen_q, seqlen_kv);
          REQUIRE((visited.begin >= 0 && visited.begin <= visited.end));
          REQUIRE(visited.end <= tensor_core_backward::tiles_of(seqlen_q, Tile::kBr));
          for (int tile = 0; tile * Tile::kBr < seqlen_q; ++tile) {
            REQUIRE((tile >= visited.begin && tile < visited.end) ==
                    tiles_meet(p, tile * Tile::kBr, Tile::kBr, key, keys));
          }
        }
      }
}

TEST_CASE("negative scales, a scale of 0, and large ones") {
  int turn = 0;
  for (const float scale : {-0.25f, 0.0f, 1.5f, 100.0f, -100.0f}) {
    for (const ElementType type : kTypes) {
      for (const stage::BackwardKernel& kernel : backward_kernels()) {
        Problem p = problem(type, 1, 1, 20, 140, 64, turn % 3 == 0 ? Mask::causal() : Mask::none());
        p.softmax_scale = scale;
        suite::BackwardCase c = case_of(p);
        c.with_dlse = turn++ % 2 == 0;
        check_none(suite::case_failures(kernel, c));
      }
    }
  }
}

TEST_CASE("scores of 10000 and more, of both signs") {
  for (const float scale : {0.25f, -0.25f}) {
    for (const stage::BackwardKernel& kernel : backward_kernels()) {
      Problem p = problem(scale > 0 ? ElementType::fp16 : ElementType::bf16, 1, 1, 70, 140, 64, Mask::causal());
      p.softmax_scale = scale;
      suite::BackwardCase c = case_of(p);
      c.inputs = InputKind::huge_scores;
      check_none(suite::case_failures(kernel, c));
    }
  }
}

TEST_CASE("a gradient of LSE is taken off D, and its rows are loaded once") {
  for (const ElementType type : kTypes) {
    Problem p = problem(type, 4, 2, 70, 40, 64, Mask::window(30, 5));
    p.batch = 2;
    for (const stage::BackwardKernel& kernel : backward_kernels()) {
      INFO(kernel.name);
      suite::BackwardCase c = case_of(p);
      c.with_dlse = true;
      check_none(suite::case_failures(kernel, c));
      if (gpu::device().checked) {
        CHECK(double(gpu::counts()->global_loaded) == kernel.traffic(p).loaded + 4 * double(p.elements_lse()));
      }
      // A dLSE of zeros is none.
      suite::BackwardInputs inputs = inputs_of(problem(type, 2, 1, 20, 40, 64, Mask::none()));
      const Gradients without = gradients(kernel, problem(type, 2, 1, 20, 40, 64, Mask::none()), inputs);
      inputs.dlse.assign(inputs.lse.size(), 0.0f);
      check_same(gradients(kernel, problem(type, 2, 1, 20, 40, 64, Mask::none()), inputs), without);
    }
  }
}

TEST_CASE("rows that see nothing have a dQ of 0 and add nothing, whatever their dO and dLSE", "[C01]") {
  for (const int head_dim : {64, 128}) {
    // Queries 0 to 129 see nothing: two tiles of them alone, two rows beside others.
    const Problem p = problem(ElementType::bf16, 1, 1, 150, 20, head_dim, Mask::causal());
    const suite::BackwardInputs inputs = inputs_of(p, 3, true);
    suite::BackwardInputs other = inputs;
    for (int query = 0; query < 130; ++query) {
      REQUIRE(inputs.lse[query] == -INFINITY);
      other.dlse[query] = -1000;
      for (int c = 0; c < head_dim; ++c) other.dout[query * head_dim + c] = 512;
    }
    for (const stage::BackwardKernel& kernel : backward_kernels()) {
      INFO(kernel.name << ", head_dim " << head_dim);
      const Gradients result = gradients(kernel, p, inputs);
      const auto seen = result.dq.begin() + 130 * head_dim;
      CHECK(std::all_of(result.dq.begin(), seen, [](float x) { return x == 0; }));
      CHECK_FALSE(std::all_of(seen, result.dq.end(), [](float x) { return x == 0; }));
      for (const std::vector<float>* array : {&result.dq, &result.dk, &result.dv}) check_finite(*array);
      check_same(gradients(kernel, p, other), result);  // one block of keys: a single sum, with atomics as without
    }
  }
}

TEST_CASE("keys that nobody sees have gradients of 0") {
  // Queries 0 to 4 see keys 255 to 259, one each: the first block of keys visits nothing, the second one tile, as does
  // the third.
  const Problem p = problem(ElementType::fp16, 1, 1, 5, 260, 64, Mask::window(0, 0));
  for (const stage::BackwardKernel& kernel : backward_kernels()) {
    INFO(kernel.name);
    const Gradients result = gradients(kernel, p, inputs_of(p));
    const auto zero = [](float x) { return x == 0; };
    CHECK(std::all_of(result.dk.begin(), result.dk.begin() + 255 * 64, zero));
    CHECK(std::all_of(result.dv.begin(), result.dv.begin() + 255 * 64, zero));
    for (int key = 255; key < 260; ++key) {
      CHECK_FALSE(std::all_of(result.dv.begin() + key * 64, result.dv.begin() + (key + 1) * 64, zero));
    }
  }
}

TEST_CASE("what follows the last query and the last key does not matter") {
  // A tile that is cut reaches into the next batch entry, where NaN stands in one run and numbers in another.
  for (const int head_dim : {64, 128}) {
    Problem p = problem(ElementType::bf16, 2, 1, 70, 90, head_dim, Mask::none());
    p.batch = 2;
    const suite::BackwardInputs numbers = inputs_of(p, 5, true);
    suite::BackwardInputs nans = numbers;
    for (std::vector<float>* array : {&nans.q, &nans.k, &nans.v, &nans.o, &nans.lse, &nans.dout, &nans.dlse}) {
      std::fill(array->begin() + static_cast<std::ptrdiff_t>(array->size() / 2), array->end(), NAN);
    }
    for (const stage::BackwardKernel& kernel : backward_kernels()) {
      INFO(kernel.name << ", head_dim " << head_dim);
      Gradients of_numbers = gradients(kernel, p, numbers), of_nans = gradients(kernel, p, nans);
      for (Gradients* each : {&of_numbers, &of_nans}) {
        for (std::vector<float>* array : {&each->dq, &each->dk, &each->dv}) array->resize(array->size() / 2);
      }
      check_finite(of_nans.dq);
      check_same(of_nans, of_numbers);
    }
  }
}

TEST_CASE("what stands in the workspace does not matter") {
  // One block of keys, so that sums by atomics have one addend and their bits may be compared. The workspace is
  // poisoned before the first launch; before the second it holds the sums and statistics of the first.
  for (const int head_dim : {64, 128}) {
    const Problem p = problem(ElementType::fp16, 2, 1, 100, 120, head_dim, Mask::causal());
    const suite::BackwardInputs inputs = inputs_of(p);
    for (const stage::BackwardKernel& kernel : backward_kernels()) {
      INFO(kernel.name << ", head_dim " << head_dim);
      suite::GuardedBackwardRun run(kernel, p, inputs);
      check_none(run.launch());
      const Gradients first = gradients(run);
      check_none(run.launch_on_used_workspace());
      check_same(gradients(run), first);
    }
  }
}

TEST_CASE("the same bits under every schedule where there are no atomics, and right where there are") {
  for (const int head_dim : {64, 128}) {
    suite::BackwardCase c = case_of(problem(ElementType::bf16, 2, 1, 66, 150, head_dim, Mask::window(80, 3)));
    c.repeat = c.reschedule = true;
    for (const stage::BackwardKernel& kernel : backward_kernels()) {
      CHECK(kernel.deterministic == (kernel.name == "deterministic"));
      check_none(suite::case_failures(kernel, c));
    }
  }
}

TEST_CASE("atomics take other bits from other runs, in dQ alone", "[C26]") {
  // Five blocks of keys: an element of dQ is a sum of five. Few of 8192 elements change when it has been rounded.
  for (const int heads_kv : {2, 1}) {
    const Problem p = problem(ElementType::fp16, 2, heads_kv, 64, 520, 64, Mask::none());
    const suite::BackwardInputs inputs = inputs_of(p);
    for (const stage::BackwardKernel& kernel : backward_kernels()) {
      INFO(kernel.name << ", " << p.describe());
      const auto run = [&](std::uint64_t number) {
        std::optional<gpu::EmulatorOptionsScope> schedule;
        if (gpu::device().emulated) {
          gpu::EmulatorOptions options =
              suite::with_schedule(number, number % 2 ? gpu::Delivery::immediately : gpu::Delivery::on_wait);
          options.workers = 1;
          schedule.emplace(options);
        }
        return gradients(kernel, p, inputs);
      };
      const Gradients first = run(0);
      bool differs = false;
      for (const std::uint64_t number : {1, 2, 3, 4}) {
        const Gradients other = run(number);
        CHECK(same_bits(other.dk, first.dk));
        CHECK(same_bits(other.dv, first.dv));
        differs = differs || !same_bits(other.dq, first.dq);
      }
      if (kernel.deterministic) {
        CHECK_FALSE(differs);
      } else if (gpu::device().emulated) {  // where every seed is another order
        CHECK(differs);
      }
    }
  }
}

TEST_CASE("sizes of the workspace and offsets into it pass 2^31", "[C10]") {
  using tensor_core_backward::padded_tile, tensor_core_backward::sums_offset, tensor_core_backward::Workspace;
  // C10's case: 400 · 4 heads of 10496 queries, 164 whole tiles. As int32 the last offset would be −2145386497.
  constexpr int kTiles = 400 * 4 * 164;
  constexpr auto last = padded_tile(kTiles - 1, 10496, 4);
  static_assert(last.batch == 399 && last.head == 3 && last.first_query == 163 * 64 && last.first_row == 16793536);
  static_assert(sums_offset<128>(last.first_row + 48, 15, 31) + 3 == 2149580799);
  // Where rows pass 2³¹ as well; and the last tile that a grid has room for.
  static_assert(padded_tile(1 << 25, 64, 1).first_row == std::int64_t{1} << 31);
  static_assert(padded_tile(2147483646, 64, 1).first_row == std::int64_t{2147483646} * 64);
  static_assert(sums_offset<64>(std::int64_t{2147483646} * 64, 0, 0) == std::int64_t{2147483646} * 64 * 64);

  Problem p = problem(ElementType::fp16, 4, 4, 10496, 1, 128, Mask::none());
  p.batch = 400;
  const Workspace layout = Workspace::of(p, true);
  CHECK(layout.rows == 16793600);
  CHECK(layout.bytes() == std::size_t{16793600} * (8 + 4 * 128));
  // Addresses are compared as numbers; nothing is there.
  const std::uintptr_t place = std::uintptr_t{1} << 44;
  void* const workspace = reinterpret_cast<void*>(place);
  CHECK(reinterpret_cast<std::uintptr_t>(layout.statistics(workspace)) == place);
  CHECK(reinterpret_cast<std::uintptr_t>(layout.sums(workspace)) == place + 16793600 * 8);
  // 256 times as long: the statistics alone are 2³⁵ bytes.
  p.batch = 400 * 256;
  const Workspace longer = Workspace::of(p, true);
  CHECK(reinterpret_cast<std::uintptr_t>(longer.sums(workspace)) == place + std::uintptr_t{16793600} * 256 * 8);
}

TEST_CASE("parts of dQ are added where the workspace is longer than 2^32 floats", "[C10]") {
  // Of 2²⁶ + 70 queries the last 70 see keys. What a block of keys adds for them must be what it adds where there are
  // no others, though their sums stand 2³² floats further on: an offset in 32 bits would be one near the beginning.
  using Tile = BackwardTile<gpu::bf16, 64>;
  using tensor_core_backward::RowStatistics, tensor_core_backward::Workspace;
  constexpr int kFirst = 1 << 26, kRows = 70, kPadded = 128;
  const Problem near = problem(ElementType::bf16, 1, 1, kRows, kRows, 64, Mask::causal());
  Problem far = near;
  far.seqlen_q = kFirst + kRows;
  const suite::BackwardInputs inputs = inputs_of(near);
  std::vector<float> statistics;
  for (int row = 0; row < kPadded; ++row) {
    statistics.push_back(row < kRows ? inputs.lse[row] : INFINITY);
    statistics.push_back(row < kRows ? 0.01f * float(row) : 0.0f);
  }
  struct Result {
    std::vector<float> sums, dk, dv;
  };
  const auto run = [&](const Problem& p, std::int64_t first) -> std::optional<Result> {
    const Workspace layout = Workspace::of(p, true);
    const std::size_t elements = std::size_t(p.seqlen_q) * 64, place = std::size_t(first) * 64;
    suite::ReservedMemory workspace(stage::Memory::device, ElementType::fp32, layout.bytes() / sizeof(float));
    suite::ReservedMemory q(stage::Memory::device, p.element_type, elements),
        dout(stage::Memory::device, p.element_type, elements);
    suite::ReservedMemory k(stage::Memory::device, p.element_type, kRows * 64),
        v(stage::Memory::device, p.element_type, kRows * 64);
    suite::ReservedMemory dk(stage::Memory::device, p.element_type, kRows * 64),
        dv(stage::Memory::device, p.element_type, kRows * 64);
    for (const suite::ReservedMemory* memory : {&workspace, &q, &dout, &k, &v, &dk, &dv}) {
      if (!memory->available()) return {};
    }
    q.write(place, inputs.q), dout.write(place, inputs.dout), k.write(0, inputs.k), v.write(0, inputs.v);
    const std::size_t sums = std::size_t(layout.rows) * sizeof(RowStatistics) / sizeof(float) + place;
    workspace.write(2 * std::size_t(first), statistics);
    workspace.write(sums, std::vector<float>(kPadded * 64));
    const auto at = [](suite::ReservedMemory& memory) { return static_cast<gpu::bf16*>(memory.at(0)); };
    attention::BackwardArrays<gpu::bf16> arrays{};
    arrays.q = at(q), arrays.k = at(k), arrays.v = at(v), arrays.dout = at(dout), arrays.dk = at(dk),
    arrays.dv = at(dv);
    const auto args = attention::make_backward_args<gpu::bf16>(p, arrays);
    tensor_core_backward::launch_kv_outer<Tile, true>(args, layout, workspace.at(0));
    gpu::synchronize();
    return Result{workspace.read(sums, kPadded * 64), dk.read(0, kRows * 64), dv.read(0, kRows * 64)};
  };
  const auto of_near = run(near, 0), of_far = run(far, kFirst);
  if (!of_near || !of_far) return;  // too little memory on a GPU, or the checking build, which keeps book of every byte
  CHECK_FALSE(std::all_of(of_near->sums.begin(), of_near->sums.end(), [](float x) { return x == 0; }));
  CHECK(same_bits(of_far->sums, of_near->sums));
  CHECK(same_bits(of_far->dk, of_near->dk));
  CHECK(same_bits(of_far->dv, of_near->dv));
}

TEST_CASE("element types and head_dims that are not taken are refused by name") {
  for (const stage::BackwardKernel& kernel : backward_kernels()) {
    CHECK_THAT(refusal(kernel, problem(ElementType::fp32, 1, 1, 64, 64, 64, Mask::none())),
               ContainsText(kernel.name) && ContainsText("fp32") && ContainsText("bf16"));
    for (const int head_dim : {32, 256}) {
      CHECK_THAT(refusal(kernel, problem(ElementType::bf16, 1, 1, 64, 64, head_dim, Mask::none())),
                 ContainsText(kernel.name) && ContainsText(std::to_string(head_dim)) && ContainsText("64") &&
                     ContainsText("128"));
    }
  }
}

TEST_CASE("strides that are no multiples of 8 are refused", "[C18]") {
  const Problem dense = problem(ElementType::bf16, 2, 2, 20, 40, 64, Mask::causal());
  const Strides odd[] = {{8000, 136, 68, 1}, {8000, 132, 64, 1}, {8004, 128, 64, 1}};
  for (const stage::BackwardKernel& kernel : backward_kernels()) {
    for (const Strides& strides : odd) {
      for (int array = 0; array < 8; ++array) {
        Problem p = dense;
        p.batch = 2;
        std::optional<Strides>* fields[] = {&p.q_strides,    &p.k_strides,  &p.v_strides,  &p.o_strides,
                                            &p.dout_strides, &p.dq_strides, &p.dk_strides, &p.dv_strides};
        const std::string names[] = {"Q", "K", "V", "O", "dO", "dQ", "dK", "dV"};
        *fields[array] = strides;
        CHECK_THAT(refusal(kernel, p), ContainsText(kernel.name) && ContainsText("in " + names[array] + ";") &&
                                           ContainsText("multiples of 8"));
      }
    }
  }
}

TEST_CASE("other strides are taken, a dO expanded from one row among them", "[C18]") {
  Problem p = problem(ElementType::bf16, 2, 2, 20, 40, 64, Mask::causal());
  p.batch = 2;
  p.q_strides = p.k_strides = p.v_strides = p.o_strides = Strides{8000, 144, 72, 1};
  p.dq_strides = p.dk_strides = p.dv_strides = Strides{8008, 152, 80, 1};
  std::uint64_t seed = 100;  // the suite keeps inputs by the case's description, which does not tell all strides apart
  for (const Strides& dout : {Strides{8000, 160, 72, 1}, Strides{0, 0, 64, 1}, Strides{0, 0, 0, 1}}) {
    p.dout_strides = dout;
    ++seed;
    for (const stage::BackwardKernel& kernel : backward_kernels()) {
      check_none(suite::case_failures(kernel, case_of(p, seed)));
    }
  }
}

TEST_CASE("a block that needs more shared memory than there is is refused with both figures", "[C44]") {
  // By hand, rows of head_dim 64 and 128: K and V, two tiles of Q and dO, two of statistics, dS, and P for the partner.
  static_assert(sizeof(BackwardShared<BackwardTile<gpu::bf16, 64>>) ==
                128 * (2 * 128 + 4 * 64) + 2 * 64 * 8 + 128 * 128);
  static_assert(sizeof(BackwardShared<BackwardTile<gpu::bf16, 128>>) ==
                256 * (2 * 128 + 4 * 64) + 2 * 64 * 8 + 2 * 128 * 128);
  static_assert(sizeof(QueryShared<QueryTile<gpu::bf16, 128>>) == 768 * 128);
  if (!gpu::device().emulated) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  for (const std::size_t limit : {49152, 82943, 82944, 101376, 164863, 164864}) {
    options.shared_memory_limit = limit;
    const gpu::EmulatorOptionsScope small(options);
    for (const stage::BackwardKernel& kernel : backward_kernels()) {
      for (const auto& [head_dim, bytes] : {std::pair<int, std::size_t>{64, 82944}, {128, 164864}}) {
        INFO(kernel.name << ", head_dim " << head_dim << ", limit " << limit);
        const std::string said = refusal(kernel, problem(ElementType::fp16, 1, 1, 3, 5, head_dim, Mask::none()));
        if (bytes <= limit) {
          CHECK(said == "nothing");
          continue;
        }
        CHECK_THAT(said, ContainsText(kernel.name + " needs " + std::to_string(bytes) + " bytes") &&
                             ContainsText("allowed") && ContainsText(std::to_string(limit)));
      }
    }
  }
}

TEST_CASE("shared memory is read and written without bank conflicts") {
  if (!gpu::device().checked) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope counting(options);
  for (const int head_dim : {64, 128}) {
    for (const stage::BackwardKernel& kernel : backward_kernels()) {
      check_none(
          suite::case_failures(kernel, case_of(problem(ElementType::bf16, 1, 1, 64, 128, head_dim, Mask::causal()))));
      for (const gpu::KernelCounts& counts : gpu::kernel_counts()) {
        INFO(counts.kernel << ": " << counts.shared_loads.wavefronts << " wavefronts of loads, "
                           << counts.shared_stores.wavefronts << " of stores");
        CHECK(counts.shared_loads.conflicts == 0);
        CHECK(counts.shared_stores.conflicts == 0);
      }
    }
  }
}

TEST_CASE("the instructions and wavefronts of a tile on shared memory, by hand") {
  if (!gpu::device().checked) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope counting(options);
  const auto counted = [](const std::string& name, int head_dim, bool of_keys, int tiles) {
    const Problem p = of_keys ? problem(ElementType::bf16, 1, 1, tiles * 64, 128, head_dim, Mask::none())
                              : problem(ElementType::bf16, 1, 1, 64, tiles * 64, head_dim, Mask::none());
    gradients(kernel_named(name), p, inputs_of(p));
    return gpu::kernel_counts().at(of_keys ? 1 : 2);  // after prepare_kernel, and after both
  };
  const auto check = [&](const std::string& name, int head_dim, bool of_keys, std::uint64_t loads, std::uint64_t stores,
                         std::uint64_t copies, std::uint64_t barriers) {
    const gpu::KernelCounts one = counted(name, head_dim, of_keys, 1), two = counted(name, head_dim, of_keys, 2);
    INFO(one.kernel << ", head_dim " << head_dim);
    CHECK(one.blocks == 1);
    CHECK(two.shared_loads.requests - one.shared_loads.requests == loads);
    CHECK(two.shared_loads.wavefronts - one.shared_loads.wavefronts == 4 * loads);
    CHECK(two.shared_stores.requests - one.shared_stores.requests == stores + copies);
    CHECK(two.shared_stores.wavefronts - one.shared_stores.wavefronts == stores + 4 * copies);
    CHECK(two.barriers - one.barriers == barriers);
  };
  // A warp's square of S and dP: at each 16 columns two fragments of A and two of B, twice; four loads of statistics;
  // two operands of P and dS, four loads of B each. dQ: at each 16 keys two fragments of A and two of B. Head_dim 64:
  // two squares, no partner; 128: one, and the partner's P and dS, an operand of which is two loads.
  const std::uint64_t square_64 = 2 * 4 * 4 + 4 + 2 * 2 * 4, square_128 = 2 * 8 * 4 + 4 + 2 * 2 * 4, dq = 8 * 4;
  const std::uint64_t partner = 2 * 2 * (2 + 4);
  const std::uint64_t copies_64 = 64 * 2 * 128 / 512 + 1, copies_128 = 64 * 2 * 256 / 512 + 1;
  check("kv_outer", 64, true, 4 * (2 * square_64 + dq), 4 * 2 * 2 * 8, copies_64, 2);
  check("kv_outer", 128, true, 8 * (square_128 + partner + dq), 8 * 2 * 2 * 8, copies_128, 2);
  check("deterministic", 64, true, 4 * 2 * square_64, 0, copies_64, 1);
  check("deterministic", 128, true, 8 * (square_128 + partner), 8 * 2 * 2 * 8, copies_128, 2);
  // dQ's kernel: S and dP one fragment of A and four of B at each 16 columns, dQ all of K once.
  check("deterministic", 64, false, 4 * (2 * 4 * 5 + 4 * 4), 0, copies_64 - 1, 1);
  check("deterministic", 128, false, 4 * (2 * 8 * 5 + 4 * 8), 0, copies_128 - 1, 1);
}

TEST_CASE("a tile's copies are on their way while the tile before is computed") {
  if (!gpu::device().emulated) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.record_timeline = true;
  const gpu::EmulatorOptionsScope recording(options);
  // The last launch is kept: for kv_outer that is finish_kernel, so only dQ's kernel can be looked at.
  const Problem p = problem(ElementType::bf16, 1, 1, 64, 5 * 64, 64, Mask::none());
  gradients(kernel_named("deterministic"), p, inputs_of(p));
  std::vector<std::uint64_t> started, waited;  // of warp 0: groups, and the first wait after each
  for (const gpu::TimelineEvent& event : gpu::emulator_timeline()) {
    if (event.warp != 0) continue;
    if (event.kind == gpu::TimelineEvent::Kind::issue) started.push_back(event.step);
    if (event.kind == gpu::TimelineEvent::Kind::wait_begin && waited.size() < started.size()) {
      waited.resize(started.size(), event.step);
    }
  }
  REQUIRE(started.size() == 5);
  REQUIRE(waited.size() == 5);
  for (std::size_t tile = 0; tile < 4; ++tile) {
    CHECK(started[tile + 1] > waited[tile]);      // never more than one tile on its way
    CHECK(waited[tile + 1] > started[tile + 1]);  // and the one before is computed meanwhile
  }
}

TEST_CASE("no wait and no barrier can be left out unnoticed") {
  if (!gpu::device().emulated) return;
  // More than 2 · stages tiles in both loops, so that each buffer is loaded again after it has been read, and twice.
  static_assert(BackwardTile<gpu::bf16, 64>::kStages == 2 && QueryTile<gpu::bf16, 64>::kStages == 2);
  for (const int head_dim : {64, 128}) {
    const std::vector<Problem> problems = {
        problem(ElementType::bf16, 1, 1, 270, 100, head_dim, Mask::none()),      // 5 tiles of queries
        problem(ElementType::bf16, 1, 1, 50, 290, head_dim, Mask::none()),       // 5 tiles of keys
        problem(ElementType::bf16, 1, 1, 5, 140, head_dim, Mask::window(0, 0)),  // keys that nobody sees
        problem(ElementType::bf16, 1, 1, 70, 3, head_dim, Mask::causal())};      // queries that see nothing
    for (const stage::BackwardKernel& kernel : backward_kernels()) {
      gpu::reset_synchronisations_seen();
      for (const Problem& p : problems) check_none(suite::case_failures(kernel, case_of(p)));
      const std::vector<gpu::SourceLine> lines = gpu::synchronisations_seen();
      // At head_dim 64: the loop's wait and barrier, dS's barrier, the wait, the barrier and the warp's own at the end,
      // and finish_kernel's; without dQ no barrier for dS, but the five of dQ's kernel. The partners of head_dim 128
      // need that barrier for themselves.
      CHECK(lines.size() == (kernel.name == "kv_outer" ? 7 : head_dim == 64 ? 10 : 11));
      for (const gpu::SourceLine& line : lines) {
        INFO(kernel.name << ", head_dim " << head_dim << ", without " << line.file << ":" << line.line);
        int noticed = 0, runs = 0;
        for (const std::uint64_t seed : {0, 1, 2})
          for (const gpu::Delivery delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately}) {
            // The checking build sees the race itself, at every seed and in both deliveries. In the plain build a
            // schedule or a delivery may be lucky: one that is not will do.
            if (gpu::device().checked ? seed > (head_dim == 64 ? 1u : 0u) : noticed > 0) continue;
            const std::string report = report_without(kernel, problems, line, seed, delivery);
            runs += 1;
            noticed += !report.empty();
            CHECK(report.find("language.hpp") == std::string::npos);
          }
        CHECK(noticed > 0);
        if (gpu::device().checked) CHECK(noticed == runs);
      }
    }
  }
}
