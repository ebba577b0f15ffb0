// Products on a GPU against float64 loops: ragged shapes, alignments, transposes, dtypes, bias, accumulation, the fused
// GELU forms, and equal bits on repetition.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/base/ops/cuda_state.h"
#include "engine/base/ops/matmul_plans_cuda.h"
#include "engine/base/ops/op_list.h"
#include "engine/run/bench/op_oracles.h"
#include "tests/support/cuda_test_support.h"

namespace thinwire::matmul_cuda_test {
namespace {

using test::CudaExec;
using test::OnGpu;
using test::random_tensor;
using test::Tensor;

struct Case {
  int64_t m, n, k;
  bool trans_a, trans_b, bias, accumulate;
  DType input, output;
  size_t misaligned = 0;  // bytes
  std::string name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + (trans_a ? " ta" : "") +
           (trans_b ? " tb" : "") + (bias ? " bias" : "") + (accumulate ? " accumulate " : " ") +
           std::string(name_of(input)) + "->" + std::string(name_of(output)) + " +" + std::to_string(misaligned);
  }
};

struct Operands {
  Tensor a, b, c, bias;
  Operands(const Case& p, uint32_t seed) {
    std::mt19937 rng(seed);
    a = random_tensor(rng, p.input, p.trans_a ? std::vector<int64_t>{p.k, p.m} : std::vector<int64_t>{p.m, p.k});
    b = random_tensor(rng, p.input, p.trans_b ? std::vector<int64_t>{p.n, p.k} : std::vector<int64_t>{p.k, p.n});
    c = random_tensor(rng, p.output, {p.m, p.n});
    if (p.bias) bias = random_tensor(rng, p.input, {p.n});
  }
};

// The sums, those of |terms|, and the largest sum on the way: the product, that with the bias, that with what was
// there.
struct Expected {
  std::vector<double> value, size, between;
};

Expected expected_of(const Case& p, const Operands& o) {
  const std::vector<double> a = o.a.values(), o_b = o.b.values(), before = o.c.values();
  const std::vector<double> bias = p.bias ? o.bias.values() : std::vector<double>();
  const std::vector<double> zeros(before.size());
  Expected e{zeros, zeros, zeros};
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      const size_t at = static_cast<size_t>(i * p.n + j);
      const double b = p.bias ? bias[static_cast<size_t>(j)] : 0.0, c = p.accumulate ? before[at] : 0.0;
      double product = 0.0, total = std::abs(b) + std::abs(c);
      for (int64_t k = 0; k < p.k; ++k) {
        const double term = a[static_cast<size_t>(p.trans_a ? k * p.m + i : i * p.k + k)] *
                            o_b[static_cast<size_t>(p.trans_b ? j * p.k + k : k * p.n + j)];
        product += term, total += std::abs(term);
      }
      e.value[at] = product + b + c, e.size[at] = total;
      if (p.bias || p.accumulate)
        e.between[at] = std::max({std::abs(product), std::abs(product + b), std::abs(product + c)});
    }
  }
  return e;
}

// Products and sums are rounded once each, in any order: |error| <= (k + 3) u sum |terms|, and one rounding to the
// output. The unit of sums inside a tensor core is not fp32's: it cuts instead of rounding, and aligns terms before it
// adds them, so that a term may lose the bits below 2^-23 of the largest: twice the unit. Some of the library's
// kernels round to the output's type once on the way: the product, or that with the bias, or with what was there (13
// values printed on an H100 are such roundings exactly).
double bound(const Case& p, const Expected& e, int64_t i) {
  const double unit = test::unit_of(DType::f32) * (p.input == DType::f32 ? 1.0 : 2.0);
  const auto at = static_cast<size_t>(i);
  return static_cast<double>(p.k + 3) * unit * e.size[at] * 1.01 +
         test::unit_of(p.output) * (std::abs(e.value[at]) + e.between[at]) * 1.01 + test::tiny_of(p.output);
}

using Product = void (*)(Exec&, const Matmul&);

void check_against_loop(CudaExec& exec, const Case& p, uint32_t seed, Product product) {
  const Operands o(p, seed);
  const Expected e = expected_of(p, o);
  OnGpu a(exec, o.a, p.misaligned), b(exec, o.b, p.misaligned), c(exec, o.c, p.misaligned),
      bias(exec, o.bias, p.misaligned);
  product(*exec, {.a = a,
                  .b = b,
                  .c = c,
                  .trans_a = p.trans_a,
                  .trans_b = p.trans_b,
                  .bias = p.bias ? bias.view() : View{},
                  .accumulate = p.accumulate});
  test::expect_close(
      c.read(), e.value, [&](int64_t i) { return bound(p, e, i); }, p.name());
}

