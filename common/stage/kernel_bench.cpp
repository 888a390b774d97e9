#include "common/stage/kernel_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>

#include "common/gpu/buffer.hpp"
#include "common/stage/table.hpp"
#include "common/stage/timing.hpp"

namespace stage {
namespace {

bool ran_right(const Row& row) { return row.right && row.error.has_value(); }

/// Indices of the kernels to time.
std::vector<std::size_t> chosen(std::span<const AnyKernel> kernels, std::span<const Row> rows, Memory memory) {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    if (kernels[i].memory == memory && ran_right(rows[i])) indices.push_back(i);
  }
  return indices;
}

void bench_on_host(const AnyKernel& kernel, Row& row, const Case& of_pass, const Clock& clock) {
  const attention::Problem& p = of_pass.problem();
  Pointers arrays;
  for (const InputArray& input : of_pass.inputs_in_order()) arrays.inputs.push_back(input.bytes.data());
  std::vector<Bytes> outputs;
  for (const OutputArray& output : of_pass.outputs_in_order()) {
    outputs.emplace_back(output.bytes);
    arrays.outputs.push_back(outputs.back().data());
  }
  Bytes workspace(kernel.workspace_bytes(p));
  if (kernel.prepare) kernel.prepare(p, arrays, workspace.data());
  row.samples = time_launches(clock, [&] { kernel.run(p, arrays, workspace.data()); });
}

/// Times these kernels in rounds. \return the index of the one that failed, if one did; its row then says so.
std::optional<std::size_t> bench_on_device(std::span<const AnyKernel> kernels, std::span<Row> rows,
                                           const std::vector<std::size_t>& taking_part, const Case& of_pass,
                                           const Clock& clock) {
  const attention::Problem& p = of_pass.problem();
  using Buffer = gpu::DeviceBuffer<std::byte>;
  std::size_t running = taking_part.front();
  try {
    Pointers arrays;
    std::vector<Buffer> outputs;
    for (const OutputArray& output : of_pass.outputs_in_order()) {
      outputs.emplace_back(output.bytes, output.name);
      arrays.outputs.push_back(outputs.back().data());
    }
    std::size_t shared_bytes = 0;
    std::map<std::size_t, Buffer> own_workspaces;
    for (const std::size_t i : taking_part) {
      const std::size_t bytes = kernels[i].workspace_bytes(p);
      running = i;
      if (kernels[i].prepare) {
        own_workspaces.emplace(i, Buffer(bytes, "workspace"));
      } else {
        shared_bytes = std::max(shared_bytes, bytes);
      }
    }
    Buffer shared_workspace(shared_bytes, "workspace");
    RotatedInputs inputs(of_pass.inputs_in_order());

    std::vector<std::function<void()>> launches;
    for (const std::size_t i : taking_part) {
      const auto own = own_workspaces.find(i);
      void* workspace = own == own_workspaces.end() ? shared_workspace.data() : own->second.data();
      if (kernels[i].prepare) {
        running = i;
        inputs.bind_next(arrays);
        kernels[i].prepare(p, arrays, workspace);
        gpu::synchronize();
      }
      launches.push_back([&, i, workspace] {
        running = i;
        inputs.bind_next(arrays);
        kernels[i].run(p, arrays, workspace);
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

void bench(std::span<const AnyKernel> kernels, std::span<Row> rows, const Case& of_pass, const Clocks& clocks) {
  for (const std::size_t i : chosen(kernels, rows, Memory::host)) {
    bench_on_host(kernels[i], rows[i], of_pass, clocks.host);
  }
  std::vector<std::size_t> taking_part = chosen(kernels, rows, Memory::device);
  while (!taking_part.empty()) {
    const auto failed = bench_on_device(kernels, rows, taking_part, of_pass, clocks.device);
    if (!failed || !kernels[*failed].is_peer) break;
    taking_part = chosen(kernels, rows, Memory::device);
  }

  for (Row& row : rows) {
    if (row.samples.empty()) continue;
    row.seconds = median(row.samples);
    if (!row.on_host) row.peak_flops = roof(gpu::device(), of_pass.problem(), of_pass.pass());
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

Results::Table grid_table(const std::vector<ProblemRows>& grid, Pass pass) {
  Results::Table table{.name = pass == Pass::forward ? "grid" : "grid_backward", .header = {"problem"}, .rows = {}};
  if (grid.empty()) return table;
  const std::vector<Row> columns = rows_of(grid.front().rows, pass);
  for (const Row& column : columns) table.header.push_back(column.kernel);
  std::vector<std::vector<double>> logarithms(columns.size());
  for (const ProblemRows& line : grid) {
    const std::vector<Row> rows = rows_of(line.rows, pass);
    if (!std::equal(columns.begin(), columns.end(), rows.begin(), rows.end(),
                    [](const Row& a, const Row& b) { return a.kernel == b.kernel; })) {
      throw std::invalid_argument("the problems of a grid must have rows of the same kernels in the same order");
    }
    table.rows.push_back({line.problem.describe()});
    for (std::size_t c = 0; c < columns.size(); ++c) {
      table.rows.back().push_back(grid_cell(rows[c]));
      if (rows[c].best_peer) logarithms[c].push_back(std::log(rows[c].best_peer->median));
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
