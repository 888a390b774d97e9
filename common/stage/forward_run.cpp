#include "common/stage/forward_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/gpu/buffer.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/memory.hpp"

namespace stage {
namespace {

using attention::Problem;

constexpr std::size_t kGuardElements = 64;  // on either side; 256 bytes, so that the array keeps its alignment
constexpr std::uint32_t kPoison = 0xFFFFFFFF;

/// O or LSE, in the memory that the kernel works in, between two guards. Everything is poisoned until the kernel
/// writes.
class GuardedOutput {
 public:
  GuardedOutput(Memory memory, std::int64_t size, const char* label)
      : memory_(memory), name_(label), size_(static_cast<std::size_t>(size)) {
    const std::size_t total = size_ + 2 * kGuardElements;
    if (memory == Memory::host) {
      host_.resize(total);
    } else {
      device_ = gpu::DeviceBuffer<float>(total, label);
    }
    poison();
  }

  float* data() { return (memory_ == Memory::host ? host_.data() : device_.data()) + kGuardElements; }

  void poison() {
    if (memory_ == Memory::host) {
      std::memset(host_.data(), 0xFF, host_.size() * sizeof(float));
    } else {
      device_.poison();
    }
  }

  /// The array without its guards. Appends a sentence to `complaint` if a guard was written.
  std::vector<float> values(std::string& complaint) const {
    const std::vector<float> all = memory_ == Memory::host ? host_ : device_.download();
    const auto touched = [&](std::size_t begin) {
      return std::any_of(all.begin() + static_cast<std::ptrdiff_t>(begin),
                         all.begin() + static_cast<std::ptrdiff_t>(begin + kGuardElements),
                         [](float x) { return std::bit_cast<std::uint32_t>(x) != kPoison; });
    };
    if (touched(0)) complaint += fmt::format("wrong: wrote before the first element of {}. ", name_);
    if (touched(kGuardElements + size_)) complaint += fmt::format("wrong: wrote past the last element of {}. ", name_);
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(kGuardElements);
    return {first, first + static_cast<std::ptrdiff_t>(size_)};
  }

 private:
  Memory memory_;
  const char* name_;
  std::size_t size_;
  std::vector<float> host_;
  gpu::DeviceBuffer<float> device_;
};

/// Scratch, poisoned.
class Workspace {
 public:
  Workspace(Memory memory, std::size_t bytes) {
    if (memory == Memory::host) {
      host_.assign(bytes, 0xFF);
    } else {
      device_ = gpu::DeviceBuffer<unsigned char>(bytes, "workspace");
    }
  }
  void* data() { return host_.empty() ? device_.data() : host_.data(); }

 private:
  std::vector<unsigned char> host_;
  gpu::DeviceBuffer<unsigned char> device_;
};

/// Q, K and V where the kernel reads them.
class PlacedInputs {
 public:
  PlacedInputs(Memory memory, const attention::Inputs& inputs) : host_(inputs), on_host_(memory == Memory::host) {
    if (on_host_) return;
    q_ = gpu::DeviceBuffer<float>(std::span(inputs.q), "Q");
    k_ = gpu::DeviceBuffer<float>(std::span(inputs.k), "K");
    v_ = gpu::DeviceBuffer<float>(std::span(inputs.v), "V");
  }
  const float* q() const { return on_host_ ? host_.q.data() : q_.data(); }
  const float* k() const { return on_host_ ? host_.k.data() : k_.data(); }
  const float* v() const { return on_host_ ? host_.v.data() : v_.data(); }

