#include "common/attention/cost.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace attention {

double forward_flops(const Problem& p) {
  return 4.0 * p.head_dim * static_cast<double>(p.visible_pairs()) * p.heads_q * p.batch;
}

double backward_flops(const Problem& p) { return 2.5 * forward_flops(p); }

Traffic compulsory_traffic(const Problem& p, int element_bytes) {
  const double q_elements = double(p.batch) * p.seqlen_q * p.heads_q * p.head_dim;
  const double kv_elements = double(p.batch) * p.seqlen_kv * p.heads_kv * p.head_dim;
  const double lse_bytes = double(p.batch) * p.seqlen_q * p.heads_q * sizeof(float);
  return {(q_elements + 2 * kv_elements) * element_bytes, q_elements * element_bytes + lse_bytes};
}

Traffic tiled_forward_traffic(const Problem& p, int query_tile, int key_tile) {
  if (query_tile < 1 || key_tile < 1)
    throw std::invalid_argument("tiles must have at least 1 query and 1 key: they have " + std::to_string(query_tile) +
                                " and " + std::to_string(key_tile));
  double keys = 0;  // loaded by one head
  for (std::int64_t first = 0; first < p.seqlen_q; first += query_tile) {
    const std::int64_t last = std::min<std::int64_t>(first + query_tile, p.seqlen_q) - 1;
    const KeyRange seen = keys_of_any(p.mask, int(first), int(last), p.seqlen_q, p.seqlen_kv);
    if (seen.empty()) continue;
    const std::int64_t begin = seen.begin / key_tile * key_tile;
    const std::int64_t end = (std::int64_t{seen.end} + key_tile - 1) / key_tile * key_tile;
    keys += double(std::min<std::int64_t>(end, p.seqlen_kv) - begin);
  }
  const double heads = double(p.batch) * p.heads_q;
  const double rows = heads * p.seqlen_q;
  const double row_bytes = double(p.head_dim) * element_bytes(p.element_type);
  return {row_bytes * (rows + heads * 2 * keys), rows * (row_bytes + sizeof(float))};
}

std::span<const Machine> known_machines() {
  // NVIDIA datasheets, SXM parts; tensor figures are half of those quoted "with sparsity".
  static constexpr std::array<Machine, 3> machines{{
      // The 80 GB part is announced with "over 2 TB/s" and listed with 2039 GB/s. The rounded figure puts the ridge at
      // the 156 FLOP/B that is usually quoted; the listed one would put it at 153, the 40 GB part's 1555 GB/s at 201.
      {"A100", 312e12, 19.5e12, 2.0e12},
      {"H100", 989e12, 67e12, 3.35e12},
      {"H200", 989e12, 67e12, 4.8e12},
  }};
  return machines;
}

double attainable_flops(double intensity, double peak_flops, double bytes_per_second) {
  return std::min(peak_flops, intensity * bytes_per_second);
}

std::string format_bytes(double bytes) {
  static constexpr std::array<const char*, 7> units{"B", "KB", "MB", "GB", "TB", "PB", "EB"};
  std::size_t unit = 0;
  double value = bytes;
  // 999.5 would print as 1000: the next unit shows it as 1.00.
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  char text[64];
  std::snprintf(text, sizeof text, "%.*f %s", decimals, value, units[unit]);
  return text;
}

}  // namespace attention
