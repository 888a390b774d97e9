#include "common/stage/json.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "common/stage/command_line.hpp"

namespace stage {
namespace {

using Json = nlohmann::ordered_json;
using attention::ElementType;
namespace fs = std::filesystem;

constexpr int kFormat = 1;  // raised when a reader of the old form would misread the new one

/// Whole numbers without ".0", and null for what JSON cannot say.
Json number(double value) {
  if (!std::isfinite(value)) return nullptr;
  if (value == std::floor(value) && std::abs(value) < 9e15) return static_cast<std::int64_t>(value);
  return value;
}

Json number(const std::optional<double>& value) { return value ? number(*value) : Json(nullptr); }

Json window_side(int side) { return side >= attention::kUnlimited ? Json("inf") : Json(side); }

Json to_object(const attention::Problem& p) {
  return {{"text", p.describe()},
          {"batch", p.batch},
          {"heads_q", p.heads_q},
          {"heads_kv", p.heads_kv},
          {"seqlen_q", p.seqlen_q},
          {"seqlen_kv", p.seqlen_kv},
          {"head_dim", p.head_dim},
          {"window_left", window_side(p.mask.left)},
          {"window_right", window_side(p.mask.right)},
          {"scale", p.scale()},
          {"dtype", attention::name(p.element_type)}};
}

Json to_object(const gpu::DeviceInfo& machine, const gpu::EmulatorOptions& emulator) {
  Json object = {{"name", machine.name},
                 {"emulated", machine.emulated},
                 {"checked", machine.checked},
                 {"compute_capability", machine.compute_capability},
                 {"multiprocessors", machine.multiprocessors}};
  if (machine.emulated) {
    object["schedule_seed"] = emulator.schedule_seed;
    object["shared_memory_limit"] = emulator.shared_memory_limit;
    object["delivery"] = emulator.delivery == gpu::Delivery::on_wait ? "on-wait" : "immediately";
    object["without"] = Json::array();
    for (const gpu::SourceLine& line : emulator.without) {
      object["without"].push_back(fmt::format("{}:{}", line.file, line.line));
    }
  } else {
    object["driver"] = machine.driver;
    object["cuda"] = machine.cuda;
    object["clock_khz"] = machine.clock_khz;
    object["built_for"] = machine.built_for;
  }
  return object;
}

Json to_object(const gpu::GlobalAccesses& accesses) {
  return {{"bytes", accesses.bytes}, {"requests", accesses.requests}, {"sectors", accesses.sectors}};
}

Json to_object(const gpu::SharedAccesses& accesses) {
  return {{"bytes", accesses.bytes},
          {"requests", accesses.requests},
          {"wavefronts", accesses.wavefronts},
          {"conflicts", accesses.conflicts}};
}

Json to_object(const gpu::KernelCounts& counts) {
  return {{"kernel", counts.kernel},
          {"launches", counts.launches},
          {"blocks", counts.blocks},
          {"global_loads", to_object(counts.global_loads)},
          {"global_stores", to_object(counts.global_stores)},
          {"shared_loads", to_object(counts.shared_loads)},
          {"shared_stores", to_object(counts.shared_stores)},
          {"barriers", counts.barriers}};
}

Json number(const std::optional<Ratio>& ratio) {
  if (!ratio) return nullptr;
  return {{"median", number(ratio->median)}, {"low", number(ratio->low)}, {"high", number(ratio->high)}};
}

Json to_samples(const std::vector<double>& samples) {
  Json list = Json::array();
  for (const double seconds : samples)
    list.push_back(number(std::strtod(fmt::format("{:.7g}", seconds).c_str(), nullptr)));
  return list;
}

Json to_object(const Row& row) {
  Json best_peer = number(row.best_peer);
  if (row.best_peer) best_peer["name"] = row.best_peer_name;
  return {{"kernel", row.kernel},
          {"summary", row.summary},
          {"pass", row.pass == Pass::forward ? "forward" : "backward"},
          {"right", row.right},
          {"verdict", row.verdict},
          {"error", number(row.error)},
          {"allowed", number(row.allowed)},
          {"seconds", number(row.seconds)},
          {"flops", number(row.flops)},
          {"peak_flops", number(row.peak_flops)},
          {"bytes_counted", number(row.bytes_counted)},
          {"bytes_predicted", number(row.bytes_predicted)},
          {"workspace_bytes", number(row.workspace_bytes)},
          {"peak_bytes", number(row.peak_bytes)},
          {"on_host", row.on_host},
          {"is_peer", row.is_peer},
          {"step_before", number(row.step_before)},
          {"best_peer", best_peer},
          {"samples", to_samples(row.samples)}};
}

std::optional<double> read_number(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

std::optional<Ratio> read_ratio(const Json& value) {
  if (value.is_null()) return std::nullopt;
  return Ratio{.median = value.at("median").get<double>(),
               .low = value.at("low").get<double>(),
               .high = value.at("high").get<double>()};
}

Row read_row(const Json& object) {
  Row row;
  row.kernel = object.at("kernel").get<std::string>();
  row.summary = object.at("summary").get<std::string>();
  row.verdict = object.at("verdict").get<std::string>();
  row.right = object.at("right").get<bool>();
  row.error = read_number(object.at("error"));
  row.allowed = read_number(object.at("allowed"));
  row.seconds = read_number(object.at("seconds"));
  row.flops = read_number(object.at("flops"));
  row.peak_flops = read_number(object.at("peak_flops"));
  row.bytes_counted = read_number(object.at("bytes_counted"));
  row.bytes_predicted = read_number(object.at("bytes_predicted"));
  row.workspace_bytes = read_number(object.at("workspace_bytes"));
  row.peak_bytes = read_number(object.at("peak_bytes"));
  row.samples = object.at("samples").get<std::vector<double>>();
  // Files from before there were backward kernels, rounds and peers have none of these.
  row.pass = object.value("pass", "forward") == "backward" ? Pass::backward : Pass::forward;
  row.on_host = object.value("on_host", !row.peak_flops);
  row.is_peer = object.value("is_peer", false);
  if (object.contains("step_before")) row.step_before = read_ratio(object.at("step_before"));
  if (const Json peer = object.value("best_peer", Json(nullptr)); !peer.is_null()) {
    row.best_peer = read_ratio(peer);
    row.best_peer_name = peer.at("name").get<std::string>();
  }
  return row;
}

/// Appends a value as it stands after `indent`, a newline and the blanks of its level.
void append(std::string& out, const Json& value, const std::string& indent) {
  const bool numbers =
      value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& x) { return x.is_number(); });
  if (!value.is_structured() || value.empty() || numbers) {
    out += value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  const std::string inside = indent + "  ";
  out += value.is_object() ? '{' : '[';
  bool first = true;
  for (const auto& [key, item] : value.items()) {
    out += (first ? "" : ",") + inside;
    first = false;
    if (value.is_object()) out += Json(key).dump(-1, ' ', false, Json::error_handler_t::replace) + ": ";
    append(out, item, inside);
  }
  out += indent + (value.is_object() ? '}' : ']');
}

/// The file that `path` means: what a symbolic link points to, so that renaming does not replace the link.
fs::path real_path(const std::string& path) { return fs::weakly_canonical(fs::absolute(path)); }

/// Beside the target, since a rename does not cross file systems.
fs::path temporary_path(const fs::path& target) { return target.string() + fmt::format(".{}.tmp", ::getpid()); }

/// Creates the file, which must not exist, with the permissions that the user's umask leaves.
std::FILE* create(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  return descriptor < 0 ? nullptr : ::fdopen(descriptor, "w");
}

}  // namespace

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string to_text(const Json& json) {
  std::string out;
  append(out, json, "\n");
  return out + '\n';
}

ElementType read_element_type(const Json& problem) {
  const auto name = problem.value("dtype", attention::name(ElementType::fp32));
  for (const ElementType type : {ElementType::fp32, ElementType::fp16, ElementType::bf16}) {
    if (attention::name(type) == name) return type;
  }
  throw std::runtime_error(fmt::format("its dtype '{}' is none", name));
}

std::string to_json(const Results& results) {
  Json object = {{"format", kFormat},
                 {"chapter", {{"number", results.chapter_number}, {"name", results.chapter_name}}},
                 {"machine", to_object(results.machine, results.emulator)},
                 {"problem", results.problem ? to_object(*results.problem) : Json(nullptr)},
                 {"seed", results.seed},
                 {"right", results.right},
                 {"rows", Json::array()},
                 {"figures", Json::object()},
                 {"tables", Json::object()}};
  for (const Row& row : results.rows) object["rows"].push_back(to_object(row));
  for (const auto& [name, value] : results.figures) object["figures"][name] = number(value);
  for (const auto& [name, samples] : results.figure_samples) {
    object["figure_samples"][name] = {{"work", number(samples.work)}, {"seconds", to_samples(samples.seconds)}};
  }
  for (const auto& table : results.tables)
    object["tables"][table.name] = {{"header", table.header}, {"rows", table.rows}};
  if (results.kernel_counts) {
    object["kernel_counts"] = Json::array();
    for (const gpu::KernelCounts& counts : *results.kernel_counts) object["kernel_counts"].push_back(to_object(counts));
  }
  for (const ProblemRows& line : results.grid) {
    Json rows = Json::array();
    for (const Row& row : line.rows) rows.push_back(to_object(row));
    object["grid"].push_back({{"problem", to_object(line.problem)}, {"rows", rows}});
  }
  return to_text(object);
}

void check_writable(const std::string& path) {
  std::string reason;
  try {
    const fs::path target = real_path(path);
    if (fs::exists(target) && !fs::is_regular_file(target)) {
      reason = fs::is_directory(target) ? "is a folder" : "is not an ordinary file";
    } else if (std::FILE* probe = create(temporary_path(target))) {
      std::fclose(probe);
      fs::remove(temporary_path(target));
    } else {
      reason = fmt::format("cannot be written ({})", std::strerror(errno));
    }
  } catch (const fs::filesystem_error& error) {
    reason = fmt::format("cannot be written ({})", error.code().message());
  }
  if (!reason.empty()) {
    throw BadArgument(fmt::format(
        "--json '{}' {}; allowed: a file in a folder that can be written, or - for standard output", path, reason));
  }
}

void write_atomically(const std::string& path, const std::string& text) {
  const fs::path target = real_path(path);
  const fs::path temporary = temporary_path(target);
  std::FILE* file = create(temporary);
  bool good = file != nullptr;
  if (good) {
    good = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    good = std::fclose(file) == 0 && good;
    good = good && std::rename(temporary.c_str(), target.c_str()) == 0;
  }
  if (!good) {
    const std::string reason = std::strerror(errno);
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw std::runtime_error(fmt::format("the results could not be written to '{}' ({})", path, reason));
  }
}

Step read_step(const Json& object) {
  if (object.at("format") != kFormat) throw std::runtime_error("its format is another than this program reads");
  Step step;
  const Json& chapter = object.at("chapter");
  step.chapter = chapter.at("number").get<std::string>() + " " + chapter.at("name").get<std::string>();
  step.machine = object.at("machine").at("name").get<std::string>();
  if (const Json& problem = object.at("problem"); !problem.is_null()) {
    step.problem = problem.at("text").get<std::string>();
    step.problem_key = problem.dump();
    step.element_type = read_element_type(problem);
  }
  const Json& rows = object.at("rows");
  if (!rows.is_array()) throw std::runtime_error("its rows are no list");
  for (const Json& row : rows) {
    step.rows.push_back(read_row(row));
    step.rows.back().element_type = step.element_type;
  }
  for (const auto& [name, table] : object.at("tables").items()) {
    step.tables.push_back({name, table.at("header").get<std::vector<std::string>>(),
                           table.at("rows").get<std::vector<std::vector<std::string>>>()});
  }
  const Json figures = object.value("figures", Json::object());
  for (const auto& [name, value] : figures.items()) {
    if (value.is_number()) step.figures[name] = value.get<double>();
  }
  return step;
}

Json read_json(const std::string& path, const std::string& allowed) {
  std::error_code error;
  std::ifstream file(path, std::ios::binary);
  if (!file || fs::is_directory(path, error)) {
    throw BadArgument(fmt::format("'{}' cannot be read; allowed: {}", path, allowed));
  }
  try {
    return Json::parse(std::string{std::istreambuf_iterator<char>(file), {}});
  } catch (const Json::exception& malformed) {
    throw BadArgument(
        fmt::format("'{}' holds no results of a chapter ({}); allowed: {}", path, one_line(malformed.what()), allowed));
  }
}

Step read_step(const std::string& path) {
  constexpr const char* kAllowed = "files that a chapter wrote with --json";
  const Json object = read_json(path, kAllowed);
  try {
    return read_step(object);
  } catch (const std::exception& malformed) {
    throw BadArgument(fmt::format("'{}' holds no results of a chapter ({}); allowed: {}", path,
                                  one_line(malformed.what()), kAllowed));
  }
}

}  // namespace stage
