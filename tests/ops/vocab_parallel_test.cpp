// Vocabulary sharded over ranks: parts of the embedding table add up to the whole, and the loss in two halves agrees
// with float64 and with the uncut op.
#include <algorithm>
#include <limits>

#include "engine/base/ops/op_list.h"
#include "tests/support/op_test_support.h"

namespace thinwire::test::vocab_parallel_test {
namespace {

constexpr double kU = 0x1p-24;
const double kInf = std::numeric_limits<double>::infinity();

Tensor columns_of(const Tensor& whole, int64_t first, int64_t n) {
  const int64_t rows = whole.view().rows(), cols = whole.view().cols();
  Tensor part(whole.view().dtype, {rows, n});
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < n; ++c) part.set(r * n + c, whole.at(r * cols + first + c));
  }
  return part;
}

struct Loss {
  Tensor loss, dlogits;
};

// All ranks one after the other; every rank must find the same losses.
Loss vocab_parallel(Exec& exec, const Tensor& logits, const Tensor& targets, const Tensor& weight, const Tensor& scale,
                    int64_t vocabulary, int ranks, bool training) {
  const int64_t rows = logits.view().rows(), cols = logits.view().cols();
  Tensor all(DType::f32, {ranks, rows, 3}), dlogits(logits.view().dtype, {rows, cols});
  std::vector<Tensor> parts;
  for (int k = 0; k < ranks; ++k) {
    const int64_t first = cols * k / ranks, n = cols * (k + 1) / ranks - first;
    parts.push_back(columns_of(logits, first, n));
    const Tensor before = parts.back();
    vocab_statistics_op(
        exec, {parts.back(), targets, weight, all.view().element_range(k * rows * 3, rows * 3), vocabulary, first});
    EXPECT_TRUE(parts.back().same_bits(before)) << "statistics must not write logits";
  }
  Tensor loss(DType::f32, {rows});
  for (int k = 0; k < ranks; ++k) {
    const int64_t first = cols * k / ranks, n = cols * (k + 1) / ranks - first;
    Tensor mine(DType::f32, {rows});
    vocab_loss_op(exec, {parts[static_cast<size_t>(k)], targets, weight, all, mine, training ? scale.view() : View(),
                         vocabulary, first});
    if (k == 0) loss = mine;
    EXPECT_TRUE(mine.same_bits(loss)) << "rank " << k;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < n; ++c) dlogits.set(r * cols + first + c, parts[static_cast<size_t>(k)].at(r * n + c));
    }
  }
  return {loss, dlogits};
}

