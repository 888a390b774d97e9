#pragma once
/// \file
/// Step 2: no atomics, and the same bits in every run: step 1's kernel without dQ, and a kernel that owns queries and
/// goes through the keys, for dQ alone. S and dP are computed twice, seven products in place of five.
///
///   - dQ's kernel is chapter 08's forward with one product more: four warps with 16 queries each, two tiles of K and V
///     in turn, dS the operand where it is. The last queries of a causal problem see the most keys, and start first.
///   - Registers of a lane, dQ's kernel: dQ head_dim / 2, S and dP 32 each. Shared memory: Q, dO, and two tiles of 64
///     rows of K and V: 768 · head_dim bytes.
///   - Per tile of it: 6 · Br · Bc · head_dim FLOP, 2 · Bc · head_dim elements of K and V.

#include <algorithm>
#include <cstdint>
#include <string>

#include "chapters/09_tensor_core_backward/step1_kv_outer.cuh"

namespace tensor_core_backward {

/// 64 queries, 16 a warp, and 64 keys at a time.
template <class T_, int kHeadDim_>
struct QueryTile {
  using T = T_;  ///< fp16 or bf16
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarps = 4, kThreads = kWarps * gpu::kWarpSize, kBlocks = 2;
  static constexpr int kBr = 16 * kWarps, kBc = 64, kStages = 2;
  static constexpr int kColumnSteps = kHeadDim / 16, kKeySteps = kBc / 16;  ///< products of depth 16
  static constexpr int kColumnTiles = kHeadDim / 8, kKeyTiles = kBc / 8;    ///< results 8 wide
  static_assert(kBr == kTileRows, "rows are padded to tiles of this many");
};

template <class Tile>
struct QueryShared {
  using RowsTile = kernel::SharedTile<typename Tile::T, Tile::kBr, Tile::kHeadDim, kernel::Swizzled>;
  using KTile = kernel::SharedTile<typename Tile::T, Tile::kBc, Tile::kHeadDim, kernel::Swizzled>;
  RowsTile q, dout;
  KTile k[Tile::kStages], v[Tile::kStages];
};

/// product += (16 rows of a) · (64 rows of b)ᵀ, over head_dim: S of Q and K, dP of dO and V.
template <class Tile, class ATile, class BTile>
__device__ void multiply_query_rows(float (&product)[Tile::kKeyTiles][4], const ATile& a_smem, int a_offset,
                                    const BTile& b_smem, int b_offset) {
#pragma unroll
  for (int i = 0; i < Tile::kColumnSteps; ++i) {
    std::uint32_t a_reg[4];
    gpu::load_matrices<4>(a_reg, a_smem.at(ATile::column_step(a_offset, i)));
#pragma unroll
    for (int n = 0; n < Tile::kKeyTiles; n += 2) {
      std::uint32_t b_reg[2][2];
      kernel::load_b(b_reg, b_smem, BTile::column_step(b_offset, i) + 8 * n * Tile::kHeadDim);
      gpu::mma_16x8x16<typename Tile::T>(product[n], a_reg, b_reg[0]);
      gpu::mma_16x8x16<typename Tile::T>(product[n + 1], a_reg, b_reg[1]);
    }
  }
}

/// P of keys (columns) that a query (row) does not see becomes 0, after the exponential.
template <class Tile>
__device__ void mask_query_rows(float (&p)[Tile::kKeyTiles][4], const BackwardArgs<typename Tile::T>& args,
                                int first_query, int first_key, int lane) {
  const int lane_key = first_key + kernel::fragment_column(lane);
  const int lane_distance = lane_key - (first_query + kernel::fragment_row(0, lane) + args.seqlen_kv - args.seqlen_q);
#pragma unroll
  for (int n = 0; n < Tile::kKeyTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int right = 8 * n + e % 2, down = e / 2 * 8;
      const int distance = lane_distance + right - down;
      const bool seen = distance >= -args.mask.left && distance <= args.mask.right && lane_key + right < args.seqlen_kv;
      if (!seen) p[n][e] = 0;
    }
}

/// dQ of 64 queries of one head.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    q_outer_kernel(BackwardArgs<typename Tile::T> args, const RowStatistics* statistics_gmem, int padded_rows,
                   kernel::Sections sections) {
  using T = typename Tile::T;
  using RowsTile = typename QueryShared<Tile>::RowsTile;
  using KTile = typename QueryShared<Tile>::KTile;
  auto& shared = gpu::shared_memory<QueryShared<Tile>>();
  const auto [head_index, tile_from_last] = sections[static_cast<int>(blockIdx.x)];  // blocks start in order
  const int batch = head_index / args.heads_q, head = head_index % args.heads_q;
  const int head_kv = args.kv_head(head);
  const int first_query = padded_rows - (tile_from_last + 1) * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarpSize;
  const int warp_row = static_cast<int>(threadIdx.x) / gpu::kWarpSize * 16;
  const KeyRange visited = kernel::visited_keys(args.mask, first_query, rows, args.seqlen_q, args.seqlen_kv, Tile::kBc);
  const KeyRange unmasked =
      attention::keys_of_all(args.mask, first_query, first_query + rows - 1, args.seqlen_q, args.seqlen_kv);
  const float scale_log2 = args.softmax_scale * kernel::kLog2E;

  const auto start_loading = [&](int first_key, int stage) {
    const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
    kernel::load_chunks_async<Tile::kThreads>(shared.k[stage], args.k_row(batch, first_key, head_kv),
                                              args.k_strides.seq, keys);
    kernel::load_chunks_async<Tile::kThreads>(shared.v[stage], args.v_row(batch, first_key, head_kv),
                                              args.v_strides.seq, keys);
  };
  kernel::load_chunks_async<Tile::kThreads>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq, rows);
  kernel::load_chunks_async<Tile::kThreads>(shared.dout, args.dout_row(batch, first_query, head), args.dout_strides.seq,
                                            rows);
  if (visited.begin < visited.end) start_loading(visited.begin, 0);
  gpu::copy_async_commit();

  RowStatistics of_row[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_query + warp_row + kernel::fragment_row(half, lane);
    const float2 pair =
        gpu::load2(&statistics_gmem[(std::int64_t{batch} * args.heads_q + head) * padded_rows + row].lse_log2);
    of_row[half] = {pair.x, pair.y};
  }
  const int q_offset = kernel::offset_of_a<RowsTile>(warp_row, lane);
  const int k_offset = kernel::offset_of_b<KTile>(lane), column_offset = kernel::offset_of_b_transposed<KTile>(lane);
  float dq_reg[Tile::kColumnTiles][4] = {};

  for (int first_key = visited.begin, stage = 0; first_key < visited.end; first_key += Tile::kBc, stage ^= 1) {
    gpu::copy_async_wait<0>();
    __syncthreads();  // this tile is there, and the one before has been read
    if (first_key + Tile::kBc < visited.end) start_loading(first_key + Tile::kBc, stage ^ 1);
    gpu::copy_async_commit();

    float p_reg[Tile::kKeyTiles][4] = {}, ds_reg[Tile::kKeyTiles][4] = {};
    multiply_query_rows<Tile>(p_reg, shared.q, q_offset, shared.k[stage], k_offset);
    multiply_query_rows<Tile>(ds_reg, shared.dout, q_offset, shared.v[stage], k_offset);
#pragma unroll
    for (int n = 0; n < Tile::kKeyTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        p_reg[n][e] = gpu::exp2_approximate(p_reg[n][e] * scale_log2 - of_row[e / 2].lse_log2);
      }
    if (first_key < unmasked.begin || first_key + Tile::kBc > unmasked.end) {
      mask_query_rows<Tile>(p_reg, args, first_query + warp_row, first_key, lane);
    }
#pragma unroll
    for (int n = 0; n < Tile::kKeyTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) ds_reg[n][e] = p_reg[n][e] * (ds_reg[n][e] - of_row[e / 2].d);

#pragma unroll
    for (int i = 0; i < Tile::kKeySteps; ++i) {
      std::uint32_t a_reg[4];
      kernel::pack_a<T>(a_reg, ds_reg[2 * i], ds_reg[2 * i + 1]);
#pragma unroll
      for (int c = 0; c < Tile::kColumnTiles; c += 2) {
        std::uint32_t b_reg[2][2];
        kernel::load_b_transposed(b_reg, shared.k[stage],
                                  KTile::column_step(column_offset, c / 2) + 16 * i * Tile::kHeadDim);
        gpu::mma_16x8x16<T>(dq_reg[c], a_reg, b_reg[0]);
        gpu::mma_16x8x16<T>(dq_reg[c + 1], a_reg, b_reg[1]);
      }
    }
  }
  gpu::copy_async_wait<0>();  // of Q, where no tile was visited
  __syncthreads();            // those of all threads: dQ leaves from Q's place, of which each warp read its own rows
  put_rows(shared.q, dq_reg, args.softmax_scale, {warp_row, 0});
  __syncwarp();
  copy_rows_out<16, Tile::kHeadDim>(args.dq_row(batch, first_query, head), args.dq_strides.seq, shared.q, {warp_row, 0},
                                    rows);
}

