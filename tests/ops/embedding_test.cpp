// Embedding rows and their gradients, compared bit by bit with sequential loops: the order of addition is part of the
// contract.
#include "engine/base/ops/op_list.h"
#include "tests/support/op_test_support.h"

namespace thinwire::test::embedding_test {
namespace {

struct Case {
  int64_t vocabulary, cols, batch, length;
};
const std::vector<Case> kCases = {{1, 1, 1, 1},     {3, 17, 2, 3},     {256, 63, 3, 65}, {1000, 65, 1, 17},
                                  {17, 64, 4, 100}, {50, 130, 2, 301}, {5, 1003, 3, 7}};

TEST(EmbeddingForward, IsTableRowPlusPosition) {
  unsigned seed = 1;
  for (DType type : compute_types()) {
    for (const Case& k : kCases) {
      for (const auto& [with_positions, listed] :
           {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
        std::mt19937 rng(seed++);
        const int64_t count = k.batch * k.length, first = with_positions ? 5 : 0;
        const Tensor table = random_tensor(rng, type, {k.vocabulary, k.cols});
        const Tensor positions = random_tensor(rng, type, {k.length + first, k.cols});
        const Tensor tokens = random_tokens(rng, count, k.vocabulary);
        Tensor x(type, {count, k.cols});
        EmbeddingForward op{tokens, table, View(), x, k.length, first};
        if (with_positions) op.positions = positions;
        const Tensor at = random_tokens(rng, count, k.length + first);
        if (listed) op.at = at;
        CpuExec exec(3);
        embedding_forward_op(*exec, op);
        for (int64_t i = 0; i < x.count(); ++i) {
          const int64_t n = i / k.cols, c = i % k.cols, token = static_cast<int64_t>(tokens.at(n));
          float sum = static_cast<float>(table.at(token * k.cols + c));
          if (with_positions)
            sum += static_cast<float>(
                positions.at((listed ? static_cast<int64_t>(at.at(n)) : first + n % k.length) * k.cols + c));
          Tensor want(type, {1});
          want.set(0, sum);
          ASSERT_EQ(x.at(i), want.at(0)) << name_of(type) << " token " << n << " column " << c;
        }
      }
    }
  }
}

TEST(EmbeddingBackward, AddsInTokenOrder) {
  unsigned seed = 50;
  for (DType type : compute_types()) {
    for (const Case& k : kCases) {
      for (const auto& [threads, listed] :
           {std::pair(1, false), std::pair(3, false), std::pair(8, false), std::pair(1, true), std::pair(8, true)}) {
        std::mt19937 rng(seed++);
        const int64_t count = k.batch * k.length;
        const Tensor dx = random_tensor(rng, type, {count, k.cols});
        const Tensor tokens = random_tokens(rng, count, k.vocabulary);
        Tensor dtable = random_tensor(rng, DType::f32, {k.vocabulary, k.cols});
        Tensor dpositions = random_tensor(rng, DType::f32, {k.length + 2, k.cols});
        Tensor want_table = dtable, want_positions = dpositions;
        const Tensor at = random_tokens(rng, count, k.length);
        for (int64_t n = 0; n < count; ++n) {
          for (int64_t c = 0; c < k.cols; ++c) {
            const float d = static_cast<float>(dx.at(n * k.cols + c));
            want_table.view().as<float>()[static_cast<int64_t>(tokens.at(n)) * k.cols + c] += d;
            want_positions.view().as<float>()[(listed ? static_cast<int64_t>(at.at(n)) : n % k.length) * k.cols + c] +=
                d;
          }
        }
        CpuExec exec(threads);
        EmbeddingBackward op{tokens, dx, dtable, dpositions, k.length};
        if (listed) op.at = at;
        embedding_backward_op(*exec, op);
        EXPECT_TRUE(dtable.same_bits(want_table)) << name_of(type) << " V " << k.vocabulary << " h " << k.cols;
        EXPECT_TRUE(dpositions.same_bits(want_positions)) << name_of(type) << " T " << k.length << " h " << k.cols;
      }
    }
  }
}

// <forward(table, positions), dx> must equal <table, dtable> + <positions, dpositions>: the backward is the forward's
// adjoint.
TEST(EmbeddingBackward, IsTheAdjointOfTheForward) {
  std::mt19937 rng(3);
  const int64_t vocabulary = 40, cols = 33, batch = 3, length = 21, count = batch * length;
  const Tensor table = random_tensor(rng, DType::f32, {vocabulary, cols}),
               positions = random_tensor(rng, DType::f32, {length, cols});
  const Tensor dx = random_tensor(rng, DType::f32, {count, cols}), tokens = random_tokens(rng, count, vocabulary);
  Tensor x(DType::f32, {count, cols}), dtable(DType::f32, {vocabulary, cols}), dpositions(DType::f32, {length, cols});
  CpuExec exec;
  embedding_forward_op(*exec, {tokens, table, positions, x, length, 0});
  embedding_backward_op(*exec, {tokens, dx, dtable, dpositions, length});
  const auto dot = [](const Tensor& a, const Tensor& b, double& size) {
    double sum = 0.0;
    for (int64_t i = 0; i < a.count(); ++i) {
      sum += a.at(i) * b.at(i);
      size += std::abs(a.at(i) * b.at(i));
    }
    return sum;
  };
  double size = 0.0;
  const double left = dot(x, dx, size), right = dot(table, dtable, size) + dot(positions, dpositions, size);
  // Rounding of x and of sums of about `count` terms at most.
  EXPECT_NEAR(left, right, static_cast<double>(count) * 0x1p-24 * size);
}

TEST(Embedding, SameBitsForAnyNumberOfThreads) {
  for (DType type : compute_types()) {
    for (int64_t cols : {64, 200, 771}) {
      std::mt19937 rng(4);
      const Tensor dx = random_tensor(rng, type, {600, cols}), tokens = random_tokens(rng, 600, 50);
      expect_same_bits_for_threads(
          [&](Exec& exec) {
            std::vector<Tensor> out = {Tensor(DType::f32, {50, cols}), Tensor(DType::f32, {200, cols})};
            embedding_backward_op(exec, {tokens, dx, out[0], out[1], 200});
            return out;
          },
          "embedding_backward");
    }
  }
}

TEST(Embedding, TokensOutsideTheTableAreRefused) {
  const Tensor table(DType::f32, {4, 8}), dx(DType::f32, {2, 8});
  Tensor x(DType::f32, {2, 8}), dtable(DType::f32, {4, 8}), tokens(DType::i32, {2});
  CpuExec exec;
  for (double bad : {-1.0, 4.0}) {
    tokens.set(1, bad);
    EXPECT_ANY_THROW(embedding_forward_op(*exec, {tokens, table, View(), x, 2, 0}));
    EXPECT_ANY_THROW(embedding_backward_op(*exec, {tokens, dx, dtable, View(), 2}));
  }
  tokens.set(1, 0);
  EXPECT_ANY_THROW(embedding_forward_op(*exec, {tokens, table, table, x, 2, 3}));  // positions 3, 4 of 4
}

}  // namespace
}  // namespace thinwire::test::embedding_test
