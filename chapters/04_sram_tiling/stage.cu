/// \file
/// Chapter 04: tiles of S in shared memory. `./learn run 04`.

#include "chapters/04_sram_tiling/kernels.hpp"
#include "common/stage/program.hpp"

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "04";
  chapter.name = "sram_tiling";
  chapter.idea = "keep S in shared memory, a tile at a time, and bring softmax and O up to date after each tile";
  chapter.gpu_problem.heads_q = chapter.gpu_problem.heads_kv = 16;
  chapter.gpu_problem.seqlen_q = chapter.gpu_problem.seqlen_kv = 4096;
  chapter.gpu_problem.head_dim = 64;
  chapter.emulator_problem.heads_q = 2;
  chapter.emulator_problem.heads_kv = 1;
  chapter.emulator_problem.seqlen_q = chapter.emulator_problem.seqlen_kv = 192;
  chapter.emulator_problem.head_dim = 64;
  chapter.forward = sram_tiling::tiled_kernels();
  return stage::run(argc, argv, chapter);
}
