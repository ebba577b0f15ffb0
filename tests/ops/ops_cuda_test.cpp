// What the tests that CUDA's ops share with the CPU's do not reach: long rows, long segments, unaligned views, many
// decay spans, and bits that must be those of the CPU. Runs on a GPU and on the emulation.
#include <algorithm>
#include <limits>

#include "tests/ops/attention_oracle.h"
#include "tests/support/op_test_support.h"
// After the support, whose CpuExec keeps the CPU's ops: from here on cpu_ops is the table under test.
#include "tests/support/tested_ops.h"

namespace thinwire::test::ops_cuda_test {
namespace {

constexpr double kU = 0x1p-24;

class TestedExec {
 public:
  TestedExec()
      : device_(make_cpu_device()),
        stream_(device_->make_stream()),
        exec_(make_exec(tested_ops(), *device_, *stream_, 1)) {}
  Exec& operator*() { return exec_; }
  Exec* operator->() { return &exec_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Exec exec_;
};

// A copy that starts one element later, so that no vector access is aligned.
struct Shifted {
  explicit Shifted(const Tensor& t) : whole(t.view().dtype, {t.count() + 1}), view(t.view()) {
    view.data = static_cast<char*>(whole.view().data) + size_of(view.dtype);
    std::memcpy(view.data, t.view().data, view.bytes());
  }
  Shifted(const Shifted&) = delete;
  bool same_bits(const Tensor& t) const { return std::memcmp(view.data, t.view().data, view.bytes()) == 0; }
  operator View() const { return view; }
  Tensor whole;
  View view;
};

const int64_t kIds[4] = {3, (int64_t{0x1234} << 32) + 77, 99, int64_t{1} << 47};
Dropout some_dropout(float p, int64_t batch) {
  return {p, seed_key(5), RandomPurpose::kHiddenDropout, 4, kIds, batch};
}

TEST(CudaOps, UnalignedViewsGiveTheSameBits) {
  for (DType type : compute_types()) {
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{4, 24}, {8, 520}, {3, 4096}}) {
      SCOPED_TRACE(testing::Message() << name_of(type) << " [" << rows << "," << cols << "]");
      std::mt19937 rng(7);
      TestedExec exec;
      const OpTable& ops = exec->ops;
      const int64_t batch = rows % 4 == 0 ? 4 : 1;
      const Tensor a = random_tensor(rng, type, {rows, cols}), b = random_tensor(rng, type, {rows, cols});
      const Tensor wide = random_tensor(rng, type, {rows, 2 * cols}, 3.0);
      const Tensor table = random_tensor(rng, type, {11, cols}), tokens = random_tokens(rng, rows, 11);
      const Shifted a1(a), b1(b), wide1(wide), table1(table);
      struct Inputs {
        View a, b, wide, table;
      };
      const auto same = [&](const char* what, DType to, int64_t width, const auto& op) {
        const Tensor first(to, {rows, width});
        const Shifted second(first);
        op(Inputs{a, b, wide, table}, first.view());
        op(Inputs{a1, b1, wide1, table1}, second.view);
        EXPECT_TRUE(second.same_bits(first)) << what << " to " << name_of(to);
      };
      for (float p : {0.0f, 0.4f}) {
        const Dropout dropout = some_dropout(p, batch);
        same("residual_add", type, cols, [&](const Inputs& in, View out) {
          ops.residual_add(*exec, {in.a, in.b, out, dropout});
        });
        same("dropout_apply", type, cols, [&](const Inputs& in, View out) {
          ops.dropout_apply(*exec, {in.a, out, dropout});
        });
      }
      for (GeluKind kind : {GeluKind::kTanh, GeluKind::kExact}) {
        same("gelu_forward", type, cols, [&](const Inputs& in, View out) {
          ops.gelu_forward(*exec, {kind, in.a, out});
        });
        same("gelu_backward", type, cols, [&](const Inputs& in, View out) {
          ops.gelu_backward(*exec, {kind, in.a, in.b, out});
        });
      }
      same("swiglu_forward", type, cols, [&](const Inputs& in, View out) {
        ops.swiglu_forward(*exec, {in.wide, out});
      });
      same("swiglu_backward", type, 2 * cols, [&](const Inputs& in, View out) {
        ops.swiglu_backward(*exec, {in.wide, in.a, out});
      });
      same("axpy", type, cols, [&](const Inputs& in, View out) { ops.axpy(*exec, {0.3f, in.a, out}); });
      same("fill_constant", type, cols, [&](const Inputs&, View out) { ops.fill_constant(*exec, {out, 0.1f}); });
      for (DType to : compute_types())
        same("cast", to, cols, [&](const Inputs& in, View out) { ops.cast(*exec, {in.a, out}); });
      same("embedding_forward", type, cols, [&](const Inputs& in, View out) {
        ops.embedding_forward(*exec, {tokens, in.table, in.a, out, rows, 0});
      });
      Tensor dtable = random_tensor(rng, DType::f32, {11, cols});
      const Shifted dtable1(dtable);
      ops.embedding_backward(*exec, {tokens, a, dtable, View(), rows});
      ops.embedding_backward(*exec, {tokens, a1, dtable1, View(), rows});
      EXPECT_TRUE(dtable1.same_bits(dtable)) << "embedding_backward";
    }
  }
}

// What is decided by integers, or rounded once from exact numbers, has the bits of the CPU.
TEST(CudaOps, DropoutCastAndEmbeddingHaveTheBitsOfTheCpu) {
  for (DType type : compute_types()) {
    for (int64_t cols : {33, 40, 1024}) {
      SCOPED_TRACE(testing::Message() << name_of(type) << " " << cols);
      std::mt19937 rng(8);
      TestedExec tested;
      CpuExec cpu;
      const Tensor x = random_tensor(rng, type, {36, cols}), tokens = random_tokens(rng, 36, 7);
      Tensor mine(type, {36, cols}), its(type, {36, cols});
      for (int64_t first : {0, 12}) {
        Dropout dropout = some_dropout(0.3f, 3);
        dropout.rows = 48, dropout.first_row = first;
        tested->ops.dropout_apply(*tested, {x, mine, dropout});
        cpu->ops.dropout_apply(*cpu, {x, its, dropout});
        EXPECT_TRUE(mine.same_bits(its)) << "dropout_apply";
        tested->ops.residual_add(*tested, {x, x, mine, dropout});
        cpu->ops.residual_add(*cpu, {x, x, its, dropout});
        for (int64_t i = 0; i < x.count(); ++i) {
          // A product and a sum, which either of the two may fuse.
          ASSERT_NEAR(mine.at(i), its.at(i), (2 * kU + epsilon_of(type)) * 3 * std::abs(x.at(i)));
        }
      }
      for (DType to : compute_types()) {
        Tensor a(to, {36, cols}), b(to, {36, cols});
        tested->ops.cast(*tested, {x, a});
        cpu->ops.cast(*cpu, {x, b});
        EXPECT_TRUE(a.same_bits(b)) << "cast to " << name_of(to);
      }
      Tensor dtable = random_tensor(rng, DType::f32, {7, cols}),
             dpositions = random_tensor(rng, DType::f32, {12, cols});
      Tensor dtable_cpu = dtable, dpositions_cpu = dpositions;
      tested->ops.embedding_backward(*tested, {tokens, x, dtable, dpositions, 12});
      cpu->ops.embedding_backward(*cpu, {tokens, x, dtable_cpu, dpositions_cpu, 12});
      EXPECT_TRUE(dtable.same_bits(dtable_cpu)) << "fewer than 256 tokens of a row are added in token order";
      EXPECT_TRUE(dpositions.same_bits(dpositions_cpu));
    }
  }
}

TEST(CudaOps, NormalNumbersAreThoseOfTheCpuUpToTheLastBitOfLibm) {
  for (DType type : compute_types()) {
    for (int64_t first : {int64_t{0}, int64_t{3}, (int64_t{1} << 35) + 1}) {
      const int64_t n = 100003;
      Tensor mine(type, {n}), its(type, {n});
      TestedExec tested;
      CpuExec cpu;
      const FillNormal op = {mine, 0.02f, 0x123456789abcdefull, 42, first};
      FillNormal cpu_op = op;
      cpu_op.x = its;
      tested->ops.fill_normal(*tested, op);
      cpu->ops.fill_normal(*cpu, cpu_op);
      int64_t different = 0;
      for (int64_t i = 0; i < n; ++i) {
        different += mine.at(i) != its.at(i);
        ASSERT_NEAR(mine.at(i), its.at(i), epsilon_of(type) * std::abs(its.at(i)));
      }
      // Doubles that differ in their last bits round to different floats once in 2^27 numbers or so.
      EXPECT_LE(different, 2);
    }
  }
}

// Rows of the table with about as many tokens as a piece holds (256), side by side, against the order that the op
// promises: up to 256 tokens are added to the row one by one; of more, sums of 256 each are, in order.
TEST(CudaOps, EmbeddingBackwardCutsLongSegmentsInAFixedOrder) {
  const std::vector<std::vector<int64_t>> kCounts = {
      {256},           {257},         {1, 257, 3},          {300, 300, 300}, {511, 1, 512},
      {513, 257, 258}, {255, 256, 1}, {0, 2000, 0, 5, 700}, {259, 0, 1, 770}};
  std::mt19937 rng(9);
  for (DType type : compute_types()) {
    for (const auto& counts : kCounts) {
      for (int64_t cols : {8, 5}) {
        const auto rows = static_cast<int64_t>(counts.size());
        std::vector<int32_t> order;
        for (int64_t r = 0; r < rows; ++r) {
          order.insert(order.end(), static_cast<size_t>(counts[static_cast<size_t>(r)]), static_cast<int32_t>(r + 2));
        }
        std::shuffle(order.begin(), order.end(), rng);
        const auto n = static_cast<int64_t>(order.size());
        Tensor tokens(DType::i32, {n});
        for (int64_t i = 0; i < n; ++i) tokens.set(i, order[static_cast<size_t>(i)]);
        const Tensor dx = random_tensor(rng, type, {n, cols});
        // The table at hand holds tokens [3, 3 + rows) of the vocabulary: token 2 adds nothing to it.
        Tensor dtable = random_tensor(rng, DType::f32, {rows, cols}), want = dtable;
        for (int64_t r = 0; r + 1 < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            float total = static_cast<float>(want.at(r * cols + c)), piece = 0.0f;
            const bool is_long = counts[static_cast<size_t>(r + 1)] > 256;
            int64_t seen = 0;
            for (int64_t i = 0; i < n; ++i) {
              if (order[static_cast<size_t>(i)] != r + 3) continue;
              const auto v = static_cast<float>(dx.at(i * cols + c));
              if (!is_long) {
                total += v;
                continue;
              }
              piece += v;
              if (++seen % 256 == 0) total += std::exchange(piece, 0.0f);
            }
            if (is_long && seen % 256 != 0) total += piece;
            want.set(r * cols + c, total);
          }
        }
        TestedExec exec;
        EmbeddingBackward op = {tokens, dx, dtable, View(), n};
        op.first_token = 3, op.vocabulary = rows + 5;
        exec->ops.embedding_backward(*exec, op);
        EXPECT_TRUE(dtable.same_bits(want)) << name_of(type) << " " << n << " tokens, " << cols << " columns";
      }
    }
  }
}

