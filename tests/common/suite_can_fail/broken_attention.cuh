#pragma once
/// \file
/// Simple attention kernels with a fault each, for the proof that the forward suite catches them.
///
///     row_attention     a thread a query row, online softmax over tiles of 16 keys; no shared memory; elements in
///     fp32,
///                       fp16 or bf16, sums in fp32, P rounded to the element type before it meets V
///     shared_attention  a block of 32 threads a query row; the scores of 32 keys meet in shared memory, two barriers a
///                       tile, for switching them off
///
/// Both count rows along grid.x. Bytes: Q once, K and V once a visible pair, O and LSE once.

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "common/attention/cost.hpp"
#include "common/attention/problem.hpp"
#include "common/gpu/barrier.cuh"
#include "common/gpu/launch.cuh"
#include "common/gpu/numeric.cuh"
#include "common/stage/kernel.hpp"

namespace broken {

using attention::ForwardArgs;
using attention::KeyRange;
using attention::Mask;
using attention::Problem;

/// What is different about a kernel. The first three are right.
enum class Variant {
  right,
  sums_backwards,      ///< q · k from the last column to the first: other rounding, still right
  sums_in_four_parts,  ///< q · k as four partial sums, as a warp would take it: still right

  ignores_k,                ///< every score is 0: the average of V
  drops_last_key,           ///< the last visible key is not seen
  forgets_rescale,          ///< a new maximum does not rescale the sums
  top_left_causal,          ///< the diagonal starts at key 0
  window_left_off_by_one,   ///< a window of left + 1 keys to the left
  window_right_off_by_one,  ///< one key too few to the right
  head_modulo,              ///< KV head h mod heads_kv
  first_batch_only,         ///< K and V of batch entry 0 for all
  lse_base_2,               ///< LSE as a binary logarithm
  finite_minus_infinity,    ///< the running maximum starts at −50000, before the scale
  finite_scaled_minimum,    ///< the running maximum starts at −50000, after the scale
  no_maximum,               ///< exp without the maximum taken off
  padding_gets_weight,      ///< the last tile is filled up with keys of score 0
  writes_past_end,          ///< one element past O's last
  writes_into_gap,          ///< one element past the last head of a row
  reads_past_end,           ///< 0 times the element past V's last
  uses_raw_workspace,       ///< 0 times what the workspace held before
  writes_past_workspace,    ///< one element past the workspace
  k_with_v_strides,         ///< K walked with the strides of V
  o_as_if_dense,            ///< O written as if it were dense
  default_scale_always,     ///< an explicit scale is ignored
  scale_of_padded_head,     ///< as if head_dim were 256
  nan_for_empty_rows,       ///< 0 / 0 where a row sees nothing
  zero_lse_for_empty_rows,  ///< LSE 0 where a row sees nothing
  skips_empty_rows,         ///< a row that sees nothing is left as it was
  skips_last_row,           ///< the last row is left as it was
  offsets_in_32_bits,       ///< offsets are cut to int
  depends_on_launch,        ///< every second launch differs in the last bit
  takes_any_head_dim,       ///< accepts head_dim 48 and does nothing
  counts_wrong_bytes,       ///< the predicted traffic forgets LSE

