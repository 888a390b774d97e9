/// \file
/// The hard cases of the backward pass. Inputs and values are stated where they are used.

#include "tests/common/suite/backward_hard_cases.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "common/attention/accuracy.hpp"
#include "common/attention/inputs.hpp"
#include "common/gpu/device.hpp"
#include "tests/common/suite/backward_suite.hpp"
#include "tests/common/suite/guarded_run.hpp"
#include "tests/common/suite/hard_case_tools.hpp"

namespace suite {
namespace {

using attention::ElementType;
using attention::InputKind;
using attention::Inputs;
using attention::Mask;
using attention::Problem;
using attention::Strides;
using stage::BackwardKernel;

/// The value that is right for each (batch entry, position, head, column).
using Expected = std::function<double(int b, int position, int head, int column)>;

float zero(int, int, int, int) { return 0; }
float one(int, int, int, int) { return 1; }
double nothing(int, int, int, int) { return 0; }

/// A fill that is 0 outside column `column`.
template <class Value>
Fill in_column(int column, Value value) {
  return [=](int b, int position, int head, int c) {
    return c == column ? static_cast<float>(value(b, position, head)) : 0.0f;
  };
}
template <class Value>
Expected expected_in_column(int column, Value value) {
  return [=](int b, int position, int head, int c) { return c == column ? double(value(b, position, head)) : 0.0; };
}

/// What a kernel is given, and what its gradients are judged by.
struct Given {
  Problem problem;
  BackwardInputs inputs;
  attention::BackwardYardstick yardstick;
};

/// All laid out by the problem's strides. O and LSE are those of the reference.
Given given(const Problem& p, const Inputs& in, const std::vector<float>& dout, const std::vector<float>& dlse = {}) {
  attention::BackwardYardstick yardstick = attention::make_backward_yardstick(p, in.q, in.k, in.v, dout, dlse);
  BackwardInputs inputs{in.q, in.k, in.v, yardstick.o, yardstick.lse, dout, dlse};
  return {p, std::move(inputs), std::move(yardstick)};
}

/// Dense arrays.
Given given(const Problem& p, const Fill& q, const Fill& k, const Fill& v, const Fill& dout,
            const std::vector<float>& dlse = {}) {
  return given(p, make(p, q, k, v), filled(p.batch, p.seqlen_q, p.heads_q, p.head_dim, dout), dlse);
}

Given given_normal(const Problem& p, std::uint64_t seed, bool with_dlse) {
  return given(p, attention::make_inputs(p, InputKind::normal, seed), attention::make_output_gradient(p, seed),
               with_dlse ? make_lse_gradient(p, seed) : std::vector<float>{});
}

/// Collects what went wrong in a case.
class Trial : public Expectations {
 public:
  Trial(const char* id, const BackwardKernel& of, ElementType of_elements)
      : Expectations(id, of.name, of_elements), kernel(of), type(of_elements), rounding(rounding_of(of_elements)) {}

  const BackwardKernel& kernel;
  const ElementType type;
  const double rounding;  ///< what a gradient may be off by in proportion, besides what fp32 may be

  /// The smallest head_dim from `at_least` on that the kernel takes.
  int head_dim(int at_least) const { return embedding_head_dim(kernel, type, at_least); }

  /// Runs the kernel; null if that failed.
  std::unique_ptr<GuardedBackwardRun> run(const Given& g) {
    try {
      auto run = std::make_unique<GuardedBackwardRun>(kernel, g.problem, g.inputs);
      const Failures complaints = run->launch();
      for (const std::string& sentence : complaints) expect(false, g.problem.describe() + ": " + sentence);
      return complaints.empty() ? std::move(run) : nullptr;
    } catch (const std::exception& error) {
      expect(false, g.problem.describe() + ": " + error.what());
      return nullptr;
    }
  }

  void judge(const GuardedBackwardRun& run, const Given& g, const std::string& when = "") {
    const attention::BackwardVerdict verdict =
        attention::judge_backward(g.problem, run.dq(), run.dk(), run.dv(), g.yardstick);
    expect(verdict.right, g.problem.describe() + when + ": " + verdict.sentence);
  }

  /// As run, and judges the gradients by the accuracy rule.
  std::unique_ptr<GuardedBackwardRun> run_and_judge(const Given& g) {
    auto result = run(g);
    if (result) judge(*result, g);
    return result;
  }

