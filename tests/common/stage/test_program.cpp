/// \file
/// The runner: its rows and verdicts, its exit codes, its JSON.

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/forward_run.hpp"
#include "common/stage/timing.hpp"
#include "tests/catch.hpp"
#include "tests/common/stage/program_under_test.hpp"

namespace {

using namespace stage_test;
using Args = attention::ForwardArgs<float>;

stage::ForwardKernel refusing(const std::string& name) {
  auto kernel = host_kernel(name);
  kernel.require = [name](const attention::Problem& p) { stage::require_head_dim_32_64_128(name, p); };
  return kernel;
}

}  // namespace

TEST_CASE("A right kernel gives a row and exit code 0", "[stage]") {
  const Outcome outcome = run(chapter_with({host_kernel("plain"), device_kernel("copied")}), {});
  CHECK(outcome.code == 0);
  CHECK(outcome.err == "");
  CHECK_THAT(outcome.out, ContainsText("Chapter 07, testing: A chapter that exists only here.\n"));
  CHECK_THAT(outcome.out, ContainsText("machine:  " + std::string(gpu::device().emulated ? "emulator, " : "")));
  CHECK_THAT(outcome.out, ContainsText("problem:  batch 1, heads 4/2, seqlen 9/12, head_dim 32"));
  CHECK_THAT(outcome.out, ContainsText("kernel"));
  CHECK_THAT(outcome.out, ContainsText("right"));
  CHECK_THAT(outcome.out, ContainsText("plain (CPU): plain attention on the host\n"));
  CHECK_THAT(outcome.out, ContainsText("peak memory"));
  CHECK(outcome.out.find("time  ") == std::string::npos);  // nothing was timed
  CHECK(outcome.out.find("TFLOP/s") == std::string::npos);
  const bool counts = gpu::device().checked;
  CHECK((outcome.out.find("bytes counted") != std::string::npos) == counts);
  CHECK((outcome.out.find("the checking build counts them") != std::string::npos) ==
        (gpu::device().emulated && !counts));
}

TEST_CASE("--kernel runs one kernel and leaves the sections out", "[stage]") {
  auto chapter = chapter_with({host_kernel("plain"), host_kernel("other")});
  chapter.sections = {{"A section", [](stage::Program& program) { program.say("Said in the section."); }}};
  const Outcome one = run(chapter, {"--kernel", "other"});
  CHECK(one.code == 0);
  CHECK(one.out.find("plain:") == std::string::npos);
  CHECK(one.out.find("section") == std::string::npos);
  const Outcome all = run(chapter, {});
  CHECK_THAT(all.out, ContainsText("\nA section\n---------\n\nSaid in the section.\n"));
}

TEST_CASE("A wrong result gives exit code 1 and a report", "[stage]") {
  struct Damage {
    const char* what;
    std::function<void(const Args&)> done;
  };
  const std::vector<Damage> damages = {
      {"an element of O", [](const Args& a) { *a.o_row(0, 5, 2) += 0.01f; }},
      {"a NaN in O", [](const Args& a) { a.o_row(0, 8, 3)[31] = std::nanf(""); }},
      {"an LSE", [](const Args& a) { *a.lse_entry(0, 3, 1) += 0.01f; }},
      {"an LSE to base 2", [](const Args& a) { *a.lse_entry(0, 3, 1) *= 1.442695f; }},
  };
  for (const Damage& damage : damages) {
    CAPTURE(damage.what);
    const Outcome outcome = run(chapter_with({damaged(host_kernel("broken"), damage.done), host_kernel("plain")}), {});
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.err, ContainsText("testing: broken (CPU): wrong"));
    CHECK_THAT(outcome.out, ContainsText("wrong"));
    CHECK_THAT(outcome.out, ContainsText("plain (CPU): plain attention"));
  }
}

TEST_CASE("Output that a kernel leaves unwritten is wrong", "[stage]") {
  auto idle = host_kernel("idle");
  idle.run = [](const Args&, void*) {};
  CHECK(run(chapter_with({idle}), {}).code == 1);
}

