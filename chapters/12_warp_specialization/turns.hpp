#pragma once
/// \file
/// What the emulator's timeline of ping_pong and of overlap says: who started what in a turn, and when it was there.
/// All numbers count turns of threads on the emulator: an order, not a time.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/gpu/emulation.hpp"

namespace warp_specialization {

/// When a warp has started the products of a turn, and when it has them.
struct TurnEvents {
  std::uint64_t scores = 0, output = 0, scores_there = 0, output_there = 0;
};

/// Turn t has S of tile t and O of the tile before. Read out of the timeline of the first block.
inline std::vector<TurnEvents> turns_of(int warp) {
  using Kind = gpu::TimelineEvent::Kind;
  std::vector<TurnEvents> turns;
  std::vector<std::uint64_t> waited;  // ends of waits
  std::size_t scores = 0, outputs = 0;
  int scores_line = 0, line_before = 0;
  std::vector<std::size_t> waits_before;  // of a turn: waits that were over when its last product had been started
  for (const gpu::TimelineEvent& event : gpu::emulator_timeline()) {
    if (event.block != 0 || event.warp != warp) continue;
    if (event.kind == Kind::wait_end) waited.push_back(event.step);
    const int line = event.kind == Kind::issue && event.line.file.ends_with("kernel/warpgroup.cuh")
                         ? static_cast<int>(event.line.line)
                         : 0;
    if (line != 0 && line != line_before) {  // a group of products is one
      if (scores_line == 0) scores_line = line;
      const std::size_t turn = line == scores_line ? scores++ : ++outputs;
      if (turn >= turns.size()) turns.resize(turn + 1), waits_before.resize(turn + 1);
      (line == scores_line ? turns[turn].scores : turns[turn].output) = event.step;
      waits_before[turn] = waited.size();
    }
    line_before = line;
  }
  for (std::size_t t = 0; t < turns.size(); ++t) {
    const auto end = [&](std::size_t wait) { return wait < waited.size() ? waited[wait] : 0; };
    TurnEvents& turn = turns[t];
    if (turn.scores) turn.scores_there = end(waits_before[t]);
    const bool overlap = turn.scores && turn.output > turn.scores;  // then O is waited for behind the softmax
    if (turn.output) turn.output_there = end(waits_before[t] + overlap);
  }
  return turns;
}

/// When the producer has asked for a tile: K in even places, V in odd ones.
inline std::vector<std::uint64_t> asked(int panels) {
  std::vector<std::uint64_t> list;
  int boxes = -panels;  // Q's come first
  for (const gpu::TimelineEvent& event : gpu::emulator_timeline()) {
    if (event.block != 0 || event.warp != 0 || event.kind != gpu::TimelineEvent::Kind::issue) continue;
    if (boxes >= 0 && boxes % panels == 0) list.push_back(event.step);
    boxes += 1;
  }
  return list;
}

}  // namespace warp_specialization