  /// Runs the kernel, and compares every element of the gradients with what is right, up to `tolerance` times that in
  /// fp32, and what roundings to 16 bits add. A 0 must be 0.
  void expect_gradients(const Given& g, const Expected& dq, const Expected& dk, const Expected& dv, double tolerance) {
    expect_gradients(g, dq, dk, dv, tolerance, tolerance);
  }
  /// With a tolerance of its own for dK and dV.
  void expect_gradients(const Given& g, const Expected& dq, const Expected& dk, const Expected& dv, double tolerance_q,
                        double tolerance_kv) {
    const auto result = run(g);
    if (!result) return;
    const Problem& p = g.problem;
    const auto compare = [&](const char* array, int seqlen, int heads, const Expected& right, double tolerance,
                             auto&& actual) {
      for (int b = 0; b < p.batch; ++b)
        for (int i = 0; i < seqlen; ++i)
          for (int h = 0; h < heads; ++h)
            for (int c = 0; c < p.head_dim; ++c) {
              const std::size_t before = failures.size();
              const double value = right(b, i, h, c);
              near(actual(b, i, h, c), value, (tolerance + rounding) * std::abs(value), [&] {
                return p.describe() + ": " + array + " of batch " + std::to_string(b) + ", row " + std::to_string(i) +
                       ", head " + std::to_string(h) + ", column " + std::to_string(c);
              });
              if (failures.size() > before) return;  // the first is enough of an array
            }
    };
    compare("dQ", p.seqlen_q, p.heads_q, dq, tolerance_q, [&](auto... at) { return result->dq(at...); });
    compare("dK", p.seqlen_kv, p.heads_kv, dk, tolerance_kv, [&](auto... at) { return result->dk(at...); });
    compare("dV", p.seqlen_kv, p.heads_kv, dv, tolerance_kv, [&](auto... at) { return result->dv(at...); });
  }
};

/// Room for the rounding of P = exp(S − LSE) and of a few products.
constexpr double kFewRoundings = 2e-6;

void empty_rows(Trial& trial) {
  const int d = trial.head_dim(2);
  {
    // Scores are 0: Q lies in column 1, K in column 0. Queries 0 to 2 see nothing, 3 sees key 0, 4 both, with P = ½, ½,
    // V = 1, 3, O = 2 and dS = −½, ½. The rows that see nothing have a dO that would show.
    const Problem p{.seqlen_q = 5,
                    .seqlen_kv = 2,
                    .head_dim = d,
                    .mask = Mask::causal(),
                    .element_type = trial.type,
                    .softmax_scale = 1.0f};
    const Given g =
        given(p, in_column(1, [](int, int, int) { return 1; }), in_column(0, [](int, int key, int) { return key; }),
              in_column(0, [](int, int key, int) { return key == 0 ? 1 : 3; }),
              in_column(0, [](int, int query, int) { return query < 3 ? 1000 : 1; }));
    trial.expect_gradients(g, expected_in_column(0, [](int, int query, int) { return query == 4 ? 0.5 : 0.0; }),
                           expected_in_column(1, [](int, int key, int) { return key == 0 ? -0.5 : 0.5; }),
                           expected_in_column(0, [](int, int key, int) { return key == 0 ? 1.5 : 0.5; }),
                           kFewRoundings);
  }
  for (const bool with_dlse : {false, true}) {
    // The first 14 rows share a tile with live ones.
    const Problem p{.seqlen_q = 46, .seqlen_kv = 32, .head_dim = d, .mask = Mask::causal(), .element_type = trial.type};
    const Given g = given_normal(p, 1, with_dlse);
    if (const auto run = trial.run_and_judge(g)) {
      for (int i = 0; i < 14; ++i)
        for (int c = 0; c < d; ++c) trial.near(run->dq(0, i, 0, c), 0, 0, "dQ of the empty row " + std::to_string(i));
    }
  }
}

void offsets_64_bit(Trial& trial) {
  // 400 · 4 · 10496 · 128 elements pass 2³¹.
  trial.expect(attention::contiguous_strides(10496, 4, 128).offset(399, 10495, 3) == 2149580800 - 128,
               "the last row of batch 400 has a wrong offset");

  // Sizes computed in 32 bits would shrink somewhere on the way up, or jump. They grow with the doubled size, each time
  // by at least as much as the time before (but for what alignment adds), and none is as large as a negative number
  // that was taken for a size.
  const auto check = [&](const std::string& what, const std::vector<int>& sizes, auto&& problem_of) {
    constexpr double kAlignment = 4096;
    std::vector<double> workspace;
    double traffic = 0;
    for (const int size : sizes) {
      const Problem p = problem_of(size);
      const std::string at = what + " " + std::to_string(size);
      workspace.push_back(static_cast<double>(trial.kernel.workspace_bytes(p)));
      const double* last = &workspace.back();
      trial.expect(*last < 0x1p62, "the workspace is absurdly large at " + at);
      if (workspace.size() >= 2) trial.expect(last[0] >= last[-1], "the workspace shrinks at " + at);
      if (workspace.size() >= 3) {
        trial.expect(last[0] - last[-1] + kAlignment >= last[-1] - last[-2],
                     "the workspace grows by less than before at " + at);
      }
      if (!trial.kernel.traffic) continue;
      const double traffic_now = trial.kernel.traffic(p).total();
      trial.expect(traffic_now > traffic, "the predicted traffic shrinks at " + at);
      traffic = traffic_now;
    }
  };
  const Problem large{
      .heads_q = 4, .heads_kv = 4, .seqlen_q = 10496, .seqlen_kv = 10496, .head_dim = 128, .element_type = trial.type};
  // Up to where even one float for each row passes 2³² bytes.
  const auto doubled = [](int first, int times) {
    std::vector<int> sizes;
    for (int i = 0; i <= times; ++i) sizes.push_back(first << i);
    return sizes;
  };
  check("batch", doubled(25, 15), [&](int batch) {
    Problem p = large;
    p.batch = batch;
    return p;
  });
  check("heads", doubled(32, 12), [&](int heads) {
    Problem p = large;
    p.heads_q = p.heads_kv = heads;
    return p;
  });
  check("seqlen", doubled(1 << 14, 14), [&](int seqlen) {
    Problem p = large;
    p.seqlen_q = p.seqlen_kv = seqlen;
    return p;
  });

  enum { kQ, kK, kV, kO, kDout, kDq, kDk, kDv, kArrays };
  ReservedMemory memory(trial.kernel.memory, trial.type, FarRows::elements(kArrays));
  if (!memory.available()) return;
  for (const FarRows::Axis axis : {FarRows::Axis::batch, FarRows::Axis::seq, FarRows::Axis::head}) {
    FarRows far(memory, axis, trial.head_dim(32));
    Problem p = far.dense();
    p.q_strides = p.k_strides = p.v_strides = p.o_strides = far.strides();
    p.dout_strides = p.dq_strides = p.dk_strides = p.dv_strides = far.strides();
    const Given g = given_normal(far.dense(), 10, false);
    far.place(kQ, g.inputs.q);
    far.place(kK, g.inputs.k);
    far.place(kV, g.inputs.v);
    far.place(kO, g.inputs.o);
    far.place(kDout, g.inputs.dout);
    for (const int gradient : {kDq, kDk, kDv}) far.place_nothing(gradient);

    // `require` may refuse arrays of this length for want of memory; they have it here, so the kernel is run without.
    try {
      GuardedArray lse(trial.kernel.memory, "LSE", ElementType::fp32, g.inputs.lse, 0);
      GuardedArray workspace = GuardedArray::workspace(trial.kernel.memory, trial.kernel.workspace_bytes(p));
      with_element_type(trial.type, [&]<class T>(std::type_identity<T>) {
        const auto at = [&](int array) { return static_cast<T*>(far.at(array)); };
        const auto args = attention::make_backward_args<T>(p, {.q = at(kQ),
                                                               .k = at(kK),
                                                               .v = at(kV),
                                                               .o = at(kO),
                                                               .lse = lse.as<float>(),
                                                               .dout = at(kDout),
                                                               .dlse = nullptr,
                                                               .dq = at(kDq),
                                                               .dk = at(kDk),
                                                               .dv = at(kDv)});
        if (trial.kernel.prepare) trial.kernel.prepare(args, workspace.data());
        trial.kernel.run(args, workspace.data());
      });
      gpu::synchronize();
    } catch (const std::exception& error) {
      trial.expect(false, far.name() + ": " + error.what());
      continue;
    }
    const attention::BackwardVerdict verdict =
        attention::judge_backward(far.dense(), far.gather(kDq), far.gather(kDk), far.gather(kDv), g.yardstick);
    trial.expect(verdict.right, far.name() + ": " + verdict.sentence);
  }
}

void blocks_65536(Trial& trial) {
  // One more than a grid takes along y or z. So many blocks of a few hundred threads are minutes on the emulator, which
  // has its limit lowered instead.
  const bool lowered = gpu::device().emulated && trial.kernel.memory == stage::Memory::device;
  const int many = lowered ? 32 : 65536;
  std::optional<gpu::EmulatorOptionsScope> limit;
  if (lowered) limit.emplace(with_grid_limit(many - 1));
  const int d = trial.head_dim(2);
  const auto check = [&](const Problem& p) {
    if (!takes(trial.kernel, p)) return;
    // Four keys with scores of 0 and V = 0, 1, 2, 3: O = 1.5, dS = dO · (key − 1.5) / 4. dO tells batch entries and
    // heads apart, and adds up to little, so that a sum over 65536 heads in fp32 keeps its digits: one of them lost or
    // counted twice changes it by 10 % at least. In any order, as atomics add, partial sums may grow on the way.
    const auto dout = [](int b, int, int h) { return (b + h) % 7 - 3; };
    const Inputs in =
        make(p, in_column(0, [](int, int, int) { return 1; }), in_column(1, [](int, int key, int) { return key; }),
             in_column(0, [](int, int key, int) { return key; }));
    const auto in_q = [&](const Fill& fill) { return filled(p.batch, p.seqlen_q, p.heads_q, p.head_dim, fill); };
    const std::vector<float> lse(static_cast<std::size_t>(p.elements_lse()), std::log(4.0f));
    const Given g{
        p,
        {in.q, in.k, in.v, in_q(in_column(0, [](int, int, int) { return 1.5f; })), lse, in_q(in_column(0, dout)), {}},
        {}};
    // Over many heads, all are of one group. Σ (key − 1.5) · key / 4 = 1.25.
    double sum = 0;
    for (int h = 0; h < p.heads_q; ++h) sum += dout(0, 0, h);
    const auto of_group = [&](int b) { return p.heads_q > 1 ? sum : dout(b, 0, 0); };
    trial.expect_gradients(g, expected_in_column(1, [&](int b, int, int h) { return 1.25 * dout(b, 0, h); }),
                           expected_in_column(0, [&](int b, int key, int) { return of_group(b) * (key - 1.5) / 4; }),
                           expected_in_column(0, [&](int b, int, int) { return of_group(b) / 4; }), 1e-4,
                           trial.kernel.deterministic ? 1e-4 : std::max(1e-4, p.heads_q * 0x1p-23));
  };
  check(
      {.batch = many, .seqlen_q = 1, .seqlen_kv = 4, .head_dim = d, .element_type = trial.type, .softmax_scale = 1.0f});
  check({.heads_q = many,
         .heads_kv = 1,
         .seqlen_q = 1,
         .seqlen_kv = 4,
         .head_dim = d,
         .element_type = trial.type,
         .softmax_scale = 1.0f});
}

void zero_lengths(Trial& trial) {
  const int d = trial.head_dim(32);
  for (const Mask mask : {Mask::none(), Mask::causal()}) {
    Problem p{.batch = 2,
              .heads_q = 4,
              .heads_kv = 1,
              .seqlen_q = 3,
              .seqlen_kv = 0,
              .head_dim = d,
              .mask = mask,
              .element_type = trial.type};
    trial.expect_gradients(given(p, one, one, one, one), nothing, nothing, nothing, 0);
    std::swap(p.seqlen_q, p.seqlen_kv);
    trial.expect_gradients(given(p, one, one, one, one), nothing, nothing, nothing, 0);
  }
}

void strides(Trial& trial) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  // Smaller where every access is checked.
  const bool checking = depth_for(trial.kernel) == Depth::checking;
  const Problem dense{.batch = 2,
                      .heads_q = 4,
                      .heads_kv = 2,
                      .seqlen_q = checking ? 9 : 33,
                      .seqlen_kv = checking ? 33 : 65,
                      .head_dim = trial.head_dim(checking ? 32 : 64),
                      .element_type = trial.type};
  const Given values = given_normal(dense, 18, true);
  const auto lay_out = [&](const std::vector<float>& from, const Strides& from_strides, int seqlen, int heads,
                           const Strides& to_strides) {
    return relayout(from, from_strides, dense.batch, seqlen, heads, dense.head_dim, to_strides, kNaN);
  };
  const auto of_q = [&](const std::vector<float>& from, const Strides& from_strides, const Strides& to_strides) {
    return lay_out(from, from_strides, dense.seqlen_q, dense.heads_q, to_strides);
  };
  const auto of_kv = [&](const std::vector<float>& from, const Strides& from_strides, const Strides& to_strides) {
    return lay_out(from, from_strides, dense.seqlen_kv, dense.heads_kv, to_strides);
  };

