#pragma once
/// \file
/// The ladder: the results of several chapters in one table.

#include <vector>

#include "common/stage/json.hpp"

namespace stage {

/// A row per kernel, with the ratio to the row before where both solved the same problem on the same machine. Chapters
/// that solve no attention problem are left out; no rows if all are.
Results::Table ladder_table(std::vector<Step> steps);

/// `ladder FILE...`: reads what chapters wrote with `--json` and prints a row per kernel, with the ratio to the row
/// before where both solved the same problem on the same machine.
///
/// \return 0; 2 for a file that cannot be read or is malformed, after one line on standard error.
int ladder(int argc, const char* const* argv);

}  // namespace stage
