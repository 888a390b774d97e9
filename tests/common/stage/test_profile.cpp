/// \file
/// ncu's CSV, the names of kernels, and what the profile says about the figures. All figures here are made up.

#include <map>
#include <set>
#include <string>

#include "common/stage/command_line.hpp"
#include "common/stage/ncu_csv.hpp"
#include "common/stage/profile.hpp"
#include "tests/catch.hpp"

namespace {

using stage::judge_launch;
using stage::KernelKind;
using stage::NcuLaunch;
using stage::normal_kernel_name;
using stage::parse_ncu_csv;

constexpr const char* kDram = "dram__throughput.avg.pct_of_peak_sustained_elapsed";
constexpr const char* kL2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed";
constexpr const char* kL1 = "l1tex__throughput.avg.pct_of_peak_sustained_elapsed";
constexpr const char* kFma = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active";
constexpr const char* kTensor = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active";
constexpr const char* kTensorInstructions = "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active";
constexpr const char* kSectors = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum";
constexpr const char* kRequests = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum";
constexpr const char* kDuration = "gpu__time_duration.sum";

/// As ncu --csv --page raw --log-file writes it, with its messages around it.
constexpr const char* kCsv =
    "a table that the program printed, \"with, commas\"\n"
    "==PROF== Connected to process 42 (/book/build/cuda/chapters/02_naive_gpu)\n"
    "==PROF== Profiling \"scores_kernel\" - 0: 0%....50%....100% - 11 passes\n"
    "\"ID\",\"Process ID\",\"Kernel Name\",\"Block Size\",\"gpu__time_duration.sum\",\"dram__bytes_read.sum\","
    "\"launch__registers_per_thread\",\"lts__t_bytes.sum\"\n"
    "\"\",\"\",\"\",\"\",\"ns\",\"Mbyte\",\"register/thread\",\"byte\"\n"
    "\"0\",\"42\",\"void scores_kernel<64>(ForwardArgs<float>, float *, int)\",\"(128, 1, 1)\",\"5,160,000\",\"42.5\","
    "\"96\",\"n/a\"\n"
    "==WARNING== Data collection happened without fixed GPU frequencies.\n"
    "\"1\",\"42\",\"say \"\"hello\"\"(int, int)\",\"(1,024, 1, 1)\",\"7\",\"0\",\"(!) n/a\",\"12\"\r\n";

std::string verdict(const NcuLaunch& launch, const std::string& name) {
  for (const auto& metric : judge_launch(launch)) {
    if (metric.name == name) return metric.verdict;
  }
  return "no such metric";
}

std::string value(const NcuLaunch& launch, const std::string& name) {
  for (const auto& metric : judge_launch(launch)) {
    if (metric.name == name) return metric.value;
  }
  return "no such metric";
}

NcuLaunch launch_with(std::map<std::string, double> metrics) { return {.kernel = "f", .metrics = std::move(metrics)}; }

}  // namespace

TEST_CASE("ncu's CSV is read a row a launch", "[stage]") {
  const auto launches = parse_ncu_csv(kCsv, "a.csv");
  REQUIRE(launches.size() == 2);
  CHECK(launches[0].kernel == "void scores_kernel<64>(ForwardArgs<float>, float *, int)");
  CHECK(launches[0].value("gpu__time_duration.sum").value() == 5160000 * 1e-9);
  CHECK(launches[0].value("dram__bytes_read.sum").value() == 42.5e6);
  CHECK(launches[0].value("launch__registers_per_thread").value() == 96);
  CHECK(!launches[0].value("lts__t_bytes.sum"));
  CHECK(!launches[0].value("never_asked__for.sum"));
  CHECK(launches[1].kernel == "say \"hello\"(int, int)");
  CHECK(!launches[1].value("launch__registers_per_thread"));
  CHECK(launches[1].value("lts__t_bytes.sum").value() == 12);
  CHECK(launches[1].metrics.count("Block Size") == 0);
}

