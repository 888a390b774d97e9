#pragma once
/// \file
/// The ladder: the results of several chapters in one table.

namespace stage {

/// `ladder FILE...`: reads what chapters wrote with `--json` and prints a row per kernel, with the ratio to the row
/// before where both solved the same problem on the same machine.
///
/// \return 0; 2 for a file that cannot be read or is malformed, after one line on standard error.
int ladder(int argc, const char* const* argv);

}  // namespace stage
