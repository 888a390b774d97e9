#include "common/stage/results_markdown.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "common/attention/cost.hpp"
#include "common/stage/command_line.hpp"
#include "common/stage/ladder.hpp"
#include "common/stage/table.hpp"

namespace stage {
namespace {

constexpr const char* kBeginMarker = "<!-- results:";
constexpr const char* kEndMarker = "<!-- /results -->";
constexpr const char* kStale = " (stale)";
constexpr const char* kStaleMeaning =
    "Stale: the chapter's sources, or the headers in common that kernels are compiled from, have changed since "
    "they were measured.\n";
constexpr const char* kNothingYet =
    "There is no measurement yet: the table appears after `./learn bench` on a machine with a GPU.\n";

/// A cell without what would end it or turn into markup.
std::string escaped(const std::string& cell) {
  std::string out;
  for (const char c : cell) {
    if (std::string("\\|*<`").find(c) != std::string::npos) out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

bool starts_like_a_number(const std::string& cell) {
  const std::size_t sign = !cell.empty() && (cell[0] == '-' || cell[0] == '+');
  return cell == "-" || (cell.size() > sign && std::isdigit(static_cast<unsigned char>(cell[sign])));
}

}  // namespace

std::string markdown_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out = "|";
    for (std::size_t c = 0; c < header.size(); ++c) out += " " + (c < cells.size() ? cells[c] : "") + " |";
    return out + "\n";
  };
  std::string rule = "|";
  for (std::size_t c = 0; c < header.size(); ++c) {
    const bool numbers = c > 0 && std::all_of(rows.begin(), rows.end(), [&](const auto& row) {
                           return c >= row.size() || starts_like_a_number(row[c]);
                         });
    rule += numbers ? "---:|" : "---|";
  }
  std::string out = line(header) + rule + "\n";
  for (const auto& row : rows) out += line(row);
  return out;
}

namespace {

/// The same of a chapter's own table, whose cells are plain text.
std::string own_table(const Results::Table& table, bool stale) {
  std::vector<std::string> header;
  for (const std::string& cell : table.header) header.push_back(escaped(cell));
  std::vector<std::vector<std::string>> rows;
  for (const auto& row : table.rows) {
    rows.emplace_back();
    for (const std::string& cell : row) rows.back().push_back(escaped(cell));
    if (stale && !rows.back().empty()) rows.back()[0] += kStale;
  }
  return markdown_table(header, rows);
}

std::string describe_machine(const gpu::DeviceInfo& machine) {
  return fmt::format("{}, {} multiprocessors at up to {} MHz, driver {}, CUDA {}", machine.name,
                     machine.multiprocessors, machine.clock_khz / 1000, machine.driver, machine.cuda);
}

/// "on 2026-11-29, commit `077bb432bf48`"
std::string describe_time(const Measurement& measured) {
  const auto dash = measured.commit.find('-');
  constexpr std::size_t kShortCommit = 12;
  const std::string commit = measured.commit.substr(0, std::min(dash, kShortCommit)) +
                             (dash == std::string::npos ? "" : measured.commit.substr(dash));
  return fmt::format("on {}, commit `{}`", measured.date, commit);
}

/// Figures are put in proportion only where these agree; all machines of one file are the same GPU.
std::string driver_and_cuda(const MeasuredChapter& chapter) {
  return fmt::format("driver {}, CUDA {}", chapter.measurement.machine.driver, chapter.measurement.machine.cuda);
}

}  // namespace

std::string describe(const Measurement& measured) {
  return fmt::format("{}; measured {}.\n", describe_machine(measured.machine), describe_time(measured));
}

bool is_stale(const MeasuredChapter& chapter, const KernelHashes& present) {
  const auto now = present.find(chapter.folder);
  if (now == present.end() || now->second != chapter.hashes) return true;
  const auto common = present.find(kCommon);
  // A header that was not there when this chapter was measured belongs to later chapters: this one could include it
  // only through a file that has changed.
  const std::map<std::string, std::string>& then = chapter.measurement.common;
  return std::any_of(then.begin(), then.end(), [&](const auto& header) {
    if (common == present.end()) return true;
    const auto here = common->second.find(header.first);
    return here == common->second.end() || here->second != header.second;
  });
}

std::optional<double> measured_fp32_ceiling(const MeasuredMachine& measured) {
  for (const MeasuredChapter& chapter : measured.chapters) {
    if (const auto ceiling = measured_fp32_ceiling(chapter.step)) return ceiling;
  }
  return std::nullopt;
}

namespace {

/// Bytes a second of a kernel that is not credited with FLOPs.
std::string format_bandwidth(const Row& row) {
  if (!row.seconds || row.flops || !row.bytes_predicted) return "-";
  return fmt::format("{:.0f}", *row.bytes_predicted / *row.seconds / 1e9);
}

std::string rows_markdown(const std::vector<Row>& rows, const std::optional<double>& ceiling, bool stale) {
  std::vector<std::string> header = {"kernel",
                                     "verdict",
                                     "error",
                                     "time",
                                     "10th … 90th percentile",
                                     "TFLOP/s",
                                     "GB/s",
                                     "of roof",
                                     "of measured fp32 ceiling",
                                     "× step before",
                                     "× best peer",
                                     "workspace",
                                     "bytes predicted"};
  std::vector<std::vector<std::string>> cells;
  std::string legend, peer;
  const bool any_workspace =
      std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.workspace_bytes.value_or(0) > 0; });
  bool in_rounds = false;
  const Row* before = nullptr;
  for (const Row& row : rows) {
    const std::string name = "`" + row.kernel + "`";
    // Bytes stand in for a time where nothing was timed.
    const bool untimed = !row.seconds && row.error;
    cells.push_back({name + (stale ? kStale : ""), escaped(short_verdict(row)), format_error(row.error),
                     row.seconds ? format_seconds(*row.seconds) : "-", format_spread(row), format_teraflops(row),
                     format_bandwidth(row), format_share_of_roof(row), format_measured_share(row, ceiling),
                     row.seconds ? format_step(before, row) : "-", format_best_peer(row),
                     any_workspace ? format_bytes_or_dash(row.workspace_bytes) : "-",
                     untimed ? format_bytes_or_dash(row.bytes_predicted) : "-"});
    before = &row;
    in_rounds = in_rounds || row.step_before;
    if (row.best_peer) peer = row.best_peer_name;
    if (!row.summary.empty()) legend += "\n- " + name + ": " + escaped(row.summary);
    if (row.verdict.starts_with("refused")) legend += "\n- " + name + ": " + escaped(row.verdict);
  }
  if (const std::string roof = roof_meaning(rows); !roof.empty()) legend += "\n- of roof: " + roof;
  if (in_rounds) {
    legend +=
        "\n- × step before: time of the row above over this one's, round by round; median (10th … 90th percentile)";
  }
  if (!peer.empty()) {
    legend += "\n- × best peer: the same with the time of `" + peer + "`; above 1 the kernel is faster";
  }
  drop_empty_columns(header, cells);
  return markdown_table(header, cells) + legend + (legend.empty() ? "" : "\n");
}

