#include "common/stage/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>

#include "common/attention/cost.hpp"
#include "common/stage/command_line.hpp"
#include "common/stage/table.hpp"

namespace stage {
namespace {

using Value = std::optional<double>;

constexpr const char* kUsage =
    "profile metrics\n"
    "  Prints the metrics that ncu is to measure, with commas between them.\n"
    "\n"
    "profile report FILE\n"
    "  Prints what ncu --csv --page raw --log-file FILE measured, a table a kernel.\n";

// Names of compute capability 8.0 to 9.0, by NVIDIA's Nsight Compute documentation, "Metrics Reference".
constexpr const char* kDuration = "gpu__time_duration.sum";
constexpr const char* kDram = "dram__throughput.avg.pct_of_peak_sustained_elapsed";
constexpr const char* kL2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed";
constexpr const char* kL1 = "l1tex__throughput.avg.pct_of_peak_sustained_elapsed";
constexpr const char* kFma = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active";
constexpr const char* kTensorCycles = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active";
constexpr const char* kTensorInstructions = "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active";
constexpr const char* kLoadSectors = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum";
constexpr const char* kLoadRequests = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum";
constexpr const char* kStoreSectors = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum";
constexpr const char* kStoreRequests = "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum";
constexpr const char* kL1Hits = "l1tex__t_sector_hit_rate.pct";
constexpr const char* kLoadConflicts = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum";
constexpr const char* kLoadWavefronts = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum";
constexpr const char* kStoreConflicts = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum";
constexpr const char* kStoreWavefronts = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum";
constexpr const char* kOccupancy = "sm__warps_active.avg.pct_of_peak_sustained_active";
constexpr const char* kOccupancyLimit = "sm__maximum_warps_per_active_cycle_pct";
constexpr const char* kRegisters = "launch__registers_per_thread";
constexpr const char* kSpillLoads = "smsp__sass_inst_executed_op_local_ld.sum";
constexpr const char* kSpillStores = "smsp__sass_inst_executed_op_local_st.sum";
constexpr const char* kDramRead = "dram__bytes_read.sum";
constexpr const char* kDramWritten = "dram__bytes_write.sum";
constexpr const char* kL2Bytes = "lts__t_bytes.sum";
constexpr const char* kL2ToL1 = "l1tex__m_xbar2l1tex_read_bytes.sum";
constexpr const char* kSharedMemory = "launch__shared_mem_per_block_dynamic";

constexpr double kMemoryThreshold = 80;     // per cent of the peak, of the busier of device memory and L2
constexpr double kTensorThreshold = 70;     // per cent of the peak
constexpr double kConflictThreshold = 1;    // per cent of the wavefronts: the counter also sees a little of other units
constexpr double kOccupancyThreshold = 80;  // per cent of what registers and shared memory allow
constexpr double kIdealSectors = 4;         // a warp's 32 neighbouring floats are 128 bytes, 4 sectors
constexpr double kMostSectors = 16;         // and its 32 neighbouring float4 are 512 bytes
constexpr double kRounding = 1.001;         // of a quotient of two counters

constexpr const char* kReached = "reached";
constexpr const char* kBelow = "below";
constexpr const char* kAbove = "above";
constexpr const char* kInformation = "for information";

Value tensor(const NcuLaunch& launch) {
  // On Hopper an instruction keeps the pipe busy for many cycles, so that cycles say more than instructions.
  const Value cycles = launch.value(kTensorCycles);
  return cycles ? cycles : launch.value(kTensorInstructions);
}

Value ratio(Value a, Value b) { return a && b && *b != 0 ? Value(*a / *b) : std::nullopt; }

std::string percent(Value value) { return value ? fmt::format("{:.1f} %", *value) : "-"; }
std::string bytes(Value value) { return value ? attention::format_bytes(*value) : "-"; }
std::string count(Value value) { return format_count_or_dash(value); }

ProfiledMetric information(const std::string& name, const std::string& value, const std::string& meaning) {
  return {name, value, "-", kInformation, meaning};
}

/// A metric with a threshold; without a value there is nothing to judge. `otherwise`: where it lies if not reached.
ProfiledMetric judged(const std::string& name, const std::string& value, const std::string& threshold, bool reached,
                      const char* otherwise, const std::string& meaning) {
  return {name, value, threshold, value == "-" ? kInformation : reached ? kReached : otherwise, meaning};
}

/// Device memory and L2: the busier one has to reach the threshold where the kernel is memory-bound.
ProfiledMetric memory_unit(const std::string& name, Value own, Value other, KernelKind kind,
                           const std::string& meaning) {
  const bool matters = kind == KernelKind::memory && own && (!other || *own >= *other);
  if (!matters) return information(name, percent(own), meaning);
  return judged(name, percent(own), fmt::format(">= {:.0f} %", kMemoryThreshold), *own >= kMemoryThreshold, kBelow,
                meaning);
}

ProfiledMetric sectors_per_request(const std::string& name, Value sectors, Value requests) {
  const Value each = ratio(sectors, requests);
  const std::string meaning =
      "pieces of 32 bytes an access of a warp touches: 1 for one float, 4 for 32 neighbours, 16 for 32 float4";
  if (!each) return information(name, "-", meaning);
  const std::string value = fmt::format("{:.2f}", *each), threshold = "<= 4; <= 16 for float4";
  if (*each > kIdealSectors * kRounding && *each <= kMostSectors * kRounding) {
    return {name, value, threshold, "reached for float4 only", meaning};
  }
  return judged(name, value, threshold, *each <= kMostSectors, kAbove, meaning);
}

ProfiledMetric bank_conflicts(const std::string& name, Value conflicts, Value wavefronts) {
  const Value share = ratio(conflicts, wavefronts);
  std::string value = count(conflicts);
  if (share) value += fmt::format(" ({:.1f} % of the wavefronts)", *share * 100);
  return judged(name, value, fmt::format("<= {:.0f} %", kConflictThreshold),
                share.value_or(0) * 100 <= kConflictThreshold, kAbove,
                "cycles in which one of the 32 banks had to answer the same access once more");
}

ProfiledMetric occupancy(Value achieved, Value possible) {
  const Value share = ratio(achieved, possible);
  const std::string value = achieved ? percent(achieved) + (possible ? " of " + percent(possible) : "") : "-";
  const std::string meaning =
      "warps at work, of what a multiprocessor holds; after 'of', what registers and shared memory allow";
  if (!share) return information("occupancy", value, meaning);
  return judged("occupancy", value, fmt::format(">= {:.0f} % of the possible", kOccupancyThreshold),
                *share * 100 >= kOccupancyThreshold, kBelow, meaning);
}

ProfiledMetric spills(Value loads, Value stores) {
  const std::string value = loads || stores ? fmt::format("{} loads, {} stores", count(loads), count(stores)) : "-";
  return judged("spills", value, "0", loads.value_or(0) + stores.value_or(0) == 0, kAbove,
                "accesses to local memory: values without a register, or arrays that are indexed at run time");
}

std::string sentence(KernelKind kind) {
  switch (kind) {
    case KernelKind::memory:
      return "memory-bound: device memory or L2 is busier than the arithmetic";
    case KernelKind::fp32:
      return "fp32: the multiply-add pipe is busier than device memory, L2 and the tensor cores";
    case KernelKind::tensor:
      return "tensor: the tensor cores are busier than device memory, L2 and the fp32 pipe";
  }
  return "";
}

/// The busiest share by which the kind was chosen.
double busiest(const NcuLaunch& launch) {
  double most = 0;
  for (const Value& share : {launch.value(kDram), launch.value(kL2), launch.value(kFma), tensor(launch)}) {
    most = std::max(most, share.value_or(0));
  }
  return most;
}

std::string kernel_report(const std::string& name, const NcuLaunch& longest, std::size_t launches) {
  std::string out = name;
  if (launches > 1) out += fmt::format(", the longest of {} launches", launches);
  out += "\n" + wrap(sentence(kernel_kind(longest))) + "\n";
  if (const Value l1 = longest.value(kL1); l1 && *l1 > busiest(longest)) {
    out += wrap(fmt::format("L1 and shared memory are busier still ({}): look there first", percent(l1))) + "\n";
  }
  std::vector<std::vector<std::string>> rows;
  for (const ProfiledMetric& metric : judge_launch(longest)) {
    rows.push_back({metric.name, metric.value, metric.threshold, metric.verdict});
  }
  return out + "\n" + layout_table({"metric", "value", "threshold", "verdict"}, rows);
}

/// Each metric explained, a line each.
std::string legend() {
  constexpr std::size_t kNameWidth = 24;
  std::string out = "What the metrics say (a dash: this GPU or this kernel has no such figure):\n";
  for (const ProfiledMetric& metric : judge_launch({})) {
    out += fmt::format("{:<{}}{}\n", metric.name, kNameWidth, wrap(metric.meaning, kNameWidth));
  }
  return out;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file || text.empty()) {
    throw BadArgument(fmt::format("'{}' cannot be read or is empty; allowed: what ncu --csv --log-file wrote", path));
  }
  return text;
}

}  // namespace

