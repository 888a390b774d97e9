#include "common/stage/counts_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "common/stage/command_line.hpp"
#include "common/stage/ncu_csv.hpp"

namespace stage {
namespace {

using Json = nlohmann::ordered_json;
using attention::ElementType;
namespace fs = std::filesystem;

constexpr int kFormat = 1;  // of the counts' files; raised when a reader of the old form would misread the new one

constexpr const char* kCountsFile = "-counts.json";
constexpr const char* kEmulatorFiles = "files that chapters wrote with --count --json on the checking emulator";
constexpr const char* kGpuFiles = "files that chapters wrote with --count --json on one GPU";
constexpr const char* kWrittenFiles = "files that ./learn count wrote";

constexpr const char* kUsage =
    "counts metrics\n"
    "  Prints the metrics that ncu is to measure, with commas between them.\n"
    "\n"
    "counts emulator FILE [--check] JSON...\n"
    "  Collects in FILE what chapters wrote with --count --json on the checking emulator. --check: writes nothing,\n"
    "  and ends with 1 if FILE holds something else.\n"
    "\n"
    "counts gpu FOLDER --date DATE --commit COMMIT --hashes FILE JSON CSV [JSON CSV...]\n"
    "  Collects in FOLDER/<gpu>-counts.json what ncu counted of these programs on a GPU.\n";

// Instructions stand for the requests of shared memory: one of a warp is one request.
constexpr std::array<CountedQuantity, 10> kQuantities = {{
    {"global_loads", "requests", "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"},
    {"global_loads", "sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"},
    {"global_stores", "requests", "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"},
    {"global_stores", "sectors", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"},
    {"shared_loads", "requests", "smsp__inst_executed_op_shared_ld.sum"},
    {"shared_loads", "wavefronts", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"},
    {"shared_loads", "conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"},
    {"shared_stores", "requests", "smsp__inst_executed_op_shared_st.sum"},
    {"shared_stores", "wavefronts", "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"},
    {"shared_stores", "conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"},
}};

[[noreturn]] void refuse(const std::string& path, const std::string& what, const char* allowed) {
  throw BadArgument(fmt::format("'{}' {}; allowed: {}", path, what, allowed));
}

/// Runs `read`, and turns what a malformed file makes it throw into a sentence with the file's name.
template <class Read>
auto reading(const std::string& path, const char* allowed, const Read& read) {
  try {
    return read();
  } catch (const BadArgument&) {
    throw;
  } catch (const std::exception& malformed) {
    refuse(path, fmt::format("holds no counts ({})", one_line(malformed.what())), allowed);
  }
}

std::string problem_text(const Json& object) {
  const Json& problem = object.at("problem");
  return problem.is_null() ? "" : problem.at("text").get<std::string>();
}

CountedKernel read_kernel(const Json& object) {
  CountedKernel kernel;
  kernel.kernel = normal_kernel_name(object.at("kernel").get<std::string>());
  kernel.launches = object.at("launches").get<std::uint64_t>();
  for (const CountedQuantity& quantity : kQuantities) {
    const Json& value = object.at(quantity.accesses).at(quantity.name);
    if (!value.is_null()) kernel.accesses[quantity.accesses][quantity.name] = value.get<double>();
  }
  return kernel;
}

std::vector<CountedKernel> read_kernels(const Json& list) {
  if (!list.is_array()) throw std::runtime_error("its kernels are no list");
  std::vector<CountedKernel> kernels;
  for (const Json& kernel : list) kernels.push_back(read_kernel(kernel));
  return kernels;
}

/// Files sort as the book does: by folder, then by element type.
using Key = std::pair<std::string, ElementType>;

Key key_of(const Json& object) {
  const Json& problem = object.at("problem");
  return {folder_of(object.at("chapter")), problem.is_null() ? ElementType::fp32 : read_element_type(problem)};
}

Json chapter_object(const Json& object, const Json& kernels) {
  Json chapter = {{"chapter", object.at("chapter")}, {"problem", problem_text(object)}};
  if (const ElementType type = key_of(object).second; type != ElementType::fp32)
    chapter["dtype"] = attention::name(type);
  chapter["kernels"] = kernels;
  return chapter;
}

/// A launch's count of a quantity; nothing if one of its counters is missing.
std::optional<double> added_up(const NcuLaunch& launch, const CountedQuantity& quantity) {
  double sum = 0;
  for (const std::string& metric : metrics_of(quantity)) {
    const auto value = launch.value(metric);
    if (!value) return std::nullopt;
    sum += *value;
  }
  return sum;
}

/// The counters of all launches of each kernel, added up.
Json add_up(const std::vector<NcuLaunch>& launches) {
  Json kernels = Json::array();
  for (const NcuLaunch& launch : launches) {
    const std::string name = normal_kernel_name(launch.kernel);
    const auto known =
        std::find_if(kernels.begin(), kernels.end(), [&](const Json& kernel) { return kernel["kernel"] == name; });
    const bool first = known == kernels.end();
    if (first) kernels.push_back({{"kernel", name}, {"launches", 0}});
    Json& kernel = first ? kernels.back() : *known;
    kernel["launches"] = kernel["launches"].get<std::uint64_t>() + 1;
    for (const CountedQuantity& quantity : kQuantities) {
      Json& sum = kernel[quantity.accesses][quantity.name];
      const auto value = added_up(launch, quantity);
      // Without the counter in one launch, there is no sum.
      if (!value || (!first && sum.is_null())) {
        sum = nullptr;
      } else {
        sum = (first ? 0 : sum.get<std::uint64_t>()) + static_cast<std::uint64_t>(*value);
      }
    }
  }
  return kernels;
}

std::string read_text(const std::string& path, const char* allowed) {
  std::error_code error;
  std::ifstream file(path, std::ios::binary);
  if (!file || fs::is_directory(path, error)) refuse(path, "cannot be read", allowed);
  return {std::istreambuf_iterator<char>(file), {}};
}

int write_emulator_counts(std::vector<std::string> words) {
  const bool check = std::erase(words, "--check") > 0;
  if (words.size() < 2) throw BadArgument("a file to write and a file to read are needed; allowed: as --help says");
  const std::string& path = words.front();
  const std::string text = collect_emulator_counts({words.begin() + 1, words.end()});
  std::error_code error;
  const bool same = fs::is_regular_file(path, error) && read_text(path, kWrittenFiles) == text;
  if (check && !same) {
    fmt::print(stderr, "counts: {} does not hold what the emulator counts now; ./learn count writes it\n", path);
    return 1;
  }
  if (!same) write_atomically(path, text);
  fmt::print("{}\n", same ? path + " holds what the emulator counts." : "Wrote " + path + ".");
  return 0;
}

int write_gpu_counts(const std::vector<std::string>& words) {
  std::map<std::string, std::string> values = {{"--date", ""}, {"--commit", ""}, {"--hashes", ""}};
  std::vector<std::string> files;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto option = values.find(words[i]);
    if (option == values.end()) {
      files.push_back(words[i]);
    } else if (++i < words.size()) {
      option->second = words[i];
    }
  }
  for (const auto& [option, value] : values) {
    if (value.empty()) throw BadArgument(fmt::format("{} is missing; allowed: as --help says", option));
  }
  if (files.size() < 3 || files.size() % 2 == 0) {
    throw BadArgument("a folder and pairs of JSON and CSV are needed; allowed: as --help says");
  }
  const fs::path folder = files.front();
  if (!fs::is_directory(folder)) refuse(folder.string(), "is no folder", "a folder for the counts");
  std::vector<GpuCountFiles> pairs;
  for (std::size_t i = 1; i < files.size(); i += 2) pairs.push_back({files[i], files[i + 1]});

  const std::string& hashes = values["--hashes"];
  std::string name;
  const std::string text =
      collect_gpu_counts(pairs, values["--date"], values["--commit"],
                         parse_hashes(read_text(hashes, "what sha256sum prints of kernel files"), hashes), name);
  write_atomically((folder / name).string(), text);
  fmt::print("Wrote {}.\n", (folder / name).string());
  return 0;
}

}  // namespace

std::span<const CountedQuantity> counted_quantities() { return kQuantities; }

std::vector<std::string> metrics_of(const CountedQuantity& quantity) {
  std::vector<std::string> names = {quantity.metric};
  if (std::string_view(quantity.accesses).starts_with("global")) {
    for (const char* operation : {"red", "atom"}) {
      names.push_back(fmt::format("l1tex__t_{}_pipe_lsu_mem_global_op_{}.sum", quantity.name, operation));
    }
  }
  return names;
}

std::optional<double> CountedKernel::value(const CountedQuantity& quantity) const {
  const auto of = accesses.find(quantity.accesses);
  if (of == accesses.end()) return std::nullopt;
  const auto found = of->second.find(quantity.name);
  return found == of->second.end() ? std::nullopt : std::optional(found->second);
}

bool is_counts_file(const std::string& path) { return path.ends_with(kCountsFile); }

MachineCounts read_counts(const std::string& path) {
  const Json object = read_json(path, kWrittenFiles);
  return reading(path, kWrittenFiles, [&] {
    if (object.at("format") != kFormat) throw std::runtime_error("its format is another than this program reads");
    MachineCounts counts;
    const bool gpu = object.contains("date");
    if (gpu) {
      counts.machine = read_machine(object.at("machine"));
      counts.date = object.at("date").get<std::string>();
      counts.commit = object.at("commit").get<std::string>();
      counts.common = object.at("common").get<std::map<std::string, std::string>>();
    } else {
      counts.machine.name = object.at("machine").at("name").get<std::string>();
      counts.machine.emulated = true;
    }
    const Json& chapters = object.at("chapters");
    if (!chapters.is_array()) throw std::runtime_error("its chapters are no list");
    for (const Json& chapter : chapters) {
      counts.chapters.push_back({.folder = folder_of(chapter.at("chapter")),
                                 .problem = chapter.at("problem").get<std::string>(),
                                 .element_type = read_element_type(chapter),
                                 .hashes = {},
                                 .kernels = read_kernels(chapter.at("kernels"))});
      if (gpu) counts.chapters.back().hashes = chapter.at("hashes").get<std::map<std::string, std::string>>();
    }
    return counts;
  });
}

std::string collect_emulator_counts(const std::vector<std::string>& paths) {
  std::map<Key, Json> chapters;
  for (const std::string& path : paths) {
    const Json object = read_json(path, kEmulatorFiles);
    reading(path, kEmulatorFiles, [&] {
      const Json& machine = object.at("machine");
      if (!machine.at("emulated").get<bool>() || !machine.at("checked").get<bool>()) {
        refuse(path, "does not come from the checking emulator", kEmulatorFiles);
      }
      if (!object.at("right").get<bool>()) refuse(path, "holds a result that is not right", kEmulatorFiles);
      const Key key = key_of(object);
      const Json& kernels = object.at("kernel_counts");
      if (read_kernels(kernels).empty()) return;  // whatever the tables will need is there
      if (chapters.contains(key)) {
        refuse(path, "is the second file of " + in_type(key.first, key.second), kEmulatorFiles);
      }
      chapters[key] = chapter_object(object, kernels);
    });
  }
  Json all = {{"format", kFormat}, {"machine", {{"name", "emulator"}}}, {"chapters", Json::array()}};
  for (const auto& [key, chapter] : chapters) all["chapters"].push_back(chapter);
  return to_text(all);
}

std::string collect_gpu_counts(const std::vector<GpuCountFiles>& files, const std::string& date,
                               const std::string& commit, const KernelHashes& hashes, std::string& file_name) {
  Json machine;
  std::map<Key, Json> chapters;
  for (const GpuCountFiles& pair : files) {
    const std::string& path = pair.json;
    const Json object = read_json(path, kGpuFiles);
    const Json kernels = add_up(parse_ncu_csv(read_text(pair.csv, "what ncu --csv --log-file wrote"), pair.csv));
    reading(path, kGpuFiles, [&] {
      if (object.at("machine").at("emulated").get<bool>()) refuse(path, "comes from the emulator", kGpuFiles);
      if (!object.at("right").get<bool>()) refuse(path, "holds a result that is not right", kGpuFiles);
      read_machine(object.at("machine"));
      const Json here = shared_machine(object.at("machine"));
      if (machine.is_null()) machine = here;
      if (here != machine) {
        refuse(path, fmt::format("was counted on another machine, driver or CUDA than '{}'", files.front().json),
               kGpuFiles);
      }
      if (kernels.empty()) return;
      const Key key = key_of(object);
      const std::string& folder = key.first;
      if (chapters.contains(key)) refuse(path, "is the second file of " + in_type(folder, key.second), kGpuFiles);
      const auto of_chapter = hashes.find(folder);
      if (of_chapter == hashes.end()) {
        refuse(path, fmt::format("is of {}, whose kernel files have no hash", folder), kGpuFiles);
      }
      chapters[key] = chapter_object(object, kernels);
      chapters[key]["hashes"] = of_chapter->second;
    });
  }
  Json all = {
      {"format", kFormat}, {"machine", machine}, {"date", date}, {"commit", commit}, {"common", Json::object()}};
  if (const auto common = hashes.find(kCommon); common != hashes.end()) all["common"] = common->second;
  all["chapters"] = Json::array();
  for (const auto& [key, chapter] : chapters) all["chapters"].push_back(chapter);
  file_name = slug(machine.at("name").get<std::string>()) + kCountsFile;
  return to_text(all);
}

int counts(int argc, const char* const* argv) {
  try {
    const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    const std::string command = words.empty() ? "" : words.front();
    const std::vector<std::string> rest(words.begin() + std::min<std::ptrdiff_t>(1, std::ssize(words)), words.end());
    if (std::find(words.begin(), words.end(), "--help") != words.end()) {
      fmt::print("{}", kUsage);
    } else if (command == "metrics" && rest.empty()) {
      std::vector<std::string> names;
      for (const CountedQuantity& quantity : kQuantities) {
        for (const std::string& metric : metrics_of(quantity)) {
          if (std::find(names.begin(), names.end(), metric) == names.end()) names.push_back(metric);
        }
      }
      fmt::print("{}\n", fmt::join(names, ","));
    } else if (command == "emulator") {
      return write_emulator_counts(rest);
    } else if (command == "gpu") {
      return write_gpu_counts(rest);
    } else {
      throw BadArgument(fmt::format("there is no command '{}'; allowed: metrics, emulator, gpu, --help", command));
    }
    return 0;
  } catch (const BadArgument& error) {
    fmt::print(stderr, "counts: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "counts: {}\n", one_line(error.what()));
    return 1;
  }
}

}  // namespace stage
