/// \file
/// Tiles in shared memory and fragments in registers, without attention: offsets, loads, products, the way from a
/// result to an operand.

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "chapters/07_tensor_cores/fragment_map.cuh"
#include "common/gpu/buffer.hpp"
#include "common/kernel/fragments.cuh"
#include "common/kernel/shared_tile.cuh"
#include "tests/catch.hpp"

namespace {

using kernel::RowByRow, kernel::Swizzled;

/// Two products in a row, as attention has them, without the softmax: S = Q Kᵀ, O = S V for 16 rows at `first_row` of
/// Q, 16 keys at a time.
constexpr int kRows = 32, kColumns = 128, kFirstRow = 16;

template <class T, class Layout>
struct ProductsShared {
  kernel::SharedTile<T, kRows, kColumns, Layout> q, k, v;
};

template <class T, class Layout>
__global__ void products_kernel(const T* q_gmem, const T* k_gmem, const T* v_gmem, int keys, float* s_gmem,
                                float* o_gmem) {
  auto& shared = gpu::shared_memory<ProductsShared<T, Layout>>();
  using Tile = decltype(shared.q);
  const int lane = static_cast<int>(threadIdx.x);
  kernel::load_chunks<gpu::kWarpSize>(shared.q, q_gmem, kColumns, kRows);
  kernel::load_chunks<gpu::kWarpSize>(shared.k, k_gmem, kColumns, keys);
  kernel::load_chunks<gpu::kWarpSize>(shared.v, v_gmem, kColumns, keys);
  __syncthreads();

  float o_reg[kColumns / 8][4] = {};
  for (int first_key = 0; first_key < kRows; first_key += 16) {
    float s_reg[2][4] = {};
    for (int i = 0; i < kColumns / 16; ++i) {
      std::uint32_t q_reg[4], k_reg[2][2];
      gpu::load_matrices<4>(q_reg, shared.q.at(Tile::column_step(kernel::offset_of_a<Tile>(kFirstRow, lane), i)));
      kernel::load_b(k_reg, shared.k,
                     Tile::column_step(kernel::offset_of_b<Tile>(lane), i) + first_key * Tile::kColumns);
      gpu::mma_16x8x16<T>(s_reg[0], q_reg, k_reg[0]);
      gpu::mma_16x8x16<T>(s_reg[1], q_reg, k_reg[1]);
    }
    for (int n = 0; n < 2; ++n) {
      for (int e = 0; e < 4; ++e) {
        const int key = first_key + 8 * n + kernel::fragment_column(lane) + e % 2;
        s_gmem[kernel::fragment_row(e / 2, lane) * kRows + key] = s_reg[n][e];
      }
    }
    std::uint32_t p_reg[4];
    kernel::pack_a<T>(p_reg, s_reg[0], s_reg[1]);
    for (int c = 0; c < kColumns / 8; c += 2) {
      std::uint32_t v_reg[2][2];
      kernel::load_b_transposed(
          v_reg, shared.v,
          Tile::column_step(kernel::offset_of_b_transposed<Tile>(lane), c / 2) + first_key * Tile::kColumns);
      gpu::mma_16x8x16<T>(o_reg[c], p_reg, v_reg[0]);
      gpu::mma_16x8x16<T>(o_reg[c + 1], p_reg, v_reg[1]);
    }
  }
  for (int c = 0; c < kColumns / 8; ++c) {
    for (int e = 0; e < 4; ++e) {
      const int column = 8 * c + kernel::fragment_column(lane) + e % 2;
      o_gmem[kernel::fragment_row(e / 2, lane) * kColumns + column] = o_reg[c][e];
    }
  }
}

/// −1, 0 or 1: sums of 128 products are whole numbers that both formats hold.
int sign_of(int seed, int row, int column) {
  const unsigned mixed = static_cast<unsigned>(seed) * 97u + static_cast<unsigned>(row) * 2654435761u +
                         static_cast<unsigned>(column) * 40503u;
  return static_cast<int>((mixed >> 7) % 3) - 1;
}

template <class T>
std::vector<T> signs(int seed) {
  std::vector<T> values;
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      values.push_back(gpu::from_float<T>(static_cast<float>(sign_of(seed, row, column))));
    }
  }
  return values;
}

