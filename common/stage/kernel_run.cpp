#include "common/stage/kernel_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "common/gpu/buffer.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/memory.hpp"
#include "common/stage/timing.hpp"

namespace stage {
namespace {

using attention::Problem;
using attention::Traffic;

constexpr std::size_t kGuardBytes = 256;  // on either side, so that the array keeps its alignment
constexpr std::byte kPoison{0xFF};

/// Bytes in the memory that a kernel works in. They arrive poisoned.
class Block {
 public:
  Block(Memory memory, std::size_t size, const char* label) : on_host_(memory == Memory::host) {
    if (on_host_) {
      host_.assign(size, kPoison);
    } else {
      device_ = gpu::DeviceBuffer<std::byte>(size, label);
    }
  }
  std::byte* data() { return on_host_ ? host_.data() : device_.data(); }
  void poison() {
    std::fill(host_.begin(), host_.end(), kPoison);
    device_.poison();
  }
  /// Bytes that are certain to hold poison. (In the checking build they do; there it may know that nobody wrote them.)
  void write_poison(std::size_t begin, std::size_t size) {
    if (on_host_ || gpu::device().checked) return;
    const Bytes poison(size, kPoison);
    gpu::copy_to_device(device_.data() + begin, poison.data(), size);
  }
  /// A part of them, copied.
  Bytes values(std::size_t begin, std::size_t size) const {
    Bytes values(size);
    if (on_host_) {
      std::copy_n(host_.begin() + static_cast<std::ptrdiff_t>(begin), size, values.begin());
    } else {
      gpu::copy_to_host(values.data(), device_.data() + begin, size);
    }
    return values;
  }

 private:
  bool on_host_;
  Bytes host_;
  gpu::DeviceBuffer<std::byte> device_;
};

/// An output between two guards.
class GuardedOutput {
 public:
  GuardedOutput(Memory memory, const OutputArray& array)
      : array_(array), block_(memory, array.bytes + 2 * kGuardBytes, array.name) {
    set_guards();
  }

  const char* name() const { return array_.name; }
  std::byte* data() { return block_.data() + kGuardBytes; }
  void poison() {
    block_.poison();
    set_guards();
  }

  /// The array without its guards. Appends a sentence to `complaint` if a guard was written.
  Bytes values(std::string& complaint) const {
    const auto touched = [&](std::size_t guard) {
      const Bytes bytes = block_.values(guard, kGuardBytes);
      return std::any_of(bytes.begin(), bytes.end(), [](std::byte x) { return x != kPoison; });
    };
    const std::size_t end = kGuardBytes + array_.bytes;
    if (touched(0)) complaint += fmt::format("wrong: wrote before the first element of {}. ", array_.name);
    if (touched(end)) complaint += fmt::format("wrong: wrote past the last element of {}. ", array_.name);
    return block_.values(kGuardBytes, array_.bytes);
  }

 private:
  /// Poison is not always written (tests/sanitize); guards have to be.
  void set_guards() {
    block_.write_poison(0, kGuardBytes);
    block_.write_poison(kGuardBytes + array_.bytes, kGuardBytes);
  }

  OutputArray array_;
  Block block_;
};

/// A kernel with all that it works on.
class Setup {
 public:
  Setup(const AnyKernel& kernel, const Case& of_pass) : kernel_(kernel), problem_(of_pass.problem()) {
    const bool on_host = kernel.memory == Memory::host;
    for (const InputArray& input : of_pass.inputs_in_order()) {
      if (!on_host) inputs_.emplace_back(input.bytes, input.name);
      pointers_.inputs.push_back(on_host ? input.bytes.data() : inputs_.back().data());
    }
    for (const OutputArray& output : of_pass.outputs_in_order()) {
      outputs_.emplace_back(kernel.memory, output);
      pointers_.outputs.push_back(outputs_.back().data());
    }
    workspace_.emplace(kernel.memory, kernel.workspace_bytes(problem_), "workspace");
  }

  void prepare() { call(kernel_.prepare); }
  void run() { call(kernel_.run); }
  void fetch() { call(kernel_.fetch); }

  void poison() {
    for (GuardedOutput& output : outputs_) output.poison();
    workspace_->poison();
  }

  /// Appends to `complaint` what was written beside the arrays.
  std::vector<Bytes> values(std::string& complaint) const {
    std::vector<Bytes> values;
    for (const GuardedOutput& output : outputs_) values.push_back(output.values(complaint));
    return values;
  }

  /// The first difference of two runs, as a complaint; empty if they are equal.
  std::string compare_runs(const std::vector<Bytes>& first, const std::vector<Bytes>& second) const {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (first[i].empty() || std::memcmp(first[i].data(), second[i].data(), first[i].size()) == 0) continue;
      const auto [at, other] = std::mismatch(first[i].begin(), first[i].end(), second[i].begin());
      return fmt::format("wrong: not deterministic: two runs differ in {}, first in byte {} of {}", outputs_[i].name(),
                         at - first[i].begin(), first[i].size());
    }
    return {};
  }

