/// \file
/// The forward suite catches what easily goes wrong with tiles: step 2 with a fault in it.

#include <string>
#include <utility>
#include <vector>

#include "chapters/04_sram_tiling/kernels.hpp"
#include "common/gpu/device.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/forward_suite.hpp"

namespace {

using namespace sram_tiling;

enum class Fault {
  none,
  o_not_rescaled,     ///< O keeps what it summed under an older maximum
  l_not_rescaled,     ///< so does ℓ
  mask_of_tile_zero,  ///< every tile is masked as if it held the first keys
  state_of_tile_lost  ///< m and ℓ start afresh with every tile
};

/// q_outer_kernel with a fault. Barriers, loads and stores are where they are there.
template <class Tile>
__global__ void faulty_kernel(ForwardArgs<float> args, int query_tiles, Fault fault) {
  auto& shared = gpu::shared_memory<TileShared<Tile>>();
  const int thread = static_cast<int>(threadIdx.x);
  const int head_index = static_cast<int>(blockIdx.x) / query_tiles;
  const int batch = head_index / args.heads_q;
  const int head = head_index % args.heads_q;
  const int head_kv = args.kv_head(head);
  const int first_query = static_cast<int>(blockIdx.x) % query_tiles * Tile::kBr;
  const int rows = min(Tile::kBr, args.seqlen_q - first_query);

  kernel::load_tile<kThreads, Tile::kHeadDim>(shared.q, args.q_row(batch, first_query, head), args.q_strides.seq, rows);
  if (thread < Tile::kBr) {
    shared.m[thread] = -INFINITY;
    shared.l[thread] = 0;
  }
  OutputColumn<Tile> o;

  for (int first_key = 0; first_key < args.seqlen_kv; first_key += Tile::kBc) {
    const int keys = min(Tile::kBc, args.seqlen_kv - first_key);
    __syncthreads();
    kernel::load_tile<kThreads, Tile::kHeadDim>(shared.k, args.k_row(batch, first_key, head_kv), args.k_strides.seq,
                                                keys);
    kernel::load_tile<kThreads, Tile::kHeadDim>(shared.v, args.v_row(batch, first_key, head_kv), args.v_strides.seq,
                                                keys);
    __syncthreads();

    compute_scores(shared, args, first_query, fault == Fault::mask_of_tile_zero ? 0 : first_key);
    __syncthreads();
    // The state of a row is its thread's alone until the next barrier.
    if (thread < Tile::kBr && fault == Fault::state_of_tile_lost) {
      shared.m[thread] = -INFINITY;
      shared.l[thread] = 0;
    }
    const float l_old = thread < Tile::kBr ? shared.l[thread] : 0.0f;
    softmax_rows(shared);
    if (thread < Tile::kBr) {
      if (fault == Fault::l_not_rescaled) shared.l[thread] += l_old * (1 - shared.rescale[thread]);
      if (fault == Fault::o_not_rescaled) shared.rescale[thread] = 1;
    }
    __syncthreads();
    o.accumulate(shared);
  }

  __syncthreads();
  o.normalize(shared);
  o.store(args.o_row(batch, first_query, head), args.o_strides.seq, rows);
  if (thread < rows) {
    *args.lse_entry(batch, first_query + thread, head) = kernel::log_sum_exp({shared.m[thread], shared.l[thread]});
  }
}

template <class Tile>
stage::ForwardKernel faulty(Fault fault, const std::string& name) {
  stage::ForwardKernel kernel = q_outer<Tile>(name);
  kernel.run = [fault](const ForwardArgs<float>& args, void*) {
    const int query_tiles = tiles_of(args.seqlen_q, Tile::kBr);
    const std::int64_t blocks = std::int64_t{args.batch} * args.heads_q * query_tiles;
    if (blocks == 0) return;
    gpu::launch<TileShared<Tile>>(faulty_kernel<Tile>, {.grid = blocks, .block = kThreads}, args, query_tiles, fault);
  };
  return kernel;
}

stage::ForwardKernel faulty_kernels(Fault fault, const std::string& name) {
  return stage::by_head_dim({{32, faulty<DefaultTile<32>>(fault, name)},
                             {64, faulty<DefaultTile<64>>(fault, name)},
                             {128, faulty<DefaultTile<128>>(fault, name)}});
}

}  // namespace

TEST_CASE("the suite catches the faults of tiles", "[suite_can_fail]") {
  if (gpu::device().checked) return;  // the plain build runs more cases in less time
  const std::vector<std::pair<Fault, const char*>> faults = {{Fault::o_not_rescaled, "o_not_rescaled"},
                                                             {Fault::l_not_rescaled, "l_not_rescaled"},
                                                             {Fault::mask_of_tile_zero, "mask_of_tile_zero"},
                                                             {Fault::state_of_tile_lost, "state_of_tile_lost"}};
  for (const auto& [fault, name] : faults) {
    INFO(name);
    CHECK_FALSE(suite::forward_suite_failures(faulty_kernels(fault, name), suite::Depth::plain, 1).empty());
  }
}

TEST_CASE("without a fault the same kernel is right", "[suite_can_fail]") {
  suite::SuiteCase tiles;
  tiles.problem.heads_q = 2;
  tiles.problem.seqlen_q = tiles.problem.seqlen_kv = 130;
  tiles.problem.head_dim = 32;
  for (const std::string& sentence : suite::case_failures(faulty_kernels(Fault::none, "none"), tiles)) {
    FAIL_CHECK(sentence);
  }
}
