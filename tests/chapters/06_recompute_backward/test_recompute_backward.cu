/// \file
/// The five kernels beyond the backward suite: bytes, tiles that a mask leaves, central differences, a toy training,
/// what is refused, schedules, needed barriers.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chapters/06_recompute_backward/kernels.hpp"
#include "chapters/06_recompute_backward/training.hpp"
#include "common/attention/inputs.hpp"
#include "common/attention/reference.hpp"
#include "common/gpu/buffer.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/backward_suite.hpp"
#include "tests/common/suite/guarded_array.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::BackwardArgs;
using attention::Inputs;
using attention::KeyRange;
using attention::Mask;
using attention::Problem;
using attention::QueryRange;
using attention::Strides;
using recompute_backward::BackwardShared;
using recompute_backward::BackwardTile;
using suite::problem;

stage::BackwardKernel kernel_named(const std::string& name) {
  for (const stage::BackwardKernel& kernel : recompute_backward::backward_kernels()) {
    if (kernel.name == name) return kernel;
  }
  FAIL("there is no kernel " + name);
  return {};
}

/// What the suite says of a kernel on a problem: right, within its arrays, and with the predicted bytes.
suite::Failures failures(const stage::BackwardKernel& kernel, const Problem& p, bool reschedule = false,
                         std::uint64_t seed = 1) {
  suite::BackwardCase c;
  c.problem = p;
  c.repeat = c.reschedule = reschedule;
  c.seed = seed;
  return suite::case_failures(kernel, c);
}

/// What a loss depends on: inputs, and its gradients by O and by LSE. All dense.
struct Loss {
  Problem problem;
  Inputs inputs;
  std::vector<float> dout, dlse;

  Loss(const Problem& p, std::uint64_t seed)
      : problem(p),
        inputs(attention::make_inputs(p, attention::InputKind::normal, seed)),
        dout(attention::make_output_gradient(p, seed)),
        dlse(suite::make_lse_gradient(p, seed)) {}

  /// Σ dO∘O + Σ dLSE · LSE in float64. The LSE of a row that sees nothing is −∞ and does not count.
  double value(const Inputs& at) const {
    const attention::ReferenceForward forward = attention::reference_forward(problem, at.q, at.k, at.v);
    double sum = 0;
    for (std::size_t i = 0; i < dout.size(); ++i) sum += dout[i] * forward.o[i];
    for (std::size_t i = 0; i < dlse.size(); ++i) {
      if (std::isfinite(forward.lse[i])) sum += dlse[i] * forward.lse[i];
    }
    return sum;
  }

  /// Its central differences by each entry of Q, K or V.
  std::vector<double> differences(std::vector<float> Inputs::*array) const {
    constexpr float kStep = 0x1p-10f;
    Inputs at = inputs;
    std::vector<double> slopes;
    for (float& entry : at.*array) {
      const float here = entry, below = here - kStep, above = here + kStep;
      entry = above;
      const double more = value(at);
      entry = below;
      const double less = value(at);
      entry = here;
      slopes.push_back((more - less) / (double(above) - double(below)));
    }
    return slopes;
  }
};

struct Gradients {
  std::vector<float> dq, dk, dv;
};

