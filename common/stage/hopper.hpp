#pragma once
/// \file
/// What the Hopper chapters' kernels do not take. (Chapters 10 and later.)

#include <string>

#include "common/attention/problem.hpp"

namespace stage {

/// \throws Refused unless the device is a Hopper GPU, or the emulator: instructions of sm_90a exist on no other,
/// neither older nor newer.
void require_hopper(const std::string& kernel);

/// What a kernel whose rows come and go by TMA asks beside require_16_byte_rows: strides of less than 2⁴⁰ bytes, none
/// of them negative. \throws Refused
void require_tensor_maps(const std::string& kernel, const attention::Problem& p);

}  // namespace stage
