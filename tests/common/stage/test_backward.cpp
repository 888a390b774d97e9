/// \file
/// Backward kernels in the runner: rows, verdicts, two runs, preparations, rounds, samples.

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "common/attention/reference.hpp"
#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/backward_run.hpp"
#include "common/stage/forward_run.hpp"
#include "common/stage/kernel_bench.hpp"
#include "common/stage/memory.hpp"
#include "common/stage/table.hpp"
#include "common/stage/timing.hpp"
#include "tests/catch.hpp"
#include "tests/common/stage/program_under_test.hpp"
#include "tests/common/stage/rewrite_kernel.hpp"

namespace {

using namespace stage_test;
using Args = attention::BackwardArgs<float>;

/// The kernels' rows on the problem of chapter_with().
stage::Row row_of(const stage::BackwardKernel& kernel) {
  stage::BackwardCase backward(chapter_with({}).emulator_problem, 1);
  return stage::run_admitted(kernel, backward);
}

std::vector<float> downloaded_floats(const float* x_gmem, std::size_t size) {
  std::vector<float> x(size);
  gpu::copy_to_host(x.data(), x_gmem, size * sizeof(float));
  return x;
}

bool is_close(double a, double b, double tolerance = 1e-5) {
  return a == b || std::abs(a - b) <= tolerance * std::abs(b);
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("A right backward kernel gives a row and exit code 0", "[stage][backward]") {
  const Outcome outcome = run(backward_chapter_with({host_backward("plain"), device_backward("copied")}), {});
  CHECK(outcome.code == 0);
  CHECK(outcome.err == "");
  CHECK_THAT(outcome.out, ContainsText("plain (CPU): plain gradients on the host\n"));
  CHECK_THAT(outcome.out, ContainsText("right"));
  CHECK_THAT(outcome.out, ContainsText("peak memory"));
  CHECK_FALSE(contains(outcome.out, "Backward:"));  // there is nothing else
  CHECK(contains(outcome.out, "bytes counted") == gpu::device().checked);
}

TEST_CASE("A chapter with both passes tables them apart, and --kernel picks in both", "[stage][backward]") {
  auto chapter = backward_chapter_with({host_backward("gradients"), host_backward("plain")});
  chapter.forward = {host_kernel("plain"), host_kernel("other")};
  const Outcome all = run(chapter, {"--json", "-"});
  CHECK(all.code == 0);
  const auto rows = nlohmann::json::parse(all.out)["rows"];
  REQUIRE(rows.size() == 4);
  CHECK(rows[1]["pass"] == "forward");
  CHECK(rows[2]["pass"] == "backward");
  CHECK(rows[2]["flops"].get<double>() == 2.5 * rows[0]["flops"].get<double>());

  const Outcome text = run(chapter, {});
  CHECK(text.out.find("\nForward:\n") < text.out.find("other (CPU):"));
  CHECK(text.out.find("other (CPU):") < text.out.find("\nBackward:\n"));
  CHECK(text.out.find("\nBackward:\n") < text.out.find("gradients (CPU):"));

  const Outcome one = run(chapter, {"--kernel", "gradients"});
  CHECK(one.code == 0);
  CHECK_THAT(one.out, ContainsText("gradients (CPU):"));
  CHECK_FALSE(contains(one.out, "plain (CPU)"));
  const Outcome of_both = run(chapter, {"--kernel", "plain", "--json", "-"});
  CHECK(nlohmann::json::parse(of_both.out)["rows"].size() == 2);
  CHECK_THAT(run(chapter, {"--kernel", "left"}).err, ContainsText("allowed: plain, other, gradients, plain"));
  CHECK_THAT(run(chapter, {"--help"}).out, ContainsText("Kernels: plain, other, gradients, plain"));
}

TEST_CASE("A wrong gradient gives exit code 1 and a report", "[stage][backward]") {
  struct Damage {
    const char* what;
    std::function<void(const Args&)> done;
  };
  const std::vector<Damage> damages = {{"an element of dQ", [](const Args& a) { *a.dq_row(0, 5, 2) += 0.01f; }},
                                       {"an element of dK", [](const Args& a) { *a.dk_row(0, 11, 1) += 0.01f; }},
                                       {"an element of dV", [](const Args& a) { *a.dv_row(0, 0, 0) += 0.01f; }},
                                       {"a NaN in dK", [](const Args& a) { a.dk_row(0, 11, 1)[31] = std::nanf(""); }},
                                       {"a group's sum left at half", [](const Args& a) {
                                          for (int j = 0; j < a.seqlen_kv; ++j)
                                            for (int c = 0; c < a.head_dim; ++c) a.dk_row(0, j, 1)[c] /= 2;
                                        }}};
  for (const Damage& damage : damages) {
    CAPTURE(damage.what);
    const Outcome outcome =
        run(backward_chapter_with({damaged(host_backward("broken"), damage.done), host_backward("plain")}), {});
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.err, ContainsText("testing: broken (CPU): wrong"));
    CHECK_THAT(outcome.out, ContainsText("plain (CPU): plain gradients"));
  }
}

TEST_CASE("The row shows the gradient that takes the largest share of its allowance", "[stage][backward]") {
  const stage::Row right = row_of(host_backward("plain"));
  CHECK(right.right);
  CHECK(right.verdict == "right");
  CHECK(*right.error <= *right.allowed);
  const stage::Row wrong = row_of(damaged(host_backward("broken"), [](const Args& a) { *a.dv_row(0, 3, 1) += 10.0f; }));
  CHECK_FALSE(wrong.right);
  CHECK(*wrong.error > 1e-3);
  CHECK(*wrong.allowed < 1e-5);
  CHECK_THAT(wrong.verdict, ContainsText("dV"));
}

TEST_CASE("Gradients that a kernel leaves unwritten are wrong", "[stage][backward]") {
  auto idle = host_backward("idle");
  idle.run = [](const Args&, void*) {};
  CHECK(run(backward_chapter_with({idle}), {}).code == 1);
}

TEST_CASE("A write outside a gradient is reported", "[stage][backward]") {
  const auto report = [](std::function<void(const Args&)> damage) {
    return row_of(damaged(host_backward("broken"), std::move(damage))).verdict;
  };
  CHECK(report([](const Args& a) { a.dq_gmem[-1] = 0; }) == "wrong: wrote before the first element of dQ. ");
  CHECK(report([](const Args& a) { a.dq_row(0, 8, 3)[32] = 0; }) == "wrong: wrote past the last element of dQ. ");
  CHECK(report([](const Args& a) { a.dk_row(0, 11, 1)[32] = 0; }) == "wrong: wrote past the last element of dK. ");
  CHECK(report([](const Args& a) { a.dv_gmem[-64] = 0; }) == "wrong: wrote before the first element of dV. ");
}

TEST_CASE("A kernel that promises equal bits is run twice, and one that does not says so", "[stage][backward]") {
  int runs = 0;
  const auto unsteady = damaged(host_backward("unsteady"), [&runs](const Args& a) {
    float& last = a.dq_row(0, 8, 3)[31];
    if (++runs % 2 == 0) last = std::nextafter(last, 1e9f);
  });
  const stage::Row promised = row_of(unsteady);
  CHECK(runs == 2);
  CHECK_FALSE(promised.right);
  CHECK(promised.verdict == "wrong: not deterministic: two runs differ in dQ, first in byte 4604 of 4608");
  CHECK(*promised.error <= *promised.allowed);

  auto honest = unsteady;
  honest.deterministic = false;
  const stage::Row row = row_of(honest);
  CHECK(runs == 3);
  CHECK(row.right);
  CHECK(row.summary == "plain gradients on the host; not deterministic");

  // What is counted runs once: a GPU's counters would see both.
  CHECK(run(backward_chapter_with({unsteady}), {"--count"}).code == 0);
  CHECK(runs == 4);
}

TEST_CASE("What a kernel prepares is there when it runs, each time anew", "[stage][backward]") {
  for (const auto memory : {stage::Memory::host, stage::Memory::device}) {
    const bool on_host = memory == stage::Memory::host;
    auto kernel = on_host ? host_backward("stored") : device_backward("stored");
    constexpr std::size_t kBytes = 100;
    const auto held = [&](void* workspace) {
      std::vector<unsigned char> bytes(kBytes);
      if (on_host) {
        std::copy_n(static_cast<unsigned char*>(workspace), kBytes, bytes.begin());
      } else {
        gpu::copy_to_host(bytes.data(), workspace, kBytes);
      }
      return bytes;
    };
    const auto put = [&](void* workspace, unsigned char value) {
      const std::vector<unsigned char> bytes(kBytes, value);
      if (on_host) {
        std::copy(bytes.begin(), bytes.end(), static_cast<unsigned char*>(workspace));
      } else {
        gpu::copy_to_device(workspace, bytes.data(), kBytes);
      }
    };
    int prepared = 0, found = 0;
    bool poisoned = true;
    kernel.workspace_bytes = [](const attention::Problem&) { return kBytes; };
    kernel.prepare = [&](const Args&, void* workspace) {
      poisoned = poisoned && held(workspace) == std::vector<unsigned char>(kBytes, 0xFF);
      put(workspace, 7);
      ++prepared;
    };
    kernel.run = [&, run = kernel.run](const Args& args, void* workspace) {
      found += held(workspace) == std::vector<unsigned char>(kBytes, 7);
      put(workspace, 8);
      run(args, workspace);
    };
    CHECK(row_of(kernel).verdict == "right");
    CHECK(prepared == 2);
    CHECK(found == 2);
    CHECK(poisoned);
  }
}

namespace {

/// Prepares with one launch and runs with another, on all of dQ.
stage::BackwardKernel launching(const std::string& name) {
  auto kernel = damaged(device_backward(name), [](const Args& args) {
    launch_other_rewrite(args.dq_gmem, args.heads_q * args.seqlen_q * args.head_dim);
  });
  kernel.prepare = [](const Args& args, void*) {
    const std::vector<float> zeros(64);
    gpu::copy_to_device(args.dq_gmem, zeros.data(), zeros.size() * sizeof(float));
    launch_rewrite(args.dq_gmem, 64);
  };
  kernel.traffic = [](const attention::Problem& p) {
    const auto bytes = 4.0 * static_cast<double>(p.elements_dq());
    return attention::Traffic{bytes, bytes};
  };
  return kernel;
}

}  // namespace

TEST_CASE("What is prepared is not counted as the kernel's, and nor is the second run", "[stage][backward][counts]") {
  const stage::Row row = row_of(launching("launching"));
  CHECK(row.verdict == "right");
  CHECK(row.bytes_counted.has_value() == gpu::device().checked);
  if (!gpu::device().checked) return;
  CHECK(*row.bytes_counted == *row.bytes_predicted);
  REQUIRE(gpu::kernel_counts().size() == 1);
  CHECK(gpu::kernel_counts()[0].kernel == "rewrite<2>");
  CHECK(gpu::kernel_counts()[0].launches == 1);

  auto miscounting = launching("miscounting");
  miscounting.traffic = [](const attention::Problem&) { return attention::Traffic{1, 2}; };
  CHECK_THAT(row_of(miscounting).verdict, ContainsText("miscounted: 4608 bytes loaded and 4608 stored were counted"));

  // A GPU's counters see every launch of the program; so `--count` lists them all here, too, and the model still holds.
  const Outcome counted = run(backward_chapter_with({launching("launching")}), {"--count", "--json", "-"});
  CHECK(counted.code == 0);
  const auto kernels = nlohmann::json::parse(counted.out)["kernel_counts"];
  REQUIRE(kernels.size() == 2);
  CHECK(kernels[0]["kernel"] == "rewrite<1>");
  CHECK(kernels[1]["launches"] == 1);
}

TEST_CASE("A backward kernel that refuses or fails is a row, or exit code 2 alone", "[stage][backward]") {
  auto picky = host_backward("picky");
  picky.require = [](const attention::Problem& p) { stage::require_head_dim_32_64_128("picky", p); };
  const std::string sentence = "picky does not take head_dim 48; allowed: 32, 64, 128";
  const Outcome among = run(backward_chapter_with({picky, host_backward("plain")}), {"--head-dim", "48"});
  CHECK(among.code == 0);
  CHECK_THAT(among.out, ContainsText("picky (CPU): refused: " + sentence + "\n"));
  const Outcome alone = run(backward_chapter_with({picky}), {"--head-dim", "48"});
  CHECK(alone.code == 2);
  CHECK(alone.out == "");
  CHECK(alone.err == "testing: " + sentence + "\n");

  auto failing = host_backward("failing");
  failing.prepare = [](const Args&, void*) { throw gpu::Error("there is no P"); };
  const Outcome outcome = run(backward_chapter_with({failing, host_backward("plain")}), {});
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, ContainsText("testing: failing (CPU): failed: there is no P"));
  CHECK_THAT(outcome.out, ContainsText("right"));
}

