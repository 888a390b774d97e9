/// \file
/// PyTorch's attention as peers, through its C++ interface. Built only where PyTorch is, into a library of its own.
///
/// Each peer calls one of the functions that `scaled_dot_product_attention` chooses from, so that it is known which one
/// was measured. PyTorch takes [batch, heads, seqlen, head_dim]; the views below are that by their strides, without a
/// copy. Its results are tensors of its own memory pool, which after the first run answers without a call of the
/// driver. Both sides use the default stream.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdio>
#include <exception>
#include <initializer_list>
#include <optional>
#include <tuple>

#include "common/stage/peers/peer.h"

namespace {

/// What a call returned: O as [batch, heads, seqlen_q, head_dim] and, where the function gives it, LSE.
struct Results {
  at::Tensor o, lse;
};

/// Q, K and V as [batch, heads, seqlen, head_dim].
struct Inputs {
  at::Tensor q, k, v;
  bool is_causal;
  double scale;
};

Results efficient(const Inputs& in) {
  const auto results = at::_scaled_dot_product_efficient_attention(in.q, in.k, in.v, /*attn_bias=*/std::nullopt,
                                                                   /*compute_log_sumexp=*/true, /*dropout_p=*/0.0,
                                                                   in.is_causal, in.scale);
  return {std::get<0>(results), std::get<1>(results)};
}

Results math(const Inputs& in) {
  const auto results = at::_scaled_dot_product_attention_math(in.q, in.k, in.v, /*attn_mask=*/std::nullopt,
                                                              /*dropout_p=*/0.0, in.is_causal,
                                                              /*dropout_mask=*/std::nullopt, in.scale);
  return {std::get<0>(results), at::Tensor()};
}

Results flash(const Inputs& in) {
  const auto results = at::_scaled_dot_product_flash_attention(in.q, in.k, in.v, /*dropout_p=*/0.0, in.is_causal,
                                                               /*return_debug_mask=*/false, in.scale);
  return {std::get<0>(results), std::get<1>(results)};
}

Results cudnn(const Inputs& in) {
  const auto results = at::_scaled_dot_product_cudnn_attention(
      in.q, in.k, in.v, /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, in.is_causal,
      /*return_debug_mask=*/false, in.scale);
  return {std::get<0>(results), std::get<1>(results)};
}

int complain(const char* text, char* sentence, size_t size) {
  int length = 0;
  while (text[length] != '\0' && text[length] != '\n') ++length;  // PyTorch's errors go on with a call stack
  std::snprintf(sentence, size, "%.*s", length, text);
  return 1;
}

/// Runs `body` without gradients; an exception becomes a sentence, since it may not leave a C function.
template <class Body>
int guarded(char* sentence, size_t size, const Body& body) {
  try {
    const c10::InferenceMode without_gradients;
    body();
    return 0;
  } catch (const c10::Error& error) {
    return complain(error.what_without_backtrace(), sentence, size);
  } catch (const std::exception& error) {
    return complain(error.what(), sentence, size);
  } catch (...) {
    return complain("an exception without a text", sentence, size);
  }
}

/// Starts PyTorch's part of CUDA, once, with fp32 products in fp32.
void start() {
  static const bool started = [] {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    at::globalContext().setFloat32MatmulPrecision("highest");
    return true;
  }();
  (void)started;
}

at::Tensor view(const void* data, at::ScalarType type, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const at::Device device(c10::DeviceType::CUDA, 0);
  return at::for_blob(const_cast<void*>(data), sizes)
      .strides(strides)
      .target_device(device)  // named, so that the driver is not asked whose pointer this is
      .options(at::TensorOptions().dtype(type).device(device))
      .make_tensor();
}

at::Tensor heads_first(const void* data, at::ScalarType type, const BookPeerForward& f, int heads, int seqlen,
                       const BookPeerStrides& strides) {
  return view(data, type, {f.batch, heads, seqlen, f.head_dim}, {strides.batch, strides.head, strides.seq, 1});
}

constexpr at::ScalarType scalar_type(BookPeerElement element) {
  return element == BOOK_PEER_BF16   ? at::ScalarType::BFloat16
         : element == BOOK_PEER_FP16 ? at::ScalarType::Half
                                     : at::ScalarType::Float;
}

/// What the last run returned, whatever the element type was. Never destroyed: at the end of the process CUDA may be
/// gone before it.
template <auto attend>
Results& kept() {
  static auto* const results = new Results;
  return *results;
}

int require(const BookPeerForward* f, char* sentence, size_t size) {
  if (f->heads_q != f->heads_kv) {
    std::snprintf(sentence, size, "does not take heads %d/%d; allowed: heads_q = heads_kv", f->heads_q, f->heads_kv);
    return 1;
  }
  if (f->is_causal && f->seqlen_q != f->seqlen_kv) {
    std::snprintf(sentence, size, "aligns a causal mask top-left, not bottom-right; allowed: seqlen_q = seqlen_kv");
    return 1;
  }
  if (f->seqlen_q == 0 || f->seqlen_kv == 0) {
    std::snprintf(sentence, size, "does not take empty sequences; allowed: seqlen_q and seqlen_kv from 1");
    return 1;
  }
  return 0;
}

template <auto attend, BookPeerElement element>
int run(const BookPeerForward* f, char* sentence, size_t size) {
  return guarded(sentence, size, [&] {
    start();
    Results& results = kept<attend>();
    results = {};  // first, so that the pool hands out the same memory again
    constexpr at::ScalarType type = scalar_type(element);
    results = attend({.q = heads_first(f->q, type, *f, f->heads_q, f->seqlen_q, f->q_strides),
                      .k = heads_first(f->k, type, *f, f->heads_kv, f->seqlen_kv, f->k_strides),
                      .v = heads_first(f->v, type, *f, f->heads_kv, f->seqlen_kv, f->v_strides),
                      .is_causal = f->is_causal != 0,
                      .scale = static_cast<double>(f->softmax_scale)});
  });
}

template <auto attend, BookPeerElement element>
int fetch(const BookPeerForward* f, char* sentence, size_t size) {
  return guarded(sentence, size, [&] {
    const Results& results = kept<attend>();
    at::Tensor o = heads_first(f->o, scalar_type(element), *f, f->heads_q, f->seqlen_q, f->o_strides);
    o.copy_(results.o);
    if (!results.lse.defined()) return;
    at::Tensor lse = view(f->lse, at::ScalarType::Float, {f->batch, f->heads_q, f->seqlen_q},
                          {std::int64_t{f->heads_q} * f->seqlen_q, f->seqlen_q, 1});
    // cuDNN's has a fourth axis of one element, and that of the efficient kernel is padded to whole tiles of queries.
    const at::Tensor from = results.lse.dim() == 4 ? results.lse.squeeze(3) : results.lse;
    lse.copy_(from.narrow(2, 0, f->seqlen_q));
  });
}

template <auto attend, BookPeerElement element>
constexpr BookPeer peer(const char* name, bool gives_lse, const char* summary) {
  return {name, summary, element, gives_lse, require, run<attend, element>, fetch<attend, element>};
}

const BookPeer kPeers[] = {
    peer<efficient, BOOK_PEER_FP32>("pytorch_efficient_fp32", true,
                                    "memory-efficient attention; on sm_80 and later each fp32 product is three in TF32 "
                                    "on the tensor cores (CUTLASS OpMultiplyAddFastF32)"),
    peer<math, BOOK_PEER_FP32>("pytorch_math_fp32", false,
                               "two matrix products and a softmax in fp32, S and P in device memory; returns no LSE"),
    peer<flash, BOOK_PEER_BF16>("pytorch_flash_bf16", true, "its copy of FlashAttention-2"),
    peer<cudnn, BOOK_PEER_BF16>("pytorch_cudnn_bf16", true, "cuDNN's fused attention"),
    peer<flash, BOOK_PEER_FP16>("pytorch_flash_fp16", true, "its copy of FlashAttention-2"),
    peer<cudnn, BOOK_PEER_FP16>("pytorch_cudnn_fp16", true, "cuDNN's fused attention"),
};

void release() {
  char ignored[8];
  guarded(ignored, sizeof ignored, [] {
    kept<efficient>() = kept<math>() = kept<flash>() = kept<cudnn>() = {};
    c10::cuda::CUDACachingAllocator::emptyCache();
  });
}

const BookPeers kLibrary = {BOOK_PEER_INTERFACE, "PyTorch " BOOK_PYTORCH_VERSION,
                            static_cast<int>(sizeof kPeers / sizeof kPeers[0]), kPeers, release};

}  // namespace

extern "C" const BookPeers* book_peers() { return &kLibrary; }
