/// \file
/// Names of places in the program: source lines, threads.

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

constexpr std::uintptr_t kSiteMark = std::uintptr_t{1} << 63;  ///< user addresses leave the top bit free

/// What a program prints, without a shell in between: the arguments may hold any character.
std::string output_of(std::vector<const char*> arguments) {
  arguments.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int failed =
      posix_spawnp(&child, arguments[0], &actions, nullptr, const_cast<char* const*>(arguments.data()), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  char part[512];
  for (ssize_t n; !failed && (n = read(ends[0], part, sizeof part)) != 0;) {
    if (n > 0) {
      text.append(part, static_cast<std::size_t>(n));
    } else if (errno != EINTR) {
      break;
    }
  }
  close(ends[0]);
  if (!failed) {
    while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  return text;
}

/// What addr2line (binutils), with these options before -e, says of an instruction of this program. Empty where it does
/// not know.
std::string addr2line(std::vector<const char*> arguments, std::uintptr_t instruction) {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(instruction), &info) || !info.dli_fbase) return {};
  if (std::strstr(info.dli_fname, ".so")) return {};  // a library's own code
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return {};
  program[length] = 0;
  // Position-independent code counts from the base.
  const auto* header = static_cast<const ElfW(Ehdr)*>(info.dli_fbase);
  const std::uintptr_t base = header->e_type == ET_DYN ? reinterpret_cast<std::uintptr_t>(info.dli_fbase) : 0;
  char address[32];
  std::snprintf(address, sizeof address, "%#lx", static_cast<unsigned long>(instruction - base));
  arguments.insert(arguments.end(), {"-e", program, address});
  const std::string text = output_of(std::move(arguments));
  return text.empty() || text[0] == '?' ? std::string() : text;
}

std::string look_up(std::uintptr_t return_address) {
  // The call ends at the return address; the access is just before it. -i: the function in which it stands, then the
  // ones that it was inlined into. The copy of a float4 stands in language.hpp, and the kernel's line is the one to
  // name.
  std::istringstream lines(addr2line({"addr2line", "-i"}, return_address - 1));
  std::string first;
  for (std::string line; std::getline(lines, line);) {
    // "/home/me/a book/row_sum.cuh:58 (discriminator 1)": blanks may be part of the path.
    line.erase(std::min(line.rfind(" (discriminator"), line.size()));
    line = short_path(line);
    if (!line.starts_with("common/gpu/")) return line;
    if (first.empty()) first = line;
  }
  return first.empty() ? "unknown line" : first;
}

/// "void (anonymous namespace)::chapter::scores_kernel<64>(float const*, int)" → "scores_kernel<64>".
std::string bare_name(const std::string& function) {
  std::size_t begin = 0, end = function.size();
  int depth = 0;  // in template arguments, or in "(anonymous namespace)"
  for (std::size_t i = 0; i < function.size() && end == function.size(); ++i) {
    const char c = function[i];
    const bool anonymous = function.compare(i, 11, "(anonymous ") == 0;
    if (depth == 0 && (c == ' ' || c == ':')) begin = i + 1;
    if (depth == 0 && c == '(' && !anonymous) end = i;
    depth += (c == '<' || c == '(') - (c == '>' || c == ')');
  }
  return function.substr(begin, end - begin);
}

}  // namespace

std::string short_path(const std::string& path) {
  const std::string root = BOOK_SOURCE_DIR "/";
  if (path.compare(0, root.size(), root) == 0) return path.substr(root.size());
  return path.substr(path.rfind('/') + 1);
}

Place Place::site(Site site) {
  // Sites are few (one a call in the source) and live in the program's constants; keep one copy of each.
  static std::mutex mutex;
  static std::map<std::pair<const char*, unsigned>, Site> sites;
  const std::lock_guard lock(mutex);
  const Site& kept = sites.emplace(std::pair{site.file, site.line}, site).first->second;
  return Place(reinterpret_cast<std::uintptr_t>(&kept) | kSiteMark);
}

std::string Place::name() const {
  if (word_ & kSiteMark) {
    const Site& site = *reinterpret_cast<const Site*>(word_ & ~kSiteMark);
    return short_path(site.file) + ":" + std::to_string(site.line);
  }
  static std::mutex mutex;
  static std::map<std::uintptr_t, std::string> known;
  const std::lock_guard lock(mutex);
  std::string& line = known[word_];
  if (line.empty()) line = look_up(word_);
  return line;
}

std::string kernel_name(const void* function) {
  static std::map<const void*, std::string> known;
  std::string& name = known[function];
  if (name.empty()) name = bare_name(addr2line({"addr2line", "-f", "-C"}, reinterpret_cast<std::uintptr_t>(function)));
  return name.empty() ? "unknown kernel" : name;
}

std::string place_in_grid(const Block& block) {
  return "block (" + std::to_string(block.index.x) + "," + std::to_string(block.index.y) + "," +
         std::to_string(block.index.z) + ")";
}

std::string position(const Block& block) { return "[" + place_in_grid(block) + "]"; }

std::string position(const Block& block, int thread) {
  return "[" + place_in_grid(block) + " thread " + std::to_string(thread) + "]";
}

std::string position(const Thread& thread) { return position(*thread.block, thread.linear); }

std::string ranges(std::vector<int> numbers) {
  std::string text;
  const std::set<int> sorted(numbers.begin(), numbers.end());
  for (auto it = sorted.begin(); it != sorted.end();) {
    const int first = *it;
    int last = first;
    while (++it != sorted.end() && *it == last + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(first) + (last > first ? "-" + std::to_string(last) : "");
  }
  return text;
}

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", value);
  return text;
}

void fault(Site site, const std::string& sentence) {
  std::string text = short_path(site.file) + ":" + std::to_string(site.line) + ": " + sentence;
  if (t_thread) text += " " + position(*t_thread);
  throw Error(text);
}

}  // namespace gpu::emulator
