// LayerNorm and RMSNorm against float64 loops, and their backward against central differences of the float64 forward.
#include <algorithm>
#include <map>

#include "engine/base/ops/op_list.h"
#include "engine/run/bench/op_oracles.h"
#include "tests/support/op_test_support.h"

namespace thinwire::test::norm_test {
namespace {

constexpr double kU = 0x1p-24;  // rounding unit of the fp32 arithmetic inside every op

using oracle::RowStatistics;

RowStatistics statistics_of(const double* x, int64_t cols, NormKind kind, double eps) {
  return oracle::row_statistics(cols, kind, eps, [x](int64_t c) { return x[c]; });
}

// Additions on the longest path of a row sum: 32 running sums at least, then a tree.
double depth_of(int64_t cols) {
  return static_cast<double>(cols) / 32.0 + 12.0;
}

struct ForwardCase {
  NormKind kind;
  DType type;
  int64_t rows, cols;
  bool branch, bias, alias;
  float p;
  double shift;
};

void check_forward(const ForwardCase& k, unsigned seed) {
  std::mt19937 rng(seed);
  SCOPED_TRACE(testing::Message() << (k.kind == NormKind::kLayerNorm ? "layer " : "rms ") << name_of(k.type) << " ["
                                  << k.rows << "," << k.cols << "] p " << k.p << " shift " << k.shift);
  Tensor x = random_tensor(rng, k.type, {k.rows, k.cols}, 1.0, k.shift);
  const Tensor branch = random_tensor(rng, k.type, {k.rows, k.cols});
  const Tensor weight = random_tensor(rng, k.type, {k.cols}), bias = random_tensor(rng, k.type, {k.cols});
  const Tensor x_before = x;
  Tensor sum(k.type, {k.rows, k.cols}), y(k.type, {k.rows, k.cols}), mean(DType::f32, {k.rows}),
      rstd(DType::f32, {k.rows});
  const int64_t ids[3] = {7, (int64_t{1} << 40) + 3, 12345};
  NormForward op;
  op.kind = k.kind;
  op.x = x;
  op.weight = weight;
  op.y = y;
  op.rstd = rstd;
  if (k.kind == NormKind::kLayerNorm) op.mean = mean;
  if (k.bias) op.bias = bias;
  if (k.branch) {
    op.branch = branch;
    op.sum = k.alias ? x.view() : sum.view();
    op.dropout = {k.p, seed_key(99), RandomPurpose::kHiddenDropout, 5, ids, k.rows % 3 == 0 ? 3 : 1};
  }
  CpuExec exec;
  norm_forward_op(*exec, op);

  const Tensor& input = k.branch ? (k.alias ? x : sum) : x;
  const double unit_t = unit_of(k.type);
  if (k.branch) {
    std::vector<double> exact(static_cast<size_t>(x.count())), bound(exact.size());
    for (int64_t i = 0; i < x.count(); ++i) {
      const double dropped = branch.at(i) * dropout_factor(op.dropout, x.count(), i);
      exact[static_cast<size_t>(i)] = x_before.at(i) + dropped;
      // Product and sum are rounded to fp32, the result to T.
      bound[static_cast<size_t>(i)] = kU * (std::abs(dropped) + std::abs(exact[static_cast<size_t>(i)])) * 1.01 +
                                      unit_t * std::abs(exact[static_cast<size_t>(i)]) * 1.01 + tiny_of(k.type);
    }
    expect_close(
        input, exact, [&](int64_t i) { return bound[static_cast<size_t>(i)]; }, "sum");
  } else {
    EXPECT_TRUE(x.same_bits(x_before));
  }

  const std::vector<double> s = input.values();
  std::vector<double> want(s.size()), bound(s.size()), want_mean, want_rstd, bound_mean, bound_rstd;
  const double depth = depth_of(k.cols);
  for (int64_t r = 0; r < k.rows; ++r) {
    const RowStatistics st = statistics_of(s.data() + r * k.cols, k.cols, k.kind, op.eps);
    // The mean is corrected by the sum of the deviations: its error is its own rounding and that of a sum of
    // deviations.
    const double mean_error =
        k.kind == NormKind::kLayerNorm ? 3 * kU * std::abs(st.mean) + (depth + 2) * kU * st.spread : 0.0;
    // The variance is a sum of `depth` levels of squares with few roundings each; the root halves its relative error.
    const double rstd_error = st.rstd * (depth / 2 + 6) * kU;
    want_mean.push_back(st.mean);
    bound_mean.push_back(mean_error + 1e-37);
    want_rstd.push_back(st.rstd);
    bound_rstd.push_back(rstd_error);
    for (int64_t c = 0; c < k.cols; ++c) {
      const size_t i = static_cast<size_t>(r * k.cols + c);
      const double unit = (s[i] - st.mean) * st.rstd, w = weight.at(c), b = k.bias ? bias.at(c) : 0.0;
      const double unit_error = st.rstd * mean_error + std::abs(unit) * (rstd_error / st.rstd + 3 * kU);
      want[i] = unit * w + b;
      bound[i] = std::abs(w) * unit_error + 2 * kU * (std::abs(unit * w) + std::abs(want[i])) +
                 unit_t * std::abs(want[i]) * 1.01 + tiny_of(k.type);
    }
  }
  expect_close(
      y, want, [&](int64_t i) { return bound[static_cast<size_t>(i)]; }, "y");
  expect_close(
      rstd, want_rstd, [&](int64_t i) { return bound_rstd[static_cast<size_t>(i)]; }, "rstd");
  if (k.kind == NormKind::kLayerNorm) {
    expect_close(
        mean, want_mean, [&](int64_t i) { return bound_mean[static_cast<size_t>(i)]; }, "mean");
  }
}

const std::vector<std::pair<int64_t, int64_t>> kShapes = {{1, 1},   {1, 17},  {3, 3},    {5, 63},    {6, 65},
                                                          {33, 16}, {70, 31}, {3, 1027}, {131, 130}, {9, 768}};

TEST(NormForward, AgreesWithFloat64OnRaggedShapes) {
  unsigned seed = 1;
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (DType type : compute_types()) {
      for (auto [rows, cols] : kShapes) {
        check_forward({kind, type, rows, cols, false, true, false, 0.0f, 0.0}, seed++);
        check_forward({kind, type, rows, cols, true, false, false, 0.0f, 0.0}, seed++);
        check_forward({kind, type, rows, cols, true, true, true, 0.3f, 0.5}, seed++);
      }
    }
  }
}

TEST(NormForward, VarianceSurvivesALargeMean) {
  check_forward({NormKind::kLayerNorm, DType::f32, 4, 1536, false, true, false, 0.0f, 1000.0}, 5);
  check_forward({NormKind::kLayerNorm, DType::f32, 4, 1536, false, true, false, 0.0f, -30000.0}, 6);
}

TEST(NormForward, NanStaysVisible) {
  for (DType type : compute_types()) {
    Tensor x = constant_tensor(type, {3, 37}, 1.0);
    x.set(0, 2.0);
    x.set(37 + 36, std::nan(""));
    const Tensor weight = constant_tensor(type, {37}, 1.0);
    Tensor y(type, {3, 37});
    CpuExec exec;
    NormForward op;
    op.x = x;
    op.weight = weight;
    op.y = y;
    norm_forward_op(*exec, op);
    EXPECT_FALSE(std::isnan(y.at(0)));
    for (int64_t c = 0; c < 37; ++c) EXPECT_TRUE(std::isnan(y.at(37 + c)));
  }
}

struct BackwardData {
  Tensor dy, x, weight, mean, rstd, residual;
};

BackwardData backward_data(std::mt19937& rng, NormKind kind, DType type, int64_t rows, int64_t cols) {
  BackwardData d = {random_tensor(rng, type, {rows, cols}),
                    random_tensor(rng, type, {rows, cols}, 1.5, 0.3),
                    random_tensor(rng, type, {cols}, 0.3, 1.0),
                    Tensor(DType::f32, {rows}),
                    Tensor(DType::f32, {rows}),
                    random_tensor(rng, type, {rows, cols})};
  const std::vector<double> x = d.x.values();
  for (int64_t r = 0; r < rows; ++r) {
    const RowStatistics s = statistics_of(x.data() + r * cols, cols, kind, 1e-5);
    d.mean.set(r, s.mean);
    d.rstd.set(r, s.rstd);
  }
  return d;
}

NormBackward backward_op(const BackwardData& d, NormKind kind, const Tensor& dx, const Tensor& dweight,
                         const Tensor& dbias) {
  NormBackward op;
  op.kind = kind;
  op.dy = d.dy;
  op.x = d.x;
  op.weight = d.weight;
  if (kind == NormKind::kLayerNorm) op.mean = d.mean;
  op.rstd = d.rstd;
  op.dx = dx;
  op.dweight = dweight;
  op.dbias = dbias;
  return op;
}

void check_backward(NormKind kind, DType type, int64_t rows, int64_t cols, bool residual, bool alias, unsigned seed) {
  SCOPED_TRACE(testing::Message() << (kind == NormKind::kLayerNorm ? "layer " : "rms ") << name_of(type) << " [" << rows
                                  << "," << cols << "]");
  std::mt19937 rng(seed);
  const BackwardData d = backward_data(rng, kind, type, rows, cols);
  Tensor dx = alias ? d.residual : Tensor(type, {rows, cols});
  Tensor dweight = random_tensor(rng, DType::f32, {cols}), dbias = random_tensor(rng, DType::f32, {cols});
  const Tensor dweight_before = dweight, dbias_before = dbias;
  NormBackward op = backward_op(d, kind, dx, dweight, dbias);
  if (residual) op.residual = alias ? dx.view() : d.residual.view();
  CpuExec exec;
  norm_backward_op(*exec, op);

  const bool layer = kind == NormKind::kLayerNorm;
  const double n = static_cast<double>(cols), depth = depth_of(cols);
  std::vector<double> want(static_cast<size_t>(rows * cols)), bound(want.size());
  std::vector<double> dw = dweight_before.values(), db = dbias_before.values(), dw_size(dw.size()), db_size(db.size());
  for (int64_t c = 0; c < cols; ++c) {
    dw_size[static_cast<size_t>(c)] = std::abs(dw[static_cast<size_t>(c)]);
    db_size[static_cast<size_t>(c)] = std::abs(db[static_cast<size_t>(c)]);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const double mean = layer ? d.mean.at(r) : 0.0, rstd = d.rstd.at(r);
    double c1 = 0.0, c2 = 0.0, g_size = 0.0, gu_size = 0.0;
    for (int64_t c = 0; c < cols; ++c) {
      const double g = d.dy.at(r * cols + c) * d.weight.at(c), unit = (d.x.at(r * cols + c) - mean) * rstd;
      c1 += layer ? g / n : 0.0;
      c2 += g * unit / n;
      g_size += std::abs(g) / n;
      gu_size += std::abs(g * unit) / n;
    }
    for (int64_t c = 0; c < cols; ++c) {
      const size_t i = static_cast<size_t>(r * cols + c), at = static_cast<size_t>(c);
      const double dy = d.dy.at(r * cols + c), g = dy * d.weight.at(c), unit = (d.x.at(r * cols + c) - mean) * rstd;
      const double res = residual ? d.residual.at(r * cols + c) : 0.0;
      want[i] = res + rstd * (g - c1 - unit * c2);
      // Two row sums of `depth` levels, and at most four roundings of each of the terms.
      bound[i] = rstd * kU *
                     (4 * (std::abs(g) + std::abs(c1) + std::abs(unit * c2)) + (depth + 4) * g_size +
                      std::abs(unit) * (depth + 8) * gu_size) +
                 2 * kU * std::abs(want[i]) + unit_of(type) * std::abs(want[i]) * 1.01 + tiny_of(type);
      dw[at] += dy * unit;
      db[at] += dy;
      dw_size[at] += std::abs(dy * unit);
      db_size[at] += std::abs(dy);
    }
  }
  expect_close(
      dx, want, [&](int64_t i) { return bound[static_cast<size_t>(i)]; }, "dx");
  // Any order of adding rows + 1 terms is within rows roundings; the terms have three of their own.
  const double sum_depth = static_cast<double>(rows) + 4;
  expect_close(
      dweight, dw, [&](int64_t i) { return sum_depth * kU * dw_size[static_cast<size_t>(i)] + 1e-37; }, "dweight");
  expect_close(
      dbias, db, [&](int64_t i) { return sum_depth * kU * db_size[static_cast<size_t>(i)] + 1e-37; }, "dbias");
}

TEST(NormBackward, AgreesWithFloat64OnRaggedShapes) {
  unsigned seed = 100;
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (DType type : compute_types()) {
      for (auto [rows, cols] : kShapes) {
        check_backward(kind, type, rows, cols, false, false, seed++);
        check_backward(kind, type, rows, cols, true, seed % 2 == 0, seed);
        seed++;
      }
    }
  }
}

