#pragma once
/// \file
/// The problems on which the papers measure attention.

#include <vector>

#include "common/attention/problem.hpp"

namespace stage {

/// The benchmark setting of FlashAttention-2 (Dao 2023, section 4.1) and FlashAttention-3 (Shah et al. 2024, section
/// 4.1): batch · seqlen = 16384 tokens and heads · head_dim = 2048, as many heads of K and V as of Q. The elements here
/// are bf16.
///
/// In the order of `head_dims`, for each without a mask and then causal, for each mask in the order of `seqlens`.
/// \throws std::invalid_argument if a seqlen does not divide 16384 or a head_dim 2048.
std::vector<attention::Problem> papers_grid(const std::vector<int>& head_dims, const std::vector<int>& seqlens);

}  // namespace stage
