#include "tests/common/stage/program_under_test.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <type_traits>

#include "common/attention/reference.hpp"
#include "common/gpu/device.hpp"
#include "common/stage/counts_file.hpp"
#include "common/stage/ladder.hpp"
#include "common/stage/results.hpp"

namespace stage_test {
namespace {

/// Sends a file descriptor to a temporary file until `take`.
class Caught {
 public:
  explicit Caught(int descriptor) : descriptor_(descriptor), saved_(::dup(descriptor)), file_(std::tmpfile()) {
    if (saved_ < 0 || !file_ || ::dup2(::fileno(file_), descriptor_) < 0)
      throw std::runtime_error("cannot catch output");
  }
  std::string take() {
    ::dup2(saved_, descriptor_);
    ::close(saved_);
    std::string text;
    std::rewind(file_);
    for (int c; (c = std::fgetc(file_)) != EOF;) text += static_cast<char>(c);
    std::fclose(file_);
    return text;
  }

 private:
  int descriptor_, saved_;
  std::FILE* file_;
};

Outcome caught(const std::string& name, const std::vector<std::string>& arguments,
               const std::function<int(int, const char* const*)>& program) {
  std::vector<const char*> argv = {name.c_str()};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  const int argc = static_cast<int>(argv.size());
  argv.push_back(nullptr);

  std::cout.flush();
  std::fflush(nullptr);
  Caught out(STDOUT_FILENO), err(STDERR_FILENO);
  Outcome outcome;
  outcome.code = program(argc, argv.data());
  std::fflush(nullptr);
  outcome.err = err.take();
  outcome.out = out.take();
  return outcome;
}

/// The problem that a kernel was called with; its arrays are dense.
template <class Args>
attention::Problem problem_of(const Args& a) {
  attention::Problem p;
  p.batch = a.batch;
  p.heads_q = a.heads_q;
  p.heads_kv = a.heads_kv;
  p.seqlen_q = a.seqlen_q;
  p.seqlen_kv = a.seqlen_kv;
  p.head_dim = a.head_dim;
  p.mask = a.mask;
  p.softmax_scale = a.softmax_scale;
  return p;
}

std::size_t size(std::int64_t elements) { return static_cast<std::size_t>(elements); }

/// Plain attention on host arrays that the arguments point to.
void attend(const attention::ForwardArgs<float>& a) {
  const attention::Problem p = problem_of(a);
  const auto plain = attention::plain_forward(p, {a.q_gmem, size(p.elements_q())}, {a.k_gmem, size(p.elements_k())},
                                              {a.v_gmem, size(p.elements_v())});
  std::copy(plain.o.begin(), plain.o.end(), a.o_gmem);
  std::copy(plain.lse.begin(), plain.lse.end(), a.lse_gmem);
}

/// Its gradients, likewise.
void attend_backward(const attention::BackwardArgs<float>& a) {
  const attention::Problem p = problem_of(a);
  const auto plain = attention::plain_backward(
      p, {a.q_gmem, size(p.elements_q())}, {a.k_gmem, size(p.elements_k())}, {a.v_gmem, size(p.elements_v())},
      {a.o_gmem, size(p.elements_o())}, {a.lse_gmem, size(p.elements_lse())}, {a.dout_gmem, size(p.elements_dout())});
  std::copy(plain.dq.begin(), plain.dq.end(), a.dq_gmem);
  std::copy(plain.dk.begin(), plain.dk.end(), a.dk_gmem);
  std::copy(plain.dv.begin(), plain.dv.end(), a.dv_gmem);
}

template <class T>
constexpr attention::ElementType kTypeOf =
    std::is_same_v<T, gpu::fp16> ? attention::ElementType::fp16 : attention::ElementType::bf16;

/// Elements of a dense array on the host, and the way back. Their type is only declared here.
template <stage::SixteenBits T>
std::vector<float> numbers(const T* x, std::int64_t elements) {
  return attention::decode({reinterpret_cast<const std::byte*>(x), 2 * size(elements)}, kTypeOf<T>);
}
template <stage::SixteenBits T>
void store(const std::vector<float>& values, T* x) {
  const auto bytes = attention::encode(values, kTypeOf<T>);
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(x));
}

template <stage::SixteenBits T>
void attend(const attention::ForwardArgs<T>& a) {
  attention::Problem p = problem_of(a);
  p.element_type = kTypeOf<T>;
  const auto plain = attention::plain_forward(p, numbers(a.q_gmem, p.elements_q()), numbers(a.k_gmem, p.elements_k()),
                                              numbers(a.v_gmem, p.elements_v()));
  store(plain.o, a.o_gmem);
  std::copy(plain.lse.begin(), plain.lse.end(), a.lse_gmem);
}

template <stage::SixteenBits T>
void attend_backward(const attention::BackwardArgs<T>& a) {
  attention::Problem p = problem_of(a);
  p.element_type = kTypeOf<T>;
  const auto plain = attention::plain_backward(
      p, numbers(a.q_gmem, p.elements_q()), numbers(a.k_gmem, p.elements_k()), numbers(a.v_gmem, p.elements_v()),
      numbers(a.o_gmem, p.elements_o()), {a.lse_gmem, size(p.elements_lse())}, numbers(a.dout_gmem, p.elements_dout()));
  store(plain.dq, a.dq_gmem);
  store(plain.dk, a.dk_gmem);
  store(plain.dv, a.dv_gmem);
}

std::vector<float> downloaded(const float* x_gmem, std::int64_t elements) {
  std::vector<float> x(size(elements));
  gpu::copy_to_host(x.data(), x_gmem, x.size() * sizeof(float));
  return x;
}

}  // namespace

