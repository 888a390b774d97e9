#include "common/stage/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <sstream>

#include "common/attention/cost.hpp"

namespace stage {
namespace {

/// Characters as a terminal shows them: bytes that do not continue a UTF-8 sequence.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// Lines of at most `width` characters, broken at blanks; a longer word keeps a line to itself.
std::vector<std::string> break_lines(const std::string& text, std::size_t width) {
  if (width_of(text) <= width) return {text};
  std::vector<std::string> lines(1);
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!lines.back().empty() && width_of(lines.back()) + 1 + width_of(word) > width) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

std::size_t longest_word(const std::string& text) {
  std::size_t longest = 0;
  std::istringstream words(text);
  for (std::string word; words >> word;) longest = std::max(longest, width_of(word));
  return longest;
}

bool is_absent(const std::string& cell) { return cell.empty() || cell == "-"; }

/// Digits, alone or with a unit: "12", "-1.5e-07", "4.00x", "12.3 KB", "50.0 %", "156 FLOP/B"; but not "02 naive_gpu".
bool is_number(const std::string& cell) {
  const std::size_t sign = !cell.empty() && (cell[0] == '-' || cell[0] == '+');
  const std::string figure = cell.substr(sign);
  if (figure == "inf" || figure == "nan") return true;
  if (figure.empty() || !std::isdigit(static_cast<unsigned char>(figure[0]))) return false;
  const std::size_t end = figure.find_first_not_of("0123456789.,eE+-");
  if (end == std::string::npos) return true;
  const std::string unit = figure.substr(figure[end] == ' ' ? end + 1 : end);
  return unit.size() <= 2 || (unit.find(' ') == std::string::npos && unit.find('/') != std::string::npos);
}

struct Column {
  bool numbers = true;
  std::size_t width = 0;
  std::size_t least = 0;
};

std::string padded(const std::string& text, const Column& column) {
  const std::string blanks(column.width - std::min(column.width, width_of(text)), ' ');
  return column.numbers ? blanks + text : text + blanks;
}

void append_row(std::string& out, const std::vector<std::string>& cells, const std::vector<Column>& columns) {
  std::vector<std::vector<std::string>> lines;
  std::size_t height = 1;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    lines.push_back(break_lines(c < cells.size() ? cells[c] : "", columns[c].width));
    height = std::max(height, lines.back().size());
  }
  for (std::size_t i = 0; i < height; ++i) {
    std::string line;
    for (std::size_t c = 0; c < columns.size(); ++c) {
      line += (c ? "  " : "") + padded(i < lines[c].size() ? lines[c][i] : "", columns[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
}

}  // namespace

std::string layout_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::vector<Column> columns(header.size());
  for (std::size_t c = 0; c < columns.size(); ++c) {
    Column& column = columns[c];
    column.width = width_of(header[c]);
    column.least = longest_word(header[c]);
    for (const auto& row : rows) {
      if (c < row.size() && !is_absent(row[c]) && !is_number(row[c])) column.numbers = false;
    }
    for (const auto& row : rows) {
      if (c >= row.size()) continue;
      column.width = std::max(column.width, width_of(row[c]));
      column.least = std::max(column.least, column.numbers ? width_of(row[c]) : longest_word(row[c]));
    }
  }
  const auto total = [&] {
    return std::accumulate(columns.begin(), columns.end(), std::size_t{0},
                           [](std::size_t sum, const Column& column) { return sum + column.width + 2; });
  };
  while (total() > kTextWidth + 2) {
    const auto widest = std::max_element(columns.begin(), columns.end(), [](const Column& a, const Column& b) {
      return a.width - a.least < b.width - b.least;
    });
    if (widest == columns.end() || widest->width == widest->least) break;
    --widest->width;
  }

  std::string out;
  append_row(out, header, columns);
  std::vector<std::string> rule;
  for (const Column& column : columns) rule.emplace_back(column.width, '-');
  append_row(out, rule, columns);
  for (const auto& row : rows) append_row(out, row, columns);
  return out;
}

std::string wrap(const std::string& text, std::size_t indent) {
  std::string out;
  for (const std::string& line : break_lines(text, kTextWidth - indent)) {
    out += (out.empty() ? "" : "\n" + std::string(indent, ' ')) + line;
  }
  return out;
}

std::string format_count(double count) {
  std::string digits = fmt::format("{:.0f}", count);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3f} ms", seconds * 1e3);
  return fmt::format("{:.3f} s", seconds);
}

std::string format_error(const std::optional<double>& error) { return error ? fmt::format("{:.1e}", *error) : "-"; }
std::string format_count_or_dash(const std::optional<double>& count) { return count ? format_count(*count) : "-"; }
std::string format_bytes_or_dash(const std::optional<double>& bytes) {
  return bytes ? attention::format_bytes(*bytes) : "-";
}
std::string format_ratio(const std::optional<double>& ratio) { return ratio ? fmt::format("{:.2f}x", *ratio) : "-"; }

std::string format_ratio(const Ratio& ratio) {
  return fmt::format("{:.2f}x ({:.2f} … {:.2f})", ratio.median, ratio.low, ratio.high);
}

std::string format_spread(const Row& row) {
  if (row.samples.empty()) return "-";
  return fmt::format("{} … {}", format_seconds(percentile(row.samples, 0.1)),
                     format_seconds(percentile(row.samples, 0.9)));
}

std::string format_teraflops(const Row& row) {
  if (!row.seconds || !row.flops) return "-";
  const double teraflops = *row.flops / *row.seconds / 1e12;
  return teraflops < 0.1 ? fmt::format("{:.4f}", teraflops)
                         : fmt::format("{:.2f}", teraflops);  // a CPU's share is small
}

std::string format_share(const Row& row, const std::optional<double>& ceiling) {
  if (!row.seconds || !row.flops || !ceiling) return "-";
  return fmt::format("{:.1f} %", 100 * *row.flops / *row.seconds / *ceiling);
}

std::string format_share_of_roof(const Row& row) { return format_share(row, row.peak_flops); }

std::string format_step(const Row* before, const Row& now) {
  if (now.step_before) return format_ratio(*now.step_before);
  return format_ratio(before ? step_ratio(*before, now, true) : std::nullopt);
}

std::string format_best_peer(const Row& row) { return row.best_peer ? format_ratio(*row.best_peer) : "-"; }

std::optional<double> step_ratio(const Row& before, const Row& now, bool by_time) {
  if (!before.right || !now.right || before.is_peer || now.is_peer) return std::nullopt;
  const bool counted = before.bytes_counted && now.bytes_counted;
  const std::optional<double> was = by_time ? before.seconds : counted ? before.bytes_counted : before.bytes_predicted;
  const std::optional<double> is = by_time ? now.seconds : counted ? now.bytes_counted : now.bytes_predicted;
  if (!was || !is || !(*is > 0)) return std::nullopt;
  return *was / *is;
}

std::string short_verdict(const Row& row) {
  // Of a complaint the first words; what is right is said whole.
  const std::string first =
      row.verdict.starts_with("right") ? row.verdict : row.verdict.substr(0, row.verdict.find_first_of(":\n"));
  constexpr std::size_t kLongestCell = 28;
  return width_of(first) <= kLongestCell ? first : row.right ? "right" : "wrong";
}

void drop_empty_columns(std::vector<std::string>& header, std::vector<std::vector<std::string>>& rows) {
  for (std::size_t c = header.size(); c-- > 0;) {
    if (std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return !is_absent(row[c]); })) continue;
    header.erase(header.begin() + static_cast<std::ptrdiff_t>(c));
    for (auto& row : rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(c));
  }
}