std::string measured_chapter(const MeasuredChapter& chapter, const std::vector<std::string>& tables,
                             const std::optional<double>& ceiling, bool stale) {
  std::string out;
  // The text names other types than fp32.
  const char* type = chapter.step.element_type == attention::ElementType::fp32 ? ", fp32" : "";
  if (!chapter.step.problem.empty()) out += "\nProblem: " + escaped(chapter.step.problem) + type + ".\n";
  const std::vector<Row> forward = rows_of(chapter.step.rows, Pass::forward);
  const std::vector<Row> backward = rows_of(chapter.step.rows, Pass::backward);
  const bool both = !forward.empty() && !backward.empty();
  if (!forward.empty()) out += (both ? "\nForward:\n\n" : "\n") + rows_markdown(forward, ceiling, stale);
  if (!backward.empty()) out += (both ? "\nBackward:\n\n" : "\n") + rows_markdown(backward, ceiling, stale);
  for (const std::string& name : tables) {
    const auto& recorded = chapter.step.tables;
    const auto table = std::find_if(recorded.begin(), recorded.end(), [&](const auto& t) { return t.name == name; });
    out += "\n" + (table != recorded.end() ? own_table(*table, stale)
                                           : fmt::format("The table `{}` is not among these results.\n", name));
  }
  if (stale) out += std::string("\n") + kStaleMeaning;
  return out;
}

}  // namespace