 private:
  const attention::Inputs& host_;
  bool on_host_;
  gpu::DeviceBuffer<float> q_, k_, v_;
};

/// Compares the checking build's counts with the kernel's own model. An empty sentence if they are equal.
std::string compare_counts(const gpu::Counts& counts, const attention::Traffic& traffic) {
  const auto loaded = static_cast<double>(counts.global_loaded);
  const auto stored = static_cast<double>(counts.global_stored);
  if (loaded == traffic.loaded && stored == traffic.stored) return {};
  return fmt::format("miscounted: {:.0f} bytes loaded and {:.0f} stored were counted, {:.0f} and {:.0f} predicted",
                     loaded, stored, traffic.loaded, traffic.stored);
}

/// SplitMix64 (Steele, Lea, Flood 2014): the sample must be the same on every machine, which std distributions are not.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// The reference's LSE in fp32: in the place of one that is not there, it passes the rule and leaves O to be judged.
std::vector<float> reference_lse(const attention::ForwardYardstick& yardstick) {
  std::vector<float> lse;
  for (const double l : yardstick.reference.lse) lse.push_back(static_cast<float>(l));
  return lse;
}

/// Row `query` of head `head` of batch entry `b` as a problem of its own: one query, and of the keys only the run that
/// the mask leaves, so that no mask is needed.
attention::Verdict judge_row(const Problem& p, const attention::Inputs& inputs, std::span<const float> o,
                             std::span<const float> lse, int b, int head, int query) {
  const attention::KeyRange keys = attention::visible_keys(p.mask, query, p.seqlen_q, p.seqlen_kv);
  const int head_kv = head / (p.heads_q / p.heads_kv);

  Problem row;
  row.seqlen_q = 1;
  row.seqlen_kv = keys.size();
  row.head_dim = p.head_dim;
  row.softmax_scale = p.scale();
  row.q_strides = p.strides_q();
  row.k_strides = p.strides_k();
  row.v_strides = p.strides_v();
  row.o_strides = p.strides_o();
  const auto part = [](std::span<const float> all, std::int64_t offset, std::int64_t size) {
    return size == 0 ? std::span<const float>()
                     : all.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
  };
  const auto v = part(inputs.v, p.strides_v().offset(b, keys.begin, head_kv), row.elements_v());
  const attention::ForwardYardstick yardstick = attention::make_forward_yardstick(
      row, part(inputs.q, p.strides_q().offset(b, query, head), row.elements_q()),
      part(inputs.k, p.strides_k().offset(b, keys.begin, head_kv), row.elements_k()), v);
  const std::vector<float> unjudged = lse.empty() ? reference_lse(yardstick) : std::vector<float>();
  return attention::judge_forward(row, v, part(o, p.strides_o().offset(b, query, head), row.elements_o()),
                                  lse.empty() ? std::span<const float>(unjudged)
                                              : part(lse, (std::int64_t{b} * p.heads_q + head) * p.seqlen_q + query, 1),
                                  yardstick);
}

/// A row that a sample need not contain to be seen to be wrong: O not finite or LSE NaN. Empty if there is none.
std::string find_unwritten(const Problem& p, std::span<const float> o, std::span<const float> lse) {
  for (int b = 0; b < p.batch; ++b) {
    for (int query = 0; query < p.seqlen_q; ++query) {
      for (int head = 0; head < p.heads_q; ++head) {
        const auto row = o.subspan(static_cast<std::size_t>(p.strides_o().offset(b, query, head)),
                                   static_cast<std::size_t>(p.head_dim));
        const auto entry = static_cast<std::size_t>((std::int64_t{b} * p.heads_q + head) * p.seqlen_q + query);
        if ((!lse.empty() && std::isnan(lse[entry])) ||
            !std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })) {
          return fmt::format("wrong: batch {}, head {}, query {} is not finite", b, head, query);
        }
      }
    }
  }
  return {};
}

}  // namespace

bool is_sampled(const Problem& p) {
  constexpr double kLongestReference = 2e10;  // products in QKᵀ; some 20 seconds on one core
  return static_cast<double>(p.visible_pairs()) * p.heads_q * p.batch * p.head_dim > kLongestReference;
}

attention::Verdict judge_sample(const Problem& p, const attention::Inputs& inputs, std::span<const float> o,
                                std::span<const float> lse) {
  attention::Verdict verdict{.right = true, .error = {}, .allowed = {}, .sentence = {}};
  const std::int64_t rows = p.elements_lse();
  std::uint64_t random = 1;
  std::string worst_row;
  double worst_ratio = -1;
  const auto grow = [](double& largest, double x) { largest = x > largest ? x : largest; };

  for (int i = 0; i < kSampledRows && rows > 0; ++i) {
    const std::int64_t drawn = static_cast<std::int64_t>(next_random(random) % static_cast<std::uint64_t>(rows));
    const std::int64_t index = i == 0 ? 0 : i == 1 ? rows - 1 : drawn;
    const int query = static_cast<int>(index % p.seqlen_q);
    const int head = static_cast<int>(index / p.seqlen_q % p.heads_q);
    const int b = static_cast<int>(index / p.seqlen_q / p.heads_q);
    const attention::Verdict row = judge_row(p, inputs, o, lse, b, head, query);
    grow(verdict.error.relative, row.error.relative);
    grow(verdict.error.absolute, row.error.absolute);
    grow(verdict.error.lse, row.error.lse);
    grow(verdict.allowed.relative, row.allowed.relative);
    grow(verdict.allowed.absolute, row.allowed.absolute);
    grow(verdict.allowed.lse, row.allowed.lse);
    const double ratio = std::max({row.error.relative / row.allowed.relative, row.error.absolute / row.allowed.absolute,
                                   row.error.lse / row.allowed.lse});
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      worst_row = fmt::format("batch {}, head {}, query {}", b, head, query);
    }
  }
  const auto within = [](double error, double allowed) { return std::isfinite(error) && error <= allowed; };
  verdict.right = within(verdict.error.relative, verdict.allowed.relative) &&
                  within(verdict.error.absolute, verdict.allowed.absolute) &&
                  within(verdict.error.lse, verdict.allowed.lse);
  verdict.sentence =
      verdict.right
          ? fmt::format("right (sample of {} rows)", kSampledRows)
          : fmt::format(
                "wrong in a sample of {} rows, worst at {}: error {:.1e} of O (allowed {:.1e}), {:.1e} of O over V "
                "(allowed {:.1e}), {:.1e} of LSE (allowed {:.1e})",
                kSampledRows, worst_row, verdict.error.relative, verdict.allowed.relative, verdict.error.absolute,
                verdict.allowed.absolute, verdict.error.lse, verdict.allowed.lse);
  return verdict;
}

