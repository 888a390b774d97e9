#pragma once
/// \file
/// What a problem needs in memory, and what the host still has.

#include "common/attention/problem.hpp"
#include "common/stage/kernel.hpp"

namespace stage {

/// From here on memory that is freed stays with the process (glibc). The next problem's arrays then get pages that are
/// there, and not new ones that the system has to clear first: on two cores it took 2.3 seconds in place of 5.8 to make
/// a problem with N = 8192 and to judge O twice.
void keep_freed_memory();

/// Bytes of host memory that new allocations could get now, at most (Linux: MemAvailable, and what the process has
/// kept, which may lie in pieces); infinite where the system does not say.
double host_memory_available();

/// Number of arrays that a pass writes.
int outputs_of(Pass pass);

/// Bytes of Q, K, V and O in the problem's element type and of LSE in fp32; backward also of dO, dQ, dK and dV.
double array_bytes(const attention::Problem& p, Pass pass);

/// Bytes of host memory that a checked run needs: the arrays, the reference's results, in 16 bits the fp32 numbers that
/// are stored in them, and on the emulator the arrays a second time, since its device memory is the host's.
double host_bytes(const attention::Problem& p, bool emulated, Pass pass);

}  // namespace stage
