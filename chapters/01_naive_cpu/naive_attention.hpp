#pragma once
/// \file
/// Attention as its definition says it, in three loops on the CPU: O = softmax(scale · QKᵀ) V.
///
/// One row of S at a time: loop 1 makes the scores of a query with every key it sees, loop 2 turns them into
/// probabilities, loop 3 takes the average of V with them. In fp32, any head_dim, one thread. Scratch: one row of
/// scores, 4 B · seqlen_kv. Loads and stores per head: no count is kept, because nothing here is device memory. FLOPs:
/// 4 · head_dim a visible pair.
///
/// Sources: A. Vaswani et al., "Attention Is All You Need" (2017), equation 1; M. Milakov, N. Gimelshein, "Online
/// normalizer calculation for softmax" (2018), algorithms 1 (unsafe) and 2 (safe).

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "common/attention/problem.hpp"
#include "common/stage/kernel.hpp"

namespace naive_cpu {

/// Scores to probabilities in place: p_j = exp(s_j) / Σ exp(s_k). \return LSE = log Σ exp(s_k).
///
/// Not to be used. In fp32, exp overflows above 88.72 and is 0 below −103.97: then p_j is ∞/∞, finite/∞ or 0/0.
inline float unsafe_softmax(std::span<float> row) {
  float sum = 0;
  for (float& s : row) {
    s = std::exp(s);
    sum += s;
  }
  for (float& p : row) p /= sum;
  return std::log(sum);
}

/// The same with the row's maximum m taken off first: p_j = exp(s_j − m) / Σ exp(s_k − m). \return LSE = m + log Σ
/// exp(s_k − m).
///
/// Every exponent is 0 or less, so nothing overflows, and the largest one is 0, so the sum is at least 1. The factor
/// exp(−m) stands above and below the line: the result is the same. An empty row has LSE = −∞.
inline float safe_softmax(std::span<float> row) {
  if (row.empty()) return -std::numeric_limits<float>::infinity();
  const float max = *std::ranges::max_element(row);
  float sum = 0;
  for (float& s : row) {
    s = std::exp(s - max);
    sum += s;
  }
  for (float& p : row) p /= sum;
  return max + std::log(sum);
}

/// O and LSE of one query. \p scores: room for seqlen_kv floats.
inline void attend(const attention::ForwardArgs<float>& args, int b, int query, int head, std::span<float> scores) {
  const attention::KeyRange keys = args.visible_keys(query);
  const int head_kv = args.kv_head(head);
  const float* q = args.q_row(b, query, head);
  float* o = args.o_row(b, query, head);
  const std::span<float> row = scores.first(static_cast<std::size_t>(keys.size()));

  // Loop 1: a row of S = scale · QKᵀ.
  for (int key = keys.begin; key < keys.end; ++key) {
    const float* k = args.k_row(b, key, head_kv);
    float dot = 0;
    for (int i = 0; i < args.head_dim; ++i) dot += q[i] * k[i];
    row[static_cast<std::size_t>(key - keys.begin)] = dot * args.softmax_scale;
  }

  // Loop 2: the row of P.
  *args.lse_entry(b, query, head) = safe_softmax(row);

  // Loop 3: the row of O = PV. A query that sees no key keeps O = 0.
  std::fill_n(o, args.head_dim, 0.0f);
  for (int key = keys.begin; key < keys.end; ++key) {
    const float p = row[static_cast<std::size_t>(key - keys.begin)];
    const float* v = args.v_row(b, key, head_kv);
    for (int i = 0; i < args.head_dim; ++i) o[i] += p * v[i];
  }
}

/// The whole problem, row by row. All pointers of \p args point to host memory.
inline void attend_all(const attention::ForwardArgs<float>& args) {
  std::vector<float> scores(static_cast<std::size_t>(args.seqlen_kv));
  for (int b = 0; b < args.batch; ++b) {
    for (int head = 0; head < args.heads_q; ++head) {
      for (int query = 0; query < args.seqlen_q; ++query) attend(args, b, query, head, scores);
    }
  }
}

/// This chapter's forward, for the programs and tests. Takes every problem.
inline stage::ForwardKernel naive_forward() {
  stage::ForwardKernel kernel;
  kernel.name = "three_loops";
  kernel.summary = "as the definition says it, one row of S at a time";
  kernel.memory = stage::Memory::host;
  kernel.run = [](const attention::ForwardArgs<float>& args, void*) { attend_all(args); };
  return kernel;
}

}  // namespace naive_cpu
