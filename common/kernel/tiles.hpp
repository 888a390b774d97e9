#pragma once
/// \file
/// How many tiles a length takes.

namespace kernel {

/// Tiles, or blocks, of `size` ≥ 1 elements that cover `length` ≥ 0: ⌈length / size⌉, of which the last may be cut. On
/// the host and in kernels. (length + size − 1) / size is the same, but overflows near the largest int.
constexpr int tiles_of(int length, int size) { return length / size + (length % size != 0); }

}  // namespace kernel
