#pragma once
/// \file
/// Memory that the caller of a library has brought.

namespace gpu {

/// From now on kernels are given memory that was not allocated here. A GPU takes it as it takes its own. The plain
/// emulator then lets TMA into addresses that it does not know; the checking build, which keeps book of every byte, does
/// not.
void allow_foreign_memory();

}  // namespace gpu
