#pragma once
/// \file
/// What the 16-bit forward chapters from 08 on check of their kernels beyond the forward suite, each kernel in its
/// turn.

#include <cstdint>
#include <string>
#include <vector>

#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace suite {

using Kernels = std::vector<stage::ForwardKernel>;

inline constexpr attention::ElementType kSixteenBits[] = {attention::ElementType::fp16, attention::ElementType::bf16};

/// What a run without a line of synchronisation says; empty if nothing was noticed.
inline std::string report_without(const stage::ForwardKernel& kernel, const attention::Problem& p,
                                  const gpu::SourceLine& line, std::uint64_t seed, gpu::Delivery delivery) {
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.without = {line};
  options.schedule_seed = seed;
  options.delivery = delivery;
  const gpu::EmulatorOptionsScope without(options);
  try {
    run(kernel, p);
  } catch (const gpu::Error& error) {
    return error.what();
  }
  return {};
}

/// The lines of synchronisation that can be left out unnoticed, "FILE:LINE", with both deliveries and three seeds.
/// Problems: one where each place is loaded again after it has been read, and one where nothing is seen, so that what
/// guards a block's end is reached without a tile.
inline std::vector<std::string> unnoticed_lines(const stage::ForwardKernel& kernel, const attention::Problem& visited,
                                                const attention::Problem& nothing_seen) {
  gpu::reset_synchronisations_seen();
  run(kernel, visited);
  run(kernel, nothing_seen);
  std::vector<std::string> unnoticed;
  for (const gpu::SourceLine& line : gpu::synchronisations_seen()) {
    bool noticed = false;
    for (const gpu::Delivery delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately})
      for (const std::uint64_t seed : {0, 1, 2}) {
        noticed = noticed || !report_without(kernel, visited, line, seed, delivery).empty() ||
                  !report_without(kernel, nothing_seen, line, seed, delivery).empty();
      }
    if (!noticed) unnoticed.push_back(line.file + ":" + std::to_string(line.line));
  }
  return unnoticed;
}

/// Lengths and masks that leave tiles to nobody, in both types and all head_dims.
inline void check_shapes(const Kernels& kernels) {
  using attention::Mask;
  std::size_t turn = 0;
  for (const attention::ElementType type : kSixteenBits) {
    for (const int head_dim : {64, 128, 256}) {
      const attention::Problem problems[] = {
          problem(type, 1, 1, 1, 1, head_dim, Mask::none()),
          problem(type, 2, 1, 140, 200, head_dim, Mask::causal()),
          problem(type, 1, 1, 140, 150, head_dim, Mask::window(9, 0)),   // tiles of keys that are nobody's
          problem(type, 1, 1, 300, 30, head_dim, Mask::causal()),        // a tile of rows that see nothing
          problem(type, 1, 1, 70, 330, head_dim, Mask::window(70, 40)),  // both edges
      };
      for (attention::Problem p : problems) {
        p.batch = p.heads_q == 1 && p.seqlen_q == 1 ? 3 : 1;
        const stage::ForwardKernel& kernel = kernels[turn++ % kernels.size()];
        INFO(kernel.name << ", " << p.describe());
        check_case(kernel, p);
      }
    }
  }
}

/// Negative scales, a scale of 0, and scales that leave one key.
inline void check_scales(const Kernels& kernels) {
  using attention::Mask;
  std::size_t turn = 0;
  for (const float scale : {-0.25f, 0.0f, 1.5f, 1e4f, -1e4f}) {
    for (const attention::ElementType type : kSixteenBits) {
      attention::Problem p = problem(type, 1, 1, 20, 200, 64, turn % 3 == 0 ? Mask::causal() : Mask::none());
      p.softmax_scale = scale;
      check_case(kernels[turn++ % kernels.size()], p);
    }
  }
}

/// Scores of 10000 and more, of both signs.
inline void check_huge_scores(const Kernels& kernels) {
  using attention::Mask;
  std::size_t turn = 0;
  for (const float scale : {0.25f, -0.25f}) {
    for (const attention::ElementType type : kSixteenBits) {
      for (const Mask mask : {Mask::none(), Mask::causal()}) {
        attention::Problem p = problem(type, 1, 1, 70, 140, 64, mask);
        p.softmax_scale = scale;
        check_case(kernels[turn++ % kernels.size()], p, attention::InputKind::huge_scores);
      }
    }
  }
}

}  // namespace suite
