#include "common/stage/ladder_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "common/stage/command_line.hpp"
#include "common/stage/results_markdown.hpp"

namespace stage {
namespace {

// Pixels.
constexpr int kWidth = 880;
constexpr int kRowHeight = 22;
constexpr int kMargins = 120;  // title, axis and its name

// gnuplot's margins are in widths of a wide letter; names have narrower ones.
constexpr int kLeftMargin = 4;
constexpr double kMarginPerLetter = 0.8;

constexpr const char* kGpuColour = "0x4c78a8";
constexpr const char* kCpuColour = "0xb0a8b9";
constexpr const char* kStaleColour = "0xc8c8c8";
constexpr const char* kCeilingColour = "0xd62728";

/// A bar, or a chapter's name above its bars.
struct Line {
  std::string text;
  double teraflops = 0;  ///< 0: a chapter's name
  const char* colour = "";
};

struct Panel {
  std::string title;
  std::vector<Line> lines;
  double ceiling = 0;  ///< TFLOP/s; 0: not measured
};

/// A text between double quotes in gnuplot's data and commands, where these characters mean something.
std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return '"' + out + '"';
}

/// GPU, driver, CUDA and dates: of driver and CUDA every one that there was, of the dates the first and the last.
std::string where_and_when(const MeasuredMachine& measured) {
  std::string name;
  std::vector<std::string> drivers, cudas;
  std::set<std::string> dates;
  const auto add = [](std::vector<std::string>& to, const std::string& text) {
    if (std::find(to.begin(), to.end(), text) == to.end()) to.push_back(text);
  };
  for (const MeasuredChapter& chapter : measured.chapters) {
    const Measurement& m = chapter.measurement;
    name = m.machine.name;
    add(drivers, m.machine.driver);
    add(cudas, m.machine.cuda);
    dates.insert(m.date);
  }
  const std::string until = dates.size() > 1 ? " … " + *dates.rbegin() : "";
  return fmt::format("{}, driver {}, CUDA {}; {}{}", name, join(drivers), join(cudas), *dates.begin(), until);
}

Panel make_panel(const MeasuredMachine& measured, const KernelHashes& present, Pass pass) {
  Panel panel;
  if (measured.chapters.empty()) return panel;
  panel.title = (pass == Pass::forward ? "" : "Backward: ") + where_and_when(measured);
  panel.ceiling = measured_fp32_ceiling(measured).value_or(0) / 1e12;
  for (const MeasuredChapter& chapter : measured.chapters) {
    if (chapter.step.problem.empty()) continue;
    const bool stale = is_stale(chapter, present);
    std::vector<Line> bars;
    for (const Row& row : rows_of(chapter.step.rows, pass)) {
      if (row.is_peer || !row.right || !row.seconds || !row.flops || *row.seconds <= 0 || *row.flops <= 0) continue;
      bars.push_back({row.kernel + (stale ? " (stale)" : ""), *row.flops / *row.seconds / 1e12,
                      stale         ? kStaleColour
                      : row.on_host ? kCpuColour
                                    : kGpuColour});
    }
    if (bars.empty()) continue;
    const attention::ElementType type = chapter.step.element_type;
    const std::string in_type = type == attention::ElementType::fp32 ? "" : ", " + attention::name(type);
    panel.lines.push_back({chapter.step.chapter + in_type + (stale ? " (stale)" : ""), 0, ""});
    panel.lines.insert(panel.lines.end(), bars.begin(), bars.end());
  }
  return panel;
}

/// Powers of ten around all values.
std::pair<double, double> range_of(const Panel& panel) {
  double least = std::numeric_limits<double>::infinity(), most = panel.ceiling;
  for (const Line& line : panel.lines) {
    if (line.teraflops <= 0) continue;
    least = std::min(least, line.teraflops);
    most = std::max(most, line.teraflops);
  }
  // A bar has to begin left of its value, and its figure stands right of it.
  return {std::pow(10, std::floor(std::log10(least * 0.7))), std::pow(10, std::ceil(std::log10(most * 1.5)))};
}

int height_of(const Panel& panel) { return kMargins + kRowHeight * static_cast<int>(panel.lines.size()); }

std::string panel_script(const Panel& panel, std::size_t number, double size, double origin) {
  const auto [least, most] = range_of(panel);
  const std::size_t rows = panel.lines.size();
  // Columns: row from the top, TFLOP/s, colour, figure.
  std::string data, chapters, names;
  for (std::size_t i = 0; i < rows; ++i) {
    const Line& line = panel.lines[i];
    if (line.teraflops <= 0) {
      chapters += fmt::format("set label {} at graph 0.005, first {} left font ',12' front noenhanced\n",
                              quoted(line.text), i + 1);
      continue;
    }
    data += fmt::format("{} {:.6g} {} \"{:#.3g}\"\n", i + 1, line.teraflops, line.colour, line.teraflops);
    names += fmt::format("{}{} {}", names.empty() ? "" : ", ", quoted(line.text), i + 1);
  }
  std::string out;
  out += fmt::format("$bars{} << END\n{}END\n", number, data);
  out += fmt::format("set size 1,{:.6f}\nset origin 0,{:.6f}\n", size, origin);
  out += fmt::format("set title {} noenhanced\n", quoted(panel.title));
  out += fmt::format("set xrange [{:g}:{:g}]\nset yrange [{}.6:0.4]\n", least, most, rows);
  out += fmt::format("set ytics ({}) scale 0 noenhanced\n", names);
  out += "unset label\nunset arrow\n" + chapters;
  if (panel.ceiling > 0) {
    out += fmt::format("set arrow from {0:.6g}, graph 0 to {0:.6g}, graph 1 nohead lw 1.5 dt 2 lc rgb {1} front\n",
                       panel.ceiling, kCeilingColour);
    out += fmt::format(
        "set label \"fp32 ceiling {:.1f}\" at {:.6g}, graph 1 right offset -0.5,-0.8 textcolor rgb {} "
        "front\n",
        panel.ceiling, panel.ceiling, kCeilingColour);
  }
  out += fmt::format(
      "plot $bars{0} using ({1:g}):1:({1:g}):2:($1-0.38):($1+0.38):3 with boxxyerror fs solid noborder lc rgb "
      "variable, "
      "$bars{0} using 2:1:4 with labels left offset 0.4,0 noenhanced\n",
      number, least);
  return out;
}

}  // namespace

