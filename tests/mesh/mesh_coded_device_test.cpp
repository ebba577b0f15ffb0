// Training on devices that code what they send each other: every layout gives the bits and the bytes of the host's way,
// and nothing that ranks send each other touches the host (which run() counts). The codecs' kernels run on the
// emulation.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "compression/codec_table.h"
#include "compression/device_codec.h"
#include "engine/run/train/device_traffic_choice.h"
#include "tests/emulation/cuda_emulation.h"
#include "tests/mesh/mesh_harness.h"

namespace thinwire::mesh::mesh_coded_device_test {
namespace {

struct Case {
  Model model;
  Layout layout;
  int samples;
  std::vector<std::string> rules;  // of `compression.rules`
  int steps = 3;
};

Layout under_rules(const Case& c) {
  Layout layout = c.layout;
  std::string list;
  for (const std::string& rule : c.rules) list += (list.empty() ? "" : ", ") + rule;
  layout.more.push_back("compression.rules=[" + list + "]");
  return layout;
}

Layout on_device(Layout layout) {
  layout.fake_nccl = true;
  layout.kernels = &emulated_cuda_ops();
  return layout;
}

void expect_same(const Curve& host, const Curve& device) {
  EXPECT_EQ(host.loss, device.loss);
  EXPECT_EQ(host.norm, device.norm);
  EXPECT_EQ(host.wire, device.wire);
  EXPECT_EQ(host.end, device.end);  // weights, moments and residuals of all ranks
}

// Returns the curve of the last.
Curve expect_same_bits(const std::vector<Case>& cases) {
  EXPECT_NE(make_device_codec(codec_spec("block_int")), nullptr);  // the emulation's, not those of the build
  Curve device;
  for (const Case& c : cases) {
    const Layout layout = under_rules(c);
    SCOPED_TRACE(layout.name());
    const Curve host = run(c.model, layout, c.samples, c.steps);
    device = run(c.model, on_device(layout), c.samples, c.steps);
    expect_same(host, device);
  }
  return device;
}

std::string rule(const std::string& sites, const std::string& codec) {
  return R"({"site": [)" + sites + "], " + codec + "}";
}
const std::string kGradient = R"("dp.gradient", "embedding")", kParameter = R"("zero.parameter")";
const std::string kInt8 = R"("codec": "block_int", "bits": 8)", kCast = R"("codec": "cast")";
const std::string kFeedback = R"(, "residual": "error_feedback")";
const std::string kMx = R"("codec": "mx", "format": "mxfp8_e4m3")";

TEST(MeshCodedDevice, Gradients) {
  expect_same_bits({
      {kGpt2, {.data = 2}, 2, {rule(kGradient, kInt8 + kFeedback)}},
      {kGpt2, {.data = 3, .accumulation = 2}, 6, {rule(kGradient, kCast)}},
      {kLlama, {.data = 2, .tensor = 2}, 4, {rule(kGradient, kMx + R"(, "hadamard": true)" + kFeedback)}},
      {kGpt2,
       {.data = 2},
       2,
       {rule(kGradient, R"("codec": "block_int", "bits": 4, "residual": "error_feedback", "residual_dtype": "int8")")}},
  });
}

TEST(MeshCodedDevice, ShardedPlacements) {
  expect_same_bits({
      {kGpt2, zero(1, {.data = 2}), 2, {rule(kGradient, kInt8 + kFeedback), rule(kParameter, kInt8)}},
      {kTied, zero(2, {.data = 2, .accumulation = 2}), 4, {rule(kGradient, kMx), rule(kParameter, kCast)}},
      {kTied, zero(3, {.data = 3, .accumulation = 2}), 6, {rule(kGradient, kInt8), rule(kParameter, kInt8)}},
      {kGpt2,
       zero(1, {.data = 2, .tensor = 2, .accumulation = 2}),
       4,
       {rule(kGradient, kInt8), rule(kParameter, kInt8 + R"(, "residual": "value_difference")")}},
  });
}

TEST(MeshCodedDevice, SecondaryCopies) {
  Layout kept = zero(3, {.data = 4});
  kept.secondary = "node", kept.ranks_per_node = 2;
  kept.more = {"communication.reduce_scatter=direct", "communication.all_gather=direct",
               "communication.all_reduce=direct"};
  expect_same_bits({{kGpt2, kept, 4, {rule(kGradient, kInt8), rule(kParameter, kInt8)}}});
}

TEST(MeshCodedDevice, TensorRanks) {
  const std::string sites = R"("tp.forward", "tp.backward")";
  expect_same_bits({
      {kGpt2, {.tensor = 2}, 2, {rule(sites, kInt8)}},
      {kLlama, {.tensor = 3, .sequence_parallel = true, .recompute = "full"}, 3, {rule(sites, kInt8)}},
      {kNeox,
       {.data = 2, .tensor = 2, .sequence_parallel = true, .accumulation = 2},
       4,
       {rule(sites, kMx), rule(kGradient, kInt8 + kFeedback)}},
  });
}

TEST(MeshCodedDevice, Pipelines) {
  const std::string forward = R"("pp.forward")", backward = R"("pp.backward")";
  const std::string lazy = R"("codec": "block_int", "bits": 4, "residual": "lazy")";
  Layout parts{.pipeline = 2, .tensor = 2, .accumulation = 2};
  parts.more = {"scatter_gather_tensors_in_pipeline=true"};
  expect_same_bits({
      {kNeox, {.pipeline = 2, .schedule = "zb_h1", .accumulation = 3}, 3, {rule(forward, kInt8), rule(backward, lazy)}},
      {kNeox,
       {.pipeline = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 4},
       4,
       {rule(forward, kCast), rule(backward, kInt8)}},
      {kNeox, parts, 2, {rule(forward, kInt8), rule(backward, lazy)}},
      {kGpt2,
       zero(1, {.pipeline = 2, .data = 2, .embedding = "fused", .accumulation = 2}),
       4,
       {rule(backward, R"("codec": "block_int", "bits": 8, "select": {"micro_batches": "critical"})"),
        rule(forward, kCast), rule(kGradient, kInt8 + kFeedback), rule(kParameter, kInt8)}},
  });
}

// On the host the length of a framed payload goes ahead of it, in 8 bytes; on a device both ends know it before.
void expect_same_but_lengths(const Curve& host, Curve device, int messages) {
  const auto sum = [](const Curve& curve) { return std::accumulate(curve.wire.begin(), curve.wire.end(), 0.0); };
  EXPECT_EQ(sum(host) - sum(device), 8.0 * messages);
  device.wire = host.wire;
  expect_same(host, device);
}

const std::string kLowRank = R"("codec": "low_rank", "rank": 3, "residual": "lazy")";

// Messages that are factored stay between devices.
TEST(MeshCodedDevice, LowRankOnEdges) {
  const std::string forward = R"("pp.forward")", backward = R"("pp.backward")";
  Layout parts{.pipeline = 2, .tensor = 2, .accumulation = 2};
  parts.more = {"scatter_gather_tensors_in_pipeline=true"};
  const std::pair<Case, int> cases[] = {
      {{kNeox,
        {.pipeline = 2, .schedule = "zb_h1", .accumulation = 3},
        3,
        {rule(forward, kInt8), rule(backward, kLowRank)}},
       3},
      {{kNeox,
        {.pipeline = 2, .schedule = "interleaved", .chunks = 2, .accumulation = 4},
        4,
        {rule(forward, R"("codec": "low_rank", "rank": 5)"), rule(backward, kLowRank)}},
       24},
      {{kNeox, parts, 2, {rule(backward, kLowRank + R"(, "residual_dtype": "bf16")")}}, 8},
      {{kGpt2,
        zero(1, {.pipeline = 2, .data = 2, .embedding = "fused", .accumulation = 2}),
        4,
        {rule(backward, kLowRank + R"(, "select": {"micro_batches": "epilogue"})"), rule(forward, kCast)}},
       2},
  };
  for (const auto& [c, messages] : cases) {
    const Layout layout = under_rules(c);
    SCOPED_TRACE(layout.name());
    const Curve host = run(c.model, layout, c.samples, c.steps);
    expect_same_but_lengths(host, run(c.model, on_device(layout), c.samples, c.steps), messages);
  }
}

// Warm factors and how many messages there were: skipped steps take them back, checkpoints carry them either way.
TEST(MeshCodedDevice, LowRankKeepsWhatTheHostKeeps) {
  Layout edges{.pipeline = 2, .accumulation = 2};
  const std::vector<std::string> rules = {rule(R"("pp.backward")", kLowRank)};
  Layout scaled = edges;
  scaled.more = {"fp16.initial_scale_power=24", "fp16.hysteresis=1"};
  const Case skips{{.family = "gpt2", .layers = 2, .dtype = "fp16"}, scaled, 2, rules, 10};
  const Curve curve = run(skips.model, under_rules(skips), skips.samples, skips.steps);
  expect_same_but_lengths(curve, run(skips.model, on_device(under_rules(skips)), skips.samples, skips.steps), 2);
  const auto skipped = std::count(curve.norm.begin(), curve.norm.end(), -1.0);
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 10);
  const Layout host = under_rules({kGpt2, edges, 2, rules}), device = on_device(host);
  const Curve undisturbed = run(kGpt2, host, 2, 6);
  for (const auto& [first, then] : {std::pair(device, device), {device, host}, {host, device}})
    expect_same_but_lengths(undisturbed, run_resumed(kGpt2, first, then, 2, 6, 3), then.fake_nccl ? 2 : 0);
}

// Factors are summed between devices, with residuals and warm starts there.
TEST(MeshCodedDevice, LowRankSums) {
  const auto sums = [](const std::string& more) {
    return rule(R"("dp.gradient")", R"("codec": "low_rank", "rank": 3)" + more);
  };
  const std::string sides = R"(, "sides": 1)";
  expect_same_bits({
      {kGpt2, {.data = 2}, 2, {sums(kFeedback)}},
      {kGpt2, {.data = 3, .accumulation = 2}, 6, {sums(sides + kFeedback + R"(, "on_skip": "zero")")}},
      {kLlama, zero(2, {.data = 2, .tensor = 2}), 4, {sums(sides + kFeedback), rule(kParameter, kInt8)}},
      {kTied, zero(3, {.data = 3, .accumulation = 2}), 6, {sums(kFeedback)}},
      {kGpt2,
       zero(1, {.pipeline = 2, .data = 2, .embedding = "fused", .accumulation = 2}),
       4,
       {rule(R"("pp.forward")", kCast), sums(kFeedback + R"(, "select": {"tensor_classes": ["mlp"]})")}},
  });
}

TEST(MeshCodedDevice, LowRankSumsKeepWhatTheHostKeeps) {
  const std::vector<std::string> rules = {
      rule(R"("dp.gradient")", R"("codec": "low_rank", "rank": 3, "sides": 1, "residual": "error_feedback")")};
  Layout scaled{.data = 2};
  scaled.more = {"fp16.initial_scale_power=24", "fp16.hysteresis=1"};
  const Case skips{{.family = "gpt2", .layers = 2, .dtype = "fp16"}, scaled, 2, rules, 10};
  const Curve curve = run(skips.model, under_rules(skips), skips.samples, skips.steps);
  expect_same(curve, run(skips.model, on_device(under_rules(skips)), skips.samples, skips.steps));
  const auto skipped = std::count(curve.norm.begin(), curve.norm.end(), -1.0);
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 10);
  const Layout host = under_rules({kGpt2, {.data = 2}, 2, rules}), device = on_device(host);
  const Curve undisturbed = run(kGpt2, host, 2, 6);
  for (const auto& [first, then] : {std::pair(device, device), {device, host}, {host, device}})
    expect_same(undisturbed, run_resumed(kGpt2, first, then, 2, 6, 3));
}

