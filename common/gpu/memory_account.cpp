#include "common/gpu/memory_account.hpp"

#include <algorithm>
#include <mutex>

#include "common/gpu/device.hpp"

namespace gpu {
namespace {

std::mutex g_mutex;
std::size_t g_in_use = 0;
std::size_t g_peak = 0;

}  // namespace

void account_allocated(std::size_t bytes) noexcept {
  const std::lock_guard lock(g_mutex);
  g_in_use += bytes;
  g_peak = std::max(g_peak, g_in_use);
}

void account_freed(std::size_t bytes) noexcept {
  const std::lock_guard lock(g_mutex);
  g_in_use -= bytes;
}

std::size_t memory_in_use() {
  const std::lock_guard lock(g_mutex);
  return g_in_use;
}

std::size_t memory_peak() {
  const std::lock_guard lock(g_mutex);
  return g_peak;
}

void reset_memory_peak() {
  const std::lock_guard lock(g_mutex);
  g_peak = g_in_use;
}

}  // namespace gpu
