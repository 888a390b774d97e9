/// \file
/// The cases of the backward suite.

#include <algorithm>
#include <optional>
#include <utility>

#include "tests/common/suite/backward_suite.hpp"

namespace suite {
namespace {

using attention::ElementType;
using attention::InputKind;
using attention::Mask;
using attention::Problem;
using attention::Strides;

struct Lengths {
  int q, kv;
};
struct Heads {
  int q, kv;
};

/// What a case costs, roughly.
struct Work {
  double rows = 0;
  double products = 0;
  bool within(const Work& most) const { return rows <= most.rows && products <= most.products; }
};

/// What a case is put together from.
struct Axes {
  std::vector<Lengths> lengths;
  std::vector<Mask> masks = {Mask::none(),         Mask::causal(),     Mask::window(3, 0),
                             Mask::window(32, 64), Mask::window(0, 0), Mask::window(20, attention::kUnlimited)};
  std::vector<InputKind> inputs = {InputKind::normal,         InputKind::one_hot_v,   InputKind::rising_scores,
                                   InputKind::falling_scores, InputKind::huge_scores, InputKind::constant_scores};
  std::vector<OutputGradientLayout> dout_layouts = {
      OutputGradientLayout::as_o, OutputGradientLayout::dense, OutputGradientLayout::heads_first,
      OutputGradientLayout::same_for_queries, OutputGradientLayout::same_for_all};
  /// One of each kind: a head alone, as many KV heads as query heads, groups, one KV head for all, a large odd group.
  std::vector<Heads> heads = {{1, 1}, {3, 3}, {4, 2}, {6, 1}, {28, 4}};
  std::vector<Layout> layouts = {Layout::dense, Layout::heads_first, Layout::fused_projection,
                                 Layout::k_every_second_row};
  std::vector<Layout> gradient_layouts = layouts;
  /// Absent is the default 1/√head_dim. A 0 is a scale like any other, and so is a negative one.
  std::vector<std::optional<float>> scales = {std::nullopt, 0.25f, -0.25f, 0.0f};
  std::vector<int> batches = {1, 2, 3};
  std::vector<int> head_dims;
  std::vector<bool> with_dlse = {false, true};
  std::vector<ElementType> element_types;

  // Order of the axes in a row of the covering array; the long ones first, so that the greedy choice stays good.
  enum { kLengths, kMask, kInputs, kDout, kHeads, kLayout, kGradients, kScale, kBatch, kHeadDim, kDlse, kType, kAxes };

  std::vector<int> sizes() const {
    const auto n = [](const auto& axis) { return static_cast<int>(axis.size()); };
    return {n(lengths),          n(masks),  n(inputs),  n(dout_layouts), n(heads),     n(layouts),
            n(gradient_layouts), n(scales), n(batches), n(head_dims),    n(with_dlse), n(element_types)};
  }

  /// Query rows and multiplications of QKᵀ without a mask; an axis that is not chosen yet counts as its smallest value.
  Work least_work(const std::vector<int>& row) const {
    Work work;
    work.rows = row[kLengths] < 0 ? 0 : lengths[row[kLengths]].q;
    work.rows *= row[kHeads] < 0 ? heads.front().q : heads[row[kHeads]].q;
    work.rows *= row[kBatch] < 0 ? batches.front() : batches[row[kBatch]];
    work.products = row[kLengths] < 0 ? 0 : work.rows * lengths[row[kLengths]].kv;
    work.products *= row[kHeadDim] < 0 ? head_dims.front() : head_dims[row[kHeadDim]];
    return work;
  }

