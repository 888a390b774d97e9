#pragma once
/// \file
/// Work on the host that may be done in any order.

#include <cstdint>
#include <functional>

namespace attention {

/// Calls f(0) … f(count − 1) on all cores and waits for them. \throws what the first of them to fail threw.
void in_parallel(std::int64_t count, const std::function<void(std::int64_t)>& f);

/// Calls f(begin, end) for consecutive parts of 0 … count − 1, on all cores: each as long as `part`, the last one at
/// most.
void in_parallel_parts(std::int64_t count, std::int64_t part, const std::function<void(std::int64_t, std::int64_t)>& f);

/// The least i of 0 … count − 1 for which f(i), or `count`: as a loop would find it, on all cores.
std::int64_t find_in_parallel(std::int64_t count, const std::function<bool(std::int64_t)>& f);

}  // namespace attention
