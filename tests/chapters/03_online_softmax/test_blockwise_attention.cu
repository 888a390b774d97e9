/// \file
/// Block-wise attention on the CPU, in orders that the forward suite does not try.

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "chapters/03_online_softmax/blockwise_attention.hpp"
#include "common/attention/accuracy.hpp"
#include "common/attention/inputs.hpp"
#include "tests/catch.hpp"

namespace {

using attention::Problem;

attention::Verdict judge(const Problem& p, const std::vector<int>& order) {
  const attention::Inputs inputs = attention::make_inputs(p, attention::InputKind::rising_scores, 1);
  std::vector<float> o(static_cast<std::size_t>(p.elements_o()), NAN),
      lse(static_cast<std::size_t>(p.elements_lse()), NAN);
  online_softmax::blockwise_forward(
      attention::make_forward_args<float>(p, inputs.q.data(), inputs.k.data(), inputs.v.data(), o.data(), lse.data()),
      order);
  return attention::judge_forward(p, inputs.q, inputs.k, inputs.v, o, lse);
}

Problem problem(attention::Mask mask) {
  Problem p;
  p.heads_q = 2;
  p.heads_kv = 1;
  p.seqlen_q = 9;
  p.seqlen_kv = 117;
  p.head_dim = 24;
  p.mask = mask;
  return p;
}

}  // namespace

TEST_CASE("every order of four blocks is right") {
  for (const attention::Mask mask :
       {attention::Mask::none(), attention::Mask::causal(), attention::Mask::window(40, 3)}) {
    const Problem p = problem(mask);
    std::vector<int> order = online_softmax::first_to_last(4);
    do {
      const attention::Verdict verdict = judge(p, order);
      INFO(p.describe() << ": " << verdict.sentence);
      CHECK(verdict.right);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST_CASE("an order that is no permutation of the blocks is refused") {
  const Problem p = problem(attention::Mask::none());
  CHECK_THROWS_AS(judge(p, {0, 1, 2}), std::invalid_argument);
  CHECK_THROWS_AS(judge(p, {0, 1, 2, 2}), std::invalid_argument);
  CHECK_THROWS_AS(judge(p, {0, 1, 2, 4}), std::invalid_argument);
}
