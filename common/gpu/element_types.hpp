#pragma once
/// \file
/// The names of the 16-bit formats, for code that only passes pointers to them on. numeric.cuh says what they are.

struct __half;
struct __nv_bfloat16;

namespace gpu {

using fp16 = __half;
using bf16 = __nv_bfloat16;

}  // namespace gpu