  struct Gradients {
    std::vector<float> dq, dk, dv;
  };
  const auto run = [&](const Problem& p, const BackwardInputs& in) -> std::optional<Gradients> {
    Given g{p,
            {of_q(in.q, dense.strides_q(), p.strides_q()), of_kv(in.k, dense.strides_k(), p.strides_k()),
             of_kv(in.v, dense.strides_v(), p.strides_v()), of_q(in.o, dense.strides_o(), p.strides_o()), in.lse,
             of_q(in.dout, dense.strides_dout(), p.strides_dout()), in.dlse},
            values.yardstick};
    const auto done = trial.run(g);
    if (!done) return std::nullopt;
    return Gradients{of_q(done->dq(), p.strides_dq(), dense.strides_dq()),
                     of_kv(done->dk(), p.strides_dk(), dense.strides_dk()),
                     of_kv(done->dv(), p.strides_dv(), dense.strides_dv())};
  };
  const auto expect_same = [&](const std::string& what, const Gradients& now, const Gradients& first,
                               const attention::BackwardYardstick& yardstick) {
    if (trial.kernel.deterministic) {
      trial.expect(same_bits(now.dq, first.dq) && same_bits(now.dk, first.dk) && same_bits(now.dv, first.dv),
                   what + " gives other bits than dense arrays");
    } else {
      const attention::BackwardVerdict verdict = attention::judge_backward(dense, now.dq, now.dk, now.dv, yardstick);
      trial.expect(verdict.right, what + ": " + verdict.sentence);
    }
  };

