#pragma once
/// \file
/// The chapter's kernels on paper: where WGMMA looks for an element, and how long the units of a multiprocessor are
/// busy with a tile of keys.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "chapters/10_wgmma/step1_one_warpgroup.cuh"
#include "chapters/10_wgmma/step2_shared_tiles.cuh"
#include "common/gpu/matrix_descriptor.hpp"
#include "common/gpu/swizzle.cuh"

namespace wgmma {

/// What a matrix descriptor says, in bytes.
struct DescriptorFields {
  std::uint32_t address = 0, leading = 0, stride = 0;
  int swizzle_code = 0;  ///< bits 62 and 63: 0 none, 1 is 128 bytes, 2 is 64, 3 is 32
};

/// The fields of a descriptor (matrix_descriptor.hpp).
constexpr DescriptorFields fields_of(gpu::MatrixDescriptor descriptor) {
  const auto field = [&](int first_bit) {
    return static_cast<std::uint32_t>(descriptor.bits >> first_bit & 0x3fff) * 16;
  };
  return {field(0), field(16), field(32), static_cast<int>(descriptor.bits >> 62)};
}

/// Where WGMMA reads an element of 16 bits: the address in shared memory, in bytes, that a descriptor with the 128-byte
/// swizzle gives it.
///
///     K-major:   start + mn / 8 · stride + mn mod 8 · 128 + 2 · k
///     MN-major:  start + mn / 64 · leading + k / 8 · stride + k mod 8 · 128 + mn mod 64 · 2
///
/// and then bits 4 to 6 of the address ⊕ bits 7 to 9. Nothing here knows of tiles: this is the hardware's side.
///
/// \param mn row of A, or column of B
/// \param k 0 … 15
///
/// Source: PTX ISA, "Shared Memory Matrix Layout", "Canonical Layouts".
constexpr std::uint32_t operand_byte(gpu::MatrixDescriptor descriptor, gpu::Major major, int mn, int k) {
  const DescriptorFields f = fields_of(descriptor);
  const auto m = static_cast<std::uint32_t>(mn), depth = static_cast<std::uint32_t>(k);
  const std::uint32_t plain =
      major == gpu::Major::k ? f.address + m / 8 * f.stride + m % 8 * 128 + 2 * depth
                             : f.address + m / 64 * f.leading + depth / 8 * f.stride + depth % 8 * 128 + m % 64 * 2;
  return gpu::swizzled_offset(gpu::Swizzle::bytes_128, plain);
}

/// Where a tile keeps an element, in bytes from its start: the side of those who copy.
template <class PanelTile>
constexpr std::uint32_t tile_byte(int row, int column) {
  constexpr int kChunk = static_cast<int>(kernel::kChunkElements);
  return static_cast<std::uint32_t>(2 * (PanelTile::offset(row, column / kChunk) + column % kChunk));
}

/// The chunk of a row of the panel that lies at a place of 16 bytes, 0 … 7, of it.
template <class PanelTile>
constexpr int chunk_at(int row, int panel, int place) {
  for (int chunk = 8 * panel; chunk < 8 * panel + 8; ++chunk) {
    if (PanelTile::offset(row, chunk) == PanelTile::kPanel * panel + PanelTile::kPanelColumns * row + 8 * place) {
      return chunk;
    }
  }
  return -1;
}

/// An operand of a kernel, as its products see it.
struct Operand {
  std::string name, meaning;  ///< "K", and what M or N and K are
  gpu::Major major{};
  gpu::MatrixDescriptor descriptor;  ///< of step 0, where the block's shared memory starts at address 0
  std::vector<std::uint32_t> added;  ///< by each step, in bytes
};

/// Q of the last warpgroup, K and V of the first stage: what start_scores and start_output make of WgmmaShared.
template <class Tile>
std::vector<Operand> operands() {
  using Shared = WgmmaShared<Tile>;
  using QTile = typename Shared::QTile;
  using KTile = typename Shared::KTile;
  const int first_row = Tile::kBr - kernel::kWarpgroupRows;
  const auto along_rows = [](std::size_t address) {
    return gpu::matrix_descriptor_at(static_cast<std::uint32_t>(address), gpu::Swizzle::bytes_128, 0,
                                     KTile::kGroupBytes);
  };
  Operand q{"Q",
            "M: queries, K: columns",
            gpu::Major::k,
            along_rows(offsetof(Shared, q) + std::size_t{2} * QTile::kPanelColumns * first_row),
            {}};
  Operand k{"K", "N: keys, K: columns", gpu::Major::k, along_rows(offsetof(Shared, k)), {}};
  Operand v{"V",
            "N: columns, K: keys",
            gpu::Major::mn,
            gpu::matrix_descriptor_at(static_cast<std::uint32_t>(offsetof(Shared, v)), gpu::Swizzle::bytes_128,
                                      KTile::kPanelBytes, KTile::kGroupBytes),
            {}};
  for (int i = 0; i < Tile::kColumnSteps; ++i) {
    q.added.push_back(QTile::column_step(i));
    k.added.push_back(KTile::column_step(i));
  }
  for (int i = 0; i < Tile::kKeySteps; ++i) v.added.push_back(KTile::row_step(i));
  return {q, k, v};
}

/// What a block does for one tile of keys that no mask cuts, and how long the units of a multiprocessor of an H100 or
/// H200 are busy with it.
struct WgmmaWork {
  std::string kernel;
  int head_dim = 0, br = 0, bc = 0, warpgroups = 0, stages = 0;
  int blocks = 0;         ///< of a multiprocessor, at least (resident_blocks)
  int products_s = 0;     ///< WGMMA of a warpgroup for S, 64 × Bc × 16 each
  int products_o = 0;     ///< and for O, 64 × head_dim × 16 each
  int read_bytes = 0;     ///< of shared memory, by a warpgroup's products: A once, where it is there, and B once
  int copied_bytes = 0;   ///< of a block, by cp.async: K and V
  int copies = 0;         ///< of a lane, 16 bytes each
  int exponentials = 0;   ///< of a lane
  int other_softmax = 0;  ///< other instructions of a lane's softmax, with those that make P an operand and rescale O
  int shared_bytes = 0;   ///< of a block

