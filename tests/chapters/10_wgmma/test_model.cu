/// \file
/// The model: where WGMMA reads an element, against hand-worked addresses, against the tile and against what the
/// kernels make; cycles and shares by hand; products and copies against what the emulator sees.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "chapters/10_wgmma/kernels.hpp"
#include "chapters/10_wgmma/model.hpp"
#include "common/gpu/buffer.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::ElementType;
using attention::Mask;
using gpu::Major;
using suite::problem, suite::run;
using wgmma::fields_of, wgmma::Operand, wgmma::operand_byte, wgmma::WgmmaWork;

/// Elements of all steps of an operand that WGMMA looks for where the tile does not have them.
template <class PanelTile>
int misplaced(const Operand& operand, gpu::MatrixDescriptor descriptor, int count) {
  const std::uint32_t start = fields_of(operand.descriptor).address;
  int wrong = 0;
  for (std::size_t i = 0; i < operand.added.size(); ++i) {
    const int first = 16 * static_cast<int>(i);
    for (int mn = 0; mn < count; ++mn)
      for (int k = 0; k < 16; ++k) {
        const std::uint32_t laid = operand.major == Major::k ? wgmma::tile_byte<PanelTile>(mn, first + k)
                                                             : wgmma::tile_byte<PanelTile>(first + k, mn);
        wrong += operand_byte(descriptor + operand.added[i], operand.major, mn, k) != start + laid;
      }
  }
  return wrong;
}

template <class Tile>
void check_operands() {
  using QTile = typename wgmma::WgmmaShared<Tile>::QTile;
  using KTile = typename wgmma::WgmmaShared<Tile>::KTile;
  const std::vector<Operand> operands = wgmma::operands<Tile>();
  REQUIRE(operands.size() == 3);
  INFO("head_dim " << Tile::kHeadDim << ", " << Tile::kWarpgroups << " warpgroups");
  CHECK(misplaced<QTile>(operands[0], operands[0].descriptor, 64) == 0);
  CHECK(misplaced<KTile>(operands[1], operands[1].descriptor, Tile::kBc) == 0);
  CHECK(misplaced<KTile>(operands[2], operands[2].descriptor, Tile::kHeadDim) == 0);
}

/// The descriptors of Q's last 64 rows, K and V as the products make them, and the address that they count from.
template <class Tile>
__global__ void descriptors_kernel(std::uint64_t* bits_gmem) {  // [4]
  auto& shared = gpu::shared_memory<wgmma::WgmmaShared<Tile>>();
  if (threadIdx.x != 0) return;
  bits_gmem[0] = shared.q.along_rows(Tile::kBr - kernel::kWarpgroupRows).bits;
  bits_gmem[1] = shared.k[0].along_rows().bits;
  bits_gmem[2] = shared.v[0].down_columns().bits;
  bits_gmem[3] = shared.q.along_rows().bits;
}

template <class Tile>
void check_descriptors() {
  gpu::DeviceBuffer<std::uint64_t> bits(4);
  gpu::launch<wgmma::WgmmaShared<Tile>>(descriptors_kernel<Tile>, {.grid = 1, .block = 32}, bits.data());
  gpu::synchronize();
  const std::vector<std::uint64_t> made = bits.download();
  const std::uint32_t base = fields_of({made[3]}).address;  // Q is the first in shared memory
  const std::vector<Operand> operands = wgmma::operands<Tile>();
  for (std::size_t i = 0; i < operands.size(); ++i) {
    INFO(operands[i].name << ", head_dim " << Tile::kHeadDim);
    CHECK(operands[i].descriptor.bits + base / 16 == made[i]);
  }
}

/// Work with hand-worked numbers in it, to see each rule of the shares by itself.
WgmmaWork example() {
  WgmmaWork work;
  work.head_dim = work.bc = 128;
  work.warpgroups = work.stages = work.blocks = 1;
  work.products_s = work.products_o = 8;  // 1024 cycles
  work.exponentials = 64;                 // 512 cycles
  return work;
}

}  // namespace