const std::vector<std::string>& profile_metrics() {
  static const std::vector<std::string> metrics = {kDuration,
                                                   kDram,
                                                   kL2,
                                                   kL1,
                                                   kFma,
                                                   kTensorCycles,
                                                   kTensorInstructions,
                                                   kLoadSectors,
                                                   kLoadRequests,
                                                   kStoreSectors,
                                                   kStoreRequests,
                                                   kL1Hits,
                                                   kLoadConflicts,
                                                   kLoadWavefronts,
                                                   kStoreConflicts,
                                                   kStoreWavefronts,
                                                   kOccupancy,
                                                   kOccupancyLimit,
                                                   kRegisters,
                                                   kSpillLoads,
                                                   kSpillStores,
                                                   kDramRead,
                                                   kDramWritten,
                                                   kL2Bytes,
                                                   kL2ToL1,
                                                   kSharedMemory};
  return metrics;
}

KernelKind kernel_kind(const NcuLaunch& launch) {
  const double memory = std::max(launch.value(kDram).value_or(0), launch.value(kL2).value_or(0));
  const double fma = launch.value(kFma).value_or(0), matrix = tensor(launch).value_or(0);
  if (memory >= std::max(fma, matrix)) return KernelKind::memory;
  return matrix > fma ? KernelKind::tensor : KernelKind::fp32;
}

