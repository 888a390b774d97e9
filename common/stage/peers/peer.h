#ifndef BOOK_COMMON_STAGE_PEERS_PEER_H
#define BOOK_COMMON_STAGE_PEERS_PEER_H
/// \file
/// What a peer library offers: attention of another library, in plain C, so that a program loads it when it measures
/// and depends on nothing of it otherwise.
///
/// A peer library has one function with C linkage, `book_peers`, of type BookPeersFunction.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Raised when a program would misread an older library.
#define BOOK_PEER_INTERFACE 1

/// Type of the elements of Q, K, V and O. LSE is always fp32. fp16 is IEEE's binary16; a bf16 is the upper half of an
/// fp32.
enum BookPeerElement { BOOK_PEER_FP32 = 0, BOOK_PEER_BF16 = 1, BOOK_PEER_FP16 = 2 };

/// Distances in elements between neighbours in [batch, seqlen, heads, head_dim]; the innermost is 1.
typedef struct BookPeerStrides {
  int64_t batch, seq, head;
} BookPeerStrides;

/// One attention forward. Pointers are device pointers to element (0, 0, 0, 0).
typedef struct BookPeerForward {
  const void* q;  ///< [batch, seqlen_q, heads_q, head_dim]
  const void* k;  ///< [batch, seqlen_kv, heads_kv, head_dim]
  const void* v;
  void* o;     ///< as Q; written by `fetch` only
  float* lse;  ///< dense [batch, heads_q, seqlen_q], natural logarithm; written by `fetch` if `gives_lse`
  BookPeerStrides q_strides, k_strides, v_strides, o_strides;
  int batch, heads_q, heads_kv, seqlen_q, seqlen_kv, head_dim;
  int is_causal;  ///< query i sees keys j <= i + seqlen_kv - seqlen_q; otherwise all
  float softmax_scale;
} BookPeerForward;

/// A peer. Its functions return 0, or another value after they wrote a sentence of at most `size` bytes, its end
/// included. They use the default stream.
typedef struct BookPeer {
  const char* name;     ///< "pytorch_efficient_fp32"
  const char* summary;  ///< a sentence
  int element;          ///< a BookPeerElement: the only one that it is given
  int gives_lse;
  /// Whether it takes the problem; the sentence says what is allowed. Looks at sizes and mask only.
  int (*require)(const BookPeerForward* forward, char* sentence, size_t size);
  /// Launches it, and keeps its results until the next run. This is what is timed.
  int (*run)(const BookPeerForward* forward, char* sentence, size_t size);
  /// Copies the results of the last run to o and lse. Does not wait.
  int (*fetch)(const BookPeerForward* forward, char* sentence, size_t size);
} BookPeer;

/// The library.
typedef struct BookPeers {
  int interface_version;  ///< BOOK_PEER_INTERFACE
  const char* version;    ///< "PyTorch 2.11.0"
  int count;
  const BookPeer* peers;
  /// Gives back the device memory that the library keeps for its next run.
  void (*release)(void);
} BookPeers;

/// Never fails; what does not work here says so when it is used.
typedef const BookPeers* (*BookPeersFunction)(void);

#ifdef __cplusplus
}
#endif
#endif
