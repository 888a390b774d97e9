/// \file
/// Problem: what it refuses and in which words, how it counts and addresses.

#include "common/attention/problem.hpp"

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/catch.hpp"

using attention::contiguous_strides;
using attention::KeyRange;
using attention::keys_of_all;
using attention::keys_of_any;
using attention::kMaxSeqlen;
using attention::kUnlimited;
using attention::Mask;
using attention::Problem;
using attention::queries_of_any;
using attention::QueryRange;
using attention::Strides;
using attention::visible_keys;

namespace {

Problem small() { return {.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 3, .seqlen_kv = 5, .head_dim = 8}; }

std::int64_t pairs_counted_one_by_one(const Problem& p) {
  std::int64_t pairs = 0;
  for (int i = 0; i < p.seqlen_q; ++i) {
    const std::int64_t diagonal = std::int64_t{i} + p.seqlen_kv - p.seqlen_q;
    for (int j = 0; j < p.seqlen_kv; ++j) pairs += j >= diagonal - p.mask.left && j <= diagonal + p.mask.right;
  }
  return pairs;
}

/// The visible counts of the queries, and that they agree with the runs of visible_keys.
void check_counts(const Problem& p, const std::vector<int>& expected) {
  REQUIRE(int(expected.size()) == p.seqlen_q);
  for (int i = 0; i < p.seqlen_q; ++i) CHECK(visible_keys(p.mask, i, p.seqlen_q, p.seqlen_kv).size() == expected[i]);
}

}  // namespace

TEST_CASE("a mask names itself") {
  CHECK(Mask::none().name() == "none");
  CHECK(Mask::causal().name() == "causal");
  CHECK(Mask::window(3, 0).name() == "window(3,0)");
  CHECK(Mask::window(3, kUnlimited).name() == "window(3,inf)");
}

TEST_CASE("a problem describes itself in one line") {
  Problem p{.heads_q = 4, .heads_kv = 2, .seqlen_q = 100, .seqlen_kv = 1000, .head_dim = 64, .mask = Mask::causal()};
  CHECK(p.describe() == "batch 1, heads 4/2, seqlen 100/1000, head_dim 64, causal");
  p.mask = Mask::none();
  p.softmax_scale = 0.5f;
  p.k_strides = Strides{128000, 64, 64000, 1};
  CHECK(p.describe() == "batch 1, heads 4/2, seqlen 100/1000, head_dim 64, no mask, scale 0.5, strided K");
  p.dout_strides = Strides{0, 0, 0, 1};
  p.dv_strides = p.k_strides;
  CHECK_THAT(p.describe(), ContainsText("scale 0.5, strided K dO dV"));
}

