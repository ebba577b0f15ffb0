// Orthonormal bases: orthogonality, span, hard input, and the same bits whoever computes them.
#include "compression/codecs/orthonormalize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "compression/codecs/low_rank_kernel.h"
#include "tests/support/worst.h"

namespace thinwire::orthonormalize_test {
namespace {

using Vectors = std::vector<float>;  // [r, n]

// What the header promises: 2^-23 up to second order (a factor 1 + 2^-12 covers it at any tested size).
constexpr double kOrthogonal = 0x1p-23 * (1.0 + 0x1p-12);

Basis basis_of(Vectors& a, int64_t n, int64_t r) {
  return {a.data(), n, r};
}

Vectors orthonormal(Vectors a, int64_t n, int64_t r, int threads = 1) {
  OrthonormalScratch scratch;
  const Basis b = basis_of(a, n, r);
  EXPECT_TRUE(orthonormalize({&b, 1}, threads, scratch));
  return a;
}

double dot(const float* a, const float* b, int64_t n) {
  double s = 0.0;
  for (int64_t i = 0; i < n; ++i) s += static_cast<double>(a[i]) * b[i];
  return s;
}

// Largest |<p_i, p_j> - [i == j]|.
double defect(const Vectors& p, int64_t n, int64_t r) {
  double worst = 0.0;
  for (int64_t i = 0; i < r; ++i)
    for (int64_t j = 0; j <= i; ++j)
      worst = test::worse(worst, std::fabs(dot(&p[static_cast<size_t>(i * n)], &p[static_cast<size_t>(j * n)], n) -
                                           (i == j ? 1.0 : 0.0)));
  return worst;
}

// Largest distance of a vector of a from the span of p, relative to its own length.
double outside(const Vectors& a, const Vectors& p, int64_t n, int64_t r) {
  double worst = 0.0;
  for (int64_t j = 0; j < r; ++j) {
    const float* v = &a[static_cast<size_t>(j * n)];
    std::vector<double> rest(v, v + n);
    // Twice: p is orthonormal to fp32 only, and what is asked for is the distance from its span.
    for (int round = 0; round < 3; ++round) {
      for (int64_t i = 0; i < r; ++i) {
        const float* q = &p[static_cast<size_t>(i * n)];
        double c = 0.0;
        for (int64_t e = 0; e < n; ++e) c += rest[static_cast<size_t>(e)] * q[e];
        for (int64_t e = 0; e < n; ++e) rest[static_cast<size_t>(e)] -= c * q[e];
      }
    }
    double square = 0.0;
    for (double e : rest) square += e * e;
    const double length = std::sqrt(dot(v, v, n));
    if (length > 0.0) worst = test::worse(worst, std::sqrt(square) / length);
  }
  return worst;
}

void expect_good(const Vectors& a, const Vectors& p, int64_t n, int64_t r) {
  EXPECT_LE(defect(p, n, r), kOrthogonal) << n << " x " << r;
  EXPECT_LE(outside(a, p, n, r), 0x1p-21 + std::sqrt(static_cast<double>(r)) * 0x1p-23) << n << " x " << r;
  for (int64_t j = 0; j < r; ++j) {
    const float *v = &a[static_cast<size_t>(j * n)], *q = &p[static_cast<size_t>(j * n)];
    EXPECT_GE(dot(v, q, n), -0x1p-20 * std::sqrt(dot(v, v, n))) << "vector " << j << " was turned round";
  }
}

Vectors gaussian(int64_t n, int64_t r, unsigned seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  Vectors a(static_cast<size_t>(n * r));
  for (float& v : a) v = static_cast<float>(normal(rng));
  return a;
}

// u diag(1 .. 1 / condition) v^T with random orthogonal u, v (by Gram-Schmidt in double), rounded to fp32.
Vectors conditioned(int64_t n, int64_t r, double condition, unsigned seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  const auto orthogonal = [&](int64_t rows, int64_t count) {
    std::vector<std::vector<double>> q(static_cast<size_t>(count), std::vector<double>(static_cast<size_t>(rows)));
    for (size_t j = 0; j < q.size(); ++j) {
      for (double& v : q[j]) v = normal(rng);
      for (int round = 0; round < 2; ++round) {
        for (size_t i = 0; i < j; ++i) {
          double c = 0.0;
          for (size_t e = 0; e < q[j].size(); ++e) c += q[i][e] * q[j][e];
          for (size_t e = 0; e < q[j].size(); ++e) q[j][e] -= c * q[i][e];
        }
      }
      double s = 0.0;
      for (double v : q[j]) s += v * v;
      for (double& v : q[j]) v /= std::sqrt(s);
    }
    return q;
  };
  const auto u = orthogonal(n, r), v = orthogonal(r, r);
  Vectors a(static_cast<size_t>(n * r));
  for (int64_t j = 0; j < r; ++j) {
    for (int64_t e = 0; e < n; ++e) {
      double s = 0.0;
      for (int64_t k = 0; k < r; ++k) {
        const double sigma = r == 1 ? 1.0 : std::pow(condition, -static_cast<double>(k) / static_cast<double>(r - 1));
        s += u[static_cast<size_t>(k)][static_cast<size_t>(e)] * sigma *
             v[static_cast<size_t>(k)][static_cast<size_t>(j)];
      }
      a[static_cast<size_t>(j * n + e)] = static_cast<float>(s);
    }
  }
  return a;
}

const std::pair<int64_t, int64_t> kShapes[] = {{1, 1},  {2, 2},    {3, 1},    {7, 7},  {16, 3},
                                               {33, 9}, {100, 17}, {257, 64}, {64, 64}};

TEST(Orthonormalize, AnyConditionNumber) {
  unsigned seed = 1;
  for (const auto& [n, r] : kShapes) {
    for (double condition : {1.0, 1e2, 1e4, 1e6, 1e7, 1e8, 1e10, 1e12}) {
      SCOPED_TRACE(testing::Message() << "condition " << condition);
      const Vectors a = conditioned(n, r, condition, ++seed);
      expect_good(a, orthonormal(a, n, r), n, r);
    }
  }
}

TEST(Orthonormalize, VectorsOfVeryDifferentLength) {
  for (const auto& [n, r] : kShapes) {
    for (bool rising : {false, true}) {
      Vectors a = gaussian(n, r, 5);
      for (int64_t j = 0; j < r; ++j)
        for (int64_t e = 0; e < n; ++e)
          a[static_cast<size_t>(j * n + e)] *= static_cast<float>(
              std::pow(10.0, (rising ? 1.0 : -1.0) * 60.0 * (static_cast<double>(j) / static_cast<double>(r)) +
                                 (rising ? -30.0 : 30.0)));
      expect_good(a, orthonormal(a, n, r), n, r);
    }
  }
}

TEST(Orthonormalize, TinyAndHugeInputGiveTheSameBits) {
  const int64_t n = 77, r = 9;
  const Vectors a = gaussian(n, r, 6), p = orthonormal(a, n, r);
  for (float scale : {0x1p-100f, 0x1p-20f, 0x1p20f, 0x1p100f, 0x1p120f}) {
    Vectors b = a;
    for (float& v : b) v *= scale;
    EXPECT_EQ(orthonormal(b, n, r), p) << scale;
  }
  Vectors subnormal = a;
  for (float& v : subnormal) v *= 0x1p-140f;
  expect_good(subnormal, orthonormal(subnormal, n, r), n, r);
  Vectors largest(static_cast<size_t>(n * 2), std::numeric_limits<float>::max());
  for (int64_t e = 0; e < n; e += 2) largest[static_cast<size_t>(n + e)] *= -1.0f;
  expect_good(largest, orthonormal(largest, n, 2), n, 2);
}

TEST(Orthonormalize, DependentVectorsGiveWay) {
  for (const auto& [n, r] : kShapes) {
    SCOPED_TRACE(testing::Message() << n << " x " << r);
    const Vectors zeros(static_cast<size_t>(n * r), 0.0f);
    expect_good(zeros, orthonormal(zeros, n, r), n, r);
    Vectors same = zeros;
    const Vectors g = gaussian(n, r, 7);
    for (int64_t j = 0; j < r; ++j) std::copy_n(g.begin(), n, same.begin() + j * n);
    expect_good(same, orthonormal(same, n, r), n, r);
    // Two vectors span all, and zeros lie between.
    Vectors two = zeros;
    for (int64_t j = 0; j < r; ++j)
      for (int64_t e = 0; e < n; ++e)
        if (j % 3 != 1)
          two[static_cast<size_t>(j * n + e)] =
              g[static_cast<size_t>(e)] * static_cast<float>(j + 1) +
              g[static_cast<size_t>(std::min<int64_t>(1, r - 1) * n + e)] * static_cast<float>(j * j - 5);
    expect_good(two, orthonormal(two, n, r), n, r);
    // One element only: unit vectors along one axis.
    Vectors axis = zeros;
    for (int64_t j = 0; j < r; ++j) axis[static_cast<size_t>(j * n + n - 1)] = 3.0f;
    expect_good(axis, orthonormal(axis, n, r), n, r);
  }
}

TEST(Orthonormalize, EqualsGramSchmidtWhereThatIsSound) {
  const int64_t n = 120, r = 12;
  const Vectors a = gaussian(n, r, 8), p = orthonormal(a, n, r);
  std::vector<long double> q(a.begin(), a.end());
  for (int64_t j = 0; j < r; ++j) {
    long double* v = &q[static_cast<size_t>(j * n)];
    for (int64_t i = 0; i < j; ++i) {
      const long double* w = &q[static_cast<size_t>(i * n)];
      long double c = 0.0L;
      for (int64_t e = 0; e < n; ++e) c += w[e] * v[e];
      for (int64_t e = 0; e < n; ++e) v[e] -= c * w[e];
    }
    long double s = 0.0L;
    for (int64_t e = 0; e < n; ++e) s += v[e] * v[e];
    for (int64_t e = 0; e < n; ++e) v[e] /= std::sqrt(s);
  }
  // All in double but one rounding to fp32: half a unit in the last place, and 1e-12 for a condition below 10.
  for (size_t e = 0; e < q.size(); ++e)
    EXPECT_NEAR(p[e], static_cast<double>(q[e]), std::fabs(static_cast<double>(q[e])) * 0x1p-24 + 1e-12);
}

TEST(Orthonormalize, NotFiniteIsNotANumberAndStaysAtHome) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    Vectors a = gaussian(40, 5, 9), b = gaussian(30, 4, 10);
    const Vectors alone = orthonormal(b, 30, 4);
    a[123] = bad;
    const Basis both[] = {basis_of(a, 40, 5), basis_of(b, 30, 4)};
    OrthonormalScratch scratch;
    EXPECT_FALSE(orthonormalize(both, 1, scratch));
    EXPECT_TRUE(std::ranges::all_of(a, [](float v) { return std::isnan(v); }));
    EXPECT_EQ(b, alone);
  }
}

