/// \file
/// The functions of book.h.

#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "chapters/library/book.h"
#include "chapters/library/kernel_lists.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/foreign_memory.hpp"

#define BOOK_EXPORT extern "C" __attribute__((visibility("default")))

namespace library {
namespace {

using attention::BackwardArgs;
using attention::ElementType;
using attention::ForwardArgs;
using attention::Problem;
using stage::Pass;
using stage::Refused;

const std::vector<ListedKernel>& kernels() {
  static const std::vector<ListedKernel> all = [] {
    gpu::allow_foreign_memory();
    std::vector<ListedKernel> list;
    for (const auto& chapter : {chapter_02(), chapter_03(), chapter_04(), chapter_05(), chapter_06(), chapter_07(),
                                chapter_08(), chapter_09()}) {
      list.insert(list.end(), chapter.begin(), chapter.end());
    }
#ifdef BOOK_HAS_HOPPER_CHAPTERS
    for (const auto& chapter : {chapter_10(), chapter_11(), chapter_12()}) {
      list.insert(list.end(), chapter.begin(), chapter.end());
    }
#endif
    return list;
  }();
  return all;
}

std::string& last_error() {
  static thread_local std::string sentence;
  return sentence;
}

int complain(int status, const char* sentence) noexcept {
  try {
    last_error() = sentence;
  } catch (...) {
    // No memory for the sentence: the status has to do.
  }
  return status;
}

/// Runs `body`; an exception becomes a status and a sentence, since it may not leave a C function.
template <class Body>
int guarded(const Body& body) noexcept {
  try {
    body();
    return BOOK_OK;
  } catch (const std::invalid_argument& error) {  // Refused is one
    return complain(BOOK_REFUSED, error.what());
  } catch (const std::exception& error) {
    return complain(BOOK_FAILED, error.what());
  } catch (...) {
    return complain(BOOK_FAILED, "an exception without a text");
  }
}

const ListedKernel& find(int kernel) {
  if (kernel < 0 || static_cast<std::size_t>(kernel) >= kernels().size()) {
    throw Refused("there is no kernel " + std::to_string(kernel) + "; allowed: 0 to " +
                  std::to_string(kernels().size() - 1));
  }
  return kernels()[static_cast<std::size_t>(kernel)];
}

template <class T>
T& there(T* pointer, const char* what) {
  if (pointer == nullptr) throw Refused(std::string(what) + " is null; allowed: the address of one");
  return *pointer;
}

ElementType element_type(int element) {
  switch (element) {
    case BOOK_FP32:
      return ElementType::fp32;
    case BOOK_BF16:
      return ElementType::bf16;
    case BOOK_FP16:
      return ElementType::fp16;
    default:
      throw Refused("element is " + std::to_string(element) + "; allowed: 0 (fp32), 1 (bf16), 2 (fp16)");
  }
}

template <class F>
auto on_kernel(const ListedKernel& kernel, const F& f) {
  return kernel.pass == Pass::forward ? f(kernel.forward) : f(kernel.backward);
}

bool takes(const ListedKernel& kernel, ElementType type) {
  return on_kernel(kernel, [&](const auto& k) { return k.run.takes(type); });
}

/// The problem, which is valid and one that the kernel takes.
Problem taken(const ListedKernel& kernel, const BookProblem& from) {
  const auto strides = [](const BookStrides& s) { return attention::Strides{s.batch, s.seq, s.head, 1}; };
  Problem p;
  p.batch = from.batch;
  p.heads_q = from.heads_q;
  p.heads_kv = from.heads_kv;
  p.seqlen_q = from.seqlen_q;
  p.seqlen_kv = from.seqlen_kv;
  p.head_dim = from.head_dim;
  p.mask = attention::Mask::window(from.left, from.right);
  p.element_type = element_type(from.element);
  p.softmax_scale = from.softmax_scale;
  p.q_strides = strides(from.q);
  p.k_strides = strides(from.k);
  p.v_strides = strides(from.v);
  p.o_strides = strides(from.o);
  if (kernel.pass == Pass::backward) {
    p.dout_strides = strides(from.dout);
    p.dq_strides = strides(from.dq);
    p.dk_strides = strides(from.dk);
    p.dv_strides = strides(from.dv);
  }
  p.validate();
  on_kernel(kernel, [&](const auto& k) { stage::require_taken(k, p); });
  return p;
}

/// An array of a call. Where it holds elements it has to be there, and aligned as an allocation is.
struct Checked {
  const char* name;
  const void* pointer;
  std::int64_t elements;
};
void require_arrays(const std::vector<Checked>& arrays) {
  constexpr std::uintptr_t kAlign = 16;
  for (const Checked& array : arrays) {
    if (array.elements == 0) continue;
    if (array.pointer == nullptr) {
      throw Refused(std::string(array.name) + " is null; allowed: the address of its " +
                    std::to_string(array.elements) + " elements");
    }
    if (reinterpret_cast<std::uintptr_t>(array.pointer) % kAlign != 0) {
      throw Refused(std::string(array.name) + " starts at no multiple of 16 bytes; allowed: one that does");
    }
  }
}

void require_pointers(Pass pass, const Problem& p, const BookArrays& a) {
  require_arrays({{"q", a.q, p.elements_q()},
                  {"k", a.k, p.elements_k()},
                  {"v", a.v, p.elements_v()},
                  {"o", a.o, p.elements_o()},
                  {"lse", a.lse, p.elements_lse()}});
  if (pass == Pass::forward) return;
  require_arrays({{"dout", a.dout, p.elements_dout()},
                  {"dq", a.dq, p.elements_dq()},
                  {"dk", a.dk, p.elements_dk()},
                  {"dv", a.dv, p.elements_dv()}});
  if (a.dlse != nullptr) require_arrays({{"dlse", a.dlse, p.elements_lse()}});
}

template <class T>
const T* input(const void* pointer) {
  return static_cast<const T*>(pointer);
}
template <class T>
T* output(void* pointer) {
  return static_cast<T*>(pointer);
}

template <class T>
ForwardArgs<T> bind(const Problem& p, const BookArrays& a, const stage::LaunchByType<ForwardArgs>&) {
  return attention::make_forward_args<T>(p, input<T>(a.q), input<T>(a.k), input<T>(a.v), output<T>(a.o), a.lse);
}
template <class T>
BackwardArgs<T> bind(const Problem& p, const BookArrays& a, const stage::LaunchByType<BackwardArgs>&) {
  return attention::make_backward_args<T>(p, {.q = input<T>(a.q),
                                              .k = input<T>(a.k),
                                              .v = input<T>(a.v),
                                              .o = input<T>(a.o),
                                              .lse = a.lse,
                                              .dout = input<T>(a.dout),
                                              .dlse = a.dlse,
                                              .dq = output<T>(a.dq),
                                              .dk = output<T>(a.dk),
                                              .dv = output<T>(a.dv)});
}

template <class Launch>
void call(const Launch& launch, const Problem& p, const BookArrays& arrays, void* workspace) {
  switch (p.element_type) {
    case ElementType::fp32:
      return launch(bind<float>(p, arrays, launch), workspace);
    case ElementType::fp16:
      return launch(bind<gpu::fp16>(p, arrays, launch), workspace);
    case ElementType::bf16:
      return launch(bind<gpu::bf16>(p, arrays, launch), workspace);
  }
}

std::size_t workspace_bytes(const ListedKernel& kernel, const Problem& p) {
  return on_kernel(kernel, [&](const auto& k) { return k.workspace_bytes(p); });
}

/// The problem of a call whose arrays and workspace are as they have to be.
Problem admitted(const ListedKernel& kernel, const BookProblem* problem, const BookArrays& arrays,
                 const void* workspace, std::size_t bytes) {
  const Problem p = taken(kernel, there(problem, "problem"));
  require_pointers(kernel.pass, p, arrays);
  const std::size_t needed = workspace_bytes(kernel, p);
  if (bytes < needed) {
    throw Refused("the workspace has " + std::to_string(bytes) + " bytes; allowed: at least " + std::to_string(needed));
  }
  if (needed > 0) require_arrays({{"workspace", workspace, static_cast<std::int64_t>(needed)}});
  return p;
}

}  // namespace
}  // namespace library

