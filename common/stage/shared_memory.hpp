#pragma once
/// \file
/// A chapter's table of what its kernels ask of shared memory.

#include <string>
#include <vector>

#include "common/stage/program.hpp"

namespace stage {

/// Runs forward kernels on the program's problem with EmulatorOptions::count_requests, and prints the table
/// "shared_memory": requests of warps, wavefronts for one of them, conflicts, barriers.
///
/// Only the checking build counts. Other builds launch nothing and say which command does.
/// \param chapter its number, "05", for that command
/// \param sentence printed before the table
/// \param wavefronts_by_formula of a load, by the chapter's model: one a kernel, shown beside what was counted. Empty:
///        no such column
/// \throws std::invalid_argument if there are neither as many of these as kernels nor none.
void show_shared_memory(Program& program, const std::string& chapter, const std::vector<ForwardKernel>& kernels,
                        const std::string& sentence, const std::vector<int>& wavefronts_by_formula = {});

}  // namespace stage
