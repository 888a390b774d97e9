#pragma once
/// \file
/// A kernel that programs under test launch: it changes nothing, and what it does in memory is easily counted.

namespace stage_test {

/// Blocks of 32 threads load `size` floats, a multiple of 32, and store them where they were, by way of shared memory
/// and one barrier.
void launch_rewrite(float* x_gmem, int size);

/// The same kernel with another template argument.
void launch_other_rewrite(float* x_gmem, int size);

}  // namespace stage_test