  const std::optional<Gradients> first = run(dense, values.inputs);
  if (!first) return;
  const attention::BackwardVerdict verdict =
      attention::judge_backward(dense, first->dq, first->dk, first->dv, values.yardstick);
  trial.expect(verdict.right, verdict.sentence);

  // Each with the gradients in another layout than the inputs.
  const std::pair<Layout, Layout> layouts[] = {{Layout::heads_first, Layout::fused_projection},
                                               {Layout::fused_projection, Layout::k_every_second_row},
                                               {Layout::k_every_second_row, Layout::heads_first}};
  for (const auto& [layout, gradient_layout] : layouts) {
    Problem p = dense;
    apply_layout(p, layout);
    apply_gradient_layout(p, gradient_layout);
    // dO as O, and as O is not.
    for (const OutputGradientLayout dout :
         {OutputGradientLayout::as_o,
          layout == Layout::heads_first ? OutputGradientLayout::dense : OutputGradientLayout::heads_first}) {
      apply_layout(p, dout);
      if (const auto now = run(p, values.inputs)) {
        expect_same("inputs " + name(layout) + ", gradients " + name(gradient_layout) + ", dO " + name(dout), *now,
                    *first, values.yardstick);
      }
    }
  }

  // An expanded dO, of stride 0, is the same as one that holds each of its rows.
  Problem expanded = dense;
  apply_layout(expanded, OutputGradientLayout::same_for_all);
  const std::vector<float> row = attention::make_output_gradient(expanded, 19);
  Problem whole = dense;
  const std::vector<float> rows = of_q(row, expanded.strides_dout(), whole.strides_dout());
  const attention::BackwardYardstick yardstick = attention::make_backward_yardstick(
      whole, values.inputs.q, values.inputs.k, values.inputs.v, rows, values.inputs.dlse);
  BackwardInputs in = values.inputs;
  in.dout = rows;
  const auto from_rows = run(whole, in);
  const auto from_row = run(expanded, in);
  if (from_rows && from_row) expect_same("dO of stride 0", *from_row, *from_rows, yardstick);

