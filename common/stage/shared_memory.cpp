#include "common/stage/shared_memory.hpp"

#include <cstddef>
#include <stdexcept>

#include "common/gpu/device.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/text.hpp"

namespace stage {

namespace {

constexpr int kByFormula = 3;  // the column's place: behind the wavefronts that were counted

}  // namespace

void show_shared_memory(Program& program, const std::string& chapter, const std::vector<ForwardKernel>& kernels,
                        const std::string& sentence, const std::vector<int>& wavefronts_by_formula) {
  const bool by_formula = !wavefronts_by_formula.empty();
  if (by_formula && wavefronts_by_formula.size() != kernels.size()) {
    throw std::invalid_argument("show_shared_memory wants the wavefronts by formula of each kernel, or of none");
  }
  if (!gpu::device().checked) {
    return program.say("The checking build of the emulator counts them (./learn run " + chapter + ").");
  }
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.count_requests = true;
  const gpu::EmulatorOptionsScope counting(options);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    program.run_forward(kernels[i]);
    for (const gpu::KernelCounts& counts : gpu::kernel_counts()) {
      std::vector<std::string> row = {kernels[i].name};
      for (const gpu::SharedAccesses& accesses : {counts.shared_loads, counts.shared_stores}) {
        const double requests = double(accesses.requests);
        row.push_back(text("%.0f", requests));
        row.push_back(requests > 0 ? text("%.2f", double(accesses.wavefronts) / requests) : "-");
        row.push_back(text("%.0f", double(accesses.conflicts)));
      }
      row.push_back(text("%.0f", double(counts.barriers)));
      if (by_formula) row.insert(row.begin() + kByFormula, text("%d", wavefronts_by_formula[i]));
      rows.push_back(row);
    }
  }
  if (rows.empty()) return program.say("No kernel was launched.");
  program.say(sentence);
  std::vector<std::string> header = {"kernel",        "shared loads",       "wavefronts / load", "conflicts",
                                     "shared stores", "wavefronts / store", "conflicts",         "barriers"};
  if (by_formula) header.insert(header.begin() + kByFormula, "by formula");
  program.table("shared_memory", header, rows);
}

}  // namespace stage