std::vector<ProfiledMetric> judge_launch(const NcuLaunch& launch) {
  const auto value = [&](const char* metric) { return launch.value(metric); };
  const KernelKind kind = kernel_kind(launch);
  const Value duration = value(kDuration), matrix = tensor(launch);

  std::vector<ProfiledMetric> report;
  report.push_back(information("duration", duration ? format_seconds(*duration) : "-",
                               "with empty caches and counters running; ./learn bench measures time as it is"));
  report.push_back(memory_unit("device memory", value(kDram), value(kL2), kind,
                               "share of the peak rate of the memory outside the chip"));
  report.push_back(memory_unit("L2 cache", value(kL2), value(kDram), kind,
                               "share of the peak rate of the cache that all multiprocessors share"));
  report.push_back(information("L1 and shared memory", percent(value(kL1)),
                               "share of the peak of the load unit, its cache and shared memory"));
  const std::string tensor_meaning = "share of the cycles in which the tensor cores multiply";
  if (kind == KernelKind::tensor) {
    report.push_back(judged("tensor pipe", percent(matrix), fmt::format(">= {:.0f} %", kTensorThreshold),
                            matrix.value_or(0) >= kTensorThreshold, kBelow, tensor_meaning));
  } else {
    report.push_back(information("tensor pipe", percent(matrix), tensor_meaning));
  }
  report.push_back(information("fp32 pipe", percent(value(kFma)), "share of the peak rate of fp32 multiply-adds"));
  report.push_back(sectors_per_request("sectors a load", value(kLoadSectors), value(kLoadRequests)));
  report.push_back(sectors_per_request("sectors a store", value(kStoreSectors), value(kStoreRequests)));
  report.push_back(information("L1 hit rate", percent(value(kL1Hits)),
                               "sectors found in L1; data that is used once, or kept in shared memory, has no hits"));
  report.push_back(bank_conflicts("bank conflicts, loads", value(kLoadConflicts), value(kLoadWavefronts)));
  report.push_back(bank_conflicts("bank conflicts, stores", value(kStoreConflicts), value(kStoreWavefronts)));
  report.push_back(occupancy(value(kOccupancy), value(kOccupancyLimit)));
  report.push_back(information("registers a thread", count(value(kRegisters)),
                               "at most 255; a multiprocessor's 65536 are shared by its threads"));
  report.push_back(spills(value(kSpillLoads), value(kSpillStores)));
  report.push_back(information("device memory, read", bytes(value(kDramRead)), "what the L2 did not have"));
  report.push_back(information("device memory, written", bytes(value(kDramWritten)),
                               "what left the L2 while the kernel ran; the rest leaves later"));
  report.push_back(information("L2, all traffic", bytes(value(kL2Bytes)), "what L1 did not have, and all stores"));
  report.push_back(
      information("L2 to L1", bytes(value(kL2ToL1)), "what came in, also by the tensor memory accelerator"));
  report.push_back(information("shared memory a block", bytes(value(kSharedMemory)),
                               "asked for at the launch; like the registers it limits the blocks at work"));
  return report;
}

std::string profile_report(const std::vector<NcuLaunch>& launches) {
  struct Kernel {
    std::string name;
    const NcuLaunch* longest;
    std::size_t launches;
  };
  std::vector<Kernel> kernels;  // in the order of their first launches
  for (const NcuLaunch& launch : launches) {
    const std::string name = normal_kernel_name(launch.kernel);
    const auto known =
        std::find_if(kernels.begin(), kernels.end(), [&](const Kernel& kernel) { return kernel.name == name; });
    if (known == kernels.end()) {
      kernels.push_back({name, &launch, 1});
      continue;
    }
    ++known->launches;
    if (launch.value(kDuration).value_or(0) > known->longest->value(kDuration).value_or(0)) known->longest = &launch;
  }
  std::string out;
  for (const Kernel& kernel : kernels) {
    out += (out.empty() ? "" : "\n") + kernel_report(kernel.name, *kernel.longest, kernel.launches);
  }
  return out.empty() ? "No kernel ran on the GPU.\n" : out + "\n" + legend();
}

int profile(int argc, const char* const* argv) {
  try {
    const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    if (std::find(words.begin(), words.end(), "--help") != words.end()) {
      fmt::print("{}", kUsage);
    } else if (words == std::vector<std::string>{"metrics"}) {
      fmt::print("{}\n", fmt::join(profile_metrics(), ","));
    } else if (words.size() == 2 && words[0] == "report") {
      fmt::print("{}", profile_report(parse_ncu_csv(read_text(words[1]), words[1])));
    } else {
      throw BadArgument("the arguments are none that this program knows; allowed: metrics; report FILE; --help");
    }
    return 0;
  } catch (const BadArgument& error) {
    fmt::print(stderr, "profile: {}\n", error.what());
    return 2;
  }
}

}  // namespace stage
