#pragma once
/// \file
/// The ladder as a plot: a gnuplot script with its data in it.

#include <string>
#include <vector>

#include "common/stage/results_file.hpp"

namespace stage {

/// A script for gnuplot 5.2 or later that writes an SVG to standard output: for each GPU a panel with a bar a kernel in
/// the ladder's order, TFLOP/s on a logarithmic axis, under the names of their chapters and the element type where it
/// is not fp32, and below it one of the kernels that go backward; chapter 00's measured fp32 ceiling is a line. Peers
/// are left out; chapters whose kernel files are not those in `present` are grey. Empty if nothing was timed.
///
/// The script depends on the results alone, so that its hash tells whether a picture shows the present ones.
std::string ladder_plot(const std::vector<MeasuredMachine>& machines, const KernelHashes& present);

}  // namespace stage
