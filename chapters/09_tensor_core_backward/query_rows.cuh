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

#include "chapters/09_tensor_core_backward/rows_out.cuh"
#include "chapters/09_tensor_core_backward/tile.cuh"
#include "common/gpu/atomic.cuh"
#include "common/gpu/warp.cuh"

namespace tensor_core_backward {

/// Queries of a tile, in both kernels and all steps.
inline constexpr int kTileRows = 64;
/// Threads of the two kernels: 16 of a tile's rows a warp.
inline constexpr int kTileThreads = kTileRows / 16 * gpu::kWarpSize;

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
__host__ __device__ constexpr std::int64_t sums_offset(std::int64_t row, int column_tile, int lane) {
  return ((row / 16 * (kHeadDim / 8) + column_tile) * gpu::kWarpSize + lane) * 4;
}

/// A tile of queries.
struct PaddedTile {
  int batch, head, first_query;
  std::int64_t first_row;  ///< in the workspace
};
/// Tiles are numbered as their rows stand in the workspace. No division of 64 bits, which a GPU has no instruction for.
__host__ __device__ constexpr PaddedTile padded_tile(int number, int padded_rows, int heads_q) {
  const int tiles = padded_rows / kTileRows, head_index = number / tiles;
  return {head_index / heads_q, head_index % heads_q, number % tiles * kTileRows, std::int64_t{number} * kTileRows};
}

/// Eight elements of a row.
template <class T>
__device__ float4 load_chunk(const T* row, int chunk) {
  return gpu::load4(reinterpret_cast<const float*>(row + kernel::kChunkElements * chunk));
}
/// Σ x·y of two chunks.
template <class T>
__device__ float dot_chunks(const float4& x_chunk, const float4& y_chunk) {
  const T* x = reinterpret_cast<const T*>(&x_chunk);
  const T* y = reinterpret_cast<const T*>(&y_chunk);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kernel::kChunkElements; ++i) sum += gpu::to_float(x[i]) * gpu::to_float(y[i]);
  return sum;
}

/// A block a tile of queries, padded ones included. As many lanes share a row as it has chunks of 16 bytes.
template <class T, int kHeadDim>
__global__ void prepare_kernel(BackwardArgs<T> args, RowStatistics* statistics_gmem, float* sums_gmem,
                               int padded_rows) {
  constexpr int kRowLanes = kHeadDim / kernel::kChunkElements, kRowsAtOnce = gpu::kWarpSize / kRowLanes;
  const PaddedTile tile = padded_tile(static_cast<int>(blockIdx.x), padded_rows, args.heads_q);
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % kRowLanes;
  if (sums_gmem) {
    // As many floats as the tile has, wherever those of a row stand.
    float* sums = sums_gmem + tile.first_row * kHeadDim;
#pragma unroll 8
    for (int i = thread; i < kTileRows * kHeadDim / 4; i += kTileThreads) {
      gpu::store4(sums + 4 * i, make_float4(0, 0, 0, 0));
    }
  }
  const int warp_row = thread / gpu::kWarpSize * 16;
#pragma unroll 4
  for (int i = thread % gpu::kWarpSize / kRowLanes; i < 16; i += kRowsAtOnce) {
    const int row = warp_row + i, query = tile.first_query + row;
    const bool is_there = query < args.seqlen_q;
    float sum = 0;
    if (is_there) {
      sum = dot_chunks<T>(load_chunk(args.o_row(tile.batch, query, tile.head), chunk),
                          load_chunk(args.dout_row(tile.batch, query, tile.head), chunk));
    }
#pragma unroll
    for (int bit = kRowLanes / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(gpu::kFullWarp, sum, bit);
    if (chunk == 0) {
      RowStatistics statistics = {INFINITY, 0};
      if (is_there) {
        const std::int64_t place = args.row_index(tile.batch, query, tile.head);
        const float lse = args.lse_gmem[place];
        statistics = {lse == -INFINITY ? INFINITY : lse * kernel::kLog2E,
                      args.dlse_gmem ? sum - args.dlse_gmem[place] : sum};
      }
      statistics_gmem[tile.first_row + row] = statistics;
    }
  }
}

template <class T, int kHeadDim>
struct FinishShared {
  kernel::SharedTile<T, kTileRows, kHeadDim, kernel::Swizzled> dq;
};

/// A block a tile of queries, 16 a warp. Through shared memory, so that rows go out in chunks of 16 bytes.
template <class T, int kHeadDim>
__global__ void finish_kernel(BackwardArgs<T> args, const float* sums_gmem, int padded_rows) {
  using DqTile = decltype(FinishShared<T, kHeadDim>::dq);
  auto& shared = gpu::shared_memory<FinishShared<T, kHeadDim>>();
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize;
  const int warp_row = static_cast<int>(threadIdx.x) / gpu::kWarpSize * 16;
  const PaddedTile tile = padded_tile(static_cast<int>(blockIdx.x), padded_rows, args.heads_q);
#pragma unroll 8
  for (int c = 0; c < kHeadDim / 8; ++c) {
    const float4 sums = gpu::scaled(gpu::load4(sums_gmem + sums_offset<kHeadDim>(tile.first_row + warp_row, c, lane)),
                                    args.softmax_scale);
    const int row = warp_row + kernel::fragment_row(0, lane), column = kernel::fragment_column(lane);
    kernel::store_pair(shared.dq.at(DqTile::offset(row, c)) + column, sums.x, sums.y);
    kernel::store_pair(shared.dq.at(DqTile::offset(row + 8, c)) + column, sums.z, sums.w);
  }
  __syncwarp();
  copy_rows_out<16, kHeadDim>(args.dq_row(tile.batch, tile.first_query, tile.head), args.dq_strides.seq, shared.dq,
                              {warp_row, 0}, args.seqlen_q - tile.first_query);
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
  gpu::launch(prepare_kernel<T, kHeadDim>, {.grid = layout.rows / kTileRows, .block = kTileThreads}, args,
              layout.statistics(workspace), layout.sums(workspace), layout.padded_rows);
}

template <class T, int kHeadDim>
void launch_finish(const BackwardArgs<T>& args, const Workspace& layout, void* workspace) {
  if (layout.rows == 0) return;
  gpu::launch<FinishShared<T, kHeadDim>>(finish_kernel<T, kHeadDim>,
                                         {.grid = layout.rows / kTileRows, .block = kTileThreads}, args,
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
