#pragma once
/// \file
/// Measured results as Markdown, and the regions of a README that hold it.
///
/// A region lies between a line `<!-- results:NN -->` and a line `<!-- /results -->`. NN is a chapter's number or
/// `ladder`. Words after the number name tables that the chapter's program recorded and that are shown under its rows:
/// `<!-- results:00 ceilings -->`.

#include <optional>
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

/// What stands in the region of a chapter: a table a GPU, or one for each of its passes. A chapter's results are stale,
/// and marked so, if its kernel files are not those in `present`.
std::string chapter_markdown(const std::vector<MeasuredMachine>& machines, const std::string& folder,
                             const std::vector<std::string>& tables, const KernelHashes& present);

/// The ladder, a table a GPU; of the kernels that go backward a second one. Chapters that were measured with another
/// driver or CUDA are named so in a column of their own, and no ratio or share leads from one to another.
std::string ladder_markdown(const std::vector<MeasuredMachine>& machines, const KernelHashes& present);

/// A table as GitHub and Doxygen read it; numbers right-aligned, but for the first column, which names the row.
std::string markdown_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

/// GPU, driver, CUDA, date and commit: a line.
std::string describe(const Measurement& measurement);

/// Whether the chapter's kernel files, or the headers that all kernels are made of, are others now. Headers that are
/// new make nothing stale: they came with another chapter.
bool is_stale(const MeasuredChapter& chapter, const KernelHashes& present);

/// FLOP/s of fp32 multiply-adds by chapter 00; absent if the machine's results have none.
std::optional<double> measured_fp32_ceiling(const MeasuredMachine& measured);

}  // namespace stage
