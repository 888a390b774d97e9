#ifndef BOOK_CHAPTERS_LIBRARY_BOOK_H
#define BOOK_CHAPTERS_LIBRARY_BOOK_H
/// \file
/// The chapters' kernels in plain C: what a program in another language loads to run them on arrays of its own.
///
/// Functions that can fail return a BookStatus; after another than BOOK_OK, book_last_error() is a sentence that says
/// what was wrong and what is allowed. No exception leaves the library. Kernels run on the default stream of the first
/// GPU, or on the emulator, where every address of the process is device memory.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Raised when a program would misread a newer library, or a library a newer program.
#define BOOK_LIBRARY_INTERFACE 1

/// A window side that does not limit anything.
#define BOOK_UNLIMITED (1 << 30)

enum BookStatus {
  BOOK_OK = 0,
  BOOK_FAILED = 1,   ///< the device, or a kernel on it
  BOOK_REFUSED = 2,  ///< an argument, or a problem that the kernel does not take; nothing was launched
};

/// Type of the elements of Q, K, V, O, dO and the gradients. LSE and dLSE are always fp32. fp16 is IEEE's binary16; a
/// bf16 is the upper half of an fp32.
enum BookElement { BOOK_FP32 = 0, BOOK_BF16 = 1, BOOK_FP16 = 2 };

enum BookPass {
  BOOK_FORWARD = 0,   ///< Q, K, V -> O, LSE
  BOOK_BACKWARD = 1,  ///< Q, K, V, O, LSE, dO and, where it is given, dLSE -> dQ, dK, dV
};

/// Where a kernel's pointers point.
enum BookMemory { BOOK_HOST = 0, BOOK_DEVICE = 1 };

/// What a kernel says of itself. The strings live as long as the library.
typedef struct BookKernel {
  const char* chapter;    ///< "08_async_copy"
  const char* name;       ///< "lazy_rescale": in a chapter, a name stands once
  const char* summary;    ///< a sentence
  int32_t pass;           ///< a BookPass
  int32_t memory;         ///< a BookMemory
  int32_t elements;       ///< bit 1 << e is set for each BookElement e that it takes
  int32_t deterministic;  ///< 0: sums by atomics, so that the last bits may differ between runs
} BookKernel;

/// Distances in elements between neighbours in [batch, seqlen, heads, head_dim]; the innermost is 1.
typedef struct BookStrides {
  int64_t batch, seq, head;
} BookStrides;

/// One attention call. Query i sees the keys j with c - left <= j <= c + right, where c = i + seqlen_kv - seqlen_q;
/// causal is (BOOK_UNLIMITED, 0).
typedef struct BookProblem {
  int32_t element;  ///< a BookElement
  int32_t batch, heads_q, heads_kv, seqlen_q, seqlen_kv, head_dim;
  int32_t left, right;
  float softmax_scale;
  BookStrides q, k, v, o;        ///< rows of O must not share elements
  BookStrides dout, dq, dk, dv;  ///< of a backward; not looked at otherwise
} BookProblem;

/// Pointers to element (0, 0, 0, 0), aligned to 16 bytes. A forward reads q, k, v and writes o, lse; a backward reads
/// all up to dlse and writes the rest. The others are not looked at.
typedef struct BookArrays {
  const void* q;  ///< [batch, seqlen_q, heads_q, head_dim]
  const void* k;  ///< [batch, seqlen_kv, heads_kv, head_dim]
  const void* v;
  void* o;            ///< as Q
  float* lse;         ///< dense [batch, heads_q, seqlen_q], natural logarithm of the sum of exp(scaled score)
  const void* dout;   ///< as Q
  const float* dlse;  ///< as LSE; null where nothing depends on the LSE
  void *dq, *dk, *dv;
} BookArrays;

/// What kernels run on. The strings live as long as the library.
typedef struct BookMachine {
  const char* name;    ///< "NVIDIA H200", "emulator"
  const char* driver;  ///< "580.159"; empty on the emulator
  const char* cuda;    ///< "13.0"; empty on the emulator
  int32_t emulated, multiprocessors, clock_khz, compute_capability;
} BookMachine;

/// BOOK_OK if the library speaks that version: to be called first, with BOOK_LIBRARY_INTERFACE.
int book_check_interface(int version);

/// What was wrong in this thread's last call that did not return BOOK_OK. Valid until the next such call.
const char* book_last_error(void);

/// Kernels have the numbers from 0; in the order of the book.
int book_kernel_count(void);
int book_kernel(int kernel, BookKernel* out);

/// Fails where there is no GPU that this library was built for.
int book_machine(BookMachine* out);

/// BOOK_OK if the kernel takes the problem. Looks at no array.
int book_require(int kernel, const BookProblem* problem);

/// Bytes of scratch, in the kernel's memory, that book_run needs.
int book_workspace_bytes(int kernel, const BookProblem* problem, size_t* bytes);

/// Leaves in the workspace what a forward would have left there for this backward (a stored P): to be called before
/// book_run where arrays or workspace are new. Does nothing for a kernel without such a need.
int book_prepare(int kernel, const BookProblem* problem, const BookArrays* arrays, void* workspace, size_t bytes);

/// Launches the kernel. Does not wait: what goes wrong on the device, book_synchronize reports.
int book_run(int kernel, const BookProblem* problem, const BookArrays* arrays, void* workspace, size_t bytes);
int book_synchronize(void);

/// Device memory for programs that have no other way to it. Fresh memory holds 0xFF in every byte, NaN in any type.
int book_allocate(size_t bytes, void** out);
void book_free(void* pointer);
int book_copy_to_device(void* to, const void* from, size_t bytes);
int book_copy_to_host(void* to, const void* from, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
