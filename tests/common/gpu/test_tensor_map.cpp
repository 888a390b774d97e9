// The rules for tensor maps: what is taken, what is refused, and that the sentence names rule, value and what is
// allowed.

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>

#include "common/gpu/buffer.hpp"
#include "common/gpu/tensor_map.hpp"
#include "tests/catch.hpp"

namespace {

using gpu::Swizzle;
using gpu::TensorElement;
using gpu::TensorMapShape;

/// [2, 5, 100, 64] bf16 with gaps, boxes of 1 × 1 × 16 × 64.
TensorMapShape four_dimensions() {
  return {.element = TensorElement::bf16,
          .base = reinterpret_cast<void*>(0x10000),
          .sizes = {64, 100, 5, 2},
          .stride_bytes = {160, 16000, 80016},
          .box = {64, 16, 1, 1},
          .swizzle = Swizzle::bytes_128};
}

std::string refusal(const std::function<void(TensorMapShape&)>& change) {
  TensorMapShape shape = four_dimensions();
  change(shape);
  try {
    gpu::check_tensor_map_shape(shape);
  } catch (const gpu::Error& e) {
    return e.what();
  }
  return "";
}

bool taken(const std::function<void(TensorMapShape&)>& change) { return refusal(change).empty(); }

TensorMapShape one_dimension(TensorElement element, std::uint64_t size, std::uint32_t box, Swizzle swizzle) {
  return {.element = element,
          .base = reinterpret_cast<void*>(0x10000),
          .sizes = {size},
          .stride_bytes = {},
          .box = {box},
          .swizzle = swizzle};
}

}  // namespace

static_assert(sizeof(gpu::TensorMap) == 128 && alignof(gpu::TensorMap) >= 64);
static_assert(std::is_trivially_copyable_v<gpu::TensorMap>, "kernels get it by value");

TEST_CASE("tensor maps: what is allowed is taken", "[tensor_map]") {
  CHECK(taken([](TensorMapShape&) {}));
  CHECK(taken([](TensorMapShape& s) { s.sizes[3] = std::uint64_t{1} << 32; }));
  CHECK(taken([](TensorMapShape& s) { s.stride_bytes[2] = (std::uint64_t{1} << 40) - 16; }));
  CHECK(taken([](TensorMapShape& s) { s.stride_bytes[1] = 0; }));
  CHECK(taken([](TensorMapShape& s) { s.stride_bytes = {16000, 160, 80000}; }));  // in any order
  CHECK(taken([](TensorMapShape& s) { s.base = reinterpret_cast<void*>(0x10010); }));
  CHECK(taken([](TensorMapShape& s) { s.box[1] = 256; }));
  CHECK(taken([](TensorMapShape& s) { s.box[1] = 101; }));  // larger than the array
  CHECK_NOTHROW(gpu::check_tensor_map_shape(one_dimension(TensorElement::fp32, 1, 256, Swizzle::none)));
  CHECK_NOTHROW(gpu::check_tensor_map_shape(one_dimension(TensorElement::bytes_1, 7, 16, Swizzle::none)));
  TensorMapShape five = four_dimensions();
  five.sizes.push_back(3);
  five.stride_bytes.push_back(1 << 20);
  five.box.push_back(2);
  CHECK_NOTHROW(gpu::check_tensor_map_shape(five));
}

