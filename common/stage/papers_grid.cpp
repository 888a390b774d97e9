#include "common/stage/papers_grid.hpp"

#include <stdexcept>
#include <string>

namespace stage {
namespace {

constexpr int kTokens = 16384;
constexpr int kHiddenDim = 2048;

/// How often `part` goes into `whole`.
int times(const char* name, int part, int whole) {
  if (part > 0 && whole % part == 0) return whole / part;
  throw std::invalid_argument(std::string(name) + " " + std::to_string(part) + " does not divide the papers' " +
                              std::to_string(whole));
}

}  // namespace

std::vector<attention::Problem> papers_grid(const std::vector<int>& head_dims, const std::vector<int>& seqlens) {
  std::vector<attention::Problem> problems;
  for (const int head_dim : head_dims) {
    for (const attention::Mask mask : {attention::Mask::none(), attention::Mask::causal()}) {
      for (const int n : seqlens) {
        const int heads = times("head_dim", head_dim, kHiddenDim);
        problems.push_back({.batch = times("seqlen", n, kTokens),
                            .heads_q = heads,
                            .heads_kv = heads,
                            .seqlen_q = n,
                            .seqlen_kv = n,
                            .head_dim = head_dim,
                            .mask = mask,
                            .element_type = attention::ElementType::bf16});
      }
    }
  }
  return problems;
}

}  // namespace stage
