// What TMA moves, on an H200 and on the emulator: boxes of 1 to 5 dimensions, every swizzle, off every end; stores and
// reduce-adds. Each is compared with its definition (tensor_box_cases.hpp), and some bytes with golden data.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/gpu/async_proxy.cuh"
#include "common/gpu/barrier.cuh"
#include "common/gpu/buffer.hpp"
#include "common/gpu/mbarrier.cuh"
#include "common/gpu/numeric.cuh"
#include "common/gpu/tma.cuh"
#include "tests/catch.hpp"
#include "tests/common/gpu/tensor_box_cases.hpp"
#include "tests/golden/golden.hpp"

namespace {

using gpu::Swizzle;
using gpu::TensorElement;
using namespace gpu_tests;
using Bytes = std::vector<unsigned char>;

constexpr Swizzle kSwizzles[] = {Swizzle::none, Swizzle::bytes_32, Swizzle::bytes_64, Swizzle::bytes_128};
constexpr const char* kSwizzleNames[] = {"none", "32", "64", "128"};
constexpr int kThreads = 128;
constexpr int kTileBytes = 7 * 1024;
constexpr unsigned char kUntouched = 0xEE;

struct TileShared {
  alignas(1024) unsigned char tile[kTileBytes];
  gpu::Mbarrier loaded;
};

struct Coordinates {
  int at[5];
};

template <int kRank>
__device__ void load(void* to_smem, const gpu::TensorMap& map, gpu::Mbarrier& barrier, const Coordinates& c) {
  if constexpr (kRank == 1) gpu::tma_load(to_smem, map, barrier, c.at[0]);
  if constexpr (kRank == 2) gpu::tma_load(to_smem, map, barrier, c.at[0], c.at[1]);
  if constexpr (kRank == 3) gpu::tma_load(to_smem, map, barrier, c.at[0], c.at[1], c.at[2]);
  if constexpr (kRank == 4) gpu::tma_load(to_smem, map, barrier, c.at[0], c.at[1], c.at[2], c.at[3]);
  if constexpr (kRank == 5) gpu::tma_load(to_smem, map, barrier, c.at[0], c.at[1], c.at[2], c.at[3], c.at[4]);
}

template <int kRank>
__device__ void store(const gpu::TensorMap& map, const void* from_smem, const Coordinates& c) {
  if constexpr (kRank == 1) gpu::tma_store(map, from_smem, c.at[0]);
  if constexpr (kRank == 2) gpu::tma_store(map, from_smem, c.at[0], c.at[1]);
  if constexpr (kRank == 3) gpu::tma_store(map, from_smem, c.at[0], c.at[1], c.at[2]);
  if constexpr (kRank == 4) gpu::tma_store(map, from_smem, c.at[0], c.at[1], c.at[2], c.at[3]);
  if constexpr (kRank == 5) gpu::tma_store(map, from_smem, c.at[0], c.at[1], c.at[2], c.at[3], c.at[4]);
}

template <int kRank>
__device__ void reduce_add(const gpu::TensorMap& map, const void* from_smem, const Coordinates& c) {
  if constexpr (kRank == 1) gpu::tma_reduce_add(map, from_smem, c.at[0]);
  if constexpr (kRank == 2) gpu::tma_reduce_add(map, from_smem, c.at[0], c.at[1]);
  if constexpr (kRank == 3) gpu::tma_reduce_add(map, from_smem, c.at[0], c.at[1], c.at[2]);
  if constexpr (kRank == 4) gpu::tma_reduce_add(map, from_smem, c.at[0], c.at[1], c.at[2], c.at[3]);
  if constexpr (kRank == 5) gpu::tma_reduce_add(map, from_smem, c.at[0], c.at[1], c.at[2], c.at[3], c.at[4]);
}

/// One load into a tile that was filled before; then all of the tile goes out.
template <int kRank>
__global__ void load_kernel(const __grid_constant__ gpu::TensorMap map, Coordinates at, std::uint32_t tile,
                            std::uint32_t box_bytes,
                            unsigned char* out_gmem) {  // [kTileBytes]
  auto& shared = gpu::shared_memory<TileShared>();
  for (int i = static_cast<int>(threadIdx.x); i < kTileBytes; i += kThreads) shared.tile[i] = kUntouched;
  if (threadIdx.x == 0) {
    gpu::mbarrier_init(shared.loaded, 1);
    gpu::mbarrier_init_fence();
  }
  gpu::async_proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    gpu::mbarrier_arrive_expect_bytes(shared.loaded, box_bytes);
    load<kRank>(shared.tile + tile, map, shared.loaded, at);
  }
  gpu::mbarrier_wait(shared.loaded, 0);
  for (int i = static_cast<int>(threadIdx.x); i < kTileBytes; i += kThreads) out_gmem[i] = shared.tile[i];
}

