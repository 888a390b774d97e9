#include "common/attention/reference.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <string>

namespace attention {
namespace {

/// Row-major, so that a row of a matrix is a row of the tensor it came from.
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXd;

/// Queries handled at once: wide enough for Eigen's blocked product, and S takes only 64 · seqlen_kv doubles.
constexpr int kQueriesPerBlock = 64;

/// Below it an fp32 number has fewer than 24 bits above 2⁻¹²⁶, under which GPUs may flush to 0.
constexpr double kLeastExactP = 0x1p-102;

void require_size(const char* array, std::size_t size, std::int64_t needed) {
  if (size >= static_cast<std::size_t>(needed)) return;
  throw std::invalid_argument(std::string(array) + " must hold " + std::to_string(needed) + " elements: it holds " +
                              std::to_string(size));
}

void require_inputs(const Problem& p, std::span<const float> q, std::span<const float> k, std::span<const float> v) {
  p.validate();
  require_size("q", q.size(), p.elements_q());
  require_size("k", k.size(), p.elements_k());
  require_size("v", v.size(), p.elements_v());
}

void require_gradients(const Problem& p, std::span<const float> dout, std::span<const float> dlse) {
  require_size("dout", dout.size(), p.elements_dout());
  if (!dlse.empty()) require_size("dlse", dlse.size(), p.elements_lse());
}

/// Rows first … first + rows − 1 of one head as a dense float64 matrix [rows, head_dim]; gaps are never read.
Matrix gather(std::span<const float> array, const Strides& strides, int b, int head, int first, int rows,
              int head_dim) {
  Matrix m(rows, head_dim);
  for (int i = 0; i < rows; ++i) {
    const float* row = array.data() + strides.offset(b, first + i, head);
    for (int c = 0; c < head_dim; ++c) m(i, c) = row[c];
  }
  return m;
}

/// O as a kernel of the backward is given it. (To fp32 it is not rounded: there the difference is as small as any
/// other.)
Matrix as_stored(const Matrix& out, ElementType type) {
  if (type == ElementType::fp32) return out;
  return out.unaryExpr([type](double x) { return double(rounded(static_cast<float>(x), type)); });
}

/// Offset of row (b, position, head) in a dense [batch, seqlen, heads, head_dim] array.
std::int64_t dense_row(int b, int position, int head, int seqlen, int heads, int head_dim) {
  return contiguous_strides(seqlen, heads, head_dim).offset(b, position, head);
}

/// Index of a query in a dense [batch, heads, seqlen] array.
std::size_t lse_entry(const Problem& p, int b, int query, int head) {
  return (std::size_t(b) * p.heads_q + head) * p.seqlen_q + query;
}

/// A block of consecutive queries of one head and the run of keys that any of them sees.
struct QueryBlock {
  int first;
  int size;
  KeyRange keys;
};

QueryBlock query_block(const Problem& p, int first) {
  QueryBlock block{first, std::min(kQueriesPerBlock, p.seqlen_q - first), {p.seqlen_kv, 0}};
  for (int i = 0; i < block.size; ++i) {
    const KeyRange keys = visible_keys(p.mask, first + i, p.seqlen_q, p.seqlen_kv);
    if (keys.empty()) continue;
    block.keys.begin = std::min(block.keys.begin, keys.begin);
    block.keys.end = std::max(block.keys.end, keys.end);
  }
  if (block.keys.empty()) block.keys = {0, 0};
  return block;
}

/// Turns raw products QKᵀ [block.size, block.keys.size()] into P in place and returns the LSE of each row. Entries
/// that the mask hides become 0, so that an empty row is a row of zeros with LSE −∞.
Vector softmax_rows(const Problem& p, const QueryBlock& block, Matrix& s) {
  const double scale = p.scale();
  Vector lse = Vector::Constant(block.size, -std::numeric_limits<double>::infinity());
  for (int i = 0; i < block.size; ++i) {
    const KeyRange keys = visible_keys(p.mask, block.first + i, p.seqlen_q, p.seqlen_kv);
    double* row = s.data() + i * s.cols();
    if (keys.empty()) {
      std::fill(row, row + s.cols(), 0.0);
      continue;
    }
    const int begin = keys.begin - block.keys.begin;
    const int end = keys.end - block.keys.begin;
    double maximum = -std::numeric_limits<double>::infinity();
    for (int j = begin; j < end; ++j) maximum = std::max(maximum, row[j] *= scale);
    double sum = 0;
    for (int j = begin; j < end; ++j) sum += row[j] = std::exp(row[j] - maximum);
    for (int j = begin; j < end; ++j) row[j] /= sum;
    std::fill(row, row + begin, 0.0);
    std::fill(row + end, row + s.cols(), 0.0);
    lse[i] = maximum + std::log(sum);
  }
  return lse;
}

/// Adds the least P that fp32 holds to 24 bits to every entry that is seen; a hidden one stays 0.
void raise_seen(const Problem& p, const QueryBlock& block, Matrix& probabilities) {
  for (int i = 0; i < block.size; ++i) {
    const KeyRange keys = visible_keys(p.mask, block.first + i, p.seqlen_q, p.seqlen_kv);
    if (!keys.empty()) probabilities.row(i).segment(keys.begin - block.keys.begin, keys.size()).array() += kLeastExactP;
  }
}

/// What the least normal number of the element type makes of a factor that is rounded to it.
double rounded_size(double factor, ElementType type) { return std::max(std::abs(factor), least_normal(type)); }

/// Adds to the squares of ReferencePass::rounded_terms what the pairs of a block contribute to dQ, which belongs to its
/// queries alone (and is returned), and to dK and dV, which all queries of the group share.
Vector add_rounded_terms(const Problem& p, const QueryBlock& block, const Matrix& probabilities, const Matrix& ds,
                         const Vector& query_squares, const Vector& key_squares, const Vector& d_out_squares,
                         Vector& dk_squares, Vector& dv_squares) {
  Vector dq_squares = Vector::Zero(block.size);
  for (int i = 0; i < block.size; ++i) {
    const KeyRange keys = visible_keys(p.mask, block.first + i, p.seqlen_q, p.seqlen_kv);
    for (int j = keys.begin; j < keys.end; ++j) {
      const double ds_size = rounded_size(ds(i, j - block.keys.begin), p.element_type);
      const double p_size = rounded_size(probabilities(i, j - block.keys.begin), p.element_type);
      dq_squares[i] += ds_size * ds_size * key_squares[j];
      dk_squares[j] += ds_size * ds_size * query_squares[i];
      dv_squares[j] += p_size * p_size * d_out_squares[i];
    }
  }
  return dq_squares;
}

/// O and LSE with nothing seen yet.
ReferenceForward empty_forward(const Problem& p) {
  return {std::vector<double>(std::size_t(p.elements_lse()) * p.head_dim, 0.0),
          std::vector<double>(std::size_t(p.elements_lse()), -std::numeric_limits<double>::infinity())};
}

/// All float64 results of one problem. Without magnitudes it saves four of the ten matrix products.
ReferencePass backward_pass(const Problem& p, std::span<const float> q, std::span<const float> k,
                            std::span<const float> v, std::span<const float> dout, std::span<const float> dlse,
                            bool with_magnitudes) {
  require_inputs(p, q, k, v);
  require_gradients(p, dout, dlse);
  const int group = p.heads_q / p.heads_kv;
  const double scale = p.scale();
  const std::size_t rows_q = std::size_t(p.elements_lse());
  const std::size_t rows_kv = std::size_t(p.batch) * p.seqlen_kv * p.heads_kv;
  const bool with_rounded_terms = with_magnitudes && p.element_type != ElementType::fp32;
  ReferencePass result;
  result.forward = empty_forward(p);
  result.gradients.dq.assign(rows_q * p.head_dim, 0.0);
  result.gradients.dk.assign(rows_kv * p.head_dim, 0.0);
  result.gradients.dv.assign(rows_kv * p.head_dim, 0.0);
  if (with_magnitudes) {
    result.magnitudes.dq.assign(rows_q, 0.0);
    result.magnitudes.dk.assign(rows_kv, 0.0);
    result.magnitudes.dv.assign(rows_kv, 0.0);
  }
  if (with_rounded_terms) result.rounded_terms = result.magnitudes;

  for (int b = 0; b < p.batch; ++b) {
    for (int head_kv = 0; head_kv < p.heads_kv; ++head_kv) {
      const Matrix keys = gather(k, p.strides_k(), b, head_kv, 0, p.seqlen_kv, p.head_dim);
      const Matrix values = gather(v, p.strides_v(), b, head_kv, 0, p.seqlen_kv, p.head_dim);
      Matrix dk = Matrix::Zero(p.seqlen_kv, p.head_dim);
      Matrix dv = Matrix::Zero(p.seqlen_kv, p.head_dim);
      Matrix keys_size, values_size, dk_size, dv_size;  // the same with absolute values
      if (with_magnitudes) {
        keys_size = keys.cwiseAbs();
        values_size = values.cwiseAbs();
        dk_size = dv_size = Matrix::Zero(p.seqlen_kv, p.head_dim);
      }
      const Vector key_squares = keys.rowwise().squaredNorm();
      Vector dk_squares = Vector::Zero(p.seqlen_kv), dv_squares = Vector::Zero(p.seqlen_kv);
      for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
        for (int first = 0; first < p.seqlen_q; first += kQueriesPerBlock) {
          const QueryBlock block = query_block(p, first);
          if (block.keys.empty()) continue;
          const int begin = block.keys.begin, size = block.keys.size();
          const Matrix queries = gather(q, p.strides_q(), b, head, first, block.size, p.head_dim);
          const Matrix d_out = gather(dout, p.strides_dout(), b, head, first, block.size, p.head_dim);
          Vector d_lse = Vector::Zero(block.size);
          if (!dlse.empty())
            for (int i = 0; i < block.size; ++i) d_lse[i] = dlse[lse_entry(p, b, first + i, head)];

          Matrix probabilities = queries * keys.middleRows(begin, size).transpose();
          const Vector lse = softmax_rows(p, block, probabilities);
          const Matrix out = probabilities * values.middleRows(begin, size);
          const Vector d = d_out.cwiseProduct(as_stored(out, p.element_type)).rowwise().sum() - d_lse;
          Matrix ds = d_out * values.middleRows(begin, size).transpose();
          // dP − D may be anything where P is 0; the product with P makes hidden entries exactly 0.
          ds = probabilities.cwiseProduct(ds.colwise() - d);

          const Matrix dq = scale * (ds * keys.middleRows(begin, size));
          dk.middleRows(begin, size).noalias() += scale * (ds.transpose() * queries);
          dv.middleRows(begin, size).noalias() += probabilities.transpose() * d_out;
          for (int i = 0; i < block.size; ++i) {
            const std::int64_t row = dense_row(b, first + i, head, p.seqlen_q, p.heads_q, p.head_dim);
            std::copy_n(out.data() + std::int64_t{i} * p.head_dim, p.head_dim, result.forward.o.data() + row);
            std::copy_n(dq.data() + std::int64_t{i} * p.head_dim, p.head_dim, result.gradients.dq.data() + row);
            result.forward.lse[lse_entry(p, b, first + i, head)] = lse[i];
          }
          if (!with_magnitudes) continue;

          if (with_rounded_terms) {
            const Vector dq_squares =
                add_rounded_terms(p, block, probabilities, ds, queries.rowwise().squaredNorm(), key_squares,
                                  d_out.rowwise().squaredNorm(), dk_squares, dv_squares);
            for (int i = 0; i < block.size; ++i)
              result.rounded_terms.dq[std::size_t(dense_row(b, first + i, head, p.seqlen_q, p.heads_q, 1))] =
                  std::abs(scale) * std::sqrt(dq_squares[i]);
          }
          raise_seen(p, block, probabilities);
          const Matrix d_out_size = d_out.cwiseAbs();
          const Vector d_size = d_out_size.cwiseProduct(out.cwiseAbs()).rowwise().sum() + d_lse.cwiseAbs();
          Matrix ds_size = d_out_size * values_size.middleRows(begin, size).transpose();
          ds_size = probabilities.cwiseProduct(ds_size.colwise() + d_size);
          const Matrix dq_size = ds_size * keys_size.middleRows(begin, size);
          dk_size.middleRows(begin, size).noalias() += ds_size.transpose() * queries.cwiseAbs();
          dv_size.middleRows(begin, size).noalias() += probabilities.transpose() * d_out_size;
          for (int i = 0; i < block.size; ++i)
            result.magnitudes.dq[std::size_t(dense_row(b, first + i, head, p.seqlen_q, p.heads_q, 1))] =
                std::abs(scale) * dq_size.row(i).norm();
        }
      }
      for (int j = 0; j < p.seqlen_kv; ++j) {
        const std::int64_t row = dense_row(b, j, head_kv, p.seqlen_kv, p.heads_kv, 1);
        std::copy_n(dk.data() + std::int64_t{j} * p.head_dim, p.head_dim,
                    result.gradients.dk.data() + row * p.head_dim);
        std::copy_n(dv.data() + std::int64_t{j} * p.head_dim, p.head_dim,
                    result.gradients.dv.data() + row * p.head_dim);
        if (!with_magnitudes) continue;
        result.magnitudes.dk[std::size_t(row)] = std::abs(scale) * dk_size.row(j).norm();
        result.magnitudes.dv[std::size_t(row)] = dv_size.row(j).norm();
        if (!with_rounded_terms) continue;
        result.rounded_terms.dk[std::size_t(row)] = std::abs(scale) * std::sqrt(dk_squares[j]);
        result.rounded_terms.dv[std::size_t(row)] = std::sqrt(dv_squares[j]);
      }
    }
  }
  return result;
}

/// The orders and factors in which the two plain forms round.
struct PlainOrder {
  explicit PlainOrder(const Problem& p, PlainForm form)
      : folded(form == PlainForm::folded_scale),
        scale_before(folded ? p.scale() * std::numbers::log2e_v<float> : 1.0f),
        scale_after(folded ? 1.0f : p.scale()) {}

