// Small pipelines of TMA and WGMMA as the book's kernels have them: a producer warpgroup, consumers, rings of stages,
// results stored by TMA. Right in all modes; and each of their synchronisations is needed.

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "common/gpu/barrier.cuh"
#include "common/gpu/cluster.cuh"
#include "common/gpu/mbarrier.cuh"
#include "common/gpu/named_barrier.cuh"
#include "common/gpu/register_budget.cuh"
#include "common/gpu/tma.cuh"
#include "common/gpu/wgmma.cuh"
#include "tests/common/gpu/hopper_modes.hpp"

namespace {

using namespace gpu_tests;

constexpr int kRows = 64, kKeys = 64, kDim = 64;  // of a tile; rows of bf16 are 128 bytes, the widest swizzle
constexpr int kStages = 2;
constexpr std::uint32_t kTileBytes = kKeys * kDim * sizeof(gpu::bf16);
constexpr std::uint32_t kGroupBytes = 8 * kDim * sizeof(gpu::bf16);  // 8 rows

template <int kConsumers>  // warpgroups
struct AttentionShared {
  alignas(1024) gpu::bf16 q[kConsumers][kRows * kDim];
  alignas(1024) gpu::bf16 k[kStages][kKeys * kDim];
  alignas(1024) gpu::bf16 v[kStages][kKeys * kDim];
  alignas(1024) float o[kConsumers][kRows * kDim];
  gpu::Mbarrier q_full, q_empty, k_full[kStages], v_full[kStages], empty[kStages];
};

/// O = (Q·Kᵀ)·V without a softmax: everything that moves in attention, in integers. A block goes through row tiles, one
/// of kRows for each consumer warpgroup.
template <int kConsumers>
__global__ void __launch_bounds__(128 * (1 + kConsumers), 1)
    linear_attention(const __grid_constant__ gpu::TensorMap q_map, const __grid_constant__ gpu::TensorMap k_map,
                     const __grid_constant__ gpu::TensorMap v_map, const __grid_constant__ gpu::TensorMap o_map,
                     int row_tiles, int key_tiles) {
  auto& shared = gpu::shared_memory<AttentionShared<kConsumers>>();
  const int thread = static_cast<int>(threadIdx.x), warpgroup = thread / 128;
  if (thread == 0) {
    gpu::mbarrier_init(shared.q_full, 1);
    gpu::mbarrier_init(shared.q_empty, 128 * kConsumers);
    for (int stage = 0; stage < kStages; ++stage) {
      gpu::mbarrier_init(shared.k_full[stage], 1);
      gpu::mbarrier_init(shared.v_full[stage], 1);
      gpu::mbarrier_init(shared.empty[stage], 128 * kConsumers);
    }
    gpu::mbarrier_init_fence();
  }
  __syncthreads();

  if (warpgroup == 0) {  // the producer
    if constexpr (kConsumers == 2) gpu::release_registers<24>();
    if (thread == 0) {
      int step = 0;
      std::uint32_t q_phase = 1;
      for (int row = static_cast<int>(blockIdx.x); row < row_tiles; row += static_cast<int>(gridDim.x)) {
        gpu::mbarrier_wait(shared.q_empty, q_phase);
        q_phase ^= 1;
        gpu::mbarrier_arrive_expect_bytes(shared.q_full, kConsumers * kTileBytes);
        for (int c = 0; c < kConsumers; ++c) {
          gpu::tma_load(shared.q[c], q_map, shared.q_full, 0, (row * kConsumers + c) * kRows);
        }
        for (int tile = 0; tile < key_tiles; ++tile, ++step) {
          const int stage = step % kStages;
          const std::uint32_t phase = static_cast<std::uint32_t>(step / kStages) & 1;
          gpu::mbarrier_wait(shared.empty[stage], phase ^ 1);
          gpu::mbarrier_arrive_expect_bytes(shared.k_full[stage], kTileBytes);
          gpu::tma_load(shared.k[stage], k_map, shared.k_full[stage], 0, tile * kKeys);
          gpu::mbarrier_arrive_expect_bytes(shared.v_full[stage], kTileBytes);
          gpu::tma_load(shared.v[stage], v_map, shared.v_full[stage], 0, tile * kKeys);
        }
      }
    }
  } else {  // a consumer
    if constexpr (kConsumers == 2) gpu::take_registers<240>();
    const int consumer = warpgroup - 1, inside = thread % 128, lane = thread % 32;
    const int own_barrier = 1 + consumer;
    float* const o_smem = shared.o[consumer];
    float s[kKeys / 2], o[kDim / 2];
    std::uint32_t p[kKeys / 16][4];
    int step = 0;
    std::uint32_t q_phase = 0;
    for (int row = static_cast<int>(blockIdx.x); row < row_tiles; row += static_cast<int>(gridDim.x)) {
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) o[i] = 0;
      gpu::mbarrier_wait(shared.q_full, q_phase);
      q_phase ^= 1;
      const auto q = gpu::matrix_descriptor(shared.q[consumer], gpu::Swizzle::bytes_128, 0, kGroupBytes);
      for (int tile = 0; tile < key_tiles; ++tile, ++step) {
        const int stage = step % kStages;
        const std::uint32_t phase = static_cast<std::uint32_t>(step / kStages) & 1;
        const auto k = gpu::matrix_descriptor(shared.k[stage], gpu::Swizzle::bytes_128, 0, kGroupBytes);
        const auto v = gpu::matrix_descriptor(shared.v[stage], gpu::Swizzle::bytes_128, 0, kGroupBytes);

        gpu::mbarrier_wait(shared.k_full[stage], phase);
        gpu::keep(s);
        gpu::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kDim / 16; ++i) gpu::wgmma<gpu::bf16, kKeys>(s, q + 32u * i, k + 32u * i, i > 0);
        gpu::wgmma_commit();
        gpu::wgmma_wait<0>();
        gpu::keep(s);

#pragma unroll
        for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) p[i][j] = gpu::pack<gpu::bf16>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
        }
        gpu::mbarrier_wait(shared.v_full[stage], phase);
        gpu::keep(o);
        gpu::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kKeys / 16; ++i) {
          gpu::wgmma<gpu::bf16, kDim, gpu::Major::mn>(o, p[i], v + 2 * kGroupBytes * i, true);
        }
        gpu::wgmma_commit();
        gpu::wgmma_wait<0>();
        gpu::keep(o);
        gpu::mbarrier_arrive(shared.empty[stage]);
      }
      gpu::mbarrier_arrive(shared.q_empty);

      if (inside == 0) gpu::tma_store_wait_read<0>();
      gpu::named_barrier_sync(own_barrier, 128);
      const int o_row = inside / 32 * 16 + lane / 4, o_column = lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        for (int e = 0; e < 4; ++e) o_smem[(o_row + e / 2 * 8) * kDim + 8 * j + o_column + e % 2] = o[4 * j + e];
      }
      gpu::async_proxy_fence();
      gpu::named_barrier_sync(own_barrier, 128);
      if (inside == 0) {
        gpu::tma_store(o_map, o_smem, 0, (row * kConsumers + consumer) * kRows);
        gpu::tma_store_commit();
      }
    }
    if (inside == 0) gpu::tma_store_wait<0>();
  }
}