// Rows that just fit shared memory (28,672 fp32 or 57,344 16-bit numbers), and rows that do not.
TEST(CudaOps, CrossEntropyOfRowsBeyondSharedMemory) {
  for (DType type : compute_types()) {
    const int64_t fits = type == DType::f32 ? 28672 : 57344;
    // And rows that, only with the kernel's static arrays, take more than the 48 KB that every kernel gets unasked.
    const int64_t free = type == DType::f32 ? 12288 : 24576, close = free - 63;
    for (auto [cols, valid] : {std::pair<int64_t, int64_t>{fits, fits},
                               {fits + 8, fits + 1},
                               {fits + 4096, fits + 100},
                               {free, free},
                               {free, close}}) {
      for (int64_t target : {int64_t{0}, std::min(fits, valid) - 1, valid - 1}) {
        SCOPED_TRACE(testing::Message() << name_of(type) << " " << valid << " of " << cols << " target " << target);
        std::mt19937 rng(11);
        Tensor logits = random_tensor(rng, type, {2, cols}, 3.0), loss(DType::f32, {2}), targets(DType::i32, {2});
        for (int64_t c = valid; c < cols; ++c) logits.set(cols + c, std::nan(""));
        targets.set(0, -1);
        targets.set(1, static_cast<double>(target));
        Tensor weight(DType::f32, {2});
        weight.set(1, 0.5);
        const Tensor scale = constant_tensor(DType::f32, {1}, 4.0);
        const std::vector<double> v = logits.values();
        TestedExec exec;
        exec->ops.cross_entropy(*exec, {logits, targets, weight, loss, scale, valid});
        EXPECT_EQ(loss.at(0), 0.0);
        double top = -1e300, sum = 0.0, spread = 0.0;
        for (int64_t c = 0; c < valid; ++c) top = std::max(top, v[static_cast<size_t>(cols + c)]);
        for (int64_t c = 0; c < valid; ++c) {
          const double d = top - v[static_cast<size_t>(cols + c)];
          sum += std::exp(-d);
          spread += d * std::exp(-d);
        }
        // Terms: the rounding of v - max (and of log2 e: a quarter more), four units of 2^x; at each of the row's
        // cols / (512 W) visits a rescaling (9) and W additions; then the factor of the thread, its warp and the warps.
        const double visits = static_cast<double>(cols) / (512.0 * (type == DType::f32 ? 4 : 8)) + 1;
        const double sum_error = kU * (1.25 * spread / sum + 4 + 9 * visits + 8 * visits + 6 + 5 + 16);
        const double logit = v[static_cast<size_t>(cols + target)], want_loss = std::log(sum) + top - logit;
        EXPECT_NEAR(loss.at(1), want_loss, sum_error + kU * (2 * std::log(sum) + 2 * (top - logit) + 2 * want_loss));
        for (int64_t c = 0; c < cols; ++c) {
          ASSERT_EQ(logits.at(c), 0.0) << "a row of weight 0";
          double want = 0.0, bound = 0.0;
          if (c < valid) {
            const double d = top - v[static_cast<size_t>(cols + c)], p = std::exp(-d) / sum;
            want = 2.0 * (p - (c == target ? 1.0 : 0.0));
            bound = 2.0 * p * (sum_error + kU * (1.25 * d + 16)) + 4 * kU + unit_of(type) * std::abs(want) * 1.01 +
                    tiny_of(type);
          }
          ASSERT_NEAR(logits.at(cols + c), want, bound) << c;
        }
      }
    }
  }
}

