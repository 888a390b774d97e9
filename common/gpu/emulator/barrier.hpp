#pragma once
/// \file
/// __syncthreads on the emulator.

#include "common/gpu/emulator/language.hpp"

void __syncthreads(gpu::emulator::Site site = gpu::emulator::Site::here());