/// One store or reduce-add of a tile that comes from `in_gmem`.
template <int kRank, bool kReduce>
__global__ void store_kernel(const __grid_constant__ gpu::TensorMap map, Coordinates at, std::uint32_t tile,
                             const unsigned char* in_gmem) {  // [kTileBytes]
  auto& shared = gpu::shared_memory<TileShared>();
  for (int i = static_cast<int>(threadIdx.x); i < kTileBytes; i += kThreads) shared.tile[i] = in_gmem[i];
  gpu::async_proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    if constexpr (kReduce) {
      reduce_add<kRank>(map, shared.tile + tile, at);
    } else {
      store<kRank>(map, shared.tile + tile, at);
    }
    gpu::tma_store_commit();
    gpu::tma_store_wait<0>();
  }
}

/// Calls call(std::integral_constant<int, rank>).
template <class Call>
void with_rank(std::size_t rank, Call&& call) {
  if (rank == 1) call(std::integral_constant<int, 1>{});
  if (rank == 2) call(std::integral_constant<int, 2>{});
  if (rank == 3) call(std::integral_constant<int, 3>{});
  if (rank == 4) call(std::integral_constant<int, 4>{});
  if (rank == 5) call(std::integral_constant<int, 5>{});
}

Coordinates coordinates(const std::vector<int>& at) {
  Coordinates c{};
  for (std::size_t d = 0; d < at.size(); ++d) c.at[d] = at[d];
  return c;
}

/// All of the tile after a load.
Bytes loaded(const BoxArray& array, const std::vector<int>& at, std::size_t tile) {
  gpu::DeviceBuffer<unsigned char> storage(std::span<const unsigned char>(array.storage), "array");
  gpu::DeviceBuffer<unsigned char> out(kTileBytes, "out");
  const gpu::TensorMapShape shape = array.at(storage.data());
  const gpu::TensorMap map = gpu::make_tensor_map(shape);
  with_rank(at.size(), [&](auto rank) {
    gpu::launch<TileShared>(load_kernel<decltype(rank)::value>, {.grid = 1, .block = kThreads}, map, coordinates(at),
                            static_cast<std::uint32_t>(tile), gpu::box_bytes(shape), out.data());
  });
  return out.download();
}

Bytes expected_after_load(const BoxArray& array, const std::vector<int>& at, std::size_t tile) {
  Bytes expected(kTileBytes, kUntouched);
  for_each_element(array, at, tile, [&](std::ptrdiff_t from, std::size_t to) {
    for (std::size_t i = 0; i < array.element_bytes(); ++i) {
      expected[to + i] = from < 0 ? 0 : array.storage[static_cast<std::size_t>(from) + i];
    }
  });
  return expected;
}

/// The array's storage after the store or reduce-add of a tile.
template <bool kReduce>
Bytes stored(const BoxArray& array, const std::vector<int>& at, std::size_t tile, const Bytes& tile_bytes) {
  gpu::DeviceBuffer<unsigned char> storage(std::span<const unsigned char>(array.storage), "array");
  gpu::DeviceBuffer<unsigned char> in(std::span<const unsigned char>(tile_bytes), "tile");
  const gpu::TensorMap map = gpu::make_tensor_map(array.at(storage.data()));
  with_rank(at.size(), [&](auto rank) {
    gpu::launch<TileShared>(store_kernel<decltype(rank)::value, kReduce>, {.grid = 1, .block = kThreads}, map,
                            coordinates(at), static_cast<std::uint32_t>(tile),
                            static_cast<const unsigned char*>(in.data()));
  });
  return storage.download();
}

std::ptrdiff_t tile_bytes_of(const BoxArray& array) {
  std::size_t bytes = array.element_bytes();
  for (const std::uint32_t elements : array.shape.box) bytes *= elements;
  return static_cast<std::ptrdiff_t>(bytes);
}

