#pragma once
/// \file
/// The order in which tiles of many heads start, so that heads that run at the same time fit into the L2 together.
/// Taught in chapter 09.

#include <algorithm>
#include <cstdint>

namespace kernel {

/// One of the tiles of a head.
struct TileOfHead {
  int head, tile;
};

/// Heads in sections of `section`: first the first tiles of all heads of the first section, then their second tiles, …
///
/// With a section of one, a head's tiles follow each other; with one section for all, all heads' first tiles come
/// first.
struct Sections {
  int tiles, heads, section;  ///< tiles of a head, heads in all, heads of a section; each at least 1

  /// Half of an H200's L2. The L2 is in two parts, and each keeps what the multiprocessors beside it read (NVIDIA, A100
  /// whitepaper, "L2 cache"): what all of them read lies in both.
  static constexpr std::int64_t kBytes = std::int64_t{32} << 20;

  /// Sections as large as fit: of one head at least, and of all at most.
  ///
  /// \param bytes_of_head what a head's tiles share, and should find in the L2
  /// \param heads as many as there are, even if a grid has no room for their tiles: the launch refuses that
  static Sections that_fit(std::int64_t bytes_of_head, int tiles, std::int64_t heads) {
    const std::int64_t fit = kBytes / std::max<std::int64_t>(1, bytes_of_head);
    return {tiles, static_cast<int>(heads), static_cast<int>(std::max<std::int64_t>(1, std::min(fit, heads)))};
  }

  /// Which one is the `number`-th to start, 0 ≤ number < tiles · heads < 2³¹. The last section may have fewer heads.
  constexpr TileOfHead operator[](int number) const {
    const int first_head = number / (section * tiles) * section;
    const int together = section < heads - first_head ? section : heads - first_head;
    const int inside = number - first_head * tiles;
    const int tile = inside / together;
    return {first_head + inside - tile * together, tile};
  }
};

}  // namespace kernel
