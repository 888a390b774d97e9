#pragma once
/// \file
/// Tensor cores, a warp at a time (sm_80 and later): `mma.sync` and what brings its operands from shared memory.
///
/// `mma_16x8x16<Element>(d, a, b)`: D += A·B for A 16 × 16, B 16 × 8, fp16 or bf16, D 16 × 8 in fp32. All 32 lanes take
/// part, and each holds its share of the matrices, the *fragments*, in registers: A in four of two elements each, B in
/// two, D in four floats. With g = lane / 4 and t = lane % 4:
///
///     a[0]  row g,      columns 2t,     2t + 1        b[0]  column g,  rows 2t,     2t + 1
///     a[1]  row g + 8,  columns 2t,     2t + 1        b[1]  column g,  rows 2t + 8, 2t + 9
///     a[2]  row g,      columns 2t + 8, 2t + 9        d[0], d[1]  row g,      columns 2t, 2t + 1
///     a[3]  row g + 8,  columns 2t + 8, 2t + 9        d[2], d[3]  row g + 8,  columns 2t, 2t + 1
///
/// The element of the lower column (of B: row) is in the lower half of the register. Which lane holds what of D, or of
/// one quarter of A, an 8 × 8 matrix:
///
///     columns    0  1    2  3    4  5    6  7
///     row 0    lane 0  lane 1  lane 2  lane 3
///     row 1    lane 4  lane 5  lane 6  lane 7
///     …
///     row 7    lane 28 lane 29 lane 30 lane 31
///
/// So D of one product has the shape of the A of the next: packing d[0], d[1] gives a[0], and d[2], d[3] gives a[1];
/// the product for the next eight columns gives a[2] and a[3]. That is how P stays in registers.
///
/// `load_matrices<N>(registers, row)` (ldmatrix) loads N = 1, 2 or 4 matrices of 8 × 8 16-bit elements: lanes 8i … 8i +
/// 7 give the addresses of the rows of matrix i, 16 bytes each and aligned to 16 (lanes from 8N on: any address). Lane
/// l then holds in registers[i] the elements (l / 4, 2 (l % 4)) and the next of matrix i: the fragments above.
/// `load_matrices_transposed` gives (2 (l % 4), l / 4) and the one below it: a row-major matrix arrives as the B of a
/// product. `store_matrices<N>(row, registers)` (stmatrix, sm_90) is the way back. Eight rows are read in one wavefront
/// if they lie in different banks.
///
/// `transposed_matrix(register)` (movmatrix) turns the fragment of an 8 × 8 matrix into that of its transpose, from
/// registers to registers.
///
/// All lanes of the warp have to execute each of these together. They read and write shared memory like ordinary
/// accesses of the lanes that give the addresses: barriers order them.
///
/// Sources: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", "ldmatrix", "stmatrix", "movmatrix".

#include "common/gpu/numeric.cuh"

#ifdef __CUDACC__
#include "common/gpu/cuda/tensor_core.cuh"
#else
#include "common/gpu/emulator/tensor_core.hpp"
#endif