TEST(MeshCodedDevice, LongSequences) {
  const std::vector<std::string> rules = {rule(R"("sequence.forward", "sequence.backward")", kInt8)};
  expect_same_bits({
      {kLlama, {.context = 2, .more = {"cp_comm_type=all_gather"}}, 2, rules},
      {kLlama, {.context = 3, .more = {"cp_comm_type=p2p"}}, 2, rules},
      {kGpt2, {.context = 2, .more = {"cp_comm_type=a2a"}}, 2, rules},
  });
}

// What a step wrote that is skipped comes back, or is zero, as on the host; the flag comes from what devices packed.
TEST(MeshCodedDevice, SkippedSteps) {
  for (const char* on_skip : {"restore", "zero"}) {
    Layout layout{.data = 2, .optimizer = "global", .accumulation = 2};
    layout.more = {"fp16.initial_scale_power=24", "fp16.hysteresis=1"};
    const std::string feedback = kFeedback + R"(, "on_skip": ")" + on_skip + "\"";
    const Curve curve = expect_same_bits({{{.family = "gpt2", .layers = 2, .dtype = "fp16"},
                                           layout,
                                           4,
                                           {rule(kGradient, kInt8 + feedback), rule(kParameter, kInt8)},
                                           10}});
    const auto skipped = std::count(curve.norm.begin(), curve.norm.end(), -1.0);
    EXPECT_GT(skipped, 0);
    EXPECT_LT(skipped, 10);
  }
}

