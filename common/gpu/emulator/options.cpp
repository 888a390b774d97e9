/// \file
/// emulation.hpp: options and reports.

#include <set>

#include "common/gpu/emulator/block.hpp"

namespace gpu {
namespace {

EmulatorOptions g_options;
Counts g_counts;
std::set<std::pair<std::string, unsigned>> g_seen;

}  // namespace

void set_emulator_options(const EmulatorOptions& options) { g_options = options; }
const EmulatorOptions& emulator_options() { return g_options; }

std::optional<Counts> counts() {
  if (!emulator::checking()) return std::nullopt;
  return g_counts;
}
void reset_counts() { g_counts = {}; }

std::vector<SourceLine> synchronisations_seen() {
  std::vector<SourceLine> lines;
  for (const auto& [file, line] : g_seen) lines.push_back({file, line});
  return lines;
}
void reset_synchronisations_seen() { g_seen.clear(); }

namespace emulator {

bool switched_off(Site site) {
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
  return false;
}

/// After a launch: what its workers counted and saw.
void record_launch(const std::vector<std::unique_ptr<Worker>>& workers) {
  ++g_counts.launches;
  for (const auto& worker : workers) {
    const Counts& c = worker->counts;
    g_counts.global_loaded += c.global_loaded;
    g_counts.global_stored += c.global_stored;
    g_counts.shared_loaded += c.shared_loaded;
    g_counts.shared_stored += c.shared_stored;
    g_counts.barriers += c.barriers;
    for (const Site& site : worker->seen) g_seen.emplace(short_path(site.file), site.line);
  }
}

}  // namespace emulator
}  // namespace gpu
