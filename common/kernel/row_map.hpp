#pragma once
/// \file
/// Tensor maps of Q, K, V and O: any strides, boxes of one head's rows, 64 columns of them. Taught in chapter 11.

#include <cstdint>
#include <type_traits>

#include "common/attention/problem.hpp"
#include "common/gpu/element_types.hpp"
#include "common/gpu/tensor_map.hpp"

namespace kernel {

/// Of an array [batch, seqlen, heads, head_dim]. Dimensions, from the innermost: column, row, head, batch entry. A box
/// is a panel of `box_rows` rows (panel_tile.cuh). Rows before the first and past the last are nobody's: the next
/// head's stand in another place of the third dimension.
///
/// An array without elements gives a map that no box may be asked of.
/// \throws gpu::Error if a stride is none that TMA takes.
template <class T>
gpu::TensorMap row_map(const T* array, const attention::Strides& strides, int batch, int seqlen, int heads,
                       int head_dim, int box_rows) {
  if (batch == 0 || seqlen == 0 || heads == 0) return {};
  // Along a dimension of size 1 nobody moves, and its stride may be anything.
  const auto bytes = [](std::int64_t stride, int size) {
    return size > 1 ? static_cast<std::uint64_t>(stride) * sizeof(T) : std::uint64_t{16};
  };
  gpu::TensorMapShape shape;
  shape.element = std::is_same_v<T, gpu::fp16> ? gpu::TensorElement::fp16 : gpu::TensorElement::bf16;
  shape.base = const_cast<T*>(array);
  shape.sizes = {std::uint64_t(head_dim), std::uint64_t(seqlen), std::uint64_t(heads), std::uint64_t(batch)};
  shape.stride_bytes = {bytes(strides.seq, seqlen), bytes(strides.head, heads), bytes(strides.batch, batch)};
  shape.box = {64, static_cast<std::uint32_t>(box_rows), 1, 1};
  shape.swizzle = gpu::Swizzle::bytes_128;
  return gpu::make_tensor_map(shape);
}

}  // namespace kernel