/// A short stand-in for many bytes (FNV-1a).
void append_hash(Bytes& record, const Bytes& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  for (int i = 0; i < 8; ++i) record.push_back(static_cast<unsigned char>(hash >> 8 * i));
}

/// Calls test(array, coordinates, tile, whether these bytes are to be recorded).
template <class Test>
void for_each_box(Swizzle swizzle, Test&& test) {
  unsigned seed = 1;
  for (const BoxCase& c : box_cases(swizzle)) {
    BoxArray array(c.shape, seed++);
    for (std::size_t i = 0; i < c.coordinates.size(); ++i) {
      for (const std::size_t tile : {0, 128, 4096 + 640}) {
        CAPTURE(static_cast<unsigned>(swizzle), array.shape.sizes.size(), c.coordinates[i], tile);
        // All of 1D; boxes inside and off both ends in 2D; one off the ends in more.
        const std::size_t recorded = array.shape.sizes.size() == 1 ? 7 : array.shape.sizes.size() == 2 ? 3 : 1;
        test(array, c.coordinates[i], tile, tile == 0 && i < recorded);
      }
    }
  }
}

template <class T>
T value_at(const Bytes& bytes, std::size_t place) {
  T value;
  std::memcpy(&value, &bytes[place], sizeof value);
  return value;
}

/// Puts an eighth between -500 and 500 there. Sums of two often have to be rounded in fp16 and bf16, with many ties.
void put_eighth(TensorElement element, std::mt19937& random, unsigned char* to) {
  const float x = static_cast<float>(static_cast<int>(random() % 8001) - 4000) / 8;
  if (element == TensorElement::fp32) std::memcpy(to, &x, sizeof x);
  const gpu::fp16 half = gpu::from_float<gpu::fp16>(x);
  if (element == TensorElement::fp16) std::memcpy(to, &half, sizeof half);
  const gpu::bf16 brain = gpu::from_float<gpu::bf16>(x);
  if (element == TensorElement::bf16) std::memcpy(to, &brain, sizeof brain);
}

/// The sum, exact in double, rounded to so many binary digits.
template <class T>
void add(Bytes& array, std::size_t place, const Bytes& tile, std::size_t from, int digits) {
  double sum = static_cast<double>(gpu::to_float(value_at<T>(array, place))) +
               static_cast<double>(gpu::to_float(value_at<T>(tile, from)));
  if (sum != 0) {
    const double unit = std::ldexp(1.0, std::ilogb(sum) - digits + 1);
    sum = std::nearbyint(sum / unit) * unit;
  }
  const T result = gpu::from_float<T>(static_cast<float>(sum));
  std::memcpy(&array[place], &result, sizeof result);
}

}  // namespace

TEST_CASE("golden: TMA loads of 1 to 5 dimensions, swizzled, off every end", "[golden][tma]") {
  for (std::size_t s = 0; s < 4; ++s) {
    Bytes flat, deep;
    for_each_box(kSwizzles[s], [&](const BoxArray& array, const std::vector<int>& at, std::size_t tile, bool record) {
      const Bytes bytes = loaded(array, at, tile);
      CHECK(bytes == expected_after_load(array, at, tile));
      if (record) {
        Bytes& to = at.size() <= 2 ? flat : deep;
        to.insert(to.end(), bytes.begin(), bytes.begin() + tile_bytes_of(array));
      }
    });
    CHECK(golden::difference(std::string("tma_load_") + kSwizzleNames[s] + "_flat", flat) == "");
    CHECK(golden::difference(std::string("tma_load_") + kSwizzleNames[s] + "_deep", deep) == "");
  }
}

TEST_CASE("golden: TMA stores write what lies inside the array", "[golden][tma]") {
  std::mt19937 random(7);
  Bytes tile_bytes(kTileBytes);
  for (unsigned char& byte : tile_bytes) byte = static_cast<unsigned char>(random());
  Bytes record;
  for (const Swizzle swizzle : kSwizzles) {
    for_each_box(swizzle, [&](const BoxArray& array, const std::vector<int>& at, std::size_t tile, bool) {
      // Where a dimension repeats, two elements of the tile go to the same place, in no particular order.
      if (at.size() == 5 || !is_storable(array.shape, at)) return;
      const Bytes bytes = stored<false>(array, at, tile, tile_bytes);
      Bytes expected = array.storage;
      for_each_element(array, at, tile, [&](std::ptrdiff_t to, std::size_t from) {
        if (to >= 0) std::memcpy(&expected[static_cast<std::size_t>(to)], &tile_bytes[from], array.element_bytes());
      });
      CHECK(bytes == expected);
      append_hash(record, bytes);
    });
  }
  CHECK(golden::difference("tma_store", record) == "");
}

