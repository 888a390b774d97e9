/// \file
/// Chapter 07: tensor cores. `./learn run 07`, or with a problem of your own:
/// `./learn run 07 --dtype fp16 --causal --seqlen-q 100 --seqlen-kv 1000 --head-dim 128`.

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "chapters/07_tensor_cores/fragment_map.cuh"
#include "chapters/07_tensor_cores/kernels.hpp"
#include "chapters/07_tensor_cores/model.hpp"
#include "chapters/07_tensor_cores/sixteen_bits.hpp"
#include "common/gpu/buffer.hpp"
#include "common/stage/papers_grid.hpp"
#include "common/stage/program.hpp"
#include "common/stage/shared_memory.hpp"
#include "common/stage/text.hpp"

namespace {

using attention::ElementType;
using attention::Problem;
using stage::text;
using tensor_cores::FragmentMap, tensor_cores::kMapSize;
using tensor_cores::MmaWork;
using Table = std::vector<std::vector<std::string>>;

/// The elements of a matrix, each with what its lane calls it. Empty where no lane has told, or two have.
using Owners = std::vector<std::vector<std::string>>;

/// Puts an owner's name where the number that it holds says.
void place(Owners& owners, float number, const std::string& name) {
  const int row = static_cast<int>(number) / kMapSize, column = static_cast<int>(number) % kMapSize;
  if (row >= static_cast<int>(owners.size()) || column >= static_cast<int>(owners[row].size())) return;
  std::string& cell = owners[row][column];
  cell = cell.empty() ? name : "twice";
}

/// The rows of an 8 × 8 part of a matrix, each behind its name.
Table part_of(const Owners& owners, int first_row) {
  Table rows;
  for (int row = first_row; row < first_row + 8; ++row) {
    rows.push_back({text("row %d", row)});
    for (int column = 0; column < 8; ++column) rows.back().push_back(owners[row][column]);
  }
  return rows;
}

/// The lanes' own answers to the question who holds what.
void show_fragments(stage::Program& program) {
  gpu::DeviceBuffer<FragmentMap> map_gmem(1, "fragments");
  gpu::launch<tensor_cores::FragmentMapShared<gpu::bf16>>(tensor_cores::fragment_map_kernel<gpu::bf16>,
                                                          {.grid = 1, .block = gpu::kWarpSize}, map_gmem.data());
  const FragmentMap map = map_gmem.download().front();

  Owners a(kMapSize, std::vector<std::string>(kMapSize)), b(kMapSize, std::vector<std::string>(8)), d = b;
  int as_loaded = 0;
  for (int lane = 0; lane < gpu::kWarpSize; ++lane) {
    for (int i = 0; i < 4; ++i) {
      for (int half = 0; half < 2; ++half) place(a, map.a[lane][i][half], text("%d a[%d]", lane, i));
      place(d, map.d[lane][i], text("%d d[%d]", lane, i));
      as_loaded += map.a_loaded[lane][i] == map.a_packed[lane][i];
    }
    for (int i = 0; i < 2; ++i) {
      for (int half = 0; half < 2; ++half) place(b, map.b[lane][i][half], text("%d b[%d]", lane, i));
    }
  }
  std::vector<std::string> header{"lane, register"};
  for (int column = 0; column < 8; ++column) header.push_back(text("column %d", column));
  program.say(
      "A warp loads a matrix whose element (r, c) is the number 16 r + c, and each lane tells what it holds.\n"
      "The upper left 8 x 8 elements of A, 16 x 16:");
  program.table("fragment_a", header, part_of(a, 0));
  program.say("The upper 8 x 8 of B, 16 x 8, loaded from rows and transposed on the way:");
  program.table("fragment_b", header, part_of(b, 0));
  program.say("The upper 8 x 8 of D = A times the unit matrix, 16 x 8:");
  program.table("fragment_d", header, part_of(d, 0));
  program.say(
      text("Two results beside each other, packed into registers, are the A that ldmatrix loads: %d of %d registers "
           "are\nequal, bit for bit. No lane has asked another one.",
           as_loaded, 4 * gpu::kWarpSize));

  bool right = as_loaded == 4 * gpu::kWarpSize;
  for (const Owners& owners : {a, b, d}) {
    for (const std::vector<std::string>& row : owners) {
      right = right && std::all_of(row.begin(), row.end(),
                                   [](const std::string& owner) { return !owner.empty() && owner != "twice"; });
    }
  }
  if (!right) program.fail("the fragments are not what common/gpu/tensor_core.cuh says");
}

/// Calls f with the problem's head_dim as a constant.
template <class F>
auto for_head_dim(const Problem& p, F f) {
  if (p.head_dim == 64) return f(std::integral_constant<int, 64>());
  if (p.head_dim == 128) return f(std::integral_constant<int, 128>());
  return f(std::integral_constant<int, 256>());
}

/// What a warp executes for a tile, and what follows for the speed.
void show_work(stage::Program& program) {
  Table rows;
  const std::vector<MmaWork> works =
      for_head_dim(program.options().problem, [](auto d) { return tensor_cores::mma_works<d()>(); });
  for (const MmaWork& w : works) {
    rows.push_back({w.kernel, text("%d", w.products), text("%d", w.matrix_loads), text("%d", w.wavefronts),
                    text("%d", w.stores), text("%d", w.exponentials), text("%d", w.other_floating),
                    text("%.0f", w.tensor_cycles()), text("%.0f", w.data_cycles()), text("%.0f", w.issue_cycles()),
                    text("%.0f", w.exponential_cycles()), text("%.1f %%", 100 * w.bound())});
  }
  program.say(
      "By formula: what a warp executes for a tile of 64 keys. Cycles: how long the four warps of a block keep the\n"
      "tensor cores, the path to shared memory, the schedulers and the exponentials' units busy for it.\n"
      "At most: the share of the tensor cores' peak that this leaves.");
  program.table("work",
                {"kernel", "mma", "ldmatrix", "wavefronts / ldmatrix", "stores", "exp", "other", "mma cycles",
                 "data cycles", "issue cycles", "exp cycles", "at most"},
                rows);
}

/// Requests and wavefronts of shared memory, counted, beside the formula.
void show_counts(stage::Program& program) {
  const std::vector<MmaWork> works =
      for_head_dim(program.options().problem, [](auto d) { return tensor_cores::mma_works<d()>(); });
  std::vector<int> wavefronts;
  for (const MmaWork& work : works) wavefronts.push_back(work.wavefronts);
  stage::show_shared_memory(
      program, "07", tensor_cores::tensor_core_kernels(),
      "Instructions of warps on shared memory, all loads of which are ldmatrix, and what they cost:", wavefronts);
}

std::string error_text(double error) { return std::isinf(error) ? "overflow" : text("%.1e", error); }

/// One rounding at a time, in fp16 and in bf16.
void show_sixteen_bits(stage::Program& program) {
  Table rows;
  for (const ElementType type : {ElementType::fp16, ElementType::bf16}) {
    for (const double factor : {1.0, 8.0}) {
      for (const int n : {64, 512, 4096, 32768}) {
        program.progress(text("%s, %d keys", attention::name(type).c_str(), n));
        const tensor_cores::RoundingErrors e = tensor_cores::rounding_errors(type, n, factor, program.options().seed);
        rows.push_back({attention::name(type), text("%g", factor), text("%d", n), error_text(e.o), error_text(e.p),
                        error_text(e.attention), error_text(e.divided), error_text(e.o_kept), error_text(e.s)});
      }
    }
  }
  program.say(text(
      "Attention on the host in float64, of %d queries, with one rounding to 16 bits put into it: the worst row's\n"
      "relative error. Half a unit in the last place is %.1e in fp16 and %.1e in bf16. Scores are multiplied by "
      "a\nfactor: 1 is the usual scale.",
      tensor_cores::kErrorQueries, attention::unit_in_last_place(ElementType::fp16) / 2,
      attention::unit_in_last_place(ElementType::bf16) / 2));
  program.table("sixteen_bits",
                {"type", "scores x", "N", "O rounded", "P rounded", "P and O: attention", "P / sum rounded",
                 "O kept in 16 bits", "S rounded"},
                rows);

  Table ranges;
  for (const int exponent : {-20, -12, -6, 0, 6, 12, 16}) {
    const double factor = std::ldexp(1.0, exponent);
    const tensor_cores::RangeErrors fp16 =
        tensor_cores::range_errors(ElementType::fp16, factor, program.options().seed);
    const tensor_cores::RangeErrors bf16 =
        tensor_cores::range_errors(ElementType::bf16, factor, program.options().seed);
    ranges.push_back({text("2^%d", exponent), text("%.1e", fp16.largest_input), text("%.1e", fp16.largest_score)});
    for (const tensor_cores::RangeErrors& e : {fp16, bf16}) {
      for (const double error : {e.input, e.attention, e.s}) ranges.back().push_back(error_text(error));
    }
  }
  program.say(
      "The same with Q, K and V multiplied by a power of two, and a scale that undoes it: 1024 keys, the weights are\n"
      "the same in all rows.");
  program.table("range",
                {"inputs x", "largest input", "largest q·k", "fp16: V itself", "fp16: attention", "fp16: S rounded",
                 "bf16: V itself", "bf16: attention", "bf16: S rounded"},
                ranges);
}

}  // namespace

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "07";
  chapter.name = "tensor_cores";
  chapter.idea = "Both products on tensor cores, and P where S was: in registers.";
  chapter.gpu_problem = {.batch = 2,
                         .heads_q = 16,
                         .heads_kv = 16,
                         .seqlen_q = 8192,
                         .seqlen_kv = 8192,
                         .head_dim = 128,
                         .element_type = ElementType::bf16};
  chapter.emulator_problem = {.heads_q = 2,
                              .heads_kv = 1,
                              .seqlen_q = 128,
                              .seqlen_kv = 128,
                              .head_dim = 64,
                              .element_type = ElementType::bf16};
  chapter.forward = tensor_cores::tensor_core_kernels();
  chapter.peers = {"pytorch_flash_bf16"};
  chapter.bench_problems = stage::papers_grid({128}, {1024, 8192});
  chapter.sections = {{"Fragments", show_fragments},
                      {"A tile on paper", show_work},
                      {"Bank conflicts", show_counts},
                      {"Sixteen bits", show_sixteen_bits}};
  return stage::run(argc, argv, chapter);
}