TEST_CASE("the fields of a descriptor, by hand") {
  // Address 0x38000, 224 KiB, is 14336 sixteens, 16384 bytes are 1024 of them, 1024 bytes 64; the
  // code of 128 bytes is 1.
  const gpu::MatrixDescriptor descriptor{(1ull << 62) | (64ull << 32) | (1024ull << 16) | 14336ull};
  const wgmma::DescriptorFields f = fields_of(descriptor);
  CHECK(f.address == 0x38000);
  CHECK(f.leading == 16384);
  CHECK(f.stride == 1024);
  CHECK(f.swizzle_code == 1);
  CHECK(gpu::matrix_descriptor_at(0x38000, gpu::Swizzle::bytes_128, 16384, 1024).bits == descriptor.bits);
  CHECK(fields_of(gpu::matrix_descriptor_at(0, gpu::Swizzle::bytes_32, 0, 0)).swizzle_code == 3);
}

TEST_CASE("where WGMMA reads, by hand") {
  // A K-major operand at 0, 1024 bytes from eight rows to the next eight. Row 3 is at 384, and its chunk 1 stands at
  // place 1 ^ 3 = 2: 384 + 32. Its third element is 4 bytes further on.
  const gpu::MatrixDescriptor k_major = gpu::matrix_descriptor_at(0, gpu::Swizzle::bytes_128, 0, 1024);
  CHECK(operand_byte(k_major, Major::k, 3, 10) == 384 + 32 + 4);
  // 32 bytes on, the same k is in chunk 3, at place 3 ^ 3 = 0.
  CHECK(operand_byte(k_major + 32, Major::k, 3, 10) == 384 + 4);
  CHECK(operand_byte(k_major, Major::k, 11, 10) == 1024 + 384 + 32 + 4);
  // An MN-major operand with panels of 16384 bytes: k = 9 is row 1 of the second group, mn = 70 is element 6 of chunk 0
  // of the second panel, at place 0 ^ 1.
  const gpu::MatrixDescriptor mn_major = gpu::matrix_descriptor_at(0, gpu::Swizzle::bytes_128, 16384, 1024);
  CHECK(operand_byte(mn_major, Major::mn, 70, 9) == 16384 + 1024 + 128 + 16 + 12);
}

TEST_CASE("where the tile keeps an element, by hand") {
  using Tile = kernel::PanelTile<gpu::bf16, 128, 128>;
  CHECK(wgmma::tile_byte<Tile>(0, 0) == 0);
  CHECK(wgmma::tile_byte<Tile>(1, 0) == 128 + 16);
  CHECK(wgmma::tile_byte<Tile>(3, 73) == 16384 + 384 + 32 + 2);  // chunk 9: place 1 ^ 3 of the second panel
  const int of_row_5[8] = {5, 4, 7, 6, 1, 0, 3, 2};              // as in swizzle.cuh
  for (int place = 0; place < 8; ++place) {
    CHECK(wgmma::chunk_at<Tile>(5, 0, place) == of_row_5[place]);
    CHECK(wgmma::chunk_at<Tile>(13, 1, place) == 8 + of_row_5[place]);
  }
}

TEST_CASE("WGMMA finds every element of Q, K and V where the copies have laid it") {
  check_operands<wgmma::OneWarpgroupTile<gpu::bf16, 64>>();
  check_operands<wgmma::OneWarpgroupTile<gpu::bf16, 128>>();
  check_operands<wgmma::OneWarpgroupTile<gpu::bf16, 256>>();
  check_operands<wgmma::SharedTiles<gpu::bf16, 64>>();
  check_operands<wgmma::SharedTiles<gpu::bf16, 128>>();
  check_operands<wgmma::SharedTiles<gpu::bf16, 256>>();
}

TEST_CASE("and does not with another stride, another leading distance or the other major") {
  using Tile = wgmma::SharedTiles<gpu::bf16, 128>;
  using KTile = wgmma::WgmmaShared<Tile>::KTile;
  std::vector<Operand> operands = wgmma::operands<Tile>();
  const auto with = [](const Operand& operand, std::uint32_t leading, std::uint32_t stride) {
    return gpu::matrix_descriptor_at(fields_of(operand.descriptor).address, gpu::Swizzle::bytes_128, leading, stride);
  };
  // With twice the stride of K all keys but the first eight are elsewhere; what leading says is nothing to it.
  CHECK(misplaced<KTile>(operands[1], with(operands[1], 0, 2048), 128) == 8 * 120 * 16);
  CHECK(misplaced<KTile>(operands[1], with(operands[1], 4096, 1024), 128) == 0);
  // Twice the stride of V: half of each step's keys. Another leading distance: its second panel.
  CHECK(misplaced<KTile>(operands[2], with(operands[2], 16384, 2048), 128) == 8 * 8 * 128);
  CHECK(misplaced<KTile>(operands[2], with(operands[2], 8192, 1024), 128) == 8 * 16 * 64);
  operands[2].major = Major::k;
  CHECK(misplaced<KTile>(operands[2], operands[2].descriptor, 128) > 0);
}