  bool folded;         ///< scores are in units of log 2 and sums run from the last entry to the first
  float scale_before;  ///< factor of q
  float scale_after;   ///< factor of the finished score

  /// The entry to be summed at this step, of those from first to end − 1.
  int entry(int step, int first, int end) const { return folded ? end - 1 - step : first + step; }
  float exp(float x) const { return folded ? std::exp2(x) : std::exp(x); }
};

using MatrixF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowF = Eigen::Map<Eigen::ArrayXf>;
using ConstRowF = Eigen::Map<const Eigen::ArrayXf>;

/// Numbers as the element type holds them; fp32 holds them as they are.
void round_to(ElementType type, Eigen::Ref<Eigen::ArrayXf> numbers) {
  if (type == ElementType::fp32) return;
  for (float& x : numbers) x = rounded(x, type);
}

/// All rows of a head, transposed to [head_dim, seqlen]. A few rows at a time: one entry in each of head_dim cache
/// lines would be all that is written before a power of two between them drives them out of the cache.
MatrixF gather_transposed(std::span<const float> array, const Strides& strides, int b, int head, int seqlen,
                          int head_dim) {
  MatrixF m(head_dim, seqlen);
  constexpr int kRows = 16;
  for (int first = 0; first < seqlen; first += kRows) {
    const int end = std::min(seqlen, first + kRows);
    for (int c = 0; c < head_dim; ++c)
      for (int j = first; j < end; ++j) m(c, j) = array[static_cast<std::size_t>(strides.offset(b, j, head)) + c];
  }
  return m;
}

/// sums[j] = Σ_c (factor · row[c]) · columns(c, j) for the given keys: each one running fp32 sum over the head
/// dimension. Neighbouring sums advance together: the arithmetic of the plain loops, at the speed of SIMD.
void running_products(const PlainOrder& order, const float* row, float factor, const MatrixF& columns, KeyRange keys,
                      Eigen::ArrayXf& sums) {
  auto seen = sums.segment(keys.begin, keys.size());
  seen.setZero();
  const int head_dim = int(columns.rows());
  for (int step = 0; step < head_dim; ++step) {
    const int c = order.entry(step, 0, head_dim);
    seen += (row[c] * factor) * columns.row(c).segment(keys.begin, keys.size()).transpose().array();
  }
}

}  // namespace

