#pragma once
/// \file
/// FLOPs, bytes and the roofline.

#include <span>
#include <string>

#include "common/attention/problem.hpp"

namespace attention {

/// Bytes that a kernel's threads load from and store to global memory (element accesses; caches may serve them).
struct Traffic {
  double loaded = 0;
  double stored = 0;
  double total() const { return loaded + stored; }
  friend Traffic operator+(Traffic a, Traffic b) { return {a.loaded + b.loaded, a.stored + b.stored}; }
};

/// 4 · head_dim · visible pairs, over all heads and batches. Only what the mask leaves counts.
double forward_flops(const Problem& p);

/// 2.5 times the forward's; recomputation earns no credit.
double backward_flops(const Problem& p);

/// The least that any forward must move: Q, K, V read once, O and LSE written once.
Traffic compulsory_traffic(const Problem& p, int element_bytes);

/// What a tiled forward with Q outer moves, exactly, as threads access elements: a tile of `query_tile` queries of one
/// head of one batch loads Q once, and K and V of every key tile that it visits; it stores O and, 4 bytes a row, LSE.
/// Elements are of the problem's type.
///
/// Visited are the tiles of `key_tile` keys, which begin at its multiples and are cut at seqlen_kv, from the first to
/// the last of which any of the queries sees a key (keys_of_any); none, if no query sees one. Without a mask that is
/// Nq·d + 2·Nk·d·⌈Nq/query_tile⌉ element reads a head.
/// \throws std::invalid_argument if a tile is not positive.
Traffic tiled_forward_traffic(const Problem& p, int query_tile, int key_tile);

/// A machine as the roofline sees it. Figures from the vendor's datasheets (dense).
struct Machine {
  const char* name;
  double tensor_flops;                                              ///< bf16 tensor-core FLOP/s
  double fp32_flops;                                                ///< FLOP/s of the fp32 units
  double bytes_per_second;                                          ///< device memory
  double ridge() const { return tensor_flops / bytes_per_second; }  ///< FLOP/B below which memory is the limit
};

/// A100 (80 GB SXM, with the "2 TB/s" it is announced with), H100 (SXM), H200.
std::span<const Machine> known_machines();

/// min(peak, intensity × bandwidth): the FLOP/s that a program of this FLOP/B can reach.
double attainable_flops(double intensity, double peak_flops, double bytes_per_second);

/// "12.3 KB", "1.50 GB" (powers of 1000, as memory bandwidth is quoted).
std::string format_bytes(double bytes);

}  // namespace attention