struct NormShape {
  DType type;
  int64_t rows, cols;
};

// A norm without a weight has the bits of one whose weight is ones.
TEST(CudaOps, NormsWithoutAWeight) {
  const std::vector<NormShape> shapes = {
      {DType::f32, 17, 1028}, {DType::f32, 5, 33}, {DType::bf16, 9, 4104}, {DType::f16, 3, 8200}};
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const NormShape& k : shapes) {
      std::mt19937 rng(13);
      const Tensor x = random_tensor(rng, k.type, {k.rows, k.cols}), dy = random_tensor(rng, k.type, {k.rows, k.cols}),
                   ones = constant_tensor(k.type, {k.cols}, 1.0), mean(DType::f32, {k.rows}),
                   rstd(DType::f32, {k.rows});
      const Tensor y[2] = {Tensor(k.type, {k.rows, k.cols}), Tensor(k.type, {k.rows, k.cols})},
                   dx[2] = {Tensor(k.type, {k.rows, k.cols}), Tensor(k.type, {k.rows, k.cols})};
      for (int bare = 0; bare < 2; ++bare) {
        TestedExec exec;
        const View weight = bare == 1 ? View{} : ones.view();
        NormForward f;
        f.kind = kind;
        f.x = x, f.weight = weight, f.y = y[bare], f.rstd = rstd;
        if (kind == NormKind::kLayerNorm) f.mean = mean;
        exec->ops.norm_forward(*exec, f);
        NormBackward b;
        b.kind = kind;
        b.dy = dy, b.x = x, b.weight = weight, b.mean = f.mean, b.rstd = rstd, b.dx = dx[bare];
        exec->ops.norm_backward(*exec, b);
      }
      EXPECT_TRUE(y[0].same_bits(y[1]) && dx[0].same_bits(dx[1])) << name_of(k.type) << " " << k.rows << "," << k.cols;
    }
  }
}

