/// \file
/// The kernels beyond the forward suite: bytes, refusals, scales, needed waits, fences and barriers.

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "chapters/12_warp_specialization/kernels.hpp"
#include "common/attention/accuracy.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::ElementType;
using attention::InputKind;
using attention::Mask;
using attention::Problem;
using suite::check_case, suite::Outcome, suite::problem, suite::run;
using warp_specialization::warp_specialization_kernels;

constexpr ElementType kTypes[] = {ElementType::fp16, ElementType::bf16};

/// What a run without a line says; empty if nothing was noticed.
std::string report_without(const stage::ForwardKernel& kernel, const Problem& p, const gpu::SourceLine& line,
                           std::uint64_t seed, gpu::Delivery delivery) {
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.without = {line};
  options.schedule_seed = seed;
  options.delivery = delivery;
  const gpu::EmulatorOptionsScope without(options);
  try {
    run(kernel, p);
  } catch (const gpu::Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("right, with the predicted bytes, in both types and all head_dims") {
  int turn = 0;
  for (const ElementType type : kTypes) {
    for (const int head_dim : {64, 128, 256}) {
      const Problem problems[] = {
          problem(type, 1, 1, 1, 1, head_dim, Mask::none()),
          problem(type, 2, 1, 140, 200, head_dim, Mask::causal()),
          problem(type, 1, 1, 140, 150, head_dim, Mask::window(9, 0)),   // tiles of keys that are nobody's
          problem(type, 1, 1, 300, 30, head_dim, Mask::causal()),        // a tile of rows that see nothing
          problem(type, 1, 1, 70, 330, head_dim, Mask::window(70, 40)),  // both edges
      };
      for (Problem p : problems) {
        p.batch = p.heads_q == 1 && p.seqlen_q == 1 ? 3 : 1;
        const std::vector<stage::ForwardKernel> kernels = warp_specialization_kernels();
        const stage::ForwardKernel& kernel = kernels[turn++ % kernels.size()];
        INFO(kernel.name << ", " << p.describe());
        check_case(kernel, p);
      }
    }
  }
}

TEST_CASE("the bytes of a causal case, by hand") {
  // Two tiles of 128 queries: the first sees 128 keys, the second all 130.
  const Problem p = problem(ElementType::bf16, 1, 1, 130, 130, 128, Mask::causal());
  for (const stage::ForwardKernel& kernel : warp_specialization_kernels()) {
    const int counter = kernel.name == "persistent" ? 2 * 4 : 0;  // asked after each of the two works
    CHECK(kernel.traffic(p).loaded == 2 * 128 * (130 + 2 * (128 + 130)) + counter);
    CHECK(kernel.traffic(p).stored == 130 * (2 * 128 + 4) + counter);
  }
}

TEST_CASE("blocks that take one work after the other") {
  // Ten works and more for two blocks, with one tile of keys, with several, and with none; equal works and unequal
  // ones.
  const auto check = [](const stage::ForwardKernel& kernel, int head_dim) {
    for (const Mask mask : {Mask::none(), Mask::causal(), Mask::window(20, 0)}) {
      for (const int seqlen_kv : {40, 0, 300}) {
        INFO("head_dim " << head_dim << ", " << mask.name() << ", " << seqlen_kv << " keys");
        check_case(kernel, problem(ElementType::bf16, 6, 2, 200, seqlen_kv, head_dim, mask), InputKind::normal, true);
      }
    }
  };
  check(warp_specialization::persistent<64>(2), 64);
  check(warp_specialization::persistent<128>(2), 128);
  check(warp_specialization::persistent<256>(2), 256);
}

TEST_CASE("every work is handed out once, in sections, longest first") {
  using Tile = warp_specialization::SpecializedTile<gpu::bf16, 128>;
  // 4096 keys of 128 columns are 2 MiB of K and V: 16 KV heads a section, 32 heads of Q.
  attention::ForwardArgs<gpu::bf16> args{};
  args.batch = 3, args.heads_q = 24, args.heads_kv = 12, args.seqlen_q = 1000, args.seqlen_kv = 4096;
  args.head_dim = 128, args.mask = Mask::causal();
  int counter = 0;
  const auto schedule = warp_specialization::Schedule::of<Tile>(args, &counter);
  CHECK(schedule.query_tiles == 8);
  CHECK(schedule.works == 3 * 24 * 8);
  CHECK(schedule.section == 32);
  CHECK(schedule.counter == &counter);
  args.mask = Mask::none();
  CHECK(warp_specialization::Schedule::of<Tile>(args, &counter).counter == nullptr);
  args.seqlen_kv = 1 << 20;  // one KV head alone is more than a section
  CHECK(warp_specialization::Schedule::of<Tile>(args, &counter).section == 2);
  args.seqlen_kv = 0;
  CHECK(warp_specialization::Schedule::of<Tile>(args, &counter).section == 72);
}

TEST_CASE("negative scales, a scale of 0, and scales that leave one key") {
  const std::vector<stage::ForwardKernel> kernels = warp_specialization_kernels();
  int turn = 0;
  for (const float scale : {-0.25f, 0.0f, 1.5f, 1e4f, -1e4f}) {
    for (const ElementType type : kTypes) {
      Problem p = problem(type, 1, 1, 20, 200, 64, turn % 3 == 0 ? Mask::causal() : Mask::none());
      p.softmax_scale = scale;
      check_case(kernels[turn++ % kernels.size()], p);
    }
  }
}

TEST_CASE("scores of 10000 and more, of both signs") {
  const std::vector<stage::ForwardKernel> kernels = warp_specialization_kernels();
  int turn = 0;
  for (const float scale : {0.25f, -0.25f}) {
    for (const ElementType type : kTypes) {
      for (const Mask mask : {Mask::none(), Mask::causal()}) {
        Problem p = problem(type, 1, 1, 70, 140, 64, mask);
        p.softmax_scale = scale;
        check_case(kernels[turn++ % kernels.size()], p, InputKind::huge_scores);
      }
    }
  }
}

TEST_CASE("the same bits under every schedule and in both deliveries") {
  for (const stage::ForwardKernel& kernel : warp_specialization_kernels()) {
    check_case(kernel, problem(ElementType::fp16, 1, 1, 70, 400, 64, Mask::window(270, 3)), InputKind::rising_scores,
               true);
  }
}

TEST_CASE("no wait, no fence and no barrier can be left out unnoticed") {
  if (!gpu::device().checked) return;
  // More than 2 · stages tiles of keys, so that each place is loaded again after it has been read, and twice.
  const Problem one_work = problem(ElementType::bf16, 1, 1, 66, 5 * 128 - 30, 64, Mask::none());
  // The same for a block with several works.
  const Problem works = problem(ElementType::bf16, 3, 3, 66, 2 * 128 - 30, 64, Mask::causal());
  // A block none of whose rows sees a key: what guards the end of a block that has visited no tile.
  const Problem nothing_seen = problem(ElementType::bf16, 1, 1, 200, 3, 64, Mask::causal());
  std::vector<stage::ForwardKernel> kernels = warp_specialization_kernels();
  kernels.back() = warp_specialization::persistent<64>(1);
  for (const stage::ForwardKernel& kernel : kernels) {
    const Problem& p = kernel.name == "persistent" ? works : one_work;
    gpu::reset_synchronisations_seen();
    run(kernel, p);
    run(kernel, nothing_seen);
    std::vector<std::string> unnoticed;
    for (const gpu::SourceLine& line : gpu::synchronisations_seen()) {
      bool noticed = false;
      for (const gpu::Delivery delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately})
        for (const std::uint64_t seed : {0, 1, 2}) {
          noticed = noticed || !report_without(kernel, p, line, seed, delivery).empty() ||
                    !report_without(kernel, nothing_seen, line, seed, delivery).empty();
        }
      if (!noticed) unnoticed.push_back(line.file + ":" + std::to_string(line.line));
    }
    for (const std::string& line : unnoticed) UNSCOPED_INFO(line);
    // Steps 2 and 3 share the end of step 1, where a warpgroup meets before it overwrites Q. Their last turn has been
    // such a meeting already.
    const bool takes_turns = kernel.name == "ping_pong" || kernel.name == "overlap";
    INFO(kernel.name);
    CHECK(static_cast<int>(unnoticed.size()) == (takes_turns ? 1 : 0));
  }
}