struct OverlapShared {
  alignas(1024) gpu::bf16 q[2][kRows * kDim];
  alignas(1024) gpu::bf16 k[kStages][kKeys * kDim];
  alignas(1024) gpu::bf16 v[kStages][kKeys * kDim];
  gpu::Mbarrier q_full, k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
};

/// O = relu(Q·Kᵀ)·V with work under way all the time: Q·Kᵀ of a tile starts before P·V of the one before it and the
/// relu runs beside P·V; two consumer warpgroups take turns in starting products; two blocks of a cluster each load one
/// half of every K and V tile for both.
__global__ void __launch_bounds__(384, 1)
    overlapped(const __grid_constant__ gpu::TensorMap q_map, const __grid_constant__ gpu::TensorMap half_k_map,
               const __grid_constant__ gpu::TensorMap half_v_map, int rows, int key_tiles,
               float* o_gmem) {  // [rows, kDim]
  auto& shared = gpu::shared_memory<OverlapShared>();
  const int thread = static_cast<int>(threadIdx.x), warpgroup = thread / 128;
  const int rank = static_cast<int>(gpu::cluster_rank());
  if (thread == 0) {
    gpu::mbarrier_init(shared.q_full, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      gpu::mbarrier_init(shared.k_full[stage], 1);
      gpu::mbarrier_init(shared.v_full[stage], 1);
      gpu::mbarrier_init(shared.k_empty[stage], 2 * 2 * 4);  // one lane of each consumer warp of both blocks
      gpu::mbarrier_init(shared.v_empty[stage], 2 * 2 * 4);
    }
    gpu::mbarrier_init_fence();
  }
  gpu::cluster_sync();
  const int first_row = static_cast<int>(blockIdx.x) * 2 * kRows;

  if (warpgroup == 0) {
    gpu::release_registers<24>();
    if (thread == 0) {
      gpu::mbarrier_arrive_expect_bytes(shared.q_full, 2 * kTileBytes);
      for (int c = 0; c < 2; ++c) gpu::tma_load(shared.q[c], q_map, shared.q_full, 0, first_row + c * kRows);
      const int half = rank * kKeys / 2;
      for (int tile = 0; tile < key_tiles; ++tile) {
        const int stage = tile % kStages;
        const std::uint32_t phase = static_cast<std::uint32_t>(tile / kStages) & 1;
        gpu::mbarrier_wait(shared.k_empty[stage], phase ^ 1);
        gpu::mbarrier_arrive_expect_bytes(shared.k_full[stage], kTileBytes);
        gpu::tma_load_multicast(shared.k[stage] + half * kDim, half_k_map, shared.k_full[stage], 0b11, 0,
                                tile * kKeys + half);
        gpu::mbarrier_wait(shared.v_empty[stage], phase ^ 1);
        gpu::mbarrier_arrive_expect_bytes(shared.v_full[stage], kTileBytes);
        gpu::tma_load_multicast(shared.v[stage] + half * kDim, half_v_map, shared.v_full[stage], 0b11, 0,
                                tile * kKeys + half);
      }
    }
  } else {
    gpu::take_registers<240>();
    const int consumer = warpgroup - 1, inside = thread % 128, lane = thread % 32;
    const int own_turn = 1 + consumer, other_turn = 2 - consumer;
    const auto release = [&](gpu::Mbarrier& empty) {
      // The wait for a product is one of all lanes, so none of them is before it.
      if (lane < 2) gpu::mbarrier_arrive_remote(empty, static_cast<std::uint32_t>(lane));
    };
    if (consumer == 1) gpu::named_barrier_arrive(other_turn, 256);  // the first turn is the other one's
    float s[kKeys / 2], o[kDim / 2];
    std::uint32_t p[kKeys / 16][4];
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o[i] = 0;
    gpu::mbarrier_wait(shared.q_full, 0);
    const auto q = gpu::matrix_descriptor(shared.q[consumer], gpu::Swizzle::bytes_128, 0, kGroupBytes);
    // What is done once, in front of the loop and behind it, stands there: with products in a branch of the loop, ptxas
    // lets each of them end before the next one starts (C7520).
    const auto phase_of = [](int tile) { return static_cast<std::uint32_t>(tile / kStages) & 1; };
    const auto start_scores = [&](int tile) {
      gpu::mbarrier_wait(shared.k_full[tile % kStages], phase_of(tile));
      gpu::keep(s);
      gpu::wgmma_fence();
      const auto k = gpu::matrix_descriptor(shared.k[tile % kStages], gpu::Swizzle::bytes_128, 0, kGroupBytes);
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) gpu::wgmma<gpu::bf16, kKeys>(s, q + 32u * i, k + 32u * i, i > 0);
      gpu::wgmma_commit();
    };
    const auto start_output = [&](int tile) {
      gpu::mbarrier_wait(shared.v_full[tile % kStages], phase_of(tile));
      gpu::keep(o);
      gpu::wgmma_fence();
      const auto v = gpu::matrix_descriptor(shared.v[tile % kStages], gpu::Swizzle::bytes_128, 0, kGroupBytes);
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i) {
        gpu::wgmma<gpu::bf16, kDim, gpu::Major::mn>(o, p[i], v + 2 * kGroupBytes * i, true);
      }
      gpu::wgmma_commit();
    };
    const auto relu = [&] {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) s[i] = fmaxf(s[i], 0.0f);
    };
    const auto pack = [&] {
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) p[i][j] = gpu::pack<gpu::bf16>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
      }
    };

    gpu::named_barrier_sync(own_turn, 256);
    start_scores(0);
    gpu::named_barrier_arrive(other_turn, 256);
    gpu::wgmma_wait<0>();
    gpu::keep(s);
    release(shared.k_empty[0]);
    relu();
    pack();
    for (int tile = 1; tile < key_tiles; ++tile) {
      gpu::named_barrier_sync(own_turn, 256);
      start_scores(tile);
      start_output(tile - 1);
      gpu::named_barrier_arrive(other_turn, 256);
      gpu::wgmma_wait<1>();
      gpu::keep(s);
      release(shared.k_empty[tile % kStages]);
      relu();
      gpu::wgmma_wait<0>();
      gpu::keep(o);
      release(shared.v_empty[(tile - 1) % kStages]);
      pack();
    }
    gpu::named_barrier_sync(own_turn, 256);
    start_output(key_tiles - 1);
    if (consumer == 0) gpu::named_barrier_arrive(other_turn, 256);
    gpu::wgmma_wait<0>();
    gpu::keep(o);
    release(shared.v_empty[(key_tiles - 1) % kStages]);

    const int row = first_row + consumer * kRows + inside / 32 * 16 + lane / 4, column = lane % 4 * 2;
    for (int i = 0; i < kDim / 2; ++i) {
      const int o_row = row + i / 2 % 2 * 8;
      if (o_row < rows) o_gmem[o_row * kDim + i / 4 * 8 + column + i % 2] = o[i];
    }
  }
  gpu::cluster_sync();  // nobody may arrive at a block that has ended
}

