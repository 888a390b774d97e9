#pragma once
/// \file
/// Failures of a suite as failures of Catch2.

#include <string>

#include "tests/catch.hpp"
#include "tests/common/suite/forward_suite.hpp"

namespace suite {

/// Every sentence becomes a failed check.
inline void check_none(const Failures& failures) {
  for (const std::string& sentence : failures) FAIL_CHECK(sentence);
  CHECK(failures.empty());
}

}  // namespace suite
