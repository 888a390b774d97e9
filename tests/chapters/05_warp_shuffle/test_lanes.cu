/// \file
/// Groups of lanes: who belongs to which, and what they get from each other, for every width and distance.

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "chapters/05_warp_shuffle/row_of_lanes.cuh"
#include "common/gpu/buffer.hpp"
#include "tests/catch.hpp"

namespace {

using warp_shuffle::Lanes;

/// Three warps: the number of a group goes on from one warp to the next.
constexpr int kThreads = 96;

struct Heard {
  int lane, group;
  float max, sum, sum_first;
  float from[gpu::kWarpSize];  ///< x of each lane of the group
};

template <class Group>
__global__ void listen_kernel(const float* x_gmem, Heard* heard_gmem) {
  const int thread = static_cast<int>(threadIdx.x);
  const float x = x_gmem[thread];
  Heard& heard = heard_gmem[thread];
  heard.lane = Group::lane(thread);
  heard.group = Group::group(thread);
  heard.max = Group::max_for_all(x);
  heard.sum = Group::sum_for_all(x);
  heard.sum_first = Group::sum_for_first(x);
  for (int lane = 0; lane < Group::kCount; ++lane) heard.from[lane] = Group::from_lane(x, lane);
}

/// Numbers whose sums have to be rounded, of both signs, the largest anywhere.
float value(int thread) { return std::sin(1.0f + 2.3f * static_cast<float>(thread)) - 0.6f; }

template <int kCount, int kStride>
void check_group() {
  INFO(kCount << " lanes, " << kStride << " apart");
  std::vector<float> x(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) x[thread] = value(thread);
  const gpu::DeviceBuffer<float> x_gmem(x, "x");
  gpu::DeviceBuffer<Heard> heard_gmem(kThreads, "heard");
  gpu::launch(listen_kernel<Lanes<kCount, kStride>>, {.grid = 1, .block = kThreads}, x_gmem.data(), heard_gmem.data());
  const std::vector<Heard> heard = heard_gmem.download();

  std::set<std::pair<int, int>> seats;
  std::vector<std::vector<int>> members(kThreads / kCount, std::vector<int>(kCount, -1));
  for (int thread = 0; thread < kThreads; ++thread) {
    const Heard& h = heard[thread];
    REQUIRE((h.lane >= 0 && h.lane < kCount));
    REQUIRE((h.group >= 0 && h.group < kThreads / kCount));
    CHECK(seats.insert({h.group, h.lane}).second);
    members[h.group][h.lane] = thread;
  }
  for (const std::vector<int>& group : members) {
    float max = -INFINITY;
    double sum = 0;
    for (int lane = 0; lane < kCount; ++lane) {
      REQUIRE(group[lane] == group[0] + lane * kStride);
      CHECK(group[lane] / gpu::kWarpSize == group[0] / gpu::kWarpSize);
      max = std::fmax(max, x[group[lane]]);
      sum += x[group[lane]];
    }
    for (const int thread : group) {
      CHECK(heard[thread].max == max);
      CHECK(std::abs(heard[thread].sum - sum) < 1e-5);
      CHECK(heard[thread].sum == heard[group[0]].sum);  // bit for bit
      for (int lane = 0; lane < kCount; ++lane) CHECK(heard[thread].from[lane] == x[group[lane]]);
    }
    CHECK(std::abs(heard[group[0]].sum_first - sum) < 1e-5);
  }
}

template <int kCount, int... kStrides>
void check_strides(std::integer_sequence<int, kStrides...>) {
  (check_group<kCount, 1 << kStrides>(), ...);
}

}  // namespace

TEST_CASE("groups of lanes, for every width and distance") {
  check_strides<1>(std::make_integer_sequence<int, 6>());
  check_strides<2>(std::make_integer_sequence<int, 5>());
  check_strides<4>(std::make_integer_sequence<int, 4>());
  check_strides<8>(std::make_integer_sequence<int, 3>());
  check_strides<16>(std::make_integer_sequence<int, 2>());
  check_strides<32>(std::make_integer_sequence<int, 1>());
}

TEST_CASE("a maximum of -infinity, alone and beside numbers") {
  std::vector<float> x(kThreads, -INFINITY);
  x[37] = -200000.0f;
  const gpu::DeviceBuffer<float> x_gmem(x, "x");
  gpu::DeviceBuffer<Heard> heard_gmem(kThreads, "heard");
  gpu::launch(listen_kernel<Lanes<4, 2>>, {.grid = 1, .block = kThreads}, x_gmem.data(), heard_gmem.data());
  const std::vector<Heard> heard = heard_gmem.download();
  for (int thread = 0; thread < kThreads; ++thread) {
    CHECK(heard[thread].max == (heard[thread].group == heard[37].group ? -200000.0f : -INFINITY));
  }
}