// Rows of one vector per thread, of several, and too long for registers; forward and backward.
TEST(CudaOps, NormsOfLongRowsAgreeWithFloat64) {
  const std::vector<NormShape> shapes = {{DType::f32, 17, 1028},  {DType::f32, 20, 768},  {DType::f32, 3, 2052},
                                         {DType::f32, 9, 4096},   {DType::f32, 3, 4100},  {DType::f32, 2, 8196},
                                         {DType::bf16, 17, 4096}, {DType::bf16, 9, 4104}, {DType::f16, 3, 8200},
                                         {DType::bf16, 2, 16392}, {DType::f16, 1030, 16}, {DType::bf16, 9000, 8},
                                         {DType::f32, 0, 8}};
  for (NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const NormShape& k : shapes) {
      SCOPED_TRACE(testing::Message() << (kind == NormKind::kLayerNorm ? "layer " : "rms ") << name_of(k.type) << " ["
                                      << k.rows << "," << k.cols << "]");
      std::mt19937 rng(12);
      const bool layer = kind == NormKind::kLayerNorm;
      const Tensor x = random_tensor(rng, k.type, {k.rows, k.cols}, 1.0, 0.5),
                   branch = random_tensor(rng, k.type, {k.rows, k.cols}),
                   dy = random_tensor(rng, k.type, {k.rows, k.cols}),
                   residual = random_tensor(rng, k.type, {k.rows, k.cols}),
                   weight = random_tensor(rng, k.type, {k.cols}, 0.3, 1.0), bias = random_tensor(rng, k.type, {k.cols});
      Tensor sum(k.type, {k.rows, k.cols}), y(k.type, {k.rows, k.cols}), mean(DType::f32, {k.rows}),
          rstd(DType::f32, {k.rows}), dx = residual, dweight = random_tensor(rng, DType::f32, {k.cols}),
                                      dbias = random_tensor(rng, DType::f32, {k.cols});
      const Tensor dweight_before = dweight, dbias_before = dbias;
      TestedExec exec;
      NormForward f;
      f.kind = kind;
      f.x = x, f.branch = branch, f.sum = sum, f.weight = weight, f.bias = bias, f.y = y, f.rstd = rstd;
      if (layer) f.mean = mean;
      f.dropout = some_dropout(0.25f, 1);
      exec->ops.norm_forward(*exec, f);
      NormBackward b;
      b.kind = kind;
      b.dy = dy, b.x = sum, b.weight = weight, b.rstd = rstd, b.residual = dx, b.dx = dx;
      b.dweight = dweight, b.dbias = dbias;
      if (layer) b.mean = mean;
      exec->ops.norm_backward(*exec, b);

      const double n = static_cast<double>(k.cols), depth = n / 32 + 16, unit_t = unit_of(k.type);
      std::vector<double> dw = dweight_before.values(), db = dbias_before.values(), dw_size = dw, db_size = db;
      for (double& v : dw_size) v = std::abs(v);
      for (double& v : db_size) v = std::abs(v);
      for (int64_t r = 0; r < k.rows; ++r) {
        double m = 0.0, variance = 0.0, spread = 0.0;
        for (int64_t c = 0; c < k.cols; ++c) {
          const int64_t i = r * k.cols + c;
          const double want = x.at(i) + branch.at(i) * dropout_factor(f.dropout, x.count(), i);
          ASSERT_NEAR(sum.at(i), want,
                      (4 * kU + 1.01 * unit_t) * (std::abs(x.at(i)) + 2 * std::abs(branch.at(i))) + tiny_of(k.type));
          m += layer ? sum.at(i) / n : 0.0;
        }
        for (int64_t c = 0; c < k.cols; ++c) {
          const double d = sum.at(r * k.cols + c) - m;
          variance += d * d / n;
          spread += std::abs(d) / n;
        }
        const double s = 1 / std::sqrt(variance + 1e-5), mean_error = 3 * kU * std::abs(m) + (depth + 2) * kU * spread;
        ASSERT_NEAR(rstd.at(r), s, s * (depth / 2 + 6) * kU);
        if (layer) {
          ASSERT_NEAR(mean.at(r), m, mean_error);
        }
        double c1 = 0.0, c2 = 0.0, g_size = 0.0, gu_size = 0.0;
        for (int64_t c = 0; c < k.cols; ++c) {
          const int64_t i = r * k.cols + c;
          const double unit = (sum.at(i) - m) * s, w = weight.at(c), want = unit * w + bias.at(c);
          const double unit_error = s * mean_error + std::abs(unit) * (depth / 2 + 9) * kU;
          ASSERT_NEAR(y.at(i), want,
                      std::abs(w) * unit_error + 2 * kU * (std::abs(unit * w) + std::abs(want)) +
                          1.01 * unit_t * std::abs(want) + tiny_of(k.type));
          const double g = dy.at(i) * w;
          c1 += layer ? g / n : 0.0;
          c2 += g * unit / n;
          g_size += std::abs(g) / n;
          gu_size += std::abs(g * unit) / n;
        }
        for (int64_t c = 0; c < k.cols; ++c) {
          const int64_t i = r * k.cols + c;
          const auto at = static_cast<size_t>(c);
          const double unit = (sum.at(i) - m) * s, g = dy.at(i) * weight.at(c);
          const double want = residual.at(i) + s * (g - c1 - unit * c2);
          // As for y: the op uses its own mean and rstd.
          const double unit_error = s * mean_error + std::abs(unit) * (depth / 2 + 9) * kU;
          const double bound = s * (kU * (4 * (std::abs(g) + std::abs(c1) + std::abs(unit * c2)) +
                                          (depth + 4) * g_size + std::abs(unit) * (depth + 8) * gu_size) +
                                    2 * unit_error * gu_size + std::abs(unit) * g_size * s * mean_error +
                                    (depth / 2 + 6) * kU * (std::abs(g) + std::abs(c1) + std::abs(unit * c2))) +
                               2 * kU * std::abs(want) + 1.01 * unit_t * std::abs(want) + tiny_of(k.type);
          ASSERT_NEAR(dx.at(i), want, bound) << "row " << r << " column " << c;
          dw[at] += dy.at(i) * unit;
          db[at] += dy.at(i);
          dw_size[at] += std::abs(dy.at(i)) * (std::abs(unit) + unit_error / kU);
          db_size[at] += std::abs(dy.at(i));
        }
      }
      for (int64_t c = 0; c < k.cols; ++c) {
        const double levels = static_cast<double>(k.rows) + 4;
        ASSERT_NEAR(dweight.at(c), dw[static_cast<size_t>(c)], levels * kU * dw_size[static_cast<size_t>(c)]);
        ASSERT_NEAR(dbias.at(c), db[static_cast<size_t>(c)], levels * kU * db_size[static_cast<size_t>(c)]);
      }
    }
  }
}

