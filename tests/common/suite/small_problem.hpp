#pragma once
/// \file
/// A problem in one line, for tests that state sizes.

#include "common/attention/problem.hpp"

namespace suite {

/// A dense problem of one batch entry with the default scale.
inline attention::Problem problem(int heads_q, int heads_kv, int seqlen_q, int seqlen_kv, int head_dim,
                                  attention::Mask mask) {
  attention::Problem p;
  p.heads_q = heads_q;
  p.heads_kv = heads_kv;
  p.seqlen_q = seqlen_q;
  p.seqlen_kv = seqlen_kv;
  p.head_dim = head_dim;
  p.mask = mask;
  return p;
}
/// The same of other elements than fp32.
inline attention::Problem problem(attention::ElementType type, int heads_q, int heads_kv, int seqlen_q, int seqlen_kv,
                                  int head_dim, attention::Mask mask) {
  attention::Problem p = problem(heads_q, heads_kv, seqlen_q, seqlen_kv, head_dim, mask);
  p.element_type = type;
  return p;
}

}  // namespace suite