TEST_CASE("What a backward needs in memory is all its arrays, guards and workspace", "[stage][backward]") {
  const attention::Problem p = chapter_with({}).emulator_problem;  // heads 4/2, seqlen 9/12, head_dim 32
  const double q = 4 * 9 * 32, kv = 2 * 12 * 32, lse = 4 * 9;
  CHECK(stage::array_bytes(p, stage::Pass::forward) == 4 * (2 * q + 2 * kv + lse));
  CHECK(stage::array_bytes(p, stage::Pass::backward) == 4 * (4 * q + 4 * kv + lse));
  CHECK(stage::host_bytes(p, true, stage::Pass::backward) > 2 * stage::array_bytes(p, stage::Pass::backward));

  auto greedy = device_backward("greedy");
  greedy.workspace_bytes = [](const attention::Problem&) { return std::size_t{1} << 50; };
  const double needed = 4 * (4 * q + 4 * kv + lse) + 3 * 512 + 0x1p50;
  CHECK_THROWS_WITH(stage::admit(greedy, p),
                    ContainsText("greedy needs " + std::to_string(static_cast<long long>(needed)) + " bytes ("));
  // What is held while it runs: all but the guards' rounding.
  const stage::Row row = row_of(device_backward("copied"));
  CHECK(row.peak_bytes.value() >= 4 * (4 * q + 4 * kv + lse));
}

