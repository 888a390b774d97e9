/// \file
/// Memory of the emulated device: buffers with red zones, blocks' shared memory and stacks.

#include "common/gpu/emulator/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "common/gpu/emulator/block.hpp"
#include "common/gpu/foreign_memory.hpp"
#include "common/gpu/memory_account.hpp"
#include "common/gpu/reserved_memory.hpp"

namespace gpu::emulator {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMargin = 1 << 20;   ///< inaccessible, on both sides
constexpr std::size_t kRedZone = kPage;    ///< at least so much 0xFF on both sides
constexpr std::size_t kStack = 64 * 1024;  ///< a thread's locals; a GPU thread has at most 255 registers
/// From one stack to the next: with the guard page. Were it a power of two, the stacks' pages would fall into a few
/// sets of the processor's cache of page addresses (TLB), and every switch of threads would miss there.
constexpr std::size_t kStackPitch = kStack + kPage;
/// Stacks with an inaccessible page below them. Each costs two of the 65530 mappings that Linux gives a process; beyond
/// this many, stacks go without.
constexpr int kMaxGuardedStacks = 16384;
std::atomic<int> g_guarded_stacks{0};

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

void* map_pages(std::size_t bytes, int protection) {
  void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw Error("the operating system gives no more memory: " + std::string(std::strerror(errno)));
  return p;
}

std::mutex g_mutex;
std::map<std::uintptr_t, Allocation> g_allocations;  ///< by mapping
std::deque<std::uintptr_t> g_freed;                  ///< mappings of freed buffers, oldest first
constexpr std::size_t kFreedKept = 256;
std::atomic<bool> g_foreign_allowed{false};

std::size_t red_zone_end(const Allocation& a) { return a.mapping + a.mapping_bytes - kMargin - a.data; }

/// Fresh pages between red zones that hold 0xFF and margins that nobody can touch.
Allocation map_allocation(std::size_t bytes, const char* label) {
  Allocation a;
  a.bytes = bytes;
  a.label = label;
  const std::size_t inner = kRedZone + round_up(bytes, kPage) + kRedZone;
  a.mapping_bytes = inner + 2 * kMargin;
  a.mapping = reinterpret_cast<std::uintptr_t>(map_pages(a.mapping_bytes, PROT_NONE));
  void* const middle = reinterpret_cast<void*>(a.mapping + kMargin);
  mprotect(middle, inner, PROT_READ | PROT_WRITE);
  // Data starts on a page, as cudaMalloc's does on 256 bytes.
  a.data = a.mapping + kMargin + kRedZone;
  std::memset(middle, 0xFF, kRedZone);
  std::memset(reinterpret_cast<void*>(a.data + bytes), 0xFF, red_zone_end(a) - bytes);
  return a;
}

void* keep_allocation(Allocation a) {
  const std::lock_guard lock(g_mutex);
  const std::uintptr_t data = a.data;
  g_allocations.emplace(a.mapping, std::move(a));
  return reinterpret_cast<void*>(data);
}

/// The first changed byte of [begin, end), or end.
const unsigned char* first_changed(const unsigned char* begin, const unsigned char* end) {
  while (begin != end && *begin == 0xFF) ++begin;
  return begin;
}

}  // namespace

// ---- shared memory and stacks

BlockMemory::BlockMemory(int threads, std::size_t shared_bytes) { reserve(threads, shared_bytes); }

BlockMemory::~BlockMemory() {
  release_stacks();
  if (mapping_) munmap(mapping_, mapping_bytes_);
}

void BlockMemory::release_stacks() {
  if (stacks_) munmap(stacks_, static_cast<std::size_t>(stack_count_) * kStackPitch);
  if (guarded_) g_guarded_stacks -= stack_count_;
  stacks_ = nullptr;
  guarded_ = false;
}

void BlockMemory::reserve(int threads, std::size_t shared_bytes) {
  if (threads > stack_count_) {
    release_stacks();
    stack_count_ = threads;
    stacks_ =
        static_cast<unsigned char*>(map_pages(static_cast<std::size_t>(threads) * kStackPitch, PROT_READ | PROT_WRITE));
    guarded_ = (g_guarded_stacks += threads) <= kMaxGuardedStacks;
    if (!guarded_) g_guarded_stacks -= threads;
    for (int i = 0; guarded_ && i < threads; ++i) {
      mprotect(stacks_ + static_cast<std::size_t>(i) * kStackPitch, kPage, PROT_NONE);
    }
  }
  const std::size_t needed =
      round_up(shared_bytes, kPage) + 3 * kPage;  // a guard page, the storage, a red zone, a guard
  if (needed != mapping_bytes_) {
    if (mapping_) munmap(mapping_, mapping_bytes_);
    mapping_ = nullptr;
    mapping_ = static_cast<unsigned char*>(map_pages(needed, PROT_READ | PROT_WRITE));
    mapping_bytes_ = needed;
    forbidden_ = false;
    mprotect(mapping_, kPage, PROT_NONE);
    mprotect(mapping_ + needed - kPage, kPage, PROT_NONE);
    shared_ = mapping_ + kPage;
  }
  shared_bytes_ = shared_bytes;
}