 private:
  void call(const AnyKernel::Call& function) {
    if (!function) return;
    function(problem_, pointers_, workspace_->data());
    gpu::synchronize();
  }

  const AnyKernel& kernel_;
  const Problem& problem_;
  std::vector<gpu::DeviceBuffer<std::byte>> inputs_;
  std::vector<GuardedOutput> outputs_;
  std::optional<Block> workspace_;
  Pointers pointers_;
};

Traffic counted_traffic(const gpu::Counts& before, const gpu::Counts& after) {
  return {static_cast<double>(after.global_loaded - before.global_loaded),
          static_cast<double>(after.global_stored - before.global_stored)};
}

/// Compares the checking build's counts with the kernel's own model. An empty sentence if they are equal.
std::string compare_counts(const Traffic& counted, const Traffic& predicted) {
  if (counted.loaded == predicted.loaded && counted.stored == predicted.stored) return {};
  return fmt::format("miscounted: {:.0f} bytes loaded and {:.0f} stored were counted, {:.0f} and {:.0f} predicted",
                     counted.loaded, counted.stored, predicted.loaded, predicted.stored);
}

}  // namespace

void admit(const AnyKernel& kernel, const Problem& p) {
  kernel.require(p);
  const bool on_host = kernel.memory == Memory::host;
  const double workspace = static_cast<double>(kernel.workspace_bytes(p));
  const double guards = 2.0 * kGuardBytes * outputs_of(kernel.pass);
  const double needed = array_bytes(p, kernel.pass) + guards + workspace;
  const double available = on_host ? host_memory_available() : static_cast<double>(gpu::memory_available());
  if (needed > available) {
    throw Refused(
        fmt::format("{} needs {:.0f} bytes ({}; workspace {}) of {} memory; allowed: the {:.0f} bytes ({}) available",
                    kernel.name, needed, attention::format_bytes(needed), attention::format_bytes(workspace),
                    on_host ? "host" : "device", available, attention::format_bytes(available)));
  }
}

Row row_of(const AnyKernel& kernel) {
  Row row;
  row.kernel = label(kernel);
  row.summary = kernel.summary;
  row.pass = kernel.pass;
  row.is_peer = kernel.is_peer;
  row.on_host = kernel.memory == Memory::host;
  return row;
}

Row run_admitted(const AnyKernel& kernel, Case& of_pass, Counting counting) {
  if (kernel.pass != of_pass.pass()) {
    throw std::invalid_argument(kernel.name + " was given a case of the other pass; allowed: one of its own");
  }
  const Problem& p = of_pass.problem();
  Row row = row_of(kernel);
  row.element_type = p.element_type;
  row.flops = credited_flops(p, kernel.pass);
  // A peer's workspace is its own business.
  if (!kernel.is_peer) row.workspace_bytes = static_cast<double>(kernel.workspace_bytes(p));
  std::optional<Traffic> traffic;
  if (kernel.traffic) {
    traffic = kernel.traffic(p);
    row.bytes_predicted = traffic->total();
  }

  try {
    const std::size_t held_before = gpu::memory_in_use();
    gpu::reset_memory_peak();
    Setup setup(kernel, of_pass);

    // The run to compare with comes first, so that the counts afterwards are those of one run.
    const bool twice = kernel.promises_equal_bits && counting == Counting::run;
    std::vector<Bytes> other_run;
    if (twice) {
      setup.prepare();
      setup.run();
      std::string unread;  // the second run's is enough
      other_run = setup.values(unread);
      setup.poison();
    }

    gpu::reset_counts();
    setup.prepare();
    if (counting == Counting::run) gpu::reset_counts();
    const std::optional<gpu::Counts> before = gpu::counts();
    setup.run();
    const std::optional<gpu::Counts> after = gpu::counts();
    setup.fetch();
    if (!row.on_host && !kernel.is_peer) row.peak_bytes = static_cast<double>(gpu::memory_peak() - held_before);

    std::string complaint;
    std::vector<Bytes> outputs = setup.values(complaint);
    if (twice) complaint += setup.compare_runs(other_run, outputs);
    for (std::size_t i = kernel.outputs_given; i < outputs.size(); ++i) outputs[i].clear();
    const Judgement judgement = of_pass.judge_outputs(outputs);
    row.error = judgement.error;
    row.allowed = judgement.allowed;
    if (!judgement.right) {
      complaint += judgement.sentence.starts_with("wrong") ? judgement.sentence : "wrong: " + judgement.sentence;
    }
    if (!row.on_host && before && after) {
      const Traffic counted = counted_traffic(*before, *after);
      row.bytes_counted = counted.total();
      if (traffic && complaint.empty()) complaint = compare_counts(counted, *traffic);
    }
    row.right = complaint.empty();
    row.verdict = row.right ? judgement.sentence : complaint;
  } catch (const gpu::Error& error) {
    row.right = false;
    row.verdict = std::string("failed: ") + error.what();
  }
  return row;
}

}  // namespace stage
