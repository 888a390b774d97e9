#include "common/stage/results.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "common/stage/command_line.hpp"
#include "common/stage/counts_markdown.hpp"
#include "common/stage/ladder_plot.hpp"
#include "common/stage/results_file.hpp"
#include "common/stage/results_markdown.hpp"

namespace stage {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "results merge FOLDER --date DATE --commit COMMIT --hashes FILE [--seen FILE] JSON...\n"
    "  Puts what chapters wrote with --bench --json on one GPU into FOLDER/<gpu>.json, in place of what it holds of\n"
    "  them; its other chapters stay as they are. --seen FILE holds what nvidia-smi said about clocks, power and\n"
    "  temperature meanwhile.\n"
    "\n"
    "results tables ROOT --hashes FILE [--check]\n"
    "  Writes the tables made of ROOT/docs/results/*.json between the markers in ROOT/README.md and\n"
    "  ROOT/chapters/*/README.md, and ROOT/docs/counting.md if it is there. --check: writes nothing, and ends with 1\n"
    "  if a table would change.\n"
    "\n"
    "results plot ROOT --hashes FILE --out FILE\n"
    "  Writes a gnuplot script that draws the ladder of ROOT/docs/results/*.json; an empty file if nothing was timed.\n"
    "\n"
    "--hashes FILE holds what sha256sum prints of the chapters' sources and of the headers in common, from ROOT.\n";

struct Arguments {
  std::vector<std::string> files;
  std::map<std::string, std::string> values;  ///< of options that take one
  bool check = false;

  const std::string& value(const std::string& option) const {
    const auto found = values.find(option);
    if (found == values.end() || found->second.empty()) {
      throw BadArgument(fmt::format("{} is missing; allowed: as --help says", option));
    }
    return found->second;
  }
};

Arguments parse(const std::vector<std::string>& words, const std::vector<std::string>& with_value, bool takes_check) {
  Arguments arguments;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (std::find(with_value.begin(), with_value.end(), word) != with_value.end()) {
      if (i + 1 == words.size()) throw BadArgument(fmt::format("{} needs a value; allowed: as --help says", word));
      arguments.values[word] = words[++i];
    } else if (takes_check && word == "--check") {
      arguments.check = true;
    } else if (word.starts_with("-")) {
      throw BadArgument(fmt::format("unknown argument '{}'; allowed: as --help says", word));
    } else {
      arguments.files.push_back(word);
    }
  }
  return arguments;
}