/// Launches it; nothing if there are no queries.
template <class Tile>
void launch_q_outer(const BackwardArgs<typename Tile::T>& args, const Workspace& layout, void* workspace) {
  if (layout.rows == 0) return;
  const RowStatistics* statistics = layout.statistics(workspace);
  const int group = args.heads_q / args.heads_kv;
  const std::int64_t kv_bytes = std::int64_t{2} * sizeof(typename Tile::T) * args.seqlen_kv * Tile::kHeadDim;
  const auto sections = kernel::Sections::that_fit(kv_bytes / group, layout.padded_rows / Tile::kBr,
                                                   std::int64_t{args.batch} * args.heads_q);
  gpu::launch<QueryShared<Tile>>(q_outer_kernel<Tile>, {.grid = layout.rows / Tile::kBr, .block = Tile::kThreads}, args,
                                 statistics, layout.padded_rows, sections);
}

/// Element accesses of q_outer_kernel, exactly. Four lanes load the statistics of a row.
template <class Tile>
attention::Traffic q_outer_traffic(const Problem& p) {
  const double heads = double(p.batch) * p.heads_q, rows = heads * p.seqlen_q;
  double keys = 0;  // visited, over all tiles of queries
  for (int first_query = 0; first_query < p.seqlen_q; first_query += Tile::kBr) {
    const int tile_rows = std::min(Tile::kBr, p.seqlen_q - first_query);
    const KeyRange visited = kernel::visited_keys(p.mask, first_query, tile_rows, p.seqlen_q, p.seqlen_kv, Tile::kBc);
    keys += std::max(0, visited.end - visited.begin);
  }
  return {.loaded = rows * 2 * 2 * p.head_dim + double(Workspace::of(p, false).rows) * 4 * sizeof(RowStatistics) +
                    heads * keys * 2 * 2 * p.head_dim,
          .stored = rows * 2 * p.head_dim};
}

