#include <array>
#include <cstdint>
#include <vector>

#include "common/gpu/buffer.hpp"
#include "common/kernel/query_tile.cuh"
#include "tests/catch.hpp"

namespace {

using attention::ForwardArgs, attention::Mask;
using Tile = std::array<int, 3>;  ///< batch, head, index

constexpr int kBatch = 2, kHeads = 3, kTiles = 4, kBlocks = kBatch * kHeads * kTiles;

/// of_blocks_gmem[3 · block]: batch, head and index of the block's tile.
__global__ void list_tiles(ForwardArgs<float> args, int query_tiles, int* of_blocks_gmem) {
  const kernel::QueryTile tile = kernel::query_tile_of_block(args, query_tiles);
  int* of_block_gmem = of_blocks_gmem + 3 * blockIdx.x;
  of_block_gmem[0] = tile.batch;
  of_block_gmem[1] = tile.head;
  of_block_gmem[2] = tile.index;
}

/// The tiles in the order in which blocks start.
std::vector<Tile> tiles_in_order(Mask mask, int heads_kv) {
  ForwardArgs<float> args{};
  args.batch = kBatch, args.heads_q = kHeads, args.heads_kv = heads_kv, args.mask = mask;
  gpu::DeviceBuffer<int> of_blocks_gmem(3 * kBlocks, "of_blocks");
  gpu::launch(list_tiles, {.grid = kBlocks, .block = 1}, args, kTiles, of_blocks_gmem.data());
  const std::vector<int> numbers = of_blocks_gmem.download();
  std::vector<Tile> tiles;
  for (std::size_t i = 0; i < numbers.size(); i += 3) tiles.push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
  return tiles;
}

constexpr Mask kMasks[] = {Mask::none(), Mask::causal(), Mask::window(5, 0), Mask::window(0, attention::kUnlimited)};

}  // namespace

TEST_CASE("every tile of every head is one block's") {
  for (const Mask mask : kMasks) {
    CAPTURE(mask.name());
    int blocks_of[kBatch][kHeads][kTiles] = {};
    for (const auto& [batch, head, index] : tiles_in_order(mask, 1)) {
      REQUIRE((batch >= 0 && batch < kBatch && head >= 0 && head < kHeads && index >= 0 && index < kTiles));
      blocks_of[batch][head][index] += 1;
    }
    for (const auto& of_batch : blocks_of)
      for (const auto& of_head : of_batch)
        for (const int blocks : of_head) CHECK(blocks == 1);
  }
}

TEST_CASE("a head's tiles follow each other where no mask cuts, else all heads' last tiles come first") {
  std::vector<Tile> head_after_head, last_tiles_first;
  for (int batch = 0; batch < kBatch; ++batch)
    for (int head = 0; head < kHeads; ++head)
      for (int index = kTiles - 1; index >= 0; --index) head_after_head.push_back({batch, head, index});
  for (int index = kTiles - 1; index >= 0; --index)
    for (int batch = 0; batch < kBatch; ++batch)
      for (int head = 0; head < kHeads; ++head) last_tiles_first.push_back({batch, head, index});

  for (const int heads_kv : {1, kHeads}) {  // which heads share K and V does not matter
    for (const Mask mask : kMasks) {
      CAPTURE(mask.name(), heads_kv);
      CHECK(tiles_in_order(mask, heads_kv) == (mask == Mask::none() ? head_after_head : last_tiles_first));
    }
  }
}