std::vector<Case> random_cases(int64_t count) {
  std::mt19937 rng(5);
  const auto size = [&](int64_t most) {
    const int64_t n = std::uniform_int_distribution<int64_t>(1, most)(rng);
    return rng() % 2 == 0 ? (n + 7) / 8 * 8 : n;
  };
  constexpr std::pair<DType, DType> dtypes[] = {{DType::f32, DType::f32},
                                                {DType::bf16, DType::bf16},
                                                {DType::bf16, DType::f32},
                                                {DType::f16, DType::f16},
                                                {DType::f16, DType::f32}};
  std::vector<Case> cases;
  for (int64_t i = 0; i < count; ++i) {
    Case p{};
    p.m = size(150), p.n = size(150), p.k = size(200);
    p.trans_a = rng() % 2 == 0, p.trans_b = rng() % 2 == 0, p.bias = rng() % 3 == 0, p.accumulate = rng() % 3 == 0;
    p.input = dtypes[i % 5].first, p.output = dtypes[i % 5].second;
    p.misaligned = rng() % 4 == 0 ? size_of(p.input) * (1 + rng() % 8) : 0;
    if (p.output == DType::f32) p.misaligned = p.misaligned / 4 * 4;
    cases.push_back(p);
  }
  return cases;
}

TEST(MatmulCuda, AgreesWithALoop) {
  TW_NEEDS_GPU();
  CudaExec exec;
  uint32_t seed = 1;
  for (const Case& p : random_cases(test::sized(300, 30))) check_against_loop(exec, p, seed++, matmul_cuda);
}

TEST(MatmulCuda, ThePlainKernelAgreesWithALoop) {
  TW_NEEDS_GPU();
  CudaExec exec;
  uint32_t seed = 1;
  for (const Case& p : random_cases(test::sized(100, 15))) check_against_loop(exec, p, seed++, matmul_simple_cuda);
}

TEST(MatmulCuda, EmptySums) {
  TW_NEEDS_GPU();
  CudaExec exec;
  for (bool bias : {false, true}) {
    for (bool accumulate : {false, true}) {
      check_against_loop(exec, {5, 7, 0, false, false, bias, accumulate, DType::bf16, DType::bf16}, 3, matmul_cuda);
    }
  }
  check_against_loop(exec, {0, 7, 4, false, false, false, false, DType::f32, DType::f32}, 3, matmul_cuda);
}

// What c holds before is not read without `accumulate`.
TEST(MatmulCuda, OverwritesNaN) {
  TW_NEEDS_GPU();
  CudaExec exec;
  for (DType t : {DType::f32, DType::bf16}) {
    const Case p{64, 64, 64, false, true, false, false, t, t};
    Operands o(p, 4);
    const Expected e = expected_of(p, o);
    for (int64_t i = 0; i < o.c.count(); ++i) o.c.set(i, std::nan(""));
    OnGpu a(exec, o.a), b(exec, o.b), c(exec, o.c);
    matmul_cuda(*exec, {.a = a, .b = b, .c = c, .trans_b = true});
    test::expect_close(
        c.read(), e.value, [&](int64_t i) { return bound(p, e, i); }, p.name());
  }
}

// fp32 products are fp32 products: inputs that TF32 would round (1 + 2^-12 becomes 1) keep their bits.
TEST(MatmulCuda, Fp32IsNotTf32) {
  TW_NEEDS_GPU();
  CudaExec exec;
  const int64_t n = 256;
  Tensor a = test::constant_tensor(DType::f32, {n, n}, 1.0 + 0x1p-12), b(DType::f32, {n, n}), c(DType::f32, {n, n});
  for (int64_t i = 0; i < n; ++i) b.set(i * n + i, 1.0);
  OnGpu ga(exec, a), gb(exec, b), gc(exec, c);
  matmul_cuda(*exec, {.a = ga, .b = gb, .c = gc});
  EXPECT_TRUE(gc.read().same_bits(a));
}

