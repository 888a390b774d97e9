/// \file
/// The model: rows and bytes of boxes, maps, turns of a ring and leads, by hand; and against the maps that a launch
/// makes, the bytes that TMA moves and the order in which the kernels ask for tiles.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "chapters/11_tma_pipeline/kernels.hpp"
#include "chapters/11_tma_pipeline/model.hpp"
#include "common/gpu/buffer.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"
#include "tests/common/suite/one_kernel.hpp"
#include "tests/common/suite/small_problem.hpp"

namespace {

using attention::ElementType;
using attention::Mask;
using attention::Problem;
using suite::problem, suite::run;
using tma_pipeline::MapOnPaper, tma_pipeline::PipelineWork, tma_pipeline::turn_of;

using SmallRing = tma_pipeline::RingTile<gpu::bf16, 64>;

/// Tiles whose products a warp has started, by the time each tile of keys was asked for: -1 before the first.
std::vector<int> asked_during(const stage::ForwardKernel& kernel, int tiles, int head_dim, int bc) {
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.record_timeline = true;
  const gpu::EmulatorOptionsScope recording(options);
  run(kernel, problem(ElementType::bf16, 1, 1, 128, tiles * bc, head_dim, Mask::none()));
  const int panels = head_dim / 64;
  std::vector<int> during;
  int boxes = -panels, groups = 0;  // Q's come first
  bool in_product = false;
  for (const gpu::TimelineEvent& event : gpu::emulator_timeline()) {
    if (event.warp != 0) continue;
    const bool issue = event.kind == gpu::TimelineEvent::Kind::issue;
    if (issue && event.line.file.ends_with("kernel/warpgroup.cuh")) {
      groups += !in_product;
      in_product = true;
    } else if (issue && event.line.file.ends_with("11_tma_pipeline/tile.cuh")) {
      if (boxes >= 0 && boxes % (2 * panels) == 0) during.push_back((groups + 1) / 2 - 1);
      boxes += 1;
      in_product = false;
    } else {
      in_product = false;
    }
  }
  CHECK(boxes == 2 * panels * tiles);
  return during;
}

}  // namespace

TEST_CASE("rows of a box, by hand") {
  CHECK(tma_pipeline::rows_of_box(0, 128, 320).inside == 128);
  CHECK(tma_pipeline::rows_of_box(256, 128, 320).inside == 64);  // rows 256 to 319
  CHECK(tma_pipeline::rows_of_box(256, 128, 320).outside == 64);
  CHECK(tma_pipeline::rows_of_box(320, 128, 320).inside == 0);
  CHECK(tma_pipeline::rows_of_box(400, 128, 320).outside == 128);
  CHECK(tma_pipeline::rows_of_box(-3, 8, 320).inside == 5);  // a load may begin before the first row
  CHECK(tma_pipeline::rows_of_box(-3, 8, 2).outside == 6);
}

TEST_CASE("the maps of a problem, by hand") {
  Problem p = problem(ElementType::bf16, 4, 2, 100, 320, 128, Mask::none());
  p.batch = 3;
  const std::vector<MapOnPaper> maps = tma_pipeline::maps_on_paper<tma_pipeline::RingTile<gpu::bf16, 128>>(p);
  REQUIRE(maps.size() == 4);
  CHECK(maps[1].shape.sizes == std::vector<std::uint64_t>{128, 320, 2, 3});
  // Two heads of 128 elements of 2 bytes a row, 320 rows.
  CHECK(maps[1].shape.stride_bytes == std::vector<std::uint64_t>{512, 256, 163840});
  CHECK(maps[1].shape.box == std::vector<std::uint32_t>{64, 128, 1, 1});
  CHECK(maps[1].box_bytes == 128 * 128);
  CHECK(maps[1].tiles == 3);
  CHECK(maps[1].boxes_of_tile == 2);
  CHECK(maps[0].shape.stride_bytes == std::vector<std::uint64_t>{1024, 256, 102400});
  CHECK(maps[3].shape.box[1] == 64);  // a warpgroup stores its own rows
  p.batch = 1;
  CHECK(tma_pipeline::maps_on_paper<SmallRing>(p)[1].shape.stride_bytes[2] == 16);
}

TEST_CASE("the maps on paper are those of a launch") {
  if (!gpu::device().emulated) return;  // on a GPU a map is the driver's secret
  Problem p = problem(ElementType::bf16, 4, 2, 100, 320, 64, Mask::none());
  p.batch = 2;
  const std::vector<MapOnPaper> maps = tma_pipeline::maps_on_paper<SmallRing>(p);
  gpu::DeviceBuffer<gpu::bf16> array(2 * 320 * 4 * 64);
  attention::ForwardArgs<gpu::bf16> args{};
  args.q_gmem = args.k_gmem = args.v_gmem = array.data();
  args.o_gmem = array.data();
  args.q_strides = p.strides_q();
  args.k_strides = p.strides_k();
  args.v_strides = p.strides_v();
  args.o_strides = p.strides_o();
  args.batch = p.batch;
  args.heads_q = p.heads_q;
  args.heads_kv = p.heads_kv;
  args.seqlen_q = p.seqlen_q;
  args.seqlen_kv = p.seqlen_kv;
  args.head_dim = p.head_dim;
  const tma_pipeline::Maps made = tma_pipeline::make_maps<SmallRing>(args);
  const auto words = [&](gpu::TensorMapShape shape) {
    shape.base = array.data();
    CHECK(gpu::box_bytes(shape) == 128 * shape.box[1]);
    return gpu::make_tensor_map(shape).words;
  };
  CHECK(words(maps[0].shape) == made.q.words);
  CHECK(words(maps[1].shape) == made.k.words);
  CHECK(words(maps[2].shape) == made.v.words);
  CHECK(words(maps[3].shape) == made.o.words);
  gpu::TensorMapShape other = maps[1].shape;
  other.stride_bytes[0] += 16;
  CHECK(words(other) != made.k.words);
}

