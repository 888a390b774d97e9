#pragma once
/// \file
/// A problem with its seeded inputs, and what the results of one pass are measured against.
///
/// Arrays pass through here as bytes, so that what runs kernels need not know their element types. 0xFF in every byte
/// is NaN in each of them. Q, K, V, O, dO and the gradients are of the problem's element type, the LSE is fp32.

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
  Case() = default;
  Case(const Case&) = delete;  // what it handed out points into it
  Case& operator=(const Case&) = delete;
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

/// A case's numbers as kernels read them: themselves in fp32, an encoded copy in 16 bits.
class StoredArray {
 public:
  /// \param values have to stay where they are
  StoredArray(const char* name, const std::vector<float>& values, attention::ElementType type);
  StoredArray(StoredArray&&) = default;
  StoredArray(const StoredArray&) = delete;
  const InputArray& array() const { return array_; }

 private:
  Bytes copy_;
  InputArray array_;
};

std::vector<InputArray> arrays_of(const std::vector<StoredArray>& stored);

/// A kernel's array as numbers: in fp32 what lies in memory, in 16 bits a decoded copy.
class Numbers {
 public:
  /// \param bytes have to stay where they are
  Numbers(const Bytes& bytes, attention::ElementType type);
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  operator std::span<const float>() const { return numbers_; }

 private:
  std::unique_ptr<float[]> copy_;  // not a vector, which would be written twice
  std::span<const float> numbers_;
};

}  // namespace stage
