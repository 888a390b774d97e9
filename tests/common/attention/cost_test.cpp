/// \file
/// FLOPs, bytes and the roofline.

#include "common/attention/cost.hpp"

#include "tests/catch.hpp"

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
