/// \file
/// Sectors and wavefronts of one request, by the lanes' addresses.

#include "common/gpu/emulator/warp_request.hpp"
#include "tests/catch.hpp"

namespace {

using namespace gpu::emulator;

/// Lane l touches `bytes` bytes at first + l · stride (bytes).
WarpRequest strided(std::uint64_t first, std::uint64_t stride, std::uint32_t bytes, std::uint32_t lanes = ~0u) {
  WarpRequest request;
  for (std::size_t lane = 0; lane < 32; ++lane) request.address[lane] = first + lane * stride;
  request.bytes = bytes;
  request.lanes = lanes;
  return request;
}

}  // namespace

TEST_CASE("Sectors are the different pieces of 32 bytes", "[counts]") {
  CHECK(sectors(strided(0, 4, 4)) == 4);
  CHECK(sectors(strided(1 << 20, 4, 4)) == 4);
  CHECK(sectors(strided(4, 4, 4)) == 5);
  CHECK(sectors(strided(0, 16, 16)) == 16);
  CHECK(sectors(strided(0, 8, 8)) == 8);
  CHECK(sectors(strided(0, 32, 4)) == 32);
  CHECK(sectors(strided(0, 1024, 4)) == 32);  // all in one bucket of the set
  CHECK(sectors(strided(96, 0, 4)) == 1);
  CHECK(sectors(strided(0, 1, 1)) == 1);
  CHECK(sectors(strided(31, 32, 1)) == 32);
  CHECK(sectors(strided(0, 4, 4, 0x000000ff)) == 1);
  CHECK(sectors(strided(0, 4, 4, 0x80000001)) == 2);
  CHECK(sectors(strided(0, 4, 4, 0)) == 0);
  CHECK(sectors(strided(24, 64, 16)) == 64);  // misaligned: two sectors a lane
}

TEST_CASE("Wavefronts of words: the busiest bank decides", "[counts]") {
  for (const bool is_load : {true, false}) {
    CHECK(wavefronts(strided(0, 4, 4), is_load) == Wavefronts{1, 1});
    CHECK(wavefronts(strided(0, 0, 4), is_load) == Wavefronts{1, 1});
    CHECK(wavefronts(strided(0, 8, 4), is_load) == Wavefronts{2, 1});
    CHECK(wavefronts(strided(0, 128, 4), is_load) == Wavefronts{32, 1});
    CHECK(wavefronts(strided(0, 132, 4), is_load) == Wavefronts{1, 1});
    CHECK(wavefronts(strided(0, 12, 4), is_load) == Wavefronts{1, 1});
    CHECK(wavefronts(strided(0, 128, 4, 0x0000000f), is_load) == Wavefronts{4, 1});
    CHECK(wavefronts(strided(0, 4, 4, 0), is_load) == Wavefronts{0, 0});
    // Four bytes of a word, two halves of a word: one word for several lanes.
    CHECK(wavefronts(strided(0, 1, 1), is_load) == Wavefronts{1, 1});
    CHECK(wavefronts(strided(0, 2, 2), is_load) == Wavefronts{1, 1});
    CHECK(wavefronts(strided(0, 128, 2), is_load) == Wavefronts{32, 1});
  }
}

TEST_CASE("Wavefronts of 8 and 16 bytes are those that an H200 counted", "[counts]") {
  // l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld, …_st and l1tex__data_bank_conflicts_…, one warp and one
  // instruction a launch. Lane l takes `bytes` bytes at (l / divisor mod modulus) · stride; the conflicts are what was
  // taken above the least.
  struct Measured {
    std::uint32_t bytes;
    std::size_t divisor, modulus;
    std::uint64_t stride;
    std::uint32_t lanes;
    Wavefronts wanted;
  };
  const std::uint32_t all = ~0u;
  const Measured loads[] = {
      {8, 1, 32, 8, all, {2, 2}},          {8, 1, 32, 256, all, {32, 2}},   {8, 1, 1, 0, all, {1, 1}},
      {8, 1, 16, 8, all, {2, 2}},          {8, 2, 16, 8, all, {1, 1}},      {8, 1, 32, 136, all, {2, 2}},
      {8, 1, 32, 16, all, {4, 2}},         {8, 1, 32, 8, 1, {1, 1}},        {16, 1, 32, 16, all, {4, 4}},
      {16, 1, 1, 0, all, {2, 2}},          {16, 1, 8, 16, all, {4, 4}},     {16, 4, 8, 16, all, {2, 2}},
      {16, 16, 2, 528, all, {2, 2}},       {16, 16, 2, 512, all, {2, 2}},   {16, 1, 16, 528, all, {4, 4}},
      {16, 1, 16, 512, all, {32, 4}},      {16, 1, 16, 16, all, {4, 4}},    {16, 8, 4, 272, all, {2, 2}},
      {16, 1, 8, 272, all, {4, 4}},        {16, 4, 8, 144, all, {2, 2}},    {16, 1, 4, 144, all, {4, 4}},
      {16, 1, 32, 528, all, {4, 4}},       {16, 1, 32, 512, all, {32, 4}},  {16, 1, 32, 32, all, {8, 4}},
      {16, 2, 16, 16, all, {2, 2}},        {16, 1, 32, 16, 0xffff, {2, 2}}, {16, 1, 32, 16, 1, {1, 1}},
      {16, 1, 32, 16, 0x01010101, {4, 2}}, {16, 1, 2, 16, all, {2, 2}},     {16, 1, 4, 16, all, {4, 4}},
  };
  const Measured stores[] = {
      {16, 1, 32, 16, all, {4, 4}}, {16, 1, 32, 528, all, {4, 4}}, {16, 1, 32, 512, all, {32, 4}},
      {8, 1, 32, 8, all, {2, 2}},   {8, 1, 32, 256, all, {32, 2}}, {16, 1, 1, 0, all, {4, 4}},
      {16, 1, 16, 16, all, {4, 4}},
  };
  const auto check = [](const Measured& m, bool is_load) {
    WarpRequest request;
    for (std::size_t lane = 0; lane < 32; ++lane) request.address[lane] = lane / m.divisor % m.modulus * m.stride;
    request.bytes = m.bytes;
    request.lanes = m.lanes;
    INFO((is_load ? "load of " : "store of ")
         << m.bytes << " bytes at (lane / " << m.divisor << " mod " << m.modulus << ") * " << m.stride);
    CHECK(wavefronts(request, is_load).taken == m.wanted.taken);
    CHECK(wavefronts(request, is_load).least == m.wanted.least);
  };
  for (const Measured& m : loads) check(m, true);
  for (const Measured& m : stores) check(m, false);
}
