// Device memory and the machine, as the host sees them.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/gpu/buffer.hpp"
#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "tests/catch.hpp"

TEST_CASE("a buffer gives back what was put in", "[buffer]") {
  const std::vector<double> values{1.5, -2.5, 1e300};
  gpu::DeviceBuffer<double> buffer(values, "values");
  CHECK(buffer.size() == 3);
  CHECK(buffer.download() == values);
  buffer.upload(std::vector<double>{4, 5, 6});
  CHECK(buffer.download() == std::vector<double>{4, 5, 6});
}

TEST_CASE("fresh memory is poison, 256-byte aligned, and can be poisoned again", "[buffer][poison]") {
  gpu::DeviceBuffer<float> buffer(1001, "buffer");
  CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256 == 0);
  const auto all_ones = [&] {
    for (const float v : buffer.download()) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &v, 4);
      if (bits != 0xffffffffu || !std::isnan(v)) return false;
    }
    return true;
  };
  CHECK(all_ones());
  buffer.upload(std::vector<float>(1001, 0.0f));
  CHECK(!all_ones());
  buffer.poison();
  CHECK(all_ones());
}

TEST_CASE("an upload of another size is refused, and changes nothing", "[buffer]") {
  gpu::DeviceBuffer<int> buffer(std::vector<int>{1, 2, 3}, "buffer");
  for (const std::size_t size : {0, 2, 4}) {
    CHECK_THROWS_AS(buffer.upload(std::vector<int>(size, 9)), gpu::Error);
    CHECK_THROWS_WITH(buffer.upload(std::vector<int>(size, 9)),
                      ContainsText("3 elements") && ContainsText("array " + std::to_string(size)));
  }
  CHECK(buffer.download() == std::vector<int>{1, 2, 3});
}

TEST_CASE("an empty buffer holds nothing", "[buffer]") {
  const std::size_t before = gpu::memory_in_use();
  gpu::DeviceBuffer<int> empty(0, "empty"), none;
  CHECK(gpu::memory_in_use() == before);
  CHECK(empty.data() == nullptr);
  CHECK(empty.download().empty());
  empty.upload({});
  empty.poison();
  CHECK(none.size() == 0);
}

TEST_CASE("moving a buffer moves its memory", "[buffer]") {
  const std::size_t before = gpu::memory_in_use();
  {
    gpu::DeviceBuffer<int> a(std::vector<int>{1, 2}, "a");
    const int* const place = a.data();
    gpu::DeviceBuffer<int> b(std::move(a));
    CHECK(b.data() == place);
    CHECK(b.size() == 2);
    CHECK(gpu::memory_in_use() == before + 8);
    gpu::DeviceBuffer<int> c(std::vector<int>{3, 4, 5}, "c");
    c = std::move(b);
    CHECK(c.data() == place);
    CHECK(c.download() == std::vector<int>{1, 2});
  }
  CHECK(gpu::memory_in_use() == before);
}

TEST_CASE("memory in use and its peak are counted in bytes", "[buffer]") {
  const std::size_t before = gpu::memory_in_use();
  gpu::reset_memory_peak();
  CHECK(gpu::memory_peak() == before);
  {
    const gpu::DeviceBuffer<float> a(1000, "a");
    CHECK(gpu::memory_in_use() == before + 4000);
    {
      const gpu::DeviceBuffer<char> b(77, "b");
      CHECK(gpu::memory_in_use() == before + 4077);
    }
    CHECK(gpu::memory_in_use() == before + 4000);
    CHECK(gpu::memory_peak() == before + 4077);
    gpu::reset_memory_peak();
    CHECK(gpu::memory_peak() == before + 4000);
  }
  CHECK(gpu::memory_in_use() == before);
  CHECK(gpu::memory_peak() == before + 4000);
}

TEST_CASE("an allocation that does not fit says what it is, what it needs and what there is", "[buffer]") {
  const std::size_t before = gpu::memory_in_use();
  gpu::reset_memory_peak();
  const std::size_t wanted = std::size_t{1} << 46;  // 64 TiB
  CHECK(gpu::memory_available() < wanted);
  CHECK_THROWS_AS(gpu::DeviceBuffer<char>(wanted, "scores"), gpu::Error);
  CHECK_THROWS_WITH(gpu::DeviceBuffer<char>(wanted, "scores"),
                    ContainsText("scores") && ContainsText(std::to_string(wanted)) && ContainsText("available"));
  CHECK(gpu::memory_in_use() == before);
  CHECK(gpu::memory_peak() == before);
  const gpu::DeviceBuffer<int> small(std::vector<int>{7}, "small");
  CHECK(small.download() == std::vector<int>{7});
}

TEST_CASE("the emulator refuses copies that leave a buffer", "[buffer]") {
  if (!gpu::device().emulated) return;
  gpu::DeviceBuffer<int> buffer(4, "numbers");
  std::vector<int> host(5, 1);
  const auto message = [&](auto&& copy) {
    try {
      copy();
    } catch (const gpu::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(message([&] { gpu::copy_to_device(buffer.data(), host.data(), 20); }),
             ContainsText("'numbers' (16 bytes)"));
  CHECK_THAT(message([&] { gpu::copy_to_host(host.data(), buffer.data() + 2, 12); }), ContainsText("'numbers'"));
  CHECK_THAT(message([&] { gpu::fill_bytes(buffer.data() - 1, 0, 4); }), ContainsText("before the start of 'numbers'"));
  CHECK_THAT(message([&] { gpu::copy_to_device(host.data(), host.data(), 4); }), ContainsText("no device memory"));
}

TEST_CASE("the device says what it is", "[device]") {
  const gpu::DeviceInfo& device = gpu::device();
  CHECK(!device.name.empty());
  CHECK(device.compute_capability >= 80);
  CHECK(device.multiprocessors > 0);
  CHECK(device.shared_memory_per_block >= 99 * 1024);
  CHECK(device.memory_total > 0);
  CHECK(gpu::memory_available() <= device.memory_total);
  CHECK(device.driver.empty() == device.emulated);
  CHECK(device.built_for.empty() == device.emulated);
  CHECK((!device.checked || device.emulated));
}

TEST_CASE("counts exist in the checking build, options on the emulator", "[device]") {
  CHECK(gpu::counts().has_value() == gpu::device().checked);
  CHECK_NOTHROW(gpu::set_emulator_options({}));
  if (gpu::device().emulated) return;
  gpu::EmulatorOptions options;
  options.schedule_seed = 1;
  CHECK_THROWS_AS(gpu::set_emulator_options(options), gpu::Error);
  CHECK(gpu::synchronisations_seen().empty());
}

TEST_CASE("a stopwatch runs forward", "[device]") {
  gpu::Stopwatch watch;
  watch.start();
  const double first = watch.stop_seconds();
  CHECK(first >= 0);
  CHECK(watch.stop_seconds() >= first);
}
