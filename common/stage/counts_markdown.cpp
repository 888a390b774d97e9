#include "common/stage/counts_markdown.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "common/attention/cost.hpp"
#include "common/stage/results_markdown.hpp"
#include "common/stage/table.hpp"

namespace stage {
namespace {

using Value = std::optional<double>;
using Rows = std::vector<std::vector<std::string>>;

constexpr double kBytesPerSector = 32;
constexpr double kAllowedShare = 0.01;  // of a difference in sectors of device memory

constexpr const char* kNobodyCounted = "There are no counts yet: the tables appear after `./learn count`.\n";
constexpr const char* kNoGpu =
    "No GPU has been asked yet: its columns appear after `./learn count` on a machine with a GPU and ncu.\n";
constexpr const char* kStale = " (stale)";
constexpr const char* kStaleMeaning =
    "Stale: the chapter's sources, or the headers in common that kernels are compiled from, have changed since the GPU "
    "counted.\n";

/// Loads or stores of one kind of memory.
struct Accesses {
  const char* key;   ///< in the JSON
  const char* word;  ///< in the table
};

/// One kernel on both sides; null where it did not run.
struct Pair {
  std::string name;
  const CountedKernel* emulated = nullptr;
  const CountedKernel* measured = nullptr;
};

Value value_of(const CountedKernel* kernel, const char* accesses, const char* name) {
  return kernel ? kernel->value({accesses, name, ""}) : std::nullopt;
}

/// "+1.25 %" of the emulator's count.
std::string difference(Value emulated, Value measured, bool marked) {
  if (!emulated || !measured) return "-";
  if (*emulated == *measured) return "0 %";
  const std::string text =
      *emulated == 0 ? "from 0" : fmt::format("{:+.2f} %", (*measured - *emulated) / *emulated * 100);
  const bool too_far = std::abs(*measured - *emulated) > kAllowedShare * *emulated;
  return marked && too_far ? "**" + text + "**" : text;
}

std::string exact(Value count, double scale = 1) { return count ? format_count(*count * scale) : "-"; }

/// Whether this kernel has accesses of this kind at all, on either side.
bool happens(const Pair& pair, const char* accesses) {
  const auto any = [&](const CountedKernel* kernel) { return value_of(kernel, accesses, "requests").value_or(0) > 0; };
  return any(pair.emulated) || any(pair.measured);
}

/// Appends three cells: the emulator's count, the GPU's, the difference.
void compare(std::vector<std::string>& row, const Pair& pair, const char* accesses, const char* name, double scale,
             bool marked) {
  const Value emulated = value_of(pair.emulated, accesses, name), measured = value_of(pair.measured, accesses, name);
  row.push_back(exact(emulated, scale));
  row.push_back(exact(measured, scale));
  row.push_back(difference(emulated, measured, marked));
}

std::string table(std::vector<std::string> header, Rows rows) {
  drop_empty_columns(header, rows);
  return rows.empty() ? "" : "\n" + markdown_table(header, rows);
}

std::string global_table(const std::vector<Pair>& pairs, bool stale) {
  Rows rows;
  for (const Pair& pair : pairs) {
    for (const Accesses& accesses : {Accesses{"global_loads", "loads"}, Accesses{"global_stores", "stores"}}) {
      if (!happens(pair, accesses.key)) continue;
      rows.push_back({"`" + pair.name + "`" + (stale ? kStale : ""), accesses.word});
      compare(rows.back(), pair, accesses.key, "sectors", kBytesPerSector, true);
      compare(rows.back(), pair, accesses.key, "requests", 1, false);
    }
  }
  return table({"kernel", "device memory", "32 bytes a sector", "GPU", "difference", "requests", "GPU", "difference"},
               rows);
}

std::string shared_table(const std::vector<Pair>& pairs, bool stale) {
  Rows rows;
  for (const Pair& pair : pairs) {
    for (const Accesses& accesses : {Accesses{"shared_loads", "loads"}, Accesses{"shared_stores", "stores"}}) {
      if (!happens(pair, accesses.key)) continue;
      rows.push_back({"`" + pair.name + "`" + (stale ? kStale : ""), accesses.word});
      compare(rows.back(), pair, accesses.key, "wavefronts", 1, false);
      compare(rows.back(), pair, accesses.key, "conflicts", 1, false);
      compare(rows.back(), pair, accesses.key, "requests", 1, false);
    }
  }
  return table({"kernel", "shared memory", "wavefronts", "GPU", "difference", "conflicts", "GPU", "difference",
                "requests", "GPU", "difference"},
               rows);
}

/// The emulator's kernels in their order, then those that ran on the GPU alone.
std::vector<Pair> pair_up(const CountedChapter* emulated, const CountedChapter* measured) {
  std::vector<Pair> pairs;
  if (emulated) {
    for (const CountedKernel& kernel : emulated->kernels) pairs.push_back({kernel.kernel, &kernel, nullptr});
  }
  if (measured) {
    for (const CountedKernel& kernel : measured->kernels) {
      const auto known =
          std::find_if(pairs.begin(), pairs.end(), [&](const Pair& pair) { return pair.name == kernel.kernel; });
      if (known == pairs.end()) {
        pairs.push_back({kernel.kernel, nullptr, &kernel});
      } else {
        known->measured = &kernel;
      }
    }
  }
  return pairs;
}

/// A chapter's folder and the element type that it ran in. They sort as the book does.
using Key = std::pair<std::string, attention::ElementType>;

Key key_of(const CountedChapter& chapter) { return {chapter.folder, chapter.element_type}; }

const CountedChapter* find_chapter(const MachineCounts& counts, const Key& key) {
  const auto found = std::find_if(counts.chapters.begin(), counts.chapters.end(),
                                  [&](const CountedChapter& chapter) { return key_of(chapter) == key; });
  return found == counts.chapters.end() ? nullptr : &*found;
}

/// What the tables cannot show: kernels on one side only, and another number of launches.
std::string remarks(const std::vector<Pair>& pairs) {
  std::string out;
  for (const Pair& pair : pairs) {
    if (!pair.measured) {
      out += fmt::format("\n- `{}` did not run on the GPU", pair.name);
    } else if (!pair.emulated) {
      out += fmt::format("\n- `{}` did not run on the emulator", pair.name);
    } else if (pair.emulated->launches != pair.measured->launches) {
      out += fmt::format("\n- `{}` was launched {} times on the emulator and {} times on the GPU", pair.name,
                         pair.emulated->launches, pair.measured->launches);
    }
  }
  return out.empty() ? "" : out + "\n";
}

std::string chapter_tables(const Key& key, const CountedChapter* emulated, const CountedChapter* measured, bool stale) {
  const std::vector<Pair> pairs = pair_up(emulated, measured);
  const std::string& problem = (emulated ? emulated : measured)->problem;
  std::string out = "\n### " + in_type(key.first, key.second) + "\n";
  if (!problem.empty()) out += "\nProblem: " + problem + ".\n";
  if (measured && emulated && measured->problem != emulated->problem) {
    out += "\n**The GPU solved another problem**: " + measured->problem + ".\n";
  }
  out += global_table(pairs, stale) + shared_table(pairs, stale);
  if (measured) out += remarks(pairs);
  return out + (stale ? std::string("\n") + kStaleMeaning : "");
}

}  // namespace

std::string counts_markdown(const MachineCounts& emulator, const std::vector<MachineCounts>& gpus,
                            const KernelHashes& present) {
  std::string out;
  for (const MachineCounts& gpu : gpus) {
    std::set<Key> keys;
    for (const MachineCounts* side : {&emulator, &gpu}) {
      for (const CountedChapter& chapter : side->chapters) keys.insert(key_of(chapter));
    }
    const Measurement measurement{.machine = gpu.machine, .date = gpu.date, .commit = gpu.commit, .common = gpu.common};
    out += (out.empty() ? "" : "\n") + describe(measurement);
    out += "Bold: sectors of device memory that differ by more than 1 %.\n";
    for (const Key& key : keys) {
      const CountedChapter* measured = find_chapter(gpu, key);
      const bool stale =
          measured &&
          is_stale({.folder = key.first, .step = {}, .hashes = measured->hashes, .measurement = measurement}, present);
      out += chapter_tables(key, find_chapter(emulator, key), measured, stale);
    }
  }
  if (!out.empty()) return out;
  if (emulator.chapters.empty()) return kNobodyCounted;
  for (const CountedChapter& chapter : emulator.chapters) {
    out += chapter_tables(key_of(chapter), &chapter, nullptr, false);
  }
  return kNoGpu + out;
}

}  // namespace stage
