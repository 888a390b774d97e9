#include "common/attention/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <stdexcept>

#include "common/attention/in_parallel.hpp"

namespace attention {
namespace {

constexpr double kMean = 0.3;

/// Scaled score by which one key beats its neighbour in rising_scores and falling_scores: over a tile of 32 keys the
/// running maximum moves by 8, so a forgotten rescale is off by e⁸, while several keys still share the weight.
constexpr double kScoreStep = 0.25;

constexpr double kHugeScore = 1e4;

/// Which array a stream of numbers is for. Each has its own engine, so that Q does not depend on the size of K.
enum class Stream : std::uint64_t { q = 1, k = 2, v = 3, output_gradient = 4 };

/// Numbers that are the same on every machine. The engine is fixed by the C++ standard; std::normal_distribution is
/// not, so the transform is written out, in double, and the result rounded once to float.
class Generator {
 public:
  Generator(std::uint64_t seed, Stream stream)
      : engine_(seed ^ (0x9E3779B97F4A7C15u * static_cast<std::uint64_t>(stream))) {}

  /// Passes over this many uniforms.
  void skip(std::int64_t uniforms) {
    engine_.discard(static_cast<unsigned long long>(uniforms));
    has_spare_ = false;
  }

  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  /// Standard normal by Box and Muller (1958): two uniforms give two normals.
  double normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    const double angle = 2 * std::numbers::pi * uniform();
    spare_ = radius * std::sin(angle);
    has_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  std::mt19937_64 engine_;
  double spare_ = 0;
  bool has_spare_ = false;
};

/// The power of two that goes from K, whose largest element it is, to Q, so that K stays within half of fp16's range; 1
/// for the other types. Q, at most 1.5 without it, must do so too.
double moved_to_q(const Problem& p, double largest_k) {
  constexpr double kHalfRange = 0x1p15;
  if (p.element_type != ElementType::fp16 || largest_k <= kHalfRange) return 1;
  const double factor = std::exp2(std::ceil(std::log2(largest_k / kHalfRange)));
  if (factor <= kHalfRange / 1.5) return factor;
  throw std::invalid_argument("softmax_scale " + std::to_string(p.scale()) +
                              " is too small for scores this large in fp16");
}

/// Fills [batch, seqlen, heads, head_dim] in that order, whatever the strides, so that all layouts hold equal values.
/// `row(position)` is called once a row and returns the function that makes its elements from the column.
template <class Row>
std::vector<float> fill(std::int64_t elements, const Strides& strides, const Problem& p, int seqlen, int heads,
                        Row row) {
  std::vector<float> array(static_cast<std::size_t>(elements), std::numeric_limits<float>::quiet_NaN());
  for (int b = 0; b < p.batch; ++b)
    for (int position = 0; position < seqlen; ++position)
      for (int head = 0; head < heads; ++head) {
        float* to = array.data() + strides.offset(b, position, head);
        auto element = row(position);
        for (int c = 0; c < p.head_dim; ++c) to[c] = rounded(static_cast<float>(element(c)), p.element_type);
      }
  return array;
}

/// An array as `fill` makes it, of normals around kMean. The largest problems have 10⁸ of them, so that parts of the
/// array are made side by side; each starts with the generator as those before it leave it, so that all get the numbers
/// that one generator would have given them.
std::vector<float> normals(std::uint64_t seed, Stream stream, std::int64_t elements, const Strides& strides,
                           const Problem& p, int seqlen, int heads) {
  constexpr std::int64_t kElementsPerPart = std::int64_t{1} << 21;
  std::vector<float> array(static_cast<std::size_t>(elements), std::numeric_limits<float>::quiet_NaN());
  const std::int64_t rows = std::int64_t{p.batch} * seqlen * heads;
  // An even number, so that a part starts with a pair of normals: as many as uniforms.
  const std::int64_t rows_per_part = std::max<std::int64_t>(2, kElementsPerPart / p.head_dim / 2 * 2);
  std::vector<Generator> starts{Generator(seed, stream)};
  for (std::int64_t row = rows_per_part; row < rows; row += rows_per_part) {
    starts.push_back(starts.back());
    starts.back().skip(rows_per_part * p.head_dim);
  }
  in_parallel_parts(rows, rows_per_part, [&](std::int64_t first, std::int64_t end) {
    Generator random = starts[static_cast<std::size_t>(first / rows_per_part)];
    for (std::int64_t row = first; row < end; ++row) {
      const int head = static_cast<int>(row % heads);
      const int position = static_cast<int>(row / heads % seqlen);
      float* to = array.data() + strides.offset(static_cast<int>(row / heads / seqlen), position, head);
      for (int c = 0; c < p.head_dim; ++c) {
        to[c] = rounded(static_cast<float>(kMean + random.normal()), p.element_type);
      }
    }
  });
  return array;
}

}  // namespace

std::string name(InputKind kind) {
  switch (kind) {
    case InputKind::normal:
      return "normal";
    case InputKind::one_hot_v:
      return "one_hot_v";
    case InputKind::rising_scores:
      return "rising_scores";
    case InputKind::falling_scores:
      return "falling_scores";
    case InputKind::huge_scores:
      return "huge_scores";
    case InputKind::constant_scores:
      return "constant_scores";
  }
  throw std::invalid_argument("unknown InputKind " + std::to_string(static_cast<int>(kind)));
}

Inputs make_inputs(const Problem& p, InputKind kind, std::uint64_t seed) {
  p.validate();
  Generator random_q(seed, Stream::q), random_k(seed, Stream::k);
  const auto make_q = [&](auto row) { return fill(p.elements_q(), p.strides_q(), p, p.seqlen_q, p.heads_q, row); };
  const auto make_k = [&](auto row) { return fill(p.elements_k(), p.strides_k(), p, p.seqlen_kv, p.heads_kv, row); };
  const auto make_v = [&](auto row) { return fill(p.elements_v(), p.strides_v(), p, p.seqlen_kv, p.heads_kv, row); };
  const auto normal_q = [&] {
    return normals(seed, Stream::q, p.elements_q(), p.strides_q(), p, p.seqlen_q, p.heads_q);
  };
  const auto normal_k = [&] {
    return normals(seed, Stream::k, p.elements_k(), p.strides_k(), p, p.seqlen_kv, p.heads_kv);
  };

  // In the steered kinds every element of Q lies in (0.5, 1.5), so that adding x / (scale · head_dim) to all elements
  // of a key adds about x to its scaled scores. With a scale of 0 all scores are 0, and 1 stands in for it.
  const double scale = p.scale() != 0 ? static_cast<double>(p.scale()) : 1.0;
  const double unit = 1 / (scale * p.head_dim);
  const auto positive_row = [&](double factor) {
    return [&random_q, factor](int) { return [&, factor](int) { return factor * random_q.uniform(0.5, 1.5); }; };
  };

  Inputs inputs;
  switch (kind) {
    case InputKind::normal:
    case InputKind::one_hot_v:
      inputs.q = normal_q();
      inputs.k = normal_k();
      break;
    case InputKind::rising_scores:
    case InputKind::falling_scores: {
      // The random part spans half a step: since Q > 0, no draw of it turns the order of two keys round.
      const double middle = 0.5 * (p.seqlen_kv - 1);
      const double direction = kind == InputKind::rising_scores ? 1 : -1;
      const double factor = moved_to_q(p, std::abs(unit) * kScoreStep * (middle + 0.25));
      inputs.q = make_q(positive_row(factor));
      inputs.k = make_k([&](int key) {
        const double level = direction * (key - middle);
        return [&, level](int) { return unit * kScoreStep * (level + random_k.uniform(-0.25, 0.25)) / factor; };
      });
      break;
    }
    case InputKind::huge_scores: {
      // Keys of the same sign differ by a few units of score, so several share the weight. Key 0 is negative: under a
      // causal mask the first row sees nothing but −1e4.
      const double spread = 1 / (std::abs(scale) * std::sqrt(static_cast<double>(p.head_dim)));
      // In 16 bits an element that holds both has a last place of up to 8 units of score.
      const bool apart = p.element_type != ElementType::fp32 && p.head_dim > 1;
      const int columns_of_size = apart ? (p.head_dim + 1) / 2 : p.head_dim;
      const double size = kHugeScore * unit * (double(p.head_dim) / columns_of_size);
      const double factor = moved_to_q(p, std::abs(size) + 8 * spread);
      inputs.q = make_q(positive_row(factor));
      inputs.k = make_k([&](int key) {
        const double sign = random_k.uniform() < 0.5 || key == 0 ? -1 : 1;
        return [&, sign](int c) {
          const double difference = spread * random_k.normal();
          return (!apart ? sign * size + difference : c % 2 == 0 ? sign * size : difference) / factor;
        };
      });
      break;
    }
    case InputKind::constant_scores:
      inputs.q = make_q([](int) { return [](int) { return 0.0; }; });
      inputs.k = normal_k();
      break;
  }
  if (kind == InputKind::one_hot_v)
    inputs.v = make_v([&](int key) { return [&, key](int c) { return c == key % p.head_dim ? 1.0 : 0.0; }; });
  else
    inputs.v = normals(seed, Stream::v, p.elements_v(), p.strides_v(), p, p.seqlen_kv, p.heads_kv);
  return inputs;
}

std::vector<float> make_output_gradient(const Problem& p, std::uint64_t seed) {
  p.validate();
  return normals(seed, Stream::output_gradient, p.elements_dout(), p.strides_dout(), p, p.seqlen_q, p.heads_q);
}

}  // namespace attention