TEST_CASE("what a problem may not be, said with field, value and what is allowed") {
  Problem p = small();
  CHECK_NOTHROW(p.validate());
  const auto refused = [&p](const std::string& sentence) {
    CHECK_THROWS_AS(p.validate(), std::invalid_argument);
    CHECK_THROWS_WITH(p.validate(), ContainsText(sentence));
  };
  SECTION("sizes") {
    p.batch = 0;
    refused("batch must be from 1 to 1073741823: it is 0");
    p = small();
    p.head_dim = -64;
    refused("head_dim must be from 1 to 1073741823: it is -64");
    p = small();
    p.seqlen_kv = kMaxSeqlen + 1;
    refused("seqlen_kv must be from 0 to 1073741823: it is 1073741824");
    p = small();
    p.batch = p.heads_q = p.heads_kv = p.seqlen_q = kMaxSeqlen;
    refused("Q must have at most 2^60 elements");
  }
  SECTION("empty sequences are allowed") {
    p.seqlen_q = 0;
    CHECK_NOTHROW(p.validate());
    p.seqlen_kv = 0;
    CHECK_NOTHROW(p.validate());
  }
  SECTION("window sides") {
    p.mask = Mask::window(-1, 0);
    refused("mask.left must be from 0 to 1073741824: it is -1");
    p.mask = Mask::window(0, kUnlimited + 1);
    refused("mask.right must be from 0 to 1073741824: it is 1073741825");
  }
  SECTION("scale") {
    p.softmax_scale = std::numeric_limits<float>::infinity();
    refused("softmax_scale must be finite: it is inf");
    p.softmax_scale = 0.0f;
    CHECK_NOTHROW(p.validate());
  }
  SECTION("strides") {
    p.v_strides = Strides{0, 0, 0, 2};
    refused("v_strides.dim must be 1 (innermost contiguous): it is 2");
    p.v_strides = Strides{0, -8, 0, 1};
    refused("v_strides.seq must not be negative: it is -8");
    p.v_strides = Strides{std::numeric_limits<std::int64_t>::max(), 8, 8, 1};
    refused("v_strides.batch must keep offsets within 2^60 elements: 9223372036854775807 for 2 entries does not");
  }
  SECTION("an input may repeat a row, an output may not") {
    p.k_strides = Strides{0, 8, 0, 1};
    CHECK_NOTHROW(p.validate());
    CHECK(p.elements_k() == 5 * 8);
    p.o_strides = Strides{0, 32, 8, 1};
    refused("o_strides.batch must be at least 8 so that rows do not overlap: it is 0");
    p.o_strides = Strides{96, 32, 7, 1};
    refused("o_strides.head must be at least 8 so that rows do not overlap: it is 7");
    p.o_strides = Strides{95, 32, 8, 1};
    refused("o_strides.batch must be at least 96 so that rows do not overlap: it is 95");
  }
  SECTION("dO may repeat a row, the gradients that a kernel writes may not") {
    p.dout_strides = Strides{0, 0, 0, 1};
    CHECK_NOTHROW(p.validate());
    CHECK(p.elements_dout() == 8);
    p.dq_strides = Strides{96, 32, 7, 1};
    refused("dq_strides.head must be at least 8 so that rows do not overlap: it is 7");
    p.dq_strides = Strides{0, 32, 8, 1};
    refused("dq_strides.batch must be at least 8 so that rows do not overlap: it is 0");
    p.dq_strides.reset();
    p.dk_strides = Strides{80, 15, 8, 1};
    refused("dk_strides.seq must be at least 16 so that rows do not overlap: it is 15");
    p.dk_strides.reset();
    p.dv_strides = Strides{79, 16, 8, 1};
    refused("dv_strides.batch must be at least 80 so that rows do not overlap: it is 79");
    p.dv_strides = Strides{80, 16, 8, 1};
    CHECK_NOTHROW(p.validate());
  }
  SECTION("strides of a backward pass are checked like the others") {
    p.dout_strides = Strides{96, 32, 8, 2};
    refused("dout_strides.dim must be 1 (innermost contiguous): it is 2");
    p.dout_strides = Strides{96, -32, 8, 1};
    refused("dout_strides.seq must not be negative: it is -32");
    p.dout_strides.reset();
    p.dk_strides = Strides{std::int64_t{1} << 61, 16, 8, 1};
    refused("dk_strides.batch must keep offsets within 2^60 elements");
  }
  SECTION("gradients without rows need no room") {
    p.seqlen_q = p.seqlen_kv = 0;
    p.dq_strides = p.dk_strides = p.dv_strides = Strides{0, 0, 0, 1};
    CHECK_NOTHROW(p.validate());
    CHECK(p.elements_dq() == 0);
    CHECK(p.elements_dk() == 0);
  }
  SECTION("an output may be transposed or padded, and a single entry may have any stride") {
    p.o_strides = Strides{4 * 3 * 8, 8, 3 * 8, 1};
    CHECK_NOTHROW(p.validate());
    p.o_strides = Strides{1000, 100, 10, 1};
    CHECK_NOTHROW(p.validate());
    p.batch = 1;
    p.o_strides = Strides{0, 32, 8, 1};
    CHECK_NOTHROW(p.validate());
  }
}

TEST_CASE("heads that do not divide are refused by name", "[C21]") {
  Problem p = small();
  p.heads_q = 6;
  p.heads_kv = 4;
  CHECK_THROWS_WITH(p.validate(), "heads_q must be a multiple of heads_kv: 6 is not a multiple of 4");
}

TEST_CASE("the default scale is that of the true head_dim, and 0 is a 0", "[C28]") {
  Problem p = small();
  p.head_dim = 72;
  CHECK_THAT(double(p.scale()), Catch::Matchers::WithinAbs(0.117851, 5e-7));
  p.softmax_scale = 0.0f;
  CHECK(p.scale() == 0.0f);
}

