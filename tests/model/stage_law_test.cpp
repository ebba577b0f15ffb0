// Laws of the model: recomputation, threads and micro-batching change no number; gradients are those of the loss;
// decoding with a cache equals the full forward.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "model/decoder.h"
#include "model/params.h"
#include "tests/model/model_test_support.h"
#include "tests/support/worst.h"

namespace thinwire::testing::stage_law_test {
namespace {

class Families : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::Values(0, 1, 2));

TEST_P(Families, RecomputeIsBitEqual) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (float dropout : {0.0f, 0.2f}) {
      ModelConfig m = small_model(GetParam());
      m.dtype = dtype, m.hidden_dropout = dropout, m.attention_dropout = dropout;
      Bed plain(m, 2);
      const double loss = plain.train_once();
      for (Recompute level : {Recompute::kSelective, Recompute::kFull}) {
        m.recompute = level;
        Bed other(m, 2);
        EXPECT_EQ(loss, other.train_once()) << name_of(dtype) << " dropout " << dropout;
        EXPECT_EQ(plain.gradients(), other.gradients())
            << name_of(dtype) << " dropout " << dropout << " level " << static_cast<int>(level);
      }
    }
  }
}

TEST_P(Families, ThreadsDoNotChangeABit) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    ModelConfig m = small_model(GetParam());
    m.dtype = dtype, m.hidden_dropout = 0.1f, m.attention_dropout = 0.1f;
    Bed one(m, 1), two(m, 2), three(m, 3);
    const double loss = one.train_once();
    EXPECT_EQ(loss, two.train_once());
    EXPECT_EQ(loss, three.train_once());
    EXPECT_EQ(one.gradients(), two.gradients()) << name_of(dtype);
    EXPECT_EQ(one.gradients(), three.gradients()) << name_of(dtype);
  }
}

// d loss / d parameter along a random direction against central differences; with dropout, whose masks are the same at
// every point. The loss is evaluated in fp32 with error about u sqrt(K S) ~ 1e-6; over a step of 2h = 2e-2 that is 1e-4
// in the slope, and the cubic term (h^2/6 times the third derivative) is of the same size.
void expect_slope(const ModelConfig& m) {
  Bed bed(m, 2);
  bed.train_once();
  std::map<std::string, std::vector<float>> gradients;
  for (const ParamSpec& p : bed.store.params()) {
    const float* g = bed.store.gradient(p.name).as<float>();
    gradients[p.name].assign(g, g + p.count());
  }
  for (const ParamSpec& p : bed.store.params()) {
    const std::vector<float>& gradient = gradients.at(p.name);
    float* w = bed.store.weight(p.name).as<float>();  // fp32: the master itself
    const std::vector<float> start(w, w + p.count());
    std::vector<float> direction(start.size());
    double slope = 0.0, length = 0.0, norm = 0.0;
    for (size_t i = 0; i < static_cast<size_t>(p.valid_rows * p.cols); ++i) {
      direction[i] = uniform01(philox({3, 4}, {static_cast<uint32_t>(i), p.id, 0, 0})[0]) - 0.5f;
      slope += static_cast<double>(direction[i]) * gradient[i];
      length += static_cast<double>(direction[i]) * direction[i];
      norm += static_cast<double>(gradient[i]) * gradient[i];
    }
    const double h = 1e-2 / std::sqrt(length);
    const auto loss_at = [&](double step) {
      for (size_t i = 0; i < start.size(); ++i) w[i] = static_cast<float>(start[i] + step * direction[i]);
      bed.store.bump_version();
      const double loss = m.hidden_dropout > 0.0f ? bed.train_once() : bed.evaluate();
      std::copy(start.begin(), start.end(), w);
      return loss;
    };
    const double numeric = (loss_at(h) - loss_at(-h)) / (2.0 * h);
    EXPECT_NEAR(numeric, slope, 2e-3 * std::sqrt(norm * length) + 1e-4 * std::sqrt(length)) << p.name;
  }
}

TEST_P(Families, GradientIsTheSlopeOfTheLoss) {
  ModelConfig m = small_model(GetParam());
  expect_slope(m);
  m.hidden_dropout = m.attention_dropout = 0.3f;
  expect_slope(m);
}

TEST_P(Families, AccumulationSumsMicroBatches) {
  ModelConfig m = small_model(GetParam());
  Bed whole(m, 2, 4);
  whole.fill(0, 1.0f / static_cast<float>(4 * m.seq_length));
  whole.train_once();
  Bed parts(m, 2, 2);
  for (int64_t first : {0, 2}) {
    parts.fill(first, 1.0f / static_cast<float>(4 * m.seq_length));
    parts.train_once();
  }
  const std::vector<float> a = whole.gradients(), b = parts.gradients();
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(a[i]), 2);
  }
  EXPECT_LE(std::sqrt(error / norm),
            6.0 * 0x1p-24 * std::sqrt(76.0 * 72.0));  // lambda u sqrt(K S): 76 tokens, 3 * (7 * 3 + 3) sums
}