ReferenceForward reference_forward(const Problem& p, std::span<const float> q, std::span<const float> k,
                                   std::span<const float> v) {
  require_inputs(p, q, k, v);
  const int group = p.heads_q / p.heads_kv;
  ReferenceForward result = empty_forward(p);

  for (int b = 0; b < p.batch; ++b) {
    for (int head_kv = 0; head_kv < p.heads_kv; ++head_kv) {
      const Matrix keys = gather(k, p.strides_k(), b, head_kv, 0, p.seqlen_kv, p.head_dim);
      const Matrix values = gather(v, p.strides_v(), b, head_kv, 0, p.seqlen_kv, p.head_dim);
      for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
        for (int first = 0; first < p.seqlen_q; first += kQueriesPerBlock) {
          const QueryBlock block = query_block(p, first);
          if (block.keys.empty()) continue;
          const Matrix queries = gather(q, p.strides_q(), b, head, first, block.size, p.head_dim);
          Matrix scores = queries * keys.middleRows(block.keys.begin, block.keys.size()).transpose();
          const Vector lse = softmax_rows(p, block, scores);
          const Matrix out = scores * values.middleRows(block.keys.begin, block.keys.size());
          for (int i = 0; i < block.size; ++i) {
            const std::int64_t row = dense_row(b, first + i, head, p.seqlen_q, p.heads_q, p.head_dim);
            std::copy_n(out.data() + std::int64_t{i} * p.head_dim, p.head_dim, result.o.data() + row);
            result.lse[lse_entry(p, b, first + i, head)] = lse[i];
          }
        }
      }
    }
  }
  return result;
}