// With zero gradients decay alone moves the weights, so that each element tells its span.
TEST(CudaOps, EveryElementGetsTheDecayOfItsSpan) {
  std::mt19937 rng(13);
  for (int64_t wanted : {1, 2, 100, 127, 128, 129, 400}) {
    std::vector<DecaySpan> spans;
    int64_t n = 0;
    for (int64_t s = 0; s < wanted; ++s) {
      const auto count = static_cast<int64_t>(rng() % (s % 5 == 0 ? 3000 : 9));
      spans.push_back({n, count, static_cast<float>(s % 3) * 0.25f});
      n += count;
    }
    spans.push_back({n, 7, 1.0f});
    n += 7;
    StepState state;
    state.lr = 1.0f;
    state.weight_decay = 0.5f;
    for (DType working_type : compute_types()) {
      const Tensor before = random_tensor(rng, DType::f32, {n});
      Tensor adam = before, sgd = before, m(DType::f32, {n}), v(DType::f32, {n}), zero(DType::f32, {n}),
             working(working_type, {n});
      View state_view(&state, DType::u8, {sizeof state});
      TestedExec exec;
      AdamW a;
      a.master = adam, a.m = m, a.v = v, a.gradient = zero, a.state = state_view, a.spans = spans;
      if (working_type != DType::f32) a.working = working;
      exec->ops.adamw(*exec, a);
      Sgd g;
      g.master = sgd, g.gradient = zero, g.state = state_view, g.spans = spans;
      exec->ops.sgd(*exec, g);
      for (const DecaySpan& span : spans) {
        for (int64_t i = span.first; i < span.first + span.count; ++i) {
          const float p = static_cast<float>(before.at(i));
          const float want = std::fma(-1.0f, 0.5f * span.decay * p, p);
          ASSERT_EQ(adam.at(i), want) << "adamw, element " << i << " of " << n << ", " << wanted << " spans";
          ASSERT_EQ(sgd.at(i), want) << "sgd, element " << i;
        }
      }
      if (working_type == DType::f32) continue;
      for (int64_t i = 0; i < n; ++i) {
        Tensor rounded(working_type, {1});
        rounded.set(0, adam.at(i));
        ASSERT_EQ(working.at(i), rounded.at(0));
      }
    }
  }
}

