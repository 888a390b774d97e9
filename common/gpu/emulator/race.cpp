/// \file
/// Vector clocks of one block.

#include "common/gpu/emulator/race.hpp"

#include <algorithm>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {

RaceChecker::RaceChecker(Block& block)
    : block_(block),
      threads_(block.threads.size()),
      clocks_(threads_ * threads_, 0),
      shared_((block.memory->shared_bytes() + 3) / 4) {
  for (std::size_t t = 0; t < threads_; ++t) clocks_[t * threads_ + t] = 1;
}

void RaceChecker::meet(const std::vector<int>& threads) {
  std::vector<std::uint32_t> joined(threads_, 0);
  for (const int t : threads) {
    const std::uint32_t* c = clocks(t);
    for (std::size_t i = 0; i < threads_; ++i) joined[i] = std::max(joined[i], c[i]);
  }
  for (const int t : threads) {
    std::copy(joined.begin(), joined.end(), clocks(t));
    ++clocks(t)[t];
  }
}

void RaceChecker::atomic_order(int thread, std::uintptr_t address) {
  std::vector<std::uint32_t>& word = atomics_[address];
  word.resize(threads_, 0);
  std::uint32_t* mine = clocks(thread);
  for (std::size_t i = 0; i < threads_; ++i) word[i] = mine[i] = std::max(mine[i], word[i]);
  ++mine[thread];
}

bool RaceChecker::known(int thread, const Access& earlier) {
  if (earlier.launch != block_.launch.serial) return true;
  if (earlier.block == static_cast<std::uint32_t>(block_.linear))
    return earlier.clock <= clocks(thread)[earlier.thread];
  // Between blocks the emulator only knows whether both used device-scope order at all.
  const unsigned char* synchronised = block_.launch.synchronised.get();
  return synchronised[earlier.block] && synchronised[block_.linear];
}

void RaceChecker::report(const char* memory, std::uint64_t where, int thread, AccessKind kind, Place place,
                         const Access& earlier) {
  const std::string here = place.name(), there = earlier.place.name();
  const auto did = [](AccessKind k) {
    return k == AccessKind::load ? "read" : k == AccessKind::store ? "wrote" : "updated";
  };
  const bool other_block = earlier.block != static_cast<std::uint32_t>(block_.linear);
  std::string text =
      here + ": race on " + memory + ": thread " + std::to_string(thread) + " " +
      (kind == AccessKind::load    ? "reads"
       : kind == AccessKind::store ? "writes"
                                   : "updates") +
      " " +
      (memory[0] == 's' ? "offset " + std::to_string(where) : describe_address(static_cast<std::uintptr_t>(where))) +
      ", which " + (other_block ? "block " + std::to_string(earlier.block) + "'s " : "") + "thread " +
      std::to_string(earlier.thread) + " " + did(earlier.kind) + " at " + there +
      (other_block ? ", and nothing orders the two blocks " : ", and no barrier lies between ") +
      position(block_, thread);
  // Once per pair of lines, whichever came first.
  block_.launch.find("race " + std::min(here, there) + " " + std::max(here, there), text);
}

template <int kWrites, int kReads>
void RaceChecker::check(int thread, ShadowWord<kWrites, kReads>& word, std::uint8_t mask, AccessKind kind, Place place,
                        const char* memory, std::uint64_t where) {
  const auto conflicts = [&](const Access& earlier) {
    return (earlier.bytes & mask) &&
           (earlier.thread != thread || earlier.block != static_cast<std::uint32_t>(block_.linear)) &&
           !(kind == AccessKind::atomic && earlier.kind == AccessKind::atomic) && !known(thread, earlier);
  };
  for (const Access& write : word.writes) {
    if (conflicts(write)) report(memory, where, thread, kind, place, write);
  }
  const Access now{place,
                   clocks(thread)[thread],
                   block_.launch.serial,
                   static_cast<std::uint32_t>(block_.linear),
                   static_cast<std::uint16_t>(thread),
                   mask,
                   kind};
  const auto remember = [&](Access* slots, int count) {
    // Best the slot of the same bytes and thread, else one whose access everybody here knows, else any.
    int best = static_cast<int>(block_.random.below(static_cast<unsigned>(count)));
    for (int i = count - 1; i >= 0; --i) {
      if (!slots[i].bytes || known(thread, slots[i])) best = i;
    }
    for (int i = 0; i < count; ++i) {
      if (slots[i].bytes == mask && slots[i].thread == thread && slots[i].block == now.block) best = i;
    }
    slots[best] = now;
  };
  if (kind == AccessKind::load) {
    remember(word.reads, kReads);
    return;
  }
  for (Access& read : word.reads) {
    if (conflicts(read)) report(memory, where, thread, kind, place, read);
    if (read.bytes & mask) read.bytes = 0;
  }
  remember(word.writes, kWrites);
}

void RaceChecker::set_pending(std::size_t offset, std::size_t bytes, Place place) {
  pending_.resize(shared_.size());
  for (std::size_t word = offset / 4; word * 4 < offset + bytes; ++word) pending_[word] = place;
}

void RaceChecker::shared_access(int thread, std::size_t offset, std::size_t bytes, AccessKind kind, Place place) {
  for (std::size_t word = offset / 4; word * 4 < offset + bytes; ++word) {
    std::uint8_t mask = 0;
    for (std::size_t b = std::max(offset, word * 4); b < std::min(offset + bytes, word * 4 + 4); ++b) {
      mask = static_cast<std::uint8_t>(mask | 1u << b % 4);
    }
    SharedShadow& shadow = shared_[word];
    if (!pending_.empty() && !(pending_[word] == Place())) {
      const std::string line = place.name(), copy = pending_[word].name();
      block_.launch.find("pending " + line + copy, line + ": touches offset " + std::to_string(word * 4) +
                                                       " of shared memory while the copy_async at " + copy +
                                                       " may still be under way: nobody has waited for it " +
                                                       position(block_, thread));
    }
    if (kind != AccessKind::store && (shadow.written & mask) != mask) {
      const std::string line = place.name();
      block_.launch.find("uninitialised " + line, line + ": uninitialised: reads offset " + std::to_string(word * 4) +
                                                      " of shared memory, which nobody has written " +
                                                      position(block_, thread));
    }
    check(thread, shadow, mask, kind, place, "shared memory", word * 4);
    if (kind != AccessKind::load) shadow.written = static_cast<std::uint8_t>(shadow.written | mask);
  }
}

void RaceChecker::global_access(int thread, GlobalShadow& word, std::uint8_t mask, AccessKind kind, Place place,
                                std::uintptr_t address) {
  check(thread, word, mask, kind, place, "device memory", address);
}

}  // namespace gpu::emulator