/// Q, K and V are integers from −1 to 1, so that all sums are exact, and so is P in bf16.
struct Problem {
  int rows, keys;
  std::vector<float> q, k, v;
  std::vector<float> o;  ///< [rows, kDim]

  Problem(int r, int n, bool relu = false) : rows(r), keys(n) {
    std::mt19937 random(static_cast<unsigned>(1000 * r + n));
    const auto fill = [&](std::vector<float>& x, int count) {
      for (int i = 0; i < count * kDim; ++i) x.push_back(static_cast<float>(static_cast<int>(random() % 3) - 1));
    };
    fill(q, rows);
    fill(k, keys);
    fill(v, keys);
    o.assign(q.size(), 0.0f);
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < keys; ++j) {
        float s = 0;
        for (int d = 0; d < kDim; ++d) s += at(q, i, d) * at(k, j, d);
        if (relu && s < 0) s = 0;
        for (int d = 0; d < kDim; ++d) o[static_cast<std::size_t>(i * kDim + d)] += s * at(v, j, d);
      }
    }
  }
  static float at(const std::vector<float>& x, int i, int d) { return x[static_cast<std::size_t>(i * kDim + d)]; }
};

std::vector<gpu::bf16> rounded(const std::vector<float>& x) {
  std::vector<gpu::bf16> y;
  for (const float value : x) y.push_back(gpu::from_float<gpu::bf16>(value));
  return y;
}