TEST(CudaOps, OptimizersAgreeWithTheCpu) {
  std::mt19937 rng(14);
  const int64_t n = 10007;
  const std::vector<DecaySpan> spans = {{0, 5002, 1.0f}, {5002, n - 5002, 0.0f}};
  StepState state = {1e-2f, 0.271f, 0.0297f, 0.7f, 1.0f, 0.1f};
  View state_view(&state, DType::u8, {sizeof state});
  for (bool takes_momentum : {false, true}) {
    for (bool zero_gradient : {false, true}) {
      const Tensor master = random_tensor(rng, DType::f32, {n}), m = random_tensor(rng, DType::f32, {n}, 0.1),
                   gradient = random_tensor(rng, DType::f32, {n});
      Tensor v = random_tensor(rng, DType::f32, {n}, 0.1);
      for (int64_t i = 0; i < n; ++i) v.set(i, i % 11 == 0 ? 0.0 : std::abs(v.at(i)));
      std::vector<Tensor> mine = {master, m, v, gradient}, its = mine;
      const auto op_on = [&](std::vector<Tensor>& t) {
        AdamW op;
        op.master = t[0], op.m = t[1], op.v = t[2], op.gradient = t[3], op.state = state_view, op.spans = spans;
        op.takes_momentum = takes_momentum, op.zero_gradient = zero_gradient;
        return op;
      };
      TestedExec tested;
      CpuExec cpu;
      tested->ops.adamw(*tested, op_on(mine));
      cpu->ops.adamw(*cpu, op_on(its));
      for (int64_t i = 0; i < n; ++i) {
        const double step = std::abs(its[0].at(i) - master.at(i));
        ASSERT_NEAR(mine[1].at(i), its[1].at(i), 2 * kU * (std::abs(m.at(i)) + std::abs(gradient.at(i))));
        ASSERT_NEAR(mine[2].at(i), its[2].at(i), 4 * kU * (v.at(i) + gradient.at(i) * gradient.at(i)));
        // A handful of roundings of the step, and those of the weight before and after.
        ASSERT_NEAR(mine[0].at(i), its[0].at(i), 12 * kU * step + 2 * kU * std::abs(master.at(i)) + 1e-9 * kU);
        ASSERT_EQ(mine[3].at(i), zero_gradient ? 0.0 : gradient.at(i));
      }
    }
  }
}

