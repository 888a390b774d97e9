#include "common/stage/command_line.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "common/attention/accuracy.hpp"
#include "common/attention/cost.hpp"
#include "common/stage/json.hpp"
#include "common/stage/memory.hpp"

namespace stage {
namespace {

using attention::ElementType;

/// What a block may have on an H200, the GPU that the emulator takes after.
constexpr std::size_t kMostSharedMemory = 232448;

/// Reads all of `text` as a number in [low, high]. std::from_chars takes no blanks, no "+", no "0x" and no octal, so
/// what passes means to the user what it means to us.
///
/// \param besides what else the option takes, for the sentence
template <class T>
T parse_whole(const std::string& option, const std::string& text, T low, T high, const char* besides = "") {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool digits =
      !text.empty() && text.find_first_not_of("0123456789", text[0] == '-') == std::string::npos && text != "-";
  if (!digits) {
    throw BadArgument(
        fmt::format("{} '{}' is not a whole number; allowed: {} to {}{}", option, text, low, high, besides));
  }
  if (error != std::errc{} || stop != end || value < low || value > high) {
    throw BadArgument(fmt::format("{} {} is out of range; allowed: {} to {}{}", option, text, low, high, besides));
  }
  return value;
}

float parse_scale(const std::string& text) {
  float value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || !std::isfinite(value)) {
    throw BadArgument(fmt::format("--scale '{}' is no fp32 number; allowed: a finite number such as 0.125", text));
  }
  return value;
}

int parse_window_side(const std::string& text) {
  if (text == "inf") return attention::kUnlimited;
  return parse_whole<int>("--window", text, 0, attention::kMaxSeqlen, ", or inf");
}

/// `--window L[,R]` and `--causal` together make one mask.
attention::Mask parse_mask(bool causal, const std::optional<std::string>& window) {
  attention::Mask mask = causal ? attention::Mask::causal() : attention::Mask::none();
  if (!window) return mask;
  const auto comma = window->find(',');
  mask.left = parse_window_side(window->substr(0, comma));
  if (comma == std::string::npos) return mask;
  mask.right = parse_window_side(window->substr(comma + 1));
  if (causal && mask.right != 0) {
    throw BadArgument(
        fmt::format("--window {} looks to the right, which --causal rules out; allowed: --window L or L,0", *window));
  }
  return mask;
}

gpu::Delivery parse_delivery(const std::string& text) {
  if (text == "on-wait") return gpu::Delivery::on_wait;
  if (text == "immediately") return gpu::Delivery::immediately;
  throw BadArgument(fmt::format("--delivery '{}' is unknown; allowed: on-wait, immediately", text));
}

/// What the chapter's kernels take, or its default where it has none.
std::vector<ElementType> element_types(const Chapter& chapter) {
  std::vector<ElementType> types;
  for (const ElementType type : {ElementType::fp32, ElementType::fp16, ElementType::bf16}) {
    const auto takes = [type](const auto& kernel) { return kernel.run.takes(type); };
    if (std::any_of(chapter.forward.begin(), chapter.forward.end(), takes) ||
        std::any_of(chapter.backward.begin(), chapter.backward.end(), takes)) {
      types.push_back(type);
    }
  }
  return types.empty() ? std::vector{chapter.gpu_problem.element_type} : types;
}

std::vector<std::string> names(const std::vector<ElementType>& types) {
  std::vector<std::string> names;
  for (const ElementType type : types) names.push_back(attention::name(type));
  return names;
}

ElementType parse_element_type(const std::string& text, const std::vector<ElementType>& allowed) {
  for (const ElementType type : allowed) {
    if (attention::name(type) == text) return type;
  }
  throw BadArgument(fmt::format("--dtype '{}' is not taken by this chapter; allowed: {}", text, join(names(allowed))));
}

std::vector<std::string> kernel_names(const Chapter& chapter) {
  std::vector<std::string> names;
  for (const ForwardKernel& kernel : chapter.forward) names.push_back(kernel.name);
  for (const BackwardKernel& kernel : chapter.backward) names.push_back(kernel.name);
  return names;
}

}  // namespace

