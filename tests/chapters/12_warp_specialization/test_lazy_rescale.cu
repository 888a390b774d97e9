/// \file
/// Step 4 rescales O only when a maximum has grown by more than 2⁸: scores that rise and fall by just under and just
/// over that, tile by tile, and rows that see nothing at first, against float64. And kernels that rescale wrongly.

#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "broken_rescale.cuh"
#include "chapters/12_warp_specialization/kernels.hpp"
#include "common/attention/accuracy.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::ElementType, attention::InputKind, attention::Mask, attention::Problem;
using broken_rescale::Fault, broken_rescale::kernel_with;
using suite::problem;

/// Scores by key, as exponents of 2.
using Scores = std::function<float(int key)>;

/// Q is 1 in column 0 and K holds the scores there, for a scale of ln 2.
attention::Inputs inputs_with(const Problem& p, const Scores& score_of_key) {
  attention::Inputs inputs = attention::make_inputs(p, InputKind::normal, 5);
  const auto columns = static_cast<std::size_t>(p.head_dim);
  for (std::size_t i = 0; i < inputs.q.size(); ++i) inputs.q[i] = i % columns == 0 ? 1.0f : 0.0f;
  for (std::size_t i = 0; i < inputs.k.size(); ++i) {
    const float score = i % columns == 0 ? score_of_key(static_cast<int>(i / columns)) : 0.0f;
    inputs.k[i] = attention::rounded(score, p.element_type);
  }
  return inputs;
}

/// Whether the kernel's O and LSE are those of float64.
bool right(const stage::ForwardKernel& kernel, const Problem& p, const Scores& score_of_key) {
  const attention::Inputs inputs = inputs_with(p, score_of_key);
  const suite::Outcome outcome = suite::run(kernel, p, inputs);
  for (const float o : outcome.o)
    if (!std::isfinite(o)) return false;
  return attention::judge_forward(p, inputs.q, inputs.k, inputs.v, outcome.o, outcome.lse).right;
}

struct Case {
  std::string name;
  int seqlen_q, seqlen_kv;
  Mask mask;
  Scores scores;
};

/// In tiles of `bc` keys, of which the last comes first.
std::vector<Case> cases(int bc) {
  // `step` more in each tile that comes, from tile `from` on in either direction.
  const auto stairs = [bc](float step, int from) {
    return [=](int key) { return step * static_cast<float>(std::abs(key / bc - from)) - float(key % 3) / 4; };
  };
  const int keys = 6 * bc;
  return {
      {"just under 8 a tile: m moves in every second", 20, keys, Mask::none(), stairs(7.75f, 5)},
      {"just over 8 a tile: in each", 20, keys, Mask::none(), stairs(8.25f, 5)},
      {"small steps, which add up", 20, keys, Mask::none(), stairs(2.5f, 5)},
      {"scores that fall: in none", 20, keys, Mask::none(), stairs(8.25f, 0)},
      {"falling, then rising", 20, keys, Mask::none(), stairs(7.75f, 2)},
      // Beyond what fp16 holds of P where m stays.
      {"one large step in the middle", 20, keys, Mask::none(), [=](int key) { return key < 3 * bc ? 40.0f : 0.0f; }},
      // The first tile of keys of rows 0 to 63 is seen from row 40 on: a warp of two sees nothing of it, one in parts.
      {"warps that see nothing at first", 64, bc + 24, Mask::causal(), [=](int key) { return key < bc ? 9.0f : 0.0f; }},
      {"the same, with little to see later", 64, bc + 24, Mask::causal(),
       [=](int key) { return key < bc ? -9.0f : 0.0f; }},
      {"rows that never see anything, beside others", 90, bc + 24 - 100, Mask::causal(), [](int) { return 1.0f; }},
  };
}

}  // namespace

TEST_CASE("m moves in some tiles and not in others: O is that of float64") {
  const auto check = [](int head_dim, int bc) {
    const stage::ForwardKernel kernel = warp_specialization::warp_specialization_kernels().back();
    REQUIRE(kernel.name == "persistent");
    for (const ElementType type : {ElementType::fp16, ElementType::bf16}) {
      for (const Case& c : cases(bc)) {
        Problem p = problem(type, 1, 1, c.seqlen_q, c.seqlen_kv, head_dim, c.mask);
        p.softmax_scale = std::log(2.0f);
        INFO(c.name << ", " << p.describe());
        CHECK(right(kernel, p, c.scores));
      }
    }
  };
  check(64, 128);
  check(128, 128);
  check(256, 80);
}

TEST_CASE("these cases catch a rescaling that is wrong, and no other", "[suite_can_fail]") {
  const auto caught = [](const stage::ForwardKernel& kernel) {
    for (const Case& c : cases(128)) {
      Problem p = problem(ElementType::fp16, 1, 1, c.seqlen_q, c.seqlen_kv, 64, c.mask);
      p.softmax_scale = std::log(2.0f);
      if (!right(kernel, p, c.scores)) return true;
    }
    return false;
  };
  CHECK_FALSE(caught(kernel_with<Fault::none>("right")));
  CHECK(caught(kernel_with<Fault::never_moves>("never_moves")));
  CHECK(caught(kernel_with<Fault::o_not_rescaled>("o_not_rescaled")));
  CHECK(caught(kernel_with<Fault::l_not_rescaled>("l_not_rescaled")));
  CHECK(caught(kernel_with<Fault::moves_unnoticed>("moves_unnoticed")));
}