TEST_CASE("A write outside O or LSE is reported", "[stage]") {
  const auto report = [](std::function<void(const Args&)> damage) {
    const Outcome outcome = run(chapter_with({damaged(host_kernel("broken"), std::move(damage))}), {});
    CHECK(outcome.code == 1);
    return outcome.err;
  };
  CHECK_THAT(report([](const Args& a) { a.o_gmem[-1] = 0; }), ContainsText("wrote before the first element of O"));
  CHECK_THAT(report([](const Args& a) { a.o_row(0, 8, 3)[32] = 0; }), ContainsText("wrote past the last element of O"));
  CHECK_THAT(report([](const Args& a) { a.lse_gmem[-64] = 0; }), ContainsText("wrote before the first element of LSE"));
  CHECK_THAT(report([](const Args& a) { a.lse_gmem[36] = 0; }), ContainsText("wrote past the last element of LSE"));
}

TEST_CASE("The workspace arrives poisoned and as large as asked", "[stage]") {
  for (const auto memory : {stage::Memory::host, stage::Memory::device}) {
    auto kernel = memory == stage::Memory::host ? host_kernel("scratch") : device_kernel("scratch");
    kernel.workspace_bytes = [](const attention::Problem&) { return std::size_t{1000}; };
    bool poisoned = false;
    kernel.run = [&, run = kernel.run](const Args& args, void* workspace) {
      std::vector<unsigned char> bytes(1000);
      if (memory == stage::Memory::host) {
        std::copy_n(static_cast<unsigned char*>(workspace), 1000, bytes.begin());
      } else {
        gpu::copy_to_host(bytes.data(), workspace, 1000);
      }
      poisoned = bytes == std::vector<unsigned char>(1000, 0xFF);
      run(args, workspace);
    };
    CHECK(run(chapter_with({kernel}), {}).code == 0);
    CHECK(poisoned);
  }
}

TEST_CASE("A device error is a row of its own, and the next kernel still runs", "[stage]") {
  auto failing = host_kernel("failing");
  failing.run = [](const Args&, void*) { throw gpu::Error("softmax.cuh:41: a barrier is missing\n  thread 3"); };
  const Outcome outcome = run(chapter_with({failing, host_kernel("plain")}), {});
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err,
             ContainsText("testing: failing (CPU): failed: softmax.cuh:41: a barrier is missing\n  thread 3"));
  CHECK_THAT(outcome.out, ContainsText("failed"));
  CHECK_THAT(outcome.out, ContainsText("right"));
}

TEST_CASE("A device error in a section gives exit code 1", "[stage]") {
  auto chapter = chapter_with({});
  chapter.sections = {{"Fails", [](stage::Program&) { throw gpu::Error("the device is gone"); }}};
  const Outcome outcome = run(chapter, {});
  CHECK(outcome.code == 1);
  CHECK(outcome.err == "testing: the device is gone\n");
}

TEST_CASE("A section's complaint gives exit code 1", "[stage]") {
  auto chapter = chapter_with({});
  chapter.sections = {{"Complains", [](stage::Program& program) { program.fail("a ceiling is too low"); }}};
  const Outcome outcome = run(chapter, {});
  CHECK(outcome.code == 1);
  CHECK(outcome.err == "testing: a ceiling is too low\n");
}

TEST_CASE("A refusal is a row among others and exit code 2 alone", "[stage]") {
  const std::string sentence = "picky does not take head_dim 48; allowed: 32, 64, 128";
  const Outcome among = run(chapter_with({refusing("picky"), host_kernel("plain")}), {"--head-dim", "48"});
  CHECK(among.code == 0);
  CHECK_THAT(among.out, ContainsText("refused"));
  CHECK_THAT(among.out, ContainsText("picky (CPU): refused: " + sentence + "\n"));

  for (const Outcome& alone :
       {run(chapter_with({refusing("picky")}), {"--head-dim", "48"}),
        run(chapter_with({host_kernel("plain"), refusing("picky")}), {"--head-dim", "48", "--kernel", "picky"}),
        run(chapter_with({refusing("picky"), refusing("choosy")}), {"--head-dim", "48"})}) {
    CHECK(alone.code == 2);
    CHECK(alone.out == "");
    CHECK(alone.err == "testing: " + sentence + "\n");
  }
}

