/// \file
/// Names of places in the program: source lines, threads.

#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

constexpr std::uintptr_t kSiteMark = std::uintptr_t{1} << 63;  ///< user addresses leave the top bit free

/// Asks addr2line (binutils) for the line of an instruction of this program.
std::string look_up(std::uintptr_t return_address) {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(return_address), &info) || !info.dli_fbase) return "unknown line";
  if (std::strstr(info.dli_fname, ".so")) return "unknown line";  // a library's own code
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return "unknown line";
  program[length] = 0;
  // The call ends at the return address; the access is just before it. Position-independent code counts from the base.
  const auto* header = static_cast<const ElfW(Ehdr)*>(info.dli_fbase);
  const std::uintptr_t base = header->e_type == ET_DYN ? reinterpret_cast<std::uintptr_t>(info.dli_fbase) : 0;
  char command[4300];
  std::snprintf(command, sizeof command, "addr2line -e '%s' %#lx 2>/dev/null", program,
                static_cast<unsigned long>(return_address - 1 - base));
  std::string line;
  if (std::FILE* pipe = popen(command, "r")) {
    char text[4096];
    if (std::fgets(text, sizeof text, pipe)) line = text;
    pclose(pipe);
  }
  line.erase(std::min(line.find_first_of("\n ("), line.size()));
  if (line.empty() || line[0] == '?') return "unknown line";
  return short_path(line);
}

}  // namespace

std::string short_path(const std::string& path) {
  for (const char* root : {"/tests/", "/chapters/", "/common/"}) {
    const auto at = path.rfind(root);
    if (at != std::string::npos) return path.substr(at + 1);
  }
  const auto slash = path.rfind('/');
  return slash == std::string::npos || path.rfind("chapters/", 0) == 0 || path.rfind("common/", 0) == 0 ||
                 path.rfind("tests/", 0) == 0
             ? path
             : path.substr(slash + 1);
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

std::string position(const Block& block, int thread) {
  return "[block (" + std::to_string(block.index.x) + "," + std::to_string(block.index.y) + "," +
         std::to_string(block.index.z) + ") thread " + std::to_string(thread) + "]";
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
