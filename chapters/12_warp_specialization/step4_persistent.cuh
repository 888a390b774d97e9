#pragma once
/// \file
/// Step 4: blocks that stay. There are as many as multiprocessors, and each takes one work after the other: while the
/// last products of one run, Q, K and V of the next are on their way, and O of the one before leaves.
///
///   - Each warpgroup that computes has its own place for Q, with its own barriers: it goes on to the next work when it
///     is done, whatever the others do. With Q comes the work, or none: there is no more.
///   - O has a place of its own where there is room (head_dim 64 and 128): with O in Q's place the next Q has to wait.
///   - It passes over tiles of which its own 64 rows see nothing, though others of the block do.
///   - O is rescaled only when a maximum has grown by more than 2⁸, as in chapter 08.
///   - schedule.cuh says in which order, and at head_dim 256 with which of two shapes of tiles.
///   - Shared memory: 2 · head_dim · (2 · Br + 4 · Bc) bytes: 192 KB at head_dim 128. At 256 Br counts once.
///   - Per tile: as in step 3.
///
/// Source: Shah et al., "FlashAttention-3" (2024); Dao, FlashAttention's persistent tile scheduler.

#include <algorithm>
#include <string>
#include <type_traits>

#include "chapters/12_warp_specialization/persistent_producer.cuh"
#include "chapters/12_warp_specialization/step2_ping_pong.cuh"