using namespace library;

BOOK_EXPORT int book_check_interface(int version) {
  return guarded([&] {
    if (version != BOOK_LIBRARY_INTERFACE) {
      throw Refused("the program speaks version " + std::to_string(version) + " of the interface, the library " +
                    std::to_string(BOOK_LIBRARY_INTERFACE) + "; build both from the same sources");
    }
  });
}

BOOK_EXPORT const char* book_last_error(void) { return last_error().c_str(); }

BOOK_EXPORT int book_kernel_count(void) {
  int count = 0;
  guarded([&] { count = static_cast<int>(kernels().size()); });
  return count;
}

BOOK_EXPORT int book_kernel(int kernel, BookKernel* out) {
  return guarded([&] {
    const ListedKernel& found = find(kernel);
    BookKernel& to = there(out, "out");
    to.chapter = found.chapter.c_str();
    to.name = found.name.c_str();
    to.summary = found.summary.c_str();
    to.pass = found.pass == Pass::forward ? BOOK_FORWARD : BOOK_BACKWARD;
    to.memory =
        on_kernel(found, [](const auto& k) { return k.memory; }) == stage::Memory::host ? BOOK_HOST : BOOK_DEVICE;
    to.elements = 0;
    for (const int element : {BOOK_FP32, BOOK_BF16, BOOK_FP16}) {
      if (takes(found, element_type(element))) to.elements |= 1 << element;
    }
    to.deterministic = found.pass == Pass::forward || found.backward.deterministic;
  });
}