  const auto refused_with = [&](std::optional<Strides> Problem::*field) {
    Problem p = dense;
    p.*field = Strides{65 * 4 * 128, 4 * 128, 128, 2};
    try {
      p.validate();
    } catch (const std::invalid_argument&) {
      return true;
    }
    return false;
  };
  trial.expect(refused_with(&Problem::dout_strides) && refused_with(&Problem::dq_strides) &&
                   refused_with(&Problem::dk_strides) && refused_with(&Problem::dv_strides),
               "an innermost stride of 2 is not refused");
}

void head_mapping(Trial& trial) {
  const int d = trial.head_dim(2);
  struct Heads {
    int q, kv;
  };
  for (const Heads heads : {Heads{4, 2}, Heads{28, 4}, Heads{4, 4}}) {
    // Scores are 0 (Q in column 0, K in column 1), so P = 1/3. With K = V = (g + 1) · key in KV head g and
    // dO = h + 1 in query head h: dS = (h + 1) · (g + 1) · (key − 1) / 3.
    const Problem p{.heads_q = heads.q,
                    .heads_kv = heads.kv,
                    .seqlen_q = 2,
                    .seqlen_kv = 3,
                    .head_dim = d,
                    .element_type = trial.type,
                    .softmax_scale = 1.0f};
    const int group = heads.q / heads.kv;
    const auto k = [](int, int key, int g) { return (g + 1) * key; };
    const Given g = given(p, in_column(0, [](int, int, int) { return 1; }), in_column(1, k), in_column(0, k),
                          in_column(0, [](int, int, int h) { return h + 1; }));
    // Σ (h + 1) over the query heads of a KV head, for both queries. (4, 2): 2 · 3, 2 · 7; h mod 2 would give 2 · 4,
    // 2 · 6, and the last head of each group alone 2 · 2, 2 · 4.
    const auto sum = [=](int g) {
      double total = 0;
      for (int h = g * group; h < (g + 1) * group; ++h) total += h + 1;
      return 2 * total;
    };
    trial.expect_gradients(
        g, expected_in_column(1, [=](int, int, int h) { return (h + 1) * std::pow(h / group + 1, 2) * 2 / 3; }),
        // dS of key 1 is 0 in exact arithmetic; its two parts round to equal numbers.
        [=](int, int key, int g, int c) { return c == 0 ? sum(g) * (g + 1) * (key - 1) / 3 : 0.0; },
        expected_in_column(0, [=](int, int, int g) { return sum(g) / 3; }), 1e-5);
  }
}

void few_keys(Trial& trial) {
  {
    // LSE = −100: for a column of zeros that pads the tile, exp(0 − LSE) is infinite.
    const Problem p{.seqlen_q = 1,
                    .seqlen_kv = 1,
                    .head_dim = trial.head_dim(1),
                    .element_type = trial.type,
                    .softmax_scale = 1.0f};
    const auto constant = [](float value) { return in_column(0, [value](int, int, int) { return value; }); };
    // A base-2 logarithm of 100 is rounded to 2⁻¹⁷ of one before it is raised again: P = 1 up to 2e−5.
    trial.expect_gradients(given(p, constant(10), constant(-10), constant(3), constant(1)), nothing, nothing,
                           expected_in_column(0, [](int, int, int) { return 1; }), 2e-5);
  }
  for (const Mask mask : {Mask::causal(), Mask::none()})
    for (const int seqlen_q : {76, 34, 146})
      for (const int seqlen_kv : {1, 2, 3}) {
        const Problem p{.seqlen_q = seqlen_q,
                        .seqlen_kv = seqlen_kv,
                        .head_dim = trial.head_dim(32),
                        .mask = mask,
                        .element_type = trial.type};
        Inputs inputs = attention::make_inputs(p, InputKind::normal, 23);
        std::vector<float> dout = attention::make_output_gradient(p, 23);
        for (std::vector<float>* array : {&inputs.q, &inputs.k, &inputs.v, &dout})
          for (float& value : *array) value = attention::rounded(3 * value, trial.type);
        trial.run_and_judge(given(p, inputs, dout));
      }
}

void large_sums(Trial& trial) {
  // P = ½, ½; dP = ±1600; D = 0; dS = ±800. The sum of dS · K is 160000; times 1/8, dQ = 20000.
  const Problem p{.seqlen_q = 1,
                  .seqlen_kv = 2,
                  .head_dim = trial.head_dim(1),
                  .element_type = trial.type,
                  .softmax_scale = 0.125f};
  const auto alternating = in_column(0, [](int, int key, int) { return key == 0 ? 100 : -100; });
  const auto dout = in_column(0, [](int, int, int) { return 16; });
  trial.expect_gradients(given(p, zero, alternating, alternating, dout),
                         expected_in_column(0, [](int, int, int) { return 20000; }), nothing,
                         expected_in_column(0, [](int, int, int) { return 8; }), kFewRoundings);
}

void repeatability(Trial& trial) {
  const bool emulated = gpu::device().emulated && trial.kernel.memory == stage::Memory::device;
  const bool quick = depth_for(trial.kernel) != Depth::product;
  const int launches = depth_for(trial.kernel) == Depth::checking ? 4 : 50;
  const int d = trial.head_dim(64);
  for (const int heads_kv : {8, 2}) {
    Problem p{.batch = 2,
              .heads_q = 8,
              .heads_kv = heads_kv,
              .seqlen_q = 1024,
              .seqlen_kv = 1024,
              .head_dim = d,
              .element_type = trial.type};
    if (quick) {
      // More rows and keys than a tile of 64 has, so that several blocks add to the same element.
      p = {.heads_q = 2,
           .heads_kv = heads_kv == 8 ? 2 : 1,
           .seqlen_q = 36,
           .seqlen_kv = 70,
           .head_dim = trial.head_dim(32),
           .element_type = trial.type};
    } else if (!trial.kernel.deterministic) {
      p.seqlen_q = p.seqlen_kv = 320;  // each launch is judged, for which 1024 would take the reference long
    }
    Given g;
    if (trial.kernel.deterministic && !quick) {
      // Bits are compared with bits: any O and LSE of the right size serve, and the float64 reference is not needed.
      const Inputs in = attention::make_inputs(p, InputKind::normal, 26);
      const std::vector<float> dout = attention::make_output_gradient(p, 26);
      const attention::PlainForward forward = attention::plain_forward(p, in.q, in.k, in.v);
      g = {p, {in.q, in.k, in.v, forward.o, forward.lse, dout, {}}, {}};
    } else {
      g = given_normal(p, 26, false);
    }
    try {
      GuardedBackwardRun run(trial.kernel, p, g.inputs);
      std::vector<float> dq, dk, dv;
      for (int launch = 0; launch < launches; ++launch) {
        std::optional<gpu::EmulatorOptionsScope> schedule;
        if (emulated) {
          schedule.emplace(
              with_schedule(launch, launch % 2 == 0 ? gpu::Delivery::on_wait : gpu::Delivery::immediately));
        }
        const std::string when = ", launch " + std::to_string(launch + 1);
        const Failures complaints = launch == 0 ? run.launch() : run.launch_on_used_workspace();
        for (const std::string& sentence : complaints) trial.expect(false, p.describe() + when + ": " + sentence);
        if (!trial.kernel.deterministic) {
          trial.judge(run, g, when);
        } else if (launch == 0) {
          dq = run.dq(), dk = run.dk(), dv = run.dv();
        } else {
          trial.expect(same_bits(run.dq(), dq), p.describe() + when + ": dQ differs from the first launch");
          trial.expect(same_bits(run.dk(), dk), p.describe() + when + ": dK differs from the first launch");
          trial.expect(same_bits(run.dv(), dv), p.describe() + when + ": dV differs from the first launch");
        }
        if (!trial.failures.empty()) return;
      }
    } catch (const std::exception& error) {
      trial.expect(false, p.describe() + ": " + error.what());
    }
  }
}

void scale(Trial& trial) {
  // Raw scores 10 and 0, V = 1, 0 and dO = 1, all in column 0: P = p, 1 − p; dP = 1, 0 and D = O = p, as it was stored;
  // dS = P (dP − D), which is ±p (1 − p); dQ = scale · dS · K.
  const auto check = [&](const Problem& p, double scale, double weight) {
    const auto first_key = in_column(0, [](int, int key, int) { return key == 0 ? 1 : 0; });
    const Given g = given(p, in_column(0, [](int, int, int) { return 10; }), first_key, first_key,
                          in_column(0, [](int, int, int) { return 1; }));
    const double o = g.inputs.o.front();
    trial.near(o, weight, 1e-6 + trial.rounding * weight, "the O that the kernel is given");
    const double ds[] = {weight * (1 - o), (1 - weight) * (0 - o)};
    trial.expect_gradients(g, expected_in_column(0, [&](int, int, int) { return scale * ds[0]; }),
                           expected_in_column(0, [&](int, int key, int) { return 10 * scale * ds[key]; }),
                           expected_in_column(0, [=](int, int key, int) { return key == 0 ? weight : 1 - weight; }),
                           5e-6);
  };
  const auto weight_at = [](double scale) { return 1 / (1 + std::exp(-10 * scale)); };

  Problem p{.seqlen_q = 1, .seqlen_kv = 2, .head_dim = 72, .element_type = trial.type};
  if (!takes(trial.kernel, p)) {
    p.head_dim = trial.head_dim(72);
    p.softmax_scale = 1 / std::sqrt(72.0f);
  }
  trial.near(weight_at(1 / std::sqrt(72.0)), 0.764680, 1e-6, "the expected weight itself");
  check(p, 1 / std::sqrt(72.0), weight_at(1 / std::sqrt(72.0)));

  p.head_dim = trial.head_dim(32);
  p.softmax_scale = std::nullopt;
  check(p, 1 / std::sqrt(double(p.head_dim)), weight_at(1 / std::sqrt(double(p.head_dim))));

  // The scores do not matter any more: P is uniform, dQ and dK are 0, and dV is not.
  p.softmax_scale = 0.0f;
  check(p, 0, 0.5);
  // The larger raw score becomes the smaller one.
  p.softmax_scale = -0.1f;
  check(p, -0.1f, weight_at(-0.1f));
}

void near_ties(Trial& trial) {
  // As in the forward: query 4 is (1, 1, 0, …) and scores 38, 0, 0, 0, 38.125 (bf16: 38.25). V of key 4 and dO of query
  // 4 are 1 in column 0, and the rest is 0. So O = D is the weight of key 4, as it was stored.
  const float larger = trial.type == ElementType::bf16 ? 76.5f : 76.25f;
  const Problem p{.seqlen_q = 70,
                  .seqlen_kv = 70,
                  .head_dim = trial.head_dim(64),
                  .mask = Mask::causal(),
                  .element_type = trial.type,
                  .softmax_scale = 0.5f};
  const auto of_4 = in_column(0, [](int, int position, int) { return position == 4 ? 1 : 0; });
  const Given g = given(
      p, [](int, int query, int, int c) { return query == 4 && c < 2 ? 1.0f : 0.0f; },
      [=](int, int key, int, int c) { return key == 0 && c == 1   ? 76.0f
                                             : key == 4 && c == 0 ? larger
                                                                  : 0.0f; }, of_4,
      of_4);
  const auto row = static_cast<std::size_t>(p.strides_o().offset(0, 4, 0));
  const double o = g.inputs.o[row];
  const double lse = 0.5 * larger + std::log1p(std::exp(0.5 * (76 - larger)));
  const auto weight = [=](int key) { return std::exp((key == 0 ? 38 : key == 4 ? 0.5 * larger : 0) - lse); };
  trial.near(weight(0), trial.type == ElementType::bf16 ? 0.437823 : 0.468791, 1e-6, "the expected weight itself");
  const auto ds = [=](int key) { return weight(key) * ((key == 4 ? 1 : 0) - o); };
  // Weights of e⁻³⁸ are 0 in fp16.
  const auto seen = [=](int key, double value) {
    return key <= 4 ? double(attention::rounded(static_cast<float>(value), p.element_type)) : 0.0;
  };
  trial.expect_gradients(
      g,
      [=](int, int query, int, int c) {
        return query != 4 ? 0.0 : c == 0 ? 0.5 * larger * ds(4) : c == 1 ? 0.5 * 76 * ds(0) : 0.0;
      },
      [=](int, int key, int, int c) { return c < 2 ? seen(key, 0.5 * ds(key)) : 0.0; },
      expected_in_column(0, [=](int, int key, int) { return seen(key, weight(key)); }),
      // P = exp(S − LSE), where numbers are 2⁻¹⁸ apart.
      4 * 0x1p-18);
}

void final_o(Trial& trial) {
  const int d = trial.head_dim(2);
  // K = 1 and V = 1 in the first half of the keys, K = −1 and V = 0 in the second; scores are 0, since Q is 0 where K
  // is not. O = ½, n · dS = ½, −½, and dQ = ½. With D of the O of each half alone, dS would be 0; with that of the
  // first half for all, dQ would come out right, but not dK.
  const auto check = [&](int n, int q) {
    const Problem p{.seqlen_q = 1, .seqlen_kv = n, .head_dim = d, .element_type = trial.type, .softmax_scale = 1.0f};
    const auto first_half = [=](int key) { return key < n / 2; };
    const Given g = given(p, in_column(1, [=](int, int, int) { return q; }),
                          in_column(0, [=](int, int key, int) { return first_half(key) ? 1 : -1; }),
                          in_column(0, [=](int, int key, int) { return first_half(key) ? 1 : 0; }),
                          in_column(0, [](int, int, int) { return 1; }));
    trial.expect_gradients(
        g, expected_in_column(0, [](int, int, int) { return 0.5; }),
        expected_in_column(1, [=](int, int key, int) { return q * (first_half(key) ? 0.5 : -0.5) / n; }),
        expected_in_column(0, [=](int, int, int) { return 1.0 / n; }), kFewRoundings);
  };
  check(2, 0);
  for (const int n : {2, 128, 256}) check(n, 1);
}

void through_lse_alone(Trial& trial) {
  const int d = trial.head_dim(2);
  {
    // Scores are 0 (Q in column 0, K in column 1), so P = ¼ and dS = dLSE / 4 with dLSE = 1, 2, 3.
    // dQ = dLSE · (0 + 1 + 2 + 3) / 4, dK = (1² + 2² + 3²) / 4, dV = 0.
    const Problem p{.seqlen_q = 3, .seqlen_kv = 4, .head_dim = d, .element_type = trial.type, .softmax_scale = 1.0f};
    const auto row = [](int, int position, int) { return position + 1; };
    const Given g = given(p, in_column(0, row), in_column(1, [](int, int key, int) { return key; }), one, zero,
                          std::vector<float>{1, 2, 3});
    trial.expect_gradients(g, expected_in_column(1, [](int, int query, int) { return 1.5 * (query + 1); }),
                           expected_in_column(0, [](int, int, int) { return 3.5; }), nothing, kFewRoundings);
  }
  for (const Mask mask : {Mask::none(), Mask::causal()}) {
    const Problem p{.batch = 2,
                    .heads_q = 4,
                    .heads_kv = 2,
                    .seqlen_q = 21,
                    .seqlen_kv = 19,
                    .head_dim = d,
                    .mask = mask,
                    .element_type = trial.type};
    const std::vector<float> no_dout(static_cast<std::size_t>(p.elements_dout()), 0.0f);
    trial.run_and_judge(given(p, attention::make_inputs(p, InputKind::normal, 7), no_dout, make_lse_gradient(p, 7)));
  }
}

}  // namespace