TEST_CASE("A kernel and a case of two passes do not go together", "[stage][backward]") {
  const attention::Problem p = chapter_with({}).emulator_problem;
  stage::ForwardCase forward(p, 1);
  CHECK_THROWS_WITH(stage::run_admitted(host_backward("plain"), forward), ContainsText("a case of the other pass"));
}

TEST_CASE("Sections run backward kernels, too", "[stage][backward]") {
  auto chapter = chapter_with({});
  std::vector<stage::Row> rows;
  auto refusing = host_backward("refusing");
  refusing.require = [](const attention::Problem&) { throw stage::Refused("refusing takes nothing"); };
  chapter.sections = {{"Checks", [&](stage::Program& program) {
                         rows.push_back(program.run_backward(host_backward("plain")));
                         rows.push_back(program.check_backward(refusing));
                       }}};
  CHECK(run(chapter, {}).code == 0);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].verdict == "right");
  CHECK(rows[0].pass == stage::Pass::backward);
  CHECK(rows[1].verdict == "refused: refusing takes nothing");
}

TEST_CASE("In rounds, a prepared workspace is its kernel's own", "[stage][backward]") {
  std::vector<std::string> order;
  std::map<std::string, std::vector<unsigned char>> found;
  const auto tracked = [&](const std::string& name, bool prepares) {
    auto kernel = device_backward(name);
    kernel.workspace_bytes = [](const attention::Problem&) { return std::size_t{16}; };
    if (prepares) {
      kernel.prepare = [name, &order](const Args& args, void* workspace) {
        order.push_back("prepare " + name);
        // A value that only the kernel's own inputs give.
        gpu::copy_to_device(workspace, downloaded_floats(args.q_gmem, 4).data(), 16);
      };
    }
    kernel.run = [name, prepares, &order, &found, run = kernel.run](const Args& args, void* workspace) {
      order.push_back(name);
      run(args, workspace);
      if (prepares) {
        const bool kept =
            downloaded_floats(static_cast<const float*>(workspace), 4) == downloaded_floats(args.q_gmem, 4);
        found[name].push_back(kept);
      } else {
        gpu::copy_to_device(workspace, std::vector<float>(4, -1.0f).data(), 16);
      }
    };
    return kernel;
  };
  const std::vector<stage::AnyKernel> kernels = {tracked("stored", true), tracked("scribbling", false),
                                                 tracked("stored, too", true)};
  stage::BackwardCase backward(chapter_with({}).emulator_problem, 1);
  std::vector<stage::Row> rows;
  for (const auto& kernel : kernels) rows.push_back(stage::run_admitted(kernel, backward));
  order.clear();
  const std::map<std::string, double> seconds = {{"stored", 0.3}, {"scribbling", 0.1}, {"stored, too", 0.2}};
  const stage::Clock clock = [&](const std::function<void()>& launch) {
    launch();
    return seconds.at(order.back());
  };
  stage::bench(kernels, rows, backward, {.device = clock, .host = clock});

  const auto times = [&](const std::string& what) { return std::count(order.begin(), order.end(), what); };
  CHECK(times("prepare stored") == 1);
  CHECK(times("prepare stored, too") == 1);
  CHECK(times("stored") == 40 + 3);
  for (const auto& [name, all] : found) CHECK(std::count(all.begin(), all.end(), 1) == static_cast<long>(all.size()));
  CHECK(rows[0].samples.size() == 40);
  CHECK(is_close(rows[1].step_before->median, 3.0));
  CHECK(is_close(rows[2].step_before->median, 0.5));

  SECTION("and on the host it is prepared once") {
    int prepared = 0, launches = 0;
    auto host = host_backward("host");
    host.prepare = [&](const Args&, void*) { ++prepared; };
    host.run = [&, run = host.run](const Args& args, void* workspace) {
      ++launches;  // of which the clock makes a tenth of a second each
      run(args, workspace);
    };
    const std::vector<stage::AnyKernel> alone = {host};
    std::vector<stage::Row> row = {stage::run_admitted(host, backward)};
    prepared = launches = 0;
    const stage::Clock steady = [](const std::function<void()>& launch) {
      launch();
      return 0.1;
    };
    stage::bench(alone, row, backward, {.device = steady, .host = steady});
    CHECK(prepared == 1);
    CHECK(launches > 10);
    CHECK(row[0].seconds == 0.1);
  }
}

