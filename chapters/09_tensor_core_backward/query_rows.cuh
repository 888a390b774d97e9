#pragma once
/// \file
/// Before and after the products: what a row of queries needs, and dQ out of its sums.
///
///   - prepare_kernel: LSE · log₂ e and D = rowsum(dO∘O) − dLSE of every query; zeros where dQ will be added up.
///   - finish_kernel: dQ = scale · the sums, rounded to 16 bits.
///
/// Sums over the blocks are kept in fp32: thousands of keys' parts rounded to 16 bits one after the other would leave
/// little of dQ. They stand in the order of fragments, so that a warp adds what it holds as 512 bytes without gaps.
///
/// Rows are padded to whole tiles of 64 queries. Bytes: prepare_traffic(), finish_traffic().

#include <algorithm>
#include <cstdint>
#include <string>

#include "chapters/09_tensor_core_backward/tile.cuh"
#include "common/gpu/atomic.cuh"
#include "common/gpu/warp.cuh"

namespace tensor_core_backward {

/// Queries of a tile, in both kernels and all steps.
inline constexpr int kTileRows = 64;
/// Rows of a block of prepare_kernel: one a warp.
inline constexpr int kRowsPerBlock = 4;

/// Where the statistics and the sums are in the workspace.
struct Workspace {
  std::int64_t rows;  ///< batch · heads_q · padded_rows
  int padded_rows;    ///< of a head: whole tiles
  int head_dim;       ///< of the sums; 0 where there are none

