/// \file
/// The cases of the forward suite.

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "common/gpu/device.hpp"
#include "tests/common/suite/forward_suite.hpp"

namespace suite {
namespace {

using attention::ElementType;
using attention::InputKind;
using attention::Mask;
using attention::Problem;

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
  double tiles = 0;  ///< 16 bits: products of the whole tiles that tensor cores multiply, however few rows are in them
  bool within(const Work& most) const { return rows <= most.rows && products <= most.products && tiles <= most.tiles; }
};

/// What a case is put together from.
struct Axes {
  std::vector<Lengths> lengths;
  std::vector<Mask> masks = {Mask::none(),         Mask::causal(),     Mask::window(3, 0),
                             Mask::window(32, 64), Mask::window(0, 0), Mask::window(20, attention::kUnlimited)};
  std::vector<Heads> heads = {{1, 1}, {4, 2}, {6, 1}, {28, 4}};
  std::vector<InputKind> inputs = {InputKind::normal,         InputKind::one_hot_v,   InputKind::rising_scores,
                                   InputKind::falling_scores, InputKind::huge_scores, InputKind::constant_scores};
  std::vector<Layout> layouts = {Layout::dense, Layout::heads_first, Layout::fused_projection,
                                 Layout::k_every_second_row};
  std::vector<int> batches = {1, 2, 3};
  std::vector<int> head_dims;
  /// Absent is the default 1/√head_dim. A 0 is a scale like any other.
  std::vector<std::optional<float>> scales = {std::nullopt, 0.25f, 0.0f};
  std::vector<ElementType> element_types;

  // Order of the axes in a row of the covering array; the long ones first, so that the greedy choice stays good.
  enum { kLengths, kMask, kInputs, kHeads, kLayout, kBatch, kHeadDim, kScale, kType, kAxes };

  std::vector<int> sizes() const {
    const auto n = [](const auto& axis) { return static_cast<int>(axis.size()); };
    return {n(lengths), n(masks),     n(inputs), n(heads),        n(layouts),
            n(batches), n(head_dims), n(scales), n(element_types)};
  }

  /// Query rows and multiplications of QKᵀ without a mask; an axis that is not chosen yet counts as its smallest value.
  Work least_work(const std::vector<int>& row) const {
    Work work;
    work.rows = row[kLengths] < 0 ? 0 : lengths[row[kLengths]].q;
    work.rows *= row[kHeads] < 0 ? heads.front().q : heads[row[kHeads]].q;
    work.rows *= row[kBatch] < 0 ? batches.front() : batches[row[kBatch]];
    work.products = row[kLengths] < 0 ? 0 : work.rows * lengths[row[kLengths]].kv;
    work.products *= row[kHeadDim] < 0 ? head_dims.front() : head_dims[row[kHeadDim]];
    if (row[kLengths] >= 0 && element_types.back() != ElementType::fp32) {
      constexpr int kTile = 64;
      const auto whole = [](int length) { return double((length + kTile - 1) / kTile * kTile); };
      const Lengths& n = lengths[row[kLengths]];
      work.tiles = n.q == 0 ? 0 : work.products / n.q * whole(n.q);
      work.tiles = n.kv == 0 ? 0 : work.tiles / n.kv * whole(n.kv);
    }
    return work;
  }