namespace warp_specialization {

/// One work after the other, Br rows of a head each.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    persistent_kernel(const __grid_constant__ Maps maps, ForwardArgs<typename Tile::T> args, Schedule schedule) {
  using T = typename Tile::T;
  using Shared = PersistentShared<Tile>;
  auto& shared = gpu::shared_memory<Shared>();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    for (int consumer = 0; consumer < Tile::kConsumers; ++consumer) {
      gpu::mbarrier_init(shared.q_full[consumer], 1);
      gpu::mbarrier_init(shared.q_empty[consumer], kernel::kWarpgroupThreads);
    }
    init_stages<Tile>(shared);
    gpu::mbarrier_init_fence();
  }
  __syncthreads();

  const int warpgroup = gpu::warp_uniform(thread / kernel::kWarpgroupThreads);
  if (warpgroup == 0) {
    gpu::release_registers<Tile::kProducerRegisters>();
    if (gpu::warp_uniform(thread / gpu::kWarpSize) == 0 && gpu::elect_one()) produce_all(shared, maps, args, schedule);
  } else {
    gpu::take_registers<Tile::kConsumerRegisters>();
    const int consumer = warpgroup - 1, lane = thread % gpu::kWarpSize;
    const int own_barrier = 1 + Tile::kConsumers + consumer;
    const bool leads = thread % kernel::kWarpgroupThreads == 0;
    const int row = gpu::warp_uniform(thread % kernel::kWarpgroupThreads / gpu::kWarpSize) * 16;  // the warp's first
    const kernel::FoldedScale scale(args.softmax_scale);
    const Turns<Tile> turns{consumer};
    RingPosition<Tile> at;
    Out<Tile> o_reg;
    Probabilities<Tile> p_reg;
    turns.begin();

    for (std::uint32_t round = 0;; round ^= 1) {
      gpu::mbarrier_wait(shared.q_full[consumer], round);
      const Work<Tile> work = shared.work[consumer].uniform();
      if (work.is_none()) break;
      const int tiles = work.tiles(), first_query = work.first_query + consumer * kernel::kWarpgroupRows;
      const Seen own = work.seen_by_rows(args, first_query);
      float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, rescale[2];
#pragma unroll
      for (int c = 0; c < Tile::kColumnTiles; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) o_reg[c][e] = 0;
      /// A tile's scores, which are there, under the mask.
      const auto mask_tile = [&](Scores<Tile>& s_reg, int step) {
        if (scale.sign != 1) kernel::apply_sign(s_reg, scale.sign);
        kernel::mask_by_bits(s_reg, args, first_query + row, work.first_key(step), lane);
      };
      /// S of a tile and O of the one before it.
      const auto add_tile = [&](int step, auto general) {
        const RingPosition<Tile> before = at;
        at.advance();
        Scores<Tile> s_reg;
        gpu::mbarrier_wait(shared.k_full[at.stage], at.parity);
        turns.wait();
        kernel::start_scores(s_reg, shared.q[consumer], 0, shared.k[at.stage]);
        gpu::mbarrier_wait(shared.v_full[before.stage], before.parity);  // V may still be on its way until here
        kernel::start_output(o_reg, p_reg, shared.v[before.stage]);
        turns.pass_on();
        gpu::wgmma_wait<1>();
        gpu::keep(s_reg);
        if (general) mask_tile(s_reg, step);
        float shift[2];
        const bool moved = kernel::find_maxima_lazily(s_reg, m, l, rescale, shift, scale);
        kernel::exponentiate<0, Tile::kEarlyKeyTiles>(s_reg, l, shift, scale);
        // Not before these, which are to run under the product and not behind the wait for it.
        if (lane == 0) gpu::mbarrier_arrive_after(shared.k_empty[at.stage], l[0] + l[1]);
        gpu::wgmma_wait<0>();
        gpu::keep(o_reg);
        if (lane == 0) gpu::mbarrier_arrive(shared.v_empty[before.stage]);
        kernel::exponentiate<Tile::kEarlyKeyTiles, Tile::kKeyTiles>(s_reg, l, shift, scale);
        if (moved) kernel::scale_rows(o_reg, rescale);
        kernel::pack<T>(p_reg, s_reg);
      };
      const auto is_general = [&](int step) {
        const int first_key = work.first_key(step);
        return scale.sign != 1 || first_key < own.unmasked.begin || first_key + Tile::kBc > own.unmasked.end;
      };
      /// A tile of which these rows see nothing. Its turn passes, and its places are as empty as the others leave them:
      /// but not before they were full, or this arrival would count for the tile that had them before. And not before
      /// each lane has seen that: a lane that is late would find the phase after, and wait for one more. (Elsewhere a
      /// product stands in between, for which the warp is one.)
      const auto pass_over = [&] {
        turns.wait();
        turns.pass_on();
        gpu::mbarrier_wait(shared.k_full[at.stage], at.parity);
        gpu::mbarrier_wait(shared.v_full[at.stage], at.parity);
        __syncwarp();
        if (lane == 0) {
          gpu::mbarrier_arrive(shared.k_empty[at.stage]);
          gpu::mbarrier_arrive(shared.v_empty[at.stage]);
        }
        at.advance();
      };

      for (int step = 0; step < own.begin; ++step) pass_over();
      if (own.begin < own.end) {
        Scores<Tile> s_reg;
        gpu::mbarrier_wait(shared.k_full[at.stage], at.parity);
        turns.wait();
        kernel::start_scores(s_reg, shared.q[consumer], 0, shared.k[at.stage]);
        turns.pass_on();
        gpu::wgmma_wait<0>();
        gpu::keep(s_reg);
        if (lane == 0) gpu::mbarrier_arrive(shared.k_empty[at.stage]);
        if (is_general(own.begin)) mask_tile(s_reg, own.begin);
        kernel::softmax(s_reg, m, l, rescale, scale);
        kernel::pack<T>(p_reg, s_reg);
      }
      for (int step = own.begin + 1; step < own.end;) {
#pragma unroll 1
        for (; step < own.end && is_general(step); ++step) add_tile(step, std::true_type());
#pragma unroll 1
        for (; step < own.end && !is_general(step); ++step) add_tile(step, std::false_type());
      }
      if (Shared::kOwnO) gpu::mbarrier_arrive(shared.q_empty[consumer]);  // Q has been read, and the work
      float inverse[2];
      const auto normalize = [&] {
        kernel::normalize_rows(inverse, m, l, args, work.batch, work.head, first_query, row, gpu::lane());
      };
      if (own.begin < own.end) {
        gpu::mbarrier_wait(shared.v_full[at.stage], at.parity);
        turns.wait();
        kernel::start_output(o_reg, p_reg, shared.v[at.stage]);
        turns.pass_on();
        normalize();
        gpu::wgmma_wait<0>();
        gpu::keep(o_reg);
        if (lane == 0) gpu::mbarrier_arrive(shared.v_empty[at.stage]);
        at.advance();
      } else {
        normalize();
        if (tiles > 0) {
          turns.wait();
          turns.pass_on();
        }
      }
      for (int step = own.end; step < tiles; ++step) pass_over();

      if (leads) gpu::tma_store_wait_read<0>();  // O of the work before has left
      gpu::named_barrier_sync(own_barrier, kernel::kWarpgroupThreads);
      kernel::put_output(shared.o(consumer), o_reg, inverse, row, gpu::lane());
      gpu::async_proxy_fence();
      gpu::named_barrier_sync(own_barrier, kernel::kWarpgroupThreads);
      if (leads) {
        if (first_query < args.seqlen_q) {
#pragma unroll
          for (int panel = 0; panel < Tile::kPanels; ++panel) {
            gpu::tma_store(maps.o, shared.o(consumer).at(panel * Shared::QTile::kPanel),
                           panel * Shared::QTile::kPanelColumns, first_query, work.head, work.batch);
          }
          gpu::tma_store_commit();
        }
      }
      if (!Shared::kOwnO) {
        if (leads) gpu::tma_store_wait_read<0>();
        gpu::mbarrier_arrive(shared.q_empty[consumer]);
      }
    }
    turns.end();
    if (leads) gpu::tma_store_wait<0>();  // shared memory is the block's only as long as the block runs
  }
}

