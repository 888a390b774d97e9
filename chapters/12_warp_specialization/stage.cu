/// \file
/// Chapter 12: warp specialization. `./learn run 12`, or with a problem of your own:
/// `./learn run 12 --dtype fp16 --causal --seqlen-q 100 --seqlen-kv 1000 --head-dim 128`.

#include "chapters/12_warp_specialization/kernels.hpp"
#include "common/stage/program.hpp"

using attention::ElementType, attention::Mask;

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "12";
  chapter.name = "warp_specialization";
  chapter.idea = "Some warps load, others compute; and nobody waits for what another could do meanwhile.";
  chapter.gpu_problem = {.batch = 2,
                         .heads_q = 16,
                         .heads_kv = 16,
                         .seqlen_q = 8192,
                         .seqlen_kv = 8192,
                         .head_dim = 128,
                         .element_type = ElementType::bf16};
  chapter.emulator_problem = {.heads_q = 2,
                              .heads_kv = 1,
                              .seqlen_q = 256,
                              .seqlen_kv = 320,
                              .head_dim = 64,
                              .element_type = ElementType::bf16};
  chapter.forward = warp_specialization::warp_specialization_kernels();
  chapter.peers = {"pytorch_flash_bf16", "pytorch_cudnn_bf16"};
  for (const int head_dim : {64, 128, 256}) {  // heads · head_dim and batch · seqlen as in the papers
    for (const Mask mask : {Mask::none(), Mask::causal()}) {
      for (const int n : {1024, 8192}) {
        const int heads = 2048 / head_dim;
        chapter.bench_problems.push_back({.batch = 16384 / n,
                                          .heads_q = heads,
                                          .heads_kv = heads,
                                          .seqlen_q = n,
                                          .seqlen_kv = n,
                                          .head_dim = head_dim,
                                          .mask = mask,
                                          .element_type = ElementType::bf16});
      }
    }
  }
  return stage::run(argc, argv, chapter);
}