  /// 16 bits, dense: a multiprocessor's four tensor cores make 2048 multiply-adds a cycle at their peak.
  static constexpr double kMultiplyAdds = 2048;
  /// Bytes a cycle of shared memory. That copies take the same path as products is an assumption.
  static constexpr double kSharedBytes = 128;
  /// Bytes a cycle and multiprocessor of the L2 where all of them read: the 9.78 TB/s that chapter 00 measures, over
  /// 132 of them at 1.83 GHz.
  static constexpr double kL2Bytes = 40;
  /// Exponentials a cycle.
  static constexpr double kExponentials = 16;

  /// A 64 × N × 16 product takes N / 2 cycles.
  static constexpr double product_cycles(int n) { return 64.0 * n * 16 / kMultiplyAdds; }

  // What one warpgroup does for a tile, each by itself.

  double own_tensor_cycles() const { return products_s * product_cycles(bc) + products_o * product_cycles(head_dim); }
  /// A warpgroup has a warp on each of the four schedulers, and each of those starts an instruction a cycle.
  double own_softmax_cycles() const {
    return std::max(exponentials * kernel::kWarpgroupThreads / kExponentials, double(exponentials + other_softmax));
  }
  /// For the tile to arrive, where nothing else is done meanwhile: with one stage.
  double own_copy_cycles() const { return stages == 1 ? copied_bytes / kL2Bytes : 0; }

  // How long the block's warpgroups keep a unit busy.