void check(DType type, int64_t rows, int64_t cols, int64_t valid, int ranks, double spread, unsigned seed) {
  SCOPED_TRACE(testing::Message() << name_of(type) << " [" << rows << "," << valid << " of " << cols << "] over "
                                  << ranks << " spread " << spread);
  std::mt19937 rng(seed);
  Tensor logits = random_tensor(rng, type, {rows, cols}, spread);
  for (int64_t r = 0; r < rows; ++r) {  // rubbish in the padding must not be seen
    for (int64_t c = valid; c < cols; ++c)
      logits.set(r * cols + c, c % 3 == 0 ? std::nan("") : c % 3 == 1 ? kInf : 6e4);
  }
  Tensor targets = random_tokens(rng, rows, valid), weight = random_tensor(rng, DType::f32, {rows});
  if (rows > 2) {
    weight.set(1, 0.0);
    targets.set(1, -100);
  }
  const Tensor scale = constant_tensor(DType::f32, {1}, 0.125);
  CpuExec exec;
  const Loss evaluated = vocab_parallel(*exec, logits, targets, weight, scale, valid, ranks, false);
  EXPECT_TRUE(evaluated.dlogits.same_bits(logits) || valid < cols) << "evaluation must not write";
  const Loss got = vocab_parallel(*exec, logits, targets, weight, scale, valid, ranks, true);
  EXPECT_TRUE(got.loss.same_bits(evaluated.loss));

  const std::vector<double> v = logits.values();
  std::vector<double> want_loss, loss_bound, want(v.size(), 0.0), bound(v.size(), 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    if (weight.at(r) == 0.0) {
      want_loss.push_back(0.0), loss_bound.push_back(0.0);
      continue;
    }
    const int64_t target = static_cast<int64_t>(targets.at(r));
    double maximum = -kInf, sum = 0.0, exponent_error = 0.0;
    for (int64_t c = 0; c < valid; ++c) maximum = std::max(maximum, v[static_cast<size_t>(r * cols + c)]);
    for (int64_t c = 0; c < valid; ++c) {
      const double d = maximum - v[static_cast<size_t>(r * cols + c)];
      sum += std::exp(-d);
      exponent_error += d < 700 ? d * std::exp(-d) : 0.0;
    }
    const double distance = maximum - v[static_cast<size_t>(r * cols + target)];
    want_loss.push_back(std::log(sum) + distance);
    // As for the uncut op (cross_entropy_test), and per rank one more rescaling (an exponential of a rounded difference
    // that counts at most 1/e of itself, a product) and one more addition.
    const double chunks = std::ceil(static_cast<double>(valid) / 512.0);
    const double sum_error =
        kU * (exponent_error / sum + 12 + 6 * chunks + static_cast<double>(valid) / 32.0 + 7.0 * ranks);
    loss_bound.push_back(sum_error + kU * (2 * std::abs(std::log(sum)) + 2 * distance + 2 * want_loss.back()));
    const double g = weight.at(r) * scale.at(0);
    for (int64_t c = 0; c < valid; ++c) {
      const size_t i = static_cast<size_t>(r * cols + c);
      const double d = maximum - v[i], p = std::exp(-d) / sum;
      want[i] = (p - (c == target ? 1.0 : 0.0)) * g;
      bound[i] = std::abs(g) * (p * (sum_error + kU * (d + 10)) + (c == target ? 2 * kU : 0.0) + 1e-37) +
                 unit_of(type) * std::abs(want[i]) * 1.01 + tiny_of(type);
    }
  }
  expect_close(
      got.loss, want_loss, [&](int64_t i) { return loss_bound[static_cast<size_t>(i)]; }, "loss");
  expect_close(
      got.dlogits, want, [&](int64_t i) { return bound[static_cast<size_t>(i)]; }, "dlogits");
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = valid; c < cols; ++c) ASSERT_EQ(got.dlogits.at(r * cols + c), 0.0) << "padding has a gradient";
  }
  if (ranks > 1) return;
  Tensor uncut = logits, loss(DType::f32, {rows});
  cross_entropy_op(*exec, {uncut, targets, weight, loss, scale, valid});
  EXPECT_TRUE(loss.same_bits(got.loss));  // a factor e^0 and additions of 0 round nothing
  EXPECT_TRUE(uncut.same_bits(got.dlogits));
}

TEST(VocabLoss, AgreesWithFloat64) {
  unsigned seed = 1;
  for (DType type : compute_types()) {
    for (int ranks : {1, 2, 3, 4, 7}) {
      for (double spread : {1.0, 30.0}) {
        check(type, 5, 63, 50, ranks, spread, seed++);
        check(type, 9, 65, 65, ranks, spread, seed++);
        check(type, 4, 128, 61, ranks, spread, seed++);  // ranks of padding only
        check(type, 4, 1024, 1003, ranks, spread, seed++);
      }
      check(type, 1, 7, 1, ranks, 1.0, seed++);
    }
    check(type, 3, 50304, 50257, 4, 3.0, seed++);
  }
}

TEST(VocabLoss, NonFiniteLogitsOfAnyRankReachEveryLoss) {
  const int64_t cols = 40;
  const Tensor weight = constant_tensor(DType::f32, {3}, 1.0), scale = constant_tensor(DType::f32, {1}, 1.0);
  Tensor targets(DType::i32, {3});
  for (int64_t at : {1, 15, 39}) {
    Tensor logits = constant_tensor(DType::f32, {3, cols}, 0.5);
    logits.set(at, std::nan(""));
    logits.set(cols + at, kInf);
    CpuExec exec;
    const Loss got = vocab_parallel(*exec, logits, targets, weight, scale, cols, 4, true);
    EXPECT_TRUE(std::isnan(got.loss.at(0)));
    EXPECT_FALSE(std::isfinite(got.loss.at(1)));
    EXPECT_TRUE(std::isfinite(got.loss.at(2)));
    EXPECT_TRUE(std::isnan(got.dlogits.at(20)));  // also in columns of other ranks
  }
}

