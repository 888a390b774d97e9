#pragma once
/// \file
/// The chapter's kernels on paper: what a division of a block's work among its warps asks of shared memory, which tiles
/// a mask leaves, and what is lost where dQ is added up in 16 bits.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "chapters/09_tensor_core_backward/step1_kv_outer.cuh"
#include "common/attention/element_type.hpp"

namespace tensor_core_backward {

/// Who computes what of a tile of queries × keys. Each of the warps has a rectangle of every product, and loads its
/// operands from shared memory, unless it has computed them itself and they lie in its registers as operands do.
struct Division {
  std::string name;
  int head_dim, br, bc, warps;
  int s_keys, s_queries;       ///< of S and dP, at a time
  int kv_keys, kv_columns;     ///< of dK and dV
  int dq_queries, dq_columns;  ///< of dQ; 0 where it is not computed
  /// Queries of the tile for which a warp has the operands P and dS of its keys in registers: where S is transposed, it
  /// has computed them itself; otherwise none.
  int kept_queries;
  bool shares_p;  ///< whether other warps read P
};

/// What a warp executes for one tile that no mask cuts, and how long the units of a multiprocessor of an H100 or H200
/// are busy with what all warps of a block do for it. Bytes are those of elements of 16 bits.
struct BackwardWork {
  Division division;
  int products = 0;          ///< mma.sync
  int s_bytes = 0;           ///< loaded by ldmatrix for S; as many for dP
  int kv_bytes = 0;          ///< for dV; as many for dK
  int dq_bytes = 0;          ///< for dQ
  int stored_bytes = 0;      ///< P and dS for other warps, and dS for dQ
  int statistics_loads = 0;  ///< of LSE and D of two queries, 16 bytes a lane
  int atomics = 0;           ///< of 16 bytes a lane
  int exponentials = 0;      ///< of a lane
  int copied_bytes = 0;      ///< of a block, by cp.async

