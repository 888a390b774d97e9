#include "common/stage/kernel.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/gpu/device.hpp"

namespace stage {

void require_head_dim(const std::string& kernel, const attention::Problem& p, const std::vector<int>& allowed) {
  if (std::find(allowed.begin(), allowed.end(), p.head_dim) == allowed.end()) {
    throw Refused(
        fmt::format("{} does not take head_dim {}; allowed: {}", kernel, p.head_dim, fmt::join(allowed, ", ")));
  }
}

void require_head_dim_32_64_128(const std::string& kernel, const attention::Problem& p) {
  require_head_dim(kernel, p, {32, 64, 128});
}

void require_shared_memory(const std::string& kernel, std::size_t bytes) {
  if (bytes > gpu::shared_memory_limit()) {
    throw Refused(fmt::format("{} needs {} bytes of shared memory a block; allowed on {}: {}", kernel, bytes,
                              gpu::device().name, gpu::shared_memory_limit()));
  }
}

void require_16_byte_rows(const std::string& kernel, const attention::Problem& p) {
  const auto require = [&](const char* array, const attention::Strides& strides) {
    for (const std::int64_t stride : {strides.batch, strides.seq, strides.head}) {
      if (stride % 4 != 0) {
        throw Refused(
            fmt::format("{} loads four floats at once and does not take a stride of {} elements in {}; allowed: "
                        "multiples of 4",
                        kernel, stride, array));
      }
    }
  };
  require("Q", p.strides_q());
  require("K", p.strides_k());
  require("V", p.strides_v());
  require("O", p.strides_o());
}

ForwardKernel by_head_dim(const std::map<int, ForwardKernel>& kernels) {
  ForwardKernel kernel = kernels.begin()->second;
  kernel.require = [kernels, name = kernel.name](const attention::Problem& p) {
    std::vector<int> head_dims;
    for (const auto& [head_dim, of_it] : kernels) head_dims.push_back(head_dim);
    require_head_dim(name, p, head_dims);
    kernels.at(p.head_dim).require(p);
  };
  kernel.workspace_bytes = [kernels](const attention::Problem& p) { return kernels.at(p.head_dim).workspace_bytes(p); };
  kernel.traffic = [kernels](const attention::Problem& p) { return kernels.at(p.head_dim).traffic(p); };
  kernel.run = [kernels](const attention::ForwardArgs<float>& args, void* workspace) {
    kernels.at(args.head_dim).run(args, workspace);
  };
  return kernel;
}

}  // namespace stage
