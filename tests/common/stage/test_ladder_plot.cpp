/// \file
/// The data that the ladder's plot shows. All figures here are made up.

#include "common/stage/ladder_plot.hpp"
#include "tests/catch.hpp"

namespace {

const std::string kHashA(64, 'a'), kHashB(64, 'b');

stage::Row row(const std::string& kernel, double teraflops) {
  stage::Row row;
  row.kernel = kernel;
  row.flops = 1e12;
  row.seconds = 1 / teraflops;
  return row;
}

stage::MeasuredMachine machine() {
  stage::MeasuredMachine measured;
  stage::Measurement measurement;
  measurement.machine.name = "NVIDIA Test";
  measurement.machine.driver = "1.2";
  measurement.machine.cuda = "13.0";
  measurement.date = "2001-02-04";
  stage::MeasuredChapter ceilings{
      .folder = "00_first_kernel", .step = {}, .hashes = {{"a.cuh", kHashA}}, .measurement = measurement};
  ceilings.step.figures["fp32_flops_per_second"] = 64.9e12;
  measurement.date = "2001-02-03";
  stage::MeasuredChapter chapter{
      .folder = "02_naive_gpu", .step = {}, .hashes = {{"a.cuh", kHashA}}, .measurement = measurement};
  chapter.step.chapter = "02 naive_gpu";
  chapter.step.problem = "batch 1";
  stage::Row peer = row("a_peer", 9), wrong = row("a_wrong_one", 8), untimed = row("an_untimed_one", 7);
  peer.is_peer = true;
  wrong.right = false;
  untimed.seconds = std::nullopt;
  chapter.step.rows = {row("say \"three\"", 5.25), peer, wrong, untimed, row("step_2", 0.5)};
  measured.chapters = {ceilings, chapter};
  return measured;
}

stage::KernelHashes present(const std::string& hash) {
  return {{"00_first_kernel", {{"a.cuh", kHashA}}}, {"02_naive_gpu", {{"a.cuh", hash}}}};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("The plot has a bar for each right and timed kernel, in the ladder's order", "[stage]") {
  const std::string script = stage::ladder_plot({machine()}, present(kHashA));
  CHECK_THAT(script, ContainsText("set label \"02 naive_gpu\" at graph 0.005, first 1 "));
  CHECK_THAT(script, ContainsText("$bars1 << END\n2 5.25 0x4c78a8 \"5.25\"\n3 0.5 0x4c78a8 \"0.500\"\nEND\n"));
  CHECK_THAT(script, ContainsText("set ytics (\"say \\\"three\\\"\" 2, \"step_2\" 3)"));
  CHECK_THAT(script, ContainsText("fp32 ceiling 64.9"));
  CHECK_THAT(script, ContainsText("NVIDIA Test, driver 1.2, CUDA 13.0; 2001-02-03 … 2001-02-04"));
  CHECK_THAT(script, ContainsText("set xrange [0.1:100]"));
  CHECK(!contains(script, "a_peer"));
  CHECK(!contains(script, "a_wrong_one"));
  CHECK(!contains(script, "an_untimed_one"));
  CHECK(!contains(script, "stale"));
  CHECK(script == stage::ladder_plot({machine()}, present(kHashA)));
}

TEST_CASE("The plot names element types other than fp32", "[stage][types]") {
  stage::MeasuredMachine measured = machine();
  measured.chapters[1].step.element_type = attention::ElementType::fp16;
  const std::string script = stage::ladder_plot({measured}, present(kHashA));
  CHECK_THAT(script, ContainsText("set label \"02 naive_gpu, fp16\" at "));
}

TEST_CASE("The plot's script changes with what it shows", "[stage]") {
  const std::string script = stage::ladder_plot({machine()}, present(kHashA));
  CHECK_THAT(stage::ladder_plot({machine()}, present(kHashB)), ContainsText("2 5.25 0xc8c8c8"));
  CHECK_THAT(stage::ladder_plot({machine()}, present(kHashB)), ContainsText("02 naive_gpu (stale)"));
  stage::MeasuredMachine faster = machine();
  faster.chapters[1].step.rows[0].seconds = 0.1;
  CHECK(stage::ladder_plot({faster}, present(kHashA)) != script);
  faster = machine();
  faster.chapters[0].step.figures.clear();
  CHECK(!contains(stage::ladder_plot({faster}, present(kHashA)), "ceiling"));
}

TEST_CASE("Each GPU has a panel, and what measured nothing has none", "[stage]") {
  const std::string two = stage::ladder_plot({machine(), machine()}, present(kHashA));
  CHECK_THAT(two, ContainsText("$bars2 << END"));
  CHECK_THAT(two, ContainsText("set origin 0,0.5"));
  stage::MeasuredMachine empty = machine();
  empty.chapters.pop_back();
  CHECK(stage::ladder_plot({empty}, present(kHashA)) == "");
  CHECK(stage::ladder_plot({stage::MeasuredMachine{}}, present(kHashA)) == "");
  CHECK(stage::ladder_plot({}, {}) == "");
}

TEST_CASE("Backward kernels have a panel of their own below", "[stage][backward]") {
  stage::MeasuredMachine measured = machine();
  stage::Row gradients = row("gradients", 2);
  gradients.pass = stage::Pass::backward;
  measured.chapters[1].step.rows.push_back(gradients);
  const std::string script = stage::ladder_plot({measured}, present(kHashA));
  CHECK_THAT(script, ContainsText("$bars1 << END\n2 5.25 0x4c78a8 \"5.25\"\n3 0.5 0x4c78a8 \"0.500\"\nEND\n"));
  CHECK_THAT(script, ContainsText("$bars2 << END\n2 2 0x4c78a8 \"2.00\"\nEND\n"));
  CHECK_THAT(script, ContainsText("set title \"Backward: NVIDIA Test, "));
  CHECK_FALSE(contains(stage::ladder_plot({machine()}, present(kHashA)), "Backward"));
}
