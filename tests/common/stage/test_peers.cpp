/// \file
/// Peer libraries: loaded or not, with a sentence; their functions as kernels. On a GPU, PyTorch's own.

#include <string>
#include <vector>

#include "common/gpu/device.hpp"
#include "common/stage/forward_run.hpp"
#include "common/stage/peers.hpp"
#include "tests/catch.hpp"
#include "tests/common/stage/program_under_test.hpp"

namespace {

using namespace stage_test;
using attention::ElementType;

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
  CHECK(library.names() ==
        std::vector<std::string>{"right", "no_lse", "wrong", "failing", "in_bf16", "takes_bf16_for_fp32"});
  CHECK_THROWS_WITH(
      library.kernel("left"),
      "Fake 1.0 has no peer 'left'; there are: right, no_lse, wrong, failing, in_bf16, takes_bf16_for_fp32");
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
  // Each is offered in its own element type.
  attention::Problem p = problem(4);
  CHECK(refusal(library.kernel("in_bf16"), p) == "in_bf16 does not take fp32 elements; allowed: bf16");
  p.element_type = ElementType::fp16;
  CHECK(refusal(library.kernel("in_bf16"), p) == "in_bf16 does not take fp16 elements; allowed: bf16");
  p.element_type = ElementType::bf16;
  CHECK(refusal(library.kernel("in_bf16"), p) == "");
  CHECK(refusal(library.kernel("right"), p) == "right does not take bf16 elements; allowed: fp32");
}

TEST_CASE("Peers of a type that no problem has are left out", "[stage]") {
  const stage::PeerLibrary library(BOOK_FAKE_PEER);
  attention::Problem in_fp32 = problem(4), in_bf16 = problem(4), in_fp16 = problem(4);
  in_bf16.element_type = ElementType::bf16;
  in_fp16.element_type = ElementType::fp16;
  const auto chosen = [&](const std::vector<attention::Problem>& problems, std::vector<std::string>& left_out) {
    std::vector<std::string> names;
    left_out.clear();
    for (const auto& peer : library.kernels({"in_bf16", "right", "no_lse"}, problems, left_out)) {
      names.push_back(peer.name);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  Names left_out;
  CHECK(chosen({in_fp32}, left_out) == Names{"right", "no_lse"});
  CHECK(left_out == Names{"in_bf16"});
  CHECK(chosen({in_bf16}, left_out) == Names{"in_bf16"});
  CHECK(left_out == Names{"right", "no_lse"});
  CHECK(chosen({in_bf16, in_fp32}, left_out) == Names{"in_bf16", "right", "no_lse"});
  CHECK(left_out.empty());
  CHECK(chosen({in_fp16}, left_out).empty());
  CHECK(left_out.size() == 3);
  CHECK_THROWS_AS(library.kernels({"left"}, {in_fp32}, left_out), stage::NoPeers);
}

TEST_CASE("A peer is checked as a kernel is", "[stage]") {
  if (!gpu::device().emulated) return;  // the library works on the host's memory
  const stage::PeerLibrary library(BOOK_FAKE_PEER);
  for (const auto mask : {attention::Mask::none(), attention::Mask::causal()}) {
    stage::ForwardCase forward(problem(4, mask), 1);
    CHECK(stage::run_admitted(library.kernel("right"), forward).verdict == "right");
    CHECK(stage::run_admitted(library.kernel("no_lse"), forward).verdict == "right, O alone");
    CHECK_FALSE(stage::run_admitted(library.kernel("takes_bf16_for_fp32"), forward).right);
    CHECK_THAT(stage::run_admitted(library.kernel("wrong"), forward).verdict, ContainsText("wrong: relative error"));
    const stage::Row failed = stage::run_admitted(library.kernel("failing"), forward);
    CHECK_FALSE(failed.right);
    CHECK(failed.verdict == "failed: failing: CUDA out of memory");

    attention::Problem p = problem(4, mask);
    p.element_type = ElementType::bf16;
    stage::ForwardCase in_bf16(p, 1);
    const stage::Row row = stage::run_admitted(library.kernel("in_bf16"), in_bf16);
    CHECK(row.verdict == "right");
    CHECK(*row.error > 1e-5);
  }
}

TEST_CASE("PyTorch's peers are right", "[stage]") {
  if (gpu::device().emulated) return;
  if (why_none(stage::peer_library_path()) != "") {
    WARN("not run: " << why_none(stage::peer_library_path()));
    return;
  }
  const stage::PeerLibrary library(stage::peer_library_path());
  for (const auto type : {ElementType::fp32, ElementType::fp16, ElementType::bf16}) {
    for (const auto mask : {attention::Mask::none(), attention::Mask::causal()}) {
      attention::Problem p = problem(4, mask);
      p.element_type = type;
      stage::ForwardCase forward(p, 1);
      int ran = 0;
      for (const std::string& name : library.names()) {
        const stage::ForwardKernel peer = library.kernel(name);
        if (!peer.run.takes(type)) continue;
        const stage::Row row = stage::run_admitted(peer, forward);
        CAPTURE(name, mask.name(), row.verdict);
        REQUIRE(row.error.has_value());
        if (type == ElementType::fp32) {
          CHECK(*row.error < 1e-5);
        } else {
          CHECK(row.right);
        }
        ++ran;
      }
      CHECK(ran >= 2);
    }
  }
  library.release();
}
