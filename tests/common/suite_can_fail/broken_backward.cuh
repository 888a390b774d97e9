/// \file
/// Simple backward kernels with a fault each, for the proof that the backward suite catches them.
///
///     dq_rows      a thread a query row: D, which it leaves in the workspace, and dQ
///     dkv_rows     a thread a key row: dK and dV, over all query heads of its group
///     atomic_rows  a thread a query row: as dq_rows, and adds to dK and dV by atomics; zero_rows goes before it
///
/// All count rows along grid.x and keep their own rows in registers; no shared memory. The first two take elements in
/// fp32, fp16 or bf16, sum in fp32, and round P and dS to the element type before the product that they enter.

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "common/attention/cost.hpp"
#include "common/attention/problem.hpp"
#include "common/gpu/atomic.cuh"
#include "common/gpu/launch.cuh"
#include "common/gpu/numeric.cuh"
#include "common/stage/kernel.hpp"

namespace broken_backward {

using attention::BackwardArgs;
using attention::KeyRange;
using attention::Problem;

/// What is different about a kernel.
enum class Variant {
  right,
  sums_backwards,  ///< products from the last column to the first: other rounding, still right
  atomics,         ///< atomic_rows, and says that it is not deterministic: still right
  prepares_d,      ///< D is prepared; a launch only reads it: still right

  partial_o,                ///< D of the O of the first half of the keys
  last_head_of_group,       ///< dK and dV of the group's last head only
  padding_not_masked,       ///< columns of zeros fill the last tile of 16 keys; exp(0 − LSE) is not masked
  no_scale_in_dq,           ///< dQ = dS · K
  no_scale_in_dk,           ///< dK = dSᵀ · Q
  default_scale_always,     ///< an explicit scale is ignored
  dout_with_o_strides,      ///< dO walked with the strides of O
  dk_with_k_strides,        ///< dK written with the strides of K
  ignores_dlse,             ///< D = rowsum(dO∘O)
  wrong_sign_of_dlse,       ///< D = rowsum(dO∘O) + dLSE
  dk_from_p,                ///< dK = scale · Pᵀ · Q
  no_zeroing,               ///< atomics onto what was there
  claims_determinism,       ///< atomics, and says that it is deterministic
  head_modulo,              ///< KV head h mod heads_kv
  top_left_causal,          ///< the diagonal starts at key 0
  drops_last_key,           ///< the last visible key is not seen
  nan_for_empty_rows,       ///< −∞ − −∞ where a row sees nothing
  dout_of_empty_rows,       ///< a row that sees nothing adds its dO to dV of key 0
  skips_empty_rows,         ///< dQ of a row that sees nothing is left as it was
  skips_unseen_keys,        ///< dK and dV of a key that nobody sees are left as they were
  first_batch_only,         ///< K and V of batch entry 0 for all
  writes_past_end,          ///< one element past dQ's last
  writes_into_gap,          ///< one element past the last head of a row of dQ
  writes_past_workspace,    ///< one element past the workspace
  reads_past_end,           ///< 0 times the element past dO's last
  uses_raw_workspace,       ///< 0 times what the workspace held before
  changes_input,            ///< a 0 into LSE
  spoils_preparation,       ///< D is prepared, and a launch overwrites it
  depends_on_launch,        ///< every second launch differs in the last bit
  takes_any_head_dim,       ///< accepts head_dim 48 and does nothing
  offset_in_32_bits,        ///< offsets of dK are cut to int
  workspace_in_32_bits,     ///< the size of the workspace is cut to 32 bits
  counts_wrong_bytes,       ///< the predicted traffic forgets D
  counts_no_pairs_of_mask,  ///< the predicted traffic takes all pairs for visible

