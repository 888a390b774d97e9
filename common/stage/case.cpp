#include "common/stage/case.hpp"

#include "common/stage/backward_run.hpp"
#include "common/stage/forward_run.hpp"

namespace stage {

std::unique_ptr<Case> make_case(Pass pass, const attention::Problem& p, std::uint64_t seed) {
  if (pass == Pass::forward) return std::make_unique<ForwardCase>(p, seed);
  return std::make_unique<BackwardCase>(p, seed);
}

}  // namespace stage
