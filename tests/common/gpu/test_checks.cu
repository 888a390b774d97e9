// What the checking build sees in single accesses: races, values that nobody wrote, foreign memory, counted bytes; and
// that correct kernels pass under any schedule. Beside each kernel stands the line that its report has to name.

#include <cstdint>

#include "common/gpu/atomic.cuh"
#include "tests/common/gpu/launch_report.cuh"

namespace {

using namespace gpu_tests;

std::string at(int line) { return line_of(__FILE__, line); }

struct Words {
  int value[256];
};
struct Bytes {
  unsigned char byte[256];
};
struct Halves {
  unsigned short half[256];
};

// ---- races on shared memory

constexpr int kNeighbourWrites = __LINE__ + 4, kNeighbourReads = __LINE__ + 6;
__global__ void read_neighbour(int* out_gmem, bool barrier) {
  auto& shared = gpu::shared_memory<Words>();
  const unsigned t = threadIdx.x;
  shared.value[t] = static_cast<int>(t);
  if (barrier) __syncthreads();
  out_gmem[t] = shared.value[(t + 1) % blockDim.x];
}

/// Every thread has a value to read, but the next round overwrites it.
constexpr int kReadEarly = __LINE__ + 6, kOverwrites = __LINE__ + 8;
__global__ void overwrite_too_early(int* out_gmem, bool barrier) {
  auto& shared = gpu::shared_memory<Words>();
  const unsigned t = threadIdx.x;
  shared.value[t] = 1;
  __syncthreads();
  const int got = shared.value[(t + 32) % blockDim.x];
  if (barrier) __syncthreads();
  shared.value[t] = got + 1;
  out_gmem[t] = got;
}

constexpr int kBothWrite = __LINE__ + 3;
__global__ void write_same_word(int* out_gmem, unsigned writers) {
  auto& shared = gpu::shared_memory<Words>();
  if (threadIdx.x < writers) shared.value[0] = 7;
  __syncthreads();
  out_gmem[threadIdx.x] = shared.value[0];
}

/// A shuffle lies between the write and the read. It moves registers and orders no memory.
constexpr int kBeforeShuffle = __LINE__ + 4, kAfterShuffle = __LINE__ + 7;
__global__ void shuffle_between(int* out_gmem, bool barrier) {
  auto& shared = gpu::shared_memory<Words>();
  const unsigned t = threadIdx.x;
  shared.value[t] = static_cast<int>(t);
  const int lane = __shfl_xor_sync(gpu::kFullWarp, static_cast<int>(t), 1);
  if (barrier) __syncwarp();
  out_gmem[t] = shared.value[t ^ 1] + lane;
}

/// __syncwarp orders the lanes of one warp, not two warps.
constexpr int kOtherWarp = __LINE__ + 6;
__global__ void syncwarp_between_warps(int* out_gmem) {
  auto& shared = gpu::shared_memory<Words>();
  const unsigned t = threadIdx.x;
  shared.value[t] = static_cast<int>(t);
  __syncwarp();
  out_gmem[t] = shared.value[(t + 32) % blockDim.x];
}

/// Neighbours of one word, a byte or a half each: no race.
__global__ void write_bytes(unsigned char* out_gmem) {
  auto& shared = gpu::shared_memory<Bytes>();
  shared.byte[threadIdx.x] = static_cast<unsigned char>(threadIdx.x);
  __syncwarp(1u << threadIdx.x % 32);
  out_gmem[threadIdx.x] = shared.byte[threadIdx.x];
}
__global__ void write_halves(unsigned short* out_gmem) {
  auto& shared = gpu::shared_memory<Halves>();
  shared.half[threadIdx.x] = static_cast<unsigned short>(threadIdx.x);
  __syncwarp(1u << threadIdx.x % 32);
  out_gmem[threadIdx.x] = shared.half[threadIdx.x];
}
/// A byte, and the word that contains it: a race.
constexpr int kByte = __LINE__ + 4, kWord = __LINE__ + 6;
__global__ void byte_against_word() {
  auto& shared = gpu::shared_memory<Bytes>();
  if (threadIdx.x == 0) {
    shared.byte[2] = 1;
  } else {
    *reinterpret_cast<unsigned*>(shared.byte) = 2;
  }
}

// ---- values that nobody wrote

constexpr int kUnwrittenShared = __LINE__ + 5;
__global__ void read_unwritten_shared(int* out_gmem, unsigned written) {
  auto& shared = gpu::shared_memory<Words>();
  if (threadIdx.x < written) shared.value[threadIdx.x] = 1;
  __syncthreads();
  out_gmem[threadIdx.x] = shared.value[threadIdx.x];
}

constexpr int kCopies = __LINE__ + 1;
__global__ void copy(const float* x_gmem, float* y_gmem) { y_gmem[threadIdx.x] = x_gmem[threadIdx.x]; }

constexpr int kAddsTo = __LINE__ + 1;
__global__ void add_to(unsigned* sum_gmem) { atomicAdd(sum_gmem, 1u); }

__global__ void write_then_read(float* x_gmem, float* y_gmem) {
  x_gmem[threadIdx.x] = 1.0f;
  y_gmem[threadIdx.x] = x_gmem[threadIdx.x];
}

// ---- memory that is not the thread's to touch

struct Pointers {
  int* of_thread_0;
};

constexpr int kForeignLocal = __LINE__ + 6;
__global__ void read_local_of_thread_0(int* out_gmem) {
  auto& shared = gpu::shared_memory<Pointers>();
  int local = 5;
  if (threadIdx.x == 0) shared.of_thread_0 = &local;
  __syncthreads();
  out_gmem[threadIdx.x] = *shared.of_thread_0;
  __syncthreads();
}

constexpr int kSharedRead = __LINE__ + 4;
__global__ void read_past_shared(int* out_gmem, int index) {
  auto& shared = gpu::shared_memory<Words>();
  shared.value[threadIdx.x] = 1;
  out_gmem[threadIdx.x] = shared.value[static_cast<int>(threadIdx.x) + index];
}

// ---- blocks among each other

constexpr int kBlockWrites = __LINE__ + 1;
__global__ void all_blocks_write(int* out_gmem) { out_gmem[threadIdx.x] = 1; }

constexpr int kFirstWrites = __LINE__ + 3, kOthersRead = __LINE__ + 5;
__global__ void read_first_block(int* out_gmem) {
  if (blockIdx.x == 0) {
    out_gmem[0] = 1;
  } else {
    out_gmem[blockIdx.x] = out_gmem[0];
  }
}

/// The first block signals when its result is there; the others wait for it.
__global__ void read_first_block_in_order(int* out_gmem, unsigned* flag_gmem) {
  if (blockIdx.x == 0) {
    out_gmem[0] = 1;
    __threadfence();
    atomicExch(flag_gmem, 1u);
  } else {
    while (gpu::load_acquire(flag_gmem) == 0) {
    }
    out_gmem[blockIdx.x] = out_gmem[0];
  }
}

constexpr int kPlain = __LINE__ + 3, kAtomic = __LINE__ + 5;
__global__ void atomic_against_plain(int* sum_gmem) {
  if (threadIdx.x == 0) {
    sum_gmem[0] = 1;
  } else {
    atomicAdd(sum_gmem, 1);
  }
}

__global__ void add_one(int* sum_gmem) { sum_gmem[threadIdx.x] += 1; }

// ---- counts

template <class T>
__global__ void copy_elements(const T* x_gmem, T* y_gmem) {
  y_gmem[blockIdx.x * blockDim.x + threadIdx.x] = x_gmem[blockIdx.x * blockDim.x + threadIdx.x];
}

template <class T>
void check_copy_counts() {
  constexpr std::uint64_t kElements = 3 * 40;
  CAPTURE(sizeof(T));
  const gpu::DeviceBuffer<unsigned char> x_gmem(std::vector<unsigned char>(kElements * sizeof(T), 1), "x");
  gpu::DeviceBuffer<unsigned char> y_gmem(kElements * sizeof(T), "y");
  gpu::reset_counts();
  gpu::launch(copy_elements<T>, {.grid = 3, .block = 40}, reinterpret_cast<const T*>(x_gmem.data()),
              reinterpret_cast<T*>(y_gmem.data()));
  const gpu::Counts counts = gpu::counts().value();
  CHECK(counts.global_loaded == kElements * sizeof(T));
  CHECK(counts.global_stored == kElements * sizeof(T));
  CHECK(counts.shared_loaded == 0);
  CHECK(counts.shared_stored == 0);
  CHECK(counts.barriers == 0);
  CHECK(counts.launches == 1);
  CHECK(y_gmem.download() == x_gmem.download());
}

/// 256 threads: each writes a word, waits twice, reads two.
__global__ void use_shared_words(int* out_gmem) {
  auto& shared = gpu::shared_memory<Words>();
  shared.value[threadIdx.x] = 1;
  __syncthreads();
  const int sum = shared.value[threadIdx.x] + shared.value[255 - threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) out_gmem[blockIdx.x] = sum;
}

// ---- correct kernels

struct ReductionShared {
  float partial[128];
};

/// One sum for each block; the block that draws the last ticket adds up the sums.
__global__ void sum_all(const float* x_gmem, int count, float* partial_gmem, unsigned* ticket_gmem, float* sum_gmem) {
  auto& shared = gpu::shared_memory<ReductionShared>();
  const int t = static_cast<int>(threadIdx.x), blocks = static_cast<int>(gridDim.x);
  const auto block_sum = [&](float value) {
    shared.partial[t] = value;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
      if (t < half) shared.partial[t] += shared.partial[t + half];
      __syncthreads();
    }
    const float sum = shared.partial[0];
    __syncthreads();
    return sum;
  };
  float mine = 0;
  for (int i = static_cast<int>(blockIdx.x) * 128 + t; i < count; i += blocks * 128) mine += x_gmem[i];
  const float sum = block_sum(mine);
  bool last = false;
  if (t == 0) {
    partial_gmem[blockIdx.x] = sum;
    __threadfence();
    last = atomicAdd(ticket_gmem, 1u) == gridDim.x - 1;
    __threadfence();
    shared.partial[0] = last ? 1.0f : 0.0f;
  }
  __syncthreads();
  last = shared.partial[0] != 0;
  __syncthreads();
  if (!last) return;
  const float all = block_sum(t < blocks ? partial_gmem[t] : 0.0f);
  if (t == 0) *sum_gmem = all;
}