  int operand_bytes() const { return 2 * s_bytes + 2 * kv_bytes + dq_bytes; }
  int matrix_loads() const { return operand_bytes() / 512; }  ///< ldmatrix, four matrices each
  int pair_stores() const { return stored_bytes / 128; }      ///< 4 bytes a lane
  /// Beside the exponential: product with the scale and difference in one, dP − D, its product with P; and half a
  /// conversion each for P and dS.
  int other_floating() const { return 4 * exponentials; }
  int instructions() const {
    return products + matrix_loads() + pair_stores() + statistics_loads + atomics + exponentials + other_floating();
  }
  /// FLOP of the block: 16 · 8 · 16 multiplications and additions a product.
  double flops() const { return 4096.0 * products * division.warps; }
  /// The tensor cores of a multiprocessor make 4096 FLOP a cycle at their peak.
  double tensor_cycles() const { return flops() / 4096; }
  /// By mma.sync they make less: about so many.
  static constexpr double kMmaSyncFlops = 2600;
  double mma_sync_cycles() const { return flops() / kMmaSyncFlops; }
  /// The path to shared memory moves 128 bytes a cycle, either way. That copies take it like stores is an assumption. A
  /// load of 16 bytes a lane takes four cycles, even of statistics, where eight lanes want the same.
  double data_cycles() const {
    return (division.warps * (operand_bytes() + stored_bytes + 512.0 * statistics_loads) + copied_bytes) / 128;
  }
  /// The four schedulers start an instruction a cycle each. Only those listed here are counted.
  double issue_cycles() const { return division.warps * instructions() / 4.0; }
  /// Exponentials: 16 a cycle.
  double exponential_cycles() const { return exponentials * division.warps * gpu::kWarpSize / 16.0; }
  /// FLOP that these units allow in a cycle.
  double flops_a_cycle() const {
    return flops() / std::max({mma_sync_cycles(), data_cycles(), issue_cycles(), exponential_cycles()});
  }
};

/// The work of a division.
inline BackwardWork backward_work(const Division& d) {
  constexpr int kBytes = 2;  // of an element
  const int passes = d.br * d.bc / (d.warps * d.s_keys * d.s_queries);
  const int elements = d.br * d.bc / d.warps;  // of S
  const int times = d.dq_queries ? 5 : 4;
  BackwardWork work{.division = d};
  work.products = times * elements * d.head_dim / (16 * 8 * 16);
  work.s_bytes = passes * (d.s_keys + d.s_queries) * d.head_dim * kBytes;
  work.kv_bytes = (d.br * d.kv_columns + (d.br - d.kept_queries) * d.kv_keys) * kBytes;
  work.dq_bytes = (d.dq_queries + d.dq_columns) * d.bc * kBytes;
  work.stored_bytes = elements * kBytes * ((d.dq_queries || d.shares_p) + d.shares_p);
  work.statistics_loads = d.kept_queries ? passes * d.s_queries / 8 : 0;
  work.atomics = d.dq_queries * d.dq_columns / (4 * gpu::kWarpSize);
  work.exponentials = elements / gpu::kWarpSize;
  work.copied_bytes = 2 * d.br * d.head_dim * kBytes + d.br * static_cast<int>(sizeof(RowStatistics));
  return work;
}

/// Instructions of warps on shared memory.
struct SharedRequests {
  int stores = 0, loads = 0;
};
/// What a block does once, behind its loop: dK and dV into shared memory, two elements a lane, and out of it in chunks,
/// of those of its keys that there are.
template <class Tile>
SharedRequests way_out(int keys) {
  constexpr int kRowsOfLoad = gpu::kWarpSize / (Tile::kWarpColumns / kernel::kChunkElements);
  SharedRequests requests;
  for (int key = 0; key < Tile::kBc; key += Tile::kWarpKeys) {
    requests.stores += 2 * Tile::kTeam * Tile::kWarpKeys / 8 * Tile::kColumnTiles;
    requests.loads += 2 * Tile::kTeam * tiles_of(std::clamp(keys - key, 0, Tile::kWarpKeys), kRowsOfLoad);
  }
  return requests;
}
/// Of all blocks of a head.
template <class Tile>
SharedRequests way_out_of_head(int seqlen_kv) {
  SharedRequests sum;
  for (int first_key = 0; first_key < seqlen_kv; first_key += Tile::kBc) {
    const SharedRequests of_block = way_out<Tile>(std::min(Tile::kBc, seqlen_kv - first_key));
    sum.stores += of_block.stores, sum.loads += of_block.loads;
  }
  return sum;
}

/// This chapter's division, out of the constants of its kernel.
template <class Tile>
Division division_of(const std::string& name) {
  return {.name = name,
          .head_dim = Tile::kHeadDim,
          .br = Tile::kBr,
          .bc = Tile::kBc,
          .warps = Tile::kWarps,
          .s_keys = Tile::kWarpKeys,
          .s_queries = Tile::kWarpQueries,
          .kv_keys = Tile::kWarpKeys,
          .kv_columns = Tile::kWarpColumns,
          .dq_queries = 16 * Tile::kDqRowTiles,
          .dq_columns = 8 * Tile::kDqColumnTiles,
          .kept_queries = Tile::kBr / Tile::kTeam,
          .shares_p = Tile::kTeam > 1};
}

/// 16 keys a warp, and all queries and columns for them: the chapter's first attempt.
inline Division sixteen_keys(int head_dim) {
  return {.name = "16 keys a warp",
          .head_dim = head_dim,
          .br = 64,
          .bc = 128,
          .warps = 8,
          .s_keys = 16,
          .s_queries = 64,
          .kv_keys = 16,
          .kv_columns = head_dim,
          .dq_queries = 16,
          .dq_columns = head_dim / 2,
          .kept_queries = 64,
          .shares_p = false};
}

/// FlashAttention-2's on a GPU with so much shared memory as an A100 or later (its flash_bwd_launch_template.h). S is
/// not transposed there; P and dS go through shared memory for dV and dK of all warps.
inline Division flash_attention_2(int head_dim) {
  const bool wide = head_dim == 128;
  return {.name = "FlashAttention-2",
          .head_dim = head_dim,
          .br = wide ? 64 : 128,
          .bc = 128,
          .warps = 8,
          .s_keys = wide ? 32 : 64,
          .s_queries = 32,
          .kv_keys = 32,
          .kv_columns = wide ? 64 : 32,
          .dq_queries = 32,
          .dq_columns = 32,
          .kept_queries = 0,
          .shares_p = true};
}

/// The three, in the order of the text.
template <int kHeadDim>
std::vector<BackwardWork> backward_works() {
  return {backward_work(sixteen_keys(kHeadDim)),
          backward_work(division_of<BackwardTile<gpu::bf16, kHeadDim>>("kv_outer")),
          backward_work(flash_attention_2(kHeadDim))};
}

/// Tiles of S, of one head.
struct BackwardTileCounts {
  int all = 0, visited = 0, masked = 0;  ///< visited are those of which any query sees any of the block's keys
  int squares = 0;         ///< 32 keys × 32 queries of visited tiles: what a warp computes of S at a time
  int hidden_squares = 0;  ///< of which no query sees a key
};

/// What step 1 does with one head of a problem.
template <class Tile>
BackwardTileCounts count_tiles(attention::Mask mask, int seqlen_q, int seqlen_kv) {
  BackwardTileCounts counts;
  for (int first_key = 0; first_key < seqlen_kv; first_key += Tile::kBc) {
    const int keys = std::min(Tile::kBc, seqlen_kv - first_key);
    const auto visited = visited_tiles<Tile>(mask, first_key, keys, seqlen_q, seqlen_kv);
    counts.all += tiles_of(seqlen_q, Tile::kBr);
    for (int tile = visited.begin; tile < visited.end; ++tile) {
      const int first = tile * Tile::kBr, last = std::min(first + Tile::kBr, seqlen_q) - 1;
      const KeyRange unmasked = attention::keys_of_all(mask, first, last, seqlen_q, seqlen_kv);
      counts.visited += 1;
      counts.masked += first_key < unmasked.begin || first_key + Tile::kBc > unmasked.end;
      for (int query = first; query < first + Tile::kBr; query += Tile::kWarpQueries)
        for (int key = first_key; key < first_key + Tile::kBc; key += Tile::kWarpKeys) {
          const KeyRange seen =
              attention::keys_of_any(mask, query, query + Tile::kWarpQueries - 1, seqlen_q, seqlen_kv);
          counts.squares += 1;
          counts.hidden_squares += query >= seqlen_q || key >= seen.end || key + Tile::kWarpKeys <= seen.begin;
        }
    }
  }
  return counts;
}

/// Adds up the parts of a row of dQ, one after the other, in sums of the given type: what each addition leaves is
/// rounded to it.
///
/// \param parts [any number, columns]
/// \return [columns]
inline std::vector<float> add_parts(std::span<const float> parts, int columns, attention::ElementType sums) {
  std::vector<float> sum(static_cast<std::size_t>(columns));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    float& of_column = sum[i % static_cast<std::size_t>(columns)];
    of_column = attention::rounded(of_column + parts[i], sums);
  }
  return sum;
}

}  // namespace tensor_core_backward
