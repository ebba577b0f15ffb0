// Rotary position embedding against float64 in the layouts that models use, and its inverse.
#include "engine/base/ops/op_list.h"
#include "tests/support/op_test_support.h"

namespace thinwire::test::rotary_test {
namespace {

constexpr double kU = 0x1p-24;

struct Case {
  int64_t batch, length, groups, heads, head_dim, rot_dim, first;
  bool keys;  // the k of [q .. q | k | v] per group, else the q
};
const std::vector<Case> kCases = {{1, 1, 1, 1, 2, 2, 0, false},     {2, 3, 2, 1, 17, 6, 0, true},
                                  {3, 7, 2, 3, 64, 16, 5, false},   {1, 65, 1, 4, 63, 62, 0, false},
                                  {2, 17, 4, 2, 128, 128, 3, true}, {2, 33, 3, 2, 70, 66, 0, false}};

struct Problem {
  Tensor data, cos, sin;
  Rotary op;
};

// data is the fused [tokens, groups * (heads + 2) * head_dim] of a QKV projection.
Problem make_problem(const Case& k, DType type, std::mt19937& rng) {
  const int64_t row = k.groups * (k.heads + 2) * k.head_dim, half = k.rot_dim / 2, positions = k.first + k.length;
  Problem p = {random_tensor(rng, type, {k.batch * k.length, row}),
               Tensor(DType::f32, {positions, half}),
               Tensor(DType::f32, {positions, half}),
               {}};
  for (int64_t i = 0; i < positions * half; ++i) {
    const double angle =
        static_cast<double>(i / half) * std::pow(10000.0, -static_cast<double>(i % half) / static_cast<double>(half));
    p.cos.set(i, std::cos(angle));
    p.sin.set(i, std::sin(angle));
  }
  const int64_t group = (k.heads + 2) * k.head_dim;
  p.op.layout = {k.keys ? k.heads * k.head_dim : 0, k.length * row, row, group, k.head_dim};
  p.op.batch = k.batch;
  p.op.length = k.length;
  p.op.groups = k.groups;
  p.op.heads_per_group = k.keys ? 1 : k.heads;
  p.op.rot_dim = k.rot_dim;
  p.op.first_position = k.first;
  return p;
}

void bind(Problem& p) {
  p.op.data = p.data;
  p.op.cos = p.cos;
  p.op.sin = p.sin;
}

TEST(Rotary, RotatesPairsAndTouchesNothingElse) {
  for (DType type : compute_types()) {
    for (const Case& k : kCases) {
      for (const auto& [inverse, listed] : {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
        SCOPED_TRACE(testing::Message() << name_of(type) << " d " << k.head_dim << " rot " << k.rot_dim);
        std::mt19937 rng(1);
        Problem p = make_problem(k, type, rng);
        bind(p);
        p.op.inverse = inverse;
        const Tensor positions = random_tokens(rng, k.batch * k.length, k.first + k.length);
        if (listed) p.op.positions = positions;
        std::vector<double> want = p.data.values();
        std::vector<double> bound(want.size(), 0.0);  // untouched elements keep their bits
        const int64_t half = k.rot_dim / 2;
        for (int64_t b = 0; b < k.batch; ++b) {
          for (int64_t t = 0; t < k.length; ++t) {
            for (int64_t g = 0; g < k.groups; ++g) {
              for (int64_t j = 0; j < p.op.heads_per_group; ++j) {
                const HeadLayout& at = p.op.layout;
                const int64_t position = listed ? static_cast<int64_t>(positions.at(b * k.length + t)) : k.first + t;
                const int64_t base = at.offset + b * at.batch + t * at.token + g * at.group + j * at.head;
                for (int64_t i = 0; i < half; ++i) {
                  const size_t low = static_cast<size_t>(base + i), high = low + static_cast<size_t>(half);
                  const double c = p.cos.at(position * half + i),
                               s = (inverse ? -1 : 1) * p.sin.at(position * half + i);
                  const double x = want[low], y = want[high];
                  want[low] = x * c - y * s;
                  want[high] = y * c + x * s;
                  // One product rounded, then the sum, then the type.
                  bound[low] = kU * (std::abs(y * s) + std::abs(want[low])) * 1.01 +
                               unit_of(type) * std::abs(want[low]) * 1.01 + tiny_of(type);
                  bound[high] = kU * (std::abs(x * s) + std::abs(want[high])) * 1.01 +
                                unit_of(type) * std::abs(want[high]) * 1.01 + tiny_of(type);
                }
              }
            }
          }
        }
        CpuExec exec;
        rotary_op(*exec, p.op);
        expect_close(
            p.data, want, [&](int64_t i) { return bound[static_cast<size_t>(i)]; }, "rotary");
      }
    }
  }
}

// The inverse is the transpose of a rotation: it undoes the forward, and so is its backward.
TEST(Rotary, InverseUndoesTheForward) {
  for (const Case& k : kCases) {
    std::mt19937 rng(2);
    Problem p = make_problem(k, DType::f32, rng);
    bind(p);
    const std::vector<double> before = p.data.values();
    CpuExec exec;
    rotary_op(*exec, p.op);
    p.op.inverse = true;
    rotary_op(*exec, p.op);
    // Two rotations of numbers up to |v|, with cos^2 + sin^2 off by the rounding of the tables.
    expect_close(
        p.data, before, [&](int64_t i) { return 16 * kU * (std::abs(before[static_cast<size_t>(i)]) + 6.0); },
        "inverse");
  }
}

TEST(Rotary, BatchOutermostOrPerHeadPlanesGiveTheSame) {
  std::mt19937 rng(3);
  const Case k = {2, 9, 2, 2, 34, 32, 0, false};
  Problem fused = make_problem(k, DType::bf16, rng);
  bind(fused);
  // The same q heads as planes [batch, heads, length, head_dim].
  Tensor planes(DType::bf16, {k.batch * k.groups * k.heads * k.length, k.head_dim});
  const auto plane_at = [&](int64_t b, int64_t t, int64_t h, int64_t e) {
    return ((b * 4 + h) * k.length + t) * k.head_dim + e;
  };
  const auto fused_at = [&](int64_t b, int64_t t, int64_t h, int64_t e) {
    const HeadLayout& at = fused.op.layout;
    return b * at.batch + t * at.token + h / 2 * at.group + h % 2 * at.head + e;
  };
  const auto for_all = [&](auto body) {
    for (int64_t b = 0; b < k.batch; ++b)
      for (int64_t t = 0; t < k.length; ++t)
        for (int64_t h = 0; h < 4; ++h)
          for (int64_t e = 0; e < k.head_dim; ++e) body(plane_at(b, t, h, e), fused_at(b, t, h, e));
  };
  for_all([&](int64_t to, int64_t from) { planes.set(to, fused.data.at(from)); });
  Rotary op = fused.op;
  op.data = planes;
  op.layout = {0, 4 * k.length * k.head_dim, k.head_dim, 2 * k.length * k.head_dim, k.length * k.head_dim};
  CpuExec exec;
  rotary_op(*exec, op);
  rotary_op(*exec, fused.op);
  for_all([&](int64_t plane, int64_t at) { ASSERT_EQ(planes.at(plane), fused.data.at(at)); });
}

TEST(Rotary, SameBitsForAnyNumberOfThreads) {
  std::mt19937 rng(4);
  const Problem original = make_problem({2, 301, 2, 3, 64, 32, 0, false}, DType::f32, rng);
  expect_same_bits_for_threads(
      [&](Exec& exec) {
        Problem p = original;
        bind(p);
        rotary_op(exec, p.op);
        return std::vector<Tensor>{p.data};
      },
      "rotary");
}

TEST(Rotary, HeadsOutsideTheTensorAreRefused) {
  std::mt19937 rng(5);
  Problem p = make_problem({2, 3, 2, 1, 16, 6, 0, true}, DType::f32, rng);
  bind(p);
  CpuExec exec;
  Rotary op = p.op;
  op.layout.offset += 33;
  EXPECT_ANY_THROW(rotary_op(*exec, op));
  op = p.op;
  op.rot_dim = 5;
  EXPECT_ANY_THROW(rotary_op(*exec, op));
  op = p.op;
  op.first_position = 1;
  EXPECT_ANY_THROW(rotary_op(*exec, op));
}

}  // namespace
}  // namespace thinwire::test::rotary_test
