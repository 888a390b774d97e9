#include "common/stage/peers.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "common/gpu/device.hpp"
#include "common/stage/command_line.hpp"

namespace stage {
namespace {

using attention::ForwardArgs;
using attention::Mask;
using attention::Problem;
using PeerFunction = int (*)(const BookPeerForward*, char*, std::size_t);

BookPeerStrides peer_strides(const attention::Strides& strides) { return {strides.batch, strides.seq, strides.head}; }

template <class T>
BookPeerForward peer_forward(const ForwardArgs<T>& args) {
  return {.q = args.q_gmem,
          .k = args.k_gmem,
          .v = args.v_gmem,
          .o = args.o_gmem,
          .lse = args.lse_gmem,
          .q_strides = peer_strides(args.q_strides),
          .k_strides = peer_strides(args.k_strides),
          .v_strides = peer_strides(args.v_strides),
          .o_strides = peer_strides(args.o_strides),
          .batch = args.batch,
          .heads_q = args.heads_q,
          .heads_kv = args.heads_kv,
          .seqlen_q = args.seqlen_q,
          .seqlen_kv = args.seqlen_kv,
          .head_dim = args.head_dim,
          .is_causal = args.mask == Mask::causal(),
          .softmax_scale = args.softmax_scale};
}

/// Calls one of a peer's functions. \return its complaint; empty if it had none.
template <class T>
std::string complaint_of(PeerFunction function, const ForwardArgs<T>& args) {
  const BookPeerForward forward = peer_forward(args);
  char sentence[1000] = "";
  if (function(&forward, sentence, sizeof sentence) == 0) return "";
  return sentence[0] ? sentence : "it gave no reason";
}

void require(const BookPeer& peer, const Problem& p) {
  if (p.mask != Mask::none() && p.mask != Mask::causal()) {
    throw Refused(fmt::format("{} does not take {}; allowed: no mask, causal", peer.name, p.mask.name()));
  }
  // It looks at sizes and mask only, so that any type will do.
  const auto args = attention::make_forward_args<float>(p, nullptr, nullptr, nullptr, nullptr, nullptr);
  if (const std::string sentence = complaint_of(peer.require, args); !sentence.empty()) {
    throw Refused(fmt::format("{} {}", peer.name, sentence));
  }
}

template <class T>
void call(const BookPeer& peer, PeerFunction function, const ForwardArgs<T>& args) {
  if (const std::string sentence = complaint_of(function, args); !sentence.empty()) {
    throw gpu::Error(fmt::format("{}: {}", peer.name, sentence));
  }
}

using Launch = LaunchByType<ForwardArgs>;

/// Takes the element type of a peer, and no other.
Launch only(int peer_element) {
  switch (peer_element) {
    case BOOK_PEER_FP32:
      return [](const ForwardArgs<float>&, void*) {};
    case BOOK_PEER_FP16:
      return [](const ForwardArgs<gpu::fp16>&, void*) {};
    case BOOK_PEER_BF16:
      return [](const ForwardArgs<gpu::bf16>&, void*) {};
    default:
      return {};
  }
}

}  // namespace

std::string peer_library_path() {
#ifdef BOOK_PEER_LIBRARY
  return BOOK_PEER_LIBRARY;
#else
  return "";
#endif
}

PeerLibrary::PeerLibrary(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    throw NoPeers(
        "the build found no PyTorch with CUDA in this python3, or `./learn bench` has not built its peers yet");
  }
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw NoPeers(fmt::format("the library of the peers cannot be loaded: {}", ::dlerror()));
  const auto function = reinterpret_cast<BookPeersFunction>(::dlsym(library, "book_peers"));
  if (function) peers_ = function();
  if (!peers_ || peers_->interface_version != BOOK_PEER_INTERFACE) {
    throw NoPeers(fmt::format("'{}' was built for another version of the book; build it again", path));
  }
}

std::vector<std::string> PeerLibrary::names() const {
  std::vector<std::string> names;
  for (int i = 0; i < peers_->count; ++i) names.push_back(peers_->peers[i].name);
  return names;
}

const BookPeer& PeerLibrary::peer(const std::string& name) const {
  for (int i = 0; i < peers_->count; ++i) {
    if (peers_->peers[i].name == name) return peers_->peers[i];
  }
  throw NoPeers(fmt::format("{} has no peer '{}'; there are: {}", version(), name, join(names())));
}

ForwardKernel PeerLibrary::kernel(const std::string& name) const {
  const BookPeer& peer = this->peer(name);
  ForwardKernel kernel;
  kernel.name = peer.name;
  kernel.summary = fmt::format("{}, {}", version(), peer.summary);
  kernel.is_peer = true;
  kernel.gives_lse = peer.gives_lse != 0;
  kernel.require = [&peer](const Problem& p) { require(peer, p); };
  const auto run = [&peer](const auto& args, void*) { call(peer, peer.run, args); };
  const auto fetch = [&peer](const auto& args, void*) { call(peer, peer.fetch, args); };
  const Launch own_type = only(peer.element);
  kernel.run = Launch(run).limited_to(own_type);
  kernel.fetch = Launch(fetch).limited_to(own_type);
  return kernel;
}

std::vector<ForwardKernel> PeerLibrary::kernels(const std::vector<std::string>& names,
                                                const std::vector<Problem>& problems,
                                                std::vector<std::string>& left_out) const {
  std::vector<ForwardKernel> chosen;
  for (const std::string& name : names) {
    ForwardKernel peer = kernel(name);
    const bool takes_part =
        std::any_of(problems.begin(), problems.end(), [&](const Problem& p) { return peer.run.takes(p.element_type); });
    if (takes_part) {
      chosen.push_back(std::move(peer));
    } else {
      left_out.push_back(name);
    }
  }
  return chosen;
}

}  // namespace stage