TEST_CASE("the kernels' descriptors are those of the model") {
  check_descriptors<wgmma::OneWarpgroupTile<gpu::bf16, 64>>();
  check_descriptors<wgmma::OneWarpgroupTile<gpu::bf16, 256>>();
  check_descriptors<wgmma::SharedTiles<gpu::bf16, 128>>();
}

TEST_CASE("a tile on paper, by hand") {
  const std::vector<WgmmaWork> works = wgmma::wgmma_works<128>();
  REQUIRE(works.size() == 2);
  CHECK(works[0].products_s == 8);                             // head_dim 128, 16 at a time
  CHECK(works[0].products_o == 8);                             // 128 keys
  CHECK(works[0].own_tensor_cycles() == 16 * 64);              // N = 128 each
  CHECK(works[0].read_bytes == 8 * (2048 + 4096) + 8 * 4096);  // A of 64 rows and B of 128, 32 bytes each
  CHECK(works[0].copied_bytes == 2 * 128 * 256);               // K and V
  CHECK(works[0].copies == 32);                                // 4096 of 16 bytes, 128 threads
  CHECK(works[1].copies == 16);                                // 256 threads
  CHECK(works[0].exponentials == 64 + 2);                      // of a lane's 64 scores, and of its two rows
  CHECK(works[0].other_softmax == 64 + 64 + 64 + 32 + 64);     // maximum, FMA, sum, conversion, O
  CHECK(works[0].own_softmax_cycles() == 528);                 // 66 · 128 / 16
  CHECK(works[0].data_cycles() == 640 + 512);                  // 80 KiB and 64 KiB, 128 bytes a cycle
  CHECK(works[0].issue_cycles() == 16 + 66 + 288 + 32);
  CHECK(works[0].shared_bytes == 64 * 256 + 2 * 128 * 256);  // Q, K, V
  CHECK(works[1].shared_bytes == 128 * 256 + 4 * 128 * 256);
  CHECK(works[1].tensor_cycles() == 2048);
  CHECK(works[1].data_cycles() == 2 * 640 + 512);
  CHECK(works[1].exponential_cycles() == 2 * 528);
  CHECK(works[0].l2_cycles() == works[1].l2_cycles());
  CHECK(wgmma::wgmma_works<64>()[0].own_tensor_cycles() == 4 * 64 + 8 * 32);
  CHECK(wgmma::wgmma_works<256>()[0].own_tensor_cycles() == 16 * 32 + 4 * 128);
}

TEST_CASE("blocks of a multiprocessor, by hand") {
  // Step 1: three blocks of 128 threads with 168 registers each are 64512 of 65536. With 255, given out as 256, two.
  CHECK(wgmma::wgmma_works<64>()[0].blocks == 3);
  CHECK(wgmma::wgmma_works<128>()[0].blocks == 2);  // 80 KiB and 1 KiB, twice, of 228
  CHECK(wgmma::wgmma_works<256>()[0].blocks == 2);  // 96 KiB
  // Step 2: 256 threads with 256 registers are all there are.
  for (const int blocks :
       {wgmma::wgmma_works<64>()[1].blocks, wgmma::wgmma_works<128>()[1].blocks, wgmma::wgmma_works<256>()[1].blocks}) {
    CHECK(blocks == 1);
  }
  using Small = wgmma::WgmmaTile<gpu::bf16, 64, 1, 4, 1>;  // four stages: 136 KiB
  CHECK(wgmma::resident_blocks<Small>() == 1);
}

TEST_CASE("tensor cycles are the FLOP of the tile over the peak") {
  for (const std::vector<WgmmaWork>& works :
       {wgmma::wgmma_works<64>(), wgmma::wgmma_works<128>(), wgmma::wgmma_works<256>()})
    for (const WgmmaWork& w : works) CHECK(w.tensor_cycles() * 4096 == 4.0 * w.br * w.bc * w.head_dim);
}

