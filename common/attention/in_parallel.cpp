#include "common/attention/in_parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace attention {

void in_parallel(std::int64_t count, const std::function<void(std::int64_t)>& f) {
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr first;
  const auto work = [&] {
    for (std::int64_t i; (i = next++) < count;) {
      try {
        f(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    }
  };
  std::vector<std::thread> threads;
  const std::int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  for (std::int64_t t = 1; t < std::min(cores, count); ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

void in_parallel_parts(std::int64_t count, std::int64_t part,
                       const std::function<void(std::int64_t, std::int64_t)>& f) {
  in_parallel((count + part - 1) / part, [&](std::int64_t i) { f(i * part, std::min(count, (i + 1) * part)); });
}

std::int64_t find_in_parallel(std::int64_t count, const std::function<bool(std::int64_t)>& f) {
  std::atomic<std::int64_t> least = count;
  in_parallel(count, [&](std::int64_t i) {
    std::int64_t found = least;
    if (i >= found || !f(i)) return;
    while (i < found && !least.compare_exchange_weak(found, i)) {
    }
  });
  return least;
}

}  // namespace attention