std::string rows_table(const std::vector<Row>& rows) {
  const bool counted =
      std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.bytes_counted.has_value(); });
  // Counted and predicted bytes are shown to the last digit, since they have to be equal.
  const auto bytes = counted ? format_count_or_dash : format_bytes_or_dash;

  std::vector<std::string> header = {"kernel",          "error",     "allowed",     "verdict",    "bytes counted",
                                     "bytes predicted", "workspace", "peak memory", "fewer bytes"};
  std::vector<std::vector<std::string>> cells;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    cells.push_back({row.kernel, format_error(row.error), format_error(row.allowed), short_verdict(row),
                     bytes(row.bytes_counted), bytes(row.bytes_predicted), format_bytes_or_dash(row.workspace_bytes),
                     format_bytes_or_dash(row.peak_bytes),
                     format_ratio(i ? step_ratio(rows[i - 1], row, false) : std::nullopt)});
  }
  drop_empty_columns(header, cells);

  std::string out = layout_table(header, cells);
  std::string legend;
  for (const Row& row : rows) {
    if (!row.summary.empty()) legend += wrap(fmt::format("{}: {}", row.kernel, row.summary), 2) + '\n';
    if (row.verdict.starts_with("refused")) legend += wrap(fmt::format("{}: {}", row.kernel, row.verdict), 2) + '\n';
  }
  return legend.empty() ? out : out + '\n' + legend;
}

std::string roof_meaning(const std::vector<Row>& rows) {
  bool in_fp32 = false, in_16_bits = false;
  for (const Row& row : rows) {
    if (row.peak_flops) (row.element_type == attention::ElementType::fp32 ? in_fp32 : in_16_bits) = true;
  }
  if (!in_16_bits) return "";
  return in_fp32
             ? "in fp32 the datasheet's peak of the fp32 units, in 16 bits that of the tensor cores, or what device "
               "memory allows"
             : "the datasheet's peak of the tensor cores, or what device memory allows";
}

std::string times_table(const std::vector<Row>& rows) {
  std::vector<std::string> header = {"kernel",  "samples", "time",          "10th … 90th percentile",
                                     "TFLOP/s", "of roof", "× step before", "× best peer"};
  std::vector<std::vector<std::string>> cells;
  std::string peer;
  bool in_rounds = false;
  const Row* before = nullptr;
  for (const Row& row : rows) {
    if (row.seconds) {
      cells.push_back({row.kernel, fmt::format("{}", row.samples.size()), format_seconds(*row.seconds),
                       format_spread(row), format_teraflops(row), format_share_of_roof(row), format_step(before, row),
                       format_best_peer(row)});
    }
    if (row.best_peer) peer = row.best_peer_name;
    in_rounds = in_rounds || row.step_before;
    before = &row;
  }
  if (cells.empty()) return "";
  drop_empty_columns(header, cells);

  std::string legend;
  if (const std::string roof = roof_meaning(rows); !roof.empty()) legend += wrap("of roof: " + roof, 2) + '\n';
  if (in_rounds) {
    legend += wrap(
        "× step before: time of the row above over this one's, round by round; median (10th … 90th percentile)", 2);
    legend += '\n';
  }
  if (!peer.empty()) {
    legend += wrap(fmt::format("× best peer: the same with the time of {}; above 1 the kernel is faster", peer), 2);
    legend += '\n';
  }
  return layout_table(header, cells) + (legend.empty() ? "" : '\n' + legend);
}

}  // namespace stage
