#pragma once
/// \file
/// `mbarrier`: a barrier in shared memory that counts arrivals and bytes (sm_90; PTX ISA, "mbarrier").
///
/// It goes through phases. A phase ends when the number of arrivals that it was initialised with have come *and* all
/// bytes that were announced have been delivered; then the next begins by itself, with the same number of arrivals.
///
///     mbarrier_init(bar, arrivals)           one thread, once; then mbarrier_init_fence() and a barrier of the block
///                                            (of the cluster, if others use it)
///     mbarrier_arrive(bar)                   one arrival; releases what this thread wrote before
///     mbarrier_arrive_after(bar, x)          the same, once x is there: a number that is not negative
///     mbarrier_arrive_expect_bytes(bar, n)   announces n bytes, and arrives
///     mbarrier_expect_bytes(bar, n)          announces n bytes only
///     mbarrier_arrive_remote(bar, rank)      arrives at the barrier at the same place in another block of the cluster
///     mbarrier_wait(bar, parity)             waits until the phase of that parity is over; acquires what arrivals
///                                            released and what was delivered
///
/// Phases are numbered 0, 1, 2, …, and a wait names the last bit of the number. So the wait for parity 1 passes on a
/// fresh barrier, as if a phase −1 had ended: a producer begins that way on an "empty" barrier. A waiter that lags two
/// phases behind would be taken for one that is ahead; whoever arrives for the next phase must know that all waiters of
/// this one are through.
///
/// An arrival, or a wait, does not say which arithmetic belongs before it, and the compiler may carry some past it that
/// was to run there (under a product, say). mbarrier_arrive_after holds it: x needs that arithmetic.
///
/// Bytes are those of the whole TMA box, also where it lies outside the array and zeros arrive.
///
/// The emulator keeps count, phase and announced bytes of each; more arrivals than expected, bytes that nobody
/// announced and a word that was never initialised are faults, and a deadlock names barrier, phase, missing arrivals
/// and bytes.

#include <cstdint>

#include "common/gpu/launch.cuh"

namespace gpu {

/// A barrier's word in shared memory. Only the functions of this header touch it.
struct alignas(8) Mbarrier {
  std::uint64_t word;
};

}  // namespace gpu

#ifdef __CUDACC__
#include "common/gpu/cuda/mbarrier.cuh"
#else
#include "common/gpu/emulator/mbarrier.hpp"
#endif