Outcome run(const stage::Chapter& chapter, const std::vector<std::string>& arguments) {
  return caught(chapter.name, arguments,
                [&](int argc, const char* const* argv) { return stage::run(argc, argv, chapter); });
}

Outcome run_ladder(const std::vector<std::string>& arguments) { return caught("ladder", arguments, stage::ladder); }

Outcome run_results(const std::vector<std::string>& arguments) { return caught("results", arguments, stage::results); }

Outcome run_counts(const std::vector<std::string>& arguments) { return caught("counts", arguments, stage::counts); }

stage::ForwardKernel host_kernel(const std::string& name) {
  stage::ForwardKernel kernel;
  kernel.name = name;
  kernel.summary = "plain attention on the host";
  kernel.memory = stage::Memory::host;
  kernel.run = [](const attention::ForwardArgs<float>& args, void*) { attend(args); };
  return kernel;
}

stage::ForwardKernel device_kernel(const std::string& name) {
  stage::ForwardKernel kernel;
  kernel.name = name;
  kernel.summary = "plain attention, copied to the device";
  kernel.traffic = [](const attention::Problem&) { return attention::Traffic{}; };
  kernel.run = [](const attention::ForwardArgs<float>& args, void*) {
    const std::size_t q_size = static_cast<std::size_t>(args.batch * args.q_strides.batch);
    const std::size_t kv_size = static_cast<std::size_t>(args.batch * args.k_strides.batch);
    const std::size_t lse_size = static_cast<std::size_t>(args.batch * args.heads_q * args.seqlen_q);
    std::vector<float> q(q_size), k(kv_size), v(kv_size), o(q_size), lse(lse_size);
    gpu::copy_to_host(q.data(), args.q_gmem, q_size * sizeof(float));
    gpu::copy_to_host(k.data(), args.k_gmem, kv_size * sizeof(float));
    gpu::copy_to_host(v.data(), args.v_gmem, kv_size * sizeof(float));
    attention::ForwardArgs<float> host = args;
    host.q_gmem = q.data();
    host.k_gmem = k.data();
    host.v_gmem = v.data();
    host.o_gmem = o.data();
    host.lse_gmem = lse.data();
    attend(host);
    gpu::copy_to_device(args.o_gmem, o.data(), q_size * sizeof(float));
    gpu::copy_to_device(args.lse_gmem, lse.data(), lse_size * sizeof(float));
  };
  return kernel;
}

stage::ForwardKernel damaged(stage::ForwardKernel kernel,
                             std::function<void(const attention::ForwardArgs<float>&)> damage) {
  kernel.run = [run = kernel.run, damage](const attention::ForwardArgs<float>& args, void* workspace) {
    run(args, workspace);
    damage(args);
  };
  return kernel;
}