gpu::TensorMap map_of(void* base, int rows, gpu::TensorElement element, gpu::Swizzle swizzle,
                      std::uint32_t box_rows = kRows) {
  return gpu::make_tensor_map({.element = element,
                               .base = base,
                               .sizes = {kDim, static_cast<std::uint64_t>(rows)},
                               .stride_bytes = {kDim * gpu::element_bytes(element)},
                               .box = {kDim, box_rows},
                               .swizzle = swizzle});
}

template <int kConsumers>
bool linear_attention_is_right(const Problem& problem, int blocks) {
  const std::vector<gpu::bf16> q = rounded(problem.q), k = rounded(problem.k), v = rounded(problem.v);
  gpu::DeviceBuffer<gpu::bf16> q_gmem(std::span<const gpu::bf16>(q), "Q"), k_gmem(std::span<const gpu::bf16>(k), "K"),
      v_gmem(std::span<const gpu::bf16>(v), "V");
  gpu::DeviceBuffer<float> o_gmem(problem.o.size(), "O");
  const auto bf16_map = [](void* base, int rows) {
    return map_of(base, rows, gpu::TensorElement::bf16, gpu::Swizzle::bytes_128);
  };
  const auto tiles = [](int count, int tile) { return (count + tile - 1) / tile; };
  gpu::launch<AttentionShared<kConsumers>>(
      linear_attention<kConsumers>, {.grid = blocks, .block = 128 * (1 + kConsumers)},
      bf16_map(q_gmem.data(), problem.rows), bf16_map(k_gmem.data(), problem.keys),
      bf16_map(v_gmem.data(), problem.keys),
      map_of(o_gmem.data(), problem.rows, gpu::TensorElement::fp32, gpu::Swizzle::none),
      tiles(problem.rows, kConsumers * kRows), tiles(problem.keys, kKeys));
  return o_gmem.download() == problem.o;
}

