/// \file
/// The papers' benchmark setting.

#include <cstddef>

#include "common/stage/papers_grid.hpp"
#include "tests/catch.hpp"

TEST_CASE("The papers' grid: equal work in every problem, in order of head_dim, mask and seqlen", "[stage]") {
  const auto grid = stage::papers_grid({64, 256}, {1024, 16384});
  REQUIRE(grid.size() == 8);
  for (std::size_t i = 0; i < grid.size(); ++i) {
    const attention::Problem& p = grid[i];
    p.validate();
    CHECK(p.head_dim == (i < 4 ? 64 : 256));
    CHECK(p.mask == (i / 2 % 2 == 0 ? attention::Mask::none() : attention::Mask::causal()));
    CHECK(p.seqlen_q == (i % 2 == 0 ? 1024 : 16384));
    CHECK(p.seqlen_kv == p.seqlen_q);
    CHECK(p.batch * p.seqlen_q == 16384);
    CHECK(p.heads_q * p.head_dim == 2048);
    CHECK(p.heads_kv == p.heads_q);
    CHECK(p.element_type == attention::ElementType::bf16);
  }
  CHECK(stage::papers_grid({}, {1024}).empty());
}

TEST_CASE("The papers' grid says what does not divide it", "[stage]") {
  CHECK_THROWS_WITH(stage::papers_grid({64}, {1000}), "seqlen 1000 does not divide the papers' 16384");
  CHECK_THROWS_WITH(stage::papers_grid({96}, {1024}), "head_dim 96 does not divide the papers' 2048");
  CHECK_THROWS_WITH(stage::papers_grid({0}, {1024}), "head_dim 0 does not divide the papers' 2048");
}