boost::context::stack_context BlockMemory::stack(int thread) const {
  // Stacks that start at the same offset of a page would all fall into the same cache sets: stagger them.
  const std::size_t shift = static_cast<std::size_t>(thread) * 320 % kPage;
  boost::context::stack_context stack;
  stack.size = kStackPitch - shift;
  stack.sp = stacks_ + (static_cast<std::size_t>(thread) + 1) * kStackPitch - shift;
  return stack;
}

void BlockMemory::poison_shared() {
  if (forbidden_) mprotect(shared_, mapping_bytes_ - 2 * kPage, PROT_READ | PROT_WRITE);
  forbidden_ = false;
  std::memset(shared_, 0xFF, mapping_bytes_ - 2 * kPage);
}

void BlockMemory::forbid_shared() {
  damage_ = first_damage();
  mprotect(shared_, mapping_bytes_ - 2 * kPage, PROT_NONE);
  forbidden_ = true;
}

std::ptrdiff_t BlockMemory::first_damage() const {
  if (forbidden_) return damage_;
  const unsigned char* end = mapping_ + mapping_bytes_ - kPage;
  const unsigned char* changed = first_changed(shared_ + shared_bytes_, end);
  return changed == end ? -1 : changed - shared_;
}

// ---- device buffers

Allocation* find_allocation(std::uintptr_t address) {
  // Workers look up in parallel with nobody changing the map (see the header); each remembers its last hit.
  static thread_local Allocation* last = nullptr;
  static thread_local std::uint32_t launch = 0;
  const std::uint32_t serial = t_thread ? t_thread->block->launch.serial : 0;
  if (launch == serial && last && serial && last->near(address)) return last;
  auto it = g_allocations.upper_bound(address);
  if (it == g_allocations.begin()) return nullptr;
  --it;
  if (!it->second.near(address)) return nullptr;
  last = &it->second;
  launch = serial;
  return last;
}

void mark_written(Allocation& allocation, std::size_t offset, std::size_t bytes) {
  if (!allocation.written) return;
  for (; bytes > 0 && offset % 8; ++offset, --bytes) {
    allocation.written[offset / 8] = static_cast<std::uint8_t>(allocation.written[offset / 8] | 1u << offset % 8);
  }
  std::memset(allocation.written + offset / 8, 0xFF, bytes / 8);
  offset += bytes / 8 * 8;
  for (bytes %= 8; bytes > 0; ++offset, --bytes) {
    allocation.written[offset / 8] = static_cast<std::uint8_t>(allocation.written[offset / 8] | 1u << offset % 8);
  }
}

std::string device_memory_damage() {
  const std::lock_guard lock(g_mutex);
  for (auto& [unused, a] : g_allocations) {
    if (a.freed) continue;
    auto* const data = reinterpret_cast<unsigned char*>(a.data);
    auto* const begin = reinterpret_cast<unsigned char*>(a.mapping + kMargin);
    unsigned char* const end = data + red_zone_end(a);
    const unsigned char* before = first_changed(begin, data);
    const unsigned char* after = first_changed(data + a.bytes, end);
    std::string text;
    if (after != end) {
      text = "byte " + std::to_string(after - data) + " of '" + a.label + "' was written, which has " +
             std::to_string(a.bytes) + " bytes";
    } else if (before != data) {
      text = "memory " + std::to_string(data - before) + " bytes before the start of '" + a.label + "' was written";
    }
    if (!text.empty()) {
      std::memset(begin, 0xFF, static_cast<std::size_t>(data - begin));
      std::memset(data + a.bytes, 0xFF, static_cast<std::size_t>(end - (data + a.bytes)));
      return "out of bounds: " + text +
             (checking() ? "" : "; the checking build (preset emulator-check) names the line");
    }
  }
  return {};
}

bool is_foreign(std::uintptr_t address) { return g_foreign_allowed && !find_allocation(address); }

std::string describe_address(std::uintptr_t address) {
  if (const Allocation* a = find_allocation(address)) {
    const std::string what =
        (a->freed ? "the freed buffer '" : "'") + a->label + "' (" + std::to_string(a->bytes) + " bytes)";
    if (address < a->data) return std::to_string(a->data - address) + " bytes before the start of " + what;
    if (address >= a->data + a->bytes)
      return std::to_string(address - a->data - a->bytes) + " bytes past the end of " + what;
    return "byte " + std::to_string(address - a->data) + " of " + what;
  }
  char text[64];
  std::snprintf(text, sizeof text, "address %#lx, which is no device memory", static_cast<unsigned long>(address));
  return text;
}

}  // namespace gpu::emulator