// Residuals of devices go into checkpoints as those of the host, and come back: to a device, and to the host.
TEST(MeshCodedDevice, ResumesAsTheHostDoes) {
  const Case c{kGpt2,
               zero(1, {.pipeline = 2, .data = 2, .accumulation = 2}),
               4,
               {rule(kGradient, R"("codec": "block_int", "bits": 4, "residual": "ema")"),
                rule(kParameter, kInt8 + R"(, "residual": "value_difference")"),
                rule(R"("pp.backward")", R"("codec": "mx", "residual": "lazy", "residual_dtype": "bf16")")}};
  const Layout host = under_rules(c), device = on_device(host);
  const Curve undisturbed = run(c.model, host, c.samples, 6);
  for (const auto& [first, then] : {std::pair(device, device), {device, host}, {host, device}})
    expect_same(undisturbed, run_resumed(c.model, first, then, c.samples, 6, 3));
}

TEST(MeshCodedDevice, SaysWhatGoesThroughTheHost) {
  CompressionConfig compression;
  SiteRule covered, sparse, mixed, checked, thin, sketch;
  covered.codec = mixed.codec = checked.codec = codec_spec("block_int");
  checked.codec.checksum = true;
  sparse.codec = codec_spec("top_k");
  thin.codec = codec_spec("low_rank"), sketch.codec = codec_spec("sketch");
  mixed.has_sum_codec = true, mixed.sum_codec = codec_spec("ecsq", {{"rate", 3.5}});
  compression.rules = {{Site::kPpBackward, {sparse, covered, thin}},
                       {Site::kDpGradient, {covered, mixed, checked, thin, sketch}}};
  EXPECT_EQ(sites_through_host(compression),
            "pp.backward (top_k), dp.gradient (block_int, ecsq), dp.gradient (block_int, checksum), "
            "dp.gradient (sketch)");
}

