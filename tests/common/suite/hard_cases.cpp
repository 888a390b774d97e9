/// \file
/// The hard cases of the forward pass. Inputs and values are stated where they are used.

#include "tests/common/suite/hard_cases.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>

#include "common/attention/accuracy.hpp"
#include "common/attention/inputs.hpp"
#include "common/gpu/device.hpp"
#include "tests/common/suite/guarded_run.hpp"
#include "tests/common/suite/hard_case_tools.hpp"
#include "tests/common/suite/reserved_memory.hpp"

namespace suite {
namespace {

using attention::ElementType;
using attention::Inputs;
using attention::Mask;
using attention::Problem;
using attention::Strides;
using stage::ForwardKernel;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

float zero(int, int, int, int) { return 0; }
float one(int, int, int, int) { return 1; }
/// Key j is the unit vector e_j: O shows the weight of each key.
float one_hot(int, int position, int, int column) { return position == column ? 1.0f : 0.0f; }

/// Collects what went wrong in a case.
class Trial : public Expectations {
 public:
  Trial(const char* id, const ForwardKernel& of, ElementType of_elements)
      : Expectations(id, of.name, of_elements), kernel(of), type(of_elements), rounding(rounding_of(of_elements)) {}

  const ForwardKernel& kernel;
  const ElementType type;
  const double rounding;  ///< what O may be off by in proportion, besides what fp32 may be

  /// The smallest head_dim from `at_least` on that the kernel takes.
  int head_dim(int at_least) const { return embedding_head_dim(kernel, type, at_least); }

  /// Runs the kernel on a problem; null if that failed.
  std::unique_ptr<GuardedRun> run(const Problem& p, const Inputs& inputs) {
    try {
      auto run = std::make_unique<GuardedRun>(kernel, p, inputs);
      const Failures complaints = run->launch();
      for (const std::string& sentence : complaints) expect(false, p.describe() + ": " + sentence);
      return complaints.empty() ? std::move(run) : nullptr;
    } catch (const std::exception& error) {
      expect(false, p.describe() + ": " + error.what());
      return nullptr;
    }
  }

  /// As run, and judges O and LSE by the accuracy rule.
  std::unique_ptr<GuardedRun> run_and_judge(const Problem& p, const Inputs& inputs) {
    auto result = run(p, inputs);
    if (!result) return result;
    const attention::Verdict verdict =
        attention::judge_forward(p, inputs.q, inputs.k, inputs.v, result->o(), result->lse());
    expect(verdict.right, p.describe() + ": " + verdict.sentence);
    return result;
  }