struct TileShared {
  float tile[32][33];
};

__global__ void transpose(const float* x_gmem, float* y_gmem, int rows, int cols) {
  auto& shared = gpu::shared_memory<TileShared>();
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int row0 = static_cast<int>(blockIdx.y) * 32, col0 = static_cast<int>(blockIdx.x) * 32;
  for (int i = y; i < 32; i += 8) {
    if (row0 + i < rows && col0 + x < cols) shared.tile[i][x] = x_gmem[(row0 + i) * cols + col0 + x];
  }
  __syncthreads();
  for (int i = y; i < 32; i += 8) {
    if (col0 + i < cols && row0 + x < rows) y_gmem[(col0 + i) * rows + row0 + x] = shared.tile[x][i];
  }
}

struct MailShared {
  float mail[32];
  float doubled[32];
};

/// Lanes 0 to 15 fetch, lanes 16 to 31 compute; the warp meets in __syncwarp at each hand-over.
__global__ void fetch_and_compute(const float* x_gmem, float* y_gmem, int rounds) {
  auto& shared = gpu::shared_memory<MailShared>();
  const int lane = static_cast<int>(threadIdx.x);
  for (int round = 0; round < rounds; ++round) {
    if (lane < 16) shared.mail[lane] = x_gmem[round * 16 + lane];
    __syncwarp();
    if (lane >= 16) y_gmem[round * 16 + lane - 16] = 2 * shared.mail[31 - lane];
    __syncwarp();
  }
}

