#pragma once
/// \file
/// One kernel on one problem: is it taken, does it fit, is it right, what does it move.

#include "common/stage/any_kernel.hpp"
#include "common/stage/case.hpp"
#include "common/stage/program.hpp"

namespace stage {

/// \throws Refused if the kernel does not take the problem, or if its arrays and workspace do not fit in memory (with
/// the bytes needed and available). Allocates nothing.
void admit(const AnyKernel& kernel, const attention::Problem& p);

/// Which launches of a kernel are counted.
enum class Counting {
  run,           ///< those of `run`, once: gpu::kernel_counts() holds these afterwards
  all_launches,  ///< all that there are, as a GPU's counters see them: also those of `prepare`. `run` then runs once
};

/// A row that says who the kernel is and nothing else.
Row row_of(const AnyKernel& kernel);

/// Runs an admitted kernel, checks its outputs and the elements around them, and compares the counts with the model.
///
/// It runs once; a kernel that promises equal bits runs a second time, and any difference makes it wrong. A gpu::Error
/// of the kernel becomes a row that is not right, so that the next kernel still runs.
/// \throws std::invalid_argument if the kernel goes the other way than the case.
Row run_admitted(const AnyKernel& kernel, Case& of_pass, Counting counting = Counting::run);

}  // namespace stage