bool overlapped_is_right(const Problem& problem) {
  const std::vector<gpu::bf16> q = rounded(problem.q), k = rounded(problem.k), v = rounded(problem.v);
  gpu::DeviceBuffer<gpu::bf16> q_gmem(std::span<const gpu::bf16>(q), "Q"), k_gmem(std::span<const gpu::bf16>(k), "K"),
      v_gmem(std::span<const gpu::bf16>(v), "V");
  gpu::DeviceBuffer<float> o_gmem(problem.o.size(), "O");
  const auto map = [](void* base, int rows, std::uint32_t box_rows) {
    return map_of(base, rows, gpu::TensorElement::bf16, gpu::Swizzle::bytes_128, box_rows);
  };
  gpu::launch<OverlapShared>(
      overlapped, {.grid = (problem.rows + 4 * kRows - 1) / (4 * kRows) * 2, .block = 384, .cluster = 2},
      map(q_gmem.data(), problem.rows, kRows), map(k_gmem.data(), problem.keys, kKeys / 2),
      map(v_gmem.data(), problem.keys, kKeys / 2), problem.rows, (problem.keys + kKeys - 1) / kKeys, o_gmem.data());
  return o_gmem.download() == problem.o;
}

// ---- two blocks that load for each other

constexpr int kSharedStages = 2, kSharedRows = 16, kSharedBytes = 128 * kSharedRows;

struct SharedTiles {
  alignas(128) unsigned char tile[kSharedStages][kSharedBytes];
  gpu::Mbarrier full[kSharedStages], empty[kSharedStages];
};

