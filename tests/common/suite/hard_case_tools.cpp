/// \file
/// Rows that lie far apart.

#include "tests/common/suite/hard_case_tools.hpp"

#include <algorithm>
#include <limits>

namespace suite {

FarRows::FarRows(ReservedMemory& memory, Axis far, int head_dim)
    : memory_(memory),
      dense_{.seqlen_q = 2, .seqlen_kv = 2, .head_dim = head_dim, .element_type = memory.element_type()},
      strides_{512, 256, head_dim, 1},
      name_("a far batch stride") {
  if (far == Axis::batch) dense_.batch = 2, strides_.batch = kFar;
  if (far == Axis::seq) strides_.seq = kFar, name_ = "a far seq stride";
  if (far == Axis::head) dense_.heads_q = dense_.heads_kv = 2, strides_.head = kFar, name_ = "a far head stride";
}

template <class Visit>
void FarRows::each_row(Visit visit) const {
  for (int b = 0; b < dense_.batch; ++b)
    for (int i = 0; i < dense_.seqlen_q; ++i)
      for (int h = 0; h < dense_.heads_q; ++h) {
        visit(static_cast<std::size_t>(dense_.strides_q().offset(b, i, h)),
              static_cast<std::size_t>(strides_.offset(b, i, h)));
      }
}

void FarRows::place(int array, std::span<const float> values) {
  memory_.write(array * kPitch, std::vector<float>(kPitch, std::numeric_limits<float>::quiet_NaN()));
  each_row([&](std::size_t dense, std::size_t far) {
    memory_.write(array * kPitch + far, values.subspan(dense, dense_.head_dim));
  });
}

void FarRows::place_nothing(int array) {
  place(array,
        std::vector<float>(static_cast<std::size_t>(dense_.elements_q()), std::numeric_limits<float>::quiet_NaN()));
}

std::vector<float> FarRows::gather(int array) const {
  std::vector<float> values(static_cast<std::size_t>(dense_.elements_q()));
  each_row([&](std::size_t dense, std::size_t far) {
    const std::vector<float> row = memory_.read(array * kPitch + far, static_cast<std::size_t>(dense_.head_dim));
    std::copy(row.begin(), row.end(), values.begin() + static_cast<std::ptrdiff_t>(dense));
  });
  return values;
}

}  // namespace suite
