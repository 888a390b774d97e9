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

/// Offset of row (b, position, head) in a dense [batch, seqlen, heads, head_dim] array.
std::int64_t dense_row(int b, int position, int head, int seqlen, int heads, int head_dim) {
  return contiguous_strides(seqlen, heads, head_dim).offset(b, position, head);
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

}  // namespace

ReferenceForward reference_forward(const Problem& p, std::span<const float> q, std::span<const float> k,
                                   std::span<const float> v) {
  require_inputs(p, q, k, v);
  const int group = p.heads_q / p.heads_kv;
  ReferenceForward result;
  result.o.assign(std::size_t(p.batch) * p.seqlen_q * p.heads_q * p.head_dim, 0.0);
  result.lse.assign(std::size_t(p.elements_lse()), -std::numeric_limits<double>::infinity());

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
            result.lse[(std::size_t(b) * p.heads_q + head) * p.seqlen_q + first + i] = lse[i];
          }
        }
      }
    }
  }
  return result;
}

ReferenceBackward reference_backward(const Problem& p, std::span<const float> q, std::span<const float> k,
                                     std::span<const float> v, std::span<const float> dout) {
  require_inputs(p, q, k, v);
  require_size("dout", dout.size(), p.elements_o());
  const int group = p.heads_q / p.heads_kv;
  const double scale = p.scale();
  ReferenceBackward result;
  result.dq.assign(std::size_t(p.batch) * p.seqlen_q * p.heads_q * p.head_dim, 0.0);
  result.dk.assign(std::size_t(p.batch) * p.seqlen_kv * p.heads_kv * p.head_dim, 0.0);
  result.dv.assign(result.dk.size(), 0.0);

  for (int b = 0; b < p.batch; ++b) {
    for (int head_kv = 0; head_kv < p.heads_kv; ++head_kv) {
      const Matrix keys = gather(k, p.strides_k(), b, head_kv, 0, p.seqlen_kv, p.head_dim);
      const Matrix values = gather(v, p.strides_v(), b, head_kv, 0, p.seqlen_kv, p.head_dim);
      Matrix dk = Matrix::Zero(p.seqlen_kv, p.head_dim);
      Matrix dv = Matrix::Zero(p.seqlen_kv, p.head_dim);
      for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
        for (int first = 0; first < p.seqlen_q; first += kQueriesPerBlock) {
          const QueryBlock block = query_block(p, first);
          if (block.keys.empty()) continue;
          const auto k_seen = keys.middleRows(block.keys.begin, block.keys.size());
          const auto v_seen = values.middleRows(block.keys.begin, block.keys.size());
          const Matrix queries = gather(q, p.strides_q(), b, head, first, block.size, p.head_dim);
          const Matrix d_out = gather(dout, p.strides_o(), b, head, first, block.size, p.head_dim);

          Matrix probabilities = queries * k_seen.transpose();
          softmax_rows(p, block, probabilities);
          const Matrix out = probabilities * v_seen;
          const Vector d = d_out.cwiseProduct(out).rowwise().sum();
          Matrix ds = d_out * v_seen.transpose();
          // dP − D may be anything where P is 0; the product with P makes hidden entries exactly 0.
          ds = probabilities.cwiseProduct(ds.colwise() - d);

          const Matrix dq = scale * (ds * k_seen);
          dk.middleRows(block.keys.begin, block.keys.size()).noalias() += scale * (ds.transpose() * queries);
          dv.middleRows(block.keys.begin, block.keys.size()).noalias() += probabilities.transpose() * d_out;
          for (int i = 0; i < block.size; ++i) {
            const std::int64_t row = dense_row(b, first + i, head, p.seqlen_q, p.heads_q, p.head_dim);
            std::copy_n(dq.data() + std::int64_t{i} * p.head_dim, p.head_dim, result.dq.data() + row);
          }
        }
      }
      for (int j = 0; j < p.seqlen_kv; ++j) {
        const std::int64_t row = dense_row(b, j, head_kv, p.seqlen_kv, p.heads_kv, p.head_dim);
        std::copy_n(dk.data() + std::int64_t{j} * p.head_dim, p.head_dim, result.dk.data() + row);
        std::copy_n(dv.data() + std::int64_t{j} * p.head_dim, p.head_dim, result.dv.data() + row);
      }
    }
  }
  return result;
}