  // In 16 bits only.
  reads_bf16_as_fp16,        ///< the kernel for fp16 is launched on bf16
  reads_fp16_as_bf16,        ///< and the other way round
  accumulates_in_16_bits,    ///< O is rounded after each key
  keeps_maximum_in_16_bits,  ///< the running maximum is rounded from tile to tile
  scores_in_16_bits,         ///< S is rounded
  lse_in_16_bits,            ///< LSE is rounded
  scales_q_in_16_bits,       ///< scale · log₂e · q is rounded before the product
  scales_k_in_16_bits,       ///< scale · log₂e · k is
  p_of_first_maximum,        ///< the maximum stays that of the first tile: P may grow beyond what fp16 holds
};

inline constexpr int kMostHeadDim = 256;
inline constexpr int kTileKeys = 16;
inline constexpr int kRowsPerBlock = 32;

/// The keys that a row visits.
template <class T>
__device__ inline KeyRange keys_of(const ForwardArgs<T>& args, Variant variant, int query) {
  Mask mask = args.mask;
  const bool window = mask.left < attention::kUnlimited;
  if (variant == Variant::window_left_off_by_one && window) mask.left += 1;
  if (variant == Variant::window_right_off_by_one && window && mask.right > 0) mask.right -= 1;
  if (variant == Variant::top_left_causal) {
    return attention::visible_keys(mask, query, args.seqlen_kv, args.seqlen_kv);
  }
  KeyRange keys = attention::visible_keys(mask, query, args.seqlen_q, args.seqlen_kv);
  if (variant == Variant::drops_last_key && !keys.empty()) keys.end -= 1;
  return keys;
}

/// A row's offset, in 64 bits or cut to 32.
__device__ inline std::int64_t offset_of(const attention::Strides& strides, Variant variant, int b, int position,
                                         int head) {
  const std::int64_t offset = strides.offset(b, position, head);
  return variant == Variant::offsets_in_32_bits ? static_cast<std::int32_t>(offset) : offset;
}

/// The number of the element type nearest to x.
template <class T>
__device__ inline float rounded_to(float x) {
  return gpu::to_float(gpu::from_float<T>(x));
}

inline constexpr float kLog2e = 1.44269504f;

/// q · k in the order that the variant takes.
template <class T>
__device__ inline float dot(const float* q, const T* k, int head_dim, Variant variant) {
  float parts[4] = {0, 0, 0, 0};
  for (int i = 0; i < head_dim; ++i) {
    const int c = variant == Variant::sums_backwards ? head_dim - 1 - i : i;
    parts[variant == Variant::sums_in_four_parts ? i % 4 : 0] += q[c] * gpu::to_float(k[c]);
  }
  return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

/// The scaled score of a key.
template <class T>
__device__ inline float score_of(const float* q, const T* k, int head_dim, float scale, Variant variant) {
  if (variant == Variant::scales_q_in_16_bits || variant == Variant::scales_k_in_16_bits) {
    float sum = 0;
    for (int c = 0; c < head_dim; ++c) {
      const float k_c = gpu::to_float(k[c]), factor = scale * kLog2e;
      sum += variant == Variant::scales_q_in_16_bits ? rounded_to<T>(factor * q[c]) * k_c
                                                     : q[c] * rounded_to<T>(factor * k_c);
    }
    return sum / kLog2e;
  }
  const float score = scale * dot(q, k, head_dim, variant);
  return variant == Variant::scores_in_16_bits ? rounded_to<T>(score) : score;
}

template <class T>
__global__ void row_attention(ForwardArgs<T> args, Variant variant, int launch, float* workspace) {
  const std::int64_t rows = std::int64_t{args.batch} * args.heads_q * args.seqlen_q;
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  if (variant == Variant::skips_last_row && row == rows - 1) return;
  const int query = static_cast<int>(row % args.seqlen_q);
  const int head = static_cast<int>(row / args.seqlen_q % args.heads_q);
  const int b = static_cast<int>(row / args.seqlen_q / args.heads_q);
  const int b_kv = variant == Variant::first_batch_only ? 0 : b;
  const int head_kv = variant == Variant::head_modulo ? head % args.heads_kv : args.kv_head(head);

  const KeyRange keys = keys_of(args, variant, query);
  if (variant == Variant::skips_empty_rows && keys.empty()) return;
  float scale = args.softmax_scale;
  if (variant == Variant::default_scale_always) scale = 1 / sqrtf(static_cast<float>(args.head_dim));
  if (variant == Variant::scale_of_padded_head) scale *= sqrtf(static_cast<float>(args.head_dim) / kMostHeadDim);

  float q[kMostHeadDim], o[kMostHeadDim];
  const T* q_row = args.q_gmem + offset_of(args.q_strides, variant, b, query, head);
  for (int c = 0; c < args.head_dim; ++c) {
    q[c] = gpu::to_float(q_row[c]);
    o[c] = 0;
  }
  float m = -INFINITY;
  if (variant == Variant::finite_minus_infinity) m = -5e4f * scale;
  if (variant == Variant::finite_scaled_minimum) m = -5e4f;
  float l = 0;

  const bool pads = variant == Variant::padding_gets_weight;
  for (int begin = keys.begin; begin < keys.end; begin += kTileKeys) {
    const int end = pads || begin + kTileKeys < keys.end ? begin + kTileKeys : keys.end;
    float s[kTileKeys];
    float m_new = m;
    for (int key = begin; key < end; ++key) {
      const attention::Strides& strides = variant == Variant::k_with_v_strides ? args.v_strides : args.k_strides;
      float score = 0;
      if (key < keys.end && variant != Variant::ignores_k) {
        score =
            score_of(q, args.k_gmem + offset_of(strides, variant, b_kv, key, head_kv), args.head_dim, scale, variant);
      }
      s[key - begin] = score;
      m_new = fmaxf(m_new, score);
    }
    if (variant == Variant::no_maximum) m_new = 0;
    if (variant == Variant::p_of_first_maximum && begin > keys.begin) m_new = m;
    const float factor = variant == Variant::forgets_rescale ? 1.0f : expf(m - m_new);
    l *= factor;
    for (int c = 0; c < args.head_dim; ++c) o[c] *= factor;
    for (int key = begin; key < end; ++key) {
      const float p = expf(s[key - begin] - m_new);
      l += p;
      if (key >= keys.end) continue;
      const T* v = args.v_gmem + offset_of(args.v_strides, variant, b_kv, key, head_kv);
      const float weight = rounded_to<T>(p);
      for (int c = 0; c < args.head_dim; ++c) {
        o[c] += weight * gpu::to_float(v[c]);
        if (variant == Variant::accumulates_in_16_bits) o[c] = rounded_to<T>(o[c]);
      }
    }
    m = variant == Variant::keeps_maximum_in_16_bits ? rounded_to<T>(m_new) : m_new;
  }

  float factor = l == 0 && variant != Variant::nan_for_empty_rows ? 0.0f : 1 / l;
  float extra = 0;
  if (variant == Variant::reads_past_end && args.seqlen_kv > 0) {
    extra = 0 * gpu::to_float(args.v_row(args.batch - 1, args.seqlen_kv - 1, args.heads_kv - 1)[args.head_dim]);
  }
  if (variant == Variant::uses_raw_workspace) extra = 0 * workspace[0];
  if (variant == Variant::writes_past_workspace && row == 0) workspace[1] = 0;
  if (variant == Variant::depends_on_launch && launch % 2 == 1) factor *= sizeof(T) == 4 ? 1 + 0x1p-23f : 1 + 0x1p-7f;

  attention::Strides o_strides = args.o_strides;
  if (variant == Variant::o_as_if_dense) {
    o_strides = attention::contiguous_strides(args.seqlen_q, args.heads_q, args.head_dim);
  }
  T* o_row = args.o_gmem + offset_of(o_strides, variant, b, query, head);
  for (int c = 0; c < args.head_dim; ++c) o_row[c] = gpu::from_float<T>(o[c] * factor + extra);
  float lse = l == 0 ? -INFINITY : m + logf(l);
  if (variant == Variant::lse_base_2) lse *= kLog2e;
  if (variant == Variant::zero_lse_for_empty_rows && l == 0) lse = 0;
  if (variant == Variant::lse_in_16_bits) lse = rounded_to<T>(lse);
  *args.lse_entry(b, query, head) = lse;

  if (variant == Variant::writes_past_end && row == rows - 1) o_row[args.head_dim] = gpu::from_float<T>(0);
  const bool gap = args.o_strides.seq > std::int64_t{args.heads_q} * args.head_dim && query + 1 < args.seqlen_q;
  if (variant == Variant::writes_into_gap && gap && head == args.heads_q - 1)
    o_row[args.head_dim] = gpu::from_float<T>(0);
}

/// Does nothing: for a launch of which only the grid matters.
__global__ void no_attention() {}

/// Bytes of both kernels.
inline attention::Traffic traffic(const Problem& p) {
  const double heads = double(p.batch) * p.heads_q;
  const double rows = heads * p.seqlen_q;
  const double row_bytes = double(attention::element_bytes(p.element_type)) * p.head_dim;
  return {.loaded = row_bytes * (rows + 2 * heads * double(p.visible_pairs())),
          .stored = rows * (row_bytes + sizeof(float))};
}

template <class T>
void launch_rows(const ForwardArgs<T>& args, Variant variant, int launch, void* workspace) {
  const std::int64_t rows = std::int64_t{args.batch} * args.heads_q * args.seqlen_q;
  if (rows == 0) return;
  gpu::launch(row_attention<T>, {.grid = (rows + kRowsPerBlock - 1) / kRowsPerBlock, .block = kRowsPerBlock}, args,
              variant, launch, static_cast<float*>(workspace));
}

/// row_attention as the suite sees it, but for what it takes and how it is launched.
inline stage::ForwardKernel row_attention_of(Variant variant, const std::string& name) {
  stage::ForwardKernel kernel;
  kernel.name = name;
  if (variant == Variant::uses_raw_workspace || variant == Variant::writes_past_workspace) {
    kernel.workspace_bytes = [](const Problem&) { return sizeof(float); };
  }
  kernel.traffic = [variant](const Problem& p) {
    attention::Traffic t = traffic(p);
    if (variant == Variant::counts_wrong_bytes) t.stored -= sizeof(float) * double(p.elements_lse());
    return t;
  };
  return kernel;
}

/// row_attention in fp32.
inline stage::ForwardKernel row_attention_kernel(Variant variant, const std::string& name) {
  stage::ForwardKernel kernel = row_attention_of(variant, name);
  if (variant != Variant::takes_any_head_dim) {
    kernel.require = [name](const Problem& p) { stage::require_head_dim_32_64_128(name, p); };
  }
  const auto launches = std::make_shared<int>(0);
  kernel.run = [variant, launches](const ForwardArgs<float>& args, void* workspace) {
    if (variant == Variant::takes_any_head_dim && args.head_dim % 32 != 0) return;
    launch_rows(args, variant, (*launches)++, workspace);
  };
  return kernel;
}

/// The same bytes, taken for elements of another type.
template <class To, class From>
ForwardArgs<To> read_as(const ForwardArgs<From>& args) {
  return {.q_gmem = reinterpret_cast<const To*>(args.q_gmem),
          .k_gmem = reinterpret_cast<const To*>(args.k_gmem),
          .v_gmem = reinterpret_cast<const To*>(args.v_gmem),
          .o_gmem = reinterpret_cast<To*>(args.o_gmem),
          .lse_gmem = args.lse_gmem,
          .q_strides = args.q_strides,
          .k_strides = args.k_strides,
          .v_strides = args.v_strides,
          .o_strides = args.o_strides,
          .batch = args.batch,
          .heads_q = args.heads_q,
          .heads_kv = args.heads_kv,
          .seqlen_q = args.seqlen_q,
          .seqlen_kv = args.seqlen_kv,
          .head_dim = args.head_dim,
          .softmax_scale = args.softmax_scale,
          .mask = args.mask};
}

/// row_attention in fp16 and bf16.
inline stage::ForwardKernel row_attention_kernel_16_bits(Variant variant, const std::string& name) {
  stage::ForwardKernel kernel = row_attention_of(variant, name);
  kernel.require = [name](const Problem& p) { stage::require_head_dim(name, p, {64, 128, 256}); };
  const auto launches = std::make_shared<int>(0);
  kernel.run = [variant, launches]<stage::SixteenBits T>(const ForwardArgs<T>& args, void* workspace) {
    const int launch = (*launches)++;
    if constexpr (std::is_same_v<T, gpu::bf16>) {
      if (variant == Variant::reads_bf16_as_fp16) {
        return launch_rows(read_as<gpu::fp16>(args), variant, launch, workspace);
      }
    } else if (variant == Variant::reads_fp16_as_bf16) {
      return launch_rows(read_as<gpu::bf16>(args), variant, launch, workspace);
    }
    launch_rows(args, variant, launch, workspace);
  };
  return kernel;
}

inline constexpr int kSharedThreads = 32;

struct SharedScores {
  float s[kSharedThreads];
};

/// Thread t computes the score of key t of a tile, and columns t, t + 32, … of O.
__global__ void shared_attention(ForwardArgs<float> args) {
  auto& shared = gpu::shared_memory<SharedScores>();
  const std::int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int query = static_cast<int>(row % args.seqlen_q);
  const int head = static_cast<int>(row / args.seqlen_q % args.heads_q);
  const int b = static_cast<int>(row / args.seqlen_q / args.heads_q);
  const int head_kv = args.kv_head(head);
  const float* q = args.q_row(b, query, head);

  float o[kMostHeadDim / kSharedThreads] = {};
  float m = -INFINITY, l = 0;
  const KeyRange keys = args.visible_keys(query);
  for (int begin = keys.begin; begin < keys.end; begin += kSharedThreads) {
    const int key = begin + thread;
    float score = -INFINITY;
    if (key < keys.end) score = args.softmax_scale * dot(q, args.k_row(b, key, head_kv), args.head_dim, Variant::right);
    shared.s[thread] = score;
    __syncthreads();  // the scores of the tile are there
    float m_new = m;
    for (int j = 0; j < kSharedThreads; ++j) m_new = fmaxf(m_new, shared.s[j]);
    const float factor = expf(m - m_new);
    l *= factor;
    for (float& column : o) column *= factor;
    for (int j = 0; j < kSharedThreads && begin + j < keys.end; ++j) {
      const float p = expf(shared.s[j] - m_new);
      l += p;
      const float* v = args.v_row(b, begin + j, head_kv);
      for (int c = 0; thread + c * kSharedThreads < args.head_dim; ++c) o[c] += p * v[thread + c * kSharedThreads];
    }
    m = m_new;
    __syncthreads();  // all have read them; the next tile may overwrite
  }
  const float factor = l == 0 ? 0.0f : 1 / l;
  float* o_row = args.o_row(b, query, head);
  for (int c = 0; thread + c * kSharedThreads < args.head_dim; ++c) {
    o_row[thread + c * kSharedThreads] = o[c] * factor;
  }
  if (thread == 0) *args.lse_entry(b, query, head) = l == 0 ? -INFINITY : m + logf(l);
}

/// shared_attention as the suite sees it. Every pair loads the whole row of Q anew.
inline stage::ForwardKernel shared_attention_kernel() {
  stage::ForwardKernel kernel;
  kernel.name = "shared_attention";
  kernel.require = [](const Problem& p) { stage::require_head_dim_32_64_128("shared_attention", p); };
  kernel.traffic = [](const Problem& p) {
    const double heads = double(p.batch) * p.heads_q;
    return attention::Traffic{.loaded = sizeof(float) * 3 * p.head_dim * heads * double(p.visible_pairs()),
                              .stored = sizeof(float) * heads * p.seqlen_q * (p.head_dim + 1)};
  };
  kernel.run = [](const ForwardArgs<float>& args, void*) {
    const std::int64_t rows = std::int64_t{args.batch} * args.heads_q * args.seqlen_q;
    if (rows == 0) return;
    gpu::launch<SharedScores>(shared_attention, {.grid = rows, .block = kSharedThreads}, args);
  };
  return kernel;
}

}  // namespace broken
