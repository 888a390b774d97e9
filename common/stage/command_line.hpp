#pragma once
/// \file
/// The command line of a chapter's program: read and checked before anything runs.

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/attention/problem.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/program.hpp"

namespace stage {

/// An argument that is not allowed. The message says what is wrong and what is allowed.
struct BadArgument : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// What the user wrote; absent where the chapter's default holds.
struct CommandLine {
  bool help = false;
  std::string help_text;

  std::optional<int> batch, heads_q, heads_kv, seqlen_q, seqlen_kv, head_dim;
  std::optional<attention::Mask> mask;
  std::optional<float> softmax_scale;
  std::optional<attention::ElementType> element_type;

  std::string kernel;
  std::uint64_t seed = 1;
  bool bench = false, count = false;
  std::string json;

  bool changes_emulator = false;  ///< any of the emulator's options was given
  gpu::EmulatorOptions emulator;
};

/// Reads the arguments. Needs no device, so that `--help` and a misspelt option are answered on any machine.
/// \throws BadArgument
CommandLine parse_command_line(int argc, const char* const* argv, const Chapter& chapter);

/// Fills in the chapter's defaults for this machine and checks the whole.
/// \throws BadArgument for a problem that is not allowed or does not fit in the host's memory, `--bench` on the
/// emulator, an emulator's option on a GPU, and a `--json` path that cannot be written.
Options resolve(const CommandLine& line, const Chapter& chapter, const gpu::DeviceInfo& device);

/// True if `seen` is the line that the user called `wanted`: the same number, and a file that ends with the same path
/// components.
bool is_line(const gpu::SourceLine& wanted, const gpu::SourceLine& seen);

/// "a, b, c"; "none" if empty.
std::string join(const std::vector<std::string>& words);

}  // namespace stage
