#pragma once
/// \file
/// Finds out which accesses of a warp's threads were one instruction of the warp, and counts what it cost.
///
/// On a GPU the lanes of a warp execute a load together. Here they are fibers that run one after the other, so their
/// accesses have to be matched: the n-th time that one lane comes to an instruction belongs to the n-th time that the
/// others do. The count starts again where lanes meet, at a barrier, a shuffle or a vote; so that a lane that left a
/// loop early is in step again after the next of them.
///
/// A lane's stretch between two meetings has a number. Those who meet start the same stretch: the next number after all
/// of theirs. So parts of a warp that meet among themselves stay matched with the other parts as long as all do the
/// same.

#include <array>
#include <cstdint>
#include <vector>

#include "common/gpu/emulator/race.hpp"
#include "common/gpu/emulator/warp_request.hpp"

namespace gpu::emulator {

struct Block;
struct Thread;

enum class MemorySpace : std::uint8_t { global, shared };

/// The requests of one block's warps, where EmulatorOptions::count_requests asks for them.
class WarpAccesses {
 public:
  explicit WarpAccesses(Block& block);

  /// A thread touches `bytes` bytes at an address: of device memory, or an offset into shared memory. `unit`: as many
  /// of them as one instruction of a GPU takes, at most 16.
  void add(const Thread& thread, MemorySpace space, std::uint64_t address, std::size_t bytes, std::size_t unit,
           AccessKind kind, Place place);

  /// These threads of the block have met.
  void meet(const std::vector<int>& threads);

  /// Counts all that is open: at the end of the block nobody else comes.
  void close_all();

 private:
  /// What tells one stream of requests from another.
  struct Key {
    Place place;
    std::uint32_t stretch = 0;
    std::uint32_t piece = 0;  ///< of an access that takes several instructions
    std::uint8_t bytes = 0;
    AccessKind kind{};
    MemorySpace space{};
    friend bool operator==(const Key&, const Key&) = default;
  };
  /// One instruction in one stretch.
  struct Stream {
    Key key;
    std::array<std::uint32_t, 32> passed{};  ///< by lane: how often it came here
    std::vector<std::uint32_t> open;         ///< by number of the passage: index into requests_, or kCounted
  };
  struct Warp {
    std::array<std::uint32_t, 32> stretch{};  ///< by lane
    std::vector<Stream> streams;              ///< the first `used`; the others wait for another use
    std::size_t used = 0;
    std::vector<std::uint32_t> index;  ///< hash table: 1 + position in `streams`, or 0
  };

  void pass(const Thread& thread, const Key& key, std::uint64_t address);
  Stream& stream(Warp& warp, const Key& key);
  static std::size_t hash(const Key& key);
  void rebuild_index(Warp& warp, std::size_t size);
  std::uint32_t open_request(const Key& key);
  void close(const Key& key, std::uint32_t& request);
  /// Counts what is open of the stretches before this one, which no lane is in any more.
  void close_before(Warp& warp, std::uint32_t stretch);

  Block& block_;
  std::vector<Warp> warps_;
  std::vector<WarpRequest> requests_;
  std::vector<std::uint32_t> free_;
};

}  // namespace gpu::emulator
