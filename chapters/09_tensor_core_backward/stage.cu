/// \file
/// Chapter 09: the backward on tensor cores. `./learn run 09`, or with a problem of your own:
/// `./learn run 09 --dtype fp16 --causal --seqlen-q 100 --seqlen-kv 1000 --head-dim 128`.

#include "chapters/09_tensor_core_backward/kernels.hpp"
#include "common/stage/program.hpp"

using attention::ElementType;
using attention::Mask;

int main(int argc, char** argv) {
  stage::Chapter chapter;
  chapter.number = "09";
  chapter.name = "tensor_core_backward";
  chapter.idea = "The backward's five products on tensor cores: what stays in registers, what all warps have to see.";
  chapter.gpu_problem = {.batch = 2,
                         .heads_q = 16,
                         .heads_kv = 16,
                         .seqlen_q = 8192,
                         .seqlen_kv = 8192,
                         .head_dim = 128,
                         .element_type = ElementType::bf16};
  chapter.emulator_problem = {.heads_q = 2,
                              .heads_kv = 1,
                              .seqlen_q = 192,
                              .seqlen_kv = 256,
                              .head_dim = 64,
                              .element_type = ElementType::bf16};
  chapter.backward = tensor_core_backward::backward_kernels();
  for (const int head_dim : {64, 128}) {  // heads · head_dim and batch · seqlen as in the papers
    for (const Mask mask : {Mask::none(), Mask::causal()}) {
      for (const int n : {1024, 2048, 4096, 8192, 16384}) {
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
