#pragma once
/// \file
/// gpu::launch and gpu::shared_memory on the emulator.

#include <tuple>
#include <type_traits>
#include <utility>

#include "common/gpu/emulator/language.hpp"
#include "common/gpu/launch_shape.hpp"

namespace gpu {
namespace emulator {

/// A kernel with its arguments, as the scheduler sees it: something that every thread calls.
struct KernelCall {
  const void* kernel;  ///< the function's address
  const void* object;  ///< kernel and arguments
  std::size_t bytes;   ///< size of the object: threads may read their parameters there
  void (*invoke)(const void* object);
};

/// Runs all blocks and returns when they are done. \throws Error with the first fault, or with all findings of the
/// checks.
void run_kernel(const KernelCall& call, const LaunchShape& shape, std::size_t shared_bytes);

/// The running block's shared storage. \throws Error (in the kernel) if the launch gave less than `bytes`.
void* shared_storage(std::size_t bytes, Site site);

}  // namespace emulator

template <class Shared>
Shared& shared_memory(emulator::Site site = emulator::Site::here()) {
  static_assert(std::is_trivially_destructible_v<Shared>,
                "shared storage is plain data: nobody constructs or destroys it");
  return *static_cast<Shared*>(emulator::shared_storage(sizeof(Shared), site));
}

template <class Shared = NoSharedMemory, class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, Arguments&&... arguments) {
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<std::decay_t<Parameters>...> arguments;
  };
  const Call call{kernel, {static_cast<Parameters>(std::forward<Arguments>(arguments))...}};
  const auto invoke = [](const void* object) {
    const Call& c = *static_cast<const Call*>(object);
    std::apply(c.kernel, c.arguments);
  };
  emulator::run_kernel({reinterpret_cast<const void*>(kernel), &call, sizeof(Call), invoke}, shape,
                       std::is_same_v<Shared, NoSharedMemory> ? 0 : sizeof(Shared));
}

}  // namespace gpu