Region find_region(const std::string& text, const std::string& name, const std::string& path) {
  Region region;
  int begins = 0, others = 0, ends = 0;
  bool in_order = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t next = std::min(text.find('\n', at), text.size() - 1) + 1;
    std::string line = text.substr(at, next - at);
    line.erase(line.find_last_not_of(" \r\n") + 1);
    if (line == kEndMarker) {
      region.end = at;
      ++ends;
      in_order = in_order && begins > 0;
    } else if (line.starts_with(kBeginMarker) && line.ends_with("-->")) {
      const std::size_t length = std::string(kBeginMarker).size();
      std::istringstream words(line.substr(length, line.size() - length - 3));
      std::string of, table;
      words >> of;
      ++(of == name ? begins : others);
      region.begin = next;
      region.tables.clear();
      while (words >> table) region.tables.push_back(table);
    }
    at = next;
  }
  if (begins != 1 || others != 0 || ends != 1 || !in_order) {
    throw BadArgument(
        fmt::format("'{}' has {} lines '{}{} -->', {} of another region and {} '{}'; allowed: the first and, "
                    "below it, the last, once each",
                    path, begins, kBeginMarker, name, others, ends, kEndMarker));
  }
  return region;
}

std::string chapter_markdown(const std::vector<MeasuredMachine>& machines, const std::string& folder,
                             const std::vector<std::string>& tables, const KernelHashes& present) {
  std::string out;
  for (const MeasuredMachine& measured : machines) {
    for (const MeasuredChapter& chapter : measured.chapters) {
      if (chapter.folder != folder) continue;
      MeasuredMachine alike = measured;
      std::erase_if(alike.chapters,
                    [&](const auto& other) { return driver_and_cuda(other) != driver_and_cuda(chapter); });
      out += (out.empty() ? "" : "\n") + describe(chapter.measurement) +
             measured_chapter(chapter, tables, measured_fp32_ceiling(alike), is_stale(chapter, present));
    }
  }
  return out.empty() ? kNothingYet : out;
}

namespace {

/// Where and when the chapters were measured: a line, or, where they differ, one for each with its chapters. What is
/// the same for all stands above these.
std::string describe_all(const MeasuredMachine& measured) {
  const Measurement& first = measured.chapters.front().measurement;
  const std::string machine = describe_machine(first.machine);
  const bool one_machine = std::all_of(measured.chapters.begin(), measured.chapters.end(), [&](const auto& chapter) {
    return describe_machine(chapter.measurement.machine) == machine;
  });
  std::vector<std::pair<std::string, std::vector<std::string>>> lines;
  for (const MeasuredChapter& chapter : measured.chapters) {
    const Measurement& here = chapter.measurement;
    const std::string line = one_machine ? describe_time(here) + ".\n" : describe(here);
    auto of_line = std::find_if(lines.begin(), lines.end(), [&](const auto& other) { return other.first == line; });
    if (of_line == lines.end()) of_line = lines.insert(lines.end(), {line, {}});
    const std::string number = chapter.folder.substr(0, chapter.folder.find('_'));
    if (of_line->second.empty() || of_line->second.back() != number) of_line->second.push_back(number);
  }
  if (lines.size() == 1) return describe(first);
  std::string out = one_machine ? machine + "; measured:\n\n" : "";
  for (const auto& [line, numbers] : lines) out += "- " + join(numbers) + ": " + line;
  return out + "\n";
}

}  // namespace

std::string ladder_markdown(const std::vector<MeasuredMachine>& machines, const KernelHashes& present) {
  std::string out;
  for (const MeasuredMachine& measured : machines) {
    std::vector<Step> steps;
    bool any_stale = false;
    for (const MeasuredChapter& chapter : measured.chapters) {
      const bool stale = is_stale(chapter, present);
      steps.push_back(chapter.step);
      steps.back().machine = driver_and_cuda(chapter);
      for (Row& row : steps.back().rows) row.kernel = "`" + row.kernel + "`" + (stale ? kStale : "");
      any_stale = any_stale || (stale && !chapter.step.problem.empty());
    }
    const Results::Table forward = ladder_table(steps, Pass::forward), backward = ladder_table(steps, Pass::backward);
    if (forward.rows.empty() && backward.rows.empty()) continue;
    out += (out.empty() ? "" : "\n") + describe_all(measured) +
           "A ratio stands where the row above solved the same problem." + roof_sentence(steps) + "\n\n";
    if (!forward.rows.empty()) out += markdown_table(forward.header, forward.rows);
    if (!backward.rows.empty()) {
      out += (forward.rows.empty() ? "" : "\n") + std::string(kBackwardLadder) + "\n\n" +
             markdown_table(backward.header, backward.rows);
    }
    if (any_stale) out += std::string("\n") + kStaleMeaning;
  }
  return out.empty() ? kNothingYet : out;
}

}  // namespace stage