TEST(NormBackward, AgreesWithCentralDifferences) {
  const int64_t rows = 3, cols = 19;
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    std::mt19937 rng(17);
    const BackwardData d = backward_data(rng, kind, DType::f32, rows, cols);
    const Tensor dx(DType::f32, {rows, cols}), dweight(DType::f32, {cols}), dbias(DType::f32, {cols});
    CpuExec exec;
    norm_backward_op(*exec, backward_op(d, kind, dx, dweight, dbias));
    std::vector<double> x = d.x.values(), w = d.weight.values(), b(static_cast<size_t>(cols), 0.25);
    const std::vector<double> dy = d.dy.values();
    const auto loss = [&] {
      double total = 0.0;
      for (int64_t r = 0; r < rows; ++r) {
        const RowStatistics s = statistics_of(x.data() + r * cols, cols, kind, 1e-5);
        for (int64_t c = 0; c < cols; ++c) {
          const size_t i = static_cast<size_t>(r * cols + c), at = static_cast<size_t>(c);
          total += dy[i] * ((x[i] - s.mean) * s.rstd * w[at] + b[at]);
        }
      }
      return total;
    };
    const auto check = [&](std::vector<double>& variable, const Tensor& gradient, const char* what) {
      for (size_t i = 0; i < variable.size(); ++i) {
        const double h = 1e-4, kept = variable[i];
        variable[i] = kept + h;
        const double above = loss();
        variable[i] = kept - h;
        const double below = loss();
        variable[i] = kept;
        // Differences: h^2 f''' / 6 with f''' of order 10. The op: its inputs mean and rstd were rounded to fp32, and
        // some tens of roundings of terms of order 1.
        EXPECT_NEAR(gradient.at(static_cast<int64_t>(i)), (above - below) / (2 * h), 1e-7 + 100 * kU)
            << what << " " << i;
      }
    };
    check(x, dx, "dx");
    check(w, dweight, "dweight");
    check(b, dbias, "dbias");
  }
}

