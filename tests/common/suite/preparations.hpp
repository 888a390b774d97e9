#pragma once
/// \file
/// Inputs of cases and what they are judged by, made once for all kernels.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/attention/in_parallel.hpp"

namespace suite {

/// Cases whose inputs and references are made together, on all cores: the reference takes most of a suite's time.
inline constexpr std::size_t kCasesAtOnce = 64;

/// Keeps what cases were prepared with, up to a number of bytes. `Prepared` has `bytes()`.
template <class Case, class Prepared>
class Preparations {
 public:
  explicit Preparations(Prepared (*make)(const Case&)) : make_(make) {}

  std::shared_ptr<const Prepared> of(const Case& c) {
    const std::string name = c.describe();
    if (const auto found = kept_.find(name); found != kept_.end()) return found->second;
    auto prepared = std::make_shared<const Prepared>(make_(c));
    keep(name, prepared);
    return prepared;
  }

  /// Makes on all cores what is not there yet. A case that cannot be made throws when it is asked for.
  void ahead(std::span<const Case> cases) {
    std::vector<std::shared_ptr<const Prepared>> made(cases.size());
    attention::in_parallel(static_cast<std::int64_t>(cases.size()), [&](std::int64_t i) {
      const auto index = static_cast<std::size_t>(i);
      if (kept_.contains(cases[index].describe())) return;
      try {
        made[index] = std::make_shared<const Prepared>(make_(cases[index]));
      } catch (const std::exception&) {
      }
    });
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (made[i]) keep(cases[i].describe(), made[i]);
    }
  }

 private:
  void keep(const std::string& name, const std::shared_ptr<const Prepared>& prepared) {
    constexpr std::size_t kMostBytes = std::size_t{512} << 20;
    if (kept_bytes_ + prepared->bytes() > kMostBytes) {
      kept_.clear();
      kept_bytes_ = 0;
    }
    kept_bytes_ += prepared->bytes();
    kept_[name] = prepared;
  }

  Prepared (*make_)(const Case&);
  std::map<std::string, std::shared_ptr<const Prepared>> kept_;
  std::size_t kept_bytes_ = 0;
};

/// Calls check(c) for every case, in order, and prepares the next ones beforehand.
template <class Case, class Check>
void for_each_prepared(const std::vector<Case>& cases, Check check) {
  for (std::size_t begin = 0; begin < cases.size(); begin += kCasesAtOnce) {
    const std::span<const Case> some = std::span(cases).subspan(begin, std::min(kCasesAtOnce, cases.size() - begin));
    prepare_ahead(some);
    for (const Case& c : some) check(c);
  }
}

}  // namespace suite