TEST(CudaOps, AttentionOfEveryHeadSize) {
  std::mt19937 rng(15);
  int number = 0;
  for (int64_t d : {1, 2, 63, 64, 65, 127, 128, 129, 200, 255, 256}) {
    for (Packing packing : {Packing::kInterleaved, Packing::kCache}) {
      AttentionCase c;
      c.dtype = compute_types()[static_cast<size_t>(number % 3)];
      c.packing = packing;
      c.q_len = 70;
      c.kv_len = packing == Packing::kCache ? 135 : 70;
      c.groups = 2;
      c.heads_per_group = 1 + number / 2 % 2;  // either for both packings
      c.head_dim = d;
      c.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
      c.dropout = number++ % 5 == 0 ? 0.2f : 0.0f;
      AttentionTensors x(c, rng);
      TestedExec exec;
      x.run_forward(*exec);
      x.run_backward(*exec);
      const AttentionOracle want = attention_oracle(x, true);
      expect_within(x.out, want.out, want.out_bound, "out of " + c.name());
      expect_within(x.lse, want.lse, want.lse_bound, "lse of " + c.name());
      expect_within(x.dq, want.dq, want.dq_bound, "dq of " + c.name());
      if (packing == Packing::kInterleaved) continue;  // dq's tensor holds all three
      expect_within(x.dk, want.dk, want.dk_bound, "dk of " + c.name());
      expect_within(x.dv, want.dv, want.dv_bound, "dv of " + c.name());
    }
  }
}