  static Workspace of(const Problem& p, bool sums) {
    const int padded = tiles_of(p.seqlen_q, kTileRows) * kTileRows;
    return {std::int64_t{p.batch} * p.heads_q * padded, padded, sums ? p.head_dim : 0};
  }
  template <class T>
  static Workspace of(const BackwardArgs<T>& args, bool sums) {
    const int padded = tiles_of(args.seqlen_q, kTileRows) * kTileRows;
    return {std::int64_t{args.batch} * args.heads_q * padded, padded, sums ? args.head_dim : 0};
  }
  std::size_t bytes() const {
    return static_cast<std::size_t>(rows) *
           (sizeof(RowStatistics) + sizeof(float) * static_cast<std::size_t>(head_dim));
  }
  RowStatistics* statistics(void* workspace) const { return static_cast<RowStatistics*>(workspace); }
  /// The statistics are a multiple of 64 · 8 bytes long, so that the sums begin at 16 bytes. Null where there are none.
  float* sums(void* workspace) const {
    return head_dim ? reinterpret_cast<float*>(statistics(workspace) + rows) : nullptr;
  }
};

/// Where a lane's four sums are: fragment `column_tile` of the 16 rows from `row`, a multiple of 16, on; in floats.
template <int kHeadDim>
__device__ std::int64_t sums_offset(std::int64_t row, int column_tile, int lane) {
  return ((row / 16 * (kHeadDim / 8) + column_tile) * gpu::kWarpSize + lane) * 4;
}

/// Two neighbouring elements.
template <class T>
__device__ float2 load_pair(const T* pair) {
  std::uint32_t bits = *reinterpret_cast<const std::uint32_t*>(pair);
  const T* elements = reinterpret_cast<const T*>(&bits);
  return make_float2(gpu::to_float(elements[0]), gpu::to_float(elements[1]));
}

/// A warp a padded row.
template <class T, int kHeadDim>
__global__ void prepare_kernel(BackwardArgs<T> args, RowStatistics* statistics_gmem, float* sums_gmem,
                               std::int64_t rows, int padded_rows) {
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize;
  const std::int64_t index = std::int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / gpu::kWarpSize;
  if (index >= rows) return;
  if (sums_gmem) {
    // As many floats as a row has, wherever those of the row itself stand.
    for (int c = 4 * lane; c < kHeadDim; c += 4 * gpu::kWarpSize) {
      gpu::store4(sums_gmem + index * kHeadDim + c, make_float4(0, 0, 0, 0));
    }
  }
  const int query = static_cast<int>(index % padded_rows);
  if (query >= args.seqlen_q) {
    if (lane == 0) statistics_gmem[index] = {INFINITY, 0};
    return;
  }
  const int head = static_cast<int>(index / padded_rows % args.heads_q);
  const int batch = static_cast<int>(index / padded_rows / args.heads_q);
  const T* o = args.o_row(batch, query, head);
  const T* dout = args.dout_row(batch, query, head);
  float sum = 0;
#pragma unroll
  for (int c = 2 * lane; c < kHeadDim; c += 2 * gpu::kWarpSize) {
    const float2 of_o = load_pair(o + c), of_dout = load_pair(dout + c);
    sum += of_o.x * of_dout.x + of_o.y * of_dout.y;
  }
  for (int bit = gpu::kWarpSize / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(gpu::kFullWarp, sum, bit);
  if (lane == 0) {
    const std::int64_t row = args.row_index(batch, query, head);
    const float lse = args.lse_gmem[row];
    statistics_gmem[index] = {lse == -INFINITY ? INFINITY : lse * kernel::kLog2E,
                              args.dlse_gmem ? sum - args.dlse_gmem[row] : sum};
  }
}

template <class T, int kHeadDim>
struct FinishShared {
  kernel::SharedTile<T, kTileRows, kHeadDim, kernel::Swizzled> dq;
};
inline constexpr int kFinishThreads = kTileRows / 16 * gpu::kWarpSize;

/// A block a tile of queries, 16 a warp. Through shared memory, so that rows go out in chunks of 16 bytes.
template <class T, int kHeadDim>
__global__ void finish_kernel(BackwardArgs<T> args, const float* sums_gmem, int padded_rows) {
  using DqTile = decltype(FinishShared<T, kHeadDim>::dq);
  auto& shared = gpu::shared_memory<FinishShared<T, kHeadDim>>();
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize;
  const int warp_row = static_cast<int>(threadIdx.x) / gpu::kWarpSize * 16;
  const std::int64_t first_row = std::int64_t{blockIdx.x} * kTileRows;
  const int first_query = static_cast<int>(first_row % padded_rows);
  const int head = static_cast<int>(first_row / padded_rows % args.heads_q);
  const int batch = static_cast<int>(first_row / padded_rows / args.heads_q);
#pragma unroll 8
  for (int c = 0; c < kHeadDim / 8; ++c) {
    const float4 sums =
        gpu::scaled(gpu::load4(sums_gmem + sums_offset<kHeadDim>(first_row + warp_row, c, lane)), args.softmax_scale);
    const int row = warp_row + kernel::fragment_row(0, lane), column = kernel::fragment_column(lane);
    kernel::store_pair(shared.dq.at(DqTile::offset(row, c)) + column, sums.x, sums.y);
    kernel::store_pair(shared.dq.at(DqTile::offset(row + 8, c)) + column, sums.z, sums.w);
  }
  __syncwarp();
#pragma unroll 4
  for (int i = lane; i < 16 * DqTile::kChunks; i += gpu::kWarpSize) {
    const int row = warp_row + i / DqTile::kChunks, chunk = i % DqTile::kChunks;
    if (first_query + row >= args.seqlen_q) break;
    gpu::copy_16_bytes(args.dq_row(batch, first_query + row, head) + kernel::kChunkElements * chunk,
                       shared.dq.at(DqTile::offset(row, chunk)));
  }
}

/// What all kernels of the chapter ask of a problem.
inline void require(const std::string& name, const Problem& p, std::size_t shared_bytes) {
  stage::require_16_byte_gradients(name, p);
  stage::require_shared_memory(name, shared_bytes);
}

/// Launches prepare_kernel. Blocks are counted in 64 bits: grid.x takes up to 2³¹ − 1, and the launch refuses more.
template <class T, int kHeadDim>
void launch_prepare(const BackwardArgs<T>& args, const Workspace& layout, void* workspace) {
  if (layout.rows == 0) return;
  gpu::launch(prepare_kernel<T, kHeadDim>,
              {.grid = (layout.rows + kRowsPerBlock - 1) / kRowsPerBlock, .block = kRowsPerBlock * gpu::kWarpSize},
              args, layout.statistics(workspace), layout.sums(workspace), layout.rows, layout.padded_rows);
}

template <class T, int kHeadDim>
void launch_finish(const BackwardArgs<T>& args, const Workspace& layout, void* workspace) {
  if (layout.rows == 0) return;
  gpu::launch<FinishShared<T, kHeadDim>>(finish_kernel<T, kHeadDim>,
                                         {.grid = layout.rows / kTileRows, .block = kFinishThreads}, args,
                                         static_cast<const float*>(layout.sums(workspace)), layout.padded_rows);
}

/// Element accesses of prepare_kernel, exactly; a dLSE adds one load a row.
inline attention::Traffic prepare_traffic(const Problem& p, bool sums) {
  const double rows = double(p.elements_lse()), padded = double(Workspace::of(p, sums).rows);
  return {.loaded = rows * (2.0 * 2 * p.head_dim + sizeof(float)),
          .stored = padded * (sizeof(RowStatistics) + (sums ? sizeof(float) * p.head_dim : 0.0))};
}

/// The same of finish_kernel.
inline attention::Traffic finish_traffic(const Problem& p) {
  return {.loaded = double(Workspace::of(p, true).rows) * sizeof(float) * p.head_dim,
          .stored = double(p.elements_lse()) * 2 * p.head_dim};
}

}  // namespace tensor_core_backward