// The tanh form, within the rounding of a 16-bit result; a hardware tanh is good to 2^-11 (PTX: tanh.approx), which
// shows beside results of its own size only.
TEST(MatmulCuda, GeluFormsAreTheTanhForm) {
  TW_NEEDS_GPU();
  CudaExec exec;
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    for (bool with_bias : {false, true}) {
      const Case p{96, 128, 64, false, true, with_bias, false, t, t};
      const Operands o(p, 9);
      const Expected e = expected_of(p, o);
      OnGpu a(exec, o.a), b(exec, o.b), pre(exec, Tensor(t, {p.m, p.n})), y(exec, o.c), bias(exec, o.bias);
      matmul_cuda(
          *exec,
          {.a = a, .b = b, .c = y, .trans_b = true, .bias = with_bias ? bias.view() : View{}, .gelu_input = pre});
      const Tensor x = pre.read(), got = y.read();
      test::expect_close(
          x, e.value, [&](int64_t i) { return bound(p, e, i); }, "input of GELU " + p.name());
      const double approximate = t == DType::f32 ? 0x1p-20 : 0x1p-11;
      for (int64_t i = 0; i < x.count(); ++i) {
        // Either x before its rounding or after it went in: both are within the slope (1.13 at most) times x's bound.
        const double v = e.value[static_cast<size_t>(i)], want = oracle::gelu(GeluKind::kTanh, v).y;
        EXPECT_NEAR(got.at(i), want,
                    1.13 * bound(p, e, i) + test::unit_of(t) * std::abs(want) + approximate * std::abs(v))
            << p.name() << " element " << i;
      }
    }
  }
}

TEST(MatmulCuda, GradientOfGelu) {
  TW_NEEDS_GPU();
  CudaExec exec;
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    const Case p{96, 128, 64, false, false, false, false, t, t};
    const Operands o(p, 10);
    const Expected e = expected_of(p, o);
    std::mt19937 rng(11);
    const Tensor x = random_tensor(rng, t, {p.m, p.n});
    OnGpu a(exec, o.a), b(exec, o.b), pre(exec, x), c(exec, o.c);
    matmul_cuda(*exec, {.a = a, .b = b, .c = c, .dgelu_input = pre});
    std::vector<double> expected(e.value.size());
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] = e.value[i] * oracle::gelu(GeluKind::kTanh, x.at(static_cast<int64_t>(i))).slope;
    const double approximate = t == DType::f32 ? 0x1p-19 : 0x1p-9;
    test::expect_close(
        c.read(), expected,
        [&](int64_t i) {
          const size_t at = static_cast<size_t>(i);
          return 1.13 * bound(p, e, i) + test::unit_of(t) * std::abs(expected[at]) +
                 approximate * std::abs(e.value[at]);
        },
        "gradient of GELU " + p.name());
  }
}

// The bias gradient beside the weight gradient: both are added to what is there.
TEST(MatmulCuda, SumsBesideAWeightGradient) {
  TW_NEEDS_GPU();
  CudaExec exec;
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    for (int64_t m : {96, 100}) {
      const Case p{m, 128, 320, true, false, false, true, t, DType::f32};
      const Operands o(p, 12);
      const Expected e = expected_of(p, o);
      std::mt19937 rng(13);
      const Tensor before = random_tensor(rng, DType::f32, {m});
      OnGpu a(exec, o.a), b(exec, o.b), c(exec, o.c), sums(exec, before);
      matmul_cuda(*exec, {.a = a, .b = b, .c = c, .trans_a = true, .accumulate = true, .a_sums = sums});
      test::expect_close(
          c.read(), e.value, [&](int64_t i) { return bound(p, e, i); }, p.name());
      std::vector<double> expected(static_cast<size_t>(m)), size(expected);
      for (int64_t i = 0; i < m; ++i) {
        const size_t at = static_cast<size_t>(i);
        expected[at] = before.at(i), size[at] = std::abs(before.at(i));
        for (int64_t k = 0; k < p.k; ++k) expected[at] += o.a.at(k * m + i), size[at] += std::abs(o.a.at(k * m + i));
      }
      test::expect_close(
          sums.read(), expected,
          [&](int64_t i) {
            return static_cast<double>(p.k + 3) * 2.0 * test::unit_of(DType::f32) * size[static_cast<size_t>(i)];
          },
          "sums " + p.name());
    }
  }
}

