#pragma once
/// \file
/// Inputs that have broken the backward of attention elsewhere, each under its id, with the values that are right.
///
/// An input with a smaller head_dim than a kernel takes is embedded by zero columns and an explicit scale.
///
/// Each case is run for every element type that the kernel takes; C12, C18, C23 and C26, which are slow, in the
/// checking build for one of them. Inputs are numbers of the type. Values that are not, as right results, may be off by
/// the rounding of P or dS and of the result; what is exact in the type stays exact.

#include <string>
#include <vector>

#include "common/stage/kernel.hpp"
#include "tests/common/suite/forward_suite.hpp"

namespace suite {

/// A case: what it is about, and the function that tries it on a kernel.
struct BackwardHardCase {
  const char* id;
  const char* title;
  Failures (*failures)(const stage::BackwardKernel& kernel);
};

/// Rows that see nothing have dQ = 0 and add nothing to dK and dV, whatever their dO and dLSE.
Failures backward_c01_empty_rows(const stage::BackwardKernel& kernel);
/// Scratch and traffic that do not wrap at 2³¹ or 2³² (by the functions alone), and offsets beyond 2³² elements, in
/// arrays of which only a few rows are used. These lie where those of the forward's C10 do, or are left out where it
/// leaves them out.
Failures backward_c10_64_bit_offsets(const stage::BackwardKernel& kernel);
/// 65536 batch entries, 65536 heads: more than a grid takes along y or z. On the emulator 32 of them, with its limit
/// lowered to 31.
Failures backward_c12_65536_blocks(const stage::BackwardKernel& kernel);
/// Without keys dQ is 0; without queries dK and dV are.
Failures backward_c16_zero_lengths(const stage::BackwardKernel& kernel);
/// The same values in other layouts give the same bits; within tolerance where a kernel is not deterministic.
Failures backward_c18_strides(const stage::BackwardKernel& kernel);
/// The gradients of query head h land at KV head h / (heads_q / heads_kv), summed over its group.
Failures backward_c21_head_mapping(const stage::BackwardKernel& kernel);
/// One to three keys: columns that only pad a tile, for which exp overflows.
Failures backward_c23_few_keys(const stage::BackwardKernel& kernel);
/// A sum of dQ that overflows 16 bits before it is scaled.
Failures backward_c25_large_sums(const stage::BackwardKernel& kernel);
/// 50 launches: the same bits, or right every time where a kernel is not deterministic. On the emulator fewer in the
/// checking build, and each under another schedule, since equal schedules would give equal bits to any kernel.
Failures backward_c26_repeatability(const stage::BackwardKernel& kernel);
/// The scale is the problem's own, not the padded head's; 0 is 0.
Failures backward_c28_scale(const stage::BackwardKernel& kernel);
/// Two large scores that nearly tie: the scale belongs to the product in fp32, not to an operand in 16 bits.
Failures backward_c29_near_ties(const stage::BackwardKernel& kernel);
/// D belongs to the final O, not to that of a part of the keys.
Failures backward_c51_final_o(const stage::BackwardKernel& kernel);
/// dO = 0 and a gradient of LSE: dS = P∘dLSE.
Failures backward_through_lse_alone(const stage::BackwardKernel& kernel);

/// All of them, by id. The last one has the id "LSE".
const std::vector<BackwardHardCase>& backward_hard_cases();

}  // namespace suite
