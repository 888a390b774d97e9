#include "common/gpu/launch.cuh"
#include "common/gpu/numeric.cuh"
#include "tests/common/stage/thread_a_query.hpp"

namespace stage_test {
namespace {

constexpr int kThreads = 32;

template <class T, Sums kSums>
__global__ void thread_a_query(attention::ForwardArgs<T> args) {
  const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (row >= args.batch * args.heads_q * args.seqlen_q) return;
  const int query = row % args.seqlen_q, head = row / args.seqlen_q % args.heads_q;
  const int b = row / args.seqlen_q / args.heads_q, head_kv = args.kv_head(head);
  const auto kept = [](float sum) { return kSums == Sums::in_fp32 ? sum : gpu::to_float(gpu::from_float<T>(sum)); };

  float q[kThreadHeadDim], o[kThreadHeadDim] = {};
  for (int c = 0; c < kThreadHeadDim; ++c) q[c] = gpu::to_float(args.q_row(b, query, head)[c]);
  float m = -INFINITY, l = 0;
  const attention::KeyRange keys = args.visible_keys(query);
  for (int key = keys.begin; key < keys.end; ++key) {
    const T* k_gmem = args.k_row(b, key, head_kv);
    const T* v_gmem = args.v_row(b, key, head_kv);
    float s = 0;
    for (int c = 0; c < kThreadHeadDim; ++c) s += q[c] * gpu::to_float(k_gmem[c]);
    s *= args.softmax_scale;
    const float m_new = fmaxf(m, s), rescale = expf(m - m_new), p = expf(s - m_new);
    l = kept(l * rescale + p);
    for (int c = 0; c < kThreadHeadDim; ++c) o[c] = kept(o[c] * rescale + p * gpu::to_float(v_gmem[c]));
    m = m_new;
  }
  for (int c = 0; c < kThreadHeadDim; ++c) args.o_row(b, query, head)[c] = gpu::from_float<T>(l > 0 ? o[c] / l : 0);
  *args.lse_entry(b, query, head) = m + logf(l);
}

}  // namespace

template <class T>
void launch_thread_a_query(const attention::ForwardArgs<T>& args, Sums sums) {
  const int rows = args.batch * args.heads_q * args.seqlen_q;
  if (rows == 0) return;
  const auto kernel = sums == Sums::in_fp32 ? thread_a_query<T, Sums::in_fp32> : thread_a_query<T, Sums::in_elements>;
  gpu::launch(kernel, {.grid = (rows + kThreads - 1) / kThreads, .block = kThreads}, args);
}

template void launch_thread_a_query(const attention::ForwardArgs<gpu::fp16>& args, Sums sums);
template void launch_thread_a_query(const attention::ForwardArgs<gpu::bf16>& args, Sums sums);

}  // namespace stage_test
