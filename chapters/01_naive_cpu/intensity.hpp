#pragma once
/// \file
/// What S and P cost: bytes, FLOPs and FLOP/B of attention that writes them to memory, and of attention that does not.

#include "common/attention/cost.hpp"
#include "common/attention/problem.hpp"

namespace naive_cpu {

/// One head, seqlen queries and keys, no mask.
struct Intensity {
  double flops = 0;            ///< 4 · N² · d
  double matrix_bytes = 0;     ///< S and P together: 2 · N² · element
  attention::Traffic unfused;  ///< three kernels, each reading its inputs from memory and writing its result there
  attention::Traffic fused;    ///< Q, K, V once in; O and LSE once out

  double unfused_intensity() const { return flops / unfused.total(); }
  double fused_intensity() const { return flops / fused.total(); }
};

/// Counts every matrix once per kernel that reads or writes it, as if each kernel had a cache without end:
///
///     S = QKᵀ         reads Q, K     writes S
///     P = softmax(S)  reads S        writes P
///     O = PV          reads P, V     writes O
///
/// so 4 · N · d + 4 · N² elements without fusion. \p element_bytes: 4 for fp32, 2 for bf16.
inline Intensity intensity(int seqlen, int head_dim, int element_bytes) {
  attention::Problem head;
  head.seqlen_q = head.seqlen_kv = seqlen;
  head.head_dim = head_dim;
  const double n_d = static_cast<double>(seqlen) * head_dim * element_bytes;
  const double n_n = static_cast<double>(seqlen) * seqlen * element_bytes;
  return {.flops = attention::forward_flops(head),
          .matrix_bytes = 2 * n_n,
          .unfused = {.loaded = 3 * n_d + 2 * n_n, .stored = n_d + 2 * n_n},
          .fused = attention::compulsory_traffic(head, element_bytes)};
}

/// The ridge, FLOP/B, of the units that work on this type: the tensor cores for bf16, the fp32 units for fp32.
inline double ridge(const attention::Machine& machine, int element_bytes) {
  return element_bytes == 2 ? machine.ridge() : machine.fp32_flops / machine.bytes_per_second;
}

}  // namespace naive_cpu