  // In 16 bits only.
  reads_bf16_as_fp16,      ///< the kernels for fp16 are launched on bf16
  accumulates_in_16_bits,  ///< dQ, dK and dV are rounded after each term
  dq_before_its_scale,     ///< the sum of dQ is rounded before it is scaled
  scales_k_in_16_bits,     ///< scale · log₂e · k is rounded before the product
  lse_in_16_bits,          ///< LSE is rounded
  d_in_16_bits,            ///< D is rounded
};

inline constexpr int kMostHeadDim = 128;
inline constexpr int kTileKeys = 16;
inline constexpr int kRowsPerBlock = 32;

/// The keys that a row visits.
template <class T>
__device__ inline KeyRange keys_of(const BackwardArgs<T>& args, Variant variant, int query) {
  if (variant == Variant::top_left_causal) {
    return attention::visible_keys(args.mask, query, args.seqlen_kv, args.seqlen_kv);
  }
  KeyRange keys = args.visible_keys(query);
  if (variant == Variant::drops_last_key && !keys.empty()) keys.end -= 1;
  return keys;
}

template <class T>
__device__ inline int kv_head_of(const BackwardArgs<T>& args, Variant variant, int head) {
  return variant == Variant::head_modulo ? head % args.heads_kv : args.kv_head(head);
}

/// The number of the element type nearest to x.
template <class T>
__device__ inline float rounded_to(float x) {
  return gpu::to_float(gpu::from_float<T>(x));
}

template <class A, class B>
__device__ inline float dot(const A* a, const B* b, int head_dim, Variant variant) {
  float sum = 0;
  for (int i = 0; i < head_dim; ++i) {
    const int c = variant == Variant::sums_backwards ? head_dim - 1 - i : i;
    sum += gpu::to_float(a[c]) * gpu::to_float(b[c]);
  }
  return sum;
}

template <class T>
__device__ inline float scale_of(const BackwardArgs<T>& args, Variant variant) {
  return variant == Variant::default_scale_always ? 1 / sqrtf(static_cast<float>(args.head_dim)) : args.softmax_scale;
}

template <class T>
__device__ inline const T* dout_row_of(const BackwardArgs<T>& args, Variant variant, int b, int query, int head) {
  const attention::Strides& strides = variant == Variant::dout_with_o_strides ? args.o_strides : args.dout_strides;
  return args.dout_gmem + strides.offset(b, query, head);
}

/// A query row and what a thread keeps of it.
struct QueryRow {
  int b, query, head;
  std::int64_t index;
  KeyRange keys;
  float lse, d;
  float q[kMostHeadDim], dout[kMostHeadDim];
};

/// P and dS of a row and a key.
struct Weight {
  float p, ds;
};

/// The scaled score of a query and a key of elements of type T.
template <class T>
__device__ inline float score_of(const float* q, const float* k, int head_dim, float scale, Variant variant) {
  if (variant != Variant::scales_k_in_16_bits) return scale * dot(q, k, head_dim, variant);
  constexpr float kLog2e = 1.44269504f;
  float sum = 0;
  for (int c = 0; c < head_dim; ++c) sum += q[c] * rounded_to<T>(scale * kLog2e * k[c]);
  return sum / kLog2e;
}

template <class T, class V>
__device__ inline Weight weight_of(const QueryRow& row, const float* k, const V* v, int head_dim, float scale,
                                   Variant variant) {
  const float p = expf(score_of<T>(row.q, k, head_dim, scale, variant) - row.lse);
  return {p, p * (dot(row.dout, v, head_dim, variant) - row.d)};
}

/// A sum and one term more.
template <class T>
__device__ inline float plus(float sum, float term, Variant variant) {
  return variant == Variant::accumulates_in_16_bits ? rounded_to<T>(sum + term) : sum + term;
}

/// D of the O that the first half of the keys alone would give.
template <class T>
__device__ inline float partial_d(const BackwardArgs<T>& args, const QueryRow& row, Variant variant) {
  float weights = 0, sum = 0;
  const int head_kv = args.kv_head(row.head);
  for (int key = row.keys.begin; key < row.keys.begin + (row.keys.size() + 1) / 2; ++key) {
    const float p =
        expf(args.softmax_scale * dot(row.q, args.k_row(row.b, key, head_kv), args.head_dim, variant) - row.lse);
    weights += p;
    sum += p * dot(row.dout, args.v_row(row.b, key, head_kv), args.head_dim, variant);
  }
  return row.keys.empty() ? 0.0f : sum / weights;
}

/// D = rowsum(dO∘O) − dLSE.
template <class T>
__device__ inline float d_of(const BackwardArgs<T>& args, const QueryRow& row, Variant variant) {
  if (variant == Variant::partial_o) return partial_d(args, row, variant);
  float d = dot(row.dout, args.o_row(row.b, row.query, row.head), args.head_dim, variant);
  if (args.dlse_gmem && variant != Variant::ignores_dlse) {
    const float dlse = args.dlse_gmem[row.index];
    d += variant == Variant::wrong_sign_of_dlse ? dlse : -dlse;
  }
  return variant == Variant::d_in_16_bits ? rounded_to<T>(d) : d;
}

template <class T>
__device__ inline QueryRow load_query_row(const BackwardArgs<T>& args, Variant variant, std::int64_t index) {
  QueryRow row;
  row.index = index;
  row.query = static_cast<int>(index % args.seqlen_q);
  row.head = static_cast<int>(index / args.seqlen_q % args.heads_q);
  row.b = static_cast<int>(index / args.seqlen_q / args.heads_q);
  row.keys = keys_of(args, variant, row.query);
  row.lse = args.lse_gmem[index];
  if (variant == Variant::lse_in_16_bits) row.lse = rounded_to<T>(row.lse);
  row.d = 0;
  const T* q = args.q_row(row.b, row.query, row.head);
  const T* dout = dout_row_of(args, variant, row.b, row.query, row.head);
  for (int c = 0; c < args.head_dim; ++c) {
    row.q[c] = gpu::to_float(q[c]);
    row.dout[c] = gpu::to_float(dout[c]);
  }
  return row;
}

/// Number of the row that this thread takes; −1 if there is none for it.
__device__ inline std::int64_t row_of_thread(std::int64_t rows) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  return row < rows ? row : -1;
}