TEST_CASE("A backward has a roof and credited FLOPs of its own", "[stage][backward]") {
  attention::Problem p;
  p.seqlen_q = p.seqlen_kv = 4096;
  p.head_dim = 64;
  CHECK(stage::credited_flops(p, stage::Pass::backward) == 2.5 * stage::credited_flops(p, stage::Pass::forward));
  gpu::DeviceInfo device;
  device.memory_total = 140'000'000'000;
  device.name = "NVIDIA H200";
  const auto roof = [&](stage::Pass pass) { return stage::roof(device, p, pass).value(); };
  CHECK(roof(stage::Pass::backward) == roof(stage::Pass::forward));  // the units', for both
  p.seqlen_q = 1;  // memory's: 2.5 times the FLOPs for twice the bytes
  CHECK(is_close(roof(stage::Pass::backward) / roof(stage::Pass::forward), 1.25, 0.01));
}

TEST_CASE("One kernel out of several by head_dim, backward", "[stage][backward]") {
  int prepared = 0;
  auto of_32 = host_backward("both"), of_64 = host_backward("both");
  of_64.prepare = of_32.prepare = [&prepared](const Args& args, void*) { prepared = args.head_dim; };
  of_32.traffic = of_64.traffic = [](const attention::Problem& p) { return attention::Traffic{1.0 * p.head_dim, 0}; };
  of_32.deterministic = of_64.deterministic = false;
  const stage::BackwardKernel kernel = stage::by_head_dim({{32, of_32}, {64, of_64}});
  CHECK_FALSE(kernel.deterministic);
  const stage::Row row = row_of(kernel);
  CHECK(row.right);
  CHECK(prepared == 32);
  CHECK(row.bytes_predicted == 32);
  attention::Problem p = chapter_with({}).emulator_problem;
  p.head_dim = 128;
  CHECK_THROWS_WITH(kernel.require(p), "both does not take head_dim 128; allowed: 32, 64");
  CHECK_FALSE(stage::by_head_dim(std::map<int, stage::BackwardKernel>{{32, host_backward("plain")}}).prepare);
}

