#pragma once
/// \file
/// How long kernels take on one problem, each against the one before it and against the best peer.

#include <span>
#include <string>
#include <vector>

#include "common/stage/any_kernel.hpp"
#include "common/stage/case.hpp"
#include "common/stage/json.hpp"
#include "common/stage/program.hpp"
#include "common/stage/rounds.hpp"

namespace stage {

/// What tells the time on the device and on the host.
struct Clocks {
  Clock device = device_clock();
  Clock host = host_clock();
};

/// Times the kernels whose rows are right: those on the device together, in rounds, on inputs that no cache holds
/// (RotatedInputs); those on the host one by one. Fills in samples, median, roof and ratios; other rows stay as they
/// are.
///
/// A kernel that fails on the device gets a row that says so, and no row of the device gets times, since the device may
/// be gone. A peer that fails is left out, and the others are timed again.
///
/// Kernels take turns with one workspace. One that has something to prepare keeps a workspace of its own, prepared once
/// and for all copies of the inputs, which hold equal values.
/// \param kernels of the case's pass
/// \param rows of run_admitted, one a kernel
void bench(std::span<const AnyKernel> kernels, std::span<Row> rows, const Case& of_pass, const Clocks& clocks);

/// A table of several problems: a line a problem, a column a kernel or peer, in each cell TFLOP/s and, where there are
/// peers, the ratio to the best of them; below, each kernel's geometric mean of these ratios. The problems' rows must
/// be of the same kernels in the same order. \throws std::invalid_argument otherwise.
/// \param pass of the rows that are shown; the table is named "grid", or "grid_backward".
Results::Table grid_table(const std::vector<ProblemRows>& grid, Pass pass = Pass::forward);

}  // namespace stage
