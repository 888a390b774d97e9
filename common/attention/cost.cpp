#include "common/attention/cost.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

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