TEST_CASE("A sample of gradients measures what the whole rule measures", "[stage][backward]") {
  const attention::Mask mask = GENERATE(attention::Mask::none(), attention::Mask::causal(),
                                        attention::Mask::window(5, 2), attention::Mask::window(1, 0));
  attention::Problem p;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.seqlen_q = 3;
  p.seqlen_kv = 4;  // so few rows that a sample has them all
  p.head_dim = 32;
  p.mask = mask;
  p.element_type = GENERATE(attention::ElementType::fp32, attention::ElementType::fp16, attention::ElementType::bf16);
  CAPTURE(mask.name(), attention::name(p.element_type));
  const auto inputs = attention::make_inputs(p, attention::InputKind::normal, 3);
  const auto dout = attention::make_output_gradient(p, 3);
  const auto yardstick = attention::make_backward_yardstick(p, inputs.q, inputs.k, inputs.v, dout);
  const stage::BackwardSample sample(p, inputs, dout);
  REQUIRE(sample.lse().size() == yardstick.lse.size());
  for (std::size_t i = 0; i < sample.lse().size(); ++i) CHECK(is_close(sample.lse()[i], yardstick.lse[i]));
  for (std::size_t i = 0; i < sample.o().size(); ++i) CHECK(is_close(sample.o()[i], yardstick.o[i]));

  auto plain = attention::plain_backward(p, inputs.q, inputs.k, inputs.v, yardstick.o, yardstick.lse, dout, {});
  const float damage = p.element_type == attention::ElementType::fp32 ? 1e-2f : 0.5f;
  plain.dq[5 * 32] += damage;
  plain.dk[3 * 32] -= damage;
  plain.dv[4 * 32] += damage;
  const auto whole = attention::judge_backward(p, plain.dq, plain.dk, plain.dv, yardstick);
  const auto part = sample.judge(plain.dq, plain.dk, plain.dv);
  CHECK_FALSE(part.right);
  CHECK(is_close(part.error.dq, whole.error.dq));
  CHECK(is_close(part.error.dk, whole.error.dk));
  CHECK(is_close(part.error.dv, whole.error.dv));
  CHECK(is_close(part.allowed.dq, whole.allowed.dq, 0.2));
  CHECK(is_close(part.allowed.dk, whole.allowed.dk, 0.2));
  CHECK(is_close(part.allowed.dv, whole.allowed.dv, 0.2));
}