ReferenceBackward reference_backward(const Problem& p, std::span<const float> q, std::span<const float> k,
                                     std::span<const float> v, std::span<const float> dout,
                                     std::span<const float> dlse) {
  return backward_pass(p, q, k, v, dout, dlse, false).gradients;
}

BackwardMagnitudes backward_magnitudes(const Problem& p, std::span<const float> q, std::span<const float> k,
                                       std::span<const float> v, std::span<const float> dout,
                                       std::span<const float> dlse) {
  return backward_pass(p, q, k, v, dout, dlse, true).magnitudes;
}

ReferencePass reference_pass(const Problem& p, std::span<const float> q, std::span<const float> k,
                             std::span<const float> v, std::span<const float> dout, std::span<const float> dlse) {
  return backward_pass(p, q, k, v, dout, dlse, true);
}

PlainForward plain_forward(const Problem& p, std::span<const float> q, std::span<const float> k,
                           std::span<const float> v, PlainForm form) {
  require_inputs(p, q, k, v);
  const PlainOrder order(p, form);
  const int group = p.heads_q / p.heads_kv;
  PlainForward result;
  result.o.assign(std::size_t(p.elements_lse()) * p.head_dim, 0.0f);
  result.lse.assign(std::size_t(p.elements_lse()), -std::numeric_limits<float>::infinity());

  Eigen::ArrayXf scores(p.seqlen_kv);
  for (int b = 0; b < p.batch; ++b) {
    for (int head_kv = 0; head_kv < p.heads_kv; ++head_kv) {
      const MatrixF keys_transposed = gather_transposed(k, p.strides_k(), b, head_kv, p.seqlen_kv, p.head_dim);
      for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
        for (int i = 0; i < p.seqlen_q; ++i) {
          const KeyRange keys = visible_keys(p.mask, i, p.seqlen_q, p.seqlen_kv);
          if (keys.empty()) continue;
          const float* query = q.data() + p.strides_q().offset(b, i, head);
          running_products(order, query, order.scale_before, keys_transposed, keys, scores);
          float maximum = -std::numeric_limits<float>::infinity();
          for (int j = keys.begin; j < keys.end; ++j) maximum = std::max(maximum, scores[j] *= order.scale_after);
          float sum = 0;
          for (int step = 0; step < keys.size(); ++step) {
            float& score = scores[order.entry(step, keys.begin, keys.end)];
            score = order.exp(score - maximum);
            sum += score;
          }

          const bool normalised = p.element_type != ElementType::fp32 && !order.folded;
          auto probabilities = scores.segment(keys.begin, keys.size());
          if (normalised) probabilities /= sum;
          round_to(p.element_type, probabilities);

          RowF out(result.o.data() + dense_row(b, i, head, p.seqlen_q, p.heads_q, p.head_dim), p.head_dim);
          for (int step = 0; step < keys.size(); ++step) {
            const int j = order.entry(step, keys.begin, keys.end);
            out += scores[j] * ConstRowF(v.data() + p.strides_v().offset(b, j, head_kv), p.head_dim);
          }
          if (!normalised) out /= sum;
          round_to(p.element_type, out);
          result.lse[lse_entry(p, b, i, head)] =
              (order.folded ? maximum * std::numbers::ln2_v<float> : maximum) + std::log(sum);
        }
      }
    }
  }
  return result;
}

