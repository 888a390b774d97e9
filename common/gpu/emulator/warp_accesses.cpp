/// \file
/// Requests of warps.

#include "common/gpu/emulator/warp_accesses.hpp"

#include <algorithm>
#include <bit>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {
namespace {

constexpr std::uint32_t kCounted = ~0u;
/// Requests of a block that wait for lanes, 264 bytes each. Who runs further ahead than that is no longer matched.
constexpr std::size_t kMostOpen = 1 << 16;

void count(MemorySpace space, AccessKind kind, const WarpRequest& request) {
  KernelCounts& counts = t_worker->counts;
  const bool loads = kind != AccessKind::store, stores = kind != AccessKind::load;
  if (space == MemorySpace::global) {
    const std::uint32_t touched = sectors(request);
    const auto add = [&](GlobalAccesses& sum) {
      ++sum.requests;
      sum.sectors += touched;
    };
    if (loads) add(counts.global_loads);
    if (stores) add(counts.global_stores);
  } else {
    const auto add = [&](SharedAccesses& sum, bool is_load) {
      const Wavefronts needed = wavefronts(request, is_load);
      ++sum.requests;
      sum.wavefronts += needed.taken;
      sum.conflicts += needed.taken - needed.least;
    };
    if (loads) add(counts.shared_loads, true);
    if (stores) add(counts.shared_stores, false);
  }
}

}  // namespace

WarpAccesses::WarpAccesses(Block& block) : block_(block), warps_(block.alive_lanes.size()) {}

void WarpAccesses::add(const Thread& thread, MemorySpace space, std::uint64_t address, std::size_t bytes,
                       std::size_t unit, AccessKind kind, Place place) {
  const std::uint32_t stretch =
      warps_[static_cast<std::size_t>(thread.warp)].stretch[static_cast<std::size_t>(thread.lane)];
  Key key{place, stretch, 0, static_cast<std::uint8_t>(unit), kind, space};
  for (std::size_t done = 0; done < bytes; done += unit, ++key.piece) pass(thread, key, address + done);
}

void WarpAccesses::pass(const Thread& thread, const Key& key, std::uint64_t address) {
  if (requests_.size() - free_.size() >= kMostOpen) close_all();
  const auto warp = static_cast<std::size_t>(thread.warp), lane = static_cast<std::size_t>(thread.lane);
  Stream& s = stream(warps_[warp], key);
  const std::uint32_t passage = s.passed[lane]++;
  if (passage == s.open.size()) s.open.push_back(open_request(key));
  WarpRequest& request = requests_[s.open[passage]];
  request.address[lane] = address;
  request.lanes |= 1u << lane;
  if (!(block_.alive_lanes[warp] & ~request.lanes)) close(key, s.open[passage]);
}

WarpAccesses::Stream& WarpAccesses::stream(Warp& warp, const Key& key) {
  if (2 * warp.used >= warp.index.size()) rebuild_index(warp, std::max<std::size_t>(64, 2 * warp.index.size()));
  const std::size_t mask = warp.index.size() - 1;
  std::size_t at = hash(key) & mask;
  for (; warp.index[at]; at = (at + 1) & mask) {
    Stream& known = warp.streams[warp.index[at] - 1];
    if (known.key == key) return known;
  }
  if (warp.used == warp.streams.size()) warp.streams.emplace_back();
  Stream& fresh = warp.streams[warp.used++];
  fresh.key = key;
  fresh.passed.fill(0);
  fresh.open.clear();
  warp.index[at] = static_cast<std::uint32_t>(warp.used);
  return fresh;
}

std::size_t WarpAccesses::hash(const Key& key) {
  const std::uint64_t word = key.place.word() * 8 + static_cast<std::uint64_t>(key.kind) * 2 +
                             static_cast<std::uint64_t>(key.space) + key.stretch * 0x9E3779B9ull +
                             key.piece * 0x85EBCA6Bull;
  return static_cast<std::size_t>((word * 0x9E3779B97F4A7C15ull) >> 32);
}

void WarpAccesses::rebuild_index(Warp& warp, std::size_t size) {
  warp.index.assign(size, 0);
  for (std::uint32_t i = 0; i < warp.used; ++i) {
    std::size_t at = hash(warp.streams[i].key) & (size - 1);
    while (warp.index[at]) at = (at + 1) & (size - 1);
    warp.index[at] = i + 1;
  }
}

std::uint32_t WarpAccesses::open_request(const Key& key) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(requests_.size()));
    requests_.emplace_back();
  }
  const std::uint32_t request = free_.back();
  free_.pop_back();
  requests_[request].lanes = 0;
  requests_[request].bytes = key.bytes;
  return request;
}

void WarpAccesses::close(const Key& key, std::uint32_t& request) {
  count(key.space, key.kind, requests_[request]);
  free_.push_back(request);
  request = kCounted;
}

void WarpAccesses::close_before(Warp& warp, std::uint32_t stretch) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < warp.used; ++i) {
    Stream& s = warp.streams[i];
    if (s.key.stretch >= stretch) {
      std::swap(warp.streams[kept++], s);
      continue;
    }
    for (std::uint32_t& request : s.open) {
      if (request != kCounted) close(s.key, request);
    }
  }
  if (kept == warp.used) return;
  warp.used = kept;
  rebuild_index(warp, warp.index.size());
}

void WarpAccesses::meet(const std::vector<int>& threads) {
  std::uint32_t next = 0, met_warps = 0;
  const auto stretch_of = [&](int thread) -> std::uint32_t& {
    return warps_[static_cast<std::size_t>(thread / 32)].stretch[static_cast<std::size_t>(thread % 32)];
  };
  for (const int thread : threads) next = std::max(next, stretch_of(thread) + 1);
  for (const int thread : threads) {
    stretch_of(thread) = next;
    met_warps |= 1u << thread / 32;
  }
  for (; met_warps; met_warps &= met_warps - 1) {
    const auto warp = static_cast<std::size_t>(std::countr_zero(met_warps));
    std::uint32_t oldest = next;
    for (unsigned alive = block_.alive_lanes[warp]; alive; alive &= alive - 1) {
      oldest = std::min(oldest, warps_[warp].stretch[static_cast<std::size_t>(std::countr_zero(alive))]);
    }
    close_before(warps_[warp], oldest);
  }
}

void WarpAccesses::close_all() {
  for (Warp& warp : warps_) close_before(warp, ~0u);
}

}  // namespace gpu::emulator