  SuiteCase at(const std::vector<int>& row) const {
    SuiteCase c;
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
    c.inputs = inputs[row[kInputs]];
    c.layout = layouts[row[kLayout]];
    apply_layout(p, c.layout);
    return c;
  }
};

/// One below, at and one above tile sizes of 16, 32, 64 and 128 on both sides; Nq = Nk, Nq > Nk, Nq < Nk; nothing at
/// all.
std::vector<Lengths> all_lengths() {
  return {{1, 1},   {1, 129},   {7, 15},    {17, 16},   {16, 33},  {33, 32}, {31, 64}, {65, 63}, {64, 65},
          {64, 64}, {100, 128}, {129, 127}, {128, 100}, {200, 17}, {5, 200}, {0, 5},   {5, 0}};
}

/// What one case may cost on the emulator.
constexpr Work kPlainWork{.rows = 400, .products = 8e6, .tiles = 6.5e7};
constexpr Work kCheckingWork{.rows = 150, .products = 1e6, .tiles = 3e7};

std::vector<SuiteCase> covering_cases(const Axes& axes, const Work& most_work) {
  std::vector<SuiteCase> cases;
  for (const auto& row : covering_array(
           axes.sizes(), [&](const std::vector<int>& row) { return axes.least_work(row).within(most_work); })) {
    cases.push_back(axes.at(row));
    cases.back().seed = cases.size();
  }
  return cases;
}

/// Marks the first `count` cases that have enough rows and keys for several tiles, masks of different kinds.
void mark_for_reschedule(std::vector<SuiteCase>& cases, std::size_t count) {
  std::vector<Mask> masks;
  for (SuiteCase& c : cases) {
    const bool tiled = c.problem.seqlen_q >= 33 && c.problem.seqlen_kv >= 33 && c.problem.heads_q <= 6;
    const bool new_mask = std::find(masks.begin(), masks.end(), c.problem.mask) == masks.end();
    if (!tiled || !new_mask || c.inputs == InputKind::constant_scores) continue;
    c.repeat = c.reschedule = true;
    masks.push_back(c.problem.mask);
    if (masks.size() == count) return;
  }
}

/// What each 16-bit type gets besides, since pairs of values do not promise it: scores that rise over more than five
/// tiles of 64 keys, by more than the logarithm of fp16's largest number, as a causal mask and none show them.
void add_long_rises(std::vector<SuiteCase>& cases, const Axes& axes, int seqlen_q, bool reschedule) {
  for (const ElementType type : axes.element_types) {
    if (type == ElementType::fp32) continue;
    for (const Mask mask : {Mask::none(), Mask::causal()}) {
      SuiteCase c;
      c.problem = {.seqlen_q = seqlen_q,
                   .seqlen_kv = 330,
                   .head_dim = axes.head_dims.front(),
                   .mask = mask,
                   .element_type = type};
      c.inputs = InputKind::rising_scores;
      c.reschedule = reschedule && mask == Mask::none();
      cases.push_back(c);
      cases.back().seed = cases.size();
    }
  }
}

std::vector<SuiteCase> product_cases(const Axes& axes) {
  std::vector<SuiteCase> cases;
  std::vector<int> row(Axes::kAxes, 0);
  const std::vector<int> sizes = axes.sizes();
  for (row[Axes::kLengths] = 0; row[Axes::kLengths] < sizes[Axes::kLengths]; ++row[Axes::kLengths])
    for (row[Axes::kMask] = 0; row[Axes::kMask] < sizes[Axes::kMask]; ++row[Axes::kMask])
      for (row[Axes::kHeads] = 0; row[Axes::kHeads] < sizes[Axes::kHeads]; ++row[Axes::kHeads])
        for (row[Axes::kHeadDim] = 0; row[Axes::kHeadDim] < sizes[Axes::kHeadDim]; ++row[Axes::kHeadDim]) {
          cases.push_back(axes.at(row));
          cases.back().seed = cases.size();
          // A generator's step spreads the axes that take turns over the four that are multiplied out.
          const std::uint64_t turn = cases.size() * 0x9E3779B97F4A7C15u >> 16;
          row[Axes::kInputs] = static_cast<int>(turn % sizes[Axes::kInputs]);
          row[Axes::kLayout] = static_cast<int>((turn >> 8) % sizes[Axes::kLayout]);
          row[Axes::kBatch] = static_cast<int>((turn >> 16) % sizes[Axes::kBatch]);
          row[Axes::kScale] = static_cast<int>((turn >> 24) % sizes[Axes::kScale]);
          row[Axes::kType] = static_cast<int>((turn >> 32) % sizes[Axes::kType]);
        }
  return cases;
}

}  // namespace

namespace {

Depth depth_limit = Depth::product;

Depth unlimited_depth(stage::Memory memory) {
  const gpu::DeviceInfo& machine = gpu::device();
  // compute-sanitizer (tests/sanitize) slows kernels down a hundredfold: small shapes for it too.
  if ((machine.emulated && machine.checked) || std::getenv("BOOK_SANITIZER")) return Depth::checking;
  return machine.emulated || memory == stage::Memory::host ? Depth::plain : Depth::product;
}

}  // namespace

Depth depth_for(stage::Memory memory) { return std::min(unlimited_depth(memory), depth_limit); }

DepthLimit::DepthLimit(Depth most) : before_(depth_limit) { depth_limit = most; }
DepthLimit::~DepthLimit() { depth_limit = before_; }

std::string name(Layout layout) {
  switch (layout) {
    case Layout::dense:
      return "dense";
    case Layout::heads_first:
      return "heads first";
    case Layout::fused_projection:
      return "fused projection";
    case Layout::k_every_second_row:
      return "K every second row";
  }
  return "unknown layout";
}