// A norm without a weight has the bits of one whose weight is ones.
TEST(Norm, NoWeightIsAWeightOfOnes) {
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (DType type : compute_types()) {
      for (auto [rows, cols] : kShapes) {
        std::mt19937 rng(23);
        BackwardData d = backward_data(rng, kind, type, rows, cols);
        d.weight = constant_tensor(type, {cols}, 1.0);
        CpuExec exec;
        const Tensor ones_y(type, {rows, cols}), bare_y(type, {rows, cols}), ones_dx(type, {rows, cols}),
            bare_dx(type, {rows, cols}), dweight(DType::f32, {cols}), dbias(DType::f32, {cols});
        NormForward forward;
        forward.kind = kind;
        forward.x = d.x;
        forward.weight = d.weight;
        forward.y = ones_y;
        norm_forward_op(*exec, forward);
        forward.weight = {};
        forward.y = bare_y;
        norm_forward_op(*exec, forward);
        NormBackward backward = backward_op(d, kind, ones_dx, dweight, dbias);
        norm_backward_op(*exec, backward);
        backward.weight = backward.dweight = backward.dbias = {};
        backward.dx = bare_dx;
        norm_backward_op(*exec, backward);
        EXPECT_TRUE(bare_y.same_bits(ones_y) && bare_dx.same_bits(ones_dx))
            << name_of(type) << " " << rows << "," << cols;
      }
    }
  }
}

