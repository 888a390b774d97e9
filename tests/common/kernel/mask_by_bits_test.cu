#include <array>
#include <cmath>
#include <vector>

#include "common/attention/problem.hpp"
#include "common/gpu/buffer.hpp"
#include "common/gpu/launch.cuh"
#include "common/kernel/row_fragments.cuh"
#include "common/kernel/warpgroup.cuh"
#include "tests/catch.hpp"

namespace {

using attention::ForwardArgs, attention::Mask;

/// Scores of a warp's 16 rows, a lane after the other: 1 where seen. First by bits, then as chapter 08 has it.
template <int kKeyTiles>
__global__ void mask_twice(ForwardArgs<float> args, int first_query, int first_key, float* scores_gmem) {
  const int lane = static_cast<int>(threadIdx.x), of_lane = 4 * kKeyTiles;
  for (int by_bits = 0; by_bits < 2; ++by_bits) {
    float s_reg[kKeyTiles][4];
    for (int n = 0; n < kKeyTiles; ++n)
      for (int e = 0; e < 4; ++e) s_reg[n][e] = 1;
    if (by_bits == 0) {
      kernel::mask_by_bits(s_reg, args, first_query, first_key, lane);
    } else {
      kernel::mask_scores(s_reg, args, first_query, first_key, lane);
    }
    for (int n = 0; n < kKeyTiles; ++n)
      for (int e = 0; e < 4; ++e) {
        scores_gmem[by_bits * gpu::kWarpSize * of_lane + lane * of_lane + 4 * n + e] = s_reg[n][e];
      }
  }
}

template <int kKeyTiles>
void compare(int seqlen_q, int seqlen_kv, Mask mask) {
  ForwardArgs<float> args{};
  args.seqlen_q = seqlen_q, args.seqlen_kv = seqlen_kv, args.mask = mask;
  constexpr int kScores = gpu::kWarpSize * 4 * kKeyTiles;
  gpu::DeviceBuffer<float> scores_gmem(2 * kScores, "scores");
  for (int first_query = 0; first_query < seqlen_q; first_query += 16)
    for (int first_key = 0; first_key < seqlen_kv; first_key += 8 * kKeyTiles) {
      CAPTURE(kKeyTiles, seqlen_q, seqlen_kv, mask.name(), first_query, first_key);
      gpu::launch(mask_twice<kKeyTiles>, {.grid = 1, .block = gpu::kWarpSize}, args, first_query, first_key,
                  scores_gmem.data());
      const std::vector<float> scores = scores_gmem.download();
      int different = 0, wrong = 0;
      for (int i = 0; i < kScores; ++i) {
        different += scores[i] != scores[kScores + i];
        // And by definition: fragment n of lane t has rows t / 4 and 8 more, columns 8 n + 2 (t mod 4) and the next.
        const int lane = i / (4 * kKeyTiles), n = i / 4 % kKeyTiles, e = i % 4;
        const int query = first_query + lane / 4 + e / 2 * 8, key = first_key + 8 * n + 2 * (lane % 4) + e % 2;
        if (query >= seqlen_q) continue;
        const attention::KeyRange keys = attention::visible_keys(mask, query, seqlen_q, seqlen_kv);
        wrong += (scores[i] == 1) != (key >= keys.begin && key < keys.end);
      }
      CHECK(different == 0);
      CHECK(wrong == 0);
    }
}

}  // namespace

TEST_CASE("masked by bits, a row keeps what it sees, and nothing else") {
  for (const Mask mask : {Mask::none(), Mask::causal(), Mask::window(0, 0), Mask::window(37, 5), Mask::window(2, 200),
                          Mask::window(0, attention::kUnlimited)}) {
    compare<8>(50, 150, mask);
    compare<10>(50, 150, mask);
    compare<16>(150, 50, mask);
    compare<16>(33, 300, mask);
    compare<22>(33, 300, mask);
  }
}

TEST_CASE("masked by bits at the ends of what an int holds") {
  for (const Mask mask : {Mask::none(), Mask::causal(), Mask::window(attention::kUnlimited, 7)}) {
    ForwardArgs<float> args{};
    args.seqlen_q = 1, args.seqlen_kv = attention::kMaxSeqlen, args.mask = mask;
    gpu::DeviceBuffer<float> scores_gmem(2 * gpu::kWarpSize * 64, "scores");
    gpu::launch(mask_twice<16>, {.grid = 1, .block = gpu::kWarpSize}, args, 0, attention::kMaxSeqlen / 128 * 128,
                scores_gmem.data());
    const std::vector<float> scores = scores_gmem.download();
    // kMaxSeqlen = 2³⁰ − 1: of the last 128 keys one is missing, the last column of the last lane of each four.
    for (int lane = 0; lane < 4; ++lane)
      for (int i = 0; i < 64; ++i) {
        if (i % 4 > 1) continue;  // the row 8 further down is past the only query
        CHECK((scores[lane * 64 + i] == 1) == !(lane == 3 && i == 61));
      }
  }
}