void apply_layout(Problem& p, Layout layout) {
  const auto heads_first = [&](int seqlen, int heads) {
    const std::int64_t head = std::int64_t{seqlen} * p.head_dim;
    return attention::Strides{heads * head, p.head_dim, head, 1};
  };
  const auto rows_of = [&](int seqlen, std::int64_t row) {
    return attention::Strides{seqlen * row, row, p.head_dim, 1};
  };
  p.q_strides = p.k_strides = p.v_strides = p.o_strides = std::nullopt;
  switch (layout) {
    case Layout::dense:
      break;
    case Layout::heads_first:
      p.q_strides = p.o_strides = heads_first(p.seqlen_q, p.heads_q);
      p.k_strides = p.v_strides = heads_first(p.seqlen_kv, p.heads_kv);
      break;
    case Layout::fused_projection: {
      const std::int64_t row = std::int64_t{p.heads_q + 2 * p.heads_kv} * p.head_dim;
      p.q_strides = rows_of(p.seqlen_q, row);
      p.k_strides = p.v_strides = rows_of(p.seqlen_kv, row);
      // 32 elements keep every row 16-byte aligned, as vector loads and stores need it.
      p.o_strides = rows_of(p.seqlen_q, std::int64_t{p.heads_q} * p.head_dim + 32);
      break;
    }
    case Layout::k_every_second_row: {
      const std::int64_t row = 2 * std::int64_t{p.heads_kv} * p.head_dim;
      p.k_strides = rows_of(p.seqlen_kv, row);
      break;
    }
  }
}

std::string SuiteCase::describe() const {
  std::string text = problem.describe();
  if (problem.softmax_scale) text += ", scale " + std::to_string(*problem.softmax_scale);
  return text + ", layout " + name(layout) + ", inputs " + attention::name(inputs) + ", seed " + std::to_string(seed);
}

std::vector<std::vector<int>> covering_array(const std::vector<int>& sizes,
                                             const std::function<bool(const std::vector<int>&)>& allowed) {
  const int axes = static_cast<int>(sizes.size());
  // open[a][b] holds, for a < b, which pairs (value of a, value of b) still have to occur.
  std::vector<std::vector<std::vector<char>>> open(axes, std::vector<std::vector<char>>(axes));
  for (int a = 0; a < axes; ++a)
    for (int b = a + 1; b < axes; ++b) open[a][b].assign(std::size_t(sizes[a]) * sizes[b], 1);
  const auto is_open = [&](int a, int i, int b, int j) -> char& {
    return a < b ? open[a][b][std::size_t(i) * sizes[b] + j] : open[b][a][std::size_t(j) * sizes[a] + i];
  };

  std::vector<std::vector<int>> rows;
  const auto complete = [&](std::vector<int> row) {
    for (int c = 0; c < axes; ++c) {
      if (row[c] >= 0) continue;
      int best = -1, best_gain = -1;
      for (int step = 0; step < sizes[c]; ++step) {
        // Ties go to another value in each row.
        const int value = static_cast<int>((step + rows.size()) % sizes[c]);
        row[c] = value;
        if (!allowed(row)) continue;
        int gain = 0;
        for (int other = 0; other < axes; ++other)
          if (other != c && row[other] >= 0) gain += is_open(c, value, other, row[other]);
        if (gain > best_gain) best = value, best_gain = gain;
      }
      row[c] = best;
    }
    for (int a = 0; a < axes; ++a)
      for (int b = a + 1; b < axes; ++b) is_open(a, row[a], b, row[b]) = 0;
    rows.push_back(row);
  };

  for (int a = 0; a < axes; ++a)
    for (int b = a + 1; b < axes; ++b)
      for (int i = 0; i < sizes[a]; ++i)
        for (int j = 0; j < sizes[b]; ++j) {
          if (!is_open(a, i, b, j)) continue;
          std::vector<int> row(axes, -1);
          row[a] = i;
          row[b] = j;
          if (allowed(row)) complete(row);
        }
  return rows;
}

std::vector<SuiteCase> forward_cases(Depth depth, const Taken& taken) {
  if (taken.element_types.empty() || taken.head_dims.empty()) return {};
  Axes axes;
  axes.element_types = taken.element_types;
  axes.head_dims = taken.head_dims;
  axes.lengths = all_lengths();
  if (depth == Depth::product) {
    std::vector<SuiteCase> cases = product_cases(axes);
    add_long_rises(cases, axes, 70, false);
    return cases;
  }
  if (depth == Depth::plain) {
    std::vector<SuiteCase> cases = covering_cases(axes, kPlainWork);
    for (std::size_t i = 0; i < cases.size(); ++i) cases[i].repeat = i % 3 == 0;
    mark_for_reschedule(cases, 4);
    add_long_rises(cases, axes, 70, true);
    return cases;
  }
  axes.lengths = {{1, 1}, {1, 129}, {17, 16}, {33, 65}, {65, 33}, {5, 0}};
  std::vector<SuiteCase> cases = covering_cases(axes, kCheckingWork);
  for (SuiteCase& c : cases) c.repeat = false;
  mark_for_reschedule(cases, 1);
  add_long_rises(cases, axes, 17, true);
  return cases;
}

}  // namespace suite