std::vector<float> small_numbers(std::size_t count) {
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<float>(i * 7 % 13);
  return x;
}

void run_sum_all() {
  const int count = 1000, blocks = 6;
  const auto x = small_numbers(count);
  float expected = 0;
  for (const float v : x) expected += v;
  const gpu::DeviceBuffer<float> x_gmem(x, "x");
  gpu::DeviceBuffer<float> partial_gmem(blocks, "partial"), sum_gmem(1, "sum");
  gpu::DeviceBuffer<unsigned> ticket_gmem(std::vector<unsigned>{0}, "ticket");
  gpu::launch<ReductionShared>(sum_all, {.grid = blocks, .block = 128}, x_gmem.data(), count, partial_gmem.data(),
                               ticket_gmem.data(), sum_gmem.data());
  CHECK(sum_gmem.download()[0] == expected);
}

void run_transpose() {
  const int rows = 50, cols = 70;
  const auto x = small_numbers(rows * cols);
  const gpu::DeviceBuffer<float> x_gmem(x, "x");
  gpu::DeviceBuffer<float> y_gmem(rows * cols, "y");
  gpu::launch<TileShared>(transpose, {.grid = {3, 2}, .block = {32, 8}}, x_gmem.data(), y_gmem.data(), rows, cols);
  const auto y = y_gmem.download();
  int wrong = 0;
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) {
      wrong += y[static_cast<std::size_t>(c * rows + r)] != x[static_cast<std::size_t>(r * cols + c)];
    }
  }
  CHECK(wrong == 0);
}