TEST_CASE("A sample of gradients catches what is wrong everywhere, and takes what is right", "[stage][backward]") {
  const attention::Mask mask =
      GENERATE(attention::Mask::none(), attention::Mask::causal(), attention::Mask::window(5, 2));
  attention::Problem p;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.seqlen_q = 40;
  p.seqlen_kv = 30;  // with the causal mask the first queries see nothing
  p.head_dim = 32;
  p.mask = mask;
  const auto inputs = attention::make_inputs(p, attention::InputKind::normal, 3);
  const auto dout = attention::make_output_gradient(p, 3);
  const stage::BackwardSample sample(p, inputs, dout);
  const auto plain_of = [&](const attention::Problem& problem, std::span<const float> o) {
    return attention::plain_backward(problem, inputs.q, inputs.k, inputs.v, o, sample.lse(), dout);
  };
  const auto judge = [&](const attention::PlainBackward& x) { return sample.judge(x.dq, x.dk, x.dv); };
  auto plain = plain_of(p, sample.o());
  CHECK(judge(plain).sentence == "right (sample: 64 rows each)");
  CHECK(judge(plain).right);

  SECTION("D from another O") {
    std::vector<float> partial = sample.o();
    for (float& x : partial) x *= 0.99f;
    const auto verdict = judge(plain_of(p, partial));
    CHECK_FALSE(verdict.right);
    CHECK_THAT(verdict.sentence, ContainsText("wrong in a sample of 64 rows: error of a row of dQ over its terms is "));
    CHECK_THAT(verdict.sentence, ContainsText("dV is right: look at D and dP"));
    CHECK_FALSE(contains(verdict.sentence, "row of dV"));
  }
  SECTION("keys' gradients of half the group") {
    for (float& x : plain.dk) x /= 2;
    CHECK_FALSE(judge(plain).right);
  }
  SECTION("a mask that is off by one") {
    attention::Problem other = p;
    other.mask = attention::Mask::window(mask == attention::Mask::none() ? 20 : 4, mask.right);
    if (mask == attention::Mask::causal()) other.mask = attention::Mask::window(attention::kUnlimited, 1);
    CHECK_FALSE(judge(plain_of(other, sample.o())).right);
  }
  SECTION("NaN") {
    plain.dv[0] = std::nanf("");
    CHECK_FALSE(judge(plain).right);
  }
}