std::string join(const std::vector<std::string>& words) {
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ", "));
}

CommandLine parse_command_line(int argc, const char* const* argv, const Chapter& chapter) {
  CLI::App app(fmt::format("Chapter {}, {}: {}", chapter.number, chapter.name, chapter.idea), chapter.name);
  app.set_help_flag("--help", "Print this and exit");
  app.allow_extras();  // so that what is unknown is refused below, with the list of what is known
  app.get_formatter()->column_width(28);

  // Everything is read as text: the library's own conversions take "0x10" and "010" and word their refusals otherwise.
  std::vector<std::string> known = {"--help"};
  const auto option = [&](const char* name, std::optional<std::string>& text, const char* value, const char* meaning) {
    known.push_back(name);
    return app.add_option(name, text, meaning)->type_name(value);
  };

  std::optional<std::string> batch, heads_q, heads_kv, seqlen_q, seqlen_kv, head_dim, window, scale, dtype;
  bool causal = false;
  std::vector<CLI::Option*> of_problem;
  of_problem.push_back(option("--batch", batch, "N", "Sequences in the batch"));
  of_problem.push_back(option("--heads-q", heads_q, "N", "Query heads, a multiple of --heads-kv"));
  of_problem.push_back(option("--heads-kv", heads_kv, "N", "Key and value heads"));
  of_problem.push_back(option("--seqlen-q", seqlen_q, "N", "Queries a sequence"));
  of_problem.push_back(option("--seqlen-kv", seqlen_kv, "N", "Keys a sequence"));
  of_problem.push_back(option("--head-dim", head_dim, "N", "Elements of a head"));
  known.push_back("--causal");
  of_problem.push_back(app.add_flag("--causal", causal, "Query i sees keys j <= i + seqlen_kv - seqlen_q"));
  of_problem.push_back(option("--window", window, "L[,R]",
                              "Keys seen left and right of the diagonal; inf: no limit. Without R: no limit, or 0 with "
                              "--causal"));
  of_problem.push_back(option("--scale", scale, "X", "Factor of the scores; default 1/sqrt(head_dim)"));
  const std::vector<ElementType> types = element_types(chapter);
  const std::string type_meaning = fmt::format("Element type: {}", join(names(types)));
  of_problem.push_back(option("--dtype", dtype, "TYPE", type_meaning.c_str()));
  if (!chapter.takes_problem) {
    for (CLI::Option* each : of_problem) each->group("");
    known = {"--help"};
  }

  CommandLine line;
  std::optional<std::string> kernel, seed, json, schedule_seed, delivery, workers, shared_memory_limit;
  std::vector<std::string> without;
  option("--kernel", kernel, "NAME", "Only this kernel");
  option("--seed", seed, "N", "Seed of the inputs");
  known.push_back("--bench");
  app.add_flag("--bench", line.bench, "Time the kernels (on a GPU)");
  known.push_back("--count");
  app.add_flag("--count", line.count,
               "Run each kernel once, on the emulator's default problem, and count by kernel what it does in memory");
  option("--json", json, "FILE", "Write the results to FILE; -: to standard output, instead of the tables");
  option("--schedule-seed", schedule_seed, "N", "Emulator: shuffle the order of threads and blocks; 0: do not");
  option("--delivery", delivery, "WHEN", "Emulator: asynchronous copies land on-wait or immediately");
  known.push_back("--without");
  app.add_option("--without", without, "Emulator: skip the synchronisation at this line; repeatable")
      ->type_name("FILE:LINE")
      ->allow_extra_args(false);
  option("--workers", workers, "N", "Emulator: operating-system threads; 0: one a core");
  option("--shared-memory-limit", shared_memory_limit, "BYTES",
         "Emulator: shared memory that a block may have. 49152 without opting in, 101376 on sm_86, sm_89 and sm_120, "
         "166912 on sm_80, 232448 on sm_90 (the default)");
  app.footer(chapter.takes_problem
                 ? fmt::format("Kernels: {}\nDefault on a GPU:        {}\nDefault on the emulator: {}",
                               join(kernel_names(chapter)), chapter.gpu_problem.describe(),
                               chapter.emulator_problem.describe())
                 : "");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    line.help = true;
    line.help_text = app.help();
    return line;
  } catch (const CLI::ArgumentMismatch& mismatch) {
    const std::string text = mismatch.what();
    throw BadArgument(fmt::format("{} takes one value, once; allowed: as --help says", text.substr(0, text.find(':'))));
  } catch (const CLI::ConversionError& error) {
    // A flag that was given a value: the others are read here, and not by the parser.
    const std::string text = error.what(), option = text.substr(std::min(text.size(), text.find("--")));
    throw BadArgument(
        fmt::format("{} is a flag; allowed: it alone, without a value", option.substr(0, option.find(' '))));
  } catch (const CLI::ParseError& error) {
    throw BadArgument(fmt::format("{}; allowed: as --help says", error.what()));
  }
  if (const auto extras = app.remaining(); !extras.empty()) {
    throw BadArgument(fmt::format("unknown argument '{}'; allowed: {}", extras.front(), join(known)));
  }
  if (!chapter.takes_problem) {
    for (const CLI::Option* each : of_problem) {
      if (each->count() > 0) {
        throw BadArgument(
            fmt::format("{} means nothing here, because this chapter solves no attention problem; allowed: {}",
                        "--" + each->get_lnames().front(), join(known)));
      }
    }
  }

  const auto size = [](const char* name, const std::optional<std::string>& text, int low) {
    return text ? std::optional(parse_whole<int>(name, *text, low, attention::kMaxSeqlen)) : std::nullopt;
  };
  line.batch = size("--batch", batch, 1);
  line.heads_q = size("--heads-q", heads_q, 1);
  line.heads_kv = size("--heads-kv", heads_kv, 1);
  line.seqlen_q = size("--seqlen-q", seqlen_q, 0);
  line.seqlen_kv = size("--seqlen-kv", seqlen_kv, 0);
  line.head_dim = size("--head-dim", head_dim, 1);
  if (causal || window) line.mask = parse_mask(causal, window);
  if (scale) line.softmax_scale = parse_scale(*scale);
  if (dtype) line.element_type = parse_element_type(*dtype, types);
  if (kernel) {
    const auto names = kernel_names(chapter);
    if (std::find(names.begin(), names.end(), *kernel) == names.end()) {
      throw BadArgument(fmt::format("--kernel '{}' is unknown; allowed: {}", *kernel, join(names)));
    }
    line.kernel = *kernel;
  }
  constexpr std::uint64_t kMaxSeed = ~std::uint64_t{0};
  if (seed) line.seed = parse_whole<std::uint64_t>("--seed", *seed, 0, kMaxSeed);
  if (json) {
    if (json->empty()) throw BadArgument("--json has an empty file name; allowed: a file, or - for standard output");
    line.json = *json;
  }

  if (line.bench && line.count) {
    throw BadArgument("--count with --bench: what counts is not timed; allowed: one of the two");
  }

  line.emulator.count_requests = line.count;
  line.changes_emulator = schedule_seed || delivery || workers || shared_memory_limit || !without.empty();
  if (schedule_seed) {
    line.emulator.schedule_seed = parse_whole<std::uint64_t>("--schedule-seed", *schedule_seed, 0, kMaxSeed);
  }
  if (delivery) line.emulator.delivery = parse_delivery(*delivery);
  if (workers) line.emulator.workers = parse_whole<int>("--workers", *workers, 0, 1024);
  if (shared_memory_limit) {
    line.emulator.shared_memory_limit =
        parse_whole<std::size_t>("--shared-memory-limit", *shared_memory_limit, 1, kMostSharedMemory);
  }
  for (const std::string& text : without) {
    try {
      line.emulator.without.push_back(gpu::SourceLine::parse(text));
    } catch (const gpu::Error& error) {
      throw BadArgument(fmt::format("--without {}", error.what()));
    }
  }
  return line;
}