/// Each of two blocks loads one half of every tile into both. sums[block, thread] is the sum of what a thread of the
/// second warp read, another part of each tile in the two blocks.
__global__ void __launch_bounds__(64) shared_tiles(const __grid_constant__ gpu::TensorMap map, int tiles,
                                                   int* sums_gmem) {  // [blocks, 32]
  auto& shared = gpu::shared_memory<SharedTiles>();
  const int thread = static_cast<int>(threadIdx.x), rank = static_cast<int>(gpu::cluster_rank());
  if (thread == 0) {
    for (int stage = 0; stage < kSharedStages; ++stage) {
      gpu::mbarrier_init(shared.full[stage], 1);
      gpu::mbarrier_init(shared.empty[stage], 2 * 32);
    }
    gpu::mbarrier_init_fence();
  }
  gpu::cluster_sync();
  if (thread == 0) {
    for (int tile = 0; tile < tiles; ++tile) {
      const int stage = tile % kSharedStages;
      const std::uint32_t phase = static_cast<std::uint32_t>(tile / kSharedStages) & 1;
      gpu::mbarrier_wait(shared.empty[stage], phase ^ 1);
      gpu::mbarrier_arrive_expect_bytes(shared.full[stage], kSharedBytes);
      gpu::tma_load_multicast(shared.tile[stage] + rank * kSharedBytes / 2, map, shared.full[stage], 0b11, 0,
                              tile * kSharedRows + rank * kSharedRows / 2);
    }
  } else if (thread >= 32) {
    int sum = 0;
    for (int tile = 0; tile < tiles; ++tile) {
      const int stage = tile % kSharedStages;
      const std::uint32_t phase = static_cast<std::uint32_t>(tile / kSharedStages) & 1;
      gpu::mbarrier_wait(shared.full[stage], phase);
      for (int i = thread - 32 + 32 * rank; i < kSharedBytes; i += 64) sum += shared.tile[stage][i];
      for (std::uint32_t block = 0; block < 2; ++block) gpu::mbarrier_arrive_remote(shared.empty[stage], block);
    }
    sums_gmem[static_cast<int>(blockIdx.x) * 32 + thread - 32] = sum;
  }
  gpu::cluster_sync();
}

bool shared_tiles_are_right(int tiles) {
  std::vector<unsigned char> x(static_cast<std::size_t>(tiles * kSharedBytes));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<unsigned char>(i * 7 % 251);
  gpu::DeviceBuffer<unsigned char> x_gmem(std::span<const unsigned char>(x), "x");
  gpu::DeviceBuffer<int> sums(4 * 32, "sums");
  const gpu::TensorMap map = gpu::make_tensor_map({.element = gpu::TensorElement::bytes_1,
                                                   .base = x_gmem.data(),
                                                   .sizes = {128, static_cast<std::uint64_t>(tiles) * kSharedRows},
                                                   .stride_bytes = {128},
                                                   .box = {128, kSharedRows / 2}});
  gpu::launch<SharedTiles>(shared_tiles, {.grid = 4, .block = 64, .cluster = 2}, map, tiles, sums.data());
  const std::vector<int> got = sums.download();
  for (int block = 0; block < 4; ++block) {
    for (int t = 0; t < 32; ++t) {
      int wanted = 0;
      for (std::size_t i = static_cast<std::size_t>(t + 32 * (block % 2)); i < x.size(); i += 64) wanted += x[i];
      if (got[static_cast<std::size_t>(block * 32 + t)] != wanted) return false;
    }
  }
  return true;
}

/// Every synchronisation that `run` passes, switched off. In the checking build each has to be noticed.
template <class Run>
void require_all_needed(Run&& run) {
  if (!gpu::device().checked) return;
  gpu::reset_synchronisations_seen();
  REQUIRE(run());
  const std::vector<gpu::SourceLine> lines = gpu::synchronisations_seen();
  REQUIRE(lines.size() > 5);
  for (const gpu::SourceLine& line : lines) {
    INFO("without line " << line.line);
    CHECK(noticed_without(line, run) != "");
  }
  REQUIRE(run());
}

}  // namespace

TEST_CASE("attention without a softmax through TMA, WGMMA and back", "[hopper][pipeline]") {
  // Tiles: 1, 2, the ring's stages and one more, twice the stages and one more; rows and keys off the tiles.
  const Problem problems[] = {{64, 64}, {64, 128}, {100, 192}, {130, 300}};
  in_all_modes(20, [&] {
    for (const Problem& problem : problems) {
      CAPTURE(problem.rows, problem.keys);
      CHECK(linear_attention_is_right<1>(problem, 2));
    }
  });
}

TEST_CASE("attention without a softmax by two warpgroups that take registers from a third", "[hopper][pipeline]") {
  const Problem problem(200, 150);
  in_all_modes(6, [&] { CHECK(linear_attention_is_right<2>(problem, 1)); });
}

