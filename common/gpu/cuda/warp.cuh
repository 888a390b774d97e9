#pragma once
/// \file
/// elect.sync as PTX. Shuffles, votes and __syncwarp are CUDA's own.

#include <cstdint>

namespace gpu {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ __forceinline__ bool elect_one() {
  std::uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, elected;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}
#endif

}  // namespace gpu
