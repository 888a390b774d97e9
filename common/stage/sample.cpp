#include "common/stage/sample.hpp"

#include <algorithm>
#include <cmath>

#include "common/attention/in_parallel.hpp"

namespace stage {
namespace {

/// SplitMix64 (Steele, Lea, Flood 2014): the sample must be the same on every machine, which std distributions are not.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace

std::vector<std::int64_t> sampled_rows(std::int64_t rows) {
  std::vector<std::int64_t> indices;
  std::uint64_t random = 1;
  for (int i = 0; i < kSampledRows && rows > 0; ++i) {
    const auto drawn = static_cast<std::int64_t>(next_random(random) % static_cast<std::uint64_t>(rows));
    indices.push_back(i == 0 ? 0 : i == 1 ? rows - 1 : drawn);
  }
  return indices;
}

std::optional<RowPlace> find_row(int batch, int seqlen, int heads, const std::function<bool(const RowPlace&)>& f) {
  // All heads of a position at once: a single row is too little to be handed to a core.
  const auto first_of_position = [&](std::int64_t i) {
    RowPlace place{static_cast<int>(i / seqlen), static_cast<int>(i % seqlen), 0};
    while (place.head < heads && !f(place)) ++place.head;
    return place;
  };
  const std::int64_t positions = std::int64_t{batch} * seqlen;
  const std::int64_t found =
      attention::find_in_parallel(positions, [&](std::int64_t i) { return first_of_position(i).head < heads; });
  if (found == positions) return std::nullopt;
  return first_of_position(found);
}

bool is_finite(std::span<const float> row) {
  return std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace stage
