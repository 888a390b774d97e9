#pragma once
/// \file
/// Work on the host that may be done in any order.

#include <cstdint>
#include <functional>

namespace attention {

/// Calls f(0) … f(count − 1) on all cores and waits for them. \throws what the first of them to fail threw.
void in_parallel(std::int64_t count, const std::function<void(std::int64_t)>& f);

}  // namespace attention