std::string read_text(const fs::path& path) {
  std::error_code error;
  std::ifstream file(path, std::ios::binary);
  if (!file || fs::is_directory(path, error)) {
    throw BadArgument(fmt::format("'{}' cannot be read; allowed: a text file", path.string()));
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

KernelHashes read_hashes(const Arguments& arguments) {
  const std::string& path = arguments.value("--hashes");
  return parse_hashes(read_text(path), path);
}

int merge(const std::vector<std::string>& words) {
  const Arguments arguments = parse(words, {"--date", "--commit", "--hashes", "--seen"}, false);
  if (arguments.files.size() < 2) throw BadArgument("a folder and a file are needed; allowed: as --help says");
  const fs::path folder = arguments.files.front();
  if (!fs::is_directory(folder)) {
    throw BadArgument(fmt::format("'{}' is no folder; allowed: a folder for the results", folder.string()));
  }
  const std::string seen = arguments.values.contains("--seen") ? read_text(arguments.value("--seen")) : "";
  const MergedResults merged =
      merge_results(folder.string(), {arguments.files.begin() + 1, arguments.files.end()}, arguments.value("--date"),
                    arguments.value("--commit"), read_hashes(arguments), seen);
  const std::string path = (folder / merged.file_name).string();
  write_atomically(path, merged.text);
  fmt::print("Wrote {}.\n", path);
  if (!merged.dropped.empty()) fmt::print("Dropped what is no chapter any more: {}.\n", join(merged.dropped));
  return 0;
}

/// What lies in a folder, sorted by name; nothing if there is no folder.
std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  if (fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

/// The text with `body` in place of what stands in the region, a blank line on either side.
std::string with_region(const std::string& text, const Region& region, const std::string& body) {
  return text.substr(0, region.begin) + "\n" + body + "\n" + text.substr(region.end);
}

fs::path book_of(const Arguments& arguments) {
  if (arguments.files.size() != 1) throw BadArgument("one folder is needed, the book's; allowed: as --help says");
  return arguments.files.front();
}

/// Of ./learn bench --peers, whose tables chapters/library/peers.py makes.
bool is_peers_file(const fs::path& path) { return path.filename().string().ends_with("-peers.json"); }

std::vector<MeasuredMachine> read_machines(const fs::path& root) {
  std::vector<MeasuredMachine> machines;
  for (const fs::path& path : entries(root / "docs" / "results")) {
    if (path.extension() != ".json" || is_counts_file(path.string()) || is_peers_file(path)) continue;
    machines.push_back(read_results(path.string()));
  }
  return machines;
}

/// The region of docs/counting.md.
std::string read_counts_markdown(const fs::path& root, const KernelHashes& present) {
  MachineCounts emulator;
  std::vector<MachineCounts> gpus;
  for (const fs::path& path : entries(root / "docs" / "results")) {
    if (!is_counts_file(path.string())) continue;
    MachineCounts counts = read_counts(path.string());
    if (counts.machine.emulated) {
      emulator = std::move(counts);
    } else {
      gpus.push_back(std::move(counts));
    }
  }
  return counts_markdown(emulator, gpus, present);
}

int plot(const std::vector<std::string>& words) {
  const Arguments arguments = parse(words, {"--hashes", "--out"}, false);
  const fs::path root = book_of(arguments);
  write_atomically(arguments.value("--out"), ladder_plot(read_machines(root), read_hashes(arguments)));
  return 0;
}

int tables(const std::vector<std::string>& words) {
  const Arguments arguments = parse(words, {"--hashes"}, true);
  const fs::path root = book_of(arguments);
  const KernelHashes present = read_hashes(arguments);
  const std::vector<MeasuredMachine> machines = read_machines(root);

  // Everything is made before anything is written, so that a fault in one file leaves all as they are.
  std::vector<std::pair<fs::path, std::string>> changed;
  const auto rewrite = [&](const fs::path& path, const std::string& name, const auto& body) {
    const std::string text = read_text(path);
    const Region region = find_region(text, name, path.string());
    const std::string wanted = with_region(text, region, body(region));
    if (wanted != text) changed.emplace_back(path, wanted);
  };
  rewrite(root / "README.md", "ladder", [&](const Region&) { return ladder_markdown(machines, present); });
  for (const fs::path& folder : entries(root / "chapters")) {
    if (!fs::exists(folder / "stage.cu")) continue;
    const std::string name = folder.filename().string();
    rewrite(folder / "README.md", name.substr(0, name.find('_')),
            [&](const Region& region) { return chapter_markdown(machines, name, region.tables, present); });
  }

  if (const fs::path counting = root / "docs" / "counting.md"; fs::exists(counting)) {
    rewrite(counting, "counts", [&](const Region&) { return read_counts_markdown(root, present); });
  }

  std::vector<std::string> names;
  for (const auto& [path, text] : changed) names.push_back(path.lexically_relative(root).string());
  if (arguments.check && !changed.empty()) {
    fmt::print(stderr, "results: the tables in {} are not those of docs/results; ./learn tables writes them\n",
               join(names));
    return 1;
  }
  for (const auto& [path, text] : changed) write_atomically(path.string(), text);
  fmt::print("{}\n",
             changed.empty() ? "All tables are those of docs/results." : "Wrote the tables in " + join(names) + ".");
  return 0;
}

}  // namespace

int results(int argc, const char* const* argv) {
  try {
    const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    if (std::find(words.begin(), words.end(), "--help") != words.end()) {
      fmt::print("{}", kUsage);
      return 0;
    }
    const std::string command = words.empty() ? "" : words.front();
    if (command == "merge") return merge({words.begin() + 1, words.end()});
    if (command == "plot") return plot({words.begin() + 1, words.end()});
    if (command == "tables") return tables({words.begin() + 1, words.end()});
    throw BadArgument(fmt::format("there is no command '{}'; allowed: merge, tables, plot, --help", command));
  } catch (const BadArgument& error) {
    fmt::print(stderr, "results: {}\n", one_line(error.what()));
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "results: {}\n", one_line(error.what()));
    return 1;
  }
}

}  // namespace stage