PlainBackward plain_backward(const Problem& p, std::span<const float> q, std::span<const float> k,
                             std::span<const float> v, std::span<const float> o, std::span<const float> lse,
                             std::span<const float> dout, std::span<const float> dlse, PlainForm form) {
  require_inputs(p, q, k, v);
  require_gradients(p, dout, dlse);
  require_size("o", o.size(), p.elements_o());
  require_size("lse", lse.size(), p.elements_lse());
  const PlainOrder order(p, form);
  const int group = p.heads_q / p.heads_kv;
  const int head_dim = p.head_dim;
  PlainBackward result;
  result.dq.assign(std::size_t(p.elements_lse()) * head_dim, 0.0f);
  result.dk.assign(std::size_t(p.batch) * p.seqlen_kv * p.heads_kv * head_dim, 0.0f);
  result.dv.assign(result.dk.size(), 0.0f);

  Eigen::ArrayXf probabilities(p.seqlen_kv), ds(p.seqlen_kv);
  for (int b = 0; b < p.batch; ++b) {
    for (int head_kv = 0; head_kv < p.heads_kv; ++head_kv) {
      const MatrixF keys_transposed = gather_transposed(k, p.strides_k(), b, head_kv, p.seqlen_kv, head_dim);
      const MatrixF values_transposed = gather_transposed(v, p.strides_v(), b, head_kv, p.seqlen_kv, head_dim);
      for (int member = 0; member < group; ++member) {
        const int head = order.entry(member, head_kv * group, (head_kv + 1) * group);
        for (int query_step = 0; query_step < p.seqlen_q; ++query_step) {
          const int i = order.entry(query_step, 0, p.seqlen_q);
          const KeyRange keys = visible_keys(p.mask, i, p.seqlen_q, p.seqlen_kv);
          if (keys.empty()) continue;
          const ConstRowF query(q.data() + p.strides_q().offset(b, i, head), head_dim);
          const ConstRowF out(o.data() + p.strides_o().offset(b, i, head), head_dim);
          const ConstRowF d_out(dout.data() + p.strides_dout().offset(b, i, head), head_dim);
          const std::size_t row = lse_entry(p, b, i, head);

          running_products(order, query.data(), order.scale_before, keys_transposed, keys, probabilities);
          const float shift = order.folded ? lse[row] * std::numbers::log2e_v<float> : lse[row];
          for (int j = keys.begin; j < keys.end; ++j)
            probabilities[j] = order.exp(probabilities[j] * order.scale_after - shift);

          float d = 0;
          for (int step = 0; step < head_dim; ++step) {
            const int c = order.entry(step, 0, head_dim);
            d += d_out[c] * out[c];
          }
          if (!dlse.empty()) d -= dlse[row];
          running_products(order, d_out.data(), 1.0f, values_transposed, keys, ds);
          ds.segment(keys.begin, keys.size()) =
              probabilities.segment(keys.begin, keys.size()) * (ds.segment(keys.begin, keys.size()) - d);
          round_to(p.element_type, probabilities.segment(keys.begin, keys.size()));
          round_to(p.element_type, ds.segment(keys.begin, keys.size()));

          RowF dq(result.dq.data() + dense_row(b, i, head, p.seqlen_q, p.heads_q, head_dim), head_dim);
          for (int step = 0; step < keys.size(); ++step) {
            const int j = order.entry(step, keys.begin, keys.end);
            const std::int64_t key_row = dense_row(b, j, head_kv, p.seqlen_kv, p.heads_kv, head_dim);
            dq += ds[j] * ConstRowF(k.data() + p.strides_k().offset(b, j, head_kv), head_dim);
            RowF(result.dk.data() + key_row, head_dim) += ds[j] * query;
            RowF(result.dv.data() + key_row, head_dim) += probabilities[j] * d_out;
          }
          dq *= p.scale();
          round_to(p.element_type, dq);
        }
      }
    }
  }
  for (float& x : result.dk) x *= p.scale();
  round_to(p.element_type, RowF(result.dk.data(), Eigen::Index(result.dk.size())));
  round_to(p.element_type, RowF(result.dv.data(), Eigen::Index(result.dv.size())));
  return result;
}

}  // namespace attention