/// The kernel's two products against loops, where `keys` of the tile's rows of K and V exist.
template <class T, class Layout>
void check_products(int keys) {
  const gpu::DeviceBuffer<T> q_gmem(signs<T>(1), "q"), k_gmem(signs<T>(2), "k"), v_gmem(signs<T>(3), "v");
  gpu::DeviceBuffer<float> s_gmem(16 * kRows, "s"), o_gmem(16 * kColumns, "o");
  gpu::launch<ProductsShared<T, Layout>>(products_kernel<T, Layout>, {.grid = 1, .block = gpu::kWarpSize},
                                         q_gmem.data(), k_gmem.data(), v_gmem.data(), keys, s_gmem.data(),
                                         o_gmem.data());
  const std::vector<float> s = s_gmem.download(), o = o_gmem.download();
  for (int row = 0; row < 16; ++row) {
    std::vector<int> expected_s(kRows);
    for (int key = 0; key < keys; ++key) {
      for (int c = 0; c < kColumns; ++c) expected_s[key] += sign_of(1, kFirstRow + row, c) * sign_of(2, key, c);
    }
    for (int key = 0; key < kRows; ++key) REQUIRE(s[row * kRows + key] == static_cast<float>(expected_s[key]));
    for (int c = 0; c < kColumns; ++c) {
      int expected_o = 0;
      for (int key = 0; key < keys; ++key) expected_o += expected_s[key] * sign_of(3, key, c);
      REQUIRE(o[row * kColumns + c] == static_cast<float>(expected_o));
    }
  }
}

template <class Layout, int kWidth>
void check_offsets() {
  using Tile = kernel::SharedTile<gpu::fp16, 16, kWidth, Layout>;
  std::set<int> places;
  for (int row = 0; row < Tile::kRows; ++row) {
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      const int offset = Tile::offset(row, chunk);
      CHECK(offset % kernel::kChunkElements == 0);
      CHECK(offset / kWidth == row);
      CHECK(places.insert(offset).second);
      CHECK(Tile::column_step(Tile::offset(row, chunk % 2), chunk / 2) == offset);
      // What lets a kernel go down by adding whole rows.
      if (row >= 8) CHECK(offset == Tile::offset(row - 8, chunk) + 8 * kWidth);
    }
  }
  CHECK(places.size() == 16 * Tile::kChunks);
}

}  // namespace

TEST_CASE("every chunk has a place of its own in its row, and steps lead to it") {
  check_offsets<RowByRow, 64>();
  check_offsets<RowByRow, 128>();
  check_offsets<RowByRow, 256>();
  check_offsets<Swizzled, 64>();
  check_offsets<Swizzled, 128>();
  check_offsets<Swizzled, 256>();
}

TEST_CASE("eight chunks of a column lie in one group of four banks, and swizzled in eight") {
  const auto groups = []([[maybe_unused]] auto tile) {
    using Tile = decltype(tile);
    std::vector<std::size_t> counts;
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      std::set<int> banks;
      for (int row = 0; row < 8; ++row) banks.insert(Tile::offset(row, chunk) * 2 / 16 % 8);
      counts.push_back(banks.size());
    }
    return counts;
  };
  CHECK(groups(kernel::SharedTile<gpu::fp16, 16, 64, RowByRow>()) == std::vector<std::size_t>(8, 1));
  CHECK(groups(kernel::SharedTile<gpu::fp16, 16, 256, RowByRow>()) == std::vector<std::size_t>(32, 1));
  CHECK(groups(kernel::SharedTile<gpu::fp16, 16, 64, Swizzled>()) == std::vector<std::size_t>(8, 8));
  CHECK(groups(kernel::SharedTile<gpu::fp16, 16, 256, Swizzled>()) == std::vector<std::size_t>(32, 8));
}

TEST_CASE("two products through the fragments, the result of the first an operand of the second") {
  for (const int keys : {32, 31, 17, 1}) {
    CAPTURE(keys);
    check_products<gpu::fp16, RowByRow>(keys);
    check_products<gpu::fp16, Swizzled>(keys);
    check_products<gpu::bf16, RowByRow>(keys);
    check_products<gpu::bf16, Swizzled>(keys);
  }
}

TEST_CASE("what the lanes say of themselves is what the table says") {
  gpu::DeviceBuffer<tensor_cores::FragmentMap> map_gmem(1, "map");
  gpu::launch<tensor_cores::FragmentMapShared<gpu::fp16>>(tensor_cores::fragment_map_kernel<gpu::fp16>,
                                                          {.grid = 1, .block = gpu::kWarpSize}, map_gmem.data());
  const tensor_cores::FragmentMap map = map_gmem.download().front();
  for (int lane = 0; lane < gpu::kWarpSize; ++lane) {
    CAPTURE(lane);
    const int g = lane / 4, t = lane % 4;
    const auto number = [](int row, int column) { return static_cast<float>(16 * row + column); };
    for (int i = 0; i < 4; ++i) {
      for (int e = 0; e < 2; ++e) CHECK(map.a[lane][i][e] == number(g + i % 2 * 8, 2 * t + e + i / 2 * 8));
      CHECK(map.d[lane][i] == number(g + i / 2 * 8, 2 * t + i % 2));
      CHECK(map.a_loaded[lane][i] == map.a_packed[lane][i]);
    }
    for (int i = 0; i < 2; ++i) {
      for (int e = 0; e < 2; ++e) CHECK(map.b[lane][i][e] == number(2 * t + e + 8 * i, g));
    }
  }
}
