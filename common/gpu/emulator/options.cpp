/// \file
/// emulation.hpp: options and reports.

#include <algorithm>
#include <set>

#include "common/gpu/emulator/block.hpp"

namespace gpu {
namespace {

EmulatorOptions g_options;

/// By kernel, in the order of their first launches. Names are looked up when somebody asks.
struct Counted {
  const void* kernel;
  KernelCounts counts;
};
std::vector<Counted> g_counted;

std::set<std::pair<std::string, unsigned>> g_seen;
std::vector<TimelineEvent> g_timeline;

}  // namespace

void set_emulator_options(const EmulatorOptions& options) { g_options = options; }
const EmulatorOptions& emulator_options() { return g_options; }

std::optional<Counts> counts() {
  if (!emulator::checking()) return std::nullopt;
  KernelCounts all;
  for (const Counted& each : g_counted) all.add(each.counts);
  return Counts{.global_loaded = all.global_loads.bytes,
                .global_stored = all.global_stores.bytes,
                .shared_loaded = all.shared_loads.bytes,
                .shared_stored = all.shared_stores.bytes,
                .barriers = all.barriers,
                .launches = all.launches};
}

std::vector<KernelCounts> kernel_counts() {
  if (!emulator::checking()) return {};
  std::vector<KernelCounts> kernels;
  for (const Counted& each : g_counted) {
    kernels.push_back(each.counts);
    kernels.back().kernel = emulator::kernel_name(each.kernel);
  }
  return kernels;
}

void reset_counts() { g_counted.clear(); }

std::vector<SourceLine> synchronisations_seen() {
  std::vector<SourceLine> lines;
  for (const auto& [file, line] : g_seen) lines.push_back({file, line});
  return lines;
}
void reset_synchronisations_seen() { g_seen.clear(); }

std::vector<TimelineEvent> emulator_timeline() { return g_timeline; }

namespace emulator {

bool look_up_switch(Site site) {
  std::vector<Site>& seen = t_worker->seen;
  const auto same = [&](const Site& s) { return s.file == site.file && s.line == site.line; };
  if (std::none_of(seen.begin(), seen.end(), same)) seen.push_back(site);
  for (const SourceLine& off : t_worker->launch.options.without) {
    if (off.line != site.line) continue;
    // FILE may be given by its last components: "row_sum.cuh" or "00_first_kernel/row_sum.cuh".
    const std::string file = site.file;
    if (file.size() < off.file.size() || file.compare(file.size() - off.file.size(), off.file.size(), off.file) != 0)
      continue;
    const std::size_t before = file.size() - off.file.size();
    if (before == 0 || file[before - 1] == '/') return true;
  }
  t_worker->switched_on[site.line % std::size(t_worker->switched_on)] = site;
  return false;
}

void record(TimelineEvent::Kind kind, Site site) {
  const Thread& me = *t_thread;
  const Block& block = *me.block;
  if (!block.launch.options.record_timeline) return;
  t_worker->timeline.push_back({kind, block.cluster.steps, block.linear, me.warp, {short_path(site.file), site.line}});
}

/// After a launch: what its workers counted and saw.
void record_launch(const Launch& launch) {
  const auto same = [&](const Counted& each) { return each.kernel == launch.call.kernel; };
  auto counted = std::find_if(g_counted.begin(), g_counted.end(), same);
  if (counted == g_counted.end()) counted = g_counted.insert(counted, {launch.call.kernel, {}});
  g_timeline.clear();
  for (const auto& worker : launch.workers) {
    g_timeline.insert(g_timeline.end(), worker->timeline.begin(), worker->timeline.end());
  }
  const auto by_block = [](const TimelineEvent& a, const TimelineEvent& b) { return a.block < b.block; };
  std::stable_sort(g_timeline.begin(), g_timeline.end(), by_block);
  ++counted->counts.launches;
  counted->counts.blocks += launch.blocks;
  for (const auto& worker : launch.workers) {
    counted->counts.add(worker->counts);
    for (const Site& site : worker->seen) g_seen.emplace(short_path(site.file), site.line);
  }
}

}  // namespace emulator
}  // namespace gpu
