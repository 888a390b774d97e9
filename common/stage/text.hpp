#pragma once
/// \file
/// Numbers as text, for the cells of a chapter's tables.

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <string>
#include <type_traits>

namespace stage {

/// What printf writes. A NaN is "nan", whatever its sign.
template <class... Values>
std::string text(const char* format, Values... values) {
  const auto without_sign = [](auto value) {
    if constexpr (std::is_floating_point_v<decltype(value)>) {
      return std::isnan(value) ? std::numeric_limits<decltype(value)>::quiet_NaN() : value;
    } else {
      return value;
    }
  };
  const int length = std::snprintf(nullptr, 0, format, without_sign(values)...);
  std::string written(static_cast<std::size_t>(length), '\0');
  std::snprintf(written.data(), written.size() + 1, format, without_sign(values)...);
  return written;
}

}  // namespace stage