/// O and LSE by the chapter's forward, gradients by a kernel.
Gradients gradients(const stage::BackwardKernel& kernel, const Loss& loss) {
  const Problem& p = loss.problem;
  kernel.require(p);
  const gpu::DeviceBuffer<float> q(loss.inputs.q, "Q"), k(loss.inputs.k, "K"), v(loss.inputs.v, "V");
  const gpu::DeviceBuffer<float> dout(loss.dout, "dO"), dlse(loss.dlse, "dLSE");
  gpu::DeviceBuffer<float> o(loss.dout.size(), "O"), lse(loss.dlse.size(), "LSE");
  gpu::DeviceBuffer<float> dq(loss.inputs.q.size(), "dQ"), dk(loss.inputs.k.size(), "dK"),
      dv(loss.inputs.v.size(), "dV");
  gpu::DeviceBuffer<unsigned char> workspace(kernel.workspace_bytes(p), "workspace");
  recompute_backward::run_forward(
      attention::make_forward_args<float>(p, q.data(), k.data(), v.data(), o.data(), lse.data()));
  const auto args = attention::make_backward_args<float>(p, {.q = q.data(),
                                                             .k = k.data(),
                                                             .v = v.data(),
                                                             .o = o.data(),
                                                             .lse = lse.data(),
                                                             .dout = dout.data(),
                                                             .dlse = dlse.data(),
                                                             .dq = dq.data(),
                                                             .dk = dk.data(),
                                                             .dv = dv.data()});
  if (kernel.prepare) kernel.prepare(args, workspace.data());
  kernel.run(args, workspace.data());
  gpu::synchronize();
  return {dq.download(), dk.download(), dv.download()};
}

/// Infinite if there is a NaN.
double largest_difference(const std::vector<float>& values, const std::vector<double>& expected) {
  REQUIRE(values.size() == expected.size());
  double largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double apart = std::abs(values[i] - expected[i]);
    largest = std::isnan(apart) ? std::numeric_limits<double>::infinity() : std::max(largest, apart);
  }
  return largest;
}

/// Twenty steps of the program's training; fewer where they take long.
recompute_backward::Training train(const stage::BackwardKernel& kernel) {
  return recompute_backward::train(kernel, problem(2, 1, 24, 40, 32, Mask::causal()), gpu::device().checked ? 8 : 20,
                                   5.0f, 1);
}

__global__ void multiply_kernel(float* values, int count, float factor) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] *= factor;
}

void multiply(float* values, int count, float factor) {
  gpu::launch(multiply_kernel, {.grid = kernel::tiles_of(count, 64), .block = 64}, values, count, factor);
}

/// Step 2 with the scale in dK twice.
stage::BackwardKernel scale_twice() {
  stage::BackwardKernel kernel = kernel_named("kv_outer");
  kernel.run = [run = kernel.run](const BackwardArgs<float>& args, void* workspace) {
    run(args, workspace);
    multiply(args.dk_gmem, args.batch * args.seqlen_kv * args.heads_kv * args.head_dim, args.softmax_scale);
  };
  return kernel;
}

/// Step 3 without D: dS = P∘dP.
stage::BackwardKernel without_d() {
  stage::BackwardKernel kernel = kernel_named("deterministic");
  kernel.run = [](const BackwardArgs<float>& args, void* workspace) {
    float* d_gmem = static_cast<float*>(workspace);
    recompute_backward::launch_row_sums<32>(args, d_gmem, false);
    multiply(d_gmem, args.batch * args.heads_q * args.seqlen_q, 0);
    recompute_backward::launch_kv_outer<BackwardTile<32>, false>(args, d_gmem);
    recompute_backward::launch_q_outer<BackwardTile<32>, false>(args, d_gmem);
  };
  return kernel;
}

/// Whether a query of one tile sees a key of the other, asked pair by pair.
bool tiles_meet(const Problem& p, int first_query, int first_key) {
  using Tile = BackwardTile<32>;
  for (int query = first_query; query < std::min(first_query + Tile::kBr, p.seqlen_q); ++query) {
    const KeyRange keys = attention::visible_keys(p.mask, query, p.seqlen_q, p.seqlen_kv);
    for (int key = first_key; key < first_key + Tile::kBc; ++key) {
      if (key >= keys.begin && key < keys.end) return true;
    }
  }
  return false;
}

/// Whether a loop from begin, in steps of `tile`, below end comes to `first`.
bool comes_to(KeyRange range, int tile, int first) {
  return first >= range.begin && first < range.end && (first - range.begin) % tile == 0;
}

bool takes_any_strides(const stage::BackwardKernel& kernel) { return kernel.name == "stored_p"; }

}  // namespace

