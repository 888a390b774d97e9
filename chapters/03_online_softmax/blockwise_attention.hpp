#pragma once
/// \file
/// Attention on the CPU that takes the keys a block at a time, in any order, and merges what it found.
///
/// For each query row: a block's keys give a state (m, ℓ, o), and the state is merged into the row's. Nothing of a
/// block is kept: neither its scores nor its P. Memory for a row: two states. Any head_dim.
///
/// Source: Rabe and Staats, "Self-attention Does Not Need O(n²) Memory" (2021), sections 2 and 3.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/attention/problem.hpp"
#include "common/kernel/softmax_state.cuh"
#include "common/stage/kernel.hpp"

namespace online_softmax {

using kernel::SoftmaxState;

using attention::ForwardArgs;
using attention::KeyRange;
using attention::Problem;

/// Keys of a block.
inline constexpr int kBlockKeys = 32;

/// ⌈seqlen_kv / kBlockKeys⌉
constexpr int number_of_blocks(int seqlen_kv) { return (seqlen_kv + kBlockKeys - 1) / kBlockKeys; }

/// Gives the order in which `blocks` blocks are visited: a permutation of 0 … blocks − 1.
using BlockOrder = std::function<std::vector<int>(int blocks)>;

inline std::vector<int> first_to_last(int blocks) {
  std::vector<int> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

inline std::vector<int> last_to_first(int blocks) {
  std::vector<int> order = first_to_last(blocks);
  std::reverse(order.begin(), order.end());
  return order;
}

/// A random order, the same for the same seed on every machine.
inline BlockOrder shuffled(std::uint64_t seed) {
  return [seed](int blocks) {
    std::vector<int> order = first_to_last(blocks);
    std::mt19937_64 random(seed);
    for (int i = blocks - 1; i > 0; --i) std::swap(order[i], order[random() % (i + 1)]);
    return order;
  };
}

/// The state of one query row over some of its keys.
///
/// The scores of a block are known before its maximum is used, so that o is never rescaled inside a block.
/// \param o gets Σ exp(s − m) · v, [head_dim]
inline SoftmaxState attend(const ForwardArgs<float>& args, int b, int query, int head, KeyRange keys,
                           std::span<float> scores, std::span<float> o) {
  const int head_kv = args.kv_head(head);
  const float* q = args.q_row(b, query, head);
  SoftmaxState state;
  for (int key = keys.begin; key < keys.end; ++key) {
    const float* k = args.k_row(b, key, head_kv);
    float dot = 0;
    for (int c = 0; c < args.head_dim; ++c) dot += q[c] * k[c];
    scores[key - keys.begin] = args.softmax_scale * dot;
    state = merge(state, SoftmaxState::of(args.softmax_scale * dot));
  }
  std::fill(o.begin(), o.end(), 0.0f);
  for (int key = keys.begin; key < keys.end; ++key) {
    const float* v = args.v_row(b, key, head_kv);
    const float p = kernel::rescale(scores[key - keys.begin], state.m);
    for (int c = 0; c < args.head_dim; ++c) o[c] += p * v[c];
  }
  return state;
}

/// O and LSE, visiting the blocks of keys in the given order.
/// \throws std::invalid_argument unless `order` is a permutation of the ⌈seqlen_kv / kBlockKeys⌉ blocks.
inline void blockwise_forward(const ForwardArgs<float>& args, std::span<const int> order) {
  const int blocks = number_of_blocks(args.seqlen_kv);
  std::vector<int> sorted(order.begin(), order.end());
  std::sort(sorted.begin(), sorted.end());
  if (sorted != first_to_last(blocks)) {
    throw std::invalid_argument("the order must name each of the " + std::to_string(blocks) + " blocks of keys once");
  }

  std::vector<float> scores(kBlockKeys), block_o(args.head_dim), o(args.head_dim);
  for (int b = 0; b < args.batch; ++b) {
    for (int head = 0; head < args.heads_q; ++head) {
      for (int query = 0; query < args.seqlen_q; ++query) {
        const KeyRange seen = args.visible_keys(query);
        SoftmaxState state;
        std::fill(o.begin(), o.end(), 0.0f);
        for (const int block : order) {  // a block that the row does not see gives the empty state
          const int begin = std::max(seen.begin, block * kBlockKeys);
          const int end = std::min(seen.end, (block + 1) * kBlockKeys);
          const SoftmaxState block_state = attend(args, b, query, head, {begin, end}, scores, block_o);
          merge_into(state, o.data(), block_state, block_o.data(), args.head_dim);
        }
        float* o_row = args.o_row(b, query, head);
        const float factor = inverse_sum(state);
        for (int c = 0; c < args.head_dim; ++c) o_row[c] = o[c] * factor;
        *args.lse_entry(b, query, head) = log_sum_exp(state);
      }
    }
  }
}

/// Block-wise attention with a fixed way of ordering the blocks, as the programs and tests see it.
inline stage::ForwardKernel blockwise_attention(const std::string& name, const std::string& summary, BlockOrder order) {
  return {.name = name,
          .summary = summary,
          .memory = stage::Memory::host,
          .require = [](const Problem&) {},
          .workspace_bytes = [](const Problem&) { return std::size_t{0}; },
          .traffic = {},  // nobody counts on the host
          .run = [order](const ForwardArgs<float>& args,
                         void*) { blockwise_forward(args, order(number_of_blocks(args.seqlen_kv))); }};
}

/// The three orders that the program shows.
inline std::vector<stage::ForwardKernel> blockwise_kernels() {
  const std::string blocks = "blocks of " + std::to_string(kBlockKeys) + " keys ";
  return {blockwise_attention("first_to_last", blocks + "from the first to the last", first_to_last),
          blockwise_attention("last_to_first", blocks + "from the last to the first", last_to_first),
          blockwise_attention("shuffled", blocks + "in a random order", shuffled(1))};
}

}  // namespace online_softmax
