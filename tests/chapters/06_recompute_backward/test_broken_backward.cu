/// \file
/// The suite catches kernels of this chapter's kind with a fault: a padded column that is not masked, D from a part of
/// O, a group that is not added up, tiles left out, sums that do not begin at zero.
///
/// The kernels are the chapter's own. They take their pieces by the tile's type, so that a fault is a tile of another
/// type.

#include <limits>
#include <string>
#include <vector>

#include "chapters/06_recompute_backward/step1_q_outer.cuh"
#include "chapters/06_recompute_backward/step2_kv_outer.cuh"
#include "common/gpu/emulation.hpp"
#include "common/gpu/warp.cuh"
#include "tests/catch.hpp"
#include "tests/common/suite/backward_hard_cases.hpp"
#include "tests/common/suite/backward_suite.hpp"

namespace broken_backward_tiles {

/// The smallest head_dim.
constexpr int kHeadDim = 32;
using Tile = recompute_backward::BackwardTile<kHeadDim>;

struct Right : Tile {};
struct MaskBeforeExp : Tile {};
struct PartialO : Tile {};
struct LastHeadOfGroup : Tile {};
struct OneTileTooFew : Tile {};
struct FirstTileForgotten : Tile {};

/// Rounds the end down.
constexpr attention::KeyRange without_last(attention::KeyRange range, int tile) {
  return range.size() > tile ? attention::KeyRange{range.begin, (range.end - 1) / tile * tile} : range;
}

/// Rounds the beginning up.
constexpr attention::KeyRange without_first(attention::KeyRange range, int tile) {
  return range.size() > tile ? attention::KeyRange{range.begin + tile, range.end} : range;
}

}  // namespace broken_backward_tiles

namespace recompute_backward {

namespace broken = broken_backward_tiles;

/// S = −∞ for hidden keys, as a forward does it, and nothing after the exponential. The columns that pad K are no keys,
/// and the mask does not speak of them.
template <>
__device__ void probabilities<broken::MaskBeforeExp>(Square<broken::MaskBeforeExp>& s,
                                                     Square<broken::MaskBeforeExp>& dp, const BackwardArgs<float>& args,
                                                     const BackwardShared<broken::MaskBeforeExp>& shared,
                                                     int first_query, int first_key) {
  using Tile = broken::MaskBeforeExp;
  const int lane = Tile::lane(static_cast<int>(threadIdx.x)), group = Tile::group(static_cast<int>(threadIdx.x));
  for (int r = 0; r < Tile::kRows; ++r) {
    const int row = group + r * Tile::kLanes, query = first_query + row;
    const KeyRange visible = query < args.seqlen_q ? args.visible_keys(query) : KeyRange{0, 0};
    for (int n = 0; n < Tile::kKeys; ++n) {
      const int key = first_key + lane + n * Tile::kLanes;
      const bool hidden = key < args.seqlen_kv && (key < visible.begin || key >= visible.end);
      const float score = hidden ? -INFINITY : args.softmax_scale * s[r][n];
      s[r][n] = visible.empty() ? 0.0f : expf(score - shared.lse[row]);
      dp[r][n] = s[r][n] * (dp[r][n] - shared.d[row]);
    }
  }
}

/// D of the O that the tile's keys alone would give: rowsum(P∘dP) / rowsum(P) over them.
template <>
__device__ void probabilities<broken::PartialO>(Square<broken::PartialO>& s, Square<broken::PartialO>& dp,
                                                const BackwardArgs<float>& args,
                                                const BackwardShared<broken::PartialO>& shared, int first_query,
                                                int first_key) {
  using Tile = broken::PartialO;
  const int lane = Tile::lane(static_cast<int>(threadIdx.x)), group = Tile::group(static_cast<int>(threadIdx.x));
  for (int r = 0; r < Tile::kRows; ++r) {
    const int row = group + r * Tile::kLanes, query = first_query + row;
    const KeyRange visible = query < args.seqlen_q ? args.visible_keys(query) : KeyRange{0, 0};
    float sum = 0, weighted = 0;
    for (int n = 0; n < Tile::kKeys; ++n) {
      const int key = first_key + lane + n * Tile::kLanes;
      const bool sees = key >= visible.begin && key < visible.end;
      s[r][n] = sees ? expf(args.softmax_scale * s[r][n] - shared.lse[row]) : 0.0f;
      sum += s[r][n];
      weighted += s[r][n] * dp[r][n];
    }
    for (int bit = 2; bit < 2 * Tile::kLanes; bit *= 2) {  // the lanes of a row are two threads apart
      sum += __shfl_xor_sync(gpu::kFullWarp, sum, bit);
      weighted += __shfl_xor_sync(gpu::kFullWarp, weighted, bit);
    }
    for (int n = 0; n < Tile::kKeys; ++n) dp[r][n] = sum > 0 ? s[r][n] * (dp[r][n] - weighted / sum) : 0.0f;
  }
}

/// No rows of the other heads: their dO and Q are zeros.
template <>
__device__ void load_queries<broken::LastHeadOfGroup>(BackwardShared<broken::LastHeadOfGroup>& shared,
                                                      const BackwardArgs<float>& args, const float* d_gmem, int batch,
                                                      int head, int first_query, int rows) {
  using Tile = broken::LastHeadOfGroup;
  const int group = args.heads_q / args.heads_kv;
  if (head % group != group - 1) rows = 0;
  kernel::load_tile4<Tile::kThreads, Tile::kHeadDim>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq,
                                                     rows);
  kernel::load_tile4<Tile::kThreads, Tile::kHeadDim>(shared.dout, args.dout_row(batch, first_query, head),
                                                     args.dout_strides.seq, rows);
  const std::int64_t first = args.row_index(batch, first_query, head);
  for (int row = static_cast<int>(threadIdx.x); row < Tile::kBr; row += Tile::kThreads) {
    shared.lse[row] = row < rows ? args.lse_gmem[first + row] : 0.0f;
    shared.d[row] = row < rows ? d_gmem[first + row] : 0.0f;
  }
}