TEST_CASE("offsets and sizes are 64-bit", "[C10]") {
  Problem p{.batch = 400, .heads_q = 4, .heads_kv = 4, .seqlen_q = 10496, .seqlen_kv = 1, .head_dim = 128};
  CHECK_NOTHROW(p.validate());
  CHECK(p.elements_q() == 2149580800);
  CHECK(p.elements_o() == 2149580800);
  const std::int64_t last = p.strides_q().offset(399, 10495, 3) + 127;
  CHECK(last == 2149580799);
  CHECK(std::int64_t{static_cast<std::int32_t>(last)} == -2145386497);

  const auto args = attention::make_forward_args<float>(p, nullptr, nullptr, nullptr, nullptr, nullptr);
  CHECK(args.q_strides.offset(399, 10495, 3) + 127 == last);

  attention::BackwardArrays<float> none{};
  const auto backward = attention::make_backward_args(p, none);
  CHECK(backward.dq_strides.offset(399, 10495, 3) + 127 == last);
  CHECK(backward.dout_strides.offset(399, 10495, 3) + 127 == last);
  CHECK(p.elements_dq() == 2149580800);
  CHECK(p.elements_dout() == 2149580800);
  CHECK(backward.row_index(399, 10495, 3) == std::int64_t{400} * 4 * 10496 - 1);

  p.batch = 399;  // the largest batch whose element offsets still fit 32 bits
  CHECK(p.elements_q() == 2144206848);
  CHECK(p.elements_q() < std::int64_t{1} << 31);

  const Problem halves{.batch = 1600, .heads_q = 16, .heads_kv = 16, .seqlen_q = 729, .seqlen_kv = 1, .head_dim = 72};
  CHECK(halves.elements_q() == 1343692800);
  CHECK(halves.elements_q() * 2 > std::int64_t{1} << 31);  // bytes of an fp16 array
}

TEST_CASE("dO lies like O unless its strides are given, the gradients are dense") {
  Problem p = small();
  p.q_strides = p.o_strides = Strides{1000, 100, 10, 1};
  p.k_strides = p.v_strides = Strides{500, 50, 10, 1};
  CHECK(p.strides_dout() == *p.o_strides);
  CHECK(p.elements_dout() == p.elements_o());
  CHECK(p.strides_dq() == contiguous_strides(3, 4, 8));
  CHECK(p.strides_dk() == contiguous_strides(5, 2, 8));
  CHECK(p.strides_dv() == contiguous_strides(5, 2, 8));
  p.dout_strides = Strides{0, 0, 8, 1};
  CHECK(p.elements_dout() == 4 * 8);
}

TEST_CASE("backward arguments address their own arrays by their own strides") {
  Problem p = small();
  p.q_strides = Strides{1, 10, 100, 1};
  p.k_strides = Strides{2, 20, 200, 1};
  p.v_strides = Strides{3, 30, 300, 1};
  p.o_strides = Strides{4, 40, 400, 1};
  p.dout_strides = Strides{5, 50, 500, 1};
  p.dq_strides = Strides{6, 60, 600, 1};
  p.dk_strides = Strides{7, 70, 700, 1};
  p.dv_strides = Strides{8, 80, 800, 1};
  p.mask = Mask::causal();
  std::vector<float> array(2000), rows(24);
  float* at[8];
  for (int i = 0; i < 8; ++i) at[i] = array.data() + i;
  const auto args = attention::make_backward_args<float>(p, {.q = at[0],
                                                             .k = at[1],
                                                             .v = at[2],
                                                             .o = at[3],
                                                             .lse = rows.data(),
                                                             .dout = at[4],
                                                             .dlse = rows.data() + 1,
                                                             .dq = at[5],
                                                             .dk = at[6],
                                                             .dv = at[7]});
  CHECK(args.q_row(1, 1, 1) == at[0] + 111);
  CHECK(args.k_row(1, 1, 1) == at[1] + 222);
  CHECK(args.v_row(1, 1, 1) == at[2] + 333);
  CHECK(args.o_row(1, 1, 1) == at[3] + 444);
  CHECK(args.dout_row(1, 1, 1) == at[4] + 555);
  CHECK(args.dq_row(1, 1, 1) == at[5] + 666);
  CHECK(args.dk_row(1, 1, 1) == at[6] + 777);
  CHECK(args.dv_row(1, 1, 1) == at[7] + 888);
  CHECK(args.lse_gmem == rows.data());
  CHECK(args.dlse_gmem == rows.data() + 1);
  CHECK(args.row_index(1, 2, 3) == (1 * 4 + 3) * 3 + 2);
  CHECK(args.kv_head(3) == 1);
  CHECK(args.visible_keys(0).size() == 3);
}

