#pragma once
/// \file
/// The agreement of the emulator's counts with a GPU's counters, as Markdown.

#include <string>
#include <vector>

#include "common/stage/counts_file.hpp"

namespace stage {

/// What stands in the region `counts` of docs/counting.md: for each GPU and chapter a table of device memory and one of
/// shared memory, the emulator's count, the GPU's and the difference. A difference of more than 1 % in the sectors of
/// device memory is bold. Without a GPU's counts the emulator's stand alone. Counts of a GPU are marked stale if the
/// chapter's kernel files are not those in `present`.
///
/// \param emulator what the emulator counted; no chapters if nobody asked it yet.
std::string counts_markdown(const MachineCounts& emulator, const std::vector<MachineCounts>& gpus,
                            const KernelHashes& present);

}  // namespace stage