TEST_CASE("results are right and counted bytes equal predicted bytes") {
  Problem batches = problem(2, 1, 3, 5, 64, Mask::causal());
  batches.batch = 2;
  const Problem problems[] = {
      problem(1, 1, 1, 1, 32, Mask::none()),
      batches,
      problem(4, 2, 70, 65, 64, Mask::none()),
      problem(2, 1, 65, 130, 128, Mask::causal()),
      problem(1, 1, 70, 140, 128, Mask::window(9, 0)),   // the first tile of keys is nobody's
      problem(2, 2, 170, 100, 32, Mask::window(5, 20)),  // nor is the last one the first rows'
      problem(1, 1, 140, 30, 64, Mask::causal()),        // rows that see nothing, a tile of them alone
      problem(6, 2, 40, 30, 32, Mask::window(0, 0)),
      problem(2, 1, 5, 0, 32, Mask::none()),
      problem(2, 1, 0, 5, 32, Mask::causal()),
  };
  for (const Problem& p : problems) {
    for (const stage::BackwardKernel& kernel : recompute_backward::backward_kernels()) {
      for (const std::string& sentence : failures(kernel, p)) FAIL_CHECK(sentence);
      if (!gpu::device().checked) continue;
      INFO(kernel.name << ", " << p.describe());
      CHECK(double(gpu::counts()->global_loaded) == kernel.traffic(p).loaded);
      CHECK(double(gpu::counts()->global_stored) == kernel.traffic(p).stored);
    }
  }
}

TEST_CASE("the bytes of a causal case, by hand") {
  // Three tiles of 64 queries, which see 64, 128 and 130 keys; three of 64 keys, seen by 130, 66 and 2 queries.
  const Problem p = problem(1, 1, 130, 130, 128, Mask::causal());
  const double row = 4 * 128, number = 4, pairs = 130 * 131 / 2;
  const double keys = 64 + 128 + 130, queries = 130 + 66 + 2;
  const double d_loads = 2 * 130 * row, d_stores = 130 * number;
  const auto check = [&p](const std::string& name, double loaded, double stored) {
    INFO(name);
    CHECK(kernel_named(name).traffic(p).loaded == loaded);
    CHECK(kernel_named(name).traffic(p).stored == stored);
  };
  // dP: dO, P and D a pair, V for each of two blocks of queries. Then P and dO, dS and Q, dS and K, in 128 columns.
  check("stored_p", d_loads + pairs * (row + 2 * number) + 2 * 130 * row + 6 * pairs * row,
        d_stores + 130 * 130 * number + 3 * 130 * row);
  // Q and dO, LSE and D once, K and V a tile; dK and dV by atomics, and zero before.
  const double q_loads = 130 * (2 * row + 2 * number) + 2 * keys * row, key_atomics = 2 * keys * row;
  check("q_outer", d_loads + q_loads + key_atomics, d_stores + 2 * 130 * row + 130 * row + key_atomics);
  // K and V once, Q, dO, LSE and D a tile; dQ by atomics, and zero before.
  const double kv_loads = 2 * 130 * row + queries * (2 * row + 2 * number), query_atomics = queries * row;
  check("kv_outer", d_loads + kv_loads + query_atomics, d_stores + 130 * row + 2 * 130 * row + query_atomics);
  // The same, and P of the tiles that are visited.
  const double p_loads = (130 * 64 + 66 * 64 + 2 * 2) * number;
  check("stored_p_fused", d_loads + kv_loads + p_loads + query_atomics,
        d_stores + 130 * row + 2 * 130 * row + query_atomics);
  check("deterministic", d_loads + q_loads + kv_loads, d_stores + 3 * 130 * row);
}