template <class T>
__global__ void d_rows(BackwardArgs<T> args, float* d_gmem) {
  const std::int64_t index = row_of_thread(std::int64_t{args.batch} * args.heads_q * args.seqlen_q);
  if (index < 0) return;
  d_gmem[index] = d_of(args, load_query_row(args, Variant::right, index), Variant::right);
}

/// dQ of a row, from its keys. `add` is called for each key, with its weight.
template <class T, class Add>
__device__ void visit_keys(const BackwardArgs<T>& args, Variant variant, const QueryRow& row, int launch, Add&& add) {
  const float scale = scale_of(args, variant);
  const int b_kv = variant == Variant::first_batch_only ? 0 : row.b;
  const int head_kv = kv_head_of(args, variant, row.head);
  float dq[kMostHeadDim];
  for (int c = 0; c < args.head_dim; ++c) dq[c] = 0;
  for (int key = row.keys.begin; key < row.keys.end; ++key) {
    const T* k = args.k_row(b_kv, key, head_kv);
    float k_reg[kMostHeadDim];
    for (int c = 0; c < args.head_dim; ++c) k_reg[c] = gpu::to_float(k[c]);
    const Weight weight = weight_of<T>(row, k_reg, args.v_row(b_kv, key, head_kv), args.head_dim, scale, variant);
    const float ds = rounded_to<T>(weight.ds);
    for (int c = 0; c < args.head_dim; ++c) dq[c] = plus<T>(dq[c], ds * k_reg[c], variant);
    add(key, head_kv, weight);
  }
  float extra = 0;
  if (variant == Variant::padding_not_masked && row.keys.size() % kTileKeys != 0) {
    const float p = expf(0 - row.lse);
    extra = p * (0 - row.d) * 0;
  }
  if (variant == Variant::nan_for_empty_rows && row.keys.empty()) extra = expf(-INFINITY - row.lse);
  if (variant == Variant::reads_past_end) {
    extra = 0 * gpu::to_float(args.dout_row(args.batch - 1, args.seqlen_q - 1, args.heads_q - 1)[args.head_dim]);
  }
  if (variant == Variant::skips_empty_rows && row.keys.empty()) return;
  float factor = variant == Variant::no_scale_in_dq ? 1.0f : scale;
  if (variant == Variant::depends_on_launch && launch % 2 == 1) factor *= sizeof(T) == 4 ? 1 + 0x1p-23f : 1 + 0x1p-7f;

  T* dq_row = args.dq_row(row.b, row.query, row.head);
  for (int c = 0; c < args.head_dim; ++c) {
    if (variant == Variant::dq_before_its_scale) dq[c] = rounded_to<T>(dq[c]);
    dq_row[c] = gpu::from_float<T>(factor * dq[c] + extra);
  }
  const bool last = row.index == std::int64_t{args.batch} * args.heads_q * args.seqlen_q - 1;
  if (variant == Variant::writes_past_end && last) dq_row[args.head_dim] = gpu::from_float<T>(0);
  const bool gap = args.dq_strides.seq > std::int64_t{args.heads_q} * args.head_dim && row.query + 1 < args.seqlen_q;
  if (variant == Variant::writes_into_gap && gap && row.head == args.heads_q - 1)
    dq_row[args.head_dim] = gpu::from_float<T>(0);
}