Failures backward_c01_empty_rows(const BackwardKernel& kernel) {
  return for_element_types("C01", kernel, Types::all, empty_rows);
}
Failures backward_c10_64_bit_offsets(const BackwardKernel& kernel) {
  return for_element_types("C10", kernel, Types::all, offsets_64_bit);
}
Failures backward_c12_65536_blocks(const BackwardKernel& kernel) {
  return for_element_types("C12", kernel, Types::one_if_checking, blocks_65536);
}
Failures backward_c16_zero_lengths(const BackwardKernel& kernel) {
  return for_element_types("C16", kernel, Types::all, zero_lengths);
}
Failures backward_c18_strides(const BackwardKernel& kernel) {
  return for_element_types("C18", kernel, Types::one_if_checking, strides);
}
Failures backward_c21_head_mapping(const BackwardKernel& kernel) {
  return for_element_types("C21", kernel, Types::all, head_mapping);
}
Failures backward_c23_few_keys(const BackwardKernel& kernel) {
  return for_element_types("C23", kernel, Types::one_if_checking, few_keys);
}
Failures backward_c25_large_sums(const BackwardKernel& kernel) {
  return for_element_types("C25", kernel, Types::all, large_sums);
}
Failures backward_c26_repeatability(const BackwardKernel& kernel) {
  return for_element_types("C26", kernel, Types::one_if_checking, repeatability);
}
Failures backward_c28_scale(const BackwardKernel& kernel) {
  return for_element_types("C28", kernel, Types::all, scale);
}
Failures backward_c29_near_ties(const BackwardKernel& kernel) {
  return for_element_types("C29", kernel, Types::all, near_ties);
}
Failures backward_c51_final_o(const BackwardKernel& kernel) {
  return for_element_types("C51", kernel, Types::all, final_o);
}
Failures backward_through_lse_alone(const BackwardKernel& kernel) {
  return for_element_types("LSE", kernel, Types::all, through_lse_alone);
}

const std::vector<BackwardHardCase>& backward_hard_cases() {
  static const std::vector<BackwardHardCase> cases = {
      {"C01", "rows that see nothing", backward_c01_empty_rows},
      {"C10", "64-bit offsets", backward_c10_64_bit_offsets},
      {"C12", "65536 batch entries or heads", backward_c12_65536_blocks},
      {"C16", "no keys, no queries", backward_c16_zero_lengths},
      {"C18", "strides", backward_c18_strides},
      {"C21", "head mapping", backward_c21_head_mapping},
      {"C23", "one to three keys", backward_c23_few_keys},
      {"C25", "large sums", backward_c25_large_sums},
      {"C26", "repeatability", backward_c26_repeatability},
      {"C28", "scale", backward_c28_scale},
      {"C29", "near-ties of large scores", backward_c29_near_ties},
      {"C51", "D of the final O", backward_c51_final_o},
      {"LSE", "the gradient of LSE alone", backward_through_lse_alone},
  };
  return cases;
}

}  // namespace suite
