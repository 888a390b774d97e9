/// \file
/// When copies get on.

#include "common/gpu/emulator/async_engine.hpp"

#include <algorithm>

#include "common/gpu/emulator/block.hpp"

namespace gpu::emulator {

void AsyncEngine::forget_done() {
  std::erase_if(operations_, [](const std::shared_ptr<AsyncOperation>& operation) { return operation->done(); });
}

bool AsyncEngine::advance_one(Random& random, bool any) {
  forget_done();
  if (operations_.empty()) return false;
  const std::size_t which = any ? random.below(static_cast<unsigned>(operations_.size())) : 0;
  // A copy that arrives may wake a thread, which starts others: keep this one alive.
  const std::shared_ptr<AsyncOperation> operation = operations_[which];
  operation->advance();
  return true;
}

void AsyncEngine::advance(AsyncOperation& operation, int parts) {
  while (!operation.done() && operation.parts_done < parts) operation.advance();
  forget_done();
}

void AsyncEngine::finish() {
  for (const auto& operation : operations_) {
    while (!operation->done()) operation->advance();
  }
  operations_.clear();
}

const AsyncOperation* AsyncEngine::user_of(int rank) const {
  const auto user = std::find_if(operations_.begin(), operations_.end(), [&](const auto& operation) {
    return operation->rank == rank && operation->parts_done == 0;
  });
  return user == operations_.end() ? nullptr : user->get();
}

}  // namespace gpu::emulator