// Of a unit's messages all go through the host, with their residuals, where one has to; others stay between devices.
TEST(MeshCodedDevice, RulesThatDevicesKnowInPart) {
  const auto of = [](const std::string& classes, const std::string& codec) {
    return rule(R"("dp.gradient")", codec + R"(, "select": {"tensor_classes": [)" + classes + "]}");
  };
  const std::string mlp = of(R"("mlp")", kInt8 + kFeedback), parameter = rule(kParameter, kInt8);
  const Layout layout = zero(1, {.data = 2, .accumulation = 2});
  expect_same_bits({{kGpt2, layout, 4, {mlp, parameter}}});
  Layout stages = layout;
  stages.stages = true;
  expect_same_bits(
      {{kGpt2, stages, 4, {mlp, of(R"("attention")", R"("codec": "top_k", "density": 0.1)" + kFeedback), parameter}}});
}

// Rings code at every hop; two levels have a compression each, or none between nodes. The price of plain messages is
// that of the host's direct algorithms.
TEST(MeshCodedDevice, RingsAndTwoLevels) {
  const std::string ring = R"(, "algorithm": "ring")", levels = R"(, "algorithm": "two_level")";
  Layout nodes{.data = 4, .ranks_per_node = 2};
  nodes.more = {"communication.reduce_scatter=direct", "communication.all_gather=direct",
                "communication.all_reduce=direct"};
  expect_same_bits({
      {kGpt2, {.data = 3}, 3, {rule(kGradient, kInt8 + kFeedback + ring)}},
      {kGpt2, zero(2, {.data = 4, .accumulation = 2}), 8, {rule(kGradient, kInt8 + ring)}},
      {kGpt2, nodes, 4, {rule(kGradient, kInt8 + kFeedback + levels)}},
      {kGpt2, nodes, 4, {rule(kGradient, kInt8 + levels + R"(, "sum": {"codec": "identity"})")}},
      {kGpt2,
       zero(3, nodes),
       4,
       {rule(kGradient, R"("codec": "block_int", "bits": 4, "sum": {"codec": "mx"})" + levels),
        rule(kParameter, kInt8)}},
  });
}

}  // namespace
}  // namespace thinwire::mesh::mesh_coded_device_test
