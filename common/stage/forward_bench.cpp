#include "common/stage/forward_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "common/gpu/buffer.hpp"
#include "common/stage/table.hpp"
#include "common/stage/timing.hpp"

namespace stage {
namespace {

bool ran_right(const Row& row) { return row.right && row.error.has_value(); }

/// Indices of the kernels to time.
std::vector<std::size_t> chosen(std::span<const ForwardKernel* const> kernels, std::span<const Row> rows,
                                Memory memory) {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (kernels[i]->memory == memory && ran_right(rows[i])) indices.push_back(i);
  }
  return indices;
}

void bench_on_host(const ForwardKernel& kernel, Row& row, ForwardCase& forward, const Clock& clock) {
  const attention::Problem& p = forward.problem();
  std::vector<float> o(static_cast<std::size_t>(p.elements_o())), lse(static_cast<std::size_t>(p.elements_lse()));
  std::vector<unsigned char> workspace(kernel.workspace_bytes(p));
  const auto args = attention::make_forward_args<float>(p, forward.inputs().q.data(), forward.inputs().k.data(),
                                                        forward.inputs().v.data(), o.data(), lse.data());
  row.samples = time_launches(clock, [&] { kernel.run(args, workspace.data()); });
}

/// Times these kernels in rounds. \return the index of the one that failed, if one did; its row then says so.
std::optional<std::size_t> bench_on_device(std::span<const ForwardKernel* const> kernels, std::span<Row> rows,
                                           const std::vector<std::size_t>& taking_part, ForwardCase& forward,
                                           const Clock& clock) {
  const attention::Problem& p = forward.problem();
  std::size_t running = taking_part.front();
  try {
    std::size_t workspace_bytes = 0;
    for (const std::size_t i : taking_part) workspace_bytes = std::max(workspace_bytes, kernels[i]->workspace_bytes(p));
    gpu::DeviceBuffer<float> o(static_cast<std::size_t>(p.elements_o()), "O");
    gpu::DeviceBuffer<float> lse(static_cast<std::size_t>(p.elements_lse()), "LSE");
    gpu::DeviceBuffer<unsigned char> workspace(workspace_bytes, "workspace");  // they take turns
    RotatedInputs inputs(p, forward.inputs());
    auto args = attention::make_forward_args<float>(p, nullptr, nullptr, nullptr, o.data(), lse.data());

    std::vector<std::function<void()>> launches;
    for (const std::size_t i : taking_part) {
      launches.push_back([&, i] {
        running = i;
        inputs.bind_next(args);
        kernels[i]->run(args, workspace.data());
      });
    }
    std::vector<std::vector<double>> samples = time_in_rounds(launches, clock);
    for (std::size_t j = 0; j < taking_part.size(); ++j) rows[taking_part[j]].samples = std::move(samples[j]);
  } catch (const gpu::Error& error) {
    rows[running].right = false;
    rows[running].verdict = fmt::format("failed: while it was timed: {}", error.what());
    return running;
  }
  return std::nullopt;
}

const Row* best_of_peers(std::span<const Row> rows) {
  const Row* best = nullptr;
  for (const Row& row : rows) {
    if (row.is_peer && row.seconds && (!best || *row.seconds < *best->seconds)) best = &row;
  }
  return best;
}

std::string grid_cell(const Row& row) {
  if (!row.right) return short_verdict(row);
  const std::string rate = format_teraflops(row);
  return row.best_peer ? fmt::format("{} ({})", rate, format_ratio(row.best_peer->median)) : rate;
}

}  // namespace

void bench_forward(std::span<const ForwardKernel* const> kernels, std::span<Row> rows, ForwardCase& forward,
                   const Clocks& clocks) {
  for (const std::size_t i : chosen(kernels, rows, Memory::host)) {
    bench_on_host(*kernels[i], rows[i], forward, clocks.host);
  }
  std::vector<std::size_t> taking_part = chosen(kernels, rows, Memory::device);
  while (!taking_part.empty()) {
    const auto failed = bench_on_device(kernels, rows, taking_part, forward, clocks.device);
    if (!failed || !kernels[*failed]->is_peer) break;
    taking_part = chosen(kernels, rows, Memory::device);
  }

  for (Row& row : rows) {
    if (row.samples.empty()) continue;
    row.seconds = median(row.samples);
    if (!row.on_host) row.peak_flops = fp32_roof(gpu::device(), forward.problem());
  }
  const Row* peer = best_of_peers(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    if (!row.seconds || row.is_peer || row.on_host) continue;
    if (i > 0 && !rows[i - 1].is_peer && !rows[i - 1].on_host) {
      row.step_before = ratio_by_round(rows[i - 1].samples, row.samples);
    }
    if (peer) {
      row.best_peer = ratio_by_round(peer->samples, row.samples);
      row.best_peer_name = peer->kernel;
    }
  }
}

Results::Table grid_table(const std::vector<ProblemRows>& grid) {
  Results::Table table{.name = "grid", .header = {"problem"}, .rows = {}};
  if (grid.empty()) return table;
  const std::vector<Row>& columns = grid.front().rows;
  for (const Row& column : columns) table.header.push_back(column.kernel);
  std::vector<std::vector<double>> logarithms(columns.size());
  for (const ProblemRows& line : grid) {
    if (!std::equal(columns.begin(), columns.end(), line.rows.begin(), line.rows.end(),
                    [](const Row& a, const Row& b) { return a.kernel == b.kernel; })) {
      throw std::invalid_argument("the problems of a grid must have rows of the same kernels in the same order");
    }
    table.rows.push_back({line.problem.describe()});
    for (std::size_t c = 0; c < columns.size(); ++c) {
      table.rows.back().push_back(grid_cell(line.rows[c]));
      if (line.rows[c].best_peer) logarithms[c].push_back(std::log(line.rows[c].best_peer->median));
    }
  }
  if (std::all_of(logarithms.begin(), logarithms.end(), [](const auto& column) { return column.empty(); }))
    return table;
  table.rows.push_back({"geometric mean of the ratios"});
  for (const std::vector<double>& column : logarithms) {
    double sum = 0;
    for (const double x : column) sum += x;
    table.rows.back().push_back(column.empty() ? "-"
                                               : format_ratio(std::exp(sum / static_cast<double>(column.size()))));
  }
  return table;
}

}  // namespace stage