TEST_CASE("the workspace is a number a row; with a stored P it grows with the square") {
  const std::size_t rows = 6 * 500;
  const Problem p = problem(6, 2, 500, 300, 64, Mask::causal());
  for (const char* name : {"q_outer", "kv_outer", "deterministic"}) {
    CHECK(kernel_named(name).workspace_bytes(p) == 4 * rows);
  }
  CHECK(kernel_named("stored_p_fused").workspace_bytes(p) == 4 * rows * (300 + 1));
  CHECK(kernel_named("stored_p").workspace_bytes(p) == 4 * rows * (2 * 300 + 1));
}

TEST_CASE("the kernels visit the tiles in which a query sees a key, and no others") {
  using Tile = BackwardTile<32>;
  const Mask masks[] = {Mask::none(),        Mask::causal(),      Mask::window(0, 0),
                        Mask::window(40, 0), Mask::window(3, 70), Mask::window(100, attention::kUnlimited),
                        Mask::window(0, 200)};
  for (const Mask mask : masks)
    for (const int seqlen_q : {0, 1, 63, 64, 65, 200, 300})
      for (const int seqlen_kv : {0, 1, 16, 64, 65, 150, 300}) {
        const Problem p = problem(1, 1, seqlen_q, seqlen_kv, 32, mask);
        CAPTURE(p.describe());
        for (int query = 0; query < seqlen_q; query += Tile::kBr) {
          const int rows = std::min(Tile::kBr, seqlen_q - query);
          const KeyRange keys = recompute_backward::visited_keys<Tile>(mask, query, rows, seqlen_q, seqlen_kv);
          REQUIRE((keys.begin >= 0 && keys.begin % Tile::kBc == 0 && keys.end <= seqlen_kv));
          for (int key = 0; key < seqlen_kv; key += Tile::kBc) {
            REQUIRE(comes_to(keys, Tile::kBc, key) == tiles_meet(p, query, key));
          }
        }
        for (int key = 0; key < seqlen_kv; key += Tile::kBc) {
          const int tile_keys = std::min(Tile::kBc, seqlen_kv - key);
          const QueryRange queries =
              recompute_backward::visited_queries<Tile>(mask, key, tile_keys, seqlen_q, seqlen_kv);
          REQUIRE((queries.begin >= 0 && queries.begin % Tile::kBr == 0 && queries.end <= seqlen_q));
          for (int query = 0; query < seqlen_q; query += Tile::kBr) {
            REQUIRE(comes_to(queries, Tile::kBr, query) == tiles_meet(p, query, key));
          }
        }
      }
}

TEST_CASE("the training's forward is right") {
  stage::ForwardKernel forward;
  forward.name = "forward_kernel";
  forward.run = [](const attention::ForwardArgs<float>& args, void*) { recompute_backward::run_forward(args); };
  for (const Problem& p : {problem(1, 1, 5, 70, 32, Mask::none()), problem(4, 2, 33, 40, 64, Mask::causal()),
                           problem(2, 1, 40, 33, 128, Mask::causal()), problem(2, 2, 20, 70, 32, Mask::window(9, 3)),
                           problem(1, 1, 3, 0, 32, Mask::none()), problem(1, 1, 0, 3, 32, Mask::none())}) {
    suite::check_case(forward, p);
  }
}

TEST_CASE("gradients are the slopes of the loss") {
  // Causal with more queries than keys: the first two rows see nothing.
  for (const Problem& p : {problem(2, 1, 4, 5, 32, Mask::window(2, 1)), problem(2, 1, 5, 3, 32, Mask::causal())}) {
    const Loss loss(p, 7);
    const std::vector<double> by_q = loss.differences(&Inputs::q), by_k = loss.differences(&Inputs::k),
                              by_v = loss.differences(&Inputs::v);
    for (const std::vector<double>* slopes : {&by_q, &by_k, &by_v}) {
      const auto flatter = [](double a, double b) { return std::abs(a) < std::abs(b); };
      CHECK(std::abs(*std::max_element(slopes->begin(), slopes->end(), flatter)) > 0.1);  // or zeros would do
    }
    for (const stage::BackwardKernel& kernel : recompute_backward::backward_kernels()) {
      INFO(kernel.name << ", " << p.describe());
      const Gradients result = gradients(kernel, loss);
      CHECK(largest_difference(result.dq, by_q) < 1e-5);
      CHECK(largest_difference(result.dk, by_k) < 1e-5);
      CHECK(largest_difference(result.dv, by_v) < 1e-5);
    }
  }
}

