#pragma once
/// \file
/// How a chapter hands its kernels to the programs and tests: a name, what it takes, what it moves, how to run it.

#include <cstddef>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/attention/cost.hpp"
#include "common/attention/problem.hpp"
#include "common/stage/launch_by_type.hpp"

namespace stage {

/// A problem that a kernel does not take. The message names the kernel, the reason and what is allowed.
struct Refused : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// Where a kernel's pointers point.
enum class Memory { host, device };

/// Which way attention goes.
enum class Pass { forward, backward };

/// An attention forward: Q, K, V → O, LSE.
struct ForwardKernel {
  std::string name;     ///< for `--kernel`, e.g. "three_kernels"
  std::string summary;  ///< a sentence for the table's legend
  Memory memory = Memory::device;

  /// \throws Refused if the kernel does not take this problem, whose element type it takes. Called before anything is
  /// allocated or launched.
  std::function<void(const attention::Problem&)> require = [](const attention::Problem&) {};

  /// Scratch the kernel needs, bytes. It arrives poisoned (every byte 0xFF).
  std::function<std::size_t(const attention::Problem&)> workspace_bytes = [](const attention::Problem&) {
    return std::size_t{0};
  };

  /// What its threads load and store in global memory, exactly; the emulator's counts must equal it.
  std::function<attention::Traffic(const attention::Problem&)> traffic;

  /// Launches it. Does not wait.
  LaunchByType<attention::ForwardArgs> run;

  bool is_peer = false;   ///< of another library (peers.hpp): measured beside the chapter's kernels, not one of them
  bool gives_lse = true;  ///< only a peer may give O alone
  /// Brings the results of the last run to O and LSE. Only peers need it, which return arrays of their own; it is not
  /// part of what is timed.
  LaunchByType<attention::ForwardArgs> fetch = {};
};

/// An attention backward: Q, K, V, O, LSE, dO (and dLSE, where it is given) → dQ, dK, dV.
struct BackwardKernel {
  std::string name;     ///< for `--kernel`, e.g. "q_outer"
  std::string summary;  ///< a sentence for the table's legend
  Memory memory = Memory::device;

  /// \throws Refused if the kernel does not take this problem, whose element type it takes. Called before anything is
  /// allocated or launched.
  std::function<void(const attention::Problem&)> require = [](const attention::Problem&) {};

  /// Scratch the kernel needs, bytes. It arrives poisoned (every byte 0xFF).
  std::function<std::size_t(const attention::Problem&)> workspace_bytes = [](const attention::Problem&) {
    return std::size_t{0};
  };

  /// What the threads of `run` load and store in global memory, exactly; the emulator's counts must equal it.
  std::function<attention::Traffic(const attention::Problem&)> traffic;

  /// What a forward would have left in the workspace (a stored P). Runs once before `run`; neither timed nor counted.
  LaunchByType<attention::BackwardArgs> prepare = {};

  /// Launches it. Does not wait.
  LaunchByType<attention::BackwardArgs> run;

  bool deterministic = true;  ///< false: sums by atomics, so that the last bits of a result may differ between runs
  bool is_peer = false;       ///< of another library (peers.hpp)
};

/// \throws Refused if the kernel does not take this problem: its element type, or what `require` looks at.
void require_taken(const ForwardKernel& kernel, const attention::Problem& p);
void require_taken(const BackwardKernel& kernel, const attention::Problem& p);

/// \throws Refused unless the problem's head_dim is one of those.
void require_head_dim(const std::string& kernel, const attention::Problem& p, const std::vector<int>& allowed);

/// The same for 32, 64, 128: what the fp32 chapters are compiled for.
void require_head_dim_32_64_128(const std::string& kernel, const attention::Problem& p);

/// \throws Refused unless a block may have so many bytes of shared memory on this device, with both figures.
void require_shared_memory(const std::string& kernel, std::size_t bytes);

/// What kernels need that move 16 bytes at once. \throws Refused unless all rows of Q, K, V and O start at multiples of
/// 16 bytes from the first one: strides that are multiples of 4 elements in fp32, of 8 in 16 bits.
void require_16_byte_rows(const std::string& kernel, const attention::Problem& p);

/// The same for a backward: Q, K, V, O, dO and the gradients.
void require_16_byte_gradients(const std::string& kernel, const attention::Problem& p);

/// One kernel out of several that take one head_dim each: `kernels[d]` gets the problems of head_dim d, and others are
/// refused. Name, summary, memory and element types are those of the first.
ForwardKernel by_head_dim(const std::map<int, ForwardKernel>& kernels);
/// The same, and all of them promise what the first does: `deterministic`, and whether there is a `prepare`.
BackwardKernel by_head_dim(const std::map<int, BackwardKernel>& kernels);

}  // namespace stage
