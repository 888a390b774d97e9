/// \file
/// Simple backward kernels with a fault each, for the proof that the backward suite catches them.
///
///     dq_rows      a thread a query row: D, which it leaves in the workspace, and dQ
///     dkv_rows     a thread a key row: dK and dV, over all query heads of its group
///     atomic_rows  a thread a query row: as dq_rows, and adds to dK and dV by atomics; zero_rows goes before it
///
/// All count rows along grid.x and keep their own rows in registers; no shared memory.

#include <cstdint>
#include <memory>
#include <string>

#include "common/attention/cost.hpp"
#include "common/attention/problem.hpp"
#include "common/gpu/atomic.cuh"
#include "common/gpu/launch.cuh"
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
};

inline constexpr int kMostHeadDim = 128;
inline constexpr int kTileKeys = 16;
inline constexpr int kRowsPerBlock = 32;

/// The keys that a row visits.
__device__ inline KeyRange keys_of(const BackwardArgs<float>& args, Variant variant, int query) {
  if (variant == Variant::top_left_causal) {
    return attention::visible_keys(args.mask, query, args.seqlen_kv, args.seqlen_kv);
  }
  KeyRange keys = args.visible_keys(query);
  if (variant == Variant::drops_last_key && !keys.empty()) keys.end -= 1;
  return keys;
}

__device__ inline int kv_head_of(const BackwardArgs<float>& args, Variant variant, int head) {
  return variant == Variant::head_modulo ? head % args.heads_kv : args.kv_head(head);
}

__device__ inline float dot(const float* a, const float* b, int head_dim, Variant variant) {
  float sum = 0;
  for (int i = 0; i < head_dim; ++i) {
    const int c = variant == Variant::sums_backwards ? head_dim - 1 - i : i;
    sum += a[c] * b[c];
  }
  return sum;
}

__device__ inline float scale_of(const BackwardArgs<float>& args, Variant variant) {
  return variant == Variant::default_scale_always ? 1 / sqrtf(static_cast<float>(args.head_dim)) : args.softmax_scale;
}

