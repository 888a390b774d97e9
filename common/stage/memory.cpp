#include "common/stage/memory.hpp"

#include <fstream>
#include <limits>
#include <string>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace stage {
namespace {

double gradient_elements(const attention::Problem& p) {
  return static_cast<double>(p.elements_dq()) + static_cast<double>(p.elements_dk()) +
         static_cast<double>(p.elements_dv());
}

/// Of those arrays whose elements are of the problem's type.
double elements_of(const attention::Problem& p, Pass pass) {
  const double forward = static_cast<double>(p.elements_q()) + static_cast<double>(p.elements_k()) +
                         static_cast<double>(p.elements_v()) + static_cast<double>(p.elements_o());
  if (pass == Pass::forward) return forward;
  return forward + static_cast<double>(p.elements_dout()) + gradient_elements(p);
}

/// Bytes that were freed and have stayed with the process.
double kept_in_heap() {
#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 33)
  return static_cast<double>(mallinfo2().fordblks);
#endif
#endif
  return 0;
}

}  // namespace

void keep_freed_memory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);         // large arrays, too, come from the heap,
  mallopt(M_TRIM_THRESHOLD, -1);  // and its end is not given back
#endif
}

double host_memory_available() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  double kibibytes = 0;
  while (meminfo >> key >> kibibytes) {
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") return kibibytes * 1024 + kept_in_heap();
  }
  return std::numeric_limits<double>::infinity();
}

int outputs_of(Pass pass) { return pass == Pass::forward ? 2 : 3; }

double array_bytes(const attention::Problem& p, Pass pass) {
  return attention::element_bytes(p.element_type) * elements_of(p, pass) +
         sizeof(float) * static_cast<double>(p.elements_lse());
}

double host_bytes(const attention::Problem& p, bool emulated, Pass pass) {
  const double forward = static_cast<double>(p.elements_o()) + static_cast<double>(p.elements_lse());
  double reference = (sizeof(double) + sizeof(float)) * forward;
  // The gradients' reference, plain attention's, and what two runs gave.
  if (pass == Pass::backward) reference += (sizeof(double) + 3 * sizeof(float)) * gradient_elements(p);
  // The numbers that are encoded, and those that are decoded.
  if (p.element_type != attention::ElementType::fp32) reference += sizeof(float) * elements_of(p, pass);
  return (emulated ? 2 : 1) * array_bytes(p, pass) + reference;
}

}  // namespace stage
