#pragma once
/// \file
/// The modes in which the tests of asynchronous kernels run on the emulator: seeds and deliveries.

#include <cstdint>
#include <fstream>
#include <string>

#include "tests/common/gpu/launch_report.cuh"

namespace gpu_tests {

/// Calls run() once on a GPU, and on the emulator under seeds 0 … seeds − 1 in both deliveries.
template <class Run>
void in_all_modes(std::uint64_t seeds, Run&& run) {
  if (!gpu::device().emulated) {
    run();
    return;
  }
  for (const gpu::Delivery delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately}) {
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      INFO("seed " << seed << (delivery == gpu::Delivery::on_wait ? ", on wait" : ", immediately"));
      gpu::EmulatorOptions options;
      options.schedule_seed = seed;
      options.delivery = delivery;
      const gpu::EmulatorOptionsScope scope(options);
      run();
    }
  }
}

/// What a launch without the synchronisation at `line` reports or gets wrong, in the first of a few modes that notices;
/// empty if none does. `run` returns false for a wrong result.
template <class Run>
std::string noticed_without(const gpu::SourceLine& line, Run&& run) {
  for (const gpu::Delivery delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately}) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      gpu::EmulatorOptions options;
      options.schedule_seed = seed;
      options.delivery = delivery;
      options.without = {line};
      const gpu::EmulatorOptionsScope scope(options);
      bool right = true;
      const std::string report = report_of([&] { right = run(); });
      if (!report.empty()) return report;
      if (!right) return "a wrong result";
    }
  }
  return {};
}

/// What `run` reports in the first of a few modes in which it reports something. It must not report nothing in all.
template <class Run>
std::string report_in_some_mode(Run&& run) {
  std::string report;
  for (const gpu::Delivery delivery : {gpu::Delivery::on_wait, gpu::Delivery::immediately}) {
    for (std::uint64_t seed = 0; seed < 6 && report.empty(); ++seed) {
      gpu::EmulatorOptions options;
      options.schedule_seed = seed;
      options.delivery = delivery;
      const gpu::EmulatorOptionsScope scope(options);
      report = report_of(run);
    }
  }
  CHECK(report != "");
  CHECK(report_of([] { CHECK(ordinary_launch_works()); }) == "");
  return report;
}

/// How reports spell the line of `file` that ends with the comment "// mark".
inline std::string marked_line(const std::string& file, const std::string& mark) {
  std::ifstream source(file);
  std::string text, found;
  const std::string ending = "// " + mark;
  for (int line = 1; std::getline(source, text); ++line) {
    if (text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0) {
      found = line_of(file, line);
    }
  }
  REQUIRE(found != "");
  return found;
}

}  // namespace gpu_tests
