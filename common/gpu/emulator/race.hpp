#pragma once
/// \file
/// Happens-before checking of one block's accesses by vector clocks (FastTrack: Flanagan and Freund, PLDI 2009).
///
/// Each thread counts its own time and knows how much of every other thread's time lies before its own present. A
/// barrier makes all of them know everything. An access races with an earlier one if that one is not known and one of
/// the two writes.

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/gpu/emulator/language.hpp"

namespace gpu::emulator {

struct Block;

/// A place in the program: the return address of an instrumented access, or a Site. One word, so that shadow cells stay
/// small.
class Place {
 public:
  Place() = default;
  static Place code(const void* return_address) { return Place(reinterpret_cast<std::uintptr_t>(return_address)); }
  static Place site(Site site);
  /// "row_sum.cuh:41"; looks the address up in the program's debug information.
  std::string name() const;
  friend bool operator==(Place, Place) = default;

 private:
  explicit Place(std::uintptr_t word) : word_(word) {}
  std::uintptr_t word_ = 0;
};

/// "chapters/00_first_kernel/row_sum.cuh:41" for any spelling of the path.
std::string short_path(const std::string& path);

enum class AccessKind : std::uint8_t { load, store, atomic };

/// Who touched some bytes of a word last, and when.
struct Access {
  Place place;
  std::uint32_t clock = 0;
  std::uint32_t launch = 0;
  std::uint32_t block = 0;
  std::uint16_t thread = 0;
  std::uint8_t bytes = 0;  ///< one bit for each of the word's four bytes; 0: empty
  AccessKind kind = AccessKind::load;
};

/// The remembered accesses to one 4-byte word.
template <int kWrites, int kReads>
struct ShadowWord {
  Access writes[kWrites];
  Access reads[kReads];
};
struct SharedShadow : ShadowWord<2, 3> {
  std::uint8_t written = 0;  ///< one bit a byte: has a value
};
using GlobalShadow = ShadowWord<1, 2>;  ///< device memory keeps those bits in its Allocation

/// The clocks of one block and the shadow of its shared memory.
class RaceChecker {
 public:
  explicit RaceChecker(Block& block);

  void shared_access(int thread, std::size_t offset, std::size_t bytes, AccessKind kind, Place place);
  /// \p word is the shadow of the word, `mask` the bytes touched.
  void global_access(int thread, GlobalShadow& word, std::uint8_t mask, AccessKind kind, Place place,
                     std::uintptr_t address);

  /// These bytes belong to an asynchronous copy started at `place`, until it is set again to no place.
  void set_pending(std::size_t offset, std::size_t bytes, Place place);

  /// All these threads now know what any of them knew.
  void meet(const std::vector<int>& threads);
  /// An atomic on this address orders its users.
  void atomic_order(int thread, std::uintptr_t address);

 private:
  std::uint32_t* clocks(int thread) { return &clocks_[static_cast<std::size_t>(thread) * threads_]; }
  bool known(int thread, const Access& earlier);
  template <int kWrites, int kReads>
  void check(int thread, ShadowWord<kWrites, kReads>& word, std::uint8_t mask, AccessKind kind, Place place,
             const char* memory, std::uint64_t where);
  void report(const char* memory, std::uint64_t where, int thread, AccessKind kind, Place place, const Access& earlier);

  Block& block_;
  std::size_t threads_;
  std::vector<std::uint32_t> clocks_;
  std::vector<SharedShadow> shared_;
  std::vector<Place> pending_;  ///< by word of shared memory; sized when the first copy starts
  std::unordered_map<std::uintptr_t, std::vector<std::uint32_t>> atomics_;
};

}  // namespace gpu::emulator
