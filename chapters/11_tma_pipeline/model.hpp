#pragma once
/// \file
/// The chapter's kernels on paper: what the tensor maps say and which rows of a tile are outside, places and phases of
/// a ring, and how long before its use a tile is asked for.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "chapters/11_tma_pipeline/step1_tma_loads.cuh"
#include "chapters/11_tma_pipeline/step2_ring.cuh"
#include "common/gpu/tensor_map.hpp"

namespace tma_pipeline {

/// One of the maps of a launch: array and box, as TMA sees them.
struct MapOnPaper {
  std::string name;             ///< "K"
  gpu::TensorMapShape shape;    ///< without a base: the array may be anywhere
  int seqlen = 0, heads = 0;    ///< of the array
  int tiles = 0;                ///< boxes below each other until the last row is in one
  int boxes_of_tile = 0;        ///< panels beside each other
  std::uint32_t box_bytes = 0;  ///< each brings so many, rows outside the array included
};

/// Rows of a box that are rows of the array, and those outside, which arrive as zeros and are not stored.
struct BoxRows {
  int inside = 0, outside = 0;
};
constexpr BoxRows rows_of_box(int first_row, int box_rows, int seqlen) {
  const int begin = std::clamp(first_row, 0, seqlen), end = std::clamp(first_row + box_rows, 0, seqlen);
  return {end - begin, box_rows - (end - begin)};
}

/// What row_map tells TMA of Q, K, V and O; the maps of both steps.
template <class Tile>
std::vector<MapOnPaper> maps_on_paper(const Problem& p) {
  constexpr std::uint32_t kColumns = QueryPanels<Tile>::kPanelColumns;
  const auto map = [&](const std::string& name, const attention::Strides& strides, int seqlen, int heads, int rows) {
    constexpr std::uint64_t kElement = sizeof(typename Tile::T);
    const auto bytes = [](std::int64_t stride, int size) {
      return size > 1 ? static_cast<std::uint64_t>(stride) * kElement : std::uint64_t{16};
    };
    MapOnPaper m;
    m.name = name;
    m.seqlen = seqlen;
    m.heads = heads;
    m.shape.element = std::is_same_v<typename Tile::T, gpu::fp16> ? gpu::TensorElement::fp16 : gpu::TensorElement::bf16;
    m.shape.sizes = {std::uint64_t(p.head_dim), std::uint64_t(seqlen), std::uint64_t(heads), std::uint64_t(p.batch)};
    m.shape.stride_bytes = {bytes(strides.seq, seqlen), bytes(strides.head, heads), bytes(strides.batch, p.batch)};
    m.shape.box = {kColumns, static_cast<std::uint32_t>(rows), 1, 1};
    m.shape.swizzle = gpu::Swizzle::bytes_128;
    m.tiles = tiles_of(seqlen, rows);
    m.boxes_of_tile = Tile::kPanels;
    m.box_bytes = kColumns * static_cast<std::uint32_t>(rows * kElement);
    return m;
  };
  return {map("Q", p.strides_q(), p.seqlen_q, p.heads_q, Tile::kBr),
          map("K", p.strides_k(), p.seqlen_kv, p.heads_kv, Tile::kBc),
          map("V", p.strides_v(), p.seqlen_kv, p.heads_kv, Tile::kBc),
          map("O", p.strides_o(), p.seqlen_q, p.heads_q, kernel::kWarpgroupRows)};
}

/// Where a tile stands in a ring, and which phase of the place's barriers it is.
struct Turn {
  int place = 0, phase = 0;
  std::uint32_t parity = 0;  ///< of the phase: what a wait names
};
constexpr Turn turn_of(int tile, int stages) {
  return {tile % stages, tile / stages, static_cast<std::uint32_t>(tile / stages % 2)};
}

/// During which tile's product a tile is asked for; −1: before the first.
constexpr int asked_during(int tile, int stages) { return tile < stages ? -1 : tile - stages + 1; }

/// What a block does for one tile of keys that no mask cuts, in cycles of an H100 or H200, and how long before its use
/// the tile is asked for.
struct PipelineWork {
  std::string kernel;
  int head_dim = 0, br = 0, bc = 0, stages = 0;
  bool apart_barriers = false;  ///< K and V have a barrier each, so that S waits for K alone
  int boxes = 0;                ///< of K and V
  int tile_bytes = 0;           ///< of K, and of V
  int query_bytes = 0;          ///< of Q
  int shared_bytes = 0;

  /// The rates of chapter 10's model: multiply-adds, bytes of the L2 and exponentials, a cycle and multiprocessor.
  static constexpr double kMultiplyAdds = 2048, kL2Bytes = 40, kExponentials = 16;

  /// A warpgroup's product: S, or O, which has as many multiply-adds.
  double product_cycles() const { return double(kernel::kWarpgroupRows) * bc * head_dim / kMultiplyAdds; }
  /// A warpgroup's exponentials: of its scores, and of two rows in each lane.
  double softmax_cycles() const {
    return (double(kernel::kWarpgroupRows) * bc + 2.0 * kernel::kWarpgroupThreads) / kExponentials;
  }
  /// K and V of a tile at the L2's rate.
  double copy_cycles() const { return 2 * tile_bytes / kL2Bytes; }

  /// The tile of both warpgroups if they do the same at the same time, and if one multiplies while the other does not.
  double in_step() const { return 2 * (2 * product_cycles() + softmax_cycles()); }
  double apart() const { return std::max({4 * product_cycles(), 2 * softmax_cycles(), copy_cycles()}); }

  /// Tiles that pass between asking for a tile and its first use: what is asked for during tile t, or behind it, is
  /// tile t − 1 + stages, or t + stages.
  int lead_tiles() const { return stages - 1; }
  /// Cycles that copies may take to begin, if a tile takes so many and its own bytes come at the L2's rate.
  double latency_hidden(double cycles_of_tile) const {
    return lead_tiles() * cycles_of_tile - (apart_barriers ? copy_cycles() / 2 : copy_cycles());
  }
  /// Bytes that have to come before the block's first product.
  int bytes_before_first() const { return query_bytes + (apart_barriers ? 1 : 2) * tile_bytes; }
};

template <class Tile, class Shared>
PipelineWork pipeline_work(const std::string& kernel, bool apart_barriers) {
  return {.kernel = kernel,
          .head_dim = Tile::kHeadDim,
          .br = Tile::kBr,
          .bc = Tile::kBc,
          .stages = Tile::kStages,
          .apart_barriers = apart_barriers,
          .boxes = 2 * Tile::kPanels,
          .tile_bytes = static_cast<int>(sizeof(KeyPanels<Tile>)),
          .query_bytes = static_cast<int>(sizeof(QueryPanels<Tile>)),
          .shared_bytes = static_cast<int>(sizeof(Shared))};
}

/// The two steps, in their order.
template <int kHeadDim>
std::vector<PipelineWork> pipeline_works() {
  using Loads = TmaLoadsTile<gpu::bf16, kHeadDim>;
  using Ring = RingTile<gpu::bf16, kHeadDim>;
  return {pipeline_work<Loads, TmaLoadsShared<Loads>>("tma_loads", false),
          pipeline_work<Ring, RingShared<Ring>>("ring", true)};
}

}  // namespace tma_pipeline
