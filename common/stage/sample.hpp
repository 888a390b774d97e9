#pragma once
/// \file
/// Rows that are compared where the float64 reference of all rows would take too long, and a look at all the others.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace stage {

inline constexpr int kSampledRows = 64;

/// `kSampledRows` of the indices 0 … rows − 1: the first, the last, and others drawn with a fixed seed, the same on
/// every machine. None if there are no rows.
std::vector<std::int64_t> sampled_rows(std::int64_t rows);

/// A row of an array [batch, seqlen, heads, head_dim].
struct RowPlace {
  int batch, position, head;
};

/// The first row, in the order of that array, for which `f` holds: what a sample may have missed. Asks on all cores.
std::optional<RowPlace> find_row(int batch, int seqlen, int heads, const std::function<bool(const RowPlace&)>& f);

bool is_finite(std::span<const float> row);

/// `size` elements from `offset`; an empty part may lie anywhere.
template <class T>
std::span<const T> part(std::span<const T> all, std::int64_t offset, std::int64_t size) {
  if (size == 0) return {};
  return all.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
}

}  // namespace stage
