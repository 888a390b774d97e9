#pragma once
/// \file
/// The chapter's kernels on paper: who holds how many registers, how long units are busy with a tile of keys and what
/// of this runs beside what, step by step; and which block computes what, and until when.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "chapters/12_warp_specialization/schedule.cuh"
#include "chapters/12_warp_specialization/step4_persistent.cuh"

namespace warp_specialization {

/// Who holds a multiprocessor's registers: a producer warpgroup and the consumers.
struct RegisterBudget {
  int consumers = 0, producer_registers = 0, consumer_registers = 0;  ///< of a lane

  static constexpr int kRegisters = 65536;  ///< of a multiprocessor

  constexpr int threads() const { return (1 + consumers) * kernel::kWarpgroupThreads; }
  /// What each lane starts with, if one block has the multiprocessor for itself: they are given out by eights, and no
  /// lane has more than 255.
  constexpr int at_start() const { return std::min(255, kRegisters / threads() / 8 * 8); }
  /// Of the whole block, once setmaxnreg has moved them.
  constexpr int held() const {
    return kernel::kWarpgroupThreads * (producer_registers + consumers * consumer_registers);
  }
  /// What has been given back and not been taken. Below 0 the last consumer would wait forever.
  constexpr int spare() const { return threads() * at_start() - held(); }
};

/// Registers of a lane's S, P and O: what has to be alive together when a product runs beside a softmax.
constexpr int accumulator_registers(int head_dim, int bc) { return bc / 2 + bc / 4 + head_dim / 2; }

/// What the warpgroups of a block do for one tile of keys that no mask cuts, in cycles of an H100 or H200. Lower case
/// "own" is one warpgroup by itself.
struct TileWork {
  int head_dim = 0, bc = 0, consumers = 0;

  /// The rates of chapter 10's model, a cycle and multiprocessor: multiply-adds, bytes of the L2, bytes of shared
  /// memory, exponentials. A scheduler, of which there are four, starts an instruction of a warp a cycle.
  static constexpr double kMultiplyAdds = 2048, kL2Bytes = 40, kSharedBytes = 128, kExponentials = 16;

  /// S, or O, which has as many multiply-adds.
  constexpr double own_product() const { return double(kernel::kWarpgroupRows) * bc * head_dim / kMultiplyAdds; }
  constexpr double own_products() const { return 2 * own_product(); }
  /// The maximum of a row has to be known before the first exponential: an instruction for each of a lane's scores.
  constexpr double own_maximum() const { return bc / 2.0; }
  /// Of the scores, and of two rows in each lane.
  constexpr double own_exponentials() const {
    return (double(kernel::kWarpgroupRows) * bc + 2.0 * kernel::kWarpgroupThreads) / kExponentials;
  }
  constexpr double own_softmax() const { return own_maximum() + own_exponentials(); }
  /// Rounding P, two a conversion, and rescaling O.
  constexpr double own_finish() const { return bc / 4.0 + head_dim / 2.0; }
  /// Instructions that a scheduler starts while the exponentials run: these, a multiply-add and a sum for each score,
  /// and what finishes the tile.
  constexpr double own_issue() const { return bc / 2.0 + 2 + bc + own_finish(); }

  /// Tensor cores, exponentials, L2 and the path to shared memory, for the tile of all consumers.
  constexpr double products() const { return consumers * own_products(); }
  constexpr double exponentials() const { return consumers * own_exponentials(); }
  constexpr double l2() const { return copied_bytes() / kL2Bytes; }
  /// S reads A and B there, O only B; the copies come on top.
  constexpr double shared_memory() const {
    const double of_s = head_dim / 16.0 * (kernel::kWarpgroupRows + bc) * 32, of_o = bc / 16.0 * head_dim * 32;
    return (consumers * (of_s + of_o) + copied_bytes()) / kSharedBytes;
  }
  constexpr double copied_bytes() const { return 2.0 * bc * head_dim * 2; }
  /// The busiest unit: no order makes the tile shorter.
  constexpr double floor() const { return std::max({products(), exponentials(), l2(), shared_memory()}); }
};

/// How consumers share the units.
enum class Order {
  in_step,  ///< all do the same at the same time, one thing after the other
  turns,    ///< one after the other starts O of a tile with S of the next; then its softmax
  overlap   ///< S first, O of the tile before it behind; the softmax begins when S is there
};

/// From one turn of a warpgroup to when it could begin the next, if nobody else wanted the units. The whole softmax may
/// run under O here; where the kernels wait for O, and with how many exponentials still to come, was found by measuring
/// (SpecializedTile::kEarlyKeyTiles).
constexpr double own_chain(Order order, const TileWork& w) {
  if (order != Order::overlap) return w.own_products() + w.own_softmax();
  return w.own_product() + std::max(w.own_product(), w.own_softmax()) + w.own_finish();
}
/// From tile to tile of the block.
constexpr double cycles_of_tile(Order order, const TileWork& w) {
  if (order == Order::in_step) return w.consumers * own_chain(order, w);
  return std::max(own_chain(order, w), w.floor());
}
/// How long a warpgroup could dawdle in each tile without any unit noticing: latencies, barriers, instructions that the
/// model leaves out. (In step there is no such time.)
constexpr double slack(Order order, const TileWork& w) {
  return order == Order::in_step ? 0 : cycles_of_tile(order, w) - own_chain(order, w);
}

/// A step of the chapter.
struct StepOnPaper {
  std::string kernel;
  Order order{};
  TileWork tile;
  /// Q and K that can't come before the work before is done: its block still has their places, or the whole
  /// multiprocessor. 0 where the next work's have come meanwhile.
  int bytes_between_works = 0;
  int shared_bytes = 0;

