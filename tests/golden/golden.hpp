#pragma once
/// \file
/// Golden data: bytes that an H200 gave, kept in this folder as hexadecimal text, one file a name.
///
/// A golden test is an ordinary test that runs on both machines. It brings bytes (a layout, a product, a conversion) to
/// `golden::difference(name, bytes)`, which compares them bit for bit with the file. `tests/golden/record` runs the
/// same tests on a GPU with BOOK_RECORD_GOLDEN set: then the files are written instead.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "common/gpu/device.hpp"

namespace golden {

inline constexpr std::size_t kBytesPerLine = 32;

inline std::string path(const std::string& name) {
  return std::string(BOOK_SOURCE_DIR "/tests/golden/") + name + ".hex";
}

inline std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  char digits[3];
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(bytes[i]));
    text += digits;
    if (i % kBytesPerLine == kBytesPerLine - 1 || i + 1 == bytes.size()) text += '\n';
  }
  return text;
}

/// Empty if the bytes are those of the file; otherwise a sentence that names the first difference. While recording on a
/// GPU it writes the file and finds no difference.
inline std::string difference(const std::string& name, std::span<const std::byte> bytes) {
  const std::string text = to_hex(bytes);
  if (std::getenv("BOOK_RECORD_GOLDEN") && !gpu::device().emulated) {
    std::ofstream file(path(name), std::ios::binary);
    file << text;
    file.close();
    return file ? "" : path(name) + " cannot be written";
  }
  std::ifstream file(path(name), std::ios::binary);
  if (!file) return path(name) + " is missing: run tests/golden/record on an H200";
  const std::string wanted{std::istreambuf_iterator<char>(file), {}};
  if (wanted == text) return "";
  std::size_t at = 0;
  while (at < wanted.size() && at < text.size() && wanted[at] == text[at]) ++at;
  const std::size_t line = at / (2 * kBytesPerLine + 1), byte = line * kBytesPerLine + at % (2 * kBytesPerLine + 1) / 2;
  const auto around = [&](const std::string& hex) {
    return at < hex.size() ? hex.substr(at & ~std::size_t{1}, 8) : "the end";
  };
  return name + ": byte " + std::to_string(byte) + " of " + std::to_string(bytes.size()) + " is " + around(text) +
         ", on the H200 it was " + around(wanted);
}

/// The same for the elements of a vector.
template <class T>
std::string difference(const std::string& name, const std::vector<T>& values) {
  return difference(name, std::as_bytes(std::span(values)));
}

}  // namespace golden
