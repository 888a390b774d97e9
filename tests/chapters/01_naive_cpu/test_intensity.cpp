// The table of bytes and FLOP/B, checked against figures worked out by hand.

#include <cmath>
#include <string>

#include "chapters/01_naive_cpu/intensity.hpp"
#include "tests/catch.hpp"

namespace {

using namespace naive_cpu;

}  // namespace

TEST_CASE("intensity: bytes and FLOPs of one head at N = 1K, d = 128") {
  const Intensity fp32 = intensity(1024, 128, 4);
  CHECK(fp32.flops == 4.0 * 1024 * 1024 * 128);
  CHECK(fp32.matrix_bytes == 2.0 * 1024 * 1024 * 4);
  // Q, K in, S out; S in, P out; P, V in, O out.
  CHECK(fp32.unfused.loaded == (3.0 * 1024 * 128 + 2.0 * 1024 * 1024) * 4);
  CHECK(fp32.unfused.stored == (1024.0 * 128 + 2.0 * 1024 * 1024) * 4);
  // Q, K, V in; O and LSE out.
  CHECK(fp32.fused.total() == (4.0 * 1024 * 128 + 1024) * 4);

  const Intensity bf16 = intensity(1024, 128, 2);
  CHECK(bf16.flops == fp32.flops);
  CHECK(bf16.matrix_bytes == fp32.matrix_bytes / 2);
  CHECK(bf16.unfused.total() == fp32.unfused.total() / 2);
}

TEST_CASE("intensity: with S and P in memory it cannot pass d / element bytes; without, it grows with N") {
  double before = 0;
  for (int n = 1024; n <= 128 * 1024; n *= 2) {
    CAPTURE(n);
    const Intensity head = intensity(n, 128, 2);
    CHECK(head.unfused_intensity() < 64);
    CHECK(head.unfused_intensity() > before);
    CHECK(std::abs(head.unfused_intensity() - 64.0 * n / (n + 128.0)) < 1e-9);
    CHECK(std::abs(head.fused_intensity() - 4.0 * n * 128 / (4.0 * 128 * 2 + 4)) < 1e-6);
    before = head.unfused_intensity();
  }
}

TEST_CASE("intensity: 128K queries and keys make 69 GB of S and P a head in bf16") {
  CHECK(intensity(128 * 1024, 128, 2).matrix_bytes == 68719476736.0);
  CHECK(intensity(128 * 1024, 128, 4).matrix_bytes == 137438953472.0);
}

TEST_CASE("intensity: bf16 attention with S and P lies below every ridge, without it above") {
  for (const attention::Machine& machine : attention::known_machines()) {
    CAPTURE(machine.name);
    CHECK(intensity(128 * 1024, 128, 2).unfused_intensity() < ridge(machine, 2));
    CHECK(intensity(1024, 128, 2).fused_intensity() > ridge(machine, 2));
    // In fp32 the arithmetic units are so much slower that memory is not what limits.
    CHECK(intensity(1024, 128, 4).unfused_intensity() > ridge(machine, 4));
  }
  const attention::Machine& a100 = attention::known_machines()[0];
  CHECK(std::string(a100.name) == "A100");
  CHECK(std::abs(ridge(a100, 2) - 156) < 0.5);
}