BOOK_EXPORT int book_machine(BookMachine* out) {
  return guarded([&] {
    const gpu::DeviceInfo& device = gpu::device();
    there(out, "out") = {.name = device.name.c_str(),
                         .driver = device.driver.c_str(),
                         .cuda = device.cuda.c_str(),
                         .emulated = device.emulated,
                         .multiprocessors = device.multiprocessors,
                         .clock_khz = device.clock_khz,
                         .compute_capability = device.compute_capability};
  });
}

BOOK_EXPORT int book_require(int kernel, const BookProblem* problem) {
  return guarded([&] { taken(find(kernel), there(problem, "problem")); });
}

BOOK_EXPORT int book_workspace_bytes(int kernel, const BookProblem* problem, size_t* bytes) {
  return guarded([&] {
    const ListedKernel& found = find(kernel);
    there(bytes, "bytes") = workspace_bytes(found, taken(found, there(problem, "problem")));
  });
}

BOOK_EXPORT int book_prepare(int kernel, const BookProblem* problem, const BookArrays* arrays, void* workspace,
                             size_t bytes) {
  return guarded([&] {
    const ListedKernel& found = find(kernel);
    const Problem p = admitted(found, problem, there(arrays, "arrays"), workspace, bytes);
    if (found.pass == Pass::backward && found.backward.prepare) call(found.backward.prepare, p, *arrays, workspace);
  });
}

BOOK_EXPORT int book_run(int kernel, const BookProblem* problem, const BookArrays* arrays, void* workspace,
                         size_t bytes) {
  return guarded([&] {
    const ListedKernel& found = find(kernel);
    const Problem p = admitted(found, problem, there(arrays, "arrays"), workspace, bytes);
    on_kernel(found, [&](const auto& k) { call(k.run, p, *arrays, workspace); });
  });
}

BOOK_EXPORT int book_synchronize(void) {
  return guarded([] { gpu::synchronize(); });
}

BOOK_EXPORT int book_allocate(size_t bytes, void** out) {
  return guarded([&] { there(out, "out") = gpu::allocate(bytes, "book_allocate"); });
}

BOOK_EXPORT void book_free(void* pointer) {
  if (pointer != nullptr) gpu::deallocate(pointer);
}

BOOK_EXPORT int book_copy_to_device(void* to, const void* from, size_t bytes) {
  return guarded([&] {
    if (bytes > 0)
      gpu::copy_to_device(&there(static_cast<char*>(to), "to"), &there(static_cast<const char*>(from), "from"), bytes);
  });
}

BOOK_EXPORT int book_copy_to_host(void* to, const void* from, size_t bytes) {
  return guarded([&] {
    gpu::synchronize();
    if (bytes > 0)
      gpu::copy_to_host(&there(static_cast<char*>(to), "to"), &there(static_cast<const char*>(from), "from"), bytes);
  });
}