void run_fetch_and_compute() {
  const int rounds = 4;
  const auto x = small_numbers(rounds * 16);
  const gpu::DeviceBuffer<float> x_gmem(x, "x");
  gpu::DeviceBuffer<float> y_gmem(rounds * 16, "y");
  gpu::launch<MailShared>(fetch_and_compute, {.grid = 1, .block = 32}, x_gmem.data(), y_gmem.data(), rounds);
  const auto y = y_gmem.download();
  int wrong = 0;
  for (int i = 0; i < rounds * 16; ++i) {
    wrong += y[static_cast<std::size_t>(i)] != 2 * x[static_cast<std::size_t>(i / 16 * 16 + 15 - i % 16)];
  }
  CHECK(wrong == 0);
}

void run_correct_kernels() {
  run_sum_all();
  run_transpose();
  run_fetch_and_compute();
}

}  // namespace

TEST_CASE("race: a write and a read of shared memory", "[check]") {
  if (!gpu::device().checked) return;
  gpu::DeviceBuffer<int> out_gmem(256, "out");
  std::string report =
      fault_of([&] { gpu::launch<Words>(read_neighbour, {.grid = 1, .block = 256}, out_gmem.data(), false); });
  CAPTURE(report);
  CHECK(names(report, at(kNeighbourWrites)));
  CHECK(names(report, at(kNeighbourReads)));
  CHECK_THAT(report, ContainsText("race on shared memory"));
  CHECK_THAT(report, ContainsText("no barrier lies between"));
  CHECK(report_of([&] { gpu::launch<Words>(read_neighbour, {.grid = 1, .block = 256}, out_gmem.data(), true); }) == "");
}

TEST_CASE("race: a read, and a write that comes too early", "[check]") {
  if (!gpu::device().checked) return;
  gpu::DeviceBuffer<int> out_gmem(256, "out");
  const std::uint64_t seed = GENERATE(0, 1, 2);
  gpu::EmulatorOptions options;
  options.schedule_seed = seed;
  const gpu::EmulatorOptionsScope scope(options);
  const std::string report =
      fault_of([&] { gpu::launch<Words>(overwrite_too_early, {.grid = 1, .block = 256}, out_gmem.data(), false); });
  CAPTURE(report, seed);
  CHECK(names(report, at(kReadEarly)));
  CHECK(names(report, at(kOverwrites)));
  CHECK_THAT(report, ContainsText("race on shared memory"));
  CHECK(report_of([&] { gpu::launch<Words>(overwrite_too_early, {.grid = 1, .block = 256}, out_gmem.data(), true); }) ==
        "");
}

TEST_CASE("race: two threads write the same word", "[check]") {
  if (!gpu::device().checked) return;
  gpu::DeviceBuffer<int> out_gmem(64, "out");
  const std::string report =
      fault_of([&] { gpu::launch<Words>(write_same_word, {.grid = 1, .block = 64}, out_gmem.data(), 2u); });
  CAPTURE(report);
  CHECK(names(report, at(kBothWrite)));
  CHECK_THAT(report, ContainsText("thread 1 writes offset 0, which thread 0 wrote"));
  CHECK(report_of([&] { gpu::launch<Words>(write_same_word, {.grid = 1, .block = 64}, out_gmem.data(), 1u); }) == "");
}

TEST_CASE("race: a shuffle orders no memory, __syncwarp does, within its warp", "[check]") {
  if (!gpu::device().checked) return;
  gpu::DeviceBuffer<int> out_gmem(64, "out");
  std::string report =
      fault_of([&] { gpu::launch<Words>(shuffle_between, {.grid = 1, .block = 32}, out_gmem.data(), false); });
  CAPTURE(report);
  CHECK(names(report, at(kBeforeShuffle)));
  CHECK(names(report, at(kAfterShuffle)));
  CHECK(report_of([&] { gpu::launch<Words>(shuffle_between, {.grid = 1, .block = 32}, out_gmem.data(), true); }) == "");

  report = fault_of([&] { gpu::launch<Words>(syncwarp_between_warps, {.grid = 1, .block = 64}, out_gmem.data()); });
  CHECK(names(report, at(kOtherWarp)));
}

