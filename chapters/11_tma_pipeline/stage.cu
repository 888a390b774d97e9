/// \file
/// Chapter 11: TMA. `./learn run 11`, or with a problem of your own:
/// `./learn run 11 --dtype fp16 --causal --seqlen-q 100 --seqlen-kv 1000 --head-dim 128`.

#include "chapters/11_tma_pipeline/kernels.hpp"
#include "common/stage/program.hpp"

using attention::ElementType, attention::Mask;

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "11";
  chapter.name = "tma_pipeline";
  chapter.idea = "One thread moves a tile; barriers that count bytes say when it is there.";
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
  chapter.forward = tma_pipeline::tma_pipeline_kernels();
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