template <class T>
__global__ void dq_rows(BackwardArgs<T> args, Variant variant, int launch, float* d_gmem) {
  const std::int64_t rows = std::int64_t{args.batch} * args.heads_q * args.seqlen_q;
  const std::int64_t index = row_of_thread(rows);
  if (index < 0) return;
  QueryRow row = load_query_row(args, variant, index);
  if (variant == Variant::prepares_d || variant == Variant::spoils_preparation) {
    row.d = d_gmem[index];
  } else {
    row.d = d_of(args, row, variant);
    if (variant == Variant::uses_raw_workspace) row.d += 0 * d_gmem[index];
    d_gmem[index] = row.d;
  }
  visit_keys(args, variant, row, launch, [](int, int, Weight) {});
  if (variant == Variant::writes_past_workspace && index == 0) d_gmem[rows] = 0;
  if (variant == Variant::changes_input && index == 0) const_cast<float*>(args.lse_gmem)[0] = 0;
}

template <class T>
__global__ void dkv_rows(BackwardArgs<T> args, Variant variant, const float* d_gmem) {
  const std::int64_t index = row_of_thread(std::int64_t{args.batch} * args.heads_kv * args.seqlen_kv);
  if (index < 0) return;
  const int key = static_cast<int>(index % args.seqlen_kv);
  const int head_kv = static_cast<int>(index / args.seqlen_kv % args.heads_kv);
  const int b = static_cast<int>(index / args.seqlen_kv / args.heads_kv);
  const float scale = scale_of(args, variant);
  const int b_kv = variant == Variant::first_batch_only ? 0 : b;
  const T* k = args.k_row(b_kv, key, head_kv);
  const T* v = args.v_row(b_kv, key, head_kv);
  float k_reg[kMostHeadDim], v_reg[kMostHeadDim], dk[kMostHeadDim], dv[kMostHeadDim];
  for (int c = 0; c < args.head_dim; ++c) {
    k_reg[c] = gpu::to_float(k[c]);
    v_reg[c] = gpu::to_float(v[c]);
    dk[c] = dv[c] = 0;
  }
  bool seen = false;
  for (int head = 0; head < args.heads_q; ++head) {
    if (kv_head_of(args, variant, head) != head_kv) continue;
    if (variant == Variant::last_head_of_group && args.kv_head(head + 1) == head_kv) continue;
    for (int query = 0; query < args.seqlen_q; ++query) {
      const KeyRange keys = keys_of(args, variant, query);
      const bool sees = key >= keys.begin && key < keys.end;
      const bool leaks = variant == Variant::dout_of_empty_rows && keys.empty() && key == 0;
      if (!sees && !leaks) continue;
      seen = true;
      QueryRow row = load_query_row(args, variant, args.row_index(b, query, head));
      row.d = d_gmem[row.index];
      const Weight weight = leaks ? Weight{1, 0} : weight_of<T>(row, k_reg, v_reg, args.head_dim, scale, variant);
      const float p = rounded_to<T>(weight.p), ds = rounded_to<T>(weight.ds);
      for (int c = 0; c < args.head_dim; ++c) {
        dk[c] = plus<T>(dk[c], (variant == Variant::dk_from_p ? p : ds) * row.q[c], variant);
        dv[c] = plus<T>(dv[c], p * row.dout[c], variant);
      }
    }
  }
  if (variant == Variant::skips_unseen_keys && !seen) return;
  const float factor = variant == Variant::no_scale_in_dk ? 1.0f : scale;
  const attention::Strides& dk_strides = variant == Variant::dk_with_k_strides ? args.k_strides : args.dk_strides;
  std::int64_t dk_offset = dk_strides.offset(b, key, head_kv);
  if (variant == Variant::offset_in_32_bits) dk_offset = static_cast<std::int32_t>(dk_offset);
  T* dk_row = args.dk_gmem + dk_offset;
  T* dv_row = args.dv_row(b, key, head_kv);
  for (int c = 0; c < args.head_dim; ++c) {
    dk_row[c] = gpu::from_float<T>(factor * dk[c]);
    dv_row[c] = gpu::from_float<T>(dv[c]);
  }
}