TEST(Norm, SameBitsForAnyNumberOfThreads) {
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (DType type : compute_types()) {
      for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1200, 130}, {301, 771}}) {
        std::mt19937 rng(3);
        const BackwardData d = backward_data(rng, kind, type, rows, cols);
        const int64_t ids[1] = {4};
        expect_same_bits_for_threads(
            [&](Exec& exec) {
              std::vector<Tensor> out = {Tensor(type, {rows, cols}), Tensor(DType::f32, {cols}),
                                         Tensor(DType::f32, {cols}), Tensor(type, {rows, cols}),
                                         Tensor(type, {rows, cols})};
              norm_backward_op(exec, backward_op(d, kind, out[0], out[1], out[2]));
              NormForward forward;
              forward.kind = kind;
              forward.x = d.x;
              forward.branch = d.dy;
              forward.sum = out[3];
              forward.dropout = {0.1f, seed_key(1), RandomPurpose::kHiddenDropout, 0, ids, 1};
              forward.weight = d.weight;
              forward.y = out[4];
              norm_forward_op(exec, forward);
              return out;
            },
            "norm");
      }
    }
  }
}

TEST(Norm, WrongShapesAreRefused) {
  const Tensor x(DType::f32, {4, 8}), weight(DType::f32, {8}), small(DType::f32, {7}), y(DType::f32, {4, 8}),
      half(DType::bf16, {4, 8});
  CpuExec exec;
  NormForward op;
  op.x = x;
  op.weight = small;
  op.y = y;
  EXPECT_ANY_THROW(norm_forward_op(*exec, op));
  op.weight = weight;
  op.y = half;
  EXPECT_ANY_THROW(norm_forward_op(*exec, op));
  op.y = y;
  op.branch = x;
  EXPECT_ANY_THROW(norm_forward_op(*exec, op));
}

}  // namespace
}  // namespace thinwire::test::norm_test
