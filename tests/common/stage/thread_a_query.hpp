#pragma once
/// \file
/// A kernel in 16 bits for the tests of the runner.

#include "common/attention/problem.hpp"
#include "common/gpu/element_types.hpp"

namespace stage_test {

inline constexpr int kThreadHeadDim = 32;

/// Where the kernel keeps its sums: in fp32, or rounded to its elements' type after each key, which is wrong.
enum class Sums { in_fp32, in_elements };

/// Attention, a thread a query. \tparam T gpu::fp16 or gpu::bf16
template <class T>
void launch_thread_a_query(const attention::ForwardArgs<T>& args, Sums sums);

}  // namespace stage_test