/// After all have read it.
__global__ void spoil_rows(float* d_gmem, std::int64_t rows) {
  const std::int64_t index = row_of_thread(rows);
  if (index >= 0) d_gmem[index] = 0;
}

__global__ void zero_rows(BackwardArgs<float> args) {
  const std::int64_t index = row_of_thread(std::int64_t{args.batch} * args.heads_kv * args.seqlen_kv);
  if (index < 0) return;
  const int key = static_cast<int>(index % args.seqlen_kv);
  const int head_kv = static_cast<int>(index / args.seqlen_kv % args.heads_kv);
  const int b = static_cast<int>(index / args.seqlen_kv / args.heads_kv);
  for (int c = 0; c < args.head_dim; ++c) args.dk_row(b, key, head_kv)[c] = args.dv_row(b, key, head_kv)[c] = 0;
}

__global__ void atomic_rows(BackwardArgs<float> args, Variant variant) {
  const std::int64_t index = row_of_thread(std::int64_t{args.batch} * args.heads_q * args.seqlen_q);
  if (index < 0) return;
  QueryRow row = load_query_row(args, variant, index);
  row.d = d_of(args, row, variant);
  visit_keys(args, variant, row, 0, [&](int key, int head_kv, Weight weight) {
    float* dk = args.dk_row(row.b, key, head_kv);
    float* dv = args.dv_row(row.b, key, head_kv);
    const float ds = args.softmax_scale * weight.ds, p = weight.p;
    for (int c = 0; c < args.head_dim; c += 4) {
      const float* q = row.q + c;
      const float* dout = row.dout + c;
      gpu::atomic_add4(dk + c, {ds * q[0], ds * q[1], ds * q[2], ds * q[3]});
      gpu::atomic_add4(dv + c, {p * dout[0], p * dout[1], p * dout[2], p * dout[3]});
    }
  });
}

inline bool uses_atomics(Variant variant) {
  return variant == Variant::atomics || variant == Variant::no_zeroing || variant == Variant::claims_determinism;
}
inline bool prepares(Variant variant) {
  return variant == Variant::prepares_d || variant == Variant::spoils_preparation;
}