// Law 10, the epilogues included.
TEST(MatmulCuda, SameBitsTwentyTimes) {
  TW_NEEDS_GPU();
  CudaExec exec;
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    const Case p{768, 768,       test::sized(8192, 256), true, false, false, true,
                 t,   DType::f32};  // few tiles, long sums: split where any is
    std::mt19937 rng(6);
    const Tensor at = random_tensor(rng, t, {p.k, p.m}), bt = random_tensor(rng, t, {p.k, p.n}),
                 ct = random_tensor(rng, DType::f32, {p.m, p.n}), st = random_tensor(rng, DType::f32, {p.m});
    OnGpu a(exec, at), b(exec, bt), c(exec, ct), sums(exec, st);
    Tensor first, first_sums;
    for (int64_t i = 0; i < test::sized(20, 2); ++i) {
      c.write(ct), sums.write(st);
      matmul_cuda(*exec, {.a = a, .b = b, .c = c, .trans_a = true, .accumulate = true, .a_sums = sums});
      Tensor got = c.read(), got_sums = sums.read();
      if (i == 0) first = got, first_sums = got_sums;
      EXPECT_TRUE(got.same_bits(first)) << name_of(t) << " repetition " << i;
      EXPECT_TRUE(got_sums.same_bits(first_sums)) << name_of(t) << " sums, repetition " << i;
    }
  }
}

// Rounded to fp8 by one scale per tensor: e4m3 keeps 4 significant bits (half a step: 2^-4 of the number, 2^-10 of
// scale among subnormals), e5m2 three. All orientations, as a linear layer uses them, and sizes that are no multiple of
// 16, which stay 16-bit.
TEST(MatmulCuda, Fp8) {
  TW_NEEDS_GPU();
  CudaExec exec;
  if (state_of(*exec).capability() < 89) GTEST_SKIP() << "this GPU has no products in fp8";
  for (Fp8 fp8 : {Fp8::kForward, Fp8::kGradient}) {
    for (int orientation = 0; orientation < 3; ++orientation) {
      for (int64_t m : {64, 208, 100}) {
        const bool ta = orientation == 2, tb = orientation == 0;
        const Case p{m, 160, 96, ta, tb, orientation == 0, ta, DType::bf16, ta ? DType::f32 : DType::bf16};
        const Operands o(p, 21);
        const Expected e = expected_of(p, o);
        OnGpu a(exec, o.a), b(exec, o.b), c(exec, o.c), bias(exec, o.bias);
        matmul_cuda(*exec, {.a = a,
                            .b = b,
                            .c = c,
                            .trans_a = ta,
                            .trans_b = tb,
                            .bias = p.bias ? bias.view() : View{},
                            .accumulate = ta,
                            .fp8 = fp8});
        // Of each product: (1 + u_a)(1 + u_b) - 1, and numbers far below the largest lose up to 2^-10 / 448 of it.
        const double u = fp8 == Fp8::kForward ? 0x1p-4 + 0x1p-4 + 0x1p-8 : 0x1p-3 + 0x1p-4 + 0x1p-7;
        test::expect_close(
            c.read(), e.value,
            [&](int64_t i) {
              return bound(p, e, i) + u * e.size[static_cast<size_t>(i)] +
                     static_cast<double>(p.k) * 5.0 * 5.0 * 0x1p-18;
            },
            "fp8 " + p.name());
      }
    }
  }
}

// Law 8: what is not finite does not become finite by rounding.
TEST(MatmulCuda, Fp8KeepsWhatIsNotFinite) {
  TW_NEEDS_GPU();
  CudaExec exec;
  if (state_of(*exec).capability() < 89) GTEST_SKIP() << "this GPU has no products in fp8";
  for (double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    const Case p{64, 64, 64, false, true, false, false, DType::bf16, DType::bf16};
    Operands o(p, 22);
    o.a.set(77, bad);
    OnGpu a(exec, o.a), b(exec, o.b), c(exec, o.c);
    matmul_cuda(*exec, {.a = a, .b = b, .c = c, .trans_b = true, .fp8 = Fp8::kForward});
    const Tensor got = c.read();
    bool finite = true;
    for (int64_t j = 0; j < 64; ++j) finite = finite && std::isfinite(got.at(64 + j));  // the row of element 77
    EXPECT_FALSE(finite) << bad;
  }
}

}  // namespace
}  // namespace thinwire::matmul_cuda_test