TEST_CASE("neighbours in one word do not race", "[check]") {
  if (!gpu::device().checked) return;
  gpu::DeviceBuffer<unsigned char> bytes_gmem(256, "bytes");
  gpu::DeviceBuffer<unsigned short> halves_gmem(256, "halves");
  CHECK(report_of([&] { gpu::launch<Bytes>(write_bytes, {.grid = 1, .block = 256}, bytes_gmem.data()); }) == "");
  CHECK(report_of([&] { gpu::launch<Halves>(write_halves, {.grid = 1, .block = 256}, halves_gmem.data()); }) == "");
  const std::string report = fault_of([] { gpu::launch<Bytes>(byte_against_word, {.grid = 1, .block = 2}); });
  CAPTURE(report);
  CHECK(names(report, at(kByte)));
  CHECK(names(report, at(kWord)));
}

TEST_CASE("a value that nobody wrote", "[check]") {
  if (!gpu::device().checked) return;
  gpu::DeviceBuffer<int> out_gmem(64, "out");
  std::string report =
      fault_of([&] { gpu::launch<Words>(read_unwritten_shared, {.grid = 1, .block = 64}, out_gmem.data(), 63u); });
  CAPTURE(report);
  CHECK(names(report, at(kUnwrittenShared)));
  CHECK_THAT(report, ContainsText("uninitialised: reads offset 252 of shared memory"));
  // Shared memory does not keep its values from block to block.
  CHECK(report_of([&] { gpu::launch<Words>(read_unwritten_shared, {.grid = 1, .block = 64}, out_gmem.data(), 64u); }) ==
        "");
  report = fault_of([&] { gpu::launch<Words>(read_unwritten_shared, {.grid = 1, .block = 64}, out_gmem.data(), 0u); });
  CHECK(names(report, at(kUnwrittenShared)));

  gpu::DeviceBuffer<float> x_gmem(32, "inputs"), y_gmem(32, "results");
  const auto run_copy = [&] { gpu::launch(copy, {.grid = 1, .block = 32}, x_gmem.data(), y_gmem.data()); };
  report = fault_of(run_copy);
  CHECK(names(report, at(kCopies)));
  CHECK_THAT(report, ContainsText("uninitialised: reads byte 0 of 'inputs' (128 bytes)"));
  x_gmem.upload(std::vector<float>(32, 1.0f));
  CHECK(report_of(run_copy) == "");
  x_gmem.poison();
  CHECK_THAT(fault_of(run_copy), ContainsText("uninitialised"));
  gpu::launch(write_then_read, {.grid = 1, .block = 32}, x_gmem.data(), y_gmem.data());
  CHECK(report_of(run_copy) == "");  // a kernel has written it

  gpu::DeviceBuffer<unsigned> sum_gmem(1, "sum");
  report = fault_of([&] { gpu::launch(add_to, {.grid = 1, .block = 32}, sum_gmem.data()); });
  CHECK(names(report, at(kAddsTo)));
  CHECK_THAT(report, ContainsText("'sum'"));
}

TEST_CASE("memory that is not the thread's to touch", "[check]") {
  if (!gpu::device().checked) return;
  gpu::DeviceBuffer<float> y_gmem(32, "results");
  const std::vector<float> on_host(32, 1.0f);
  std::string report = fault_of([&] { gpu::launch(copy, {.grid = 1, .block = 32}, on_host.data(), y_gmem.data()); });
  CAPTURE(report);
  CHECK(names(report, at(kCopies)));
  CHECK_THAT(report, ContainsText("a host pointer"));

  gpu::DeviceBuffer<int> out_gmem(64, "out");
  report = fault_of([&] { gpu::launch<Pointers>(read_local_of_thread_0, {.grid = 1, .block = 64}, out_gmem.data()); });
  CHECK(names(report, at(kForeignLocal)));
  CHECK_THAT(report, ContainsText("another thread's local variable"));

  report = fault_of([&] { gpu::launch<Words>(read_past_shared, {.grid = 1, .block = 1}, out_gmem.data(), 256); });
  CHECK(names(report, at(kSharedRead)));
  CHECK_THAT(report, ContainsText("out of bounds: reads 4 bytes of shared memory at offset 1024, the kernel has 1024"));

  const float* freed = nullptr;
  {
    const gpu::DeviceBuffer<float> x_gmem(std::vector<float>(32, 1.0f), "x");
    freed = x_gmem.data();
  }
  report = fault_of([&] { gpu::launch(copy, {.grid = 1, .block = 32}, freed, y_gmem.data()); });
  CHECK(names(report, at(kCopies)));
  CHECK_THAT(report, ContainsText("the freed buffer"));
}