/// Bytes of the right kernels.
inline attention::Traffic traffic(const Problem& p, Variant variant) {
  const double heads = double(p.batch) * p.heads_q, rows = heads * p.seqlen_q;
  const double key_rows = double(p.batch) * p.heads_kv * p.seqlen_kv;
  const double pairs = heads * (variant == Variant::counts_no_pairs_of_mask ? double(p.seqlen_q) * p.seqlen_kv
                                                                            : double(p.visible_pairs()));
  const double d = p.head_dim;
  attention::Traffic elements, floats;  // both counted, not yet in bytes
  // A row of Q and dO and its LSE; K and V for each pair.
  elements = {.loaded = rows * 2 * d + pairs * 2 * d, .stored = rows * d};
  floats.loaded = rows;
  if (prepares(variant)) {
    floats.loaded += rows;  // D
  } else {
    elements.loaded += rows * d;  // O
  }
  if (uses_atomics(variant)) {
    elements = elements + attention::Traffic{.loaded = pairs * 2 * d, .stored = pairs * 2 * d + key_rows * 2 * d};
  } else {
    if (!prepares(variant) && variant != Variant::counts_wrong_bytes) floats.stored += rows;  // D
    // A row of K and V; Q, dO, LSE and D for each pair.
    elements = elements + attention::Traffic{.loaded = key_rows * 2 * d + pairs * 2 * d, .stored = key_rows * 2 * d};
    floats.loaded += pairs * 2;
  }
  const double element_bytes = attention::element_bytes(p.element_type);
  return {.loaded = element_bytes * elements.loaded + sizeof(float) * floats.loaded,
          .stored = element_bytes * elements.stored + sizeof(float) * floats.stored};
}

inline gpu::LaunchShape threads_for(std::int64_t rows) {
  return {.grid = (rows + kRowsPerBlock - 1) / kRowsPerBlock, .block = kRowsPerBlock};
}

template <class T>
void prepare_d(const BackwardArgs<T>& args, void* workspace) {
  const std::int64_t rows = std::int64_t{args.batch} * args.heads_q * args.seqlen_q;
  if (rows > 0) gpu::launch(d_rows<T>, threads_for(rows), args, static_cast<float*>(workspace));
}

template <class T>
void launch_rows(const BackwardArgs<T>& args, Variant variant, int launch, void* workspace) {
  float* d_gmem = static_cast<float*>(workspace);
  const std::int64_t rows = std::int64_t{args.batch} * args.heads_q * args.seqlen_q;
  const std::int64_t key_rows = std::int64_t{args.batch} * args.heads_kv * args.seqlen_kv;
  if (rows > 0) gpu::launch(dq_rows<T>, threads_for(rows), args, variant, launch, d_gmem);
  if (key_rows > 0) gpu::launch(dkv_rows<T>, threads_for(key_rows), args, variant, d_gmem);
  if (rows > 0 && variant == Variant::spoils_preparation) gpu::launch(spoil_rows, threads_for(rows), d_gmem, rows);
}

/// The kernels as the suite sees them, but for what they take and how they are launched.
inline stage::BackwardKernel backward_kernel_of(Variant variant, const std::string& name) {
  stage::BackwardKernel kernel;
  kernel.name = name;
  kernel.deterministic = !uses_atomics(variant) || variant == Variant::claims_determinism;
  kernel.workspace_bytes = [variant](const Problem& p) -> std::size_t {
    if (uses_atomics(variant)) return 0;
    const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(p.elements_lse());
    return variant == Variant::workspace_in_32_bits ? static_cast<std::uint32_t>(bytes) : bytes;
  };
  // Not where a prediction has nothing to do with the fault, and the fault moves bytes of its own.
  if (variant <= Variant::prepares_d || variant >= Variant::counts_wrong_bytes) {
    kernel.traffic = [variant](const Problem& p) { return traffic(p, variant); };
  }
  return kernel;
}