stage::ForwardKernel host_kernel_in_16_bits(const std::string& name) {
  stage::ForwardKernel kernel = host_kernel(name);
  kernel.run = []<stage::SixteenBits T>(const attention::ForwardArgs<T>& args, void*) { attend(args); };
  return kernel;
}

stage::ForwardKernel device_kernel_in_16_bits(const std::string& name, Sums sums) {
  stage::ForwardKernel kernel;
  kernel.name = name;
  kernel.summary = "a thread a query";
  kernel.require = [name](const attention::Problem& p) { stage::require_head_dim(name, p, {kThreadHeadDim}); };
  kernel.traffic = [](const attention::Problem& p) {
    const double rows = static_cast<double>(p.elements_lse());
    const double pairs = static_cast<double>(p.visible_pairs()) * p.heads_q * p.batch;
    return attention::Traffic{2 * p.head_dim * (rows + 2 * pairs), (2 * p.head_dim + 4) * rows};
  };
  kernel.run = [sums]<stage::SixteenBits T>(const attention::ForwardArgs<T>& args, void*) {
    launch_thread_a_query(args, sums);
  };
  return kernel;
}

stage::BackwardKernel host_backward_in_16_bits(const std::string& name) {
  stage::BackwardKernel kernel = host_backward(name);
  kernel.run = []<stage::SixteenBits T>(const attention::BackwardArgs<T>& args, void*) { attend_backward(args); };
  return kernel;
}

stage::BackwardKernel host_backward(const std::string& name) {
  stage::BackwardKernel kernel;
  kernel.name = name;
  kernel.summary = "plain gradients on the host";
  kernel.memory = stage::Memory::host;
  kernel.run = [](const attention::BackwardArgs<float>& args, void*) { attend_backward(args); };
  return kernel;
}

stage::BackwardKernel device_backward(const std::string& name) {
  stage::BackwardKernel kernel;
  kernel.name = name;
  kernel.summary = "plain gradients, copied to the device";
  kernel.traffic = [](const attention::Problem&) { return attention::Traffic{}; };
  kernel.run = [](const attention::BackwardArgs<float>& args, void*) {
    const attention::Problem p = problem_of(args);
    const auto q = downloaded(args.q_gmem, p.elements_q()), k = downloaded(args.k_gmem, p.elements_k()),
               v = downloaded(args.v_gmem, p.elements_v()), o = downloaded(args.o_gmem, p.elements_o()),
               lse = downloaded(args.lse_gmem, p.elements_lse()), dout = downloaded(args.dout_gmem, p.elements_dout());
    const auto plain = attention::plain_backward(p, q, k, v, o, lse, dout);
    gpu::copy_to_device(args.dq_gmem, plain.dq.data(), plain.dq.size() * sizeof(float));
    gpu::copy_to_device(args.dk_gmem, plain.dk.data(), plain.dk.size() * sizeof(float));
    gpu::copy_to_device(args.dv_gmem, plain.dv.data(), plain.dv.size() * sizeof(float));
  };
  return kernel;
}

stage::BackwardKernel damaged(stage::BackwardKernel kernel,
                              std::function<void(const attention::BackwardArgs<float>&)> damage) {
  kernel.run = [run = kernel.run, damage](const attention::BackwardArgs<float>& args, void* workspace) {
    run(args, workspace);
    damage(args);
  };
  return kernel;
}

stage::Chapter chapter_with(std::vector<stage::ForwardKernel> kernels) {
  stage::Chapter chapter;
  chapter.number = "07";
  chapter.name = "testing";
  chapter.idea = "A chapter that exists only here.";
  chapter.gpu_problem.heads_q = 4;
  chapter.gpu_problem.heads_kv = 2;
  chapter.gpu_problem.seqlen_q = 9;
  chapter.gpu_problem.seqlen_kv = 12;
  chapter.gpu_problem.head_dim = 32;
  chapter.emulator_problem = chapter.gpu_problem;
  chapter.forward = std::move(kernels);
  return chapter;
}

stage::Chapter backward_chapter_with(std::vector<stage::BackwardKernel> kernels) {
  stage::Chapter chapter = chapter_with({});
  chapter.backward = std::move(kernels);
  return chapter;
}

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "stage_test_XXXXXX").string();
  if (!::mkdtemp(name.data())) throw std::runtime_error("cannot make a temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> TemporaryFolder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

}  // namespace stage_test