TEST_CASE("A problem too long for the backward's reference is sampled, and its unwritten rows are still found",
          "[stage][backward]") {
  attention::Problem p;
  p.heads_q = p.heads_kv = 16;
  p.seqlen_q = p.seqlen_kv = 8192;
  p.head_dim = 128;
  CHECK(stage::is_backward_sampled(p));
  p.mask = attention::Mask::window(3, 0);
  CHECK_FALSE(stage::is_backward_sampled(p));

  p = chapter_with({}).emulator_problem;
  p.batch = 3;
  p.seqlen_q = p.seqlen_kv = 50;
  CHECK_FALSE(stage::is_backward_sampled(p));
  stage::BackwardCase sampled(p, 1, true), whole(p, 1, false);
  const stage::Row row = stage::run_admitted(host_backward("plain"), sampled);
  CHECK(row.verdict == "right (sample: 64 rows each)");
  CHECK(stage::run_admitted(host_backward("plain"), whole).verdict == "right");
  const auto one_nan = damaged(host_backward("nan"), [](const Args& a) { a.dk_row(1, 17, 1)[3] = std::nanf(""); });
  CHECK(stage::run_admitted(one_nan, sampled).verdict == "wrong: dK of batch 1, head 1, key 17 is not finite");
}

TEST_CASE("A scale that leaves nothing to judge is refused", "[stage]") {
  const stage::Chapter chapter = backward_chapter_with({host_backward("a")});
  for (const char* scale : {"1e7", "-1e5", "1e30"}) {
    const Outcome outcome = run(chapter, {"--scale", scale});
    CHECK(outcome.code == 2);
    CHECK(outcome.out == "");
    CHECK_THAT(outcome.err, ContainsText("fp32 leaves exp(S - LSE) no digits to judge gradients by"));
  }
  CHECK(run(chapter, {"--scale", "300"}).code == 0);
}

TEST_CASE("--bench on a GPU times the passes apart", "[stage][backward]") {
  if (gpu::device().emulated) return;
  auto chapter = backward_chapter_with({device_backward("gradients"), device_backward("again")});
  chapter.forward = {device_kernel("copied")};
  chapter.bench_problems = {chapter.gpu_problem};
  const Outcome outcome = run(chapter, {"--bench", "--json", "-"});
  CHECK(outcome.code == 0);
  const auto json = nlohmann::json::parse(outcome.out);
  REQUIRE(json["rows"].size() == 3);
  for (const auto& row : json["rows"]) CHECK(row["samples"].size() >= 40);
  CHECK(json["rows"][1]["step_before"].is_null());  // of the other pass
  CHECK(json["rows"][2]["step_before"]["median"].get<double>() > 0);
  CHECK(json["tables"]["grid"]["header"].size() == 2);
  CHECK(json["tables"]["grid_backward"]["header"].size() == 3);
}