TEST_CASE("ncu's CSV is read a row a metric, too", "[stage]") {
  const auto launches = parse_ncu_csv(
      "\"ID\",\"Kernel Name\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\",\"Rule Name\"\n"
      "\"0\",\"f(int)\",\"s\",\"a__b.sum\",\"Kbyte\",\"1,234.5\"\n"
      "\"0\",\"f(int)\",\"s\",\"a__c.sum\",\"\",\"n/a\",\"\"\n"
      "\"1\",\"f(int)\",\"s\",\"a__b.sum\",\"byte\",\"2\",\n",
      "a.csv");
  REQUIRE(launches.size() == 2);
  CHECK(launches[0].value("a__b.sum").value() == 1234500);
  CHECK(!launches[0].value("a__c.sum"));
  CHECK(launches[1].value("a__b.sum").value() == 2);
}

TEST_CASE("What is no CSV of ncu is refused", "[stage]") {
  CHECK(parse_ncu_csv("==WARNING== No kernels were profiled.\n", "a.csv").empty());
  CHECK_THROWS_AS(parse_ncu_csv("", "a.csv"), stage::BadArgument);
  CHECK_THROWS_WITH(parse_ncu_csv("==ERROR== no\nwords\n", "a.csv"), ContainsText("'a.csv' has no header"));
  CHECK_THROWS_WITH(parse_ncu_csv("\"ID\",\"Kernel Name\",\"a__b.sum\"\n\"\",\"\",\"\"\n\"0\",\"f(i\n", "a.csv"),
                    ContainsText("a row of 2 cells below a header of 3"));
}

TEST_CASE("A kernel has one name, whoever writes it", "[stage]") {
  const auto check = [](const std::string& name, const std::string& wanted) {
    CAPTURE(name);
    CHECK(normal_kernel_name(name) == wanted);
    CHECK(normal_kernel_name(wanted) == wanted);
  };
  check("void naive_gpu::scores_kernel<(int)64>(attention::ForwardArgs<float>, float *, int, int)",
        "scores_kernel<64>");
  check("void scores_kernel<64>(ForwardArgs<float>, float *, int, int)", "scores_kernel<64>");
  check("row_sum(const float *, float *, long, long)", "row_sum");
  check("first_kernel::row_sum(float const*, float*, long, long)", "row_sum");
  check("void a::b::f<(int)64,(int)-1, (bool)1, (bool)0>(void)", "f<64, -1, 1, 0>");
  check("f<BackwardTile<64>, true, false>(int)", "f<BackwardTile<64>, 1, 0>");
  check("void f<(unsigned long)128, (a::Mask)2, 3ul>(int)", "f<128, 2, 3>");
  check("void a::f<a::Tile<(int)64, (int)32> >(a::Args<float>)", "f<Tile<64, 32>>");
  check("void (anonymous namespace)::f<float>(float)", "f<float>");
  check("void <unnamed>::f<unsigned int>(float)", "f<unsigned int>");
  check("f", "f");
}

TEST_CASE("A kernel's kind is told by its busiest unit", "[stage]") {
  CHECK(stage::kernel_kind(launch_with({{kDram, 30}, {kL2, 60}, {kFma, 50}, {kTensor, 10}})) == KernelKind::memory);
  CHECK(stage::kernel_kind(launch_with({{kDram, 30}, {kL2, 20}, {kFma, 50}, {kTensor, 10}})) == KernelKind::fp32);
  CHECK(stage::kernel_kind(launch_with({{kDram, 30}, {kL2, 20}, {kFma, 5}, {kTensor, 40}})) == KernelKind::tensor);
  CHECK(stage::kernel_kind(launch_with({{kFma, 5}, {kTensorInstructions, 40}})) == KernelKind::tensor);
  // Where cycles are counted, they say more than instructions.
  CHECK(stage::kernel_kind(launch_with({{kFma, 5}, {kTensor, 4}, {kTensorInstructions, 40}})) == KernelKind::fp32);
  CHECK(stage::kernel_kind({}) == KernelKind::memory);
}

TEST_CASE("Memory's threshold holds for the busier memory of a memory-bound kernel", "[stage]") {
  const auto check = [](double dram, double l2, double fma, const std::string& of_dram, const std::string& of_l2) {
    const NcuLaunch launch = launch_with({{kDram, dram}, {kL2, l2}, {kFma, fma}});
    CHECK(verdict(launch, "device memory") == of_dram);
    CHECK(verdict(launch, "L2 cache") == of_l2);
  };
  check(80, 50, 10, "reached", "for information");
  check(79.9, 50, 10, "below", "for information");
  check(75, 84, 10, "for information", "reached");
  check(30, 40, 90, "for information", "for information");
  CHECK(verdict({}, "device memory") == "for information");
}

