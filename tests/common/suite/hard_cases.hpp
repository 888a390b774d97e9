#pragma once
/// \file
/// Inputs that have broken attention kernels elsewhere, each under its id, with the values that are right.
///
/// An input with a smaller head_dim than a kernel takes is embedded by zero columns and an explicit scale.
///
/// Each case is run for every element type that the kernel takes; C12 and C18, which are slow, in the checking build
/// for one of them. Inputs are numbers of the type. Values that are not, as right results, may be off by the rounding
/// of the weights and of the result; what is exact in the type stays exact, and LSE, which is fp32, keeps its
/// tolerance.

#include <string>
#include <vector>

#include "common/stage/kernel.hpp"
#include "tests/common/suite/forward_suite.hpp"

namespace suite {

/// A case: what it is about, and the function that tries it on a kernel.
struct HardCase {
  const char* id;
  const char* title;
  Failures (*failures)(const stage::ForwardKernel& kernel);
};

/// Rows that see nothing are 0 with LSE = −∞, alone and in a tile with rows that see keys.
Failures c01_empty_rows(const stage::ForwardKernel& kernel);
/// The causal mask is aligned bottom-right when Nq ≠ Nk.
Failures c03_causal_alignment(const stage::ForwardKernel& kernel);
/// A window is inclusive on both sides.
Failures c05_window_edges(const stage::ForwardKernel& kernel);
/// Keys that only pad a tile get no weight.
Failures c06_padding_keys(const stage::ForwardKernel& kernel);
/// Scores far below any finite stand-in for −∞.
Failures c08_very_low_scores(const stage::ForwardKernel& kernel);
/// Offsets beyond 2³² elements, in arrays of which only a few rows are used, and scratch sizes that do not wrap.
///
/// The arrays lie in reserved address space (host kernels, plain emulator) or, where a GPU has them, in 17 GB of device
/// memory, 9 GB in 16 bits. In the checking build, whose emulator knows only its own allocations, only the sizes are
/// checked.
Failures c10_64_bit_offsets(const stage::ForwardKernel& kernel);
/// 65536 batch entries, 65536 heads: more than a grid takes along y or z. On the emulator 32 of them, with its limit
/// lowered to 31.
Failures c12_65536_blocks(const stage::ForwardKernel& kernel);
/// No keys, no queries.
Failures c16_zero_lengths(const stage::ForwardKernel& kernel);
/// The same values in four layouts give the same bits.
Failures c18_strides(const stage::ForwardKernel& kernel);
/// Query head h reads KV head h / (heads_q / heads_kv).
Failures c21_head_mapping(const stage::ForwardKernel& kernel);
/// Sums of P·V that 16 bits cannot hold.
Failures c25_large_sums(const stage::ForwardKernel& kernel);
/// The scale is the problem's own, not the padded head's; 0 is 0.
Failures c28_scale(const stage::ForwardKernel& kernel);
/// Two large scores that nearly tie: the scale belongs to the product in fp32, not to an operand in 16 bits.
Failures c29_near_ties(const stage::ForwardKernel& kernel);
/// LSE is a natural logarithm.
Failures c30_lse_base(const stage::ForwardKernel& kernel);

/// All of them, by id.
const std::vector<HardCase>& hard_cases();

}  // namespace suite