PlainForward plain_forward_f32(const Problem& p, std::span<const float> q, std::span<const float> k,
                               std::span<const float> v, PlainForm form) {
  require_inputs(p, q, k, v);
  const int group = p.heads_q / p.heads_kv;
  const bool folded = form == PlainForm::folded_scale;
  const float scale_before = folded ? p.scale() * std::numbers::log2e_v<float> : 1.0f;
  const float scale_after = folded ? 1.0f : p.scale();
  const auto ordered = [folded](int step, int first, int end) { return folded ? end - 1 - step : first + step; };
  PlainForward result;
  result.o.assign(std::size_t(p.batch) * p.seqlen_q * p.heads_q * p.head_dim, 0.0f);
  result.lse.assign(std::size_t(p.elements_lse()), -std::numeric_limits<float>::infinity());

  // Each score is one running fp32 sum over the head dimension, in order, and each output one over the keys. Kᵀ is
  // kept so that neighbouring scores advance together: the arithmetic of the plain loops, at the speed of SIMD.
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> keys_transposed(p.head_dim, p.seqlen_kv);
  Eigen::ArrayXf scores(p.seqlen_kv);

  for (int b = 0; b < p.batch; ++b) {
    for (int head_kv = 0; head_kv < p.heads_kv; ++head_kv) {
      for (int j = 0; j < p.seqlen_kv; ++j) {
        const float* row = k.data() + p.strides_k().offset(b, j, head_kv);
        for (int c = 0; c < p.head_dim; ++c) keys_transposed(c, j) = row[c];
      }
      for (int head = head_kv * group; head < (head_kv + 1) * group; ++head) {
        for (int i = 0; i < p.seqlen_q; ++i) {
          const KeyRange keys = visible_keys(p.mask, i, p.seqlen_q, p.seqlen_kv);
          if (keys.empty()) continue;
          const float* query = q.data() + p.strides_q().offset(b, i, head);
          auto s = scores.segment(keys.begin, keys.size());
          s.setZero();
          for (int step = 0; step < p.head_dim; ++step) {
            const int c = ordered(step, 0, p.head_dim);
            s +=
                (query[c] * scale_before) * keys_transposed.row(c).segment(keys.begin, keys.size()).transpose().array();
          }
          float maximum = -std::numeric_limits<float>::infinity();
          for (float& score : s) maximum = std::max(maximum, score *= scale_after);
          float sum = 0;
          for (int step = 0; step < keys.size(); ++step) {
            float& score = scores[ordered(step, keys.begin, keys.end)];
            score = folded ? std::exp2(score - maximum) : std::exp(score - maximum);
            sum += score;
          }

          Eigen::Map<Eigen::ArrayXf> out(result.o.data() + dense_row(b, i, head, p.seqlen_q, p.heads_q, p.head_dim),
                                         p.head_dim);
          for (int step = 0; step < keys.size(); ++step) {
            const int j = ordered(step, keys.begin, keys.end);
            const float* value = v.data() + p.strides_v().offset(b, j, head_kv);
            out += scores[j] * Eigen::Map<const Eigen::ArrayXf>(value, p.head_dim);
          }
          out /= sum;
          result.lse[(std::size_t(b) * p.heads_q + head) * p.seqlen_q + i] =
              (folded ? maximum * std::numbers::ln2_v<float> : maximum) + std::log(sum);
        }
      }
    }
  }
  return result;
}

}  // namespace attention