TEST_CASE("a training through the kernels follows the reference's") {
  for (const stage::BackwardKernel& kernel : recompute_backward::backward_kernels()) {
    const recompute_backward::Training training = train(kernel);
    INFO(kernel.name << ": from " << training.reference.front() << " to " << training.reference.back());
    CHECK(recompute_backward::largest_difference(training) < recompute_backward::kCurvesEqual);
    CHECK(training.kernels.back() < 0.8 * training.kernels.front());
    for (std::size_t i = 1; i < training.kernels.size(); ++i) CHECK(training.kernels[i] < training.kernels[i - 1]);
  }
}

TEST_CASE("a training with a wrong gradient bends away") {
  for (const stage::BackwardKernel& kernel : {scale_twice(), without_d()}) {
    const recompute_backward::Training training = train(kernel);
    INFO(kernel.name << ": from " << training.kernels.front() << " to " << training.kernels.back());
    CHECK_THAT(training.kernels.front(), Catch::Matchers::WithinRel(training.reference.front(), 1e-5));
    CHECK(recompute_backward::largest_difference(training) > 100 * recompute_backward::kCurvesEqual);
  }
  // A loss that is no number is no agreement.
  CHECK(recompute_backward::largest_difference({{1, std::nan("")}, {1, 1}}) > recompute_backward::kCurvesEqual);
}

TEST_CASE("tiles that do not fit are refused with the bytes required and allowed", "[C44]") {
  // By hand: Q, dO, K and V with four floats of padding a row, P with 16, two numbers a row.
  static_assert(sizeof(BackwardShared<BackwardTile<128>>) == 4 * (4 * 64 * 132 + 64 * 80 + 2 * 64));
  const std::pair<int, std::size_t> shared_bytes[] = {{32, 57856}, {64, 90624}, {128, 156160}};
  const auto check_all = [&shared_bytes] {
    const std::size_t limit = gpu::shared_memory_limit();
    for (const stage::BackwardKernel& kernel : recompute_backward::backward_kernels()) {
      for (const auto& [head_dim, bytes] : shared_bytes) {
        INFO(kernel.name << ", head_dim " << head_dim << ", limit " << limit);
        const Problem p = problem(1, 1, 3, 5, head_dim, Mask::none());
        if (kernel.name == "stored_p" || bytes <= limit) {
          CHECK_NOTHROW(kernel.require(p));
          continue;
        }
        CHECK_THROWS_AS(kernel.require(p), stage::Refused);
        CHECK_THROWS_WITH(kernel.require(p), ContainsText(kernel.name + " needs " + std::to_string(bytes) + " bytes") &&
                                                 ContainsText("allowed") && ContainsText(std::to_string(limit)));
      }
    }
  };
  check_all();
  if (!gpu::device().emulated) return;
  // Without opting in; a byte too few for head_dim 32, 64, 128, and what these need.
  for (const std::size_t limit : {49152, 57855, 57856, 90623, 90624, 156159, 156160}) {
    gpu::EmulatorOptions options = gpu::emulator_options();
    options.shared_memory_limit = limit;
    const gpu::EmulatorOptionsScope scope(options);
    REQUIRE(gpu::shared_memory_limit() == limit);
    check_all();
  }
}