  /// For which there is no product between two works.
  double load_cycles() const { return bytes_between_works / TileWork::kL2Bytes; }
};

/// Something that a consumer does, or has done for it.
struct PaperSpan {
  enum class What { scores, output, softmax, finish };
  What what{};
  int consumer = 0, work = 0, tile = 0;
  double begin = 0, end = 0;
};

/// What the consumers of a block do in `works` works of `tiles` tiles of keys each, products queued in the order in
/// which they are started, and exponentials likewise. The first loads of all are left out.
inline std::vector<PaperSpan> paper_timeline(const StepOnPaper& step, int works, int tiles) {
  using What = PaperSpan::What;
  const TileWork& w = step.tile;
  std::vector<PaperSpan> spans;
  std::vector<double> ready(static_cast<std::size_t>(w.consumers), 0.0);
  double tensor = 0, exponentials = 0;  // when the units are free
  for (int work = 0; work < works; ++work) {
    if (work > 0 && step.bytes_between_works > 0) {
      tensor = std::max(tensor, *std::max_element(ready.begin(), ready.end())) + step.load_cycles();
      std::fill(ready.begin(), ready.end(), tensor);
    }
    if (step.order == Order::in_step) {
      for (int tile = 0; tile < tiles; ++tile) {
        const double s = tensor + w.consumers * w.own_product(), p = s + w.consumers * w.own_softmax();
        for (int c = 0; c < w.consumers; ++c) {
          spans.push_back({What::scores, c, work, tile, tensor, s});
          spans.push_back({What::softmax, c, work, tile, s, p});
          spans.push_back({What::output, c, work, tile, p, p + w.consumers * w.own_product()});
        }
        tensor = p + w.consumers * w.own_product();
      }
      std::fill(ready.begin(), ready.end(), tensor);
      continue;
    }
    for (int turn = 0; turn <= tiles; ++turn) {  // S of tile `turn`, O of the one before
      for (int c = 0; c < w.consumers; ++c) {
        double& own = ready[static_cast<std::size_t>(c)];
        const bool scores = turn<tiles, output = turn> 0, scores_first = step.order == Order::overlap;
        double at = std::max(own, tensor), scores_there = at;
        for (const bool of_scores : {scores_first, !scores_first}) {
          if (of_scores ? !scores : !output) continue;
          spans.push_back({of_scores ? What::scores : What::output, c, work, of_scores ? turn : turn - 1, at,
                           at + w.own_product()});
          at += w.own_product();
          if (of_scores || !scores_first) scores_there = at;
        }
        own = tensor = at;
        if (!scores) continue;
        const double begin = std::max(scores_there + w.own_maximum(), exponentials);
        exponentials = begin + w.own_exponentials();
        spans.push_back({What::softmax, c, work, turn, begin - w.own_maximum(), exponentials});
        own = std::max(own, exponentials);
        if (!scores_first || !output) continue;  // otherwise O may only now be touched
        spans.push_back({What::finish, c, work, turn, own, own + w.own_finish()});
        own += w.own_finish();
      }
    }
  }
  return spans;
}

/// When the last of it is over.
inline double end_of(const std::vector<PaperSpan>& spans) {
  double end = 0;
  for (const PaperSpan& span : spans) end = std::max(end, span.end);
  return end;
}

/// Cycles from the end of a work to the end of the next, in a multiprocessor that has many.
inline double cycles_of_work(const StepOnPaper& step, int tiles) {
  return end_of(paper_timeline(step, 4, tiles)) - end_of(paper_timeline(step, 3, tiles));
}
/// The share of the tensor cores' peak.
inline double share_of_peak(const StepOnPaper& step, int tiles) {
  return tiles * step.tile.products() / cycles_of_work(step, tiles);
}

/// Step 4 with tiles of one shape or the other.
template <int kHeadDim, bool kSmall = false>
StepOnPaper persistent_on_paper() {
  using Tile = SpecializedTile<gpu::bf16, kHeadDim, kSmall>;
  using Shared = PersistentShared<Tile>;
  const int q_bytes = Tile::kConsumers * static_cast<int>(sizeof(typename Shared::QTile));
  return {"persistent",
          Order::overlap,
          {Tile::kHeadDim, Tile::kBc, Tile::kConsumers},
          // With O in Q's place, Q has to wait until it has left.
          Shared::kOwnO ? 0 : q_bytes,
          static_cast<int>(sizeof(Shared))};
}

/// The four steps, in their order, with large tiles. For the first one's consumers nothing makes an order: it has the
/// worst.
template <int kHeadDim>
std::vector<StepOnPaper> steps_on_paper() {
  using Tile = SpecializedTile<gpu::bf16, kHeadDim>;
  using Shared = SpecializedShared<Tile>;
  const TileWork tile{Tile::kHeadDim, Tile::kBc, Tile::kConsumers};
  const int q_and_k = static_cast<int>(sizeof(typename Shared::QTile) + sizeof(typename Shared::KTile));
  const int bytes = static_cast<int>(sizeof(Shared));
  return {{"producer_consumer", Order::in_step, tile, q_and_k, bytes},
          {"ping_pong", Order::turns, tile, q_and_k, bytes},
          {"overlap", Order::overlap, tile, q_and_k, bytes},
          persistent_on_paper<kHeadDim>()};
}

/// Br rows of a head, and how many tiles of keys they visit.
struct PaperWork {
  int head_index = 0;  ///< of batch · heads_q
  int query_tile = 0;
  int tiles = 0;

