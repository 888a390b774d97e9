#pragma once
/// \file
/// A problem with its seeded inputs, and what the results of one pass are measured against.
///
/// Arrays pass through here as bytes, so that what runs kernels need not know their element types. 0xFF in every byte
/// is NaN in each of them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/attention/problem.hpp"
#include "common/stage/kernel.hpp"

namespace stage {

/// An array that kernels read.
struct InputArray {
  const char* name;  ///< "Q"
  std::span<const std::byte> bytes;
};

/// An array that kernels write.
struct OutputArray {
  const char* name;  ///< "O"
  std::size_t bytes;
};

using Bytes = std::vector<std::byte>;

/// Outcome of the accuracy rule.
struct Judgement {
  bool right = false;
  double error = 0;      ///< the one to show
  double allowed = 0;    ///< the most that it may be
  std::string sentence;  ///< "right", or what is wrong and where
};

/// Made once for all kernels that run on one problem.
class Case {
 public:
  virtual ~Case() = default;
  virtual Pass pass() const = 0;
  virtual const attention::Problem& problem() const = 0;
  /// In the order of Pointers (any_kernel.hpp). They stay where they are as long as the case lives.
  virtual std::vector<InputArray> inputs_in_order() const = 0;
  virtual std::vector<OutputArray> outputs_in_order() const = 0;
  /// The accuracy rule. \param outputs in the same order; those that a peer does not give are empty.
  virtual Judgement judge_outputs(const std::vector<Bytes>& outputs) = 0;
};

/// Normal inputs. A backward case computes the forward for its kernels, which takes seconds on long problems.
std::unique_ptr<Case> make_case(Pass pass, const attention::Problem& p, std::uint64_t seed);

/// An array of a case as bytes, and a kernel's as numbers.
template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <class T>
std::span<const T> values_of(const Bytes& bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace stage