/// Step 2 for one head_dim.
template <int kHeadDim>
stage::BackwardKernel deterministic() {
  using AnyTile = BackwardTile<gpu::bf16, kHeadDim>;
  using AnyQueryTile = QueryTile<gpu::bf16, kHeadDim>;
  const std::string name = "deterministic";
  return {.name = name,
          .summary = "step 1 without dQ, then a block for 64 queries and dQ alone: no atomics",
          .require =
              [name](const Problem& p) {
                require(name, p, std::max(sizeof(BackwardShared<AnyTile>), sizeof(QueryShared<AnyQueryTile>)));
              },
          .workspace_bytes = [](const Problem& p) { return Workspace::of(p, false).bytes(); },
          .traffic =
              [](const Problem& p) {
                return prepare_traffic(p, false) + kv_outer_traffic<AnyTile, false>(p) +
                       q_outer_traffic<AnyQueryTile>(p);
              },
          .run =
              []<stage::SixteenBits T>(const BackwardArgs<T>& args, void* workspace) {
                const Workspace layout = Workspace::of(args, false);
                launch_prepare<T, kHeadDim>(args, layout, workspace);
                launch_kv_outer<BackwardTile<T, kHeadDim>, false>(args, layout, workspace);
                launch_q_outer<QueryTile<T, kHeadDim>>(args, layout, workspace);
              }};
}

}  // namespace tensor_core_backward
