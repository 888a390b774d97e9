/// \file
/// One memory access of a kernel, in the checking build.
///
/// Kernels are compiled with -fsanitize=thread, but linked without its runtime: the compiler calls the `__tsan_*`
/// functions at the end of this file at every load and store, and they lead to `observe`.

#include "common/gpu/emulator/access.hpp"

#include <link.h>

#include <atomic>
#include <cstring>

#include "common/gpu/emulator/block.hpp"
#include "common/gpu/emulator/memory.hpp"

namespace gpu::emulator {
namespace {

/// The constants of the program itself. Its variables are host memory, which a GPU does not reach.
struct Image {
  std::uintptr_t low = ~std::uintptr_t{0}, high = 0;
  Image() {
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* self) {
          auto& image = *static_cast<Image*>(self);
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& segment = info->dlpi_phdr[i];
            if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W)) continue;
            image.low = std::min(image.low, static_cast<std::uintptr_t>(info->dlpi_addr + segment.p_vaddr));
            image.high =
                std::max(image.high, static_cast<std::uintptr_t>(info->dlpi_addr + segment.p_vaddr + segment.p_memsz));
          }
          return 1;  // the first entry is the program itself
        },
        this);
  }
};

/// Locks for shadow words: blocks on several workers may touch the same one.
class ShadowLock {
 public:
  explicit ShadowLock(std::uintptr_t address) : flag_(locks()[address / 64 % kLocks]) {
    while (flag_.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~ShadowLock() { flag_.clear(std::memory_order_release); }

 private:
  static constexpr std::size_t kLocks = 1024;
  static std::atomic_flag* locks() {
    static std::atomic_flag flags[kLocks];
    return flags;
  }
  std::atomic_flag& flag_;
};

const char* verb(AccessKind kind) {
  return kind == AccessKind::load ? "reads" : kind == AccessKind::store ? "writes" : "updates";
}

void find(Place place, const std::string& what) {
  const std::string line = place.name();
  t_thread->block->launch.find(what.substr(0, what.find(':')) + line, line + ": " + what + " " + position(*t_thread));
}

/// \param block whose shared memory it is
/// \param unit 0: not to be counted
void observe_shared(Block& block, std::uintptr_t offset, std::size_t bytes, std::size_t unit, AccessKind kind,
                    Place place) {
  if (offset + bytes > block.memory->shared_bytes()) {
    find(place, std::string("out of bounds: ") + verb(kind) + " " + std::to_string(bytes) +
                    " bytes of shared memory at offset " + std::to_string(offset) + ", the kernel has " +
                    std::to_string(block.memory->shared_bytes()));
    return;
  }
  if (unit) {
    if (kind != AccessKind::store) t_worker->counts.shared_loads.bytes += bytes;
    if (kind != AccessKind::load) t_worker->counts.shared_stores.bytes += bytes;
    WarpAccesses* const accesses = t_thread->block->accesses.get();
    if (accesses) accesses->add(*t_thread, MemorySpace::shared, offset, bytes, unit, kind, place);
  }
  block.race->shared_access(block.race->agent_of(*t_thread), block.rank, offset, bytes, kind, place);
}

/// Most of what a kernel does in device memory comes here by one of the two calls, hence `inline`.
/// \param agent who accesses, of this thread's cluster
__attribute__((always_inline)) inline void observe_global(int agent, Allocation& a, std::uintptr_t address,
                                                          std::size_t bytes, std::size_t unit, AccessKind kind,
                                                          Place place) {
  if (a.freed) {
    find(place, std::string("use after free: ") + verb(kind) + " " + describe_address(address));
    return;
  }
  if (!a.holds(address) || !a.holds(address + bytes - 1)) {
    find(place, std::string("out of bounds: ") + verb(kind) + " " + std::to_string(bytes) + " bytes, " +
                    describe_address(a.holds(address) ? address + bytes - 1 : address));
    return;
  }
  if (unit) {
    if (kind != AccessKind::store) t_worker->counts.global_loads.bytes += bytes;
    if (kind != AccessKind::load) t_worker->counts.global_stores.bytes += bytes;
    WarpAccesses* const accesses = t_thread->block->accesses.get();
    if (accesses) accesses->add(*t_thread, MemorySpace::global, address, bytes, unit, kind, place);
  }
  const std::size_t first = address - a.data;
  for (std::size_t word = first / 4; word * 4 < first + bytes; ++word) {
    const std::size_t low = std::max(first, word * 4), high = std::min(first + bytes, word * 4 + 4);
    std::uint8_t touched = 0;
    for (std::size_t b = low; b < high; ++b) touched = static_cast<std::uint8_t>(touched | 1u << b % 4);
    // Four bytes' bits lie in one half of a bitmap byte.
    const std::atomic_ref<std::uint8_t> bits(a.written[word / 2]);
    const int shift = word % 2 ? 4 : 0;
    const auto wanted = static_cast<std::uint8_t>(touched << shift);
    if (kind != AccessKind::store && (bits.load(std::memory_order_relaxed) & wanted) != wanted) {
      find(place, std::string("uninitialised: ") + verb(kind) + " " + describe_address(a.data + low) +
                      ", which nobody has written");
    }
    if (kind != AccessKind::load && (bits.load(std::memory_order_relaxed) & wanted) != wanted) {
      bits.fetch_or(wanted, std::memory_order_relaxed);
    }
    const ShadowLock lock(a.data + word * 4);
    t_thread->block->race->global_access(agent, a.shadow[word], touched, kind, place, a.data + word * 4);
  }
}

bool is_parameter(std::uintptr_t address) {
  const KernelCall& call = t_thread->block->launch.call;
  return address - reinterpret_cast<std::uintptr_t>(call.object) < call.bytes;
}

void observe(const void* pointer, std::size_t bytes, std::size_t unit, AccessKind kind, Place place) {
  const Unwatched scope;
  if (t_worker->interrupted.load(std::memory_order_relaxed)) abandon_endless(place.name() + ": ");
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const Thread& me = *t_thread;
  const auto is_in_shared_of = [&](Block& block) {
    const std::uintptr_t shared = reinterpret_cast<std::uintptr_t>(block.memory->shared());
    // A little beyond the storage still means the storage: its red zone and guard.
    if (address - shared >= block.memory->shared_bytes() + 4096 || block.memory->shared_bytes() == 0) return false;
    observe_shared(block, address - shared, bytes, unit, kind, place);
    return true;
  };
  if (is_in_shared_of(*me.block)) return;
  if (me.block->cluster.blocks.size() > 1) {
    for (const auto& block : me.block->cluster.blocks) {
      if (block.get() != me.block && is_in_shared_of(*block)) return;
    }
  }
  if (Allocation* a = find_allocation(address)) {
    observe_global(me.block->race->agent_of(me), *a, address, bytes, unit, kind, place);
    return;
  }
  static const Image image;
  if (address - image.low < image.high - image.low || is_parameter(address)) return;
  find(place, std::string("foreign memory: ") + verb(kind) +
                  " memory that is neither shared memory nor a device buffer nor this thread's own: a host pointer or "
                  "another thread's local variable");
}

}  // namespace

void check_access(const void* address, std::size_t bytes, AccessKind kind, Place place) {
  observe(address, bytes, 0, kind, place);
}

void observe_access(const void* address, std::size_t bytes, std::size_t unit, AccessKind kind, Place place) {
  observe(address, bytes, unit, kind, place);
}

void check_device_access(int operation, const void* pointer, std::size_t bytes, AccessKind kind, Place place) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  observe_global(operation, *find_allocation(address), address, bytes, 0, kind, place);
}

}  // namespace gpu::emulator