TEST_CASE("race: blocks on device memory", "[check]") {
  if (!gpu::device().checked) return;
  gpu::EmulatorOptions options;
  options.workers = GENERATE(1, 2);
  options.schedule_seed = GENERATE(0, 1, 2);
  const gpu::EmulatorOptionsScope scope(options);
  gpu::DeviceBuffer<int> out_gmem(std::vector<int>(8, 0), "results");
  std::string report = fault_of([&] { gpu::launch(all_blocks_write, {.grid = 2, .block = 8}, out_gmem.data()); });
  CAPTURE(report, options.workers, options.schedule_seed);
  CHECK(names(report, at(kBlockWrites)));
  CHECK_THAT(report, ContainsText("race on device memory"));
  CHECK_THAT(report, ContainsText("of 'results'"));
  CHECK_THAT(report, ContainsText("nothing orders the two blocks"));

  report = fault_of([&] { gpu::launch(read_first_block, {.grid = 8, .block = 1}, out_gmem.data()); });
  CHECK(names(report, at(kFirstWrites)));
  CHECK(names(report, at(kOthersRead)));

  gpu::DeviceBuffer<unsigned> flag_gmem(std::vector<unsigned>{0}, "flag");
  CHECK(report_of([&] {
          gpu::launch(read_first_block_in_order, {.grid = 8, .block = 1}, out_gmem.data(), flag_gmem.data());
        }) == "");
  CHECK(out_gmem.download() == std::vector<int>(8, 1));
}

TEST_CASE("race: an atomic and a plain access", "[check]") {
  if (!gpu::device().checked) return;
  gpu::DeviceBuffer<int> sum_gmem(std::vector<int>{0}, "sum");
  const std::string report =
      fault_of([&] { gpu::launch(atomic_against_plain, {.grid = 1, .block = 2}, sum_gmem.data()); });
  CAPTURE(report);
  CHECK(names(report, at(kPlain)));
  CHECK(names(report, at(kAtomic)));
  CHECK_THAT(report, ContainsText("updates"));
}

TEST_CASE("one launch after the other is no race", "[check]") {
  gpu::DeviceBuffer<int> sum_gmem(std::vector<int>(32, 0), "sum");
  for (int i = 0; i < 3; ++i) gpu::launch(add_one, {.grid = 1, .block = 32}, sum_gmem.data());
  CHECK(sum_gmem.download() == std::vector<int>(32, 3));
}

TEST_CASE("counted bytes are exact", "[check]") {
  if (!gpu::device().checked) return;
  check_copy_counts<unsigned char>();
  check_copy_counts<unsigned short>();
  check_copy_counts<float>();
  check_copy_counts<double>();
  check_copy_counts<float2>();
  check_copy_counts<float4>();

  gpu::DeviceBuffer<unsigned> sum_gmem(std::vector<unsigned>{0}, "sum");
  gpu::reset_counts();
  gpu::launch(add_to, {.grid = 3, .block = 40}, sum_gmem.data());
  gpu::launch(add_to, {.grid = 1, .block = 1}, sum_gmem.data());
  gpu::Counts counts = gpu::counts().value();
  CHECK(counts.global_loaded == 121 * 4);  // an atomic is a load and a store
  CHECK(counts.global_stored == 121 * 4);
  CHECK(counts.launches == 2);

  gpu::DeviceBuffer<int> out_gmem(5, "out");
  gpu::reset_counts();
  gpu::launch<Words>(use_shared_words, {.grid = 5, .block = 256}, out_gmem.data());
  counts = gpu::counts().value();
  CHECK(counts.shared_stored == 5 * 256 * 4);
  CHECK(counts.shared_loaded == 5 * 256 * 8);
  CHECK(counts.global_stored == 5 * 4);
  CHECK(counts.global_loaded == 0);
  CHECK(counts.barriers == 5 * 2);
  gpu::reset_counts();
  CHECK(gpu::counts()->barriers == 0);
}

TEST_CASE("correct kernels pass, under any schedule and delivery", "[check]") {
  run_correct_kernels();
  if (!gpu::device().emulated) return;
  for (const auto delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      CAPTURE(seed, static_cast<int>(delivery));
      gpu::EmulatorOptions options;
      options.schedule_seed = seed;
      options.delivery = delivery;
      const gpu::EmulatorOptionsScope scope(options);
      CHECK(report_of([] { run_correct_kernels(); }) == "");
    }
  }
}