  friend bool operator==(const PaperWork&, const PaperWork&) = default;
};

/// All works, section by section of so many heads; in a section all heads' last queries first.
inline std::vector<PaperWork> works_in_order(const Problem& p, int br, int bc, int section) {
  const int heads = p.batch * p.heads_q, query_tiles = tiles_of(p.seqlen_q, br);
  std::vector<PaperWork> works;
  for (int first = 0; first < heads; first += section) {
    for (int query_tile = query_tiles - 1; query_tile >= 0; --query_tile) {
      const int rows = std::min(br, p.seqlen_q - query_tile * br);
      const KeyRange keys = kernel::visited_keys(p.mask, query_tile * br, rows, p.seqlen_q, p.seqlen_kv, bc);
      for (int head = first; head < std::min(heads, first + section); ++head) {
        works.push_back({head, query_tile, tiles_of(keys.end - keys.begin, bc)});
      }
    }
  }
  return works;
}

/// When each block is done, in tiles, if work i is block i mod `blocks`'s.
///
/// \param beside what a work takes besides its tiles, in tiles
inline std::vector<double> dealt_out(const std::vector<PaperWork>& works, int blocks, double beside = 0) {
  std::vector<double> done(static_cast<std::size_t>(blocks), 0.0);
  for (std::size_t i = 0; i < works.size(); ++i) done[i % done.size()] += works[i].tiles + beside;
  return done;
}
/// The same, if who is done first takes the next: a counter, or the hardware that starts a block where one has ended.
inline std::vector<double> queued(const std::vector<PaperWork>& works, int blocks, double beside = 0) {
  std::vector<double> done(static_cast<std::size_t>(blocks), 0.0);
  for (const PaperWork& work : works) *std::min_element(done.begin(), done.end()) += work.tiles + beside;
  return done;
}
/// When the last one is done.
inline double makespan(const std::vector<double>& done) { return *std::max_element(done.begin(), done.end()); }
/// The share of the time until then for which blocks have something to do.
inline double busy_share(const std::vector<double>& done) {
  double sum = 0;
  for (const double end : done) sum += end;
  return sum == 0 ? 1 : sum / (static_cast<double>(done.size()) * makespan(done));
}

/// Bytes of K and V of all heads that the first `blocks` works read: what the L2 would have to keep.
inline std::int64_t kv_bytes_at_once(const std::vector<PaperWork>& works, int blocks, const Problem& p) {
  std::set<std::pair<int, int>> heads;
  for (std::size_t i = 0; i < works.size() && i < static_cast<std::size_t>(blocks); ++i) {
    const int batch = works[i].head_index / p.heads_q, head = works[i].head_index % p.heads_q;
    heads.emplace(batch, head / (p.heads_q / p.heads_kv));
  }
  return static_cast<std::int64_t>(heads.size()) * 2 * 2 * p.seqlen_kv * p.head_dim;
}

}  // namespace warp_specialization