// Kernels are compiled with -fsanitize=alignment in both builds: a float4 at an address that is no multiple of 16 leads
// here. The layout of the first argument is that of the compilers' runtime, compiler-rt's ubsan_handlers.h.
struct UbsanTypeMismatch {
  const char* file;
  std::uint32_t line;
  std::uint32_t column;
  const void* type;
  unsigned char log2_alignment;
  unsigned char kind;
};

extern "C" void __ubsan_handle_type_mismatch_v1(const UbsanTypeMismatch* what, std::uintptr_t) {
  using namespace gpu::emulator;
  if (!t_watched) return;
  const Unwatched scope;
  find(Place::site({what->file, what->line}), "misaligned: this access has to start at a multiple of " +
                                                  std::to_string(1u << what->log2_alignment) + " bytes");
}

#ifdef BOOK_EMULATOR_CHECK

namespace {

using gpu::emulator::AccessKind;

/// From the compiler's hook: most accesses of a kernel are to its own stack, and cost two comparisons.
__attribute__((always_inline)) inline void hook(const volatile void* pointer, std::size_t bytes, std::size_t unit,
                                                AccessKind kind, const void* return_address) {
  const gpu::emulator::Thread* me = gpu::emulator::t_watched;
  if (!me) return;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (address - me->stack_low < me->stack_high - me->stack_low) {
    if (me->products_in_flight) [[unlikely]] {
      gpu::emulator::check_registers(*me, address, bytes, kind, gpu::emulator::Place::code(return_address));
    }
    return;
  }
  gpu::emulator::observe_access(const_cast<const void*>(pointer), bytes, unit, kind,
                                gpu::emulator::Place::code(return_address));
}

}  // namespace

