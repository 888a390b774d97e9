/// \file
/// Chapter 05: shuffles, register tiles. `./learn run 05`.

#include "chapters/05_warp_shuffle/kernels.hpp"
#include "common/stage/program.hpp"

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "05";
  chapter.name = "warp_shuffle";
  chapter.idea = "a row's maximum and sum inside a warp";
  chapter.gpu_problem.heads_q = chapter.gpu_problem.heads_kv = 16;
  chapter.gpu_problem.seqlen_q = chapter.gpu_problem.seqlen_kv = 4096;
  chapter.gpu_problem.head_dim = 64;
  chapter.emulator_problem.heads_q = 2;
  chapter.emulator_problem.heads_kv = 1;
  chapter.emulator_problem.seqlen_q = chapter.emulator_problem.seqlen_kv = 192;
  chapter.emulator_problem.head_dim = 64;
  chapter.forward = warp_shuffle::shuffle_kernels();
  return stage::run(argc, argv, chapter);
}