TEST_CASE("strides that are no multiples of 4 are refused where four floats are loaded at once", "[C18]") {
  const Problem dense = problem(2, 2, 5, 7, 32, Mask::causal());
  const Strides odd[] = {{5000, 66, 33, 1}, {5000, 66, 32, 1}, {5001, 64, 32, 1}};
  std::uint64_t seed = 0;  // the suite keeps inputs by the case's description, which does not tell all strides apart
  for (const Strides& strides : odd) {
    for (int array = 0; array < 8; ++array) {
      Problem p = dense;
      std::optional<Strides>* fields[] = {&p.q_strides,    &p.k_strides,  &p.v_strides,  &p.o_strides,
                                          &p.dout_strides, &p.dq_strides, &p.dk_strides, &p.dv_strides};
      const std::string names[] = {"Q", "K", "V", "O", "dO", "dQ", "dK", "dV"};
      *fields[array] = strides;
      ++seed;
      INFO("strides of " << names[array]);
      for (const stage::BackwardKernel& kernel : recompute_backward::backward_kernels()) {
        if (takes_any_strides(kernel)) {
          for (const std::string& sentence : failures(kernel, p, false, seed)) FAIL_CHECK(sentence);
          continue;
        }
        CHECK_THROWS_AS(kernel.require(p), stage::Refused);
        CHECK_THROWS_WITH(kernel.require(p), ContainsText(kernel.name) && ContainsText("in " + names[array] + ";") &&
                                                 ContainsText("multiples of 4"));
      }
    }
  }
}

TEST_CASE("other strides are taken, a dO expanded from one row among them", "[C18]") {
  Problem p = problem(2, 2, 20, 40, 32, Mask::causal());
  p.q_strides = p.k_strides = p.v_strides = p.o_strides = Strides{5000, 68, 32, 1};
  p.dq_strides = p.dk_strides = p.dv_strides = Strides{5004, 76, 36, 1};
  std::uint64_t seed = 100;
  for (const Strides& dout : {Strides{5000, 72, 36, 1}, Strides{0, 0, 32, 1}, Strides{0, 0, 0, 1}}) {
    p.dout_strides = dout;
    ++seed;
    for (const stage::BackwardKernel& kernel : recompute_backward::backward_kernels()) {
      for (const std::string& sentence : failures(kernel, p, false, seed)) FAIL_CHECK(sentence);
    }
  }
}

TEST_CASE("the same bits under every schedule where there are no atomics, and right where there are") {
  const Problem p = problem(2, 1, 66, 70, 32, Mask::window(40, 3));
  for (const stage::BackwardKernel& kernel : recompute_backward::backward_kernels()) {
    CHECK(kernel.deterministic == (kernel.name == "stored_p" || kernel.name == "deterministic"));
    for (const std::string& sentence : failures(kernel, p, true)) FAIL_CHECK(sentence);
  }
}

TEST_CASE("atomics take other bits from other schedules") {
  if (!gpu::device().emulated || gpu::device().checked) return;
  // Three tiles each way: an element is a sum of three, by three blocks.
  const Loss loss(problem(1, 1, 130, 130, 32, Mask::none()), 1);
  const auto differs = [&loss](const std::string& name) {
    gpu::EmulatorOptions options = gpu::emulator_options();
    options.workers = 1;
    const gpu::EmulatorOptionsScope scope(options);
    const Gradients first = gradients(kernel_named(name), loss);
    for (const std::uint64_t seed : {1, 2, 3, 4}) {
      options.schedule_seed = seed;
      const gpu::EmulatorOptionsScope other_schedule(options);
      const Gradients other = gradients(kernel_named(name), loss);
      // What a block keeps in its registers is added up in one order, whoever comes first.
      if (name == "q_outer") CHECK(other.dq == first.dq);
      if (name == "kv_outer" || name == "stored_p_fused") {
        CHECK(other.dk == first.dk);
        CHECK(other.dv == first.dv);
      }
      if (other.dq != first.dq || other.dk != first.dk || other.dv != first.dv) return true;
    }
    return false;
  };
  for (const char* name : {"q_outer", "kv_outer", "stored_p_fused"}) CHECK(differs(name));
  CHECK_FALSE(differs("deterministic"));
}