// A key that a query does not see must not reach it, whatever it holds (kv_len of a cache is longer than its past).
TEST(CudaOps, AttentionDoesNotLookAhead) {
  std::mt19937 rng(16);
  for (DType t : compute_types()) {
    AttentionCase c{.dtype = t, .q_len = 100, .kv_len = 100, .head_dim = 16};
    AttentionTensors x(c, rng);
    for (int what = 1; what < 3; ++what) x.q.set(80 * 48 + what * 16 + 3, std::nan(""));  // k and v of token 80
    TestedExec exec;
    x.run_forward(*exec);
    for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(std::isnan(x.out.at(i * 16 + 3)), i >= 80) << "query " << i;
  }
}

TEST(CudaOps, NothingToDoDoesNothing) {
  TestedExec exec;
  const OpTable& ops = exec->ops;
  for (DType type : compute_types()) {
    const Tensor none(type, {0, 8}), weight(type, {8}), bias(DType::f32, {8}), no_rows(DType::f32, {0}),
        no_tokens(DType::i32, {0}), scale(DType::f32, {1});
    Tensor total = constant_tensor(DType::f64, {1}, 3.0);
    ops.residual_add(*exec, {none, none, none, some_dropout(0.5f, 1)});
    ops.dropout_apply(*exec, {none, none, some_dropout(0.5f, 1)});
    ops.gelu_forward(*exec, {GeluKind::kTanh, none, none});
    ops.gelu_backward(*exec, {GeluKind::kTanh, none, none, none});
    ops.swiglu_forward(*exec, {none, Tensor(type, {0, 4})});
    ops.swiglu_backward(*exec, {none, Tensor(type, {0, 4}), none});
    ops.embedding_forward(*exec, {no_tokens, Tensor(type, {3, 8}), View(), none, 0, 0});
    ops.embedding_backward(*exec, {no_tokens, none, Tensor(DType::f32, {3, 8}), View(), 0});
    ops.cross_entropy(*exec, {none, no_tokens, no_rows, no_rows, scale, 8});
    ops.weighted_sum(*exec, {no_rows, no_rows, total});
    ops.sum_squares(*exec, {no_rows, total});
    ops.bias_gradient(*exec, {none, bias});
    ops.cast(*exec, {none, none});
    ops.axpy(*exec, {1.0f, none, none});
    ops.fill_constant(*exec, {none, 1.0f});
    ops.fill_normal(*exec, {none, 1.0f, 1, 1, 0});
    EXPECT_EQ(total.at(0), 3.0);
  }
}

}  // namespace
}  // namespace thinwire::test::ops_cuda_test
