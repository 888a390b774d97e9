/// \file
/// What the chapter says of rounding, asked of its figures.

#include <cmath>

#include "chapters/07_tensor_cores/sixteen_bits.hpp"
#include "tests/catch.hpp"

// The chapter's program is linked with this file; the tests are not.
#include "chapters/07_tensor_cores/sixteen_bits.cpp"

namespace {

using attention::ElementType;
using tensor_cores::range_errors;
using tensor_cores::rounding_errors, tensor_cores::RoundingErrors;

constexpr ElementType kTypes[] = {ElementType::fp16, ElementType::bf16};

double half_ulp(ElementType type) { return attention::unit_in_last_place(type) / 2; }

}  // namespace

TEST_CASE("rounding O costs a part of half a unit in the last place, at any length") {
  for (const ElementType type : kTypes) {
    for (const int n : {64, 4096}) {
      const RoundingErrors e = rounding_errors(type, n, 1, 1);
      CHECK(e.o < half_ulp(type));
      CHECK(e.o > 0.2 * half_ulp(type));
    }
  }
}

TEST_CASE("the rounding of P averages out, where many keys share the weight") {
  for (const ElementType type : kTypes) {
    CHECK(rounding_errors(type, 4096, 1, 1).p < 0.5 * rounding_errors(type, 64, 1, 1).p);
    CHECK(rounding_errors(type, 4096, 1, 1).p < 0.3 * rounding_errors(type, 4096, 1, 1).o);
  }
}

TEST_CASE("an O kept in 16 bits is off by more than rounding it at the end, S in 16 bits by more still") {
  for (const ElementType type : kTypes) {
    const RoundingErrors e = rounding_errors(type, 4096, 1, 1);
    CHECK(e.o_kept > 1.5 * e.o);
    const RoundingErrors large = rounding_errors(type, 4096, 8, 1);
    CHECK(large.s > 3 * large.attention);
  }
}

TEST_CASE("bf16 is eight times as coarse as fp16") {
  const RoundingErrors fp16 = rounding_errors(ElementType::fp16, 512, 1, 1);
  const RoundingErrors bf16 = rounding_errors(ElementType::bf16, 512, 1, 1);
  CHECK(bf16.attention > 5 * fp16.attention);
  CHECK(bf16.attention < 13 * fp16.attention);
}

TEST_CASE("fp16 overflows where bf16 does not, and loses small numbers") {
  CHECK(std::isinf(range_errors(ElementType::fp16, 0x1p16, 1).input));
  CHECK(range_errors(ElementType::bf16, 0x1p16, 1).attention < 0x1p-8);
  // The inputs are numbers of fp16 still, their products are not.
  CHECK(range_errors(ElementType::fp16, 0x1p6, 1).attention < 0x1p-11);
  CHECK(std::isinf(range_errors(ElementType::fp16, 0x1p12, 1).s));
  CHECK(range_errors(ElementType::fp16, 0x1p-20, 1).input > 0.01);
  CHECK(range_errors(ElementType::bf16, 0x1p-20, 1).input < 0x1p-8);
}
