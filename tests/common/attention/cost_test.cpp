/// \file
/// FLOPs, bytes and the roofline.

#include "common/attention/cost.hpp"

#include "tests/catch.hpp"

using attention::ElementType;
using attention::format_bytes;
using attention::Mask;
using attention::Problem;
using Catch::Matchers::WithinAbs;

TEST_CASE("only visible pairs are work") {
  Problem p{.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 4, .seqlen_kv = 4, .head_dim = 32};
  CHECK(attention::forward_flops(p) == 4.0 * 32 * 16 * 8);
  CHECK(attention::backward_flops(p) == 2.5 * 4.0 * 32 * 16 * 8);
  p.mask = Mask::causal();
  CHECK(attention::forward_flops(p) == 4.0 * 32 * 10 * 8);
}

TEST_CASE("FLOPs of long sequences do not wrap") {
  const Problem p{.heads_q = 16, .heads_kv = 16, .seqlen_q = 1 << 20, .seqlen_kv = 1 << 20, .head_dim = 128};
  CHECK(attention::forward_flops(p) == 4.0 * 128 * 16 * 0x1p40);
}

TEST_CASE("the least traffic reads the inputs once and writes the outputs once") {
  const Problem p{.batch = 2, .heads_q = 4, .heads_kv = 2, .seqlen_q = 3, .seqlen_kv = 5, .head_dim = 8};
  const attention::Traffic traffic = attention::compulsory_traffic(p, 2);
  CHECK(traffic.loaded == (2 * 3 * 4 * 8 + 2 * (2 * 5 * 2 * 8)) * 2.0);
  CHECK(traffic.stored == 2 * 3 * 4 * 8 * 2.0 + 2 * 3 * 4 * 4.0);
  CHECK(traffic.total() == traffic.loaded + traffic.stored);
  CHECK((traffic + traffic).loaded == 2 * traffic.loaded);
}

TEST_CASE("a tiled forward reads Q once, and K and V of the tiles that are visited") {
  // Per batch and query head; a tile of 2 queries, 4 keys. Element reads of K and V together: 2 · head_dim a key.
  Problem p{.batch = 2, .heads_q = 6, .heads_kv = 3, .seqlen_q = 5, .seqlen_kv = 10, .head_dim = 8};
  p.element_type = GENERATE(ElementType::fp32, ElementType::bf16);
  const double bytes = p.element_type == ElementType::fp32 ? 4 : 2;
  const double heads = 2 * 6;
  const auto check_keys = [&](double keys) {
    const attention::Traffic traffic = attention::tiled_forward_traffic(p, 2, 4);
    CHECK(traffic.loaded == heads * bytes * 8 * (5 + 2 * keys));
    CHECK(traffic.stored == heads * 5 * (8 * bytes + 4));
  };
  SECTION("no mask: every tile of queries reads all keys") { check_keys(3 * 10); }
  SECTION("causal: queries 0–1, 2–3 and 4 see keys up to 6, 8 and 9; key 8 begins the last tile, of two keys") {
    p.mask = Mask::causal();
    check_keys(8 + 10 + 10);
  }
  SECTION("a window: queries see keys from 4, 6 and 8 to 6, 8 and 9; tiles begin at 4, 4 and 8") {
    p.mask = Mask::window(1, 0);
    check_keys(4 + 6 + 2);
  }
  SECTION("queries before the first key see none: they are read, and O and LSE are written") {
    p.seqlen_kv = 3;
    p.mask = Mask::causal();  // queries 2, 3 and 4 see keys 0, 0–1 and 0–2
    check_keys(0 + 3 + 3);
  }
  SECTION("no keys") {
    p.seqlen_kv = 0;
    check_keys(0);
  }
  SECTION("tiles larger than the problem") {
    const attention::Traffic traffic = attention::tiled_forward_traffic(p, 128, 128);
    CHECK(traffic.loaded == heads * bytes * 8 * (5 + 2 * 10));
  }
  SECTION("no queries") {
    p.seqlen_q = 0;
    CHECK(attention::tiled_forward_traffic(p, 2, 4).total() == 0);
  }
}

TEST_CASE("the tiled forward's bytes are the formula's") {
  // Nq·d + 2·Nk·d·⌈Nq/Br⌉ reads a head, of 2 bytes; long sequences do not wrap.
  Problem p{.seqlen_q = 1 << 20, .seqlen_kv = 1 << 20, .head_dim = 128};
  p.element_type = ElementType::fp16;
  CHECK(attention::tiled_forward_traffic(p, 128, 64).loaded == 2 * (0x1p20 * 128 + 2 * 0x1p20 * 128 * 0x1p13));
  // Causal with equal tiles: half of the square and the diagonal.
  p.seqlen_q = p.seqlen_kv = 1024;
  p.mask = Mask::causal();
  CHECK(attention::tiled_forward_traffic(p, 64, 64).loaded == 2.0 * 128 * (1024 + 2 * 64 * (16 * 17 / 2)));
}

TEST_CASE("a tile without queries or keys is refused") {
  const Problem p{.seqlen_q = 4, .seqlen_kv = 4, .head_dim = 32};
  CHECK_THROWS_WITH(attention::tiled_forward_traffic(p, 0, 64),
                    "tiles must have at least 1 query and 1 key: they have 0 and 64");
  CHECK_THROWS_WITH(attention::tiled_forward_traffic(p, 64, -1), ContainsText("they have 64 and -1"));
}

TEST_CASE("the roofline of the known machines") {
  const auto machines = attention::known_machines();
  REQUIRE(machines.size() == 3);
  CHECK(std::string(machines[0].name) == "A100");
  CHECK_THAT(machines[0].ridge(), WithinAbs(156, 0.5));
  CHECK_THAT(machines[1].ridge(), WithinAbs(295, 0.5));
  CHECK_THAT(machines[2].ridge(), WithinAbs(206, 0.5));
  for (const auto& machine : machines) {
    CHECK(attention::attainable_flops(1, machine.tensor_flops, machine.bytes_per_second) == machine.bytes_per_second);
    CHECK(attention::attainable_flops(1e4, machine.tensor_flops, machine.bytes_per_second) == machine.tensor_flops);
  }
}

TEST_CASE("bytes are printed with three digits") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(512) == "512 B");
  CHECK(format_bytes(1000) == "1.00 KB");
  CHECK(format_bytes(12345) == "12.3 KB");
  CHECK(format_bytes(999499) == "999 KB");
  CHECK(format_bytes(999500) == "1.00 MB");
  CHECK(format_bytes(1.5e9) == "1.50 GB");
  CHECK(format_bytes(9.996e9) == "10.0 GB");
  CHECK(format_bytes(68719476736.0) == "68.7 GB");
  CHECK(format_bytes(2.2e12) == "2.20 TB");
}
