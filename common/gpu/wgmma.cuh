#pragma once
/// \file
/// WGMMA: four warps multiply straight from shared memory, and go on while the tensor cores work (sm_90a).
///
///     wgmma<Element, N>(d, a, b, accumulate)     D (64 × N, fp32) = A·B, or += where `accumulate`
///
/// by the 128 threads of a *warpgroup*, four warps from a multiple of four on. A is 64 × K, B is K × N, with K = 16 for
/// fp16 and bf16 and K = 32 for fp8; N is a multiple of 8 from 8 to 256. B comes from shared memory; A too, through a
/// MatrixDescriptor ("SS"), or from registers ("RS"). D is in registers: with warp w, g = lane / 4, t = lane % 4, and
/// j = 0 … N / 8 − 1
///
///     d[4j],     d[4j + 1]:   row 16w + g,      columns 8j + 2t, 8j + 2t + 1
///     d[4j + 2], d[4j + 3]:   row 16w + g + 8,  the same columns
///
/// (d may also be given as float[N / 8][4], one row for each j). A from registers is the fragment of mma_16x8x16 for
/// rows 16w … 16w + 15 (tensor_core.cuh); for fp8 each register has four elements, columns 4t … 4t + 3 and, in a[2],
/// a[3], 16 further on.
///
/// **Shared memory operands.** K-major: the elements of a row of A (a column of B) along K are neighbours. MN-major:
/// those along M or N are (fp16 and bf16 only). With a swizzle of W = 32, 64 or 128 bytes (swizzle.cuh) the matrix
/// stands in panels W bytes wide, 8 rows of which make a group of 8 · W bytes; `matrix_descriptor(smem, swizzle,
/// leading_bytes, stride_bytes)`:
///
///     K-major, swizzled:    stride_bytes from one group of 8 rows (of M or N) to the next; leading_bytes is not used.
///                           The next K is 32 bytes on inside the row: descriptor + 32 bytes.
///     MN-major, swizzled:   W / 2 elements of M or N are a row of a panel, 8 values of K a group: stride_bytes from
///                           one group of 8 K to the next, leading_bytes from one panel to the next.
///     without a swizzle:    core matrices of 8 rows × 16 bytes, each dense in 128 bytes (MN-major: a row is one K).
///                           leading_bytes between neighbours along K, stride_bytes along M or N, in both majors.
///
/// A swizzled tile starts at a multiple of 8 · W bytes.
///
/// **Order.** wgmma_fence() before the first product, whenever ordinary code has written d (or a in registers) since
/// the last wait; then the products; wgmma_commit() closes them into a group; wgmma_wait<N>() returns when all but the
/// newest N groups are done. Between issue and wait nobody may touch d or a's registers, nor write the shared memory
/// that is being read. Ordinary writes to that memory need async_proxy_fence() and a barrier before the product; what
/// TMA brought does not. `keep(d)` tells the compiler that it may not move work on d across this point.
///
/// The emulator computes at the wait: until then d holds NaN. It checks warpgroup, alignment, fences and proxies.
///
/// Sources: PTX ISA, "Asynchronous warpgroup level matrix instructions": register fragments, "Shared Memory Matrix
/// Layout", "Matrix Descriptor Format", "Canonical Layouts".

#include <cstdint>

#include "common/gpu/matrix_descriptor.hpp"
#include "common/gpu/numeric.cuh"

#ifdef __CUDACC__
#include "common/gpu/cuda/wgmma.cuh"
#else
#include "common/gpu/emulator/wgmma.hpp"
#endif
