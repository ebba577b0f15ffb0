// The tied embedding under Optimus-CC's presets, after the defects of the published code: what the first step sums
// and writes is held against one rank's, where the two stages' parts are known apart.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "tests/mesh/mesh_harness.h"

namespace thinwire::mesh::embedding_defects_test {
namespace {

constexpr int kSamples = 24;
const char* const kEmbedding = "embedding.word.weight";
using Values = std::vector<float>;

// Plain gradient descent: a step is the gradient, times a rate that is a power of two.
std::vector<std::string> descent() {
  return {"optimizer.type=sgd", "optimizer.params.lr=0.25", "gradient_clipping=0", "weight_decay=0"};
}

// A rank that SC really cuts to: of 128 (the preset's) matrices as small as these would lose nothing.
Layout under(const std::string& preset, Layout layout) {
  layout.more = descent();
  layout.more.push_back("compression=" + preset);
  if (preset == "optimus_cc_cb_fe_sc") layout.more.push_back("compression.dp.gradient.rank=4");
  return layout;
}

Layout plain_rank() {
  return {.more = descent()};
}

double length(const Values& v) {
  double sum = 0.0;
  for (const float x : v) sum += static_cast<double>(x) * x;
  return std::sqrt(sum);
}

double distance(const Values& a, const Values& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum);
}

// The embedding's gradient on one rank: of the tied model, and its two parts from the same model untied, whose head
// starts out as a copy of the embedding.
struct Parts {
  FirstUpdate tied;
  Values first, last;  // what the first stage looks up, and what the last multiplies with
};

// Of `samples` sequences from first_sample on, as they count in a batch of kSamples.
Values first_part(const Tensors& weights, int samples, int first_sample) {
  Tensors untied = weights;
  untied["head.weight"] = weights.at(kEmbedding);
  Values part =
      first_update({.family = "gpt2_untied"}, plain_rank(), samples, first_sample, untied).gradient.at(kEmbedding);
  for (float& g : part) g *= static_cast<float>(samples) / kSamples;
  return part;
}

const Parts& parts() {
  static const Parts known = [] {
    Parts p;
    p.tied = first_update({}, plain_rank(), kSamples);
    p.first = first_part(p.tied.before, kSamples, 0);
    p.last = p.tied.gradient.at(kEmbedding);
    for (size_t i = 0; i < p.last.size(); ++i) p.last[i] -= p.first[i];
    return p;
  }();
  return known;
}

// By which sums in fp32 may differ between layouts, of a gradient this long.
double rounding() {
  return tolerance({}, kSamples, 1, true) * length(parts().tied.gradient.at(kEmbedding));
}

// What the codec between the stages may lose of the embedding's gradient. It replaces a message by its projection, so
// at most by nothing: then all of that micro-batch's first part is gone. 1F1B on two stages codes the last micro-batch
// alone, so the last `samples` sequences of the batch.
double most_lost(int samples) {
  return length(first_part(parts().tied.before, samples, kSamples - samples)) + rounding();
}

// The step's gradient and weights are within `allowed` of one rank's, and `broken` would not be.
void expect_near(const FirstUpdate& coded, double allowed, const Values& broken) {
  const FirstUpdate& one = parts().tied;
  const Values& want = one.gradient.at(kEmbedding);
  EXPECT_EQ(coded.before.at(kEmbedding), one.before.at(kEmbedding));
  EXPECT_LE(distance(coded.gradient.at(kEmbedding), want), allowed);
  EXPECT_LE(distance(coded.after.at(kEmbedding), one.after.at(kEmbedding)), 0.25 * (allowed + rounding()));
  EXPECT_GT(distance(broken, want), 1.3 * allowed) << "the defect would not be seen";
  std::printf("embedding gradient off %.3g, allowed %.3g, with the defect %.3g, of %.3g\n",
              distance(coded.gradient.at(kEmbedding), want), allowed, distance(broken, want), length(want));
}

// What is held against here: the two parts make up the tied gradient, and the head's really is the last part.
TEST(EmbeddingDefects, TheOracleKnowsTheTwoPartsApart) {
  Tensors untied = parts().tied.before;
  untied["head.weight"] = untied.at(kEmbedding);
  const FirstUpdate two = first_update({.family = "gpt2_untied"}, plain_rank(), kSamples, 0, untied);
  EXPECT_EQ(two.loss, parts().tied.loss);
  EXPECT_LE(distance(two.gradient.at("head.weight"), parts().last), rounding());
  EXPECT_GT(length(parts().first), 100 * rounding());
}

// Section 6, item 2: the reducer left the embedding out and copied its zeros back over the gradient.
TEST(EmbeddingDefects, FusedSynchronisationWithSelectiveCompressionLosesTheFirstStagesGradient) {
  for (const char* optimizer : {"replicated", "global"}) {
    const Layout layout{.pipeline = 2, .data = 2, .optimizer = optimizer, .accumulation = 6};
    SCOPED_TRACE(layout.name());
    const FirstUpdate all = first_update({}, under("optimus_cc_cb_fe_sc", layout), kSamples);
    expect_near(all, most_lost(4), parts().last);
    // Both compressions are at work: of the messages between stages, and of the first stage's matrices.
    EXPECT_GT(distance(all.gradient.at(kEmbedding), parts().tied.gradient.at(kEmbedding)), rounding());
    const char* const matrix = "layers.0.mlp.fc1.weight";
    const FirstUpdate fused = first_update({}, under("optimus_cc_cb_fe", layout), kSamples);
    EXPECT_GT(distance(all.gradient.at(matrix), fused.gradient.at(matrix)), 0.01 * length(fused.gradient.at(matrix)));
    // Selective compression is not for the embedding: not one bit of it. Two steps differ in the order of sums alone.
    EXPECT_EQ(all.gradient.at(kEmbedding), fused.gradient.at(kEmbedding));
    const FirstUpdate two_step = first_update({}, under("optimus_cc_cb", layout), kSamples);
    EXPECT_LE(distance(all.gradient.at(kEmbedding), two_step.gradient.at(kEmbedding)), rounding());
  }
}

// Item 1: one group of all ranks of both stages summed what belongs to different slices of the vocabulary.
TEST(EmbeddingDefects, FusedGroupMixesTensorRanks) {
  const Values& want = parts().tied.gradient.at(kEmbedding);
  const size_t half = want.size() / 2;
  Values mixed = want;
  for (size_t i = 0; i < half; ++i) mixed[i] += want[half + i], mixed[half + i] += want[i];
  for (const bool sequence_parallel : {false, true}) {
    const Layout layout{
        .pipeline = 2, .data = 2, .tensor = 2, .sequence_parallel = sequence_parallel, .accumulation = 6};
    SCOPED_TRACE(layout.name());
    const FirstUpdate coded = first_update({}, under("optimus_cc_cb_fe_sc", layout), kSamples);
    expect_near(coded, most_lost(4), mixed);
    EXPECT_GT(distance(parts().last, want), 1.3 * most_lost(4));
  }
}

// Item 3: the embedding was taken out of the data-parallel sum, for a step that one stage never reached.
TEST(EmbeddingDefects, FusedSynchronisationOnOneStageNeverHappens) {
  const FirstUpdate half = first_update({}, plain_rank(), kSamples / 2);
  Values own = half.gradient.at(kEmbedding);  // what data rank 0 has: its half of the samples counts half
  for (float& g : own) g *= 0.5f;
  for (const int tensor : {1, 2}) {
    const Layout layout{.data = 2, .tensor = tensor};
    SCOPED_TRACE(layout.name());
    expect_near(first_update({}, under("optimus_cc_cb_fe_sc", layout), kSamples), rounding(), own);
  }
}

}  // namespace
}  // namespace thinwire::mesh::embedding_defects_test
