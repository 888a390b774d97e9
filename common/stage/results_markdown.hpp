#pragma once
/// \file
/// Measured results as Markdown, and the regions of a README that hold it.
///
/// A region lies between a line `<!-- results:NN -->` and a line `<!-- /results -->`. NN is a chapter's number or
/// `ladder`. Words after the number name tables that the chapter's program recorded and that are shown under its rows:
/// `<!-- results:00 ceilings -->`.

#include <string>
#include <vector>

#include "common/stage/results_file.hpp"

namespace stage {

/// A region of a text, without its two marker lines.
struct Region {
  std::size_t begin = 0, end = 0;   ///< offsets into the text
  std::vector<std::string> tables;  ///< named in the marker
};

/// Finds the only region. \throws BadArgument naming `path` unless the text has one begin marker, which is of `name`
/// ("02", "ladder"), and one end marker below it.
Region find_region(const std::string& text, const std::string& name, const std::string& path);

/// What stands in the region of a chapter: a table a GPU. A chapter's results are stale, and marked so, if its kernel
/// files are not those in `present`.
std::string chapter_markdown(const std::vector<MeasuredMachine>& machines, const std::string& folder,
                             const std::vector<std::string>& tables, const KernelHashes& present);

/// The ladder, a table a GPU.
std::string ladder_markdown(const std::vector<MeasuredMachine>& machines, const KernelHashes& present);

/// The sample below which `share` of the samples lie, by linear interpolation between the two nearest; NaN of none.
double percentile(std::vector<double> samples, double share);

}  // namespace stage
