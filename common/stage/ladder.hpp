#pragma once
/// \file
/// The ladder: the results of several chapters in one table.

#include <optional>
#include <string>
#include <vector>

#include "common/stage/json.hpp"

namespace stage {

/// FLOP/s of fp32 multiply-adds, if these are the results of chapter 00 on a GPU: what its program measured.
std::optional<double> measured_fp32_ceiling(const Step& step);

/// "56.7 %" of that ceiling; a dash for a kernel that ran on the host, or in 16 bits.
std::string format_measured_share(const Row& row, const std::optional<double>& ceiling);

/// Stands above the ladder of the backward.
inline constexpr const char* kBackwardLadder = "Backward, credited with 2.5 times the forward's FLOPs:";

/// " The roof is …", after the sentence on the ladder's ratios; empty where none of its rows is in 16 bits.
std::string roof_sentence(const std::vector<Step>& steps);

/// A row per kernel of this pass, with the ratio to the row before where both solved the same problem on the same
/// machine. Chapters that solve no attention problem are left out, and so are peers, of which the ratio to the best is
/// shown; no rows if all are left out.
Results::Table ladder_table(std::vector<Step> steps, Pass pass = Pass::forward);

/// `ladder FILE...`: reads what chapters wrote with `--json` and prints a row per kernel, with the ratio to the row
/// before where both solved the same problem on the same machine; kernels that go backward in a table of their own.
///
/// \return 0; 2 for a file that cannot be read or is malformed, after one line on standard error.
int ladder(int argc, const char* const* argv);

}  // namespace stage
