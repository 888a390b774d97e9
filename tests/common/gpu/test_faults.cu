// What a wrong kernel gets from the emulator: a report with its line and a sentence, never a hang, and a next launch
// that works. Beside each kernel stands the line that its report has to name.

#include <cstdint>

#include "common/gpu/atomic.cuh"
#include "tests/common/gpu/launch_report.cuh"

namespace {

using namespace gpu_tests;

std::string at(int line) { return line_of(__FILE__, line); }

/// Reports within this time instead of ten seconds.
gpu::EmulatorOptions impatient() {
  gpu::EmulatorOptions options;
  options.stall_seconds = 0.3;
  return options;
}

// ---- synchronisation

constexpr int kDivergent = __LINE__ + 3;
__global__ void divergent_barrier() {
  if (threadIdx.x < 5) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

constexpr int kBarrierOrShuffle = __LINE__ + 3;
__global__ void barrier_or_shuffle(int* out_gmem) {
  if (threadIdx.x % 32 == 0) {
    __syncthreads();
  } else {
    out_gmem[threadIdx.x] = __shfl_sync(gpu::kFullWarp, 1, 1);
  }
}

constexpr int kMissingPartner = __LINE__ + 3;
__global__ void overlapping_masks(int* out_gmem) {
  const unsigned mask = threadIdx.x < 16 ? 0x0001ffffu : 0xffff8000u;
  out_gmem[threadIdx.x] = __shfl_sync(mask, 1, static_cast<int>(threadIdx.x));
}

constexpr int kExited = __LINE__ + 3;
__global__ void shuffle_without_lane_3(int* out_gmem, bool leave_late) {
  if (threadIdx.x == 3 && !leave_late) return;
  if (threadIdx.x != 3) out_gmem[threadIdx.x] = __shfl_xor_sync(gpu::kFullWarp, 1, 1);
  if (leave_late) gpu::store_release(reinterpret_cast<unsigned*>(out_gmem) + 32, 1u);
}

constexpr int kVoteExited = __LINE__ + 3;
__global__ void vote_without_lane_31(unsigned* out_gmem) {
  if (threadIdx.x == 31) return;
  out_gmem[threadIdx.x] = __ballot_sync(gpu::kFullWarp, 1);
}

constexpr int kShortWarp = __LINE__ + 1;
__global__ void full_mask(int* out_gmem) { out_gmem[threadIdx.x] = __shfl_xor_sync(gpu::kFullWarp, 1, 1); }

constexpr int kNotInMask = __LINE__ + 1;
__global__ void not_in_own_mask(int* out_gmem) { out_gmem[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 0); }

constexpr int kOutsideMask = __LINE__ + 2;
__global__ void source_outside_mask(int* out_gmem) {
  if (threadIdx.x < 16) out_gmem[threadIdx.x] = __shfl_sync(0x0000ffffu, 1, 20);
}

constexpr int kShuffleHere = __LINE__ + 3, kVoteThere = __LINE__ + 5;
__global__ void shuffle_or_vote(int* out_gmem) {
  if (threadIdx.x % 2 == 0) {
    out_gmem[threadIdx.x] = __shfl_sync(gpu::kFullWarp, 1, 0);
  } else {
    out_gmem[threadIdx.x] = __any_sync(gpu::kFullWarp, 1);
  }
}

constexpr int kOneShuffle = __LINE__ + 3, kOtherShuffle = __LINE__ + 5;
__global__ void two_shuffles(int* out_gmem) {
  if (threadIdx.x % 2 == 0) {
    out_gmem[threadIdx.x] = __shfl_sync(gpu::kFullWarp, 1, 0);
  } else {
    out_gmem[threadIdx.x] = __shfl_sync(gpu::kFullWarp, 1, 0);
  }
}

// ---- memory

constexpr int kWrite = __LINE__ + 2;
__global__ void write_at(float* out_gmem, std::int64_t index) {
  if (threadIdx.x == 5) out_gmem[index] = 1.0f;
}

constexpr int kRead = __LINE__ + 2;
__global__ void read_at(const float* x_gmem, std::int64_t index, float* out_gmem) {
  if (threadIdx.x == 5) out_gmem[0] = x_gmem[index];
}

constexpr int kMisalignedAtomic = __LINE__ + 1;
__global__ void misaligned_atomic(unsigned char* out_gmem) { atomicAdd(reinterpret_cast<unsigned*>(out_gmem + 2), 1u); }

struct SmallShared {
  int value[10];
};
struct LargeShared {
  int value[100];
};

constexpr int kSharedWrite = __LINE__ + 3;
__global__ void write_shared_at(int index) {
  auto& shared = gpu::shared_memory<SmallShared>();
  if (threadIdx.x == 5) shared.value[index] = 1;
}

constexpr int kLargerThanGiven = __LINE__ + 2;
__global__ void use_large_shared(int* out_gmem) {
  auto& shared = gpu::shared_memory<LargeShared>();
  shared.value[threadIdx.x] = 1;
  out_gmem[threadIdx.x] = shared.value[threadIdx.x];
}

__global__ void misaligned_atomic_of_four(float* out_gmem) { gpu::atomic_add4(out_gmem + 2, make_float4(1, 2, 3, 4)); }

constexpr int kMisaligned = __LINE__ + 2;
__global__ void misaligned_float4(float* out_gmem) {
  if (threadIdx.x == 5) *reinterpret_cast<float4*>(out_gmem + 2) = make_float4(1, 2, 3, 4);
}

constexpr int kDivide = __LINE__ + 1;
__global__ void divide(int* out_gmem, int divisor) { out_gmem[threadIdx.x] = 100 / divisor; }

/// 32 KB of local variables: half of what the emulator gives a thread.
__global__ void large_locals(int* out_gmem) {
  volatile int local[8192];
  for (int i = 0; i < 8192; i += 256) local[i] = i + static_cast<int>(threadIdx.x);
  int sum = 0;
  for (int i = 0; i < 8192; i += 256) sum += local[i];
  out_gmem[threadIdx.x] = sum;
}

// ---- waiting

__global__ void spin_on_plain_memory(const volatile unsigned* flag_gmem) {
  while (*flag_gmem != 7) {
  }
}

constexpr int kPoll = __LINE__ + 2;
__global__ void poll_for_seven(const unsigned* flag_gmem) {
  while (gpu::load_acquire(flag_gmem) != 7) {
  }
}

/// A multiprocessor has 228 KB, of which each block takes 1 KB more than it asks for.
struct MostOfMultiprocessor {
  unsigned char byte[115 * 1024];
};

/// Block b waits for block b + step, if there is one, and takes over its number plus 1.
constexpr int kChain = __LINE__ + 4;
__global__ void chain(unsigned* flag_gmem, int step) {
  const int block = static_cast<int>(blockIdx.x), other = block + step;
  if (other >= 0 && other < static_cast<int>(gridDim.x)) {
    while (gpu::load_acquire(flag_gmem + other) == 0) {
    }
    gpu::store_release(flag_gmem + block, gpu::load_acquire(flag_gmem + other) + 1);
  } else {
    gpu::store_release(flag_gmem + block, 1u);
  }
}

template <class Shared>
std::vector<unsigned> run_chain(int blocks, int step) {
  gpu::DeviceBuffer<unsigned> flag_gmem(std::vector<unsigned>(static_cast<std::size_t>(blocks), 0), "flag");
  gpu::launch<Shared>(chain, {.grid = blocks, .block = 1}, flag_gmem.data(), step);
  return flag_gmem.download();
}

/// A fault that stops the thread is reported with its line in both builds. Damage that is found afterwards is not: the
/// plain build says that the checking one would name it.
void check_line(const std::string& report, int line) {
  CAPTURE(report);
  if (gpu::device().checked || report.find("memory fault") != std::string::npos) {
    CHECK(names(report, at(line)));
  } else {
    CHECK_THAT(report, ContainsText("emulator-check"));
  }
}

}  // namespace

TEST_CASE("fault: a float4 that does not start at a multiple of 16 bytes", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<float> out_gmem(64, "out");
  const std::string report =
      fault_of([&] { gpu::launch(misaligned_float4, {.grid = 1, .block = 32}, out_gmem.data()); });
  CAPTURE(report);
  CHECK(names(report, at(kMisaligned)));
  CHECK_THAT(report, ContainsText("misaligned"));
}

TEST_CASE("fault: threads of a block meet at different barriers", "[fault]") {
  if (!gpu::device().emulated) return;
  const std::string report = fault_of([] { gpu::launch(divergent_barrier, {.grid = 2, .block = 64}); });
  CAPTURE(report);
  CHECK(names(report, at(kDivergent)));
  CHECK(names(report, at(kDivergent + 2)));
  CHECK_THAT(report, ContainsText("divergent barrier"));
  CHECK_THAT(report, ContainsText("threads 0-4 at"));
  CHECK_THAT(report, ContainsText("threads 5-63 at"));
}

TEST_CASE("fault: some threads wait in a barrier, the others in a shuffle", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<int> out_gmem(64, "out");
  const std::string report =
      fault_of([&] { gpu::launch(barrier_or_shuffle, {.grid = 1, .block = 64}, out_gmem.data()); });
  CAPTURE(report);
  CHECK_THAT(report, ContainsText("deadlock in block (0,0,0)"));
  CHECK_THAT(report, ContainsText("threads 0,32 wait in __syncthreads at"));
  CHECK_THAT(report, ContainsText("threads 1-31,33-63 wait in a warp shuffle at"));
  CHECK(names(report, at(kBarrierOrShuffle)));
  CHECK(names(report, at(kBarrierOrShuffle + 2)));
}

TEST_CASE("fault: lanes name each other in masks that are not the same", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<int> out_gmem(32, "out");
  const std::string report =
      fault_of([&] { gpu::launch(overlapping_masks, {.grid = 1, .block = 32}, out_gmem.data()); });
  CAPTURE(report);
  CHECK(names(report, at(kMissingPartner)));
  CHECK_THAT(report, ContainsText("deadlock"));
  CHECK_THAT(report, ContainsText("threads 0-15 wait in a warp shuffle"));
  CHECK_THAT(report, ContainsText("mask 0x0001ffff"));
  CHECK_THAT(report, ContainsText("mask 0xffff8000"));
}

TEST_CASE("fault: a shuffle or vote names a lane that has exited, before or after", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<int> out_gmem(33, "out");
  const bool leave_late = GENERATE(false, true);
  const std::uint64_t seed = GENERATE(0, 1, 2);
  gpu::EmulatorOptions options;
  options.schedule_seed = seed;
  const gpu::EmulatorOptionsScope scope(options);
  std::string report =
      fault_of([&] { gpu::launch(shuffle_without_lane_3, {.grid = 1, .block = 32}, out_gmem.data(), leave_late); });
  CAPTURE(report, leave_late, seed);
  CHECK(names(report, at(kExited)));
  CHECK_THAT(report, ContainsText("lane 3"));
  CHECK_THAT(report, ContainsText("exited"));

  gpu::DeviceBuffer<unsigned> votes_gmem(32, "votes");
  report = fault_of([&] { gpu::launch(vote_without_lane_31, {.grid = 1, .block = 32}, votes_gmem.data()); });
  CHECK(names(report, at(kVoteExited)));
  CHECK_THAT(report, ContainsText("lane 31"));
}

TEST_CASE("fault: a mask names lanes that the block does not have", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<int> out_gmem(32, "out");
  const std::string report = fault_of([&] { gpu::launch(full_mask, {.grid = 1, .block = 24}, out_gmem.data()); });
  CAPTURE(report);
  CHECK(names(report, at(kShortWarp)));
  CHECK_THAT(report, ContainsText("lane 24"));
  CHECK_THAT(report, ContainsText("no such thread"));
}

TEST_CASE("fault: the calling lane is not in its mask", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<int> out_gmem(32, "out");
  const std::string report = fault_of([&] { gpu::launch(not_in_own_mask, {.grid = 1, .block = 32}, out_gmem.data()); });
  CAPTURE(report);
  CHECK(names(report, at(kNotInMask)));
  CHECK_THAT(report, ContainsText("the calling lane is not in its own mask"));
}

TEST_CASE("fault: a shuffle reads a lane outside the mask", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<int> out_gmem(32, "out");
  const std::string report =
      fault_of([&] { gpu::launch(source_outside_mask, {.grid = 1, .block = 32}, out_gmem.data()); });
  CAPTURE(report);
  CHECK(names(report, at(kOutsideMask)));
  CHECK_THAT(report, ContainsText("reads lane 20, which the mask does not name"));
}

TEST_CASE("fault: one warp in two operations", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<int> out_gmem(32, "out");
  std::string report = fault_of([&] { gpu::launch(shuffle_or_vote, {.grid = 1, .block = 32}, out_gmem.data()); });
  CAPTURE(report);
  CHECK(names(report, at(kShuffleHere)));
  CHECK(names(report, at(kVoteThere)));
  CHECK_THAT(report, ContainsText("divergent warp"));
  report = fault_of([&] { gpu::launch(two_shuffles, {.grid = 1, .block = 32}, out_gmem.data()); });
  CHECK(names(report, at(kOneShuffle)));
  CHECK(names(report, at(kOtherShuffle)));
}

TEST_CASE("fault: a null pointer", "[fault]") {
  if (!gpu::device().emulated) return;
  const bool write = GENERATE(true, false);
  gpu::DeviceBuffer<float> out_gmem(1, "out");
  const std::string report = fault_of([&] {
    if (write) {
      gpu::launch(write_at, {.grid = 1, .block = 32}, nullptr, 0);
    } else {
      gpu::launch(read_at, {.grid = 1, .block = 32}, nullptr, 0, out_gmem.data());
    }
  });
  check_line(report, write ? kWrite : kRead);
  CHECK_THAT(report, ContainsText("null pointer"));
  CHECK_THAT(report, ContainsText("[block (0,0,0) thread 5]"));
}

TEST_CASE("fault: a write just outside a buffer", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<float> before_gmem(100, "before"), out_gmem(100, "results"), after_gmem(100, "after");
  const std::int64_t index = GENERATE(100, 120, -1, -20);
  CAPTURE(index);
  const std::string report = fault_of([&] { gpu::launch(write_at, {.grid = 1, .block = 32}, out_gmem.data(), index); });
  check_line(report, kWrite);
  CHECK_THAT(report, ContainsText("out of bounds"));
  CHECK_THAT(report, ContainsText("'results'"));
}

TEST_CASE("fault: an access far outside a buffer", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<float> x_gmem(100, "inputs"), out_gmem(100, "results");
  const std::int64_t index = GENERATE(100'000, -100'000);
  CAPTURE(index);
  std::string report = fault_of([&] { gpu::launch(write_at, {.grid = 1, .block = 32}, out_gmem.data(), index); });
  check_line(report, kWrite);
  CHECK_THAT(report, ContainsText("out of bounds"));
  CHECK_THAT(report, ContainsText("'results' (400 bytes)"));
  report = fault_of([&] { gpu::launch(read_at, {.grid = 1, .block = 32}, x_gmem.data(), index, out_gmem.data()); });
  check_line(report, kRead);
  CHECK_THAT(report, ContainsText("'inputs' (400 bytes)"));
}

TEST_CASE("fault: a misaligned atomic", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<unsigned char> out_gmem(std::vector<unsigned char>(8, 0), "out");
  const std::string report =
      fault_of([&] { gpu::launch(misaligned_atomic, {.grid = 1, .block = 1}, out_gmem.data()); });
  CAPTURE(report);
  CHECK(names(report, at(kMisalignedAtomic)));
  CHECK_THAT(report, ContainsText("misaligned"));
  gpu::DeviceBuffer<float> floats_gmem(8, "floats");
  CHECK_THAT(fault_of([&] { gpu::launch(misaligned_atomic_of_four, {.grid = 1, .block = 1}, floats_gmem.data()); }),
             ContainsText("misaligned"));
}

TEST_CASE("fault: a write past the shared memory", "[fault]") {
  if (!gpu::device().emulated) return;
  const int index = GENERATE(10, 11, 700);
  CAPTURE(index);
  const std::string report =
      fault_of([&] { gpu::launch<SmallShared>(write_shared_at, {.grid = 1, .block = 32}, index); });
  CAPTURE(report);
  if (gpu::device().checked) {
    CHECK(names(report, at(kSharedWrite)));
    CHECK_THAT(report,
               ContainsText("out of bounds: writes 4 bytes of shared memory at offset " + std::to_string(4 * index)));
  } else {
    CHECK_THAT(report, ContainsText("shared memory was written past its end"));
    CHECK_THAT(report, ContainsText("byte " + std::to_string(4 * index)));
  }
  CHECK_THAT(report, ContainsText("40"));
}

TEST_CASE("fault: an access far past the shared memory", "[fault]") {
  if (!gpu::device().emulated) return;
  const int index = GENERATE(2100, -100);
  CAPTURE(index);
  const std::string report =
      fault_of([&] { gpu::launch<SmallShared>(write_shared_at, {.grid = 1, .block = 32}, index); });
  check_line(report, kSharedWrite);
  CHECK_THAT(report, ContainsText("shared memory at offset " + std::to_string(4 * index)));
}

TEST_CASE("fault: a kernel uses a larger shared struct than the launch gave it", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<int> out_gmem(32, "out");
  std::string report = fault_of([&] { gpu::launch(use_large_shared, {.grid = 1, .block = 32}, out_gmem.data()); });
  CAPTURE(report);
  CHECK(names(report, at(kLargerThanGiven)));
  CHECK_THAT(report, ContainsText("uses 400 bytes of shared memory, the launch gave it 0"));
  report = fault_of([&] { gpu::launch<SmallShared>(use_large_shared, {.grid = 1, .block = 32}, out_gmem.data()); });
  CHECK(names(report, at(kLargerThanGiven)));
  CHECK_THAT(report, ContainsText("the launch gave it 40"));
}

TEST_CASE("32 KB of local variables are no fault", "[fault]") {
  gpu::DeviceBuffer<int> out_gmem(128, "out");
  gpu::launch(large_locals, {.grid = 1, .block = 128}, out_gmem.data());
  const auto out = out_gmem.download();
  for (int i = 0; i < 128; ++i) CHECK(out[static_cast<std::size_t>(i)] == 31 * 32 / 2 * 256 + 32 * i);
}

TEST_CASE("fault: an integer divided by zero", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<int> out_gmem(32, "out");
  const std::string report = report_of([&] { gpu::launch(divide, {.grid = 1, .block = 32}, out_gmem.data(), 0); });
  if (report == "") return;  // Arm processors give 0 instead of stopping
  CHECK_THAT(report, ContainsText("an integer was divided by zero"));
  CHECK(names(report, at(kDivide)));
  CHECK_THAT(report, ContainsText("[block (0,0,0) thread 0]"));
  CHECK(ordinary_launch_works());
}

TEST_CASE("fault: a loop without end", "[fault]") {
  if (!gpu::device().emulated) return;
  const gpu::EmulatorOptionsScope scope(impatient());
  gpu::DeviceBuffer<unsigned> flag_gmem(std::vector<unsigned>{0}, "flag");
  const std::string report =
      fault_of([&] { gpu::launch(spin_on_plain_memory, {.grid = 3, .block = 32}, flag_gmem.data()); });
  CAPTURE(report);
  CHECK_THAT(report, ContainsText("a thread computes without end"));
  CHECK_THAT(report, ContainsText("0.3 s"));
  CHECK_THAT(report, ContainsText("load_acquire"));
  CHECK_THAT(report, ContainsText("thread 0]"));
}

TEST_CASE("fault: a signal that nobody sends", "[fault]") {
  if (!gpu::device().emulated) return;
  const gpu::EmulatorOptionsScope scope(impatient());
  gpu::DeviceBuffer<unsigned> flag_gmem(std::vector<unsigned>{0}, "flag");
  const std::string report = fault_of([&] { gpu::launch(poll_for_seven, {.grid = 3, .block = 32}, flag_gmem.data()); });
  CAPTURE(report);
  CHECK(names(report, at(kPoll)));
  CHECK_THAT(report, ContainsText("nothing moved for 0.3 s"));
  CHECK_THAT(report, ContainsText("threads 0-31 wait in a poll (load_acquire)"));
  CHECK_THAT(report, ContainsText("0 of 3 blocks have finished"));
}

TEST_CASE("blocks may wait for as many blocks as the GPU holds at once, and the emulator reports more", "[fault]") {
  if (!gpu::device().emulated) return;
  gpu::EmulatorOptions options = impatient();
  options.workers = GENERATE(1, 2);
  options.schedule_seed = GENERATE(0, 1, 2);
  const int step = GENERATE(-1, 1);
  const gpu::EmulatorOptionsScope scope(options);
  const int fit = gpu::device().multiprocessors;  // each of these blocks needs a multiprocessor's shared memory
  CAPTURE(options.workers, options.schedule_seed, step);

  const auto flags = run_chain<MostOfMultiprocessor>(fit, step);
  int wrong = 0;
  for (int b = 0; b < fit; ++b)
    wrong += flags[static_cast<std::size_t>(b)] != static_cast<unsigned>(step > 0 ? fit - b : b + 1);
  CHECK(wrong == 0);

  if (step < 0 || options.schedule_seed != 0) return;  // in order of their start, blocks find what they wait for
  const std::string report = fault_of([&] { run_chain<MostOfMultiprocessor>(fit + 1, step); });
  CAPTURE(report);
  CHECK(names(report, at(kChain)));
  CHECK_THAT(report, ContainsText("0 of 133 blocks have finished, 132 run, at most 132 fit on the GPU at once"));
}