TEST_CASE("causal is aligned bottom-right", "[C01][C03a]") {
  check_counts({.seqlen_q = 5, .seqlen_kv = 2, .head_dim = 1, .mask = Mask::causal()}, {0, 0, 0, 1, 2});
  check_counts({.seqlen_q = 1, .seqlen_kv = 8, .head_dim = 1, .mask = Mask::causal()}, {8});
}

TEST_CASE("windows are inclusive on both sides", "[C05]") {
  check_counts({.seqlen_q = 4, .seqlen_kv = 4, .head_dim = 1, .mask = Mask::window(1, 0)}, {1, 2, 2, 2});
  check_counts({.seqlen_q = 4, .seqlen_kv = 4, .head_dim = 1, .mask = Mask::window(2, 0)}, {1, 2, 3, 3});
  check_counts({.seqlen_q = 4, .seqlen_kv = 4, .head_dim = 1, .mask = Mask::window(3, 0)}, {1, 2, 3, 4});
  const Mask both = Mask::window(32, 64);
  CHECK(visible_keys(both, 0, 129, 64).empty());
  CHECK(visible_keys(both, 1, 129, 64).begin == 0);
  CHECK(visible_keys(both, 1, 129, 64).end == 1);
  for (int i = 1; i < 129; ++i) CHECK_FALSE(visible_keys(both, i, 129, 64).empty());
}

TEST_CASE("the keys that any and that all of some queries see") {
  const int sides[] = {0, 1, 2, 5, 8, kUnlimited};
  for (int seqlen_q = 1; seqlen_q <= 7; ++seqlen_q)
    for (int seqlen_kv = 0; seqlen_kv <= 7; ++seqlen_kv)
      for (const int left : sides)
        for (const int right : sides)
          for (int first = 0; first < seqlen_q; ++first)
            for (int last = first; last < seqlen_q; ++last) {
              const Mask mask = Mask::window(left, right);
              CAPTURE(seqlen_q, seqlen_kv, left, right, first, last);
              const KeyRange any = keys_of_any(mask, first, last, seqlen_q, seqlen_kv);
              const KeyRange all = keys_of_all(mask, first, last, seqlen_q, seqlen_kv);
              for (int key = 0; key < seqlen_kv; ++key) {
                int seen_by = 0;
                for (int query = first; query <= last; ++query) {
                  const KeyRange keys = visible_keys(mask, query, seqlen_q, seqlen_kv);
                  seen_by += key >= keys.begin && key < keys.end;
                }
                REQUIRE((key >= any.begin && key < any.end) == (seen_by > 0));
                REQUIRE((key >= all.begin && key < all.end) == (seen_by == last - first + 1));
              }
              for (const KeyRange& keys : {any, all}) {
                REQUIRE((keys.begin >= 0 && keys.begin <= keys.end && keys.end <= seqlen_kv));
                if (keys.empty()) REQUIRE((keys.begin == 0 && keys.end == 0));
              }
            }
}

