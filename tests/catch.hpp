#pragma once
/// \file
/// Catch2, whichever of its two generations is installed: 2.13 (Debian 12) or 3 (Ubuntu 24.04).
///
/// Tests include this file and no Catch2 header. It brings TEST_CASE, TEMPLATE_TEST_CASE, SECTION, CHECK, REQUIRE,
/// CHECK_THROWS_AS, CHECK_THROWS_WITH, CHECK_THAT, GENERATE, INFO, CAPTURE, and Catch::Matchers::WithinRel and WithinAbs,
/// which are spelled the same in both.

#include <string>

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/catch_tostring.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

/// Matches a text that contains `text`: `CHECK_THROWS_WITH(f(), ContainsText("head_dim"))`.
inline auto ContainsText(const std::string& text) { return Catch::Matchers::ContainsSubstring(text); }
#else
#include <catch2/catch.hpp>

/// Matches a text that contains `text`: `CHECK_THROWS_WITH(f(), ContainsText("head_dim"))`.
inline auto ContainsText(const std::string& text) { return Catch::Matchers::Contains(text); }
#endif
