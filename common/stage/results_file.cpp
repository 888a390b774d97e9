#include "common/stage/results_file.hpp"

#include <fmt/format.h>

#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "common/stage/command_line.hpp"

namespace stage {
namespace {

using Json = nlohmann::ordered_json;
using attention::ElementType;

constexpr int kFormat =
    2;  // of docs/results/<gpu>.json; raised when a reader of the old form would misread the new one

constexpr const char* kChapterFiles = "files that chapters wrote with --bench --json on one GPU";
constexpr const char* kResultsFiles = "files that ./learn bench wrote";

/// \throws std::exception saying what is wrong.
MeasuredMachine read_measured(const Json& object) {
  if (object.at("format") != kFormat) throw std::runtime_error("its format is another than this program reads");
  MeasuredMachine measured;
  const Json& chapters = object.at("chapters");
  if (!chapters.is_array()) throw std::runtime_error("its chapters are no list");
  for (const Json& chapter : chapters) {
    measured.chapters.push_back(
        {.folder = folder_of(chapter.at("chapter")),
         .step = read_step(chapter),
         .hashes = chapter.at("hashes").get<std::map<std::string, std::string>>(),
         .measurement = {.machine = read_machine(chapter.at("machine")),
                         .date = chapter.at("date").get<std::string>(),
                         .commit = chapter.at("commit").get<std::string>(),
                         .common = chapter.value("common", std::map<std::string, std::string>())}});
  }
  return measured;
}

}  // namespace

std::string folder_of(const Json& chapter) {
  return chapter.at("number").get<std::string>() + "_" + chapter.at("name").get<std::string>();
}

std::string in_type(const std::string& folder, ElementType type) {
  return type == ElementType::fp32 ? folder : folder + ", " + attention::name(type);
}

std::string slug(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const auto letter = static_cast<unsigned char>(c);
    if (letter < 128 && std::isalnum(letter)) {
      out += static_cast<char>(std::tolower(letter));
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "gpu" : out;
}

Json shared_machine(const Json& machine) {
  Json shared = machine;
  shared.erase("built_for");
  return shared;
}

gpu::DeviceInfo read_machine(const Json& object) {
  gpu::DeviceInfo machine;
  machine.name = object.at("name").get<std::string>();
  machine.multiprocessors = object.at("multiprocessors").get<int>();
  machine.clock_khz = object.at("clock_khz").get<int>();
  machine.driver = object.at("driver").get<std::string>();
  machine.cuda = object.at("cuda").get<std::string>();
  return machine;
}

KernelHashes parse_hashes(const std::string& text, const std::string& source) {
  constexpr std::size_t kDigits = 64;
  KernelHashes hashes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // "<64 digits>  chapters/NN_name/file" or "… common/path/file", with '*' for the second blank where a file was read
    // as binary.
    const bool digits = line.find_first_not_of("0123456789abcdef") == kDigits;
    const bool separated = digits && line.size() > kDigits + 2 && line[kDigits] == ' ' &&
                           (line[kDigits + 1] == ' ' || line[kDigits + 1] == '*');
    const std::string path = separated ? line.substr(kDigits + 2) : "";
    const std::string common = std::string(kCommon) + "/";
    if (path.size() > common.size() && path.starts_with(common)) {
      hashes[kCommon][path.substr(common.size())] = line.substr(0, kDigits);
      continue;
    }
    const std::size_t slash = path.rfind('/');
    const std::string prefix = "chapters/";
    if (!path.starts_with(prefix) || slash < prefix.size() || slash + 1 == path.size()) {
      throw BadArgument(
          fmt::format("the line '{}' in '{}' is no hash of a kernel file; allowed: what sha256sum prints of "
                      "chapters/NN_name/FILE and common/PATH/FILE",
                      line, source));
    }
    hashes[path.substr(prefix.size(), slash - prefix.size())][path.substr(slash + 1)] = line.substr(0, kDigits);
  }
  return hashes;
}

MergedResults merge_results(const std::string& folder, const std::vector<std::string>& paths, const std::string& date,
                            const std::string& commit, const KernelHashes& hashes, const std::string& seen) {
  const auto refuse = [](const std::string& path, const std::string& what) {
    throw BadArgument(fmt::format("'{}' {}; allowed: {}", path, what, kChapterFiles));
  };
  Json seen_lines = Json::array();
  std::istringstream lines(seen);
  for (std::string line; std::getline(lines, line);) seen_lines.push_back(line);
  const auto common = hashes.find(kCommon);

  Json machine;
  std::map<std::pair<std::string, ElementType>, Json> chapters;  // the folders' names sort as the book does
  for (const std::string& path : paths) {
    Json object = read_json(path, kChapterFiles);
    try {
      const ElementType type = read_step(object).element_type;  // and whatever the tables will need is there
      const std::string name = folder_of(object.at("chapter"));
      if (object.at("machine").at("emulated").get<bool>())
        refuse(path, "comes from the emulator, which measures no time");
      if (!object.at("right").get<bool>()) refuse(path, "holds a result that is not right");
      read_machine(object.at("machine"));
      const Json here = shared_machine(object.at("machine"));
      if (machine.is_null()) machine = here;
      if (here != machine) {
        refuse(path, fmt::format("was measured on another machine, driver or CUDA than '{}'", paths.front()));
      }
      if (chapters.contains({name, type})) refuse(path, "is the second file of " + in_type(name, type));
      const auto of_chapter = hashes.find(name);
      if (of_chapter == hashes.end()) refuse(path, fmt::format("is of {}, whose kernel files have no hash", name));
      object["date"] = date;
      object["commit"] = commit;
      if (!seen_lines.empty()) object["seen"] = seen_lines;
      if (common != hashes.end()) object["common"] = common->second;
      object["hashes"] = of_chapter->second;
      chapters[{name, type}] = object;
    } catch (const BadArgument&) {
      throw;
    } catch (const std::exception& malformed) {
      refuse(path, fmt::format("holds no results of a chapter ({})", one_line(malformed.what())));
    }
  }

  // Of the chapters that are there already, those stay that have not been measured again and still exist.
  const gpu::DeviceInfo gpu = read_machine(machine);
  MergedResults result{.file_name = slug(gpu.name) + ".json", .text = "", .dropped = {}};
  const std::string before = folder + "/" + result.file_name;
  if (std::filesystem::exists(before)) {
    read_results(before);  // refuses what is malformed
    const Json object = read_json(before, kResultsFiles);
    for (const Json& chapter : object.at("chapters")) {
      const gpu::DeviceInfo other = read_machine(chapter.at("machine"));
      if (other.name != gpu.name || other.multiprocessors != gpu.multiprocessors) {
        refuse(paths.front(), fmt::format("was measured on {} with {} multiprocessors, but '{}' holds results of {} "
                                          "with {}: move that file away to begin a new one",
                                          gpu.name, gpu.multiprocessors, before, other.name, other.multiprocessors));
      }
      const std::string name = folder_of(chapter.at("chapter"));
      const ElementType type = read_step(chapter).element_type;
      if (hashes.contains(name)) {
        chapters.insert({{name, type}, chapter});
      } else {
        result.dropped.push_back(in_type(name, type));
      }
    }
  }

  Json merged = {{"format", kFormat}, {"chapters", Json::array()}};
  for (const auto& [key, chapter] : chapters) merged["chapters"].push_back(chapter);
  result.text = to_text(merged);
  return result;
}

MeasuredMachine read_results(const std::string& path) {
  const Json object = read_json(path, kResultsFiles);
  try {
    return read_measured(object);
  } catch (const std::exception& malformed) {
    throw BadArgument(fmt::format("'{}' holds no results of a GPU ({}); allowed: {}", path, one_line(malformed.what()),
                                  kResultsFiles));
  }
}

}  // namespace stage