TEST_CASE("A kernel whose workspace does not fit is refused with the bytes", "[stage]") {
  for (const char* memory : {"host", "device"}) {
    auto greedy = std::string(memory) == "host" ? host_kernel("greedy") : device_kernel("greedy");
    greedy.workspace_bytes = [](const attention::Problem&) { return std::size_t{1} << 60; };
    const Outcome outcome = run(chapter_with({greedy}), {});
    CHECK(outcome.code == 2);
    CHECK(outcome.out == "");
    CHECK(lines(outcome.err) == 1);
    CHECK_THAT(outcome.err, ContainsText("greedy needs 11529215046"));
    CHECK_THAT(outcome.err, ContainsText(std::string("of ") + memory + " memory; allowed: the "));
  }
}

TEST_CASE("Counts that are not the model's fail in the checking build", "[stage]") {
  auto kernel = device_kernel("miscounted");
  kernel.traffic = [](const attention::Problem&) { return attention::Traffic{400, 16}; };
  const Outcome outcome = run(chapter_with({kernel}), {});
  if (gpu::device().checked) {
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.err, ContainsText("miscounted: 0 bytes loaded and 0 stored were counted, 400 and 16 predicted"));
  } else {
    CHECK(outcome.code == 0);
  }
}

TEST_CASE("--without must name a synchronisation that the run passed", "[stage]") {
  if (!gpu::device().emulated) return;
  TemporaryFolder folder;
  const Outcome outcome =
      run(chapter_with({host_kernel("plain")}), {"--without", "softmax.cuh:41", "--json", folder.file("results.json")});
  CHECK(outcome.code == 2);
  CHECK(lines(outcome.err) == 1);
  CHECK_THAT(outcome.err,
             ContainsText("--without softmax.cuh:41 is no synchronisation that this run passed; allowed: "));
  CHECK(folder.names().empty());
}

TEST_CASE("The emulator's options hold for the run and no longer", "[stage]") {
  if (!gpu::device().emulated) return;
  gpu::EmulatorOptions during;
  auto chapter = chapter_with({});
  chapter.sections = {{"Looks", [&](stage::Program&) { during = gpu::emulator_options(); }}};
  const auto before = gpu::emulator_options();
  CHECK(run(chapter, {"--schedule-seed", "7", "--delivery", "immediately", "--workers", "1"}).code == 0);
  CHECK(during.schedule_seed == 7);
  CHECK(during.delivery == gpu::Delivery::immediately);
  CHECK(during.workers == 1);
  CHECK(gpu::emulator_options().schedule_seed == before.schedule_seed);
  CHECK(gpu::emulator_options().workers == before.workers);
}

TEST_CASE("The JSON holds machine, problem, rows, figures and tables", "[stage]") {
  TemporaryFolder folder;
  auto chapter = chapter_with({host_kernel("plain"), device_kernel("copied")});
  chapter.sections = {{"Figures", [](stage::Program& program) {
                         program.figure("bytes_per_second", 4.5e12);
                         program.figure("undefined", std::numeric_limits<double>::infinity());
                         program.figure("measured", 3e9, {0.002, 0.0021}, 6e6);
                         program.table("sizes", {"N", "bytes"}, {{"1", "2"}, {"3", "4"}});
                       }}};
  const std::string path = folder.file("results.json");
  write(path, "an older run's");
  CHECK(run(chapter, {"--json", path, "--causal"}).code == 0);
  CHECK(folder.names() == std::vector<std::string>{"results.json"});

  const auto json = nlohmann::json::parse(read(path));
  CHECK(json["chapter"]["number"] == "07");
  CHECK(json["chapter"]["name"] == "testing");
  CHECK(json["machine"]["name"] == gpu::device().name);
  CHECK(json["problem"]["seqlen_kv"] == 12);
  CHECK(json["problem"]["window_left"] == "inf");
  CHECK(json["problem"]["window_right"] == 0);
  CHECK(json["right"] == true);
  REQUIRE(json["rows"].size() == 2);
  CHECK(json["rows"][0]["kernel"] == "plain (CPU)");
  CHECK(json["rows"][0]["verdict"] == "right");
  CHECK(json["rows"][0]["seconds"].is_null());
  CHECK(json["rows"][1]["bytes_predicted"] == 0);
  CHECK(json["rows"][1]["peak_bytes"].get<double>() > 0);
  CHECK(json["figures"]["bytes_per_second"] == 4.5e12);
  CHECK(json["figures"]["undefined"].is_null());
  CHECK(json["figures"]["measured"] == 3e9);
  CHECK(json["figure_samples"]["measured"]["work"] == 6e6);
  CHECK(json["figure_samples"]["measured"]["seconds"] == std::vector<double>{0.002, 0.0021});
  CHECK(json["figure_samples"].size() == 1);
  CHECK(json["tables"]["sizes"]["rows"][1][0] == "3");

  const std::string first = read(path);
  CHECK(run(chapter, {"--json", path, "--causal"}).code == 0);
  CHECK(read(path) == first);
}

