// Boxes that TMA moves, element by element against their definition in tensor_box_cases.hpp.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "common/gpu/emulator/tensor_box.hpp"
#include "common/gpu/numeric.cuh"
#include "tests/catch.hpp"
#include "tests/common/gpu/tensor_box_cases.hpp"

namespace {

using gpu::Swizzle;
using gpu::TensorElement;
using gpu::TensorMapShape;
using namespace gpu::emulator;
using namespace gpu_tests;

constexpr Swizzle kSwizzles[] = {Swizzle::none, Swizzle::bytes_32, Swizzle::bytes_64, Swizzle::bytes_128};
constexpr std::size_t kShared = 32 * 1024;
constexpr unsigned char kUntouched = 0xEE;

struct alignas(1024) SharedMemory {
  unsigned char bytes[kShared];
};

template <class Test>
void for_each_case(Test&& test) {
  for (const Swizzle swizzle : kSwizzles) {
    unsigned seed = 1;
    for (const BoxCase& c : box_cases(swizzle)) {
      BoxArray array(c.shape, seed++);
      for (const std::vector<int>& at : c.coordinates) {
        for (const std::size_t tile : {0, 128, 4096 + 640}) {
          CAPTURE(static_cast<unsigned>(swizzle), c.shape.sizes.size(), at, tile);
          test(array, describe(gpu::make_tensor_map(array.at(array.storage.data()))), at, tile);
        }
      }
    }
  }
}

/// The bytes inside the array that the observer was told of.
struct Observed {
  std::vector<std::pair<const unsigned char*, std::size_t>> pieces;
  void operator()(const BoxRow& row) {
    if (row.inside_bytes) pieces.emplace_back(row.global, row.inside_bytes);
  }
  bool are(const BoxArray& array, std::vector<std::ptrdiff_t> elements) const {
    const std::size_t bytes = array.element_bytes();
    std::vector<std::ptrdiff_t> seen;
    for (const auto& [begin, count] : pieces) {
      for (std::size_t i = 0; i < count; i += bytes) {
        seen.push_back(begin - array.storage.data() + static_cast<std::ptrdiff_t>(i));
      }
    }
    std::sort(seen.begin(), seen.end());
    std::sort(elements.begin(), elements.end());
    return seen == elements;
  }
};

template <class Float>
Float value_of(const unsigned char* bytes) {
  Float value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

}  // namespace

TEST_CASE("TMA box, load: every element at its swizzled place, zeros outside of the array", "[tensor_box]") {
  static SharedMemory shared;
  std::size_t boxes = 0;
  for_each_case([&](BoxArray& array, const TensorDescription& map, const std::vector<int>& at, std::size_t tile) {
    REQUIRE(box_fault(map, at, tile, kShared, BoxMove::load).empty());
    REQUIRE(box_fault(map, at, tile, kShared, BoxMove::store).empty() == is_storable(array.shape, at));
    REQUIRE(map.box_bytes() == gpu::box_bytes(array.at(array.storage.data())));
    std::memset(shared.bytes, kUntouched, kShared);
    Observed observed;
    load_box(map, at, shared.bytes, tile, observed);

    std::vector<unsigned char> expected(kShared, kUntouched);
    std::vector<std::ptrdiff_t> inside;
    const std::size_t bytes = array.element_bytes();
    for_each_element(array, at, tile, [&](std::ptrdiff_t from, std::size_t to) {
      if (from >= 0) inside.push_back(from);
      for (std::size_t i = 0; i < bytes; ++i) {
        expected[to + i] = from < 0 ? 0 : array.storage[static_cast<std::size_t>(from) + i];
      }
    });
    CHECK(std::memcmp(shared.bytes, expected.data(), kShared) == 0);
    CHECK(observed.are(array, inside));
    // The tile's bytes are the same with and without a swizzle.
    for (std::size_t i = 0; i < kShared; ++i) {
      if (i >= tile && i < tile + map.box_bytes()) continue;
      if (expected[i] != kUntouched) FAIL("the tile reaches byte " << i);
    }
    ++boxes;
  });
  CHECK(boxes > 300);
}

TEST_CASE("TMA box, store: elements inside the array are written and no others", "[tensor_box]") {
  static SharedMemory shared;
  std::mt19937 random(5);
  for (unsigned char& byte : shared.bytes) byte = static_cast<unsigned char>(random());
  for_each_case([&](BoxArray& array, const TensorDescription& map, const std::vector<int>& at, std::size_t tile) {
    std::vector<unsigned char> expected = array.storage;
    std::vector<std::ptrdiff_t> inside;
    const std::size_t bytes = array.element_bytes();
    for_each_element(array, at, tile, [&](std::ptrdiff_t to, std::size_t from) {
      if (to < 0) return;
      inside.push_back(to);
      std::memcpy(&expected[static_cast<std::size_t>(to)], shared.bytes + from, bytes);
    });
    Observed observed;
    store_box(map, at, shared.bytes, tile, observed);
    CHECK(array.storage == expected);
    CHECK(observed.are(array, inside));
  });
}

TEST_CASE("TMA box, reduce-add: rounds to nearest even in the element's own type", "[tensor_box]") {
  static SharedMemory shared;
  std::mt19937 random(6);
  std::uniform_int_distribution<int> eighths(-4000, 4000);
  for_each_case([&](BoxArray& array, const TensorDescription& map, const std::vector<int>& at, std::size_t tile) {
    const TensorElement element = array.shape.element;
    if (element == TensorElement::bytes_1) return;
    REQUIRE(reduce_fault(map).empty());
    // Eighths up to 500 need 12 bits: sums often have to be rounded in fp16 and bf16, with many ties.
    const auto put = [&](unsigned char* to) {
      const float x = static_cast<float>(eighths(random)) / 8;
      if (element == TensorElement::fp32) std::memcpy(to, &x, 4);
      if (element == TensorElement::fp16)
        std::memcpy(to, &static_cast<const gpu::fp16&>(gpu::from_float<gpu::fp16>(x)), 2);
      if (element == TensorElement::bf16)
        std::memcpy(to, &static_cast<const gpu::bf16&>(gpu::from_float<gpu::bf16>(x)), 2);
    };
    for_each_element(array, at, tile, [&](std::ptrdiff_t to, std::size_t from) {
      if (to >= 0) put(&array.storage[static_cast<std::size_t>(to)]);
      put(shared.bytes + from);
    });
    std::vector<unsigned char> expected = array.storage;
    for_each_element(array, at, tile, [&](std::ptrdiff_t place, std::size_t from) {
      if (place < 0) return;
      unsigned char* const to = &expected[static_cast<std::size_t>(place)];
      // The exact sum in double, rounded to a multiple of the type's unit at that size.
      const auto rounded = [](double x, int digits) {
        if (x == 0) return x;
        const double unit = std::ldexp(1.0, std::ilogb(x) - digits + 1);
        return std::nearbyint(x / unit) * unit;
      };
      if (element == TensorElement::fp32) {
        const float sum = value_of<float>(to) + value_of<float>(shared.bytes + from);
        std::memcpy(to, &sum, 4);
      } else if (element == TensorElement::fp16) {
        const double sum = static_cast<double>(gpu::to_float(value_of<gpu::fp16>(to))) +
                           gpu::to_float(value_of<gpu::fp16>(shared.bytes + from));
        const gpu::fp16 result = gpu::from_float<gpu::fp16>(static_cast<float>(rounded(sum, 11)));
        std::memcpy(to, &result, 2);
      } else {
        const double sum = static_cast<double>(gpu::to_float(value_of<gpu::bf16>(to))) +
                           gpu::to_float(value_of<gpu::bf16>(shared.bytes + from));
        const gpu::bf16 result = gpu::from_float<gpu::bf16>(static_cast<float>(rounded(sum, 8)));
        std::memcpy(to, &result, 2);
      }
    });
    // A dimension that repeats adds to the same element several times, and the order of roundings is then its own.
    const bool repeats = std::count(array.shape.stride_bytes.begin(), array.shape.stride_bytes.end(), 0u) > 0;
    reduce_add_box(map, at, shared.bytes, tile, [](const BoxRow&) {});
    if (!repeats) CHECK(array.storage == expected);
  });
}

TEST_CASE("TMA box, reduce-add: subnormals, infinities and NaN", "[tensor_box]") {
  static SharedMemory shared;
  const auto sums = [&](TensorElement element, auto zero, const auto& pairs) {
    using Word = decltype(zero);
    std::vector<Word> array(16, 0);
    TensorMapShape shape{element, nullptr, {16}, {}, {16}, Swizzle::none};
    alignas(16) Word storage[16] = {};
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      storage[i] = static_cast<Word>(pairs[i].first);
      const Word addend = static_cast<Word>(pairs[i].second);
      std::memcpy(shared.bytes + i * sizeof(Word), &addend, sizeof addend);
    }
    shape.base = storage;
    const int at[] = {0};
    reduce_add_box(describe(gpu::make_tensor_map(shape)), at, shared.bytes, 0, [](const BoxRow&) {});
    return std::vector<std::uint32_t>(storage, storage + pairs.size());
  };
  using Pairs = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  std::memset(shared.bytes, 0, kShared);
  // As an H200 does it (tests/golden): all types keep subnormal numbers.
  CHECK(sums(TensorElement::fp32, std::uint32_t{},
             Pairs{{0x00000001, 0x00000001},
                   {0x80000001, 0x80000000},
                   {0x00800001, 0x80800000},
                   {0x3f800000, 0x00000001},
                   {0x7f7fffff, 0x7f7fffff},
                   {0x7f800000, 0xff800000},
                   {0xffc00001, 0x3f800000}}) ==
        std::vector<std::uint32_t>{0x2, 0x80000001, 0x1, 0x3f800000, 0x7f800000, 0x7fffffff, 0x7fffffff});
  CHECK(sums(TensorElement::fp16, std::uint16_t{},
             Pairs{{0x0001, 0x0001},
                   {0x0400, 0x8001},
                   {0x7bff, 0x7bff},
                   {0x7c00, 0xfc00},
                   {0xfe01, 0x3c00},
                   {0x8000, 0x8000}}) == std::vector<std::uint32_t>{0x0002, 0x03ff, 0x7c00, 0x7fff, 0x7fff, 0x8000});
  CHECK(sums(TensorElement::bf16, std::uint16_t{},
             Pairs{{0x0001, 0x0001}, {0x0080, 0x8001}, {0x7f7f, 0x7f7f}, {0x7f80, 0xff80}, {0xffc1, 0x3f80}}) ==
        std::vector<std::uint32_t>{0x0002, 0x007f, 0x7f80, 0x7fff, 0x7fff});
}