#define HOOK(pointer, bytes, kind) hook(pointer, bytes, bytes, AccessKind::kind, __builtin_return_address(0))
// Bytes of any number and alignment: a GPU's compiler makes words of them, or single bytes.
#define HOOK_RANGE(pointer, bytes, kind)                                                                    \
  hook(pointer, bytes, (reinterpret_cast<std::uintptr_t>(pointer) | (bytes)) % 4 ? 1 : 4, AccessKind::kind, \
       __builtin_return_address(0))

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_ignore_thread_begin() {}
void __tsan_ignore_thread_end() {}

#define HOOKS(bytes)                                                              \
  void __tsan_read##bytes(void* p) { HOOK(p, bytes, load); }                      \
  void __tsan_write##bytes(void* p) { HOOK(p, bytes, store); }                    \
  void __tsan_unaligned_read##bytes(void* p) { HOOK(p, bytes, load); }            \
  void __tsan_unaligned_write##bytes(void* p) { HOOK(p, bytes, store); }          \
  void __tsan_volatile_read##bytes(void* p) { HOOK(p, bytes, load); }             \
  void __tsan_volatile_write##bytes(void* p) { HOOK(p, bytes, store); }           \
  void __tsan_unaligned_volatile_read##bytes(void* p) { HOOK(p, bytes, load); }   \
  void __tsan_unaligned_volatile_write##bytes(void* p) { HOOK(p, bytes, store); } \
  void __tsan_read_write##bytes(void* p) {                                        \
    HOOK(p, bytes, load);                                                         \
    HOOK(p, bytes, store);                                                        \
  }                                                                               \
  void __tsan_unaligned_read_write##bytes(void* p) {                              \
    HOOK(p, bytes, load);                                                         \
    HOOK(p, bytes, store);                                                        \
  }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
#undef HOOKS

void __tsan_read_range(void* p, unsigned long bytes) { HOOK_RANGE(p, bytes, load); }
void __tsan_write_range(void* p, unsigned long bytes) { HOOK_RANGE(p, bytes, store); }

// memcpy, memmove and memset that the compiler leaves as calls: the linker's --wrap brings the whole program's here.
void* __real_memcpy(void* to, const void* from, std::size_t bytes);
void* __real_memmove(void* to, const void* from, std::size_t bytes);
void* __real_memset(void* to, int value, std::size_t bytes);
void* __wrap_memcpy(void* to, const void* from, std::size_t bytes) {
  if (bytes) HOOK_RANGE(from, bytes, load);
  if (bytes) HOOK_RANGE(to, bytes, store);
  return __real_memcpy(to, from, bytes);
}
void* __wrap_memmove(void* to, const void* from, std::size_t bytes) {
  if (bytes) HOOK_RANGE(from, bytes, load);
  if (bytes) HOOK_RANGE(to, bytes, store);
  return __real_memmove(to, from, bytes);
}
void* __wrap_memset(void* to, int value, std::size_t bytes) {
  if (bytes) HOOK_RANGE(to, bytes, store);
  return __real_memset(to, value, bytes);
}

// C++ atomics in host code of the same file: carried out, not watched. Kernels use atomic.cuh, which is.
#define ATOMICS(bits, T)                                                                                            \
  T __tsan_atomic##bits##_load(const volatile T* a, int) { return __atomic_load_n(a, __ATOMIC_SEQ_CST); }           \
  void __tsan_atomic##bits##_store(volatile T* a, T v, int) { __atomic_store_n(a, v, __ATOMIC_SEQ_CST); }           \
  T __tsan_atomic##bits##_exchange(volatile T* a, T v, int) { return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_add(volatile T* a, T v, int) { return __atomic_fetch_add(a, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_sub(volatile T* a, T v, int) { return __atomic_fetch_sub(a, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_and(volatile T* a, T v, int) { return __atomic_fetch_and(a, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_or(volatile T* a, T v, int) { return __atomic_fetch_or(a, v, __ATOMIC_SEQ_CST); }   \
  T __tsan_atomic##bits##_fetch_xor(volatile T* a, T v, int) { return __atomic_fetch_xor(a, v, __ATOMIC_SEQ_CST); } \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* a, T* c, T v, int, int) {                           \
    return __atomic_compare_exchange_n(a, c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                         \
  }                                                                                                                 \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* a, T* c, T v, int, int) {                             \
    return __atomic_compare_exchange_n(a, c, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                          \
  }                                                                                                                 \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* a, T c, T v, int, int) {                                 \
    __atomic_compare_exchange_n(a, &c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                               \
    return c;                                                                                                       \
  }
ATOMICS(8, std::uint8_t)
ATOMICS(16, std::uint16_t)
ATOMICS(32, std::uint32_t)
ATOMICS(64, std::uint64_t)
#undef ATOMICS
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"

#endif  // BOOK_EMULATOR_CHECK
