/// \file
/// The suite catches kernels of this chapter's kind with a fault: lanes that hear half of the others, a mask forgotten
/// in a tile that it cuts.
///
/// The kernels are the chapter's own. They take their lanes from the tile's type, and steps' decisions by the tile's
/// type, so that a fault is a tile of another type.

#include <limits>
#include <string>
#include <vector>

#include "chapters/05_warp_shuffle/step2_register_tiles.cuh"
#include "chapters/05_warp_shuffle/step3_exp2.cuh"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/forward_suite.hpp"

namespace broken_lanes {

/// The smallest head_dim: 4 lanes a row, 2 apart; 256 queries and 16 keys a tile.
constexpr int kHeadDim = 32;
using Tile = warp_shuffle::RegisterTile<kHeadDim>;
using RightLanes = Tile::RowLanes;

struct Right : Tile {};

/// The butterfly without its first step: a maximum, of half of the lanes.
struct MaximumOfHalf : Tile {
  struct RowLanes : RightLanes {
    __device__ static float max_for_all(float x) { return warp_shuffle::Lanes<kLanes / 2, 2>::max_for_all(x); }
  };
};

/// The butterfly without its last step: its partners are the wrong ones, too.
struct MaximumOfOthers : Tile {
  struct RowLanes : RightLanes {
    __device__ static float max_for_all(float x) { return warp_shuffle::Lanes<kLanes / 2, 4>::max_for_all(x); }
  };
};

/// The sum that the first lane uses goes to the last one.
struct SumForAnother : Tile {
  struct RowLanes : RightLanes {
    __device__ static float sum_for_first(float x) {
      const float sum = RightLanes::sum_for_first(x);
      return RightLanes::lane(static_cast<int>(threadIdx.x)) == 0 ? x : sum;
    }
  };
};

/// P comes from the neighbour of the lane that has it.
struct PFromNeighbour : Tile {
  struct RowLanes : RightLanes {
    __device__ static float from_lane(float x, int lane) { return RightLanes::from_lane(x, lane ^ 1); }
  };
};

/// The lanes' sums are not added up at the end.
struct SumsNotAdded : Tile {
  struct RowLanes : RightLanes {
    __device__ static float sum_for_all(float x) { return x; }
  };
};

struct LeftEdgeForgotten : Tile {};
struct RightEdgeForgotten : Tile {};
struct OneTileTooFew : Tile {};

}  // namespace broken_lanes

namespace warp_shuffle {

template <>
constexpr bool needs_mask<broken_lanes::LeftEdgeForgotten>(int first_key, KeyRange unmasked) {
  return first_key + broken_lanes::Tile::kBc > unmasked.end;
}

template <>
constexpr bool needs_mask<broken_lanes::RightEdgeForgotten>(int first_key, KeyRange unmasked) {
  return first_key < unmasked.begin;
}

/// Rounds the end down.
template <>
constexpr KeyRange visited_keys<broken_lanes::OneTileTooFew>(attention::Mask mask, int first_query, int rows,
                                                             int seqlen_q, int seqlen_kv) {
  KeyRange keys = visited_keys<broken_lanes::Tile>(mask, first_query, rows, seqlen_q, seqlen_kv);
  if (keys.size() > broken_lanes::Tile::kBc)
    keys.end = (keys.end - 1) / broken_lanes::Tile::kBc * broken_lanes::Tile::kBc;
  return keys;
}

}  // namespace warp_shuffle

namespace {

using attention::ForwardArgs;

/// A kernel with its launch replaced.
template <class Tile>
stage::ForwardKernel with_kernel(stage::ForwardKernel kernel, const std::string& name,
                                 void (*function)(ForwardArgs<float>, int)) {
  kernel.name = name;
  kernel.run = [function](const ForwardArgs<float>& args, void*) {
    const int query_tiles = warp_shuffle::tiles_of(args.seqlen_q, Tile::kBr);
    const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
    if (blocks == 0) return;
    gpu::launch<warp_shuffle::RegisterShared<Tile>>(function, {.grid = blocks, .block = Tile::kThreads}, args,
                                                    query_tiles);
  };
  return kernel;
}

template <class Tile>
stage::ForwardKernel step2(const std::string& name) {
  return with_kernel<Tile>(warp_shuffle::register_tiles<broken_lanes::kHeadDim>(), name,
                           warp_shuffle::register_tiles_kernel<Tile>);
}

template <class Tile>
stage::ForwardKernel step3(const std::string& name) {
  stage::ForwardKernel kernel =
      with_kernel<Tile>(warp_shuffle::exp2_tiles<broken_lanes::kHeadDim>(), name, warp_shuffle::exp2_kernel<Tile>);
  kernel.traffic = nullptr;  // a wrong result is to be noticed, not wrong bytes
  return kernel;
}

/// What the suite says in its cases of this head_dim (no more than so many), up to the first complaint.
suite::Failures suite_failures(const stage::ForwardKernel& kernel, int most) {
  const suite::Depth depth = gpu::device().checked ? suite::Depth::checking : suite::Depth::plain;
  for (const suite::SuiteCase& c : suite::forward_cases(depth)) {
    if (c.problem.head_dim != broken_lanes::kHeadDim) continue;
    if (most-- == 0) break;
    const suite::Failures failures = suite::case_failures(kernel, c);
    if (!failures.empty()) return failures;
  }
  return {};
}

}  // namespace

TEST_CASE("the suite lets the unbroken kernels through", "[suite_can_fail]") {
  for (const stage::ForwardKernel& kernel :
       {step2<broken_lanes::Right>("right_step2"), step3<broken_lanes::Right>("right_step3")}) {
    for (const std::string& sentence : suite_failures(kernel, 4)) FAIL_CHECK(sentence);
  }
}

TEST_CASE("the suite catches lanes that hear the wrong ones, and forgotten masks", "[suite_can_fail]") {
  for (const stage::ForwardKernel& kernel :
       {step2<broken_lanes::MaximumOfHalf>("maximum_of_half"),
        step2<broken_lanes::MaximumOfOthers>("maximum_of_others"),
        step2<broken_lanes::SumForAnother>("sum_for_another"), step2<broken_lanes::PFromNeighbour>("p_from_neighbour"),
        step3<broken_lanes::MaximumOfHalf>("maximum_of_half_exp2"), step3<broken_lanes::SumsNotAdded>("sums_not_added"),
        step3<broken_lanes::LeftEdgeForgotten>("left_edge_forgotten"),
        step3<broken_lanes::RightEdgeForgotten>("right_edge_forgotten"),
        step3<broken_lanes::OneTileTooFew>("one_tile_too_few")}) {
    const suite::Failures failures = suite_failures(kernel, std::numeric_limits<int>::max());
    INFO(kernel.name);
    REQUIRE_FALSE(failures.empty());
    INFO(failures.front());
    CHECK(failures.front().find("query") != std::string::npos);  // a wrong row, not a refusal
  }
}