TEST_CASE("the queries that see any of some keys") {
  const int sides[] = {0, 1, 2, 5, 8, kUnlimited};
  for (int seqlen_q = 0; seqlen_q <= 7; ++seqlen_q)
    for (int seqlen_kv = 1; seqlen_kv <= 7; ++seqlen_kv)
      for (const int left : sides)
        for (const int right : sides)
          for (int first = 0; first < seqlen_kv; ++first)
            for (int last = first; last < seqlen_kv; ++last) {
              const Mask mask = Mask::window(left, right);
              CAPTURE(seqlen_q, seqlen_kv, left, right, first, last);
              const QueryRange queries = queries_of_any(mask, first, last, seqlen_q, seqlen_kv);
              for (int query = 0; query < seqlen_q; ++query) {
                const KeyRange keys = visible_keys(mask, query, seqlen_q, seqlen_kv);
                bool sees = false;
                for (int key = first; key <= last; ++key) sees = sees || (key >= keys.begin && key < keys.end);
                REQUIRE((query >= queries.begin && query < queries.end) == sees);
              }
              REQUIRE((queries.begin >= 0 && queries.begin <= queries.end && queries.end <= seqlen_q));
              if (queries.empty()) REQUIRE((queries.begin == 0 && queries.end == 0));
            }
}

TEST_CASE("the queries of the longest sequences do not wrap") {
  const int last = kMaxSeqlen - 1;
  CHECK(queries_of_any(Mask::none(), 0, last, kMaxSeqlen, kMaxSeqlen).size() == kMaxSeqlen);
  CHECK(queries_of_any(Mask::none(), last, last, kMaxSeqlen, kMaxSeqlen).size() == kMaxSeqlen);
  CHECK(queries_of_any(Mask::causal(), 0, 0, kMaxSeqlen, kMaxSeqlen).size() == kMaxSeqlen);
  CHECK(queries_of_any(Mask::causal(), last, last, kMaxSeqlen, kMaxSeqlen).size() == 1);
  CHECK(queries_of_any(Mask::none(), 0, last, 1, kMaxSeqlen).size() == 1);
  CHECK(queries_of_any(Mask::none(), 0, 0, kMaxSeqlen, 1).size() == kMaxSeqlen);
}

TEST_CASE("the keys of the longest sequences do not wrap") {
  const int last = kMaxSeqlen - 1;
  CHECK(keys_of_any(Mask::none(), 0, last, kMaxSeqlen, kMaxSeqlen).size() == kMaxSeqlen);
  CHECK(keys_of_all(Mask::none(), 0, last, kMaxSeqlen, kMaxSeqlen).size() == kMaxSeqlen);
  CHECK(keys_of_any(Mask::causal(), 0, last, kMaxSeqlen, kMaxSeqlen).size() == kMaxSeqlen);
  CHECK(keys_of_all(Mask::causal(), 0, last, kMaxSeqlen, kMaxSeqlen).size() == 1);
  CHECK(keys_of_any(Mask::none(), 0, 0, 1, kMaxSeqlen).size() == kMaxSeqlen);
  CHECK(keys_of_any(Mask::none(), 0, last, kMaxSeqlen, 1).size() == 1);
}

TEST_CASE("visible pairs are exact") {
  const int sides[] = {0, 1, 2, 5, 8, kUnlimited};
  for (int seqlen_q = 0; seqlen_q <= 7; ++seqlen_q)
    for (int seqlen_kv = 0; seqlen_kv <= 7; ++seqlen_kv)
      for (const int left : sides)
        for (const int right : sides) {
          const Problem p{
              .seqlen_q = seqlen_q, .seqlen_kv = seqlen_kv, .head_dim = 1, .mask = Mask::window(left, right)};
          CAPTURE(p.describe());
          REQUIRE(p.visible_pairs() == pairs_counted_one_by_one(p));
          std::int64_t sum = 0;
          for (int i = 0; i < seqlen_q; ++i) sum += visible_keys(p.mask, i, seqlen_q, seqlen_kv).size();
          REQUIRE(p.visible_pairs() == sum);
        }
}

TEST_CASE("visible pairs of the longest sequences do not wrap") {
  const std::int64_t n = kMaxSeqlen;
  Problem p{.seqlen_q = kMaxSeqlen, .seqlen_kv = kMaxSeqlen, .head_dim = 1};
  CHECK(p.visible_pairs() == n * n);
  p.mask = Mask::causal();
  CHECK(p.visible_pairs() == n * (n + 1) / 2);
  p.mask = Mask::window(0, 0);
  CHECK(p.visible_pairs() == n);
  CHECK(visible_keys(Mask::none(), kMaxSeqlen - 1, kMaxSeqlen, kMaxSeqlen).size() == kMaxSeqlen);
}