template <>
constexpr QueryRange visited_queries<broken::OneTileTooFew>(attention::Mask mask, int first_key, int keys, int seqlen_q,
                                                            int seqlen_kv) {
  return broken::without_last(visited_queries<broken::Tile>(mask, first_key, keys, seqlen_q, seqlen_kv),
                              broken::Tile::kBr);
}

template <>
constexpr KeyRange visited_keys<broken::OneTileTooFew>(attention::Mask mask, int first_query, int rows, int seqlen_q,
                                                       int seqlen_kv) {
  return broken::without_last(visited_keys<broken::Tile>(mask, first_query, rows, seqlen_q, seqlen_kv),
                              broken::Tile::kBc);
}

template <>
constexpr QueryRange visited_queries<broken::FirstTileForgotten>(attention::Mask mask, int first_key, int keys,
                                                                 int seqlen_q, int seqlen_kv) {
  return broken::without_first(visited_queries<broken::Tile>(mask, first_key, keys, seqlen_q, seqlen_kv),
                               broken::Tile::kBr);
}

template <>
constexpr KeyRange visited_keys<broken::FirstTileForgotten>(attention::Mask mask, int first_query, int rows,
                                                            int seqlen_q, int seqlen_kv) {
  return broken::without_first(visited_keys<broken::Tile>(mask, first_query, rows, seqlen_q, seqlen_kv),
                               broken::Tile::kBc);
}

}  // namespace recompute_backward

namespace {

using attention::BackwardArgs;
using attention::Mask;
namespace broken = broken_backward_tiles;

/// Step 1 on tiles of that type. Without its prediction of bytes: a wrong result is to be noticed, not wrong bytes.
template <class Tile>
stage::BackwardKernel step1(const std::string& name) {
  stage::BackwardKernel kernel = recompute_backward::q_outer<broken::kHeadDim>();
  kernel.name = name;
  kernel.traffic = nullptr;
  kernel.run = [](const BackwardArgs<float>& args, void* workspace) {
    float* d_gmem = static_cast<float*>(workspace);
    recompute_backward::launch_row_sums<broken::kHeadDim>(args, d_gmem, false);
    recompute_backward::launch_zero_dk_dv<broken::kHeadDim>(args);
    recompute_backward::launch_q_outer<Tile, true>(args, d_gmem);
  };
  return kernel;
}

/// Step 2 likewise. \param zero_dq false: dQ is not set to zero before
template <class Tile>
stage::BackwardKernel step2(const std::string& name, bool zero_dq = true) {
  stage::BackwardKernel kernel = recompute_backward::kv_outer<broken::kHeadDim>();
  kernel.name = name;
  kernel.traffic = nullptr;
  kernel.run = [zero_dq](const BackwardArgs<float>& args, void* workspace) {
    float* d_gmem = static_cast<float*>(workspace);
    recompute_backward::launch_row_sums<broken::kHeadDim>(args, d_gmem, zero_dq);
    recompute_backward::launch_kv_outer<Tile, true>(args, d_gmem);
  };
  return kernel;
}

/// Step 3 likewise: tiles of one type for dK and dV, of another for dQ.
template <class TileOfKeys, class TileOfQueries>
stage::BackwardKernel step3(const std::string& name) {
  stage::BackwardKernel kernel = step2<TileOfKeys>(name);
  kernel.deterministic = true;
  kernel.run = [](const BackwardArgs<float>& args, void* workspace) {
    float* d_gmem = static_cast<float*>(workspace);
    recompute_backward::launch_row_sums<broken::kHeadDim>(args, d_gmem, false);
    recompute_backward::launch_kv_outer<TileOfKeys, false>(args, d_gmem);
    recompute_backward::launch_q_outer<TileOfQueries, false>(args, d_gmem);
  };
  return kernel;
}

suite::Depth depth() { return gpu::device().checked ? suite::Depth::checking : suite::Depth::plain; }

/// What the suite says in its cases of this head_dim (no more than so many), up to the first complaint.
suite::Failures suite_failures(const stage::BackwardKernel& kernel, int most = std::numeric_limits<int>::max()) {
  for (const suite::BackwardCase& c : suite::backward_cases(depth())) {
    if (c.problem.head_dim != broken::kHeadDim) continue;
    if (most-- == 0) break;
    const suite::Failures failures = suite::case_failures(kernel, c);
    if (!failures.empty()) return failures;
  }
  return {};
}

/// The case in which the faults show: tiles enough in both loops, a group of three heads, a causal mask.
suite::Failures case_failures(const stage::BackwardKernel& kernel) {
  suite::BackwardCase c;
  c.problem = {.heads_q = 3, .seqlen_q = 130, .seqlen_kv = 135, .head_dim = broken::kHeadDim, .mask = Mask::causal()};
  c.repeat = false;
  return suite::case_failures(kernel, c);
}

/// A fault, and where the accuracy rule sees it first. It looks at dQ, dK and dV in turn.
struct Fault {
  stage::BackwardKernel kernel;
  std::string wrong;
};

void check_caught(const Fault& fault, const suite::Failures& failures) {
  INFO(fault.kernel.name);
  REQUIRE_FALSE(failures.empty());
  INFO(failures.front());
  CHECK(failures.front().find("error of a row of " + fault.wrong) != std::string::npos);
}

}  // namespace