/// Step 4 for one head_dim.
///
/// \param most_blocks fewer blocks than multiprocessors, for tests
template <int kHeadDim>
stage::ForwardKernel persistent(int most_blocks = 1 << 30) {
  using Large = PersistentShared<SpecializedTile<gpu::bf16, kHeadDim>>;
  using Small = PersistentShared<SpecializedTile<gpu::bf16, kHeadDim, kHeadDim == 256>>;
  using Larger = std::conditional_t<(sizeof(Small) > sizeof(Large)), Small, Large>;
  const std::string name = "persistent";
  return {.name = name,
          .summary = "a block a multiprocessor takes one work after the other",
          .require = [name](const Problem& p) { require<Larger>(name, p); },
          .workspace_bytes = [](const Problem&) { return sizeof(int); },
          .traffic =
              [](const Problem& p) {
                return with_tile<gpu::bf16, kHeadDim>(p.mask, p.seqlen_q, p.seqlen_kv, [&]<class Tile>(Tile) {
                  const attention::Traffic traffic = attention::tiled_forward_traffic(p, Tile::kBr, Tile::kBc);
                  const double works = double(p.batch) * p.heads_q * tiles_of(p.seqlen_q, Tile::kBr);
                  const double asked = Schedule::asks(p.mask) * works * sizeof(int);
                  return attention::Traffic{traffic.loaded + asked, traffic.stored + asked};
                });
              },
          .run =
              [most_blocks]<stage::SixteenBits T>(const ForwardArgs<T>& args, void* workspace) {
                with_tile<T, kHeadDim>(args.mask, args.seqlen_q, args.seqlen_kv, [&]<class Tile>(Tile) {
                  const auto schedule = Schedule::of<Tile>(args, static_cast<int*>(workspace));
                  if (schedule.works == 0) return;
                  if (schedule.counter) gpu::fill_bytes(schedule.counter, 0, sizeof(int));
                  const int blocks = std::min({schedule.works, gpu::device().multiprocessors, most_blocks});
                  gpu::launch<PersistentShared<Tile>>(persistent_kernel<Tile>,
                                                      {.grid = blocks, .block = Tile::kThreads},
                                                      make_maps<Tile>(args, kernel::kWarpgroupRows), args, schedule);
                });
              }};
}

}  // namespace warp_specialization