TEST_CASE("each synchronisation of the attention pipeline is needed", "[hopper][pipeline]") {
  const Problem problem(128, 192);
  require_all_needed([&] { return linear_attention_is_right<1>(problem, 1); });
}

TEST_CASE("attention with a relu whose products, copies and warpgroups overlap", "[hopper][pipeline]") {
  const Problem problems[] = {{100, 64, true}, {250, 300, true}};
  in_all_modes(20, [&] {
    for (const Problem& problem : problems) {
      CAPTURE(problem.rows, problem.keys);
      CHECK(overlapped_is_right(problem));
    }
  });
}

TEST_CASE("each synchronisation of the overlapped pipeline is needed", "[hopper][pipeline]") {
  const Problem problem(256, 300, true);
  require_all_needed([&] { return overlapped_is_right(problem); });
}

TEST_CASE("two blocks of a cluster load for each other", "[hopper][pipeline]") {
  in_all_modes(20, [] {
    for (const int tiles : {1, 2, 3, 5}) CHECK(shared_tiles_are_right(tiles));
  });
}

TEST_CASE("each synchronisation of blocks that load for each other is needed", "[hopper][pipeline]") {
  require_all_needed([] { return shared_tiles_are_right(5); });
}

TEST_CASE("the timeline tells when warps start copies and products, and when they wait", "[hopper][pipeline]") {
  const Problem problem(64, 128);
  gpu::EmulatorOptions options;
  if (gpu::device().emulated) {
    options.record_timeline = true;
    const gpu::EmulatorOptionsScope scope(options);
    REQUIRE(linear_attention_is_right<1>(problem, 1));
  }
  const std::vector<gpu::TimelineEvent> events = gpu::emulator_timeline();
  using Kind = gpu::TimelineEvent::Kind;
  int copies = 0, products = 0;
  std::vector<gpu::SourceLine> waits(8);  // by warp: the one that it is in
  std::uint64_t last_step = 0;
  for (const gpu::TimelineEvent& event : events) {
    REQUIRE(event.warp < 8);
    CHECK(event.block == 0);
    CHECK(event.step >= last_step);
    last_step = event.step;
    gpu::SourceLine& wait = waits[static_cast<std::size_t>(event.warp)];
    CHECK(event.line.file == "tests/common/gpu/hopper_pipelines.cu");
    CHECK((wait.line != 0) == (event.kind == Kind::wait_end));
    if (event.kind == Kind::wait_end) CHECK(wait.line == event.line.line);
    wait.line = event.kind == Kind::wait_begin ? event.line.line : 0;
    if (event.kind == Kind::issue) (event.warp == 0 ? copies : products) += 1;
  }
  if (!gpu::device().emulated) return;
  CHECK(copies == 1 + 2 * 2);              // Q, and K and V of both tiles
  CHECK(products == 1 + 4 * 2 * (4 + 4));  // the store; of four warps, two tiles, two products in four steps
  REQUIRE(linear_attention_is_right<1>(problem, 1));
  CHECK(gpu::emulator_timeline().empty());
}

TEST_CASE("bytes that TMA moves are counted: those inside the arrays", "[hopper][pipeline]") {
  if (!gpu::device().checked) return;
  constexpr std::uint64_t kRowBytes = kDim * sizeof(gpu::bf16);
  const Problem problem(100, 150);  // two row tiles, of which each reads all keys
  gpu::reset_counts();
  REQUIRE(linear_attention_is_right<1>(problem, 2));
  CHECK(gpu::counts()->global_loaded == kRowBytes * (100 + 2 * 2 * 150));
  CHECK(gpu::counts()->global_stored == 100 * kDim * sizeof(float));
  // Into shared memory come whole boxes; O is written by threads. Out of it go the rows that are stored.
  CHECK(gpu::counts()->shared_stored == kTileBytes * (2 + 2 * 2 * 3) + 2 * kRows * kDim * sizeof(float));
  CHECK(gpu::counts()->shared_loaded == 100 * kDim * sizeof(float));
}