/// The kernels in fp32.
inline stage::BackwardKernel backward_kernel(Variant variant, const std::string& name) {
  stage::BackwardKernel kernel = backward_kernel_of(variant, name);
  if (variant != Variant::takes_any_head_dim) {
    kernel.require = [name](const Problem& p) { stage::require_head_dim_32_64_128(name, p); };
  }
  if (prepares(variant)) kernel.prepare = prepare_d<float>;
  const auto launches = std::make_shared<int>(0);
  kernel.run = [variant, launches](const BackwardArgs<float>& args, void* workspace) {
    if (variant == Variant::takes_any_head_dim && args.head_dim % 32 != 0) return;
    const int launch = (*launches)++;
    if (!uses_atomics(variant)) return launch_rows(args, variant, launch, workspace);
    const std::int64_t rows = std::int64_t{args.batch} * args.heads_q * args.seqlen_q;
    const std::int64_t key_rows = std::int64_t{args.batch} * args.heads_kv * args.seqlen_kv;
    if (key_rows > 0 && variant != Variant::no_zeroing) gpu::launch(zero_rows, threads_for(key_rows), args);
    if (rows > 0) gpu::launch(atomic_rows, threads_for(rows), args, variant);
  };
  return kernel;
}

/// bf16, taken for fp16.
inline BackwardArgs<gpu::fp16> read_as_fp16(const BackwardArgs<gpu::bf16>& args) {
  const auto read = [](const gpu::bf16* array) { return reinterpret_cast<const gpu::fp16*>(array); };
  const auto write = [](gpu::bf16* array) { return reinterpret_cast<gpu::fp16*>(array); };
  return {.q_gmem = read(args.q_gmem),
          .k_gmem = read(args.k_gmem),
          .v_gmem = read(args.v_gmem),
          .o_gmem = read(args.o_gmem),
          .lse_gmem = args.lse_gmem,
          .dout_gmem = read(args.dout_gmem),
          .dlse_gmem = args.dlse_gmem,
          .dq_gmem = write(args.dq_gmem),
          .dk_gmem = write(args.dk_gmem),
          .dv_gmem = write(args.dv_gmem),
          .q_strides = args.q_strides,
          .k_strides = args.k_strides,
          .v_strides = args.v_strides,
          .o_strides = args.o_strides,
          .dout_strides = args.dout_strides,
          .dq_strides = args.dq_strides,
          .dk_strides = args.dk_strides,
          .dv_strides = args.dv_strides,
          .batch = args.batch,
          .heads_q = args.heads_q,
          .heads_kv = args.heads_kv,
          .seqlen_q = args.seqlen_q,
          .seqlen_kv = args.seqlen_kv,
          .head_dim = args.head_dim,
          .softmax_scale = args.softmax_scale,
          .mask = args.mask};
}

/// The kernels in fp16 and bf16, without atomics.
inline stage::BackwardKernel backward_kernel_16_bits(Variant variant, const std::string& name) {
  stage::BackwardKernel kernel = backward_kernel_of(variant, name);
  kernel.require = [name](const Problem& p) { stage::require_head_dim(name, p, {64, 128}); };
  if (prepares(variant)) {
    kernel.prepare = []<stage::SixteenBits T>(const BackwardArgs<T>& args, void* workspace) {
      prepare_d(args, workspace);
    };
  }
  const auto launches = std::make_shared<int>(0);
  kernel.run = [variant, launches]<stage::SixteenBits T>(const BackwardArgs<T>& args, void* workspace) {
    const int launch = (*launches)++;
    if constexpr (std::is_same_v<T, gpu::bf16>) {
      if (variant == Variant::reads_bf16_as_fp16) return launch_rows(read_as_fp16(args), variant, launch, workspace);
    }
    launch_rows(args, variant, launch, workspace);
  };
  return kernel;
}

}  // namespace broken_backward