  BackwardCase at(const std::vector<int>& row) const {
    BackwardCase c;
    Problem& p = c.problem;
    p.seqlen_q = lengths[row[kLengths]].q;
    p.seqlen_kv = lengths[row[kLengths]].kv;
    p.mask = masks[row[kMask]];
    p.heads_q = heads[row[kHeads]].q;
    p.heads_kv = heads[row[kHeads]].kv;
    p.batch = batches[row[kBatch]];
    p.head_dim = head_dims[row[kHeadDim]];
    p.softmax_scale = scales[row[kScale]];
    p.element_type = element_types[row[kType]];
    c.layout = layouts[row[kLayout]];
    c.dout_layout = dout_layouts[row[kDout]];
    c.gradient_layout = gradient_layouts[row[kGradients]];
    apply_layout(p, c.layout);
    apply_layout(p, c.dout_layout);
    apply_gradient_layout(p, c.gradient_layout);
    c.inputs = inputs[row[kInputs]];
    c.with_dlse = with_dlse[row[kDlse]];
    return c;
  }
};

/// One to three keys, for which all but a few columns of a tile only pad it; more than five tiles of 64; one below, at
/// and one above tile sizes of 16, 32, 64 and 128 on both sides; Nq = Nk, Nq > Nk (causal: rows that see nothing), Nq <
/// Nk; nothing at all.
std::vector<Lengths> all_lengths() {
  return {{1, 1},    {3, 1},   {34, 2},   {14, 3},   {1, 129}, {7, 15},    {17, 16},   {16, 33},
          {33, 32},  {31, 64}, {65, 63},  {64, 65},  {64, 64}, {100, 128}, {129, 127}, {128, 100},
          {200, 17}, {5, 200}, {330, 10}, {10, 330}, {0, 5},   {5, 0}};
}

/// What one case may cost on the emulator, and in the product, where the float64 reference is what takes time.
constexpr Work kPlainWork{.rows = 400, .products = 3.2e6};
constexpr Work kCheckingWork{.rows = 110, .products = 3e5};
constexpr Work kProductWork{.rows = 6000, .products = 2e7};

std::vector<BackwardCase> covering_cases(const Axes& axes, const Work& most_work) {
  std::vector<BackwardCase> cases;
  for (const auto& row : covering_array(
           axes.sizes(), [&](const std::vector<int>& row) { return axes.least_work(row).within(most_work); })) {
    cases.push_back(axes.at(row));
    cases.back().seed = cases.size();
  }
  return cases;
}

/// Marks the first `count` cases that have enough rows and keys for several tiles, masks of different kinds.
void mark_for_reschedule(std::vector<BackwardCase>& cases, std::size_t count) {
  std::vector<Mask> masks;
  for (BackwardCase& c : cases) {
    const Problem& p = c.problem;
    const bool tiled = p.seqlen_q >= 33 && p.seqlen_kv >= 32 && p.heads_q <= 6;
    const bool new_mask = std::find(masks.begin(), masks.end(), p.mask) == masks.end();
    if (!tiled || !new_mask || c.inputs == InputKind::constant_scores || p.softmax_scale == 0.0f) continue;
    c.repeat = c.reschedule = true;
    masks.push_back(p.mask);
    if (masks.size() == count) return;
  }
}

/// Lengths × masks × head ratios × head_dims; the other axes take turns, and a case that is too long for the reference
/// is left to smaller batches and heads.
std::vector<BackwardCase> product_cases(const Axes& axes) {
  std::vector<BackwardCase> cases;
  std::vector<int> row(Axes::kAxes, 0);
  const std::vector<int> sizes = axes.sizes();
  std::uint64_t count = 0;
  for (row[Axes::kLengths] = 0; row[Axes::kLengths] < sizes[Axes::kLengths]; ++row[Axes::kLengths])
    for (row[Axes::kMask] = 0; row[Axes::kMask] < sizes[Axes::kMask]; ++row[Axes::kMask])
      for (row[Axes::kHeads] = 0; row[Axes::kHeads] < sizes[Axes::kHeads]; ++row[Axes::kHeads])
        for (row[Axes::kHeadDim] = 0; row[Axes::kHeadDim] < sizes[Axes::kHeadDim]; ++row[Axes::kHeadDim]) {
          // A generator's step spreads the axes that take turns over the four that are multiplied out.
          std::uint64_t turn = ++count * 0x9E3779B97F4A7C15u >> 8;
          for (const int axis : {Axes::kInputs, Axes::kDout, Axes::kLayout, Axes::kGradients, Axes::kScale,
                                 Axes::kBatch, Axes::kDlse, Axes::kType}) {
            row[axis] = static_cast<int>(turn % sizes[axis]);
            turn /= sizes[axis];
          }
          if (!axes.least_work(row).within(kProductWork)) row[Axes::kBatch] = 0;
          if (!axes.least_work(row).within(kProductWork)) continue;
          cases.push_back(axes.at(row));
          cases.back().seed = cases.size();
        }
  return cases;
}

}  // namespace

std::string name(OutputGradientLayout layout) {
  switch (layout) {
    case OutputGradientLayout::as_o:
      return "as O";
    case OutputGradientLayout::dense:
      return "dense";
    case OutputGradientLayout::heads_first:
      return "heads first";
    case OutputGradientLayout::same_for_queries:
      return "the same row for all queries";
    case OutputGradientLayout::same_for_all:
      return "one row in all";
  }
  return "unknown layout";
}

void apply_layout(Problem& p, OutputGradientLayout layout) {
  const Strides dense = attention::contiguous_strides(p.seqlen_q, p.heads_q, p.head_dim);
  switch (layout) {
    case OutputGradientLayout::as_o:
      p.dout_strides = std::nullopt;
      return;
    case OutputGradientLayout::dense:
      p.dout_strides = dense;
      return;
    case OutputGradientLayout::heads_first: {
      const std::int64_t head = std::int64_t{p.seqlen_q} * p.head_dim;
      p.dout_strides = Strides{p.heads_q * head, p.head_dim, head, 1};
      return;
    }
    case OutputGradientLayout::same_for_queries:
      p.dout_strides = Strides{dense.seq, 0, dense.head, 1};
      return;
    case OutputGradientLayout::same_for_all:
      p.dout_strides = Strides{0, 0, 0, 1};
      return;
  }
}

void apply_gradient_layout(Problem& p, Layout layout) {
  Problem as_inputs = p;
  apply_layout(as_inputs, layout);
  p.dq_strides = as_inputs.q_strides;
  p.dk_strides = as_inputs.k_strides;
  p.dv_strides = as_inputs.v_strides;
}

std::string BackwardCase::describe() const {
  return problem.describe() + ", layout " + name(layout) + ", of dO " + name(dout_layout) + ", of the gradients " +
         name(gradient_layout) + ", inputs " + attention::name(inputs) + (with_dlse ? ", with dLSE" : "") + ", seed " +
         std::to_string(seed);
}

std::vector<BackwardCase> backward_cases(Depth depth, const Taken& taken) {
  if (taken.element_types.empty() || taken.head_dims.empty()) return {};
  Axes axes;
  axes.element_types = taken.element_types;
  axes.head_dims = taken.head_dims;
  axes.lengths = all_lengths();
  if (depth == Depth::product) {
    axes.heads.erase(axes.heads.begin());  // several heads show all that one does
    return product_cases(axes);
  }
  if (depth == Depth::plain) {
    std::vector<BackwardCase> cases = covering_cases(axes, kPlainWork);
    for (std::size_t i = 0; i < cases.size(); ++i) cases[i].repeat = i % 4 == 0;
    mark_for_reschedule(cases, 3);
    return cases;
  }
  axes.lengths = {{1, 1}, {14, 3}, {17, 16}, {33, 40}, {40, 33}, {5, 0}, {0, 5}};
  axes.heads = {{1, 1}, {3, 3}, {4, 2}};
  axes.inputs = {InputKind::normal, InputKind::rising_scores, InputKind::huge_scores};
  axes.masks = {Mask::none(), Mask::causal(), Mask::window(3, 0), Mask::window(20, attention::kUnlimited)};
  axes.dout_layouts = {OutputGradientLayout::as_o, OutputGradientLayout::heads_first,
                       OutputGradientLayout::same_for_all};
  axes.batches = {1, 2};
  std::vector<BackwardCase> cases = covering_cases(axes, kCheckingWork);
  for (BackwardCase& c : cases) c.repeat = false;
  mark_for_reschedule(cases, 1);
  return cases;
}

}  // namespace suite