Options resolve(const CommandLine& line, const Chapter& chapter, const gpu::DeviceInfo& device) {
  if (line.bench && device.emulated) {
    throw BadArgument("--bench times nothing on the emulator; allowed: --bench on a GPU");
  }
  if (line.changes_emulator && !device.emulated) {
    throw BadArgument(fmt::format(
        "--schedule-seed, --delivery, --without, --workers and --shared-memory-limit steer the emulator, and this is "
        "{}; allowed: on the emulator",
        device.name));
  }

  // What is counted is compared between the two machines.
  const bool small = device.emulated || line.count;
  Options options{.problem = small ? chapter.emulator_problem : chapter.gpu_problem,
                  .kernel = line.kernel,
                  .seed = line.seed,
                  .bench = line.bench,
                  .count = line.count,
                  .json = line.json};
  if (chapter.takes_problem) {
    attention::Problem& p = options.problem;
    p.batch = line.batch.value_or(p.batch);
    p.heads_q = line.heads_q.value_or(p.heads_q);
    p.heads_kv = line.heads_kv.value_or(p.heads_kv);
    if (line.heads_q && !line.heads_kv && p.heads_q % p.heads_kv != 0) p.heads_kv = p.heads_q;
    p.seqlen_q = line.seqlen_q.value_or(p.seqlen_q);
    p.seqlen_kv = line.seqlen_kv.value_or(p.seqlen_kv);
    p.head_dim = line.head_dim.value_or(p.head_dim);
    p.mask = line.mask.value_or(p.mask);
    if (line.softmax_scale) p.softmax_scale = line.softmax_scale;
    p.element_type = line.element_type.value_or(p.element_type);
    if (p.heads_q % p.heads_kv != 0) {
      throw BadArgument(
          fmt::format("heads_q {} is not a multiple of heads_kv {}; allowed: --heads-q a multiple of --heads-kv",
                      p.heads_q, p.heads_kv));
    }
    try {
      p.validate();
    } catch (const std::invalid_argument& error) {
      throw BadArgument(error.what());
    }
    // The inputs are normal numbers, of which none reaches 10: no score is larger than 100 · head_dim · scale.
    const double largest_scale = std::numeric_limits<float>::max() / (100.0 * p.head_dim);
    if (std::abs(p.scale()) > largest_scale) {
      throw BadArgument(
          fmt::format("with --scale {:g} scores of head_dim {} can leave the range of fp32; allowed: -{:.1e} to {:.1e}",
                      p.scale(), p.head_dim, largest_scale, largest_scale));
    }
    // Theirs are hardly ever larger than 2 · head_dim · scale; exp(S − LSE) is off by that times fp32's rounding, and
    // gradients that may be off by more than kLargestAllowedError are not judged.
    const double scale_judged = attention::kLargestAllowedError / 2 / (0x1p-22 * 2 * p.head_dim);
    if (!chapter.backward.empty() && std::abs(p.scale()) > scale_judged) {
      throw BadArgument(fmt::format(
          "with --scale {:g} fp32 leaves exp(S - LSE) no digits to judge gradients by at head_dim {}; allowed: "
          "-{:.0f} to {:.0f}",
          p.scale(), p.head_dim, scale_judged, scale_judged));
    }
    const double needed = host_bytes(p, device.emulated, chapter.backward.empty() ? Pass::forward : Pass::backward);
    const double available = host_memory_available();
    if (needed > available) {
      throw BadArgument(fmt::format("{} needs {} of host memory; allowed: what fits in the {} available", p.describe(),
                                    attention::format_bytes(needed), attention::format_bytes(available)));
    }
  }
  if (!options.json.empty() && options.json != "-") check_writable(options.json);
  return options;
}

bool is_line(const gpu::SourceLine& wanted, const gpu::SourceLine& seen) {
  if (wanted.line != seen.line || !seen.file.ends_with(wanted.file)) return false;
  const std::size_t rest = seen.file.size() - wanted.file.size();
  return rest == 0 || wanted.file.front() == '/' || seen.file[rest - 1] == '/';
}

}  // namespace stage
