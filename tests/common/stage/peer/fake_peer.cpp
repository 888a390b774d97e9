/// \file
/// A peer library for the tests: plain attention on the host, which the emulator's device memory is, too.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "common/stage/peers/peer.h"

namespace {

/// The upper half of an fp32, rounded to nearest even.
struct Bf16 {
  std::uint16_t bits;
};
float to_float(float x) { return x; }
float to_float(Bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
void assign(float& to, float x) { to = x; }
void assign(Bf16& to, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  to.bits = static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

std::vector<float> kept_o, kept_lse;  // dense [batch, seqlen_q, heads, head_dim] and [batch, heads, seqlen_q]
int runs_left = 0;
int releases = 0;

int require(const BookPeerForward* f, char* sentence, size_t size) {
  if (f->heads_q == f->heads_kv) return 0;
  std::snprintf(sentence, size, "does not take heads %d/%d; allowed: heads_q = heads_kv", f->heads_q, f->heads_kv);
  return 1;
}

template <class Element>
int run(const BookPeerForward* f, char*, size_t) {
  const auto at = [](const void* array, const BookPeerStrides& strides, int b, int position, int head, int c) {
    const auto* row = static_cast<const Element*>(array) + b * strides.batch + position * strides.seq;
    return double{to_float(row[head * strides.head + c])};
  };
  kept_o.clear();
  kept_lse.assign(static_cast<size_t>(f->batch) * f->heads_q * f->seqlen_q, 0.0f);
  for (int b = 0; b < f->batch; ++b) {
    for (int i = 0; i < f->seqlen_q; ++i) {
      for (int h = 0; h < f->heads_q; ++h) {
        const int keys = f->is_causal ? std::clamp(i + f->seqlen_kv - f->seqlen_q + 1, 0, f->seqlen_kv) : f->seqlen_kv;
        std::vector<double> scores;
        double m = -INFINITY, l = 0;
        for (int j = 0; j < keys; ++j) {
          double score = 0;
          for (int c = 0; c < f->head_dim; ++c) {
            score += at(f->q, f->q_strides, b, i, h, c) * at(f->k, f->k_strides, b, j, h, c);
          }
          scores.push_back(score * static_cast<double>(f->softmax_scale));
          m = std::max(m, scores.back());
        }
        std::vector<double> o(static_cast<size_t>(f->head_dim));
        for (int j = 0; j < keys; ++j) {
          const double p = std::exp(scores[static_cast<size_t>(j)] - m);
          l += p;
          for (int c = 0; c < f->head_dim; ++c) {
            o[static_cast<size_t>(c)] += p * at(f->v, f->v_strides, b, j, h, c);
          }
        }
        for (const double x : o) kept_o.push_back(static_cast<float>(x / l));
        kept_lse[(static_cast<size_t>(b) * f->heads_q + h) * f->seqlen_q + i] = static_cast<float>(m + std::log(l));
      }
    }
  }
  return 0;
}

int run_wrong(const BookPeerForward* f, char* sentence, size_t size) {
  run<float>(f, sentence, size);
  kept_o[0] += 1;
  return 0;
}

int run_once(const BookPeerForward* f, char* sentence, size_t size) {
  if (runs_left-- > 0) return run<float>(f, sentence, size);
  std::snprintf(sentence, size, "CUDA out of memory");
  return 1;
}

template <class Element>
int fetch(const BookPeerForward* f, char*, size_t) {
  const float* from = kept_o.data();
  for (int b = 0; b < f->batch; ++b) {
    for (int i = 0; i < f->seqlen_q; ++i) {
      for (int h = 0; h < f->heads_q; ++h, from += f->head_dim) {
        auto* to = static_cast<Element*>(f->o) + b * f->o_strides.batch + i * f->o_strides.seq + h * f->o_strides.head;
        for (int c = 0; c < f->head_dim; ++c) assign(to[c], from[c]);
      }
    }
  }
  std::copy(kept_lse.begin(), kept_lse.end(), f->lse);
  return 0;
}

int fetch_o(const BookPeerForward* f, char* sentence, size_t size) {
  std::fill(kept_lse.begin(), kept_lse.end(), NAN);
  return fetch<float>(f, sentence, size);
}

const BookPeer kPeers[] = {
    {"right", "plain attention", BOOK_PEER_FP32, 1, require, run<float>, fetch<float>},
    {"no_lse", "O alone", BOOK_PEER_FP32, 0, require, run<float>, fetch_o},
    {"wrong", "a wrong element", BOOK_PEER_FP32, 1, require, run_wrong, fetch<float>},
    {"failing", "fails", BOOK_PEER_FP32, 1, require, run_once, fetch<float>},
    {"in_bf16", "plain attention of another type", BOOK_PEER_BF16, 1, require, run<Bf16>, fetch<Bf16>},
    {"takes_bf16_for_fp32", "reads another type than it was given", BOOK_PEER_FP32, 1, require, run<Bf16>,
     fetch<float>}};

const BookPeers kLibrary = {FAKE_PEER_INTERFACE, "Fake 1.0", static_cast<int>(sizeof kPeers / sizeof kPeers[0]), kPeers,
                            [] { ++releases; }};

}  // namespace

extern "C" const BookPeers* book_peers() { return &kLibrary; }