TEST(VocabLoss, SameBitsForAnyNumberOfThreads) {
  for (DType type : compute_types()) {
    std::mt19937 rng(5);
    const Tensor logits = random_tensor(rng, type, {203, 515}), targets = random_tokens(rng, 203, 500);
    const Tensor weight = constant_tensor(DType::f32, {203}, 1.0), scale = constant_tensor(DType::f32, {1}, 0.5);
    expect_same_bits_for_threads(
        [&](Exec& exec) {
          Loss l = vocab_parallel(exec, logits, targets, weight, scale, 500, 3, true);
          return std::vector<Tensor>{l.loss, l.dlogits};
        },
        "vocab_loss");
  }
}

TEST(VocabLoss, WrongArgumentsAreRefused) {
  Tensor logits(DType::f32, {2, 8}), targets(DType::i32, {2}), statistics(DType::f32, {2, 3}), loss(DType::f32, {2});
  const Tensor weight = constant_tensor(DType::f32, {2}, 1.0), two(DType::f32, {2, 2, 3}), odd(DType::f32, {7});
  CpuExec exec;
  targets.set(1, 21);
  EXPECT_ANY_THROW(vocab_statistics_op(*exec, {logits, targets, weight, statistics, 20, 8}));
  EXPECT_NO_THROW(vocab_statistics_op(*exec, {logits, targets, weight, statistics, 22, 8}));
  EXPECT_NO_THROW(vocab_loss_op(*exec, {logits, targets, weight, two, loss, View(), 22, 8}));
  EXPECT_ANY_THROW(vocab_loss_op(*exec, {logits, targets, weight, odd, loss, View(), 22, 8}));
}

TEST(PartialEmbedding, PartsAddUpToTheWhole) {
  unsigned seed = 1;
  for (DType type : compute_types()) {
    for (int ranks : {1, 2, 3, 5}) {
      for (int threads : {1, 3, 8}) {
        std::mt19937 rng(seed++);
        const int64_t vocabulary = 47, cols = 130, length = 101, count = 3 * length;
        const Tensor table = random_tensor(rng, type, {vocabulary, cols}),
                     positions = random_tensor(rng, type, {length, cols}), dx = random_tensor(rng, type, {count, cols}),
                     tokens = random_tokens(rng, count, vocabulary);
        Tensor x(type, {count, cols}), dtable(DType::f32, {vocabulary, cols}), sum(type, {count, cols});
        CpuExec exec(threads);
        embedding_forward_op(*exec, {tokens, table, positions, x, length, 0});
        embedding_backward_op(*exec, {tokens, dx, dtable, View(), length});
        for (int k = 0; k < ranks; ++k) {
          const int64_t first = vocabulary * k / ranks, n = vocabulary * (k + 1) / ranks - first;
          Tensor part(type, {count, cols}), dpart(DType::f32, {n, cols});
          // Positions on one rank: wherever the token is, the sum is one rounding of word + position.
          embedding_forward_op(*exec, {tokens, table.view().row_range(first, n), k == 0 ? positions.view() : View(),
                                       part, length, 0, first, vocabulary});
          for (int64_t i = 0; i < part.count(); ++i) sum.set(i, sum.at(i) + part.at(i));
          embedding_backward_op(*exec, {tokens, dx, dpart, View(), length, first, vocabulary});
          EXPECT_EQ(std::memcmp(dpart.view().data, dtable.view().row_range(first, n).data, dpart.view().bytes()), 0)
              << name_of(type) << " rank " << k << " of " << ranks;
        }
        EXPECT_TRUE(sum.same_bits(x)) << name_of(type) << " over " << ranks;
      }
    }
  }
}

TEST(PartialEmbedding, TokensOutsideTheVocabularyAreRefused) {
  const Tensor table(DType::f32, {4, 8}), dx(DType::f32, {2, 8});
  Tensor x(DType::f32, {2, 8}), dtable(DType::f32, {4, 8}), tokens(DType::i32, {2});
  CpuExec exec;
  for (double bad : {-1.0, 9.0}) {
    tokens.set(1, bad);
    EXPECT_ANY_THROW(embedding_forward_op(*exec, {tokens, table, View(), x, 2, 0, 3, 9}));
    EXPECT_ANY_THROW(embedding_backward_op(*exec, {tokens, dx, dtable, View(), 2, 3, 9}));
  }
  tokens.set(1, 8);
  EXPECT_NO_THROW(embedding_forward_op(*exec, {tokens, table, View(), x, 2, 0, 3, 9}));
  EXPECT_ANY_THROW(embedding_forward_op(*exec, {tokens, table, View(), x, 2, 0, 6, 9}));  // rows 6 to 9 of 9
}

}  // namespace
}  // namespace thinwire::test::vocab_parallel_test