TEST_CASE("shares, by hand") {
  WgmmaWork work = example();
  CHECK(work.own_softmax_cycles() == 512);
  CHECK(work.share_in_step() == 1024.0 / (1024 + 512));  // nothing to copy
  CHECK(work.share_apart() == work.share_in_step());     // alone it has nobody to be apart from
  CHECK(work.share_of_units() == 1);
  work.copied_bytes = 40 * 1536;
  CHECK(work.share_in_step() == 1024.0 / (1024 + 512 + 1536));
  CHECK(work.share_of_units() == 1024.0 / 1536);  // the L2
  work.blocks = 2;
  CHECK(work.share_apart() == 2 * 1024.0 / (1024 + 512 + 1536));  // which is the same
  work.blocks = 3;
  CHECK(work.share_apart() == work.share_of_units());
  work.stages = 2;  // copies on their way meanwhile
  CHECK(work.share_in_step() == 1024.0 / (1024 + 512));
  work.warpgroups = 2;
  CHECK(work.share_of_units() == 1);  // 2048 of products beside 1536 of L2 and 1024 of exponentials
  work.other_softmax = 1984;          // instructions, if there are that many, take longer than exponentials
  CHECK(work.own_softmax_cycles() == 2048);
}

TEST_CASE("warps start as many products as the model says") {
  if (!gpu::device().emulated) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.record_timeline = true;
  const gpu::EmulatorOptionsScope recording(options);
  const auto check = [](const WgmmaWork& work, const stage::ForwardKernel& kernel) {
    INFO(work.kernel << ", head_dim " << work.head_dim);
    REQUIRE(work.kernel == kernel.name);
    constexpr int kTiles = 3;
    run(kernel, problem(ElementType::bf16, 1, 1, work.br, kTiles * work.bc, work.head_dim, Mask::none()));
    std::map<int, int> of_warp;
    for (const gpu::TimelineEvent& event : gpu::emulator_timeline()) {
      const bool product =
          event.kind == gpu::TimelineEvent::Kind::issue && event.line.file.ends_with("kernel/warpgroup.cuh");
      if (product) of_warp[event.warp] += 1;
    }
    CHECK(of_warp.size() == std::size_t(4) * static_cast<std::size_t>(work.warpgroups));
    for (const auto& [warp, products] : of_warp) CHECK(products == kTiles * (work.products_s + work.products_o));
  };
  const std::vector<stage::ForwardKernel> kernels = wgmma::wgmma_kernels();
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    check(wgmma::wgmma_works<64>()[i], kernels[i]);
    check(wgmma::wgmma_works<128>()[i], kernels[i]);
    check(wgmma::wgmma_works<256>()[i], kernels[i]);
  }
}

TEST_CASE("a tile more costs the copies of the model, and no load of a warp") {
  if (!gpu::device().checked) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope counting(options);
  const auto check = [](const WgmmaWork& work, const stage::ForwardKernel& kernel) {
    INFO(work.kernel << ", head_dim " << work.head_dim);
    const auto counted = [&](int tiles) {
      run(kernel, problem(ElementType::bf16, 1, 1, work.br, tiles * work.bc, work.head_dim, Mask::none()));
      return gpu::kernel_counts().at(0);
    };
    const gpu::KernelCounts one = counted(1), two = counted(2);
    CHECK(one.blocks == 1);
    CHECK(two.global_loads.bytes - one.global_loads.bytes == std::uint64_t(work.copied_bytes));
    const std::uint64_t stores = two.shared_stores.requests - one.shared_stores.requests;
    CHECK(stores == std::uint64_t(work.copies) * 4 * static_cast<std::uint64_t>(work.warpgroups));
    CHECK(two.shared_stores.wavefronts - one.shared_stores.wavefronts == 4 * stores);
    CHECK(two.shared_loads.requests == one.shared_loads.requests);
    CHECK(two.barriers - one.barriers == (work.stages == 1 ? 2u : 1u));
    CHECK(two.shared_stores.conflicts == 0);
  };
  const std::vector<stage::ForwardKernel> kernels = wgmma::wgmma_kernels();
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    check(wgmma::wgmma_works<64>()[i], kernels[i]);
    check(wgmma::wgmma_works<128>()[i], kernels[i]);
  }
}