  /// With Q = 0 and one-hot V: the query sees exactly the keys begin ≤ j < end.
  void expect_visible(const GuardedRun& run, const Problem& p, int query, int begin, int end) {
    for (int key = 0; key < p.seqlen_kv; ++key) {
      const double weight = key >= begin && key < end ? 1.0 / (end - begin) : 0.0;
      near(run.o(0, query, 0, key), weight, 1e-6 + rounding * weight,
           p.describe() + ": weight of key " + std::to_string(key) + " for query " + std::to_string(query));
    }
  }
};

void empty_rows(Trial& trial) {
  const int d = trial.head_dim(1);
  {
    const Problem p{.seqlen_q = 5, .seqlen_kv = 2, .head_dim = d, .mask = Mask::causal(), .element_type = trial.type};
    const auto v = [](int, int key, int, int) { return key == 0 ? 1.0f : 3.0f; };
    if (const auto run = trial.run(p, make(p, zero, one, v))) {
      const double o[] = {0, 0, 0, 1, 2};
      const double lse[] = {-kInfinity, -kInfinity, -kInfinity, 0, 0.693147};
      for (int i = 0; i < 5; ++i) {
        trial.near(run->o(0, i, 0, d - 1), o[i], i < 3 ? 0 : 1e-6, "O of query " + std::to_string(i));
        trial.near(run->lse(0, i, 0), lse[i], i < 3 ? 0 : 1e-6, "LSE of query " + std::to_string(i));
      }
    }
  }
  {
    const Problem p{.seqlen_q = 46, .seqlen_kv = 32, .head_dim = d, .mask = Mask::causal(), .element_type = trial.type};
    if (const auto run = trial.run_and_judge(p, attention::make_inputs(p, attention::InputKind::normal, 1))) {
      for (int i = 0; i < 14; ++i) {
        trial.near(run->lse(0, i, 0), -kInfinity, 0, "LSE of the empty row " + std::to_string(i));
        for (int c = 0; c < d; ++c) trial.near(run->o(0, i, 0, c), 0, 0, "O of the empty row " + std::to_string(i));
      }
    }
  }
}

void causal_alignment(Trial& trial) {
  const int d = trial.head_dim(8);
  struct Lengths {
    int q, kv;
  };
  // (1, 8): the only query sees all 8 keys; (2, 5): 4 and 5 keys; (3, 3): 1, 2, 3 keys.
  for (const Lengths n : {Lengths{1, 8}, Lengths{2, 5}, Lengths{3, 3}}) {
    const Problem p{
        .seqlen_q = n.q, .seqlen_kv = n.kv, .head_dim = d, .mask = Mask::causal(), .element_type = trial.type};
    if (const auto run = trial.run(p, make(p, zero, one, one_hot))) {
      for (int i = 0; i < n.q; ++i) trial.expect_visible(*run, p, i, 0, n.kv - n.q + i + 1);
    }
  }
}

void window_edges(Trial& trial) {
  const int d = trial.head_dim(4);
  for (const int left : {1, 2}) {
    // left = 1: 1, 2, 2, 2 keys; left = 2: 1, 2, 3, 3 keys.
    const Problem p{
        .seqlen_q = 4, .seqlen_kv = 4, .head_dim = d, .mask = Mask::window(left, 0), .element_type = trial.type};
    if (const auto run = trial.run(p, make(p, zero, one, one_hot))) {
      for (int i = 0; i < 4; ++i) trial.expect_visible(*run, p, i, std::max(0, i - left), i + 1);
    }
  }
  {
    // A window over all keys before the diagonal is the causal mask.
    Problem p{.seqlen_q = 40, .seqlen_kv = 40, .head_dim = d, .mask = Mask::window(39, 0), .element_type = trial.type};
    const Inputs inputs = attention::make_inputs(p, attention::InputKind::normal, 5);
    const auto window = trial.run_and_judge(p, inputs);
    p.mask = Mask::causal();
    const auto causal = trial.run_and_judge(p, inputs);
    if (window && causal) {
      // Both are near the same row; in proportion to the values that it weighs.
      float largest_v = 0;
      for (const float v : inputs.v) largest_v = std::max(largest_v, std::abs(v));
      const double tolerance = 1e-4 + 2 * trial.rounding * largest_v;
      for (std::size_t i = 0; i < causal->o().size(); ++i) {
        trial.near(window->o()[i], causal->o()[i], tolerance, "O with the window at element " + std::to_string(i));
      }
    }
  }
  {
    // The diagonal of query 0 stands at key 64 − 129 = −65: with 64 to its right it sees nothing, query 1 sees key 0.
    const int wide = trial.head_dim(64);
    const Problem p{
        .seqlen_q = 129, .seqlen_kv = 64, .head_dim = wide, .mask = Mask::window(32, 64), .element_type = trial.type};
    if (const auto run = trial.run(p, make(p, zero, one, one_hot))) {
      trial.near(run->lse(0, 0, 0), -kInfinity, 0, "LSE of query 0");
      trial.expect_visible(*run, p, 0, 0, 0);
      trial.expect_visible(*run, p, 1, 0, 1);
      for (int i = 1; i < p.seqlen_q; ++i) {
        trial.expect(std::isfinite(run->lse(0, i, 0)), "query " + std::to_string(i) + " should see a key");
      }
    }
  }
}

void padding_keys(Trial& trial) {
  const auto check = [&](int heads, int columns, int n, double tolerance) {
    const int d = trial.head_dim(columns);
    const Problem p{
        .heads_q = heads, .heads_kv = heads, .seqlen_q = n, .seqlen_kv = n, .head_dim = d, .element_type = trial.type};
    const auto v = [&](int, int, int, int column) { return column < columns ? 1.0f : 0.0f; };
    if (const auto run = trial.run(p, make(p, zero, one, v))) {
      for (int h = 0; h < heads; ++h)
        for (int i = 0; i < n; ++i)
          for (int c = 0; c < d; ++c) {
            trial.near(run->o(0, i, h, c), c < columns ? 1 : 0, tolerance,
                       p.describe() + ": O of query " + std::to_string(i));
            if (trial.failures.size() > 3) return;
          }
    }
  };
  check(4, 128, 64, 0);
  check(4, 128, 1, 0);
  // 1/192 is no binary fraction: a kernel that normalises P before it multiplies by V sums 192 rounded terms. So near
  // to 1, the nearest number of 16 bits is 1.
  check(8, 16, 192, trial.type == ElementType::fp32 ? 192 * 0x1p-24 : 0);
}

void very_low_scores(Trial& trial) {
  const int d = trial.head_dim(1);
  const auto q = [](int, int, int, int column) { return column == 0 ? 400.0f : 0.0f; };
  const auto k = [](int, int, int, int column) { return column == 0 ? -500.0f : 0.0f; };
  const auto v = [](int, int key, int, int) { return static_cast<float>(key + 1); };
  // Raw scores of −200000, exactly, in 16 bits too: q and k are numbers of both formats, and their products are summed
  // in fp32. `ulp` is the distance between fp32 numbers of the size of LSE.
  const auto check = [&](float scale, double lse, double ulp, const std::string& what) {
    const Problem p{.seqlen_q = 1, .seqlen_kv = 4, .head_dim = d, .element_type = trial.type, .softmax_scale = scale};
    if (const auto run = trial.run(p, make(p, q, k, v))) {
      trial.near(run->o(0, 0, 0, 0), 2.5, 1e-6 + 2.5 * trial.rounding, what + ": O");
      trial.near(run->lse(0, 0, 0), lse, 2 * ulp, what + ": LSE");
    }
  };
  check(1 / std::sqrt(128.0f), -17676.283, 0x1p-9, "scores of -200000 times 1/sqrt(128), the embedded head's scale");
  // A maximum that starts at −50000 lies below the scaled scores above; below these it does not.
  check(1, -200000 + std::log(4.0), 0x1p-6, "scores of -200000 times 1");
}

void offsets_64_bit(Trial& trial) {
  // 400 · 4 · 10496 · 128 elements pass 2³¹; 1600 · 16 · 729 · 72 elements do not, but their bytes do.
  trial.expect(attention::contiguous_strides(10496, 4, 128).offset(399, 10495, 3) == 2149580800 - 128,
               "the last row of batch 400 has a wrong offset");
  trial.expect(attention::contiguous_strides(729, 16, 72).offset(1599, 728, 15) == 1343692800 - 72,
               "the last row of batch 1600 has a wrong offset");

  // Sizes computed in 32 bits would shrink somewhere on the way up.
  std::size_t workspace_before = 0;
  double traffic_before = 0;
  for (const int batch : {1, 25, 50, 100, 200, 400, 800, 1600}) {
    const Problem p{.batch = batch,
                    .heads_q = 4,
                    .heads_kv = 4,
                    .seqlen_q = 10496,
                    .seqlen_kv = 10496,
                    .head_dim = 128,
                    .element_type = trial.type};
    const std::size_t workspace = trial.kernel.workspace_bytes(p);
    trial.expect(workspace >= workspace_before, "the workspace shrinks at batch " + std::to_string(batch));
    workspace_before = workspace;
    if (!trial.kernel.traffic) continue;
    const double traffic = trial.kernel.traffic(p).total();
    trial.expect(traffic > traffic_before, "the predicted traffic shrinks at batch " + std::to_string(batch));
    traffic_before = traffic;
  }

  enum { kQ, kK, kV, kO, kArrays };
  ReservedMemory memory(trial.kernel.memory, trial.type, FarRows::elements(kArrays));
  if (!memory.available()) return;
  for (const FarRows::Axis axis : {FarRows::Axis::batch, FarRows::Axis::seq, FarRows::Axis::head}) {
    FarRows far(memory, axis, trial.head_dim(32));
    const Problem& dense = far.dense();
    Problem p = dense;
    p.q_strides = p.k_strides = p.v_strides = p.o_strides = far.strides();
    const Inputs inputs = attention::make_inputs(dense, attention::InputKind::normal, 10);
    far.place(kQ, inputs.q);
    far.place(kK, inputs.k);
    far.place(kV, inputs.v);
    far.place_nothing(kO);

    // `require` may refuse arrays of this length for want of memory; they have it here, so the kernel is run without.
    std::vector<float> lse;
    try {
      lse = memory.run(trial.kernel, p, kQ * FarRows::kPitch, kK * FarRows::kPitch, kV * FarRows::kPitch,
                       kO * FarRows::kPitch);
    } catch (const std::exception& error) {
      trial.expect(false, far.name() + ": " + error.what());
      continue;
    }
    const attention::Verdict verdict =
        attention::judge_forward(dense, inputs.q, inputs.k, inputs.v, far.gather(kO), lse);
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
  const int d = trial.head_dim(16);
  const auto check = [&](const Problem& p) {
    if (!takes(trial.kernel, p)) return;
    // The average of four keys' values, which differ from batch entry to batch entry. With so few values all of them,
    // and the averages, are numbers of the type.
    const int values = trial.type == ElementType::bf16 ? 61 : 1000;
    const auto v = [=](int b, int key, int, int) { return static_cast<float>(b % values + key); };
    const auto run = trial.run(p, make(p, zero, one, v));
    if (!run) return;
    for (int b = 0; b < p.batch; ++b)
      for (int h = 0; h < p.heads_q; ++h) {
        trial.near(run->o(b, 0, h, 15), b % values + 1.5, 1e-3,
                   [&] { return p.describe() + ": O of batch " + std::to_string(b) + ", head " + std::to_string(h); });
        if (!trial.failures.empty()) return;
      }
  };
  check({.batch = many, .seqlen_q = 1, .seqlen_kv = 4, .head_dim = d, .element_type = trial.type});
  check({.heads_q = many, .heads_kv = 1, .seqlen_q = 1, .seqlen_kv = 4, .head_dim = d, .element_type = trial.type});
}

void zero_lengths(Trial& trial) {
  const int d = trial.head_dim(32);
  for (const Mask mask : {Mask::none(), Mask::causal()}) {
    const Problem no_keys{.batch = 2,
                          .heads_q = 4,
                          .heads_kv = 1,
                          .seqlen_q = 3,
                          .seqlen_kv = 0,
                          .head_dim = d,
                          .mask = mask,
                          .element_type = trial.type};
    if (const auto run = trial.run(no_keys, make(no_keys, one, one, one))) {
      for (const float o : run->o()) trial.near(o, 0, 0, "O without keys");
      for (const float lse : run->lse()) trial.near(lse, -kInfinity, 0, "LSE without keys");
    }
    const Problem no_queries{.batch = 2,
                             .heads_q = 4,
                             .heads_kv = 1,
                             .seqlen_q = 0,
                             .seqlen_kv = 3,
                             .head_dim = d,
                             .mask = mask,
                             .element_type = trial.type};
    trial.run(no_queries, make(no_queries, one, one, one));
  }
}

void strides(Trial& trial) {
  const Problem dense{.batch = 2,
                      .heads_q = 4,
                      .heads_kv = 2,
                      .seqlen_q = 33,
                      .seqlen_kv = 65,
                      .head_dim = trial.head_dim(64),
                      .element_type = trial.type};
  const Inputs values = attention::make_inputs(dense, attention::InputKind::normal, 18);
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> o, lse;
  for (const Layout layout :
       {Layout::dense, Layout::heads_first, Layout::fused_projection, Layout::k_every_second_row}) {
    Problem p = dense;
    apply_layout(p, layout);
    const auto lay_out = [&](const std::vector<float>& from, const Strides& from_strides, int seqlen, int heads,
                             const Strides& to_strides) {
      return relayout(from, from_strides, p.batch, seqlen, heads, p.head_dim, to_strides, kNaN);
    };
    const Inputs inputs{lay_out(values.q, dense.strides_q(), p.seqlen_q, p.heads_q, p.strides_q()),
                        lay_out(values.k, dense.strides_k(), p.seqlen_kv, p.heads_kv, p.strides_k()),
                        lay_out(values.v, dense.strides_v(), p.seqlen_kv, p.heads_kv, p.strides_v())};
    const auto run = trial.run_and_judge(p, inputs);
    if (!run) continue;
    const std::vector<float> o_here = lay_out(run->o(), p.strides_o(), p.seqlen_q, p.heads_q, dense.strides_o());
    if (layout == Layout::dense) {
      o = o_here;
      lse = run->lse();
    } else {
      trial.expect(same_bits(o_here, o) && same_bits(run->lse(), lse),
                   "layout " + name(layout) + " gives other bits than dense");
    }
  }

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
  trial.expect(refused_with(&Problem::q_strides) && refused_with(&Problem::k_strides) &&
                   refused_with(&Problem::v_strides) && refused_with(&Problem::o_strides),
               "an innermost stride of 2 is not refused");
}

void head_mapping(Trial& trial) {
  const int d = trial.head_dim(32);
  struct Heads {
    int q, kv;
  };
  for (const Heads heads : {Heads{4, 2}, Heads{28, 4}, Heads{4, 4}}) {
    const Problem p{.heads_q = heads.q,
                    .heads_kv = heads.kv,
                    .seqlen_q = 2,
                    .seqlen_kv = 3,
                    .head_dim = d,
                    .element_type = trial.type};
    const auto v = [](int, int, int head, int) { return static_cast<float>(head + 1); };
    if (const auto run = trial.run(p, make(p, zero, one, v))) {
      for (int h = 0; h < heads.q; ++h) {
        trial.near(run->o(0, 1, h, 0), h / (heads.q / heads.kv) + 1, 1e-5,
                   p.describe() + ": O of head " + std::to_string(h));
      }
    }
  }
  const Problem uneven{
      .heads_q = 6, .heads_kv = 4, .seqlen_q = 2, .seqlen_kv = 3, .head_dim = d, .element_type = trial.type};
  bool refused = false;
  try {
    uneven.validate();
    stage::require_taken(trial.kernel, uneven);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  trial.expect(refused, "6 query heads on 4 KV heads are not refused");
}

void large_sums(Trial& trial) {
  // Scores of 0, so that each key weighs 1 before O is divided by the sum of the weights.
  const Problem p{.seqlen_q = 1, .seqlen_kv = 130, .head_dim = trial.head_dim(1), .element_type = trial.type};
  {
    // The sum of V passes 65504, the largest number of fp16; O, which is a number of both 16-bit types, does not.
    const auto v = [](int, int, int, int) { return 59904.0f; };
    if (const auto run = trial.run(p, make(p, zero, one, v))) {
      // In fp32 as in C06, if P is normalised first.
      trial.near(run->o(0, 0, 0, 0), 59904, 59904 * (130 * 0x1p-24 + trial.rounding), "O of equal values");
    }
  }
  {
    // The first value is as large as an even number whose odd neighbours the type does not have: to a sum that is
    // rounded, the ones that follow add nothing.
    const float first = trial.type == ElementType::bf16 ? 256.0f : 2048.0f;
    const auto v = [=](int, int key, int, int) { return key == 0 ? first : 1.0f; };
    if (const auto run = trial.run(p, make(p, zero, one, v))) {
      const double o = (first + p.seqlen_kv - 1) / p.seqlen_kv;
      trial.near(run->o(0, 0, 0, 0), o, 1e-4 + trial.rounding * o, "O of a large value and ones");
    }
  }
}

void scale(Trial& trial) {
  const auto q = [](int, int, int, int column) { return column == 0 ? 10.0f : 0.0f; };
  const auto k = [](int, int key, int, int column) { return key == 0 && column == 0 ? 1.0f : 0.0f; };
  const auto v = [](int, int key, int, int column) { return key == 0 && column < 72 ? 1.0f : 0.0f; };
  const auto check = [&](const Problem& p, double o, double lse, const std::string& what) {
    if (const auto run = trial.run(p, make(p, q, k, v))) {
      trial.near(run->o(0, 0, 0, 0), o, 2e-6 + trial.rounding * o, what + ": O");
      trial.near(run->lse(0, 0, 0), lse, 2e-6, what + ": LSE");
    }
  };
  Problem p{.seqlen_q = 1, .seqlen_kv = 2, .head_dim = 72, .element_type = trial.type};
  const double scaled = 10 / std::sqrt(72.0);
  if (!takes(trial.kernel, p)) {
    p.head_dim = trial.head_dim(72);
    p.softmax_scale = 1 / std::sqrt(72.0f);
  }
  check(p, 0.764680, std::log1p(std::exp(scaled)), "raw scores 10 and 0 at head_dim 72");

  p.head_dim = trial.head_dim(32);
  p.softmax_scale = std::nullopt;
  const double native = std::exp(10 / std::sqrt(double(p.head_dim)));
  check(p, native / (1 + native), std::log1p(native), "the default scale");

  p.softmax_scale = 0.0f;
  check(p, 0.5, std::log(2.0), "a scale of 0");
}

void near_ties(Trial& trial) {
  // Query 4 is (1, 1, 0, …); keys 0 and 4 are (0, 76) and (76.25, 0), and the others 0. With the scale of ½, its scores
  // are 38, 0, 0, 0, 38.125; in bf16, which has no 76.25, key 4 is 76.5 and scores 38.25. A key or a query that is
  // rounded to 16 bits after it was multiplied by ½ · log₂e moves both scores, and each by another amount.
  const float larger = trial.type == ElementType::bf16 ? 76.5f : 76.25f;
  const int d = trial.head_dim(64);
  const Problem p{.seqlen_q = 70,
                  .seqlen_kv = 70,
                  .head_dim = d,
                  .mask = Mask::causal(),
                  .element_type = trial.type,
                  .softmax_scale = 0.5f};
  const auto q = [](int, int query, int, int column) { return query == 4 && column < 2 ? 1.0f : 0.0f; };
  const auto k = [=](int, int key, int, int column) {
    return key == 0 && column == 1 ? 76.0f : key == 4 && column == 0 ? larger : 0.0f;
  };
  const auto run = trial.run(p, make(p, q, k, one_hot));
  if (!run) return;
  // 3 exp(−38) is less than fp32 sees.
  const double lead = 0.5 * (larger - 76);
  const double weight = 1 / (1 + std::exp(-lead));
  trial.near(run->o(0, 4, 0, 0), 1 - weight, 2e-6 + trial.rounding * (1 - weight), "the weight of key 0");
  trial.near(run->o(0, 4, 0, 4), weight, 2e-6 + trial.rounding * weight, "the weight of key 4");
  // 2⁻¹⁸ lies between two fp32 numbers of that size. A kernel that counts in base 2 rounds twice more.
  trial.near(run->lse(0, 4, 0), 0.5 * larger + std::log1p(std::exp(-lead)), 4 * 0x1p-18, "LSE");
}

void lse_base(Trial& trial) {
  const Problem p{
      .seqlen_q = 1, .seqlen_kv = 8, .head_dim = trial.head_dim(1), .element_type = trial.type, .softmax_scale = 1.0f};
  if (const auto run = trial.run(p, make(p, zero, one, one))) {
    trial.near(run->lse(0, 0, 0), 2.079442, 1e-6, "LSE of eight scores of 0");
  }
  // Four scores of 0 with V = 0, four of 2 with V = 1.
  const auto q = [](int, int, int, int column) { return column == 0 ? 1.0f : 0.0f; };
  const auto k = [](int, int key, int, int column) { return key >= 4 && column == 0 ? 2.0f : 0.0f; };
  const auto v = [](int, int key, int, int) { return key >= 4 ? 1.0f : 0.0f; };
  if (const auto run = trial.run(p, make(p, q, k, v))) {
    trial.near(run->o(0, 0, 0, 0), 0.880797, 1e-6 + 0.880797 * trial.rounding, "O of scores 0 and 2");
    trial.near(run->lse(0, 0, 0), 3.513222, 1.5e-6, "LSE of scores 0 and 2");
  }
}

}  // namespace

Failures c01_empty_rows(const ForwardKernel& kernel) {
  return for_element_types("C01", kernel, Types::all, empty_rows);
}
Failures c03_causal_alignment(const ForwardKernel& kernel) {
  return for_element_types("C03", kernel, Types::all, causal_alignment);
}
Failures c05_window_edges(const ForwardKernel& kernel) {
  return for_element_types("C05", kernel, Types::all, window_edges);
}
Failures c06_padding_keys(const ForwardKernel& kernel) {
  return for_element_types("C06", kernel, Types::all, padding_keys);
}
Failures c08_very_low_scores(const ForwardKernel& kernel) {
  return for_element_types("C08", kernel, Types::all, very_low_scores);
}
Failures c10_64_bit_offsets(const ForwardKernel& kernel) {
  return for_element_types("C10", kernel, Types::all, offsets_64_bit);
}
Failures c12_65536_blocks(const ForwardKernel& kernel) {
  return for_element_types("C12", kernel, Types::one_if_checking, blocks_65536);
}
Failures c16_zero_lengths(const ForwardKernel& kernel) {
  return for_element_types("C16", kernel, Types::all, zero_lengths);
}
Failures c18_strides(const ForwardKernel& kernel) {
  return for_element_types("C18", kernel, Types::one_if_checking, strides);
}
Failures c21_head_mapping(const ForwardKernel& kernel) {
  return for_element_types("C21", kernel, Types::all, head_mapping);
}
Failures c25_large_sums(const ForwardKernel& kernel) {
  return for_element_types("C25", kernel, Types::all, large_sums);
}
Failures c28_scale(const ForwardKernel& kernel) { return for_element_types("C28", kernel, Types::all, scale); }
Failures c29_near_ties(const ForwardKernel& kernel) { return for_element_types("C29", kernel, Types::all, near_ties); }
Failures c30_lse_base(const ForwardKernel& kernel) { return for_element_types("C30", kernel, Types::all, lse_base); }

const std::vector<HardCase>& hard_cases() {
  static const std::vector<HardCase> cases = {
      {"C01", "rows that see nothing", c01_empty_rows},
      {"C03", "causal alignment when Nq and Nk differ", c03_causal_alignment},
      {"C05", "both edges of a window", c05_window_edges},
      {"C06", "keys that pad a tile", c06_padding_keys},
      {"C08", "very low scores", c08_very_low_scores},
      {"C10", "64-bit offsets", c10_64_bit_offsets},
      {"C12", "65536 batch entries or heads", c12_65536_blocks},
      {"C16", "no keys, no queries", c16_zero_lengths},
      {"C18", "strides", c18_strides},
      {"C21", "head mapping", c21_head_mapping},
      {"C25", "large sums", c25_large_sums},
      {"C28", "scale", c28_scale},
      {"C29", "near-ties of large scores", c29_near_ties},
      {"C30", "LSE is a natural logarithm", c30_lse_base},
  };
  return cases;
}

}  // namespace suite
