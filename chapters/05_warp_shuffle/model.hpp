#pragma once
/// \file
/// The chapter's kernels on paper: what a thread executes for one tile of K and V, and which tiles a mask leaves.

#include <algorithm>
#include <string>
#include <vector>

#include "chapters/05_warp_shuffle/split_keys.cuh"
#include "chapters/05_warp_shuffle/step1_shuffle.cuh"
#include "chapters/05_warp_shuffle/step2_register_tiles.cuh"
#include "chapters/05_warp_shuffle/step3_exp2.cuh"

namespace warp_shuffle {

/// What a thread executes for one tile of K and V. A warp executes as many instructions, each for 32 threads.
struct TileWork {
  std::string kernel;
  int br, bc, warps;                   ///< of the block
  int multiply_adds = 0;               ///< FMA instructions of both products
  int loads = 0, stores = 0;           ///< of shared memory
  int wavefronts = 0;                  ///< that the loads and stores of a warp take
  int shuffles = 0, exponentials = 0;  ///< each for itself

  /// Cycles that a multiprocessor's units are busy with a warp: it starts 4 FMA instructions a cycle, and its path to
  /// shared memory takes a wavefront or a shuffle a cycle.
  double multiply_cycles() const { return multiply_adds / 4.0; }
  double data_cycles() const { return wavefronts + shuffles; }
  /// The 4 schedulers start an instruction a cycle each, whichever it is. Only those listed here are counted.
  double issue_cycles() const { return (multiply_adds + loads + stores + shuffles + exponentials) / 4.0; }
  /// The share of the FMA peak that these units leave.
  double bound() const { return multiply_cycles() / std::max({multiply_cycles(), data_cycles(), issue_cycles()}); }
};

/// Steps of a butterfly over so many lanes.
constexpr int butterfly_steps(int lanes) { return lanes == 1 ? 0 : 1 + butterfly_steps(lanes / 2); }

/// The work of the four kernels, in their order.
///
/// Loads of four floats take 2 wavefronts a warp here, because neighbouring lanes take equal addresses in pairs or
/// alternate between two; stores of them take 4 (both measured on an H200). What is one float a lane takes 1.
template <int kHeadDim>
std::vector<TileWork> tile_works() {
  using One = ShuffleTile<kHeadDim>;
  using Split = SplitTile<kHeadDim>;
  using Two = RegisterTile<kHeadDim>;
  constexpr int d = kHeadDim;
  const auto rows_of_k_and_v = [](int bc, int threads, int floats) { return 2 * bc * d / (threads * floats); };

  TileWork one{.kernel = "shuffle", .br = One::kBr, .bc = One::kBc, .warps = One::kThreads / gpu::kWarpSize};
  one.multiply_adds = d * One::kKeys + One::kBc * One::kColumns;
  one.loads = d * (1 + One::kKeys) + One::kBc * One::kColumns;
  one.stores = rows_of_k_and_v(One::kBc, One::kThreads, 1);
  one.wavefronts = one.loads + one.stores;
  one.shuffles = 2 * butterfly_steps(One::kLanes) + One::kBc;
  one.exponentials = One::kKeys + 1;

  TileWork split{.kernel = "split_keys", .br = Split::kBr, .bc = Split::kBc, .warps = Split::kWarps};
  const int split_loads4 = d / 4 * (1 + Split::kRows) + Split::kLanes * Split::kQuads;
  const int split_stores4 = rows_of_k_and_v(Split::kBc, Split::kThreads, 4);
  split.multiply_adds = Split::kRows * (d + Split::kLanes * Split::kQuads * 4);
  split.loads = split_loads4 + Split::kWarps * Split::kRows;  // the maxima of all warps
  split.stores = split_stores4 + Split::kRows;                // those of its own
  split.wavefronts = 2 * split_loads4 + 4 * split_stores4 + (Split::kWarps + 1) * Split::kRows;
  split.shuffles = Split::kRows * (butterfly_steps(Split::kLanes) + Split::kLanes);
  split.exponentials = 2 * Split::kRows;

  TileWork two{.kernel = "register_tiles", .br = Two::kBr, .bc = Two::kBc, .warps = Two::kThreads / gpu::kWarpSize};
  two.multiply_adds = Two::kRows * (Two::kKeys * d + Two::kBc * Two::kQuads * 4);
  two.loads = d / 4 * (Two::kKeys + Two::kRows) + Two::kBc * Two::kQuads;
  two.stores = rows_of_k_and_v(Two::kBc, Two::kThreads, 4);
  two.wavefronts = 2 * two.loads + 4 * two.stores;
  two.shuffles = Two::kRows * (2 * butterfly_steps(Two::kLanes) + Two::kBc);
  two.exponentials = Two::kRows * (Two::kKeys + 1);

  TileWork three = two;
  three.kernel = "exp2";
  three.shuffles -= Two::kRows * butterfly_steps(Two::kLanes);  // the sums are added up after the last tile
  return {one, split, two, three};
}

/// Tiles of S, of one head: which step 3 visits, and in which of these it applies the mask.
struct TileCounts {
  int all = 0, visited = 0, masked = 0;
};
template <int kHeadDim>
TileCounts count_tiles(attention::Mask mask, int seqlen_q, int seqlen_kv) {
  using Tile = RegisterTile<kHeadDim>;
  TileCounts counts;
  for (int first = 0; first < seqlen_q; first += Tile::kBr) {
    const int rows = std::min(Tile::kBr, seqlen_q - first);
    const KeyRange visited = visited_keys<Tile>(mask, first, rows, seqlen_q, seqlen_kv);
    const KeyRange unmasked = attention::keys_of_all(mask, first, first + rows - 1, seqlen_q, seqlen_kv);
    counts.all += tiles_of(seqlen_kv, Tile::kBc);
    for (int key = visited.begin; key < visited.end; key += Tile::kBc) {
      counts.visited += 1;
      counts.masked += needs_mask<Tile>(key, unmasked);
    }
  }
  return counts;
}

}  // namespace warp_shuffle
