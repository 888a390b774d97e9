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

}  // namespace attention