TEST_CASE("--json - prints JSON and nothing else", "[stage]") {
  auto chapter = chapter_with({host_kernel("plain")});
  chapter.sections = {{"Talks", [](stage::Program& program) { program.say("Not in the JSON."); }}};
  const Outcome outcome = run(chapter, {"--json", "-"});
  CHECK(outcome.code == 0);
  CHECK(outcome.err == "");
  CHECK(nlohmann::json::parse(outcome.out)["rows"].size() == 1);
}

TEST_CASE("A wrong result is in the JSON as wrong", "[stage]") {
  const auto broken = damaged(host_kernel("broken"), [](const Args& a) { a.o_gmem[0] = std::nanf(""); });
  const Outcome outcome = run(chapter_with({broken}), {"--json", "-"});
  CHECK(outcome.code == 1);
  const auto json = nlohmann::json::parse(outcome.out);
  CHECK(json["right"] == false);
  CHECK(json["rows"][0]["right"] == false);
  CHECK(json["rows"][0]["error"].is_null());  // infinite
}

TEST_CASE("The JSON follows a symbolic link instead of replacing it", "[stage]") {
  TemporaryFolder folder;
  write(folder.file("target.json"), "old");
  std::filesystem::create_symlink("target.json", folder.file("link.json"));
  CHECK(run(chapter_with({host_kernel("plain")}), {"--json", folder.file("link.json")}).code == 0);
  CHECK(std::filesystem::is_symlink(folder.file("link.json")));
  CHECK(read(folder.file("target.json")).starts_with("{"));
}

TEST_CASE("Problems with no query or no key run", "[stage][C01]") {
  CHECK(run(chapter_with({host_kernel("plain")}), {"--seqlen-q", "0"}).code == 0);
  CHECK(run(chapter_with({host_kernel("plain")}), {"--seqlen-kv", "0"}).code == 0);
  CHECK(run(chapter_with({host_kernel("plain")}), {"--seqlen-q", "20", "--seqlen-kv", "3", "--causal"}).code == 0);
}

TEST_CASE("--bench on a GPU times each kernel", "[stage]") {
  if (gpu::device().emulated) return;
  const Outcome outcome =
      run(chapter_with({host_kernel("plain"), device_kernel("copied")}), {"--bench", "--json", "-"});
  CHECK(outcome.code == 0);
  for (const auto& row : nlohmann::json::parse(outcome.out)["rows"]) {
    CHECK(row["samples"].size() >= 20);
    CHECK(row["seconds"].get<double>() > 0);
  }
}

