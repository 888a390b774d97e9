#pragma once
/// \file
/// A chapter made for the tests, and its program run inside the test with what it printed caught.

#include <filesystem>
#include <string>
#include <vector>

#include "common/stage/program.hpp"
#include "tests/common/stage/thread_a_query.hpp"

namespace stage_test {

/// What a program left behind.
struct Outcome {
  int code = -1;
  std::string out, err;
};

/// Runs stage::run on these arguments (without the program's name).
Outcome run(const stage::Chapter& chapter, const std::vector<std::string>& arguments);

/// Runs stage::ladder on these arguments.
Outcome run_ladder(const std::vector<std::string>& arguments);

/// Runs stage::results on these arguments.
Outcome run_results(const std::vector<std::string>& arguments);

/// Runs stage::counts on these arguments.
Outcome run_counts(const std::vector<std::string>& arguments);

/// A right kernel on the host: plain attention in fp32.
stage::ForwardKernel host_kernel(const std::string& name);

/// The same with its arrays in device memory. It copies instead of launching, so it loads and stores no byte that the
/// checking emulator would count.
stage::ForwardKernel device_kernel(const std::string& name);

/// A right kernel on the host in fp16 and bf16, and no other type: plain attention. Its arrays are dense.
stage::ForwardKernel host_kernel_in_16_bits(const std::string& name);

/// A kernel on the device in fp16 and bf16, for a head_dim of kThreadHeadDim; right if it sums in fp32.
stage::ForwardKernel device_kernel_in_16_bits(const std::string& name, Sums sums = Sums::in_fp32);

/// `kernel`, and then `damage` done to the O and LSE it wrote.
stage::ForwardKernel damaged(stage::ForwardKernel kernel,
                             std::function<void(const attention::ForwardArgs<float>&)> damage);

/// A right backward kernel on the host: plain attention in fp32.
stage::BackwardKernel host_backward(const std::string& name);

/// The same with its arrays in device memory, like device_kernel.
stage::BackwardKernel device_backward(const std::string& name);

/// A right one on the host in fp16 and bf16, and no other type.
stage::BackwardKernel host_backward_in_16_bits(const std::string& name);

stage::BackwardKernel damaged(stage::BackwardKernel kernel,
                              std::function<void(const attention::BackwardArgs<float>&)> damage);

/// Chapter "07 testing" on a small problem: batch 1, heads 4/2, seqlen 9/12, head_dim 32.
stage::Chapter chapter_with(std::vector<stage::ForwardKernel> kernels);
stage::Chapter backward_chapter_with(std::vector<stage::BackwardKernel> kernels);

/// Number of lines of a text that ends with a newline.
std::size_t lines(const std::string& text);

/// A folder that is gone after the test.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  /// Names of what lies in it, sorted.
  std::vector<std::string> names() const;

 private:
  std::filesystem::path path_;
};

std::string read(const std::string& path);
void write(const std::string& path, const std::string& text);

}  // namespace stage_test
