/// \file
/// Peer libraries: loaded or not, with a sentence; their functions as kernels. On a GPU, PyTorch's own.

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "common/attention/inputs.hpp"
#include "common/attention/reference.hpp"
#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"
#include "common/stage/forward_run.hpp"
#include "common/stage/peers.hpp"
#include "tests/catch.hpp"
#include "tests/common/stage/program_under_test.hpp"

namespace {

using namespace stage_test;

attention::Problem problem(int heads_kv, attention::Mask mask = attention::Mask::none()) {
  attention::Problem p;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_kv = heads_kv;
  p.seqlen_q = p.seqlen_kv = 40;
  p.head_dim = 64;
  p.mask = mask;
  return p;
}

std::string refusal(const stage::ForwardKernel& kernel, const attention::Problem& p) {
  try {
    stage::admit(kernel, p);
  } catch (const stage::Refused& refused) {
    return refused.what();
  }
  return "";
}

std::string why_none(const std::string& path) {
  try {
    const stage::PeerLibrary library(path);
  } catch (const stage::NoPeers& reason) {
    return reason.what();
  }
  return "";
}

/// The upper half of an fp32, rounded to nearest even.
std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
float from_bf16(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

}  // namespace

TEST_CASE("A peer library that is not there, or is none, is a sentence", "[stage]") {
  TemporaryFolder folder;
  CHECK_THAT(why_none(""), ContainsText("the build found no PyTorch"));
  CHECK_THAT(why_none(folder.file("absent.so")), ContainsText("the build found no PyTorch"));
  write(folder.file("text.so"), "not a library");
  CHECK_THAT(why_none(folder.file("text.so")), ContainsText("cannot be loaded"));
  CHECK_THAT(why_none(BOOK_FAKE_PEER_OTHER), ContainsText("another version of the book"));
  CHECK(why_none(BOOK_FAKE_PEER) == "");
}

TEST_CASE("A peer library lists its peers, and names the one it has not", "[stage]") {
  const stage::PeerLibrary library(BOOK_FAKE_PEER);
  CHECK(library.version() == "Fake 1.0");
  CHECK(library.names() == std::vector<std::string>{"right", "no_lse", "wrong", "failing", "in_bf16"});
  CHECK_THROWS_WITH(library.kernel("left"),
                    "Fake 1.0 has no peer 'left'; there are: right, no_lse, wrong, failing, in_bf16");
  const stage::ForwardKernel kernel = library.kernel("right");
  CHECK(kernel.is_peer);
  CHECK(kernel.summary == "Fake 1.0, plain attention");
}

TEST_CASE("A peer refuses what it does not take", "[stage]") {
  const stage::PeerLibrary library(BOOK_FAKE_PEER);
  CHECK(refusal(library.kernel("right"), problem(4)) == "");
  CHECK(refusal(library.kernel("right"), problem(4, attention::Mask::causal())) == "");
  CHECK(refusal(library.kernel("right"), problem(2)) == "right does not take heads 4/2; allowed: heads_q = heads_kv");
  CHECK(refusal(library.kernel("right"), problem(4, attention::Mask::window(3, 0))) ==
        "right does not take window(3,0); allowed: no mask, causal");
  CHECK_THAT(refusal(library.kernel("in_bf16"), problem(4)), ContainsText("allowed: peers in fp32"));
}

TEST_CASE("A peer is checked as a kernel is", "[stage]") {
  if (!gpu::device().emulated) return;  // the library works on the host's memory
  const stage::PeerLibrary library(BOOK_FAKE_PEER);
  for (const auto mask : {attention::Mask::none(), attention::Mask::causal()}) {
    stage::ForwardCase forward(problem(4, mask), 1);
    CHECK(stage::run_admitted(library.kernel("right"), forward).verdict == "right");
    CHECK(stage::run_admitted(library.kernel("no_lse"), forward).verdict == "right, O alone");
    CHECK_THAT(stage::run_admitted(library.kernel("wrong"), forward).verdict, ContainsText("wrong: relative error"));
    const stage::Row failed = stage::run_admitted(library.kernel("failing"), forward);
    CHECK_FALSE(failed.right);
    CHECK(failed.verdict == "failed: failing: CUDA out of memory");
  }
}

TEST_CASE("PyTorch's peers are right", "[stage]") {
  if (gpu::device().emulated) return;
  if (why_none(stage::peer_library_path()) != "") {
    WARN("not run: " << why_none(stage::peer_library_path()));
    return;
  }
  const stage::PeerLibrary library(stage::peer_library_path());
  for (const auto mask : {attention::Mask::none(), attention::Mask::causal()}) {
    const attention::Problem p = problem(4, mask);
    stage::ForwardCase forward(p, 1);
    for (const std::string& name : library.names()) {
      CAPTURE(name, mask.name());
      const BookPeer& peer = library.peer(name);
      if (peer.element == BOOK_PEER_FP32) {
        const stage::Row row = stage::run_admitted(library.kernel(name), forward);
        CAPTURE(row.verdict);
        REQUIRE(row.error.has_value());
        CHECK(*row.error < 1e-5);
        continue;
      }
      // In bf16: against float64 on the rounded inputs, within a bf16's rounding of P and O.
      attention::Inputs inputs = forward.inputs();
      const auto rounded = [](std::vector<float>& values) {
        std::vector<std::uint16_t> bits;
        for (float& x : values) {
          bits.push_back(to_bf16(x));
          x = from_bf16(bits.back());
        }
        return gpu::DeviceBuffer<std::uint16_t>(bits, "rounded");
      };
      const auto q = rounded(inputs.q), k = rounded(inputs.k), v = rounded(inputs.v);
      gpu::DeviceBuffer<std::uint16_t> o(q.size(), "O");
      gpu::DeviceBuffer<float> lse(static_cast<std::size_t>(p.elements_lse()), "LSE");
      const auto strides = [](const attention::Strides& s) { return BookPeerStrides{s.batch, s.seq, s.head}; };
      const BookPeerForward f{q.data(),
                              k.data(),
                              v.data(),
                              o.data(),
                              lse.data(),
                              strides(p.strides_q()),
                              strides(p.strides_k()),
                              strides(p.strides_v()),
                              strides(p.strides_o()),
                              p.batch,
                              p.heads_q,
                              p.heads_kv,
                              p.seqlen_q,
                              p.seqlen_kv,
                              p.head_dim,
                              mask == attention::Mask::causal(),
                              p.scale()};
      char sentence[1000] = "";
      const bool ran = peer.run(&f, sentence, sizeof sentence) == 0 && peer.fetch(&f, sentence, sizeof sentence) == 0;
      CAPTURE(sentence);
      REQUIRE(ran);
      std::vector<float> values;
      for (const std::uint16_t bits : o.download()) values.push_back(from_bf16(bits));
      const auto error = attention::forward_error(p, values, lse.download(), inputs.v,
                                                  attention::reference_forward(p, inputs.q, inputs.k, inputs.v));
      CHECK(error.relative < 2e-2);
      CHECK(error.lse < 1e-3);
    }
  }
  library.release();
}
