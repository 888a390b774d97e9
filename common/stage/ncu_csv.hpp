#pragma once
/// \file
/// What Nsight Compute (`ncu`) measured, read from its CSV.

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stage {

/// One launch of a kernel as ncu saw it.
struct NcuLaunch {
  std::string kernel;                     ///< as ncu writes it, "void scores_kernel<(int)64>(ForwardArgs<float>, int)"
  std::map<std::string, double> metrics;  ///< by ncu's name; seconds, bytes, per cent, or plain numbers

  /// Absent if ncu did not measure it: the GPU has no such counter.
  std::optional<double> value(const std::string& metric) const;
};

/// Reads what `ncu --csv --page raw --log-file FILE` wrote: a header, a row of units, a row a launch. Pages with a row
/// a metric ("Metric Name", "Metric Value") are read as well. Lines that begin with == are ncu's own messages, and what
/// stands before the header is the program's; both are skipped. A cell that is no number ("n/a") is a missing metric.
/// Units of time become seconds, those of size bytes.
///
/// \param source names the text in errors.
/// \return the launches in their order; none if ncu said that no kernel was profiled.
/// \throws BadArgument if there is no header although kernels were profiled, or a row is too short.
std::vector<NcuLaunch> parse_ncu_csv(const std::string& text, const std::string& source);

/// A kernel's function with its template arguments, as the emulator names it: "void ns::f<(int)64, (bool)1>(args)" is
/// "f<64, true>". A name that is already in this form stays as it is.
std::string normal_kernel_name(const std::string& name);

}  // namespace stage
