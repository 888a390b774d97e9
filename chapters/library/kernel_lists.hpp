#pragma once
/// \file
/// The chapters' kernels, a function a chapter. Each is compiled by itself, so that one change compiles one of them.

#include <string>
#include <vector>

#include "common/stage/kernel.hpp"

namespace library {

/// A kernel of either pass: one of the two is there.
struct ListedKernel {
  std::string chapter;  ///< "08_async_copy"
  std::string name, summary;
  stage::Pass pass = stage::Pass::forward;
  stage::ForwardKernel forward;
  stage::BackwardKernel backward;
};

/// The kernels of a chapter, forward or backward.
template <class Kernels>
std::vector<ListedKernel> listed(const std::string& chapter, const Kernels& kernels) {
  std::vector<ListedKernel> list;
  for (const auto& kernel : kernels) {
    ListedKernel entry{
        .chapter = chapter, .name = kernel.name, .summary = kernel.summary, .forward = {}, .backward = {}};
    if constexpr (requires { kernel.deterministic; }) {
      entry.pass = stage::Pass::backward;
      entry.backward = kernel;
    } else {
      entry.forward = kernel;
    }
    list.push_back(entry);
  }
  return list;
}

std::vector<ListedKernel> chapter_02();
std::vector<ListedKernel> chapter_03();
std::vector<ListedKernel> chapter_04();
std::vector<ListedKernel> chapter_05();
std::vector<ListedKernel> chapter_06();
std::vector<ListedKernel> chapter_07();
std::vector<ListedKernel> chapter_08();
std::vector<ListedKernel> chapter_09();
// Of sm_90a alone: not there in a library that is built for other GPUs only.
std::vector<ListedKernel> chapter_10();
std::vector<ListedKernel> chapter_11();
std::vector<ListedKernel> chapter_12();

}  // namespace library
