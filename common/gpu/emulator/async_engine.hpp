#pragma once
/// \file
/// What the hardware does beside the threads of a cluster: copies by TMA that have started and are not done. Not for
/// kernels.

#include <cstddef>
#include <memory>
#include <vector>

#include "common/gpu/emulator/race.hpp"

namespace gpu::emulator {

class Random;

/// A copy under way. It has one part or two: a load arrives; a store reads shared memory, and then writes.
class AsyncOperation {
 public:
  AsyncOperation(const char* operation, Place started_at, int block_rank)
      : name(operation), place(started_at), rank(block_rank) {}
  virtual ~AsyncOperation() = default;
  AsyncOperation(const AsyncOperation&) = delete;
  AsyncOperation& operator=(const AsyncOperation&) = delete;

  const char* const name;
  const Place place;
  const int rank;  ///< of the block whose shared memory it reads or writes
  int parts_done = 0;

  /// Does the next part. False if that was the last one.
  bool advance() {
    const bool more = do_part(parts_done);
    ++parts_done;
    if (!more) done_ = true;
    return more;
  }
  bool done() const { return done_; }

 protected:
  virtual bool do_part(int part) = 0;

 private:
  bool done_ = false;
};

/// The copies of a cluster, oldest first. They get on as late as the rules allow: when somebody needs what they do, or
/// when nothing else can run.
class AsyncEngine {
 public:
  void start(std::shared_ptr<AsyncOperation> operation) { operations_.push_back(std::move(operation)); }

  /// One copy gets on: the oldest, or with a seed any. False if there is none.
  bool advance_one(Random& random, bool any);
  /// Brings a copy so far that `parts` of its parts are done.
  void advance(AsyncOperation& operation, int parts);
  /// Everything gets done.
  void finish();
  /// A copy that still needs the shared memory of this block; null if there is none.
  const AsyncOperation* user_of(int rank) const;

 private:
  void forget_done();
  std::vector<std::shared_ptr<AsyncOperation>> operations_;
};

}  // namespace gpu::emulator