TEST_CASE("turns of a ring, by hand") {
  // Three places: tiles 0 1 2, then 3 4 5, then 6.
  CHECK(turn_of(2, 3).place == 2);
  CHECK(turn_of(2, 3).phase == 0);
  CHECK(turn_of(5, 3).place == 2);
  CHECK(turn_of(5, 3).parity == 1);
  CHECK(turn_of(6, 3).place == 0);
  CHECK(turn_of(6, 3).phase == 2);
  CHECK(turn_of(6, 3).parity == 0);
  CHECK(tma_pipeline::asked_during(2, 3) == -1);
  CHECK(tma_pipeline::asked_during(3, 3) == 1);  // when tile 0 has been used, and that is known during tile 1
  CHECK(tma_pipeline::asked_during(6, 3) == 4);
}

TEST_CASE("the ring asks for a tile when the model says") {
  if (!gpu::device().emulated) return;
  const stage::ForwardKernel ring = tma_pipeline::tma_pipeline_kernels().back();
  const auto check = [&](const PipelineWork& work) {
    INFO("head_dim " << work.head_dim);
    const int tiles = 2 * work.stages + 1;
    const std::vector<int> during = asked_during(ring, tiles, work.head_dim, work.bc);
    REQUIRE(static_cast<int>(during.size()) == tiles);
    for (int tile = 0; tile < tiles; ++tile) {
      INFO("tile " << tile);
      CHECK(during[static_cast<std::size_t>(tile)] == tma_pipeline::asked_during(tile, work.stages));
    }
  };
  check(tma_pipeline::pipeline_works<64>()[1]);
  check(tma_pipeline::pipeline_works<128>()[1]);
  check(tma_pipeline::pipeline_works<256>()[1]);
}

TEST_CASE("step 1 asks for a tile behind the one that had its place") {
  if (!gpu::device().emulated) return;
  const std::vector<int> during = asked_during(tma_pipeline::tma_pipeline_kernels().front(), 5, 64, 128);
  CHECK(during == std::vector<int>{-1, -1, 0, 1, 2});
}

TEST_CASE("a tile on paper, by hand") {
  const std::vector<PipelineWork> works = tma_pipeline::pipeline_works<128>();
  REQUIRE(works.size() == 2);
  CHECK(works[0].tile_bytes == 32768);
  CHECK(works[0].boxes == 4);
  CHECK(works[0].product_cycles() == 512);  // 8 of 64 cycles
  CHECK(works[0].softmax_cycles() == 528);  // 66 · 128 / 16
  CHECK(works[0].copy_cycles() == 1638.4);  // 64 KiB, 40 bytes a cycle
  CHECK(works[0].in_step() == 2 * (1024 + 528));
  CHECK(works[0].apart() == 2048);
  CHECK(works[0].lead_tiles() == 1);
  CHECK(works[1].lead_tiles() == 2);
  CHECK(works[0].latency_hidden(2048) == 2048 - 1638.4);
  CHECK(works[1].latency_hidden(2048) == 4096 - 819.2);  // K alone
  CHECK(works[0].bytes_before_first() == 32768 + 65536);
  CHECK(works[1].bytes_before_first() == 32768 + 32768);
  // Tiles and barriers of 8 bytes, which fill up to a multiple of the 1024 that tiles want.
  CHECK(works[0].shared_bytes == 32768 + 4 * 32768 + 1024);
  CHECK(works[1].shared_bytes == 32768 + 6 * 32768 + 1024);
  // At head_dim 64 exponentials take longer than products: 2 · 528 and 1024.
  CHECK(tma_pipeline::pipeline_works<64>()[1].apart() == 1056);
  CHECK(tma_pipeline::pipeline_works<64>()[1].stages == 4);
  CHECK(tma_pipeline::pipeline_works<256>()[1].product_cycles() == 512);
  CHECK(tma_pipeline::pipeline_works<256>()[1].softmax_cycles() == 272);  // 34 · 128 / 16
  CHECK(tma_pipeline::pipeline_works<256>()[1].lead_tiles() == 1);
}

TEST_CASE("TMA moves the rows inside, and no warp moves a tile") {
  if (!gpu::device().checked) return;
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope counting(options);
  const std::vector<stage::ForwardKernel> kernels = tma_pipeline::tma_pipeline_kernels();
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    INFO(kernels[i].name);
    const auto counted = [&](int keys) {
      run(kernels[i], problem(ElementType::bf16, 1, 1, 70, keys, 64, Mask::none()));
      return gpu::kernel_counts().at(0);
    };
    const gpu::KernelCounts one = counted(128), more = counted(128 + 37);
    CHECK(one.global_loads.bytes == 128 * (70 + 2 * 128));
    const tma_pipeline::BoxRows rows = tma_pipeline::rows_of_box(128, 128, 128 + 37);
    CHECK(rows.inside == 37);
    CHECK(more.global_loads.bytes - one.global_loads.bytes == std::uint64_t(2 * 128 * rows.inside));
    CHECK(one.global_loads.requests == 0);
    CHECK(more.shared_stores.requests == one.shared_stores.requests);
    CHECK(more.shared_loads.requests == one.shared_loads.requests);
    CHECK(more.barriers - one.barriers == (kernels[i].name == "ring" ? 0u : 1u));
  }
}
