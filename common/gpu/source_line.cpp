#include <charconv>

#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"

namespace gpu {

SourceLine SourceLine::parse(const std::string& text) {
  const auto colon = text.rfind(':');
  SourceLine result;
  if (colon != std::string::npos && colon > 0) {
    const char* begin = text.data() + colon + 1;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(begin, end, result.line);
    if (error == std::errc{} && stop == end && begin != end && result.line > 0) {
      result.file = text.substr(0, colon);
      return result;
    }
  }
  throw Error("'" + text + "' is no source line; allowed: FILE:LINE, for example row_sum.cuh:41");
}

}  // namespace gpu