__device__ inline const float* dout_row_of(const BackwardArgs<float>& args, Variant variant, int b, int query,
                                           int head) {
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

__device__ inline Weight weight_of(const QueryRow& row, const float* k, const float* v, int head_dim, float scale,
                                   Variant variant) {
  const float p = expf(scale * dot(row.q, k, head_dim, variant) - row.lse);
  return {p, p * (dot(row.dout, v, head_dim, variant) - row.d)};
}

/// D of the O that the first half of the keys alone would give.
__device__ inline float partial_d(const BackwardArgs<float>& args, const QueryRow& row, Variant variant) {
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
__device__ inline float d_of(const BackwardArgs<float>& args, const QueryRow& row, Variant variant) {
  if (variant == Variant::partial_o) return partial_d(args, row, variant);
  float d = dot(row.dout, args.o_row(row.b, row.query, row.head), args.head_dim, variant);
  if (args.dlse_gmem && variant != Variant::ignores_dlse) {
    const float dlse = args.dlse_gmem[row.index];
    d += variant == Variant::wrong_sign_of_dlse ? dlse : -dlse;
  }
  return d;
}

__device__ inline QueryRow load_query_row(const BackwardArgs<float>& args, Variant variant, std::int64_t index) {
  QueryRow row;
  row.index = index;
  row.query = static_cast<int>(index % args.seqlen_q);
  row.head = static_cast<int>(index / args.seqlen_q % args.heads_q);
  row.b = static_cast<int>(index / args.seqlen_q / args.heads_q);
  row.keys = keys_of(args, variant, row.query);
  row.lse = args.lse_gmem[index];
  row.d = 0;
  const float* q = args.q_row(row.b, row.query, row.head);
  const float* dout = dout_row_of(args, variant, row.b, row.query, row.head);
  for (int c = 0; c < args.head_dim; ++c) {
    row.q[c] = q[c];
    row.dout[c] = dout[c];
  }
  return row;
}

/// Number of the row that this thread takes; −1 if there is none for it.
__device__ inline std::int64_t row_of_thread(std::int64_t rows) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  return row < rows ? row : -1;
}

__global__ void d_rows(BackwardArgs<float> args, float* d_gmem) {
  const std::int64_t index = row_of_thread(std::int64_t{args.batch} * args.heads_q * args.seqlen_q);
  if (index < 0) return;
  d_gmem[index] = d_of(args, load_query_row(args, Variant::right, index), Variant::right);
}

/// dQ of a row, from its keys. `add` is called for each key, with its weight.
template <class Add>
__device__ void visit_keys(const BackwardArgs<float>& args, Variant variant, const QueryRow& row, int launch,
                           Add&& add) {
  const float scale = scale_of(args, variant);
  const int b_kv = variant == Variant::first_batch_only ? 0 : row.b;
  const int head_kv = kv_head_of(args, variant, row.head);
  float dq[kMostHeadDim];
  for (int c = 0; c < args.head_dim; ++c) dq[c] = 0;
  for (int key = row.keys.begin; key < row.keys.end; ++key) {
    const float* k = args.k_row(b_kv, key, head_kv);
    float k_reg[kMostHeadDim];
    for (int c = 0; c < args.head_dim; ++c) k_reg[c] = k[c];
    const Weight weight = weight_of(row, k_reg, args.v_row(b_kv, key, head_kv), args.head_dim, scale, variant);
    for (int c = 0; c < args.head_dim; ++c) dq[c] += weight.ds * k_reg[c];
    add(key, head_kv, weight);
  }
  float extra = 0;
  if (variant == Variant::padding_not_masked && row.keys.size() % kTileKeys != 0) {
    const float p = expf(0 - row.lse);
    extra = p * (0 - row.d) * 0;
  }
  if (variant == Variant::nan_for_empty_rows && row.keys.empty()) extra = expf(-INFINITY - row.lse);
  if (variant == Variant::reads_past_end) {
    extra = 0 * args.dout_row(args.batch - 1, args.seqlen_q - 1, args.heads_q - 1)[args.head_dim];
  }
  if (variant == Variant::skips_empty_rows && row.keys.empty()) return;
  float factor = variant == Variant::no_scale_in_dq ? 1.0f : scale;
  if (variant == Variant::depends_on_launch && launch % 2 == 1) factor *= 1 + 0x1p-23f;

  float* dq_row = args.dq_row(row.b, row.query, row.head);
  for (int c = 0; c < args.head_dim; ++c) dq_row[c] = factor * dq[c] + extra;
  const bool last = row.index == std::int64_t{args.batch} * args.heads_q * args.seqlen_q - 1;
  if (variant == Variant::writes_past_end && last) dq_row[args.head_dim] = 0;
  const bool gap = args.dq_strides.seq > std::int64_t{args.heads_q} * args.head_dim && row.query + 1 < args.seqlen_q;
  if (variant == Variant::writes_into_gap && gap && row.head == args.heads_q - 1) dq_row[args.head_dim] = 0;
}

__global__ void dq_rows(BackwardArgs<float> args, Variant variant, int launch, float* d_gmem) {
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

__global__ void dkv_rows(BackwardArgs<float> args, Variant variant, const float* d_gmem) {
  const std::int64_t index = row_of_thread(std::int64_t{args.batch} * args.heads_kv * args.seqlen_kv);
  if (index < 0) return;
  const int key = static_cast<int>(index % args.seqlen_kv);
  const int head_kv = static_cast<int>(index / args.seqlen_kv % args.heads_kv);
  const int b = static_cast<int>(index / args.seqlen_kv / args.heads_kv);
  const float scale = scale_of(args, variant);
  const int b_kv = variant == Variant::first_batch_only ? 0 : b;
  const float* k = args.k_row(b_kv, key, head_kv);
  const float* v = args.v_row(b_kv, key, head_kv);
  float k_reg[kMostHeadDim], v_reg[kMostHeadDim], dk[kMostHeadDim], dv[kMostHeadDim];
  for (int c = 0; c < args.head_dim; ++c) {
    k_reg[c] = k[c];
    v_reg[c] = v[c];
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
      const Weight weight = leaks ? Weight{1, 0} : weight_of(row, k_reg, v_reg, args.head_dim, scale, variant);
      for (int c = 0; c < args.head_dim; ++c) {
        dk[c] += (variant == Variant::dk_from_p ? weight.p : weight.ds) * row.q[c];
        dv[c] += weight.p * row.dout[c];
      }
    }
  }
  if (variant == Variant::skips_unseen_keys && !seen) return;
  const float factor = variant == Variant::no_scale_in_dk ? 1.0f : scale;
  const attention::Strides& dk_strides = variant == Variant::dk_with_k_strides ? args.k_strides : args.dk_strides;
  std::int64_t dk_offset = dk_strides.offset(b, key, head_kv);
  if (variant == Variant::offset_in_32_bits) dk_offset = static_cast<std::int32_t>(dk_offset);
  float* dk_row = args.dk_gmem + dk_offset;
  float* dv_row = args.dv_row(b, key, head_kv);
  for (int c = 0; c < args.head_dim; ++c) {
    dk_row[c] = factor * dk[c];
    dv_row[c] = dv[c];
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
  // A row of Q and dO and its LSE; K and V for each pair.
  attention::Traffic t{.loaded = rows * (2 * d + 1) + pairs * 2 * d, .stored = rows * d};
  if (prepares(variant)) {
    t.loaded += rows;  // D
  } else {
    t.loaded += rows * d;  // O
  }
  if (uses_atomics(variant)) {
    t = t + attention::Traffic{.loaded = pairs * 2 * d, .stored = pairs * 2 * d + key_rows * 2 * d};
  } else {
    if (!prepares(variant) && variant != Variant::counts_wrong_bytes) t.stored += rows;  // D
    // A row of K and V; Q, dO, LSE and D for each pair.
    t = t + attention::Traffic{.loaded = key_rows * 2 * d + pairs * (2 * d + 2), .stored = key_rows * 2 * d};
  }
  return {sizeof(float) * t.loaded, sizeof(float) * t.stored};
}

/// The kernels as the suite sees them.
inline stage::BackwardKernel backward_kernel(Variant variant, const std::string& name) {
  const auto launches = std::make_shared<int>(0);
  const auto blocks_for = [](std::int64_t rows) { return (rows + kRowsPerBlock - 1) / kRowsPerBlock; };
  stage::BackwardKernel kernel;
  kernel.name = name;
  kernel.deterministic = !uses_atomics(variant) || variant == Variant::claims_determinism;
  if (variant != Variant::takes_any_head_dim) {
    kernel.require = [name](const Problem& p) { stage::require_head_dim_32_64_128(name, p); };
  }
  kernel.workspace_bytes = [variant](const Problem& p) -> std::size_t {
    if (uses_atomics(variant)) return 0;
    const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(p.elements_lse());
    return variant == Variant::workspace_in_32_bits ? static_cast<std::uint32_t>(bytes) : bytes;
  };
  // Not where a prediction has nothing to do with the fault, and the fault moves bytes of its own.
  if (variant <= Variant::prepares_d || variant >= Variant::counts_wrong_bytes) {
    kernel.traffic = [variant](const Problem& p) { return traffic(p, variant); };
  }
  if (prepares(variant)) {
    kernel.prepare = [blocks_for](const BackwardArgs<float>& args, void* workspace) {
      const std::int64_t rows = std::int64_t{args.batch} * args.heads_q * args.seqlen_q;
      if (rows == 0) return;
      gpu::launch(d_rows, {.grid = blocks_for(rows), .block = kRowsPerBlock}, args, static_cast<float*>(workspace));
    };
  }
  kernel.run = [variant, launches, blocks_for](const BackwardArgs<float>& args, void* workspace) {
    if (variant == Variant::takes_any_head_dim && args.head_dim % 32 != 0) return;
    float* d_gmem = static_cast<float*>(workspace);
    const int launch = (*launches)++;
    const std::int64_t rows = std::int64_t{args.batch} * args.heads_q * args.seqlen_q;
    const std::int64_t key_rows = std::int64_t{args.batch} * args.heads_kv * args.seqlen_kv;
    const auto over = [&](std::int64_t count) {
      return gpu::LaunchShape{.grid = blocks_for(count), .block = kRowsPerBlock};
    };
    if (uses_atomics(variant)) {
      if (key_rows > 0 && variant != Variant::no_zeroing) gpu::launch(zero_rows, over(key_rows), args);
      if (rows > 0) gpu::launch(atomic_rows, over(rows), args, variant);
      return;
    }
    if (rows > 0) gpu::launch(dq_rows, over(rows), args, variant, launch, d_gmem);
    if (key_rows > 0) gpu::launch(dkv_rows, over(key_rows), args, variant, d_gmem);
    if (rows > 0 && variant == Variant::spoils_preparation) gpu::launch(spoil_rows, over(rows), d_gmem, rows);
  };
  return kernel;
}

}  // namespace broken_backward
