#include "chapters/00_first_kernel/matrix_product.hpp"

#ifdef BOOK_HAVE_CUBLAS

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"

namespace first_kernel {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw gpu::Error(std::string(call) + " failed: " + cublasGetStatusString(status));
  }
}

/// Bit patterns of bf16 numbers in ±[0.5, 2): the upper half of an fp32.
std::vector<std::uint16_t> random_bf16(std::size_t size, unsigned seed) {
  std::minstd_rand engine(seed);
  std::vector<std::uint16_t> values(size);
  for (auto& value : values) {
    const auto random = static_cast<std::uint32_t>(engine());
    const float magnitude = 0.5f + 1.5f * static_cast<float>(random >> 8 & 0xFFFF) / 65536.0f;
    value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(random & 0x80 ? -magnitude : magnitude) >> 16);
  }
  return values;
}

}  // namespace

std::vector<double> bf16_matrix_product_seconds(int n) {
  const std::size_t size = static_cast<std::size_t>(n) * n;
  const gpu::DeviceBuffer<std::uint16_t> a(random_bf16(size, 1), "matrix product, A");
  const gpu::DeviceBuffer<std::uint16_t> b(random_bf16(size, 2), "matrix product, B");
  gpu::DeviceBuffer<std::uint16_t> c(size, "matrix product, C");

  cublasHandle_t handle = nullptr;
  check(cublasCreate(&handle), "cublasCreate");
  const std::unique_ptr<cublasContext, cublasStatus_t (*)(cublasHandle_t)> owner(handle, cublasDestroy);

  const float one = 1;
  const float zero = 0;
  const auto product = [&] {
    check(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, a.data(), CUDA_R_16BF, n, b.data(), CUDA_R_16BF,
                       n, &zero, c.data(), CUDA_R_16BF, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
  };

  for (int i = 0; i < 5; ++i) product();
  gpu::synchronize();
  std::vector<double> seconds;
  gpu::Stopwatch stopwatch;
  for (int i = 0; i < 20; ++i) {
    stopwatch.start();
    product();
    seconds.push_back(stopwatch.stop_seconds());
  }
  return seconds;
}

}  // namespace first_kernel

#else

namespace first_kernel {

std::vector<double> bf16_matrix_product_seconds(int) { return {}; }

}  // namespace first_kernel

#endif
