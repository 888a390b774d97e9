#include "common/gpu/buffer.hpp"
#include "common/gpu/numeric.cuh"
#include "tests/common/gpu/numbers_on_device.hpp"

namespace gpu_tests {
namespace {

template <class To, class From>
__global__ void convert(const From* x_gmem, To* y_gmem, std::int64_t count) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    if constexpr (sizeof(To) == 2) {
      y_gmem[i] = gpu::from_float<To>(x_gmem[i]);
    } else {
      y_gmem[i] = gpu::to_float(x_gmem[i]);
    }
  }
}

__global__ void pair_fp16(const float2* x_gmem, __half2* y_gmem) {
  const float2 x = x_gmem[threadIdx.x];
  y_gmem[threadIdx.x] = __floats2half2_rn(x.x, x.y);
}

__global__ void pair_bf16(const float2* x_gmem, __nv_bfloat162* y_gmem) {
  const float2 x = x_gmem[threadIdx.x];
  y_gmem[threadIdx.x] = __floats2bfloat162_rn(x.x, x.y);
}

__global__ void apply(Fast function, const float* x_gmem, float* y_gmem) {
  const float x = x_gmem[threadIdx.x];
  y_gmem[threadIdx.x] = function == Fast::exp   ? __expf(x)
                        : function == Fast::log ? __logf(x)
                                                : gpu::exp2_approximate(x);
}

/// Runs `convert` on the device; the host sees a 2-byte format as its bits.
template <class To, class From, class HostTo, class HostFrom>
std::vector<HostTo> converted(const std::vector<HostFrom>& values) {
  static_assert(sizeof(To) == sizeof(HostTo) && sizeof(From) == sizeof(HostFrom));
  const gpu::DeviceBuffer<HostFrom> x_gmem(values, "x");
  gpu::DeviceBuffer<HostTo> y_gmem(values.size(), "y");
  gpu::launch(convert<To, From>, {.grid = 16, .block = 128}, reinterpret_cast<const From*>(x_gmem.data()),
              reinterpret_cast<To*>(y_gmem.data()), static_cast<std::int64_t>(values.size()));
  return y_gmem.download();
}

template <class Pair>
std::vector<std::uint32_t> paired(void (*kernel)(const float2*, Pair*), const std::vector<float>& values) {
  const gpu::DeviceBuffer<float> x_gmem(values, "x");
  gpu::DeviceBuffer<std::uint32_t> y_gmem(values.size() / 2, "y");
  gpu::launch(kernel, {.grid = 1, .block = static_cast<std::int64_t>(values.size() / 2)},
              reinterpret_cast<const float2*>(x_gmem.data()), reinterpret_cast<Pair*>(y_gmem.data()));
  return y_gmem.download();
}

}  // namespace

std::vector<float> fp16_to_float(const std::vector<std::uint16_t>& bits) {
  return converted<float, gpu::fp16, float>(bits);
}
std::vector<float> bf16_to_float(const std::vector<std::uint16_t>& bits) {
  return converted<float, gpu::bf16, float>(bits);
}
std::vector<std::uint16_t> float_to_fp16(const std::vector<float>& values) {
  return converted<gpu::fp16, float, std::uint16_t>(values);
}
std::vector<std::uint16_t> float_to_bf16(const std::vector<float>& values) {
  return converted<gpu::bf16, float, std::uint16_t>(values);
}
std::vector<std::uint32_t> pairs_to_fp16(const std::vector<float>& values) { return paired(pair_fp16, values); }
std::vector<std::uint32_t> pairs_to_bf16(const std::vector<float>& values) { return paired(pair_bf16, values); }

std::vector<float> fast_function(Fast function, const std::vector<float>& values) {
  const gpu::DeviceBuffer<float> x_gmem(values, "x");
  gpu::DeviceBuffer<float> y_gmem(values.size(), "y");
  gpu::launch(apply, {.grid = 1, .block = static_cast<std::int64_t>(values.size())}, function, x_gmem.data(),
              y_gmem.data());
  return y_gmem.download();
}

}  // namespace gpu_tests
