#pragma once
/// \file
/// The chapter's kernels on paper: what a warp executes for one tile of K and V.

#include <algorithm>
#include <string>
#include <vector>

#include "chapters/07_tensor_cores/step1_mma.cuh"
#include "chapters/07_tensor_cores/step2_swizzle.cuh"

namespace tensor_cores {

/// What a warp executes for one tile of K and V, and how long the units of a multiprocessor of an H100 or H200 are busy
/// with what a block's warps do for it.
struct MmaWork {
  std::string kernel;
  int br, bc, warps;       ///< of the block
  int products = 0;        ///< mma.sync of a warp
  int matrix_loads = 0;    ///< ldmatrix of a warp, four matrices each
  int wavefronts = 0;      ///< that one of them takes: a row of a matrix is 16 bytes, in four of the 32 banks
  int stores = 0;          ///< of a warp, 16 bytes a lane, of what it has loaded of K and V: four wavefronts each
  int exponentials = 0;    ///< of a lane
  int other_floating = 0;  ///< of a lane: what else the softmax does, and the rescaling of O

  /// A tensor core, of which there are four, makes 1024 FLOP a cycle at its peak (dense, 16 bits): 4 cycles for the
  /// 2 · 16 · 8 · 16 FLOP of an mma.sync.
  double tensor_cycles() const { return products * warps * 4.0 / 4; }
  /// The path to shared memory takes a wavefront a cycle.
  double data_cycles() const { return double(warps) * (matrix_loads * wavefronts + stores * 4); }
  /// The four schedulers start an instruction a cycle each. Only those listed here are counted.
  double issue_cycles() const {
    return (products + matrix_loads + stores + exponentials + other_floating) * warps / 4.0;
  }
  /// Exponentials: 16 a cycle.
  double exponential_cycles() const { return exponentials * warps * gpu::kWarpSize / 16.0; }
  /// The share of the tensor cores' peak that these units leave.
  double bound() const {
    return tensor_cycles() / std::max({tensor_cycles(), data_cycles(), issue_cycles(), exponential_cycles()});
  }
};

/// Wavefronts of an ldmatrix of four matrices whose rows are neighbours in a tile: each of a matrix's eight rows wants
/// four banks. Found by looking where the rows lie.
template <class Tile>
int wavefronts_of_four_matrices() {
  int groups[8] = {};  // of four banks
  for (int row = 0; row < 8; ++row) {
    groups[Tile::offset(row, 0) * static_cast<int>(sizeof(typename Tile::T)) / 16 % 8] += 1;
  }
  return 4 * *std::max_element(std::begin(groups), std::end(groups));
}

/// The work of a kernel with the given layout of its tiles.
template <int kHeadDim, class Layout>
MmaWork mma_work(const std::string& kernel) {
  using Tile = MmaTile<gpu::bf16, kHeadDim, Layout>;
  MmaWork work{.kernel = kernel, .br = Tile::kBr, .bc = Tile::kBc, .warps = Tile::kWarps};
  const int of_s = Tile::kColumnSteps * Tile::kKeyTiles, of_o = Tile::kKeySteps * Tile::kColumnTiles;
  work.products = of_s + of_o;
  // Of Q one load serves all keys; of K and V one serves two products.
  work.matrix_loads = Tile::kColumnSteps + of_s / 2 + of_o / 2;
  work.wavefronts = wavefronts_of_four_matrices<decltype(MmaShared<Tile>::k)>();
  work.stores = 2 * Tile::kBc * kHeadDim / kernel::kChunkElements / Tile::kThreads;
  const int elements = 4 * Tile::kKeyTiles;  // of S, a lane
  work.exponentials = elements + 2;
  // Sign and mask, maximum, difference, product with the factor, sum; a conversion for two; and O's rescaling.
  work.other_floating = elements * 5 + elements / 2 + 4 * Tile::kColumnTiles;
  return work;
}

/// Both steps, in their order.
template <int kHeadDim>
std::vector<MmaWork> mma_works() {
  return {mma_work<kHeadDim, kernel::RowByRow>("mma"), mma_work<kHeadDim, kernel::Swizzled>("swizzled")};
}

}  // namespace tensor_cores
