#include "common/stage/ncu_csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <regex>
#include <sstream>

#include "common/stage/command_line.hpp"

namespace stage {
namespace {

using Cells = std::vector<std::string>;

constexpr const char* kAllowed = "what ncu --csv --page raw --log-file FILE writes";

/// The cells of a line: quoted or not, "" inside quotes for one quote.
Cells split(const std::string& line) {
  Cells cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

/// "1,234.5" is 1234.5; absent for what is no number.
std::optional<double> to_number(std::string cell) {
  cell.erase(std::remove(cell.begin(), cell.end(), ','), cell.end());
  if (cell.empty()) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(cell.c_str(), &end);
  const bool whole = end == cell.c_str() + cell.size();
  return whole && value - value == 0 ? std::optional(value) : std::nullopt;  // neither nan nor inf
}

/// What one of this unit is in seconds or bytes; 1 for other units.
double unit_factor(const std::string& unit) {
  static const std::map<std::string, double> factors = {
      {"ns", 1e-9},    {"us", 1e-6},   {"ms", 1e-3},   {"nsecond", 1e-9}, {"usecond", 1e-6}, {"msecond", 1e-3},
      {"nsec", 1e-9},  {"usec", 1e-6}, {"msec", 1e-3}, {"Kbyte", 1e3},    {"Mbyte", 1e6},    {"Gbyte", 1e9},
      {"Tbyte", 1e12}, {"KB", 1e3},    {"MB", 1e6},    {"GB", 1e9},       {"TB", 1e12},      {"Kbyte/block", 1e3}};
  const auto found = factors.find(unit);
  return found == factors.end() ? 1 : found->second;
}

/// Where a column of that name stands; the header's size if there is none.
std::size_t column(const Cells& header, const std::string& name) {
  return static_cast<std::size_t>(std::find(header.begin(), header.end(), name) - header.begin());
}

void put(NcuLaunch& launch, const std::string& metric, const std::string& cell, const std::string& unit) {
  if (const auto value = to_number(cell)) launch.metrics[metric] = *value * unit_factor(unit);
}

/// A row a launch, below a row of units.
class WideRows {
 public:
  explicit WideRows(Cells header) : header_(std::move(header)), kernel_(column(header_, "Kernel Name")) {}

  std::size_t least_cells() const { return header_.size(); }

  void add(const Cells& cells, std::vector<NcuLaunch>& launches) {
    if (units_.empty()) {  // the first row
      units_ = cells;
      return;
    }
    launches.push_back({.kernel = cells[kernel_], .metrics = {}});
    for (std::size_t c = 0; c < header_.size(); ++c) {
      // Metrics are named unit__quantity; the columns before them ("ID", "Block Size") are not.
      if (header_[c].find("__") != std::string::npos) put(launches.back(), header_[c], cells[c], units_[c]);
    }
  }

 private:
  Cells header_, units_;
  std::size_t kernel_;
};

/// A row a metric; the launch is told by its "ID".
class LongRows {
 public:
  explicit LongRows(const Cells& header)
      : id_(column(header, "ID")),
        kernel_(column(header, "Kernel Name")),
        name_(column(header, "Metric Name")),
        unit_(column(header, "Metric Unit")),
        value_(column(header, "Metric Value")) {}

  /// Rows end early where the last columns are empty.
  std::size_t least_cells() const { return std::max({id_, kernel_, name_, value_}) + 1; }

  void add(const Cells& cells, std::vector<NcuLaunch>& launches) {
    if (launches.empty() || cells[id_] != last_id_) {
      launches.push_back({.kernel = cells[kernel_], .metrics = {}});
      last_id_ = cells[id_];
    }
    put(launches.back(), cells[name_], cells[value_], unit_ < cells.size() ? cells[unit_] : "");
  }

 private:
  std::size_t id_, kernel_, name_, unit_, value_;
  std::string last_id_;
};

/// Where the name's own part begins and ends: behind the return type and the namespaces, before the parameters.
std::string without_surroundings(const std::string& name) {
  std::size_t begin = 0, end = name.size();
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (c == '<') ++depth;
    if (c == '>') --depth;
    if (depth != 0) continue;
    if (c == '(') {
      end = i;
      break;
    }
    if (c == ' ' || c == ':') begin = i + 1;
  }
  return begin < end ? name.substr(begin, end - begin) : name;
}

}  // namespace

std::optional<double> NcuLaunch::value(const std::string& metric) const {
  const auto found = metrics.find(metric);
  return found == metrics.end() ? std::nullopt : std::optional(found->second);
}

std::vector<NcuLaunch> parse_ncu_csv(const std::string& text, const std::string& source) {
  std::vector<NcuLaunch> launches;
  std::optional<WideRows> wide;
  std::optional<LongRows> narrow;
  std::size_t columns = 0;
  bool nothing_profiled = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find("No kernels were profiled") != std::string::npos) nothing_profiled = true;
    if (line.empty() || line.starts_with("==")) continue;
    const Cells cells = split(line);
    if (columns == 0) {
      if (cells.front() != "ID" || column(cells, "Kernel Name") == cells.size()) continue;
      columns = cells.size();
      if (column(cells, "Metric Name") < columns && column(cells, "Metric Value") < columns) {
        narrow.emplace(cells);
      } else {
        wide.emplace(cells);
      }
      continue;
    }
    if (cells.size() < (wide ? wide->least_cells() : narrow->least_cells())) {
      throw BadArgument(fmt::format("'{}' has a row of {} cells below a header of {}; allowed: {}", source,
                                    cells.size(), columns, kAllowed));
    }
    if (wide) {
      wide->add(cells, launches);
    } else {
      narrow->add(cells, launches);
    }
  }
  if (columns == 0 && !nothing_profiled) {
    throw BadArgument(fmt::format("'{}' has no header with \"ID\" and \"Kernel Name\"; allowed: {}", source, kAllowed));
  }
  return launches;
}

std::string normal_kernel_name(const std::string& name) {
  const auto replaced = [](const std::string& text, const char* pattern, const char* by) {
    return std::regex_replace(text, std::regex(pattern), by);
  };
  std::string out = replaced(name, R"(\(anonymous namespace\)::|<unnamed>::)", "");
  out = without_surroundings(out);
  // Template arguments: nvcc writes (int)64 and (bool)1, or 1, where g++ writes 64 and true, or 64ul.
  out = replaced(out, R"(\btrue\b)", "1");
  out = replaced(out, R"(\bfalse\b)", "0");
  out = replaced(out, R"(\([A-Za-z_][\w: ]*\)(-?\d))", "$1");
  out = replaced(out, R"(\b(\d+)[uUlL]+\b)", "$1");
  out = replaced(out, R"([A-Za-z_]\w*::)", "");
  out = replaced(out, R"(\s*,\s*)", ", ");
  return replaced(out, R"(\s+>)", ">");
}

}  // namespace stage
