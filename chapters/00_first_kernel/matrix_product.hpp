#pragma once
/// \file
/// The rate of the tensor cores, as NVIDIA's own library reaches it.

#include <vector>

namespace first_kernel {

/// Seconds of each of 20 launches, after 5 to warm up, of an n × n × n matrix product in bf16 with fp32 accumulation
/// through cuBLAS: 2·n³ FLOP. The operands are random: a product of zeros draws less power and runs faster.
///
/// Empty where the program was built without cuBLAS, as on the emulator.
/// \throws gpu::Error if the memory does not suffice (3 · 2 · n² bytes) or cuBLAS reports an error.
std::vector<double> bf16_matrix_product_seconds(int n);

}  // namespace first_kernel
