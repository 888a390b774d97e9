#pragma once
/// \file
/// What the hard cases of the forward and of the backward pass share.

#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "common/attention/inputs.hpp"
#include "common/attention/problem.hpp"
#include "common/gpu/emulation.hpp"
#include "common/stage/kernel.hpp"
#include "tests/common/suite/forward_suite.hpp"
#include "tests/common/suite/reserved_memory.hpp"

namespace suite {

/// A value for each (batch entry, position, head, column).
using Fill = std::function<float(int b, int position, int head, int column)>;

/// A dense [batch, seqlen, heads, head_dim].
inline std::vector<float> filled(int batch, int seqlen, int heads, int head_dim, const Fill& fill) {
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(batch) * seqlen * heads * head_dim);
  for (int b = 0; b < batch; ++b)
    for (int i = 0; i < seqlen; ++i)
      for (int h = 0; h < heads; ++h)
        for (int c = 0; c < head_dim; ++c) values.push_back(fill(b, i, h, c));
  return values;
}

/// Dense inputs.
inline attention::Inputs make(const attention::Problem& p, const Fill& q, const Fill& k, const Fill& v) {
  return {filled(p.batch, p.seqlen_q, p.heads_q, p.head_dim, q),
          filled(p.batch, p.seqlen_kv, p.heads_kv, p.head_dim, k),
          filled(p.batch, p.seqlen_kv, p.heads_kv, p.head_dim, v)};
}

template <class Kernel>
bool takes(const Kernel& kernel, const attention::Problem& p) {
  try {
    stage::require_taken(kernel, p);
    return true;
  } catch (const stage::Refused&) {
    return false;
  }
}

/// The smallest head_dim from `at_least` on that the kernel takes with this element type.
template <class Kernel>
int embedding_head_dim(const Kernel& kernel, attention::ElementType type, int at_least) {
  for (const int head_dim : {32, 64, 128, 256}) {
    if (head_dim < at_least) continue;
    if (takes(kernel, {.seqlen_q = 1, .seqlen_kv = 1, .head_dim = head_dim, .element_type = type})) return head_dim;
  }
  throw std::runtime_error("the kernel takes no head_dim of at least " + std::to_string(at_least));
}

/// What an element of a result may be off by in proportion, besides what fp32 may be: nothing in fp32; in 16 bits twice
/// half a unit in the last place, since the weights (P or dS) are rounded before the product that they enter, and its
/// sum at the end. The bound holds where the terms of that sum have one sign.
constexpr double rounding_of(attention::ElementType type) {
  return type == attention::ElementType::fp32 ? 0 : attention::unit_in_last_place(type);
}

/// Which element types a hard case is run for.
enum class Types {
  all,              ///< all that the kernel takes
  one_if_checking,  ///< in the checking build the first of them: the others only convert otherwise, and it is slow
};

/// Runs a hard case for the element types that the kernel takes. `Trial` is made from the case's id, the kernel and the
/// type, and holds the failures.
template <class Trial, class Kernel>
Failures for_element_types(const char* id, const Kernel& kernel, Types types, void (*hard_case)(Trial&)) {
  Failures failures;
  for (const attention::ElementType type : taken_by(kernel).element_types) {
    Trial trial(id, kernel, type);
    hard_case(trial);
    failures.insert(failures.end(), trial.failures.begin(), trial.failures.end());
    if (types == Types::one_if_checking && depth_for(kernel.memory) == Depth::checking) break;
  }
  return failures;
}

/// A small problem with 2³² + 64 elements between its batch entries, positions or heads, in an array of addresses of
/// which only a few rows are used. Cut to 32 bits, signed or not, the distance leads into the same array, where NaN
/// stands.
class FarRows {
 public:
  static constexpr std::int64_t kFar = (std::int64_t{1} << 32) + 64;
  /// Elements from the start of one array to that of the next: near rows never reach it.
  static constexpr std::size_t kPitch = 4096;
  /// Elements of memory that `arrays` of them need.
  static constexpr std::size_t elements(int arrays) { return arrays * kPitch + kFar; }
  enum class Axis { batch, seq, head };

  FarRows(ReservedMemory& memory, Axis far, int head_dim);

  /// "a far batch stride"
  const std::string& name() const { return name_; }
  const attention::Problem& dense() const { return dense_; }  ///< with as many queries as keys, and heads as KV heads
  const attention::Strides& strides() const { return strides_; }

  /// Writes the rows of a dense array to those of the array of this number.
  void place(int array, std::span<const float> values);
  /// An array whose rows nobody has written.
  void place_nothing(int array);
  std::vector<float> gather(int array) const;
  void* at(int array) { return memory_.at(array * kPitch); }

 private:
  template <class Visit>
  void each_row(Visit visit) const;

  ReservedMemory& memory_;
  attention::Problem dense_;
  attention::Strides strides_;
  std::string name_;
};

/// The emulator's options with a lower limit of a grid along y and z.
inline gpu::EmulatorOptions with_grid_limit(int blocks) {
  gpu::EmulatorOptions options = gpu::emulator_options();
  options.grid_limit = blocks;
  return options;
}

/// Collects what went wrong in a case.
class Expectations {
 public:
  Expectations(const std::string& id, const std::string& kernel, attention::ElementType type)
      : prefix_(id + ", " + kernel + (type == attention::ElementType::fp32 ? "" : ", " + attention::name(type))) {}

  void expect(bool holds, const std::string& sentence) {
    if (!holds) failures.push_back(prefix_ + ": " + sentence);
  }

  /// \param what names the value, or is a function that does: for values by the million, whose names take long.
  template <class What>
  void near(double actual, double expected, double tolerance, const What& what) {
    // Written so that a NaN fails.
    if (actual == expected || std::abs(actual - expected) <= tolerance) return;
    std::string name;
    if constexpr (std::is_invocable_v<What>) {
      name = what();
    } else {
      name = what;
    }
    expect(false, name + " is " + std::to_string(actual) + ", right is " + std::to_string(expected));
  }

  Failures failures;

 private:
  std::string prefix_;
};

}  // namespace suite