// The dropout of a sample depends on its number, not on its place in a micro-batch.
TEST_P(Families, DropoutFollowsTheSample) {
  ModelConfig m = small_model(GetParam());
  m.hidden_dropout = 0.3f, m.attention_dropout = 0.3f;
  Bed pair(m, 2, 2), single(m, 2, 1);
  pair.fill(4, 1.0f);
  const double both = pair.train_once();
  single.fill(4, 1.0f);
  const double first = single.train_once();
  single.fill(5, 1.0f);
  const double second = single.train_once();
  EXPECT_NEAR(both, first + second, 1e-4 * std::abs(both));
  Bed other(m, 2, 1);
  other.fill(4, 1.0f);
  EXPECT_EQ(first, other.train_once());
  EXPECT_NE(first, other.evaluate());  // and evaluation has none
}

void expect_decoding_equals_the_full_forward(const ModelConfig& m) {
  Bed bed(m, 2, 1);
  std::vector<std::vector<float>> rows;
  bed.stage.all_logits(bed.exec, bed.micro(false), [&](int64_t, View chunk) {
    for (int64_t r = 0; r < chunk.rows(); ++r)
      rows.emplace_back(chunk.as<float>() + r * chunk.cols(), chunk.as<float>() + r * chunk.cols() + m.vocab);
  });
  Decoder decoder(m, bed.store, m.seq_length, 8, bed.ports, bed.arena, bed.device.get(), bed.stream.get());
  for (int64_t at = 0, n; at < m.seq_length; at += n) {
    n = at == 0 ? 8 : at == 8 ? 3 : 1;  // a prompt in two pieces, then token by token
    const View logits = decoder.feed(bed.exec, bed.tokens.element_range(at, n));
    double largest = 0.0, error = 0.0;
    for (int64_t c = 0; c < m.vocab; ++c) {
      largest = std::max(largest, std::abs(static_cast<double>(rows[at + n - 1][c])));
      error = test::worse(error, std::abs(static_cast<double>(rows[at + n - 1][c]) - logits.as<float>()[c]));
    }
    EXPECT_LE(error, 6.0 * 0x1p-24 * std::sqrt(72.0 * 24.0) * largest) << "token " << at;  // lambda u sqrt(K S)
  }
}

TEST_P(Families, DecodingEqualsTheFullForward) {
  ModelConfig m = small_model(GetParam());
  expect_decoding_equals_the_full_forward(m);
  m.window = 4;
  expect_decoding_equals_the_full_forward(m);
}

// A window changes the loss, and one as long as the sequence changes no bit.
TEST_P(Families, WindowsHideWhatLiesFurtherBack) {
  ModelConfig m = small_model(GetParam());
  Bed plain(m, 2);
  const double loss = plain.train_once();
  m.window = m.seq_length - 1;
  Bed all(m, 2);
  EXPECT_EQ(all.train_once(), loss);
  EXPECT_EQ(all.gradients(), plain.gradients());
  m.window = 3;
  Bed few(m, 2);
  EXPECT_NE(few.train_once(), loss);
  expect_slope(m);
}

// Padding rows of the vocabulary get no gradient and no probability.
TEST_P(Families, VocabularyPaddingStaysSilent) {
  ModelConfig m = small_model(GetParam());
  Bed bed(m, 2);
  const double loss = bed.train_once();
  for (const char* name : {"embedding.word.weight", "head.weight"}) {
    const View gradient = bed.store.gradient(name), weight = bed.store.weight(name);
    if (!gradient) continue;
    for (int64_t i = m.vocab * m.hidden; i < gradient.count(); ++i) {
      ASSERT_EQ(gradient.as<float>()[i], 0.0f);
      weight.as<float>()[i] = 1e3f;  // were they read, the loss would show it
    }
  }
  EXPECT_EQ(loss, bed.train_once());
}

// A tied head is the embedding; one of its own decays.
TEST_P(Families, EmbeddingsNeedNotDecay) {
  ModelConfig m = small_model(GetParam());
  for (const ParamSpec& p : list_parameters(m)) EXPECT_EQ(p.decay, !p.is_vector) << p.name;
  m.decay_all_matrices = false;
  for (const ParamSpec& p : list_parameters(m))
    EXPECT_EQ(p.decay, !p.is_vector && p.tensor_class != TensorClass::kEmbedding) << p.name;
  EXPECT_FALSE(find_parameter(list_parameters(m), "embedding.word.weight").decay);
  if (!m.tied_head) {
    EXPECT_TRUE(find_parameter(list_parameters(m), "head.weight").decay);
  }
}

}  // namespace
}  // namespace thinwire::testing::stage_law_test