namespace gpu {

using namespace emulator;

std::size_t memory_available() {
  std::size_t kilobytes = 0;
  if (std::FILE* f = std::fopen("/proc/meminfo", "r")) {
    char line[128];
    while (std::fgets(line, sizeof line, f)) {
      if (std::sscanf(line, "MemAvailable: %zu kB", &kilobytes) == 1) break;
    }
    std::fclose(f);
  }
  // The checking build's shadow needs about 18 bytes for each byte of a buffer that kernels touch.
  return kilobytes * 1024 / (checking() ? 20 : 1);
}

void* allocate(std::size_t bytes, const char* label) {
  if (bytes > memory_available()) {
    throw Error(std::string(label) + ": " + std::to_string(bytes) + " bytes of device memory wanted, " +
                std::to_string(memory_available()) + " available on the emulator");
  }
  Allocation a = map_allocation(bytes, label);
  std::memset(reinterpret_cast<void*>(a.data), 0xFF, bytes);
  if (checking()) {
    const std::size_t words = (bytes + 3) / 4;
    a.shadow = static_cast<GlobalShadow*>(map_pages(words * sizeof(GlobalShadow), PROT_READ | PROT_WRITE));
    a.written = static_cast<std::uint8_t*>(map_pages(bytes / 8 + 1, PROT_READ | PROT_WRITE));
  }
  account_allocated(bytes);
  return keep_allocation(std::move(a));
}

void* reserve(std::size_t bytes, const char* label) {
  if (checking()) return nullptr;
  Allocation a = map_allocation(bytes, label);
  a.reserved = true;
  return keep_allocation(std::move(a));
}

void deallocate(void* pointer) noexcept {
  const std::lock_guard lock(g_mutex);
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(pointer);
  auto it = g_allocations.upper_bound(address);
  if (it == g_allocations.begin()) return;
  --it;
  Allocation& a = it->second;
  if (a.data != address || a.freed) return;
  if (!a.reserved) account_freed(a.bytes);
  if (a.shadow) {
    munmap(a.shadow, (a.bytes + 3) / 4 * sizeof(GlobalShadow));
    munmap(a.written, a.bytes / 8 + 1);
  }
  a.shadow = nullptr;
  a.written = nullptr;
  a.freed = true;
  // The memory goes back, the addresses stay taken: nobody else may get them while an old pointer may be about.
  if (mmap(reinterpret_cast<void*>(a.mapping), a.mapping_bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return;
  }
  g_freed.push_back(a.mapping);
  if (g_freed.size() > kFreedKept) {
    const auto oldest = g_allocations.find(g_freed.front());
    munmap(reinterpret_cast<void*>(oldest->second.mapping), oldest->second.mapping_bytes);
    g_allocations.erase(oldest);
    g_freed.pop_front();
  }
}

void allow_foreign_memory() { g_foreign_allowed = !checking(); }

namespace {

Allocation& require_range(const void* pointer, std::size_t bytes, const char* what) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(pointer);
  Allocation* a = find_allocation(address);
  if (!a || a->freed || address < a->data || address + bytes > a->data + a->bytes) {
    throw Error(std::string(what) + ": " + std::to_string(bytes) + " bytes at " + describe_address(address));
  }
  return *a;
}

}  // namespace

void copy_to_device(void* to, const void* from, std::size_t bytes) {
  host_waited();
  Allocation& a = require_range(to, bytes, "copy to the device");
  std::memcpy(to, from, bytes);
  mark_written(a, reinterpret_cast<std::uintptr_t>(to) - a.data, bytes);
}
void copy_to_host(void* to, const void* from, std::size_t bytes) {
  host_waited();
  require_range(from, bytes, "copy to the host");
  std::memcpy(to, from, bytes);
}
void fill_bytes(void* to, unsigned char value, std::size_t bytes) {
  host_waited();
  if (is_foreign(reinterpret_cast<std::uintptr_t>(to))) {
    std::memset(to, value, bytes);
    return;
  }
  Allocation& a = require_range(to, bytes, "fill");
  std::memset(to, value, bytes);
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(to) - a.data;
  if (value != 0xFF) {
    mark_written(a, offset, bytes);
  } else if (a.written) {  // poison is no value
    for (std::size_t i = offset; i < offset + bytes; ++i) {
      a.written[i / 8] = static_cast<std::uint8_t>(a.written[i / 8] & ~(1u << i % 8));
    }
  }
}

}  // namespace gpu
