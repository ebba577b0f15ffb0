// What each preset expands to, with the reason for every number that no paper gives.
#include "compression/preset_rules.h"

#include <algorithm>

namespace thinwire {
namespace {

constexpr Site kCodedSites[] = {Site::kTpForward,  Site::kTpBackward, Site::kPpForward,
                                Site::kPpBackward, Site::kDpGradient, Site::kZeroParameter,
                                Site::kEmbedding,  Site::kSequence,   Site::kOuter};

SiteRule plain(const std::string& codec) {
  SiteRule rule;
  rule.codec.codec = codec;
  return rule;
}

SiteRule cast_bf16() {
  SiteRule rule = plain("cast");
  rule.codec.format = "bf16";
  return rule;
}

SiteRule zfp(double rate) {
  SiteRule rule = plain("zfp");
  rule.codec.rate = rate;
  return rule;
}

SiteRule ecsq(double rate, int64_t block) {
  SiteRule rule = plain("ecsq");
  rule.codec.rate = rate;
  rule.codec.block = block;
  rule.codec.light = true;
  return rule;
}

SiteRule lloyd_max(int64_t bits) {
  SiteRule rule = plain("lloyd_max");
  rule.codec.bits = bits;
  rule.codec.block = 64;
  return rule;
}

SiteRule low_rank(int64_t rank) {
  SiteRule rule = plain("low_rank");
  rule.codec.rank = rank;
  return rule;
}

// Scales of gradients and differences are bf16 or fp32: fp16 would round them where they are small (below 6e-5 / 7).
CodecSpec block_int(int64_t bits, int64_t block, const std::string& scale) {
  CodecSpec spec;
  spec.codec = "block_int";
  spec.bits = bits;
  spec.block = block;
  spec.scale = scale;
  return spec;
}

SiteRule block_rule(int64_t bits, int64_t block, const std::string& scale) {
  SiteRule rule;
  rule.codec = block_int(bits, block, scale);
  return rule;
}

PresetRules everywhere(const SiteRule& rule) {
  PresetRules p;
  for (Site site : kCodedSites) p.rules[site] = rule;
  return p;
}

// Stages 0 .. k - 1, k = 75 % of them: 3 of 4 in the paper's scripts.
std::vector<int> early_stages(int pipeline) {
  std::vector<int> stages;
  for (int s = 0; s < std::max(1, pipeline * 3 / 4); ++s) stages.push_back(s);
  return stages;
}

// A share of the run; 100 updates where nobody knows how long it is.
int64_t warm_up(const PresetContext& c) {
  return c.train_iters > 0 ? c.train_iters / 10 : 100;
}

// 2-D tensors of the blocks and the tables, as systems that leave 1-D tensors alone see them.
const std::vector<TensorClass> kMatrices = {TensorClass::kEmbedding, TensorClass::kAttention, TensorClass::kMlp,
                                            TensorClass::kHead};

}  // namespace

PresetRules expand_none(const PresetContext&) {
  return {};
}

PresetRules expand_identity(const PresetContext&) {
  return everywhere(plain("identity"));
}

PresetRules expand_bf16_wire(const PresetContext&) {
  return everywhere(cast_bf16());
}

PresetRules expand_optimus_cc_cb_no_lep(const PresetContext&) {
  PresetRules p;
  SiteRule& rule = p.rules[Site::kPpBackward] = low_rank(16);
  rule.select.micro_batches = MicroBatches::kEpilogue;
  p.embedding_sync = "two_step";
  return p;
}

PresetRules expand_optimus_cc_cb(const PresetContext& c) {
  PresetRules p = expand_optimus_cc_cb_no_lep(c);
  p.rules[Site::kPpBackward].residual.kind = ResidualKind::kLazy;
  return p;
}

PresetRules expand_optimus_cc_cb_fe(const PresetContext& c) {
  PresetRules p = expand_optimus_cc_cb(c);
  p.embedding_sync = "fused";
  return p;
}

PresetRules expand_optimus_cc(const PresetContext& c) {
  PresetRules p = expand_optimus_cc_cb_fe(c);
  SiteRule& rule = p.rules[Site::kDpGradient] = low_rank(128);
  rule.residual.kind = ResidualKind::kErrorFeedback;
  rule.select.stages = early_stages(c.pipeline);
  rule.select.tensor_classes = {TensorClass::kAttention, TensorClass::kMlp};
  return p;
}

PresetRules expand_optimus_cc_emb(const PresetContext& c) {
  PresetRules p = expand_optimus_cc(c);
  // The gradient of a vocabulary has a row per word that occurred: far from low rank, so integers.
  SiteRule& rule = p.rules[Site::kEmbedding] = block_rule(4, 128, "bf16");
  rule.residual.kind = ResidualKind::kErrorFeedback;
  return p;
}

PresetRules expand_naive_zfp(const PresetContext&) {
  PresetRules p = everywhere(zfp(8.0));
  for (Site site : {Site::kTpForward, Site::kTpBackward, Site::kDpGradient, Site::kEmbedding})
    p.rules[site].algorithm = RuleAlgorithm::kRing;
  return p;
}

PresetRules expand_naive_mpc(const PresetContext&) {
  return everywhere(plain("mpc"));
}

PresetRules expand_mzhybrid(const PresetContext&) {
  PresetRules p = everywhere(plain("mpc"));
  for (Site site : {Site::kDpGradient, Site::kEmbedding, Site::kOuter}) p.rules[site] = zfp(8.0);
  return p;
}

PresetRules expand_zhybrid(const PresetContext&) {
  PresetRules p = everywhere(zfp(16.0));
  for (Site site : {Site::kDpGradient, Site::kEmbedding, Site::kOuter}) p.rules[site] = zfp(8.0);
  return p;
}

PresetRules expand_zeropp(const PresetContext& c) {
  PresetRules p;
  p.weights = p.gradients = p.optimizer = "global";
  if (c.two_level || c.ranks_per_node == 0) p.secondary = "node";
  p.rules[Site::kZeroParameter] = block_rule(8, 2048, "fp32");
  SiteRule& gradient = p.rules[Site::kDpGradient] = block_rule(4, 512, "fp32");
  gradient.select.tensor_classes = kMatrices;
  if (c.two_level) {
    gradient.algorithm = RuleAlgorithm::kTwoLevel;
    gradient.sum_codec = gradient.codec;
    gradient.has_sum_codec = true;
  }
  return p;
}

PresetRules expand_zero_topo(const PresetContext& c) {
  PresetRules p;
  const bool pairs = c.data % 2 == 0;
  p.weights = pairs ? "pair" : "replicated";
  // A node that holds no whole pairs is no level between pair and all.
  p.gradients = pairs && c.data_per_node % 2 != 0 ? "pair" : "node";
  p.optimizer = "global";
  p.rules[Site::kZeroParameter] = block_rule(8, 256, "fp32");
  p.rules[Site::kDpGradient] = block_rule(8, 256, "fp32");
  return p;
}

PresetRules expand_loco(const PresetContext& c) {
  PresetRules p;
  SiteRule& rule = p.rules[Site::kDpGradient] = block_rule(4, 256, "fp32");
  rule.residual.kind = ResidualKind::kEma;
  rule.residual.beta = 0.8;
  rule.residual.reset_every = 1024;
  rule.residual.on_skip = OnSkip::kZero;
  rule.select.tensor_classes = kMatrices;
  if (c.two_level) rule.algorithm = RuleAlgorithm::kTwoLevel;
  rule.sum_codec = rule.codec;
  rule.sum_residual = rule.residual;
  rule.has_sum_codec = true;
  return p;
}

PresetRules expand_sdp4bit(const PresetContext& c) {
  PresetRules p;
  p.weights = p.gradients = "replicated";
  p.optimizer = "global";
  SiteRule& weights = p.rules[Site::kZeroParameter] = block_rule(4, 2048, "fp32");
  if (c.weights_persist) weights.residual.kind = ResidualKind::kValueDifference;
  SiteRule& gradient = p.rules[Site::kDpGradient] = block_rule(4, 128, "fp32");
  gradient.codec.hadamard = true;
  if (c.two_level) {
    gradient.algorithm = RuleAlgorithm::kTwoLevel;
    gradient.sum_codec = gradient.codec;
    gradient.has_sum_codec = true;
    gradient.codec = block_int(8, 512, "fp32");
    gradient.codec.hadamard = true;
  }
  return p;
}

PresetRules expand_tagc(const PresetContext&) {
  PresetRules p;
  SiteRule& rule = p.rules[Site::kDpGradient] = plain("sketch");
  rule.codec.density = 0.2;
  rule.codec.ratio = 2.0;
  rule.residual.kind = ResidualKind::kErrorFeedback;
  rule.select.tensor_classes = {TensorClass::kEmbedding, TensorClass::kMlp, TensorClass::kHead};
  return p;
}

PresetRules expand_one_bit_adam(const PresetContext& c) {
  PresetRules p;
  p.weights = p.gradients = p.optimizer = "replicated";
  SiteRule& rule = p.rules[Site::kDpGradient] = plain("one_bit");
  rule.residual.kind = ResidualKind::kErrorFeedback;
  rule.sum_codec = rule.codec;
  rule.sum_residual = rule.residual;
  rule.has_sum_codec = true;
  rule.warmup_steps = warm_up(c);
  p.sends = "momentum";
  return p;
}

PresetRules expand_powersgd(const PresetContext& c) {
  PresetRules p;
  SiteRule& rule = p.rules[Site::kDpGradient] = low_rank(4);
  rule.codec.sides = 1;
  rule.codec.min_compression_rate = 2.0;
  rule.residual.kind = ResidualKind::kErrorFeedback;
  rule.select.tensor_classes = kMatrices;
  rule.warmup_steps = warm_up(c);
  return p;
}

PresetRules expand_thinwire(const PresetContext& c) {
  PresetRules p;
  p.adapt = true;
  // Gradients: 2.63 bits to their owner, sums 3.63 back. Small blocks rather than a transform: rows and columns of a
  // gradient differ much in size, and what spreads the large ones drowns the small (docs/presets.md has the losses).
  // Error feedback returns what the rounding took; sums have a residual of their own, at their owner. Tensor-parallel
  // ranks hold some tensors whole, among neighbours that differ: there, blocks that stay inside of a tensor, 3.13 bits
  // and 4.13 back.
  const bool entropy_coded = c.tensor == 1;
  SiteRule gradient = entropy_coded ? ecsq(2.5, 64) : lloyd_max(3);
  gradient.residual.kind = ResidualKind::kErrorFeedback;
  gradient.sum_codec = entropy_coded ? ecsq(3.5, 64).codec : lloyd_max(4).codec;
  gradient.sum_residual = gradient.residual;
  gradient.has_sum_codec = true;
  if (c.two_level) {  // the links inside a node are the fast ones: spend bits there
    gradient.codec = block_int(8, 128, "bf16");
    gradient.algorithm = RuleAlgorithm::kTwoLevel;
  }
  p.rules[Site::kDpGradient] = gradient;
  // The embedding's two stages are neighbours of nobody: no levels. Rows of rare words are zero, and integers have a
  // zero.
  SiteRule embedding = gradient;
  embedding.algorithm = RuleAlgorithm::kDirect;
  embedding.codec = embedding.sum_codec = block_int(4, 128, "bf16");
  p.rules[Site::kEmbedding] = embedding;
  // Weights: what a replica lacks after one update comes with the next difference, so 2.28 bits are enough (3.13 with
  // tensor parallelism); Adam makes neighbours' differences alike, so blocks are long. Where nothing persists to take a
  // difference to, 8 bits of the weights themselves.
  SiteRule& weights = p.rules[Site::kZeroParameter] = block_rule(8, 128, "bf16");
  if (c.weights_persist) {
    weights = entropy_coded ? ecsq(2.25, 256) : lloyd_max(3);
    weights.residual.kind = ResidualKind::kValueDifference;
  }
  // Activations and their gradients: 8 bits, no state to replay. Smaller blocks where a sum over ranks goes on from
  // them, 8.5 bits against 8.125.
  p.rules[Site::kPpForward] = p.rules[Site::kPpBackward] = block_rule(8, 128, "bf16");
  p.rules[Site::kTpForward] = p.rules[Site::kTpBackward] = block_rule(8, 32, "bf16");
  p.rules[Site::kSequence] = block_rule(8, 32, "bf16");
  return p;
}

}  // namespace thinwire
