#include "common/stage/memory.hpp"

#include <fstream>
#include <limits>
#include <string>

namespace stage {

double host_memory_available() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  double kibibytes = 0;
  while (meminfo >> key >> kibibytes) {
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") return kibibytes * 1024;
  }
  return std::numeric_limits<double>::infinity();
}

double array_bytes(const attention::Problem& p) {
  return 4.0 * (static_cast<double>(p.elements_q()) + static_cast<double>(p.elements_k()) +
                static_cast<double>(p.elements_v()) + static_cast<double>(p.elements_o()) +
                static_cast<double>(p.elements_lse()));
}

double host_bytes(const attention::Problem& p, bool emulated) {
  const double results = static_cast<double>(p.elements_o()) + static_cast<double>(p.elements_lse());
  const double reference = (sizeof(double) + sizeof(float)) * results;
  return (emulated ? 2 : 1) * array_bytes(p) + reference;
}

}  // namespace stage