TEST_CASE("TMA box, reduce-add: no addition is lost between OS threads", "[tensor_box]") {
  static SharedMemory shared;
  for (std::size_t i = 0; i < 64; ++i) {
    const gpu::fp16 one = gpu::from_float<gpu::fp16>(1);
    std::memcpy(shared.bytes + 2 * i, &one, 2);
  }
  alignas(16) gpu::fp16 storage[64] = {};
  const TensorDescription map =
      describe(gpu::make_tensor_map({TensorElement::fp16, storage, {64}, {}, {64}, Swizzle::none}));
  const auto add = [&] {
    const int at[] = {0};
    for (int i = 0; i < 500; ++i) reduce_add_box(map, at, shared.bytes, 0, [](const BoxRow&) {});
  };
  std::thread other(add);
  add();
  other.join();
  for (const gpu::fp16 x : storage) CHECK(gpu::to_float(x) == 1000);
}

TEST_CASE("TMA box: what the hardware refuses is named", "[tensor_box]") {
  alignas(16) static unsigned char storage[4096];
  const auto fault_of = [&](Swizzle swizzle, TensorElement element, std::vector<int> at, std::size_t tile,
                            BoxMove move = BoxMove::load) {
    const std::uint32_t width = swizzle == Swizzle::none ? 32 : gpu::swizzle_bytes(swizzle);
    const TensorMapShape shape{element, storage, {64, 4}, {256}, {width / gpu::element_bytes(element), 4}, swizzle};
    return box_fault(describe(gpu::make_tensor_map(shape)), at, tile, 2048, move);
  };
  CHECK(fault_of(Swizzle::none, TensorElement::bf16, {8, 1}, 0).empty());
  CHECK(fault_of(Swizzle::none, TensorElement::bf16, {-8, -1}, 0).empty());
  CHECK(fault_of(Swizzle::none, TensorElement::bf16, {8, 1}, 0, BoxMove::store).empty());
  CHECK(fault_of(Swizzle::none, TensorElement::bf16, {64, 4}, 0, BoxMove::store).empty());
  CHECK_THAT(fault_of(Swizzle::none, TensorElement::bf16, {-8, 1}, 0, BoxMove::store),
             ContainsText("a store at coordinate -8 in dimension 0; allowed: 0 and more"));
  CHECK_THAT(fault_of(Swizzle::bytes_128, TensorElement::bf16, {0, -1}, 0, BoxMove::store),
             ContainsText("a store at coordinate -1 in dimension 1; allowed: 0 and more"));
  const TensorMapShape odd{TensorElement::bf16, storage, {51, 4}, {128}, {16, 4}, Swizzle::none};
  const auto odd_fault = [&](std::vector<int> at, BoxMove move) {
    return box_fault(describe(gpu::make_tensor_map(odd)), at, 0, 2048, move);
  };
  CHECK_THAT(odd_fault({40, 0}, BoxMove::store), ContainsText("a store cut 102 bytes into a row"));
  CHECK(odd_fault({32, 0}, BoxMove::store).empty());
  CHECK(odd_fault({56, 0}, BoxMove::store).empty());
  CHECK(odd_fault({40, 0}, BoxMove::load).empty());
  for (const Swizzle swizzle : kSwizzles) {
    CHECK_THAT(fault_of(swizzle, TensorElement::bf16, {12, 1}, 0),
               ContainsText("the innermost coordinate is 12, which is 24 bytes"));
    CHECK_THAT(fault_of(swizzle, TensorElement::fp32, {-1, 1}, 0), ContainsText("-1, which is -4 bytes"));
  }
  CHECK(fault_of(Swizzle::none, TensorElement::bf16, {8}, 0) == "1 coordinates for a tensor map of 2 dimensions");
  CHECK(fault_of(Swizzle::none, TensorElement::bf16, {8, 1}, 64) ==
        "the tile starts 64 bytes into shared memory; allowed: multiples of 128");
  CHECK(fault_of(Swizzle::none, TensorElement::bf16, {8, 1}, 1920).empty());
  CHECK(fault_of(Swizzle::bytes_64, TensorElement::bf16, {8, 1}, 1920) ==
        "the box of 256 bytes at byte 1920 runs past the end of the 2048 bytes of shared memory");
  const TensorDescription bytes =
      describe(gpu::make_tensor_map({TensorElement::bytes_1, storage, {64}, {}, {16}, Swizzle::none}));
  CHECK_THAT(reduce_fault(bytes), ContainsText("elements of 1 byte; allowed: fp16, bf16, fp32"));
}

TEST_CASE("a tensor map is told from other 128 bytes", "[tensor_box]") {
  alignas(16) static unsigned char storage[64];
  CHECK(is_tensor_map(gpu::make_tensor_map({TensorElement::bytes_1, storage, {64}, {}, {16}, Swizzle::none})));
  CHECK_FALSE(is_tensor_map(gpu::TensorMap{}));
  gpu::TensorMap poisoned;
  std::memset(&poisoned, 0xFF, sizeof poisoned);
  CHECK_FALSE(is_tensor_map(poisoned));
}