TEST(Orthonormalize, ThreadsAndCompanyDoNotShow) {
  std::vector<Vectors> alone, together;
  std::vector<Basis> bases;
  const std::pair<int64_t, int64_t> shapes[] = {{1000, 16}, {1000, 16}, {3, 2}, {2500, 33}, {64, 64}, {700, 300}};
  for (const auto& [n, r] : shapes) {
    Vectors a = gaussian(n, r, static_cast<unsigned>(n + r));
    if (r == 33) std::fill_n(a.begin() + 5 * n, 2 * n, 0.0f);  // takes another pass than the others
    alone.push_back(orthonormal(a, n, r));
    expect_good(a, alone.back(), n, r);
  }
  for (int threads : {1, 2, 3, 7}) {
    together.clear();
    bases.clear();
    for (const auto& [n, r] : shapes) {
      together.push_back(gaussian(n, r, static_cast<unsigned>(n + r)));
      if (r == 33) std::fill_n(together.back().begin() + 5 * n, 2 * n, 0.0f);
      bases.push_back({together.back().data(), n, r});
    }
    OrthonormalScratch scratch;
    EXPECT_TRUE(orthonormalize(bases, threads, scratch));
    EXPECT_EQ(together, alone) << threads << " threads";
  }
}

// The tables of all instruction sets compute the same bits (run where the machine has them).
TEST(LowRankKernels, InstructionSetsAgreeBitForBit) {
  if (active_isa() == Isa::kAvx2) GTEST_SKIP() << "this machine has one instruction set only";
  const LowRankKernels &narrow = isa_avx2::low_rank_kernels, &wide = TW_PICK_KERNELS(low_rank_kernels);
  for (const auto& [rows, cols, rank] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                         {5, 700, 3},
                                         {37, 53, 4},
                                         {64, 1037, 16},
                                         {100, 91, 21},
                                         {83, 530, 70}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << cols << ", " << rank);
    const Vectors x = gaussian(rows, cols, 1), q = gaussian(cols, rank, 2), p = gaussian(rows, rank, 3);
    Vectors a(static_cast<size_t>(rows * rank)), b = a;
    narrow.left(x.data(), rows, cols, q.data(), rank, a.data(), rows);
    wide.left(x.data(), rows, cols, q.data(), rank, b.data(), rows);
    EXPECT_EQ(a, b);
    Vectors c(static_cast<size_t>(cols * rank)), d = c;
    narrow.right(x.data(), cols, rows, cols, p.data(), rank, c.data(), cols);
    wide.right(x.data(), cols, rows, cols, p.data(), rank, d.data(), cols);
    EXPECT_EQ(c, d);
    for (Expand how : {Expand::kStore, Expand::kAdd, Expand::kSubtract}) {
      Vectors e = x, f = x;
      narrow.expand(p.data(), rows, q.data(), cols, rank, rows, cols, e.data(), cols, how);
      wide.expand(p.data(), rows, q.data(), cols, rank, rows, cols, f.data(), cols, how);
      EXPECT_EQ(e, f);
    }
    if (rank > rows) continue;
    std::vector<double> g(static_cast<size_t>(rank * rank)), h = g, t = g, u = g,
                                                             buffer(static_cast<size_t>(rank * 16));
    std::vector<uint8_t> flags(static_cast<size_t>(rank)), more = flags;
    for (int64_t row = 0; row < rank; row += 4) {
      narrow.gram_rows(p.data(), rows, rank, row, g.data());
      wide.gram_rows(p.data(), rows, rank, row, h.data());
    }
    EXPECT_EQ(narrow.invert_gram(g.data(), rank, 0x1p-42, t.data(), flags.data()),
              wide.invert_gram(h.data(), rank, 0x1p-42, u.data(), more.data()));
    EXPECT_EQ(t, u);
    EXPECT_EQ(flags, more);
    Vectors v = p, w = p;
    narrow.apply(v.data(), rows, rank, t.data(), 0, rows, buffer.data());
    wide.apply(w.data(), rows, rank, t.data(), 0, rows, buffer.data());
    EXPECT_EQ(v, w);
  }
}

}  // namespace
}  // namespace thinwire::orthonormalize_test