  double tensor_cycles() const { return warpgroups * own_tensor_cycles(); }
  double data_cycles() const { return (double(warpgroups) * read_bytes + copied_bytes) / kSharedBytes; }
  double l2_cycles() const { return copied_bytes / kL2Bytes; }
  double exponential_cycles() const { return warpgroups * exponentials * kernel::kWarpgroupThreads / kExponentials; }
  double issue_cycles() const {
    return double(warpgroups) * (products_s + products_o + exponentials + other_softmax + copies);
  }

  /// The share of the tensor cores' peak that the units leave, if all of them run beside each other all the time.
  double share_of_units() const {
    return tensor_cycles() /
           std::max({tensor_cycles(), data_cycles(), l2_cycles(), exponential_cycles(), issue_cycles()});
  }
  /// The share if all warpgroups of a multiprocessor do the same at the same time: all load, all multiply, all compute
  /// their softmax. Each of the three then takes so many times as long as for one, and the others' units have a rest.
  double share_in_step() const {
    return own_tensor_cycles() / (own_tensor_cycles() + own_softmax_cycles() + own_copy_cycles());
  }
  /// The share if they are as far apart as can be: one multiplies while the others do something else.
  double share_apart() const { return std::min(share_of_units(), blocks * warpgroups * share_in_step()); }
};

/// Blocks that a multiprocessor of an H100 or H200 has room for at a time, if its lanes take all the registers that the
/// kernel's launch bounds let them have. With fewer there may be more.
template <class Tile>
constexpr int resident_blocks() {
  constexpr int kRegisters = 65536, kSharedBytes = 233472, kReservedBytes = 1024;  // of a multiprocessor; of a block
  // A lane has up to 255, and they are given out by eights.
  constexpr int kOfLane = std::min(256, kRegisters / (Tile::kThreads * Tile::kBlocks) / 8 * 8);
  const int by_shared_memory = kSharedBytes / (static_cast<int>(sizeof(WgmmaShared<Tile>)) + kReservedBytes);
  return std::min(by_shared_memory, kRegisters / (Tile::kThreads * kOfLane));
}

/// The work of a kernel for a tile that no mask cuts.
template <class Tile>
WgmmaWork wgmma_work(const std::string& kernel) {
  WgmmaWork work{.kernel = kernel,
                 .head_dim = Tile::kHeadDim,
                 .br = Tile::kBr,
                 .bc = Tile::kBc,
                 .warpgroups = Tile::kWarpgroups,
                 .stages = Tile::kStages,
                 .blocks = resident_blocks<Tile>()};
  constexpr int kElement = static_cast<int>(sizeof(typename Tile::T));
  constexpr int kRowStep = 16 * kElement;  // bytes that one row or column brings to a product
  work.products_s = Tile::kColumnSteps;
  work.products_o = Tile::kKeySteps;
  work.read_bytes = Tile::kColumnSteps * (kernel::kWarpgroupRows + Tile::kBc) * kRowStep +
                    Tile::kKeySteps * Tile::kHeadDim * kRowStep;
  work.copied_bytes = 2 * Tile::kBc * Tile::kHeadDim * kElement;
  work.copies = work.copied_bytes / 16 / Tile::kThreads;
  const int elements = 4 * Tile::kKeyTiles, rows = 2;  // of a lane
  work.exponentials = elements + rows;
  // Maximum, product with the factor and difference in one, sum; a conversion for two; and O's rescaling.
  work.other_softmax = elements * 3 + elements / 2 + 4 * Tile::kColumnTiles;
  work.shared_bytes = static_cast<int>(sizeof(WgmmaShared<Tile>));
  return work;
}

/// The two steps, in their order.
template <int kHeadDim>
std::vector<WgmmaWork> wgmma_works() {
  return {wgmma_work<OneWarpgroupTile<gpu::bf16, kHeadDim>>("one_warpgroup"),
          wgmma_work<SharedTiles<gpu::bf16, kHeadDim>>("shared_tiles")};
}

}  // namespace wgmma
