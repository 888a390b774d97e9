#include "common/stage/kernel.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/gpu/device.hpp"

namespace stage {
namespace {

/// What both passes share.
template <class Kernel>
void require_type_and_rest(const Kernel& kernel, const attention::Problem& p) {
  using attention::ElementType;
  if (!kernel.run.takes(p.element_type)) {
    std::vector<std::string> allowed;
    for (const ElementType type : {ElementType::fp32, ElementType::fp16, ElementType::bf16}) {
      if (kernel.run.takes(type)) allowed.push_back(attention::name(type));
    }
    throw Refused(fmt::format("{} does not take {} elements; allowed: {}", kernel.name, attention::name(p.element_type),
                              fmt::join(allowed, ", ")));
  }
  kernel.require(p);
}

}  // namespace

void require_taken(const ForwardKernel& kernel, const attention::Problem& p) { require_type_and_rest(kernel, p); }
void require_taken(const BackwardKernel& kernel, const attention::Problem& p) { require_type_and_rest(kernel, p); }

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

namespace {

void require_16_byte_strides(const std::string& kernel, const char* array, attention::ElementType type,
                             const attention::Strides& strides) {
  const int elements = 16 / attention::element_bytes(type);
  for (const std::int64_t stride : {strides.batch, strides.seq, strides.head}) {
    if (stride % elements != 0) {
      throw Refused(
          fmt::format("{} moves 16 bytes at once and does not take a stride of {} {} elements in {}; allowed: "
                      "multiples of {}",
                      kernel, stride, attention::name(type), array, elements));
    }
  }
}

}  // namespace

void require_16_byte_rows(const std::string& kernel, const attention::Problem& p) {
  require_16_byte_strides(kernel, "Q", p.element_type, p.strides_q());
  require_16_byte_strides(kernel, "K", p.element_type, p.strides_k());
  require_16_byte_strides(kernel, "V", p.element_type, p.strides_v());
  require_16_byte_strides(kernel, "O", p.element_type, p.strides_o());
}

void require_16_byte_gradients(const std::string& kernel, const attention::Problem& p) {
  require_16_byte_rows(kernel, p);
  require_16_byte_strides(kernel, "dO", p.element_type, p.strides_dout());
  require_16_byte_strides(kernel, "dQ", p.element_type, p.strides_dq());
  require_16_byte_strides(kernel, "dK", p.element_type, p.strides_dk());
  require_16_byte_strides(kernel, "dV", p.element_type, p.strides_dv());
}

namespace {

template <class Kernel>
Kernel with_choice(const std::map<int, Kernel>& kernels) {
  Kernel kernel = kernels.begin()->second;
  kernel.require = [kernels, name = kernel.name](const attention::Problem& p) {
    std::vector<int> head_dims;
    for (const auto& [head_dim, of_it] : kernels) head_dims.push_back(head_dim);
    require_head_dim(name, p, head_dims);
    kernels.at(p.head_dim).require(p);
  };
  kernel.workspace_bytes = [kernels](const attention::Problem& p) { return kernels.at(p.head_dim).workspace_bytes(p); };
  if (kernel.traffic) {
    kernel.traffic = [kernels](const attention::Problem& p) { return kernels.at(p.head_dim).traffic(p); };
  }
  const auto run = [kernels](const auto& args, void* workspace) { kernels.at(args.head_dim).run(args, workspace); };
  kernel.run = decltype(kernel.run)(run).limited_to(kernel.run);
  return kernel;
}

}  // namespace

ForwardKernel by_head_dim(const std::map<int, ForwardKernel>& kernels) { return with_choice(kernels); }

BackwardKernel by_head_dim(const std::map<int, BackwardKernel>& kernels) {
  BackwardKernel kernel = with_choice(kernels);
  if (kernel.prepare) {
    const auto prepare = [kernels](const auto& args, void* workspace) {
      kernels.at(args.head_dim).prepare(args, workspace);
    };
    kernel.prepare = decltype(kernel.prepare)(prepare).limited_to(kernel.prepare);
  }
  return kernel;
}

}  // namespace stage