TEST_CASE("golden: TMA reduce-add rounds each sum to nearest even", "[golden][tma]") {
  std::mt19937 random(8);
  Bytes record;
  for (const Swizzle swizzle : kSwizzles) {
    for_each_box(swizzle, [&](BoxArray& array, const std::vector<int>& at, std::size_t tile, bool) {
      const TensorElement element = array.shape.element;
      if (element == TensorElement::bytes_1 || at.size() == 5 || !is_storable(array.shape, at)) return;
      Bytes tile_bytes(kTileBytes);
      for_each_element(array, at, tile, [&](std::ptrdiff_t to, std::size_t from) {
        if (to >= 0) put_eighth(element, random, &array.storage[static_cast<std::size_t>(to)]);
        put_eighth(element, random, &tile_bytes[from]);
      });
      Bytes expected = array.storage;
      for_each_element(array, at, tile, [&](std::ptrdiff_t to, std::size_t from) {
        if (to < 0) return;
        const auto place = static_cast<std::size_t>(to);
        if (element == TensorElement::fp32) add<float>(expected, place, tile_bytes, from, 24);
        if (element == TensorElement::fp16) add<gpu::fp16>(expected, place, tile_bytes, from, 11);
        if (element == TensorElement::bf16) add<gpu::bf16>(expected, place, tile_bytes, from, 8);
      });
      const Bytes bytes = stored<true>(array, at, tile, tile_bytes);
      CHECK(bytes == expected);
      append_hash(record, bytes);
    });
  }
  CHECK(golden::difference("tma_reduce_add", record) == "");
}

TEST_CASE("golden: TMA reduce-add of subnormals, infinities and NaN", "[golden][tma]") {
  struct Pair {
    std::uint32_t array, tile;
  };
  const std::vector<Pair> fp32 = {{0x00000001, 0x00000001}, {0x80000001, 0x80000000}, {0x00800001, 0x80800000},
                                  {0x3f800000, 0x00000001}, {0x7f7fffff, 0x7f7fffff}, {0x7f800000, 0xff800000},
                                  {0xffc00001, 0x3f800000}, {0x80000000, 0x80000000}};
  const std::vector<Pair> fp16 = {{0x0001, 0x0001}, {0x0400, 0x8001}, {0x7bff, 0x7bff}, {0x7c00, 0xfc00},
                                  {0xfe01, 0x3c00}, {0x8000, 0x8000}, {0x7bff, 0x4c00}, {0x3c00, 0x1000}};
  const std::vector<Pair> bf16 = {{0x0001, 0x0001}, {0x0080, 0x8001}, {0x7f7f, 0x7f7f}, {0x7f80, 0xff80},
                                  {0xffc1, 0x3f80}, {0x8000, 0x8000}, {0x3f80, 0x3b80}, {0x3f81, 0x3b80}};
  Bytes record;
  const auto add_pairs = [&](TensorElement element, const std::vector<Pair>& pairs) {
    const std::uint32_t bytes = gpu::element_bytes(element);
    BoxArray array({element, nullptr, {8}, {}, {8}, Swizzle::none}, 1);
    Bytes tile(kTileBytes);
    for (std::size_t i = 0; i < 8; ++i) {
      std::memcpy(&array.storage[BoxArray::kBase + i * bytes], &pairs[i].array, bytes);  // little-endian
      std::memcpy(&tile[i * bytes], &pairs[i].tile, bytes);
    }
    const Bytes sums = stored<true>(array, {0}, 0, tile);
    record.insert(record.end(), sums.begin() + BoxArray::kBase, sums.begin() + BoxArray::kBase + 8 * bytes);
  };
  add_pairs(TensorElement::fp32, fp32);
  add_pairs(TensorElement::fp16, fp16);
  add_pairs(TensorElement::bf16, bf16);
  CHECK(golden::difference("tma_reduce_add_special", record) == "");
}