TEST_CASE("no barrier can be left out unnoticed") {
  if (!gpu::device().emulated) return;
  // Three tiles of queries and of keys, two query heads to a KV head.
  const Problem p = problem(2, 1, 130, 130, 32, Mask::none());
  for (const stage::BackwardKernel& kernel : recompute_backward::backward_kernels()) {
    gpu::reset_synchronisations_seen();
    for (const std::string& sentence : failures(kernel, p)) FAIL_CHECK(sentence);
    const std::vector<gpu::SourceLine> lines = gpu::synchronisations_seen();
    INFO(kernel.name);
    // Step 3 is step 2 with its five, and step 1 without the two round P.
    CHECK(lines.size() == (kernel.name == "stored_p" ? 0 : kernel.name == "deterministic" ? 8 : 5));
    for (const gpu::SourceLine& line : lines) {
      INFO("without " << line.file << ":" << line.line);
      // The checking build sees the race itself. In the plain build a schedule may be lucky: a thread that waits for
      // its turn with an atomic lets the others read first.
      suite::Failures caught;
      for (const std::uint64_t seed : {0, 1, 2}) {
        gpu::EmulatorOptions options = gpu::emulator_options();
        options.without = {line};
        options.schedule_seed = seed;
        const gpu::EmulatorOptionsScope scope(options);
        if (caught.empty()) caught = failures(kernel, p);
        if (gpu::device().checked) break;
      }
      REQUIRE_FALSE(caught.empty());
      INFO(caught.front());
      if (!gpu::device().checked) continue;  // the plain build's results are wrong
      // A report with the kernel's own lines, and not those of the float4 that it copies.
      CHECK(caught.front().find("race on shared memory") != std::string::npos);
      CHECK(caught.front().find(".cuh:") != std::string::npos);
      CHECK(caught.front().find("language.hpp") == std::string::npos);
    }
  }
}

TEST_CASE("shared memory is read and written without bank conflicts") {
  if (!gpu::device().checked) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope scope(options);
  for (const int head_dim : {32, 64, 128}) {
    for (const char* name : {"q_outer", "kv_outer", "stored_p_fused", "deterministic"}) {
      for (const std::string& sentence : failures(kernel_named(name), problem(1, 1, 64, 64, head_dim, Mask::none()))) {
        FAIL_CHECK(sentence);
      }
      const gpu::KernelCounts tiles = gpu::kernel_counts().back();
      INFO(name << ", " << tiles.kernel);
      CHECK(tiles.shared_loads.requests > 0);
      CHECK(tiles.shared_loads.conflicts == 0);
      CHECK(tiles.shared_stores.conflicts == 0);
    }
  }
}

TEST_CASE("the wavefronts of a tile, as the chapter's text has them") {
  if (!gpu::device().checked) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope scope(options);
  const auto counted = [](int head_dim, int tiles) {
    gpu::reset_counts();
    gradients(kernel_named("kv_outer"), Loss(problem(1, 1, tiles * 64, 64, head_dim, Mask::none()), 1));
    return gpu::kernel_counts().back();
  };
  const auto check = [&counted](int head_dim, std::uint64_t loads, std::uint64_t stores) {
    const gpu::KernelCounts one = counted(head_dim, 1), two = counted(head_dim, 2);
    INFO(one.kernel);
    CHECK(two.shared_loads.wavefronts - one.shared_loads.wavefronts == loads);
    CHECK(two.shared_stores.wavefronts - one.shared_stores.wavefronts == stores);
  };
  // Eight warps. Loads: of S and dP, of dV and dK, of dQ; LSE and D of four rows. Stores: Q and dO, P and dS; and LSE
  // and D of 64 rows.
  check(128, 8 * (1024 + 768 + 384 + 4 * 2), 8 * (64 + 32) + 2 * 2);
  check(64, 8 * (512 + 512 + 256 + 4 * 2), 8 * (32 + 32) + 2 * 2);
}