std::string ladder_plot(const std::vector<MeasuredMachine>& machines, const KernelHashes& present) {
  std::vector<Panel> panels;
  int height = 0;
  std::size_t longest = 0;
  for (const MeasuredMachine& measured : machines) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      Panel panel = make_panel(measured, present, pass);
      if (panel.lines.empty()) continue;
      height += height_of(panel);
      for (const Line& line : panel.lines) longest = std::max(longest, line.text.size());
      panels.push_back(std::move(panel));
    }
  }
  if (panels.empty()) return "";

  std::string out = fmt::format(
      "set terminal svg size {},{} font 'sans-serif,13' background rgb 'white' name 'ladder'\n"
      "set encoding utf8\n"
      "set key off\n"
      "set logscale x\n"
      "set grid xtics lc rgb '#dddddd' lt 1\n"
      "set border 1\n"
      "set format x '%g'\n"
      "set xtics nomirror out\n"
      "set lmargin {}\n"
      "set rmargin 4\n"
      "set xlabel 'TFLOP/s, logarithmic; each kernel on its own problem (table below)'\n"
      "set multiplot\n",
      kWidth, height, kLeftMargin + static_cast<int>(static_cast<double>(longest) * kMarginPerLetter));
  double top = 1;
  for (std::size_t i = 0; i < panels.size(); ++i) {
    const double size = static_cast<double>(height_of(panels[i])) / height;
    top -= size;
    out += panel_script(panels[i], i + 1, size, std::max(top, 0.0));
  }
  return out + "unset multiplot\n";
}

}  // namespace stage
