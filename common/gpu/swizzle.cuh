#pragma once
/// \file
/// Swizzles: how rows are laid into shared memory so that neither rows nor columns of 16-byte chunks share banks.
///
/// A tile's rows of 32, 64 or 128 bytes stand one below the other. Within each row the 16-byte chunks change places:
/// chunk c of row r goes where chunk c ⊕ f(r) would be, with
///
///     32 bytes:   f(r) = r / 4 mod 2        (bit 4 of the address ⊕ bit 7)
///     64 bytes:   f(r) = r / 2 mod 4        (bits 4, 5 ⊕ bits 7, 8)
///     128 bytes:  f(r) = r mod 8            (bits 4, 5, 6 ⊕ bits 7, 8, 9)
///
/// 128 bytes, chunks of rows 0 to 7 as they lie in memory, left to right:
///
///     row 0:  0 1 2 3 4 5 6 7
///     row 1:  1 0 3 2 5 4 7 6
///     row 2:  2 3 0 1 6 7 4 5
///     row 3:  3 2 1 0 7 6 5 4
///     row 4:  4 5 6 7 0 1 2 3
///     row 5:  5 4 7 6 1 0 3 2
///     row 6:  6 7 4 5 2 3 0 1
///     row 7:  7 6 5 4 3 2 1 0
///
/// A column of one chunk in eight rows, which ldmatrix reads, then lies in eight different groups of four banks. The
/// pattern follows the *address*: TMA writes it, WGMMA reads it, and code that computes offsets by hand uses
/// `swizzled_offset`. The tile has to start at a multiple of 8 rows: 256, 512 or 1024 bytes.
///
/// Source: PTX ISA, "Tensor Swizzling Modes" and "Shared Memory Matrix Layout"; CUTLASS writes them Swizzle<1..3, 4,
/// 3>.

#include <cstdint>

namespace gpu {

/// How many bytes a row of a swizzled tile has.
enum class Swizzle : std::uint32_t { none = 0, bytes_32 = 1, bytes_64 = 2, bytes_128 = 3 };

/// Bytes of a swizzled row; 16 without a swizzle, the width of a core matrix.
constexpr std::uint32_t swizzle_bytes(Swizzle swizzle) { return 16u << static_cast<std::uint32_t>(swizzle); }

/// Bytes after which the pattern repeats: 8 rows, and 16 without a swizzle. A tile starts at a multiple of it.
constexpr std::uint32_t swizzle_period(Swizzle swizzle) {
  return swizzle == Swizzle::none ? 16 : 8 * swizzle_bytes(swizzle);
}

/// Where the byte goes that without a swizzle would be at `offset` from the start of the tile.
constexpr std::uint32_t swizzled_offset(Swizzle swizzle, std::uint32_t offset) {
  const std::uint32_t chunk_bits = swizzle_bytes(swizzle) - 16;  // 0, bit 4, bits 4-5, bits 4-6
  return offset ^ ((offset >> 3) & chunk_bits);
}

}  // namespace gpu
