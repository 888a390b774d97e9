#pragma once
/// \file
/// What one load or store of a warp costs: sectors of device memory, wavefronts of shared memory. Pure functions of the
/// lanes' addresses.

#include <array>
#include <cstdint>

namespace gpu::emulator {

/// One instruction of one warp: each lane in `lanes` touches `bytes` bytes, 1 to 16, from its address on.
struct WarpRequest {
  std::array<std::uint64_t, 32> address{};
  std::uint32_t lanes = 0;
  std::uint32_t bytes = 4;
};

/// The different ones among some numbers, kept in 32 buckets by number mod 32.
class DistinctNumbers {
 public:
  void add(std::uint64_t number) {
    const auto bucket = static_cast<std::size_t>(number % 32);
    for (std::uint8_t i = last_[bucket]; i > 0; i = before_[i]) {
      if (kept_[i] == number) return;
    }
    ++count_;
    kept_[count_] = number;
    before_[count_] = last_[bucket];
    last_[bucket] = static_cast<std::uint8_t>(count_);
    if (++sizes_[bucket] > fullest_) fullest_ = sizes_[bucket];
  }
  std::uint32_t count() const { return count_; }
  std::uint32_t fullest() const { return fullest_; }

 private:
  // From 1 on; each with the one before it in its bucket. A misaligned access touches one piece more than others: at
  // most two sectors in each of 32 lanes, five words in each of 16.
  std::uint64_t kept_[129];
  std::uint8_t before_[129];
  std::uint8_t last_[32]{}, sizes_[32]{};
  std::uint32_t count_ = 0, fullest_ = 0;
};

/// Calls visit(k) with every k for which lane's bytes touch the piece [k · size, (k + 1) · size).
template <class Visit>
void for_pieces(const WarpRequest& request, int lane, std::uint64_t size, Visit visit) {
  const std::uint64_t first = request.address[static_cast<std::size_t>(lane)];
  for (std::uint64_t piece = first / size; piece * size < first + request.bytes; ++piece) visit(piece);
}

/// The 32-byte sectors that a request to device memory touches.
inline std::uint32_t sectors(const WarpRequest& request) {
  DistinctNumbers touched;
  for (int lane = 0; lane < 32; ++lane) {
    if (request.lanes >> lane & 1u) for_pieces(request, lane, 32, [&](std::uint64_t sector) { touched.add(sector); });
  }
  return touched.count();
}

struct Wavefronts {
  std::uint32_t taken = 0;
  std::uint32_t least = 0;  ///< what the request takes without bank conflicts
  friend bool operator==(const Wavefronts&, const Wavefronts&) = default;
};

/// True if each of these lanes takes what lane ⊕ distance takes, where that one takes part.
inline bool in_pairs(const WarpRequest& request, int first, int lanes, int distance) {
  for (int lane = first; lane < first + lanes; ++lane) {
    const int partner = lane ^ distance;
    const bool both = (request.lanes >> lane & 1u) && (request.lanes >> partner & 1u);
    if (both && request.address[static_cast<std::size_t>(lane)] != request.address[static_cast<std::size_t>(partner)])
      return false;
  }
  return true;
}

/// The wavefronts that a request to shared memory takes.
///
/// Shared memory has 32 banks of 4 bytes; in a wavefront each bank delivers one word, to any number of lanes. A
/// wavefront carries 128 bytes, so that accesses of 8 bytes go as two half-warps and accesses of 16 bytes as four
/// quarter-warps. Each such part takes as many wavefronts as its busiest bank has different words; a part without a
/// lane takes none. (CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x and later.)
///
/// Two neighbouring parts of a *load* go together if in both every lane takes what its neighbour (lane ⊕ 1) takes, or
/// every lane what the one after that (lane ⊕ 2) takes: then they want no more than 128 bytes. Parts of a store never
/// do. The guide does not say so; the counters of an H200 do (the patterns in tests/common/gpu/test_warp_request.cpp).
inline Wavefronts wavefronts(const WarpRequest& request, bool is_load) {
  const int lanes_of_part = request.bytes > 8 ? 8 : request.bytes > 4 ? 16 : 32;
  Wavefronts sum;
  const auto add_part = [&](int first, int lanes) {
    DistinctNumbers words;
    for (int lane = first; lane < first + lanes; ++lane) {
      if (request.lanes >> lane & 1u) for_pieces(request, lane, 4, [&](std::uint64_t word) { words.add(word); });
    }
    sum.taken += words.fullest();
    sum.least += words.count() > 0;
  };
  if (lanes_of_part == 32) {
    add_part(0, 32);
    return sum;
  }
  const int lanes_of_two = 2 * lanes_of_part;
  for (int first = 0; first < 32; first += lanes_of_two) {
    if (is_load && (in_pairs(request, first, lanes_of_two, 1) || in_pairs(request, first, lanes_of_two, 2))) {
      add_part(first, lanes_of_two);
    } else {
      add_part(first, lanes_of_part);
      add_part(first + lanes_of_part, lanes_of_part);
    }
  }
  return sum;
}

}  // namespace gpu::emulator
