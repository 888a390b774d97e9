#pragma once
/// \file
/// Peers: attention of other libraries, measured in the same process and the same rounds as a chapter's kernels.
///
/// They come from a library that is built only where the other library is installed (`peers/pytorch.cpp`), and that a
/// program loads when it measures: no program is linked against it.

#include <stdexcept>
#include <string>
#include <vector>

#include "common/stage/kernel.hpp"
#include "common/stage/peers/peer.h"

namespace stage {

/// There are no peers here, or not the one that was asked for; the message says why.
struct NoPeers : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Where the build puts PyTorch's peers; empty on the emulator, which times nothing.
std::string peer_library_path();

/// A loaded peer library. It stays loaded to the end of the process.
class PeerLibrary {
 public:
  /// \throws NoPeers if there is no such file, if it cannot be loaded, or if it was built for another interface.
  explicit PeerLibrary(const std::string& path);

  /// "PyTorch 2.11.0".
  std::string version() const { return peers_->version; }
  /// Names of the peers, in the library's order.
  std::vector<std::string> names() const;
  /// The peer as C sees it. \throws NoPeers if it has none of this name.
  const BookPeer& peer(const std::string& name) const;
  /// The peer as a kernel: it refuses windows, elements of another type than its own, and what the library does not
  /// take.
  /// \throws NoPeers if it has none of this name.
  ForwardKernel kernel(const std::string& name) const;
  /// Those of these names whose element type one of the problems has.
  /// \param[out] left_out the other names
  /// \throws NoPeers if it has none of one of these names.
  std::vector<ForwardKernel> kernels(const std::vector<std::string>& names,
                                     const std::vector<attention::Problem>& problems,
                                     std::vector<std::string>& left_out) const;
  /// Gives back the device memory that the library keeps for its next run.
  void release() const { peers_->release(); }

 private:
  const BookPeers* peers_ = nullptr;
};

}  // namespace stage
