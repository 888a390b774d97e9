#include "common/stage/ladder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/stage/command_line.hpp"
#include "common/stage/json.hpp"
#include "common/stage/table.hpp"

namespace stage {
namespace {

constexpr const char* kUsage =
    "ladder FILE...\n"
    "\n"
    "Prints one table of the results that chapters wrote with --json, in the order given.\n";

bool on_one_machine(const std::vector<Step>& steps) {
  return std::all_of(steps.begin(), steps.end(),
                     [&](const Step& step) { return step.machine == steps.front().machine; });
}

bool on_the_ladder(const Step& step) { return !step.problem.empty() && !step.rows.empty(); }

}  // namespace

std::optional<double> measured_fp32_ceiling(const Step& step) {
  const auto figure = step.figures.find("fp32_flops_per_second");
  return figure == step.figures.end() ? std::nullopt : std::optional(figure->second);
}

std::string format_measured_share(const Row& row, const std::optional<double>& ceiling) {
  return row.on_host || row.element_type != attention::ElementType::fp32 ? "-" : format_share(row, ceiling);
}

std::string roof_sentence(const std::vector<Step>& steps) {
  std::vector<Row> rows;
  for (const Step& step : steps) {
    if (on_the_ladder(step)) rows.insert(rows.end(), step.rows.begin(), step.rows.end());
  }
  const std::string roof = roof_meaning(rows);
  return roof.empty() ? "" : " The roof is " + roof + ".";
}

Results::Table ladder_table(std::vector<Step> steps, Pass pass) {
  std::map<std::string, double> ceilings;  // by machine
  for (const Step& step : steps) {
    if (const auto ceiling = measured_fp32_ceiling(step)) ceilings[step.machine] = *ceiling;
  }
  for (Step& step : steps) step.rows = rows_of(step.rows, pass);
  std::erase_if(steps, [](const Step& step) { return !on_the_ladder(step); });
  std::vector<const Row*> rows;
  for (const Step& step : steps) {
    for (const Row& row : step.rows) rows.push_back(&row);
  }
  const bool timed = std::any_of(rows.begin(), rows.end(), [](const Row* row) { return row->seconds.has_value(); });
  const bool counted =
      std::any_of(rows.begin(), rows.end(), [](const Row* row) { return row->bytes_counted.has_value(); });
  const bool one_machine = on_one_machine(steps);

  std::vector<std::string> header = {"chapter",       "kernel",          "verdict",
                                     "problem",       "machine",         "time",
                                     "TFLOP/s",       "of roof",         "of measured fp32 ceiling",
                                     "bytes counted", "bytes predicted", timed ? "× step before" : "fewer bytes",
                                     "× best peer"};
  std::vector<std::vector<std::string>> cells;
  const Row* before = nullptr;
  const Step* step_before = nullptr;
  for (const Step& step : steps) {
    for (const Row& row : step.rows) {
      if (row.is_peer) continue;
      const bool comparable =
          before && step_before->problem_key == step.problem_key && step_before->machine == step.machine;
      const Row* above = comparable ? before : nullptr;
      const std::string ratio =
          timed ? format_step(above, row) : format_ratio(above ? step_ratio(*above, row, false) : std::nullopt);
      const auto ceiling = ceilings.find(step.machine);
      cells.push_back(
          {step.chapter, row.kernel, short_verdict(row), step.problem, one_machine ? "" : step.machine,
           row.seconds ? format_seconds(*row.seconds) : "-", format_teraflops(row), format_share_of_roof(row),
           ceiling == ceilings.end() ? "-" : format_measured_share(row, ceiling->second),
           format_count_or_dash(row.bytes_counted), counted || timed ? "-" : format_bytes_or_dash(row.bytes_predicted),
           ratio, format_best_peer(row)});
      before = &row;
      step_before = &step;
    }
  }
  drop_empty_columns(header, cells);
  return {"ladder", header, cells};
}

int ladder(int argc, const char* const* argv) {
  try {
    std::vector<Step> steps;
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      if (argument == "--help") {
        fmt::print("{}", kUsage);
        return 0;
      }
      if (argument.starts_with("-"))
        throw BadArgument(fmt::format("unknown argument '{}'; allowed: FILE..., --help", argument));
      steps.push_back(read_step(argument));
    }
    if (steps.empty())
      throw BadArgument("no file given; allowed: ladder FILE..., files that a chapter wrote with --json");
    const Results::Table forward = ladder_table(steps, Pass::forward), backward = ladder_table(steps, Pass::backward);
    if (forward.rows.empty() && backward.rows.empty()) {
      fmt::print("The ladder has no rows: none of these chapters ran an attention kernel.\n");
      return 0;
    }
    std::erase_if(steps, [](const Step& step) { return !on_the_ladder(step); });
    const std::string where = on_one_machine(steps) ? ", on " + steps.front().machine : "";
    const std::string sentences = fmt::format(
        "The ladder{}. A ratio stands where the row above solved the same problem.{}", where, roof_sentence(steps));
    fmt::print("{}\n", roof_sentence(steps).empty() ? sentences : wrap(sentences));
    if (!forward.rows.empty()) fmt::print("\n{}", layout_table(forward.header, forward.rows));
    if (!backward.rows.empty()) {
      fmt::print("\n{}\n\n{}", kBackwardLadder, layout_table(backward.header, backward.rows));
    }
    return 0;
  } catch (const BadArgument& error) {
    fmt::print(stderr, "ladder: {}\n", error.what());
    return 2;
  }
}

}  // namespace stage
