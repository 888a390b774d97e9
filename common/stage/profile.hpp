#pragma once
/// \file
/// What a profiler saw of a kernel, metric by metric, each against its threshold and explained in a line.

#include <string>
#include <vector>

#include "common/stage/ncu_csv.hpp"

namespace stage {

/// The metrics that `ncu --metrics` is asked for, by ncu's names.
const std::vector<std::string>& profile_metrics();

/// What a kernel should be limited by, told by its busiest unit.
enum class KernelKind {
  memory,  ///< device memory or L2, whichever is busier
  fp32,    ///< the fp32 multiply-add pipe
  tensor,  ///< the tensor cores
};

/// The kind whose unit has the highest share of its peak; `memory` if two are equal or all are missing.
KernelKind kernel_kind(const NcuLaunch& launch);

/// One line of the report.
struct ProfiledMetric {
  std::string name;       ///< in plain words
  std::string value;      ///< with its unit; a dash if the GPU has no such counter
  std::string threshold;  ///< a dash if there is none for a kernel of this kind
  std::string verdict;    ///< "reached"; "below" or "above"; "for information"
  std::string meaning;
};

/// The fixed list, in its order.
std::vector<ProfiledMetric> judge_launch(const NcuLaunch& launch);

/// A table a kernel, instances of a template apart, and then a line on each metric. A kernel that was launched several
/// times is shown by its longest launch.
std::string profile_report(const std::vector<NcuLaunch>& launches);

/// `profile metrics` prints the list for `ncu --metrics`; `profile report FILE` prints the report of the CSV in FILE.
///
/// \return 0; 2 after one line on standard error.
int profile(int argc, const char* const* argv);

}  // namespace stage
