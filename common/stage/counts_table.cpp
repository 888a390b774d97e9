#include "common/stage/counts_table.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/stage/table.hpp"

namespace stage {
namespace {

std::string format_count(std::uint64_t count) { return stage::format_count(static_cast<double>(count)); }

std::vector<std::string> cells(const gpu::GlobalAccesses& accesses) {
  const auto requests = static_cast<double>(accesses.requests);
  return {format_count(accesses.bytes), format_count(accesses.sectors),
          accesses.requests ? fmt::format("{:.1f}", static_cast<double>(accesses.sectors) / requests) : "-"};
}

std::vector<std::string> cells(const gpu::SharedAccesses& accesses) {
  return {format_count(accesses.requests), format_count(accesses.wavefronts), format_count(accesses.conflicts)};
}

void append(std::vector<std::string>& row, const std::vector<std::string>& more) {
  row.insert(row.end(), more.begin(), more.end());
}

CountsTable device_memory(std::span<const gpu::KernelCounts> kernels) {
  CountsTable table{
      .name = "counts",
      .header = {"kernel", "launches", "bytes loaded", "sectors loaded", "sectors / load", "bytes stored",
                 "sectors stored", "sectors / store"},
      .rows = {},
      .explanations = {
          "bytes: what the threads asked for in device memory; an atomic loads and stores.",
          "sectors: the pieces of 32 bytes that this touched, load by load and store by store of each warp; "
          "caches serve many.",
          "sectors / load: a warp's load of 32 neighbouring floats touches 4, of float4s 16; if the floats "
          "are scattered, 32."}};
  for (const gpu::KernelCounts& kernel : kernels) {
    table.rows.push_back({kernel.kernel, format_count(kernel.launches)});
    append(table.rows.back(), cells(kernel.global_loads));
    append(table.rows.back(), cells(kernel.global_stores));
  }
  return table;
}

CountsTable shared_memory(std::span<const gpu::KernelCounts> kernels) {
  CountsTable table{
      .name = "counts_shared",
      .header = {"kernel", "shared loads", "wavefronts", "conflicts", "shared stores", "wavefronts", "conflicts",
                 "barriers"},
      .rows = {},
      .explanations = {"shared loads, stores: instructions of warps on shared memory.",
                       "wavefronts: the turns that they take, in which each of the 32 banks moves one word of 4 bytes.",
                       "conflicts: the wavefronts that are due to lanes that want different words of one bank.",
                       "barriers: __syncthreads() completed, once a block."}};
  for (const gpu::KernelCounts& kernel : kernels) {
    table.rows.push_back({kernel.kernel});
    append(table.rows.back(), cells(kernel.shared_loads));
    append(table.rows.back(), cells(kernel.shared_stores));
    table.rows.back().push_back(format_count(kernel.barriers));
  }
  return table;
}

}  // namespace

std::vector<CountsTable> counts_tables(std::span<const gpu::KernelCounts> kernels) {
  if (kernels.empty()) return {};
  std::vector<CountsTable> tables = {device_memory(kernels)};
  if (std::any_of(kernels.begin(), kernels.end(), [](const gpu::KernelCounts& kernel) {
        return kernel.shared_loads.requests || kernel.shared_stores.requests || kernel.barriers;
      })) {
    tables.push_back(shared_memory(kernels));
  }
  return tables;
}

void add_counts(std::vector<gpu::KernelCounts>& sum, const std::vector<gpu::KernelCounts>& more) {
  for (const gpu::KernelCounts& kernel : more) {
    const auto same = [&](const gpu::KernelCounts& other) { return other.kernel == kernel.kernel; };
    if (const auto known = std::find_if(sum.begin(), sum.end(), same); known != sum.end()) {
      known->add(kernel);
    } else {
      sum.push_back(kernel);
    }
  }
}

}  // namespace stage