TEST_CASE("--bench on a GPU takes peers and further problems in", "[stage]") {
  if (gpu::device().emulated) return;
  auto chapter = chapter_with({device_kernel("copied"), device_kernel("again")});
  attention::Problem& p = chapter.gpu_problem;
  p.heads_kv = p.heads_q;
  p.seqlen_q = p.seqlen_kv = 64;
  chapter.peers = {"pytorch_efficient_fp32", "pytorch_math_fp32"};
  chapter.bench_problems = {p, p};
  chapter.bench_problems[1].mask = attention::Mask::causal();
  TemporaryFolder folder;
  const Outcome outcome = run(chapter, {"--bench", "--json", folder.file("results.json")});
  CHECK(outcome.code == 0);
  const auto json = nlohmann::json::parse(read(folder.file("results.json")));
  const bool peers = outcome.out.find("No peers: ") == std::string::npos;
  REQUIRE(json["rows"].size() == (peers ? 4 : 2));
  CHECK(json["rows"][0]["samples"].size() >= 40);
  CHECK(json["rows"][1]["step_before"]["median"].get<double>() > 0);
  CHECK(json["rows"][1]["best_peer"].is_null() != peers);
  REQUIRE(json["grid"].size() == 2);
  CHECK(json["grid"][1]["problem"]["window_right"] == 0);
  CHECK(json["grid"][1]["rows"][1]["samples"].size() >= 40);
  CHECK_THAT(outcome.out, ContainsText("causal"));
  CHECK(json["tables"]["grid"]["rows"].size() == (peers ? 3 : 2));

  // One problem that was asked for is the only one.
  CHECK(run(chapter, {"--bench", "--seqlen-q", "65", "--json", folder.file("one.json")}).code == 0);
  CHECK_FALSE(nlohmann::json::parse(read(folder.file("one.json"))).contains("grid"));
}

