#pragma once
/// \file
/// The lane's number on the emulator.

#include "common/gpu/emulator/warp.hpp"

namespace gpu {
using emulator::lane;
}