TEST_CASE("tensor maps: each broken rule is named with its value and what is allowed", "[tensor_map]") {
  const auto refused = [](const std::function<void(TensorMapShape&)>& change, const std::string& sentence) {
    CHECK(refusal(change) == "tensor map refused: " + sentence);
  };
  refused([](TensorMapShape& s) { s.sizes.clear(); },
          "the number of dimensions (entries in sizes) is 0; allowed: 1 to 5");
  refused([](TensorMapShape& s) { s.sizes.assign(6, 1); },
          "the number of dimensions (entries in sizes) is 6; allowed: 1 to 5");
  refused([](TensorMapShape& s) { s.stride_bytes.pop_back(); },
          "the number of entries in stride_bytes is 2; allowed: 3, for an array of 4 dimensions");
  refused([](TensorMapShape& s) { s.box.push_back(1); },
          "the number of entries in box is 5; allowed: 4, for an array of 4 dimensions");
  refused([](TensorMapShape& s) { s.base = nullptr; }, "base is null; allowed: an address in device memory");
  refused([](TensorMapShape& s) { s.base = reinterpret_cast<void*>(0x10008); },
          "base is 8 bytes past a multiple of 16; allowed: multiples of 16 bytes");
  refused([](TensorMapShape& s) { s.sizes[2] = 0; }, "sizes[2] is 0; allowed: 1 to 4294967296 elements");
  refused([](TensorMapShape& s) { s.sizes[1] = (std::uint64_t{1} << 32) + 1; },
          "sizes[1] is 4294967297; allowed: 1 to 4294967296 elements");
  refused([](TensorMapShape& s) { s.box[3] = 0; }, "box[3] is 0; allowed: 1 to 256 elements");
  refused([](TensorMapShape& s) { s.box[1] = 257; }, "box[1] is 257; allowed: 1 to 256 elements");
  refused([](TensorMapShape& s) { s.stride_bytes[0] = 136; },
          "stride_bytes[0] (of dimension 1) is 136; allowed: multiples of 16 bytes below 1099511627776");
  refused([](TensorMapShape& s) { s.stride_bytes[2] = std::uint64_t{1} << 40; },
          "stride_bytes[2] (of dimension 3) is 1099511627776; allowed: multiples of 16 bytes below 1099511627776");
  refused([](TensorMapShape& s) { s.box[0] = 60; },
          "the innermost box is 120 bytes wide; allowed: multiples of 16 bytes");
  refused([](TensorMapShape& s) { s.box[0] = 72; },
          "the innermost box is 144 bytes wide; allowed: 128 bytes, the width of its swizzle");
  refused([](TensorMapShape& s) { s.box[0] = 32; },
          "the innermost box is 64 bytes wide; allowed: 128 bytes, the width of its swizzle");
  refused([](TensorMapShape& s) { s.swizzle = Swizzle::bytes_64; },
          "the innermost box is 128 bytes wide; allowed: 64 bytes, the width of its swizzle");
  CHECK_THAT(refusal([](TensorMapShape& s) {
               s.box = {64, 256, 256, 256};
             }),
             ContainsText("the box is 2147483648 bytes large; allowed: what a block's shared memory holds, "));
  TensorMapShape wide = one_dimension(TensorElement::bytes_1, 7, 8, Swizzle::none);
  CHECK_THROWS_WITH(gpu::make_tensor_map(wide), ContainsText("the innermost box is 8 bytes wide"));
  CHECK_THROWS_WITH(gpu::box_bytes(wide), ContainsText("the innermost box is 8 bytes wide"));
}

TEST_CASE("tensor maps: the bytes of a box count what lies outside too", "[tensor_map]") {
  TensorMapShape shape = four_dimensions();
  CHECK(gpu::box_bytes(shape) == 64 * 16 * 2);
  shape.box = {64, 100, 3, 2};
  CHECK(gpu::box_bytes(shape) == 64 * 100 * 3 * 2 * 2);
  CHECK(gpu::box_bytes(one_dimension(TensorElement::fp32, 3, 8, Swizzle::none)) == 32);
  CHECK(gpu::box_bytes(one_dimension(TensorElement::bytes_1, 3, 48, Swizzle::none)) == 48);
}

TEST_CASE("tensor maps are made where there is TMA, and refused where there is none", "[tensor_map]") {
  gpu::DeviceBuffer<std::uint16_t> array(64 * 10, "array");
  const TensorMapShape shape{.element = TensorElement::fp16,
                             .base = array.data(),
                             .sizes = {64, 10},
                             .stride_bytes = {128},
                             .box = {32, 8},
                             .swizzle = Swizzle::bytes_64};
  if (gpu::device().compute_capability >= 90) {
    CHECK_NOTHROW(gpu::make_tensor_map(shape));
  } else {
    CHECK_THROWS_WITH(gpu::make_tensor_map(shape), ContainsText("TMA needs compute capability 9.0"));
  }
}