TEST_CASE("--bench on a GPU in 16 bits leaves peers of other types out", "[stage][types]") {
  if (gpu::device().emulated) return;
  auto chapter = chapter_with({device_kernel_in_16_bits("threads")});
  attention::Problem& p = chapter.gpu_problem;
  p.heads_kv = p.heads_q;
  p.seqlen_q = p.seqlen_kv = 64;
  p.element_type = attention::ElementType::bf16;
  chapter.peers = {"pytorch_flash_bf16", "pytorch_cudnn_bf16", "pytorch_efficient_fp32"};
  chapter.bench_problems = {p};
  const auto measured = [&](const std::vector<std::string>& more, const std::string& sentence) {
    TemporaryFolder folder;
    std::vector<std::string> arguments = {"--bench", "--json", folder.file("results.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(chapter, arguments);
    CHECK(outcome.code == 0);
    if (outcome.out.find("No peers: ") == std::string::npos) CHECK_THAT(outcome.out, ContainsText(sentence));
    return nlohmann::json::parse(read(folder.file("results.json")));
  };
  const auto in_bf16 = measured({}, "Peers that take other elements than bf16 are left out: pytorch_efficient_fp32.");
  CHECK(in_bf16["grid"][0]["problem"]["dtype"] == "bf16");
  const auto in_fp16 = measured({"--dtype", "fp16"},
                                "Peers that take other elements than fp16 are left out: pytorch_flash_bf16, "
                                "pytorch_cudnn_bf16, pytorch_efficient_fp32.");
  REQUIRE(in_fp16["rows"].size() == 1);
  CHECK(in_fp16["rows"][0]["samples"].size() >= 40);
  CHECK(in_fp16["grid"][0]["problem"]["dtype"] == "fp16");  // its own kernels run all the same
  CHECK(in_fp16["grid"][0]["rows"].size() == 1);
}

TEST_CASE("A sample of rows catches what is wrong everywhere, and takes what is right", "[stage]") {
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
  auto plain = attention::plain_forward(p, inputs.q, inputs.k, inputs.v);
  const auto right = stage::ForwardSample(p, inputs).judge(plain.o, plain.lse);
  CHECK(right.right);
  CHECK(right.sentence == "right (sample of 64 rows)");
  CHECK(stage::ForwardSample(p, inputs).judge(plain.o, {}).right);  // of a peer that gives no LSE

  SECTION("a first visible key that is left out") {
    if (mask != attention::Mask::none()) return;
    attention::Problem shorter = p;  // keys 1 to 29
    shorter.seqlen_kv = p.seqlen_kv - 1;
    shorter.k_strides = p.strides_k();
    shorter.v_strides = p.strides_v();
    const auto first = static_cast<std::size_t>(p.strides_k().seq);
    const auto wrong = attention::plain_forward(shorter, inputs.q, std::span(inputs.k).subspan(first),
                                                std::span(inputs.v).subspan(first));
    CHECK_FALSE(stage::ForwardSample(p, inputs).judge(wrong.o, plain.lse).right);
    CHECK_FALSE(stage::ForwardSample(p, inputs).judge(plain.o, wrong.lse).right);
  }
  SECTION("heads that read the wrong keys") {
    attention::Inputs swapped = inputs;
    std::rotate(swapped.k.begin(), swapped.k.begin() + p.head_dim, swapped.k.end());
    const auto wrong = attention::plain_forward(p, swapped.q, swapped.k, swapped.v);
    const auto verdict = stage::ForwardSample(p, inputs).judge(wrong.o, wrong.lse);
    CHECK_FALSE(verdict.right);
    CHECK_THAT(verdict.sentence, ContainsText("wrong in a sample of 64 rows, worst at batch "));
    CHECK_FALSE(stage::ForwardSample(p, inputs).judge(wrong.o, {}).right);
  }
  SECTION("an LSE that is off everywhere") {
    for (float& l : plain.lse) l += 0.01f;
    CHECK_FALSE(stage::ForwardSample(p, inputs).judge(plain.o, plain.lse).right);
  }
  SECTION("NaN") {
    plain.o[0] = std::nanf("");
    CHECK_FALSE(stage::ForwardSample(p, inputs).judge(plain.o, plain.lse).right);
  }
}

TEST_CASE("A problem too long for the reference is sampled, and its unwritten rows are still found", "[stage]") {
  attention::Problem p;
  p.heads_q = p.heads_kv = 1;
  p.seqlen_q = 20000;
  p.seqlen_kv = 20000;
  p.head_dim = 64;
  CHECK(stage::is_sampled(p));
  p.mask = attention::Mask::window(3, 0);
  CHECK_FALSE(stage::is_sampled(p));

  p.mask = attention::Mask::none();
  p.head_dim = 1;
  p.heads_q = p.heads_kv = 64;
  p.softmax_scale = 0.0f;
  REQUIRE(stage::is_sampled(p));
  stage::ForwardCase forward(p, 1);
  // With a scale of 0 every row is the average of V and LSE = ln N: right without running 20000² products.
  std::vector<float> o(static_cast<std::size_t>(p.elements_o()));
  std::vector<float> lse(static_cast<std::size_t>(p.elements_lse()), static_cast<float>(std::log(20000.0)));
  for (int h = 0; h < p.heads_q; ++h) {
    double sum = 0;
    for (int j = 0; j < p.seqlen_kv; ++j)
      sum += double{forward.inputs().v[static_cast<std::size_t>(j * p.heads_kv + h)]};
    for (int i = 0; i < p.seqlen_q; ++i) {
      o[static_cast<std::size_t>(i * p.heads_q + h)] = static_cast<float>(sum / p.seqlen_kv);
    }
  }
  const auto right = forward.judge(o, lse);
  CHECK(right.sentence == "right (sample of 64 rows)");
  o[777777] = std::nanf("");
  const auto unwritten = forward.judge(o, lse);
  CHECK_FALSE(unwritten.right);
  CHECK(unwritten.sentence == "wrong: batch 0, head 49, query 12152 is not finite");
}

TEST_CASE("The median of samples", "[stage]") {
  CHECK(stage::median({3, 1, 2}) == 2);
  CHECK(stage::median({4, 1, 3, 2}) == 2.5);
  CHECK(std::isnan(stage::median({})));
}

TEST_CASE("The roof is that of the machine's datasheet, and absent for others", "[stage]") {
  attention::Problem p;
  p.seqlen_q = p.seqlen_kv = 4096;
  p.head_dim = 64;
  gpu::DeviceInfo device;
  device.memory_total = 140'000'000'000;
  device.name = "NVIDIA H200";
  REQUIRE(stage::roof(device, p).has_value());
  for (const attention::Machine& machine : attention::known_machines()) {
    if (std::string(machine.name) == "H200") CHECK(*stage::roof(device, p) == machine.fp32_flops);
  }
  p.seqlen_q = 1;  // a row of scores: memory is the limit
  CHECK(*stage::roof(device, p) < 10e12);
  for (const char* name :
       {"emulator", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA A1000", "NVIDIA H200 MIG 1g.18gb"}) {
    device.name = name;
    CHECK_FALSE(stage::roof(device, p).has_value());
  }
}