ForwardCase::ForwardCase(const Problem& p, std::uint64_t seed)
    : problem_(p), inputs_(attention::make_inputs(p, attention::InputKind::normal, seed)) {}

attention::Verdict ForwardCase::judge(std::span<const float> o, std::span<const float> lse) {
  if (!is_sampled(problem_)) {
    if (!yardstick_) yardstick_ = attention::make_forward_yardstick(problem_, inputs_.q, inputs_.k, inputs_.v);
    if (lse.empty()) return attention::judge_forward(problem_, inputs_.v, o, reference_lse(*yardstick_), *yardstick_);
    return attention::judge_forward(problem_, inputs_.v, o, lse, *yardstick_);
  }
  attention::Verdict verdict = judge_sample(problem_, inputs_, o, lse);
  if (const std::string sentence = find_unwritten(problem_, o, lse); verdict.right && !sentence.empty()) {
    verdict.right = false;
    verdict.sentence = sentence;
  }
  return verdict;
}

void admit(const ForwardKernel& kernel, const Problem& p) {
  kernel.require(p);
  const bool on_host = kernel.memory == Memory::host;
  const double workspace = static_cast<double>(kernel.workspace_bytes(p));
  const double guards = 4 * kGuardElements * sizeof(float);
  const double needed = array_bytes(p) + guards + workspace;
  const double available = on_host ? host_memory_available() : static_cast<double>(gpu::memory_available());
  if (needed > available) {
    throw Refused(
        fmt::format("{} needs {:.0f} bytes ({}; workspace {}) of {} memory; allowed: the {:.0f} bytes ({}) available",
                    kernel.name, needed, attention::format_bytes(needed), attention::format_bytes(workspace),
                    on_host ? "host" : "device", available, attention::format_bytes(available)));
  }
}

Row run_admitted(const ForwardKernel& kernel, ForwardCase& forward) {
  const Problem& p = forward.problem();
  const attention::Inputs& inputs = forward.inputs();
  const bool on_device = kernel.memory == Memory::device;
  Row row;
  row.kernel = label(kernel);
  row.summary = kernel.summary;
  row.is_peer = kernel.is_peer;
  row.on_host = !on_device;
  row.flops = attention::forward_flops(p);
  const std::size_t workspace_bytes = kernel.workspace_bytes(p);
  if (!kernel.is_peer) row.workspace_bytes = static_cast<double>(workspace_bytes);  // a peer's is its own business
  std::optional<attention::Traffic> traffic;
  if (kernel.traffic) {
    traffic = kernel.traffic(p);
    row.bytes_predicted = traffic->total();
  }

  try {
    const std::size_t held_before = gpu::memory_in_use();
    gpu::reset_memory_peak();
    PlacedInputs placed(kernel.memory, inputs);
    GuardedOutput o(kernel.memory, p.elements_o(), "O");
    GuardedOutput lse(kernel.memory, p.elements_lse(), "LSE");
    Workspace workspace(kernel.memory, workspace_bytes);
    auto args = attention::make_forward_args<float>(p, placed.q(), placed.k(), placed.v(), o.data(), lse.data());

    gpu::reset_counts();
    kernel.run(args, workspace.data());
    gpu::synchronize();
    const std::optional<gpu::Counts> counts = gpu::counts();
    if (kernel.fetch) kernel.fetch(args);
    if (on_device && !kernel.is_peer) row.peak_bytes = static_cast<double>(gpu::memory_peak() - held_before);

    std::string complaint;
    const std::vector<float> o_values = o.values(complaint);
    std::vector<float> lse_values = lse.values(complaint);
    if (!kernel.gives_lse) lse_values.clear();
    const attention::Verdict verdict = forward.judge(o_values, lse_values);
    row.error = verdict.error.relative;
    row.allowed = verdict.allowed.relative;
    if (!verdict.right)
      complaint += verdict.sentence.starts_with("wrong") ? verdict.sentence : "wrong: " + verdict.sentence;
    if (on_device && counts) {
      row.bytes_counted = static_cast<double>(counts->global_loaded) + static_cast<double>(counts->global_stored);
      if (traffic && complaint.empty()) complaint = compare_counts(*counts, *traffic);
    }
    row.right = complaint.empty();
    row.verdict = row.right ? verdict.sentence + (kernel.gives_lse ? "" : ", O alone") : complaint;
  } catch (const gpu::Error& error) {
    row.right = false;
    row.verdict = std::string("failed: ") + error.what();
  }
  return row;
}

}  // namespace stage
