/// \file
/// tensor_map.hpp on CUDA: the driver packs the 128 bytes.

#include "common/gpu/tensor_map.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "common/gpu/cuda/check.hpp"

namespace gpu {
namespace {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));

using Encode = decltype(&cuTensorMapEncodeTiled);  // its type only: the name would need -lcuda

/// The driver's function, found through the runtime.
Encode find_encode() {
  const char* const name = "cuTensorMapEncodeTiled";
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  cuda::check(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found), name);
#else
  cuda::check(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found), name);
#endif
  if (found != cudaDriverEntryPointSuccess || !function) {
    throw Error("the NVIDIA driver " + device().driver + " has no " + name + "; tensor maps need one for CUDA 12");
  }
  return reinterpret_cast<Encode>(function);
}

CUtensorMapDataType data_type(TensorElement element) {
  switch (element) {
    case TensorElement::fp16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case TensorElement::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case TensorElement::fp32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

CUtensorMapSwizzle swizzle_mode(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::bytes_32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case Swizzle::bytes_64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case Swizzle::bytes_128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    default:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

}  // namespace

TensorMap make_tensor_map(const TensorMapShape& shape) {
  check_tensor_map_shape(shape);
  if (device().compute_capability < 90) {
    throw Error("tensor map refused: TMA needs compute capability 9.0 or later, and " + device().name + " has " +
                std::to_string(device().compute_capability / 10) + "." +
                std::to_string(device().compute_capability % 10));
  }
  static const Encode encode = find_encode();

  const std::size_t rank = shape.sizes.size();
  std::uint64_t sizes[5] = {}, stride_bytes[5] = {};
  std::uint32_t box[5] = {};
  const std::uint32_t every_element[5] = {1, 1, 1, 1, 1};
  std::copy(shape.sizes.begin(), shape.sizes.end(), sizes);
  std::copy(shape.stride_bytes.begin(), shape.stride_bytes.end(), stride_bytes);
  std::copy(shape.box.begin(), shape.box.end(), box);

  // Rows of a box come whole, and mostly the box beside it is wanted soon: let the L2 fetch the longest pieces.
  CUtensorMap encoded;
  const CUresult status =
      encode(&encoded, data_type(shape.element), static_cast<std::uint32_t>(rank), shape.base, sizes, stride_bytes, box,
             every_element, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_mode(shape.swizzle),
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error("tensor map refused: the driver's cuTensorMapEncodeTiled returned status " + std::to_string(status));
  }
  TensorMap map;
  std::memcpy(&map, &encoded, sizeof map);
  return map;
}

}  // namespace gpu