TEST_CASE("the suite lets the unbroken tiles through", "[suite_can_fail]") {
  for (const stage::BackwardKernel& kernel : {step1<broken::Right>("right_step1"), step2<broken::Right>("right_step2"),
                                              step3<broken::Right, broken::Right>("right_step3")}) {
    for (const std::string& sentence : suite_failures(kernel, 4)) FAIL_CHECK(sentence);
    for (const std::string& sentence : case_failures(kernel)) FAIL_CHECK(sentence);
    for (const std::string& sentence : suite::backward_c23_few_keys(kernel)) FAIL_CHECK(sentence);
  }
}

TEST_CASE("the suite catches tiles with a fault", "[suite_can_fail]") {
  const std::vector<Fault> faults = {
      {step1<broken::PartialO>("partial_o_step1"), "dQ"},
      {step2<broken::PartialO>("partial_o_step2"), "dQ"},
      {step3<broken::PartialO, broken::Tile>("partial_o_step3"), "dK"},
      {step3<broken::LastHeadOfGroup, broken::Tile>("last_head_of_group"), "dK"},
      {step1<broken::OneTileTooFew>("one_tile_of_keys_too_few"), "dQ"},
      {step2<broken::OneTileTooFew>("one_tile_of_queries_too_few"), "dQ"},
      {step3<broken::OneTileTooFew, broken::Tile>("one_tile_of_queries_too_few_step3"), "dK"},
      {step1<broken::FirstTileForgotten>("first_tile_of_keys_forgotten"), "dQ"},
      {step2<broken::FirstTileForgotten>("first_tile_of_queries_forgotten"), "dQ"},
      {step2<broken::Tile>("dq_not_zeroed", false), "dQ"}};
  for (const Fault& fault : faults) {
    check_caught(fault, case_failures(fault.kernel));
    // The checking build's own cases have a single tile: too few for most of these.
    if (!gpu::device().checked) CHECK_FALSE(suite_failures(fault.kernel).empty());
  }
}

TEST_CASE("a mask in front of the exponential alone is caught by a low LSE", "[suite_can_fail][C23]") {
  for (const stage::BackwardKernel& kernel :
       {step1<broken::MaskBeforeExp>("mask_before_exp_step1"), step2<broken::MaskBeforeExp>("mask_before_exp_step2"),
        step3<broken::MaskBeforeExp, broken::MaskBeforeExp>("mask_before_exp_step3")}) {
    INFO(kernel.name);
    // What is not padded, or has no such LSE, comes out right.
    suite::BackwardCase c;
    c.problem = {.heads_q = 2, .seqlen_q = 66, .seqlen_kv = 70, .head_dim = broken::kHeadDim, .mask = Mask::causal()};
    for (const std::string& sentence : suite::case_failures(kernel, c)) FAIL_CHECK(sentence);
    CHECK_FALSE(suite::backward_c23_few_keys(kernel).empty());
  }
}

TEST_CASE("hard cases catch D of a part of O, and a group that is not added up", "[suite_can_fail][C21][C51]") {
  for (const stage::BackwardKernel& kernel :
       {step1<broken::PartialO>("partial_o_step1"), step2<broken::PartialO>("partial_o_step2")}) {
    CHECK_FALSE(suite::backward_c51_final_o(kernel).empty());
  }
  CHECK(suite::backward_c51_final_o(step2<broken::Right>("right_step2")).empty());
  const stage::BackwardKernel last_head = step3<broken::LastHeadOfGroup, broken::Tile>("last_head_of_group");
  CHECK_FALSE(suite::backward_c21_head_mapping(last_head).empty());
}