TEST_CASE("The tensor cores' threshold holds for kernels that live by them", "[stage]") {
  CHECK(verdict(launch_with({{kTensor, 70}}), "tensor pipe") == "reached");
  CHECK(verdict(launch_with({{kTensor, 69}}), "tensor pipe") == "below");
  CHECK(verdict(launch_with({{kTensor, 20}, {kFma, 30}}), "tensor pipe") == "for information");
}

TEST_CASE("Sectors, conflicts, occupancy and spills have a threshold for every kernel", "[stage]") {
  const auto sectors = [](double each) {
    return verdict(launch_with({{kRequests, 1000}, {kSectors, each * 1000}}), "sectors a load");
  };
  CHECK(sectors(1) == "reached");
  CHECK(sectors(4) == "reached");
  CHECK(sectors(4.1) == "reached for float4 only");
  CHECK(sectors(16) == "reached for float4 only");
  CHECK(sectors(17) == "above");
  CHECK(verdict(launch_with({{kRequests, 0}, {kSectors, 0}}), "sectors a load") == "for information");
  CHECK(value(launch_with({{kRequests, 1000}, {kSectors, 4000}}), "sectors a load") == "4.00");

  const auto conflicts = [](double count) {
    return verdict(launch_with({{"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum", count},
                                {"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum", 1000}}),
                   "bank conflicts, stores");
  };
  CHECK(conflicts(0) == "reached");
  CHECK(conflicts(10) == "reached");
  CHECK(conflicts(11) == "above");

  const auto occupancy = [](double achieved) {
    return verdict(launch_with({{"sm__warps_active.avg.pct_of_peak_sustained_active", achieved},
                                {"sm__maximum_warps_per_active_cycle_pct", 50}}),
                   "occupancy");
  };
  CHECK(occupancy(40) == "reached");
  CHECK(occupancy(39) == "below");

  const auto spills = [](double loads) {
    return verdict(launch_with({{"smsp__sass_inst_executed_op_local_ld.sum", loads}}), "spills");
  };
  CHECK(spills(0) == "reached");
  CHECK(spills(1) == "above");
}

TEST_CASE("Every metric that is judged is asked for", "[stage]") {
  const auto& metrics = stage::profile_metrics();
  NcuLaunch launch;
  double next = 1;
  for (const std::string& metric : metrics) launch.metrics[metric] = next++;
  CHECK(std::set<std::string>(metrics.begin(), metrics.end()).size() == metrics.size());
  for (const auto& metric : judge_launch(launch)) {
    CAPTURE(metric.name);
    CHECK(metric.value != "-");
    CHECK(metric.value.find("- ") == std::string::npos);
    CHECK(metric.meaning != "");
  }
  for (const auto& metric : judge_launch({})) {
    CAPTURE(metric.name);
    CHECK(metric.value == "-");
    CHECK(metric.verdict == "for information");
  }
}

TEST_CASE("The report has a table a kernel, of its longest launch", "[stage]") {
  NcuLaunch first = launch_with({{kDuration, 1e-3}, {kDram, 10}}), longer = launch_with({{kDuration, 2e-3}, {kL1, 50}});
  first.kernel = "void a::f<(int)64>(int)";
  longer.kernel = "f<64>";
  NcuLaunch other = first;
  other.kernel = "void a::f<(int)32>(int)";
  const std::string report = stage::profile_report({first, other, longer});
  CHECK_THAT(report, ContainsText("f<64>, the longest of 2 launches\n"));
  CHECK_THAT(report, ContainsText("\nf<32>\n"));
  CHECK(report.find("f<64>") < report.find("f<32>"));
  CHECK_THAT(report, ContainsText("2.000 ms"));
  CHECK_THAT(report, ContainsText("L1 and shared memory are busier still (50.0 %)"));
  CHECK_THAT(report, ContainsText("What the metrics say"));
  CHECK(stage::profile_report({}) == "No kernel ran on the GPU.\n");
}
