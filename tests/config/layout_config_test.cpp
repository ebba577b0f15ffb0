// Layout keys: what is refused with its place and its remedy, what is accepted, other trainers' spellings, words for a
// layout.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/run/config/layout_text.h"
#include "tests/config/config_test_support.h"

namespace thinwire::layout_config_test {
namespace {

constexpr const char* kZero3 = "\"zero_optimization\": {\"stage\": 3}";

ResolvedConfig resolved(const std::string& extra, int64_t ranks = 0) {
  return load_config_text({{"a.json", with(extra)}}, {}, {.ranks = ranks});
}

LayoutConfig layout(const std::string& extra, int64_t ranks = 0) {
  return resolved(extra, ranks).run.layout;
}

bool noted(const ResolvedConfig& config, const std::string& key, const std::string& word = "") {
  return std::any_of(config.notes.begin(), config.notes.end(),
                     [&](const ConfigNote& n) { return n.key == key && n.text.find(word) != std::string::npos; });
}

std::string placement(const std::string& levels) {
  return with("\"placement\": {" + levels + "}");
}

TEST(LayoutConfigBad, ChunksOfTokens) {
  expect_refused({
      {"under sequence parallelism",
       with("\"model_parallel_size\": 2, \"sequence_parallel\": true,\n\"sequence_chunk_size\": 8"),
       {"a.json:4:24: sequence_chunk_size: ", "say sequence_parallel false"}},
      {"disk under sequence parallelism",
       with("\"model_parallel_size\": 2, \"sequence_parallel\": true,\n\"activation_offload\": \"disk\""),
       {"a.json:4:23: activation_offload: ", "say sequence_parallel false"}},
      {"with exchanged heads",
       with("\"context_parallel_size\": 2, \"cp_comm_type\": \"a2a\", \"sequence_chunk_size\": 8, "
            "\"train_batch_size\": null"),
       {"sequence_chunk_size: chunks need cp_comm_type all_gather, not a2a"}},
      {"with split backward passes",
       with("\"pipe_parallel_size\": 2, \"schedule\": \"zb_h1\", \"sequence_chunk_size\": 8"),
       {"sequence_chunk_size: schedule zb_h1 keeps gradients of all tokens"}},
      {"disk of a GPU",
       with("\"device\": \"cuda\", \"activation_offload\": \"disk\""),
       {"activation_offload: disk is for CPUs", "say host"}},
      {"host under sequence parallelism",
       with("\"device\": \"cuda\", \"model_parallel_size\": 2, \"sequence_parallel\": true,\n"
            "\"activation_offload\": \"host\""),
       {"a.json:4:23: activation_offload: ", "say sequence_parallel false"}},
      {"another word", with("\"sequence_chunk_size\": \"all\""), {"sequence_chunk_size: ", "allowed: auto"}},
      {"negative", with("\"sequence_chunk_size\": -1"), {"-1 is out of bounds"}},
      {"another place", with("\"activation_offload\": \"tape\""), {"none | host | disk"}},
  });
}

TEST(LayoutConfig, ChunksOfTokens) {
  const auto model = [](const std::string& extra) { return resolved(extra).run.model; };
  EXPECT_EQ(model("\"seed\": 1").sequence_chunk, 0);
  EXPECT_EQ(model("\"sequence_chunk_size\": 8").sequence_chunk, 8);
  EXPECT_EQ(model("\"sequence_chunk_size\": \"auto\"").sequence_chunk, 0);  // 32 tokens fit
  const std::string text = without("seq_length", "\"seq_length\": 1000000, \"sequence_chunk_size\": \"auto\"");
  const ModelConfig longer = load_config_text({{"a.json", text}}, {}, {}).run.model;
  EXPECT_GT(longer.sequence_chunk, 255);
  EXPECT_LT(longer.sequence_chunk, 1000000);
  EXPECT_EQ(longer.sequence_chunk % 64, 0);
  // A sequence is one chunk on disk unless chunks are asked for.
  EXPECT_EQ(model("\"activation_offload\": \"disk\"").sequence_chunk, 32);
  EXPECT_EQ(model("\"activation_offload\": \"disk\"").offload, Offload::kDisk);
  EXPECT_EQ(model("\"activation_offload\": \"disk\", \"sequence_chunk_size\": 8").sequence_chunk, 8);
  const ResolvedConfig host = resolved("\"activation_offload\": \"host\"");
  EXPECT_EQ(host.run.model.offload, Offload::kNone);
  EXPECT_TRUE(noted(host, "activation_offload", "already"));
  // DeepSpeed's flags.
  EXPECT_EQ(model("\"ds_sequence_parallel_fpdt\": true, \"ds_sequence_parallel_fpdt_chunk_size\": 16").sequence_chunk,
            16);
  EXPECT_EQ(model("\"ds_sequence_parallel_fpdt\": true").sequence_chunk, 65536);
  const std::string nulled = "\"ds_sequence_parallel_fpdt\": true, \"sequence_chunk_size\": null";
  EXPECT_EQ(model(nulled).sequence_chunk, 65536);
  const std::vector<ConfigSource> both = {{"a.json", with("\"sequence_chunk_size\": 16")},
                                          {"b.json", "{" + nulled + "}"}};
  EXPECT_EQ(load_config_text(both, {}).run.model.sequence_chunk, 65536) << "null takes back what was said before";
  EXPECT_EQ(model("\"ds_sequence_parallel_fpdt\": false").sequence_chunk, 0);
  EXPECT_TRUE(noted(resolved("\"ds_sequence_parallel_fpdt_offloading\": true"), "activation_offload", "already"));
  // On a GPU it means what it says.
  for (const char* key : {"\"activation_offload\": \"host\"", "\"ds_sequence_parallel_fpdt_offloading\": true"}) {
    const ResolvedConfig gpu = resolved(std::string("\"device\": \"cuda\", ") + key);
    EXPECT_EQ(gpu.run.model.offload, Offload::kHost);
    EXPECT_EQ(gpu.run.model.sequence_chunk, 32);
    EXPECT_FALSE(noted(gpu, "activation_offload", ""));
  }
}

TEST(LayoutConfig, OtherRanksThanTheConfigurationIsMeantForAreNoted) {
  EXPECT_TRUE(noted(resolved("\"global_num_gpus\": 4", 2), "global_num_gpus", "the number of ranks is 2"));
  EXPECT_FALSE(noted(resolved("\"global_num_gpus\": 2", 2), "global_num_gpus"));
}

TEST(LayoutConfigBad, TensorAndPipeline) {
  expect_refused({
      {"heads",
       with("\"tensor_model_parallel_size\": 3"),
       {"a.json:3:31: tensor_model_parallel_size: model_parallel_size 3 must divide num_attention_heads 8"}},
      {"more ranks than heads", with("\"model_parallel_size\": 16"), {"16 must divide num_attention_heads 8"}},
      {"KV heads only",
       with("\"num_kv_heads\": 2,\n\"model_parallel_size\": 4"),
       {"a.json:4:24: model_parallel_size: ", "must divide num_kv_heads 2", "whole heads"}},
      {"feed-forward narrower than ranks",
       with("\"model_parallel_size\": 8, \"ffn_hidden_size\": 6"),
       {"model_parallel_size 8 leaves ranks without a part of ffn_hidden_size (6)"}},
      {"vocabulary smaller than ranks",
       without("vocab_size", "\"vocab_size\": 5, \"make_vocab_size_divisible_by\": 1, \"model_parallel_size\": 8"),
       {"leaves ranks without a part of vocab_size (5)"}},
      {"negative tensor ranks", with("\"model_parallel_size\": -2"), {"model_parallel_size: -2 is out of bounds"}},
      {"stages of nothing", with("\"pipe_parallel_size\": 8"), {"a.json:3:23: ", "8 pipeline stages", "4"}},
      {"schedule by another name", with("\"schedule\": \"one_f_one_b\""), {"gpipe | 1f1b | interleaved | zb_h1"}},
      {"schedule as number", with("\"schedule\": 1"), {"a.json:3:13: schedule: must be string"}},
      {"interleaved without chunks",
       with("\"pipe_parallel_size\": 2, \"schedule\": \"interleaved\""),
       {"a.json:3:38: schedule: interleaved needs virtual_chunks of at least 2"}},
      {"chunks with gpipe",
       with("\"pipe_parallel_size\": 2, \"schedule\": \"gpipe\", \"virtual_chunks\": 2"),
       {"virtual_chunks: 2 chunks", "need schedule interleaved, not gpipe"}},
      {"chunks with zero bubble",
       with("\"pipe_parallel_size\": 2, \"schedule\": \"zb_h1\", \"virtual_chunks\": 2"),
       {"not zb_h1"}},
      {"too many chunks",
       with("\"pipe_parallel_size\": 2,\n\"schedule\": \"interleaved\",\n\"virtual_chunks\": 3"),
       {"a.json:5:19: virtual_chunks: 2 stages of 3 chunks need at least 6 layers; num_layers is 4"}},
      {"no chunks", with("\"virtual_chunks\": 0"), {"virtual_chunks: 0 is out of bounds"}},
      {"chunks twice",
       with("\"virtual_chunks\": 2, \"virtual_pipeline_model_parallel_size\": 2"),
       {"virtual_pipeline_model_parallel_size: given twice"}},
      {"chunks and layers per chunk",
       with("\"virtual_chunks\": 2, \"num_layers_per_virtual_pipeline_stage\": 1"),
       {"num_layers_per_virtual_pipeline_stage: contradicts \"virtual_chunks\""}},
      {"layers per chunk do not fit",
       with("\"pipe_parallel_size\": 2, \"schedule\": \"interleaved\", \"num-layers-per-virtual-pipeline-stage\": 3"),
       {"num-layers-per-virtual-pipeline-stage: 4 layers are not a multiple of pipe_parallel_size 2 * 3"}},
      {"layers per chunk with another schedule",
       with("\"pipe_parallel_size\": 2, \"schedule\": \"1f1b\", \"num_layers_per_virtual_pipeline_stage\": 1"),
       {"num_layers_per_virtual_pipeline_stage: 2 chunks", "need schedule interleaved"}},
      {"partition by class",
       with("\"pipe-partition-method\": \"type:norm\""),
       {"a.json:3:26: pipe-partition-method: \"type:norm\" is not supported", "uniform | parameters | time"}},
      {"partition unknown", with("\"pipe_partition_method\": \"flops\""), {"is not an allowed value", "uniform"}},
      {"two costs", with("\"pipe_partition_costs\": [1, 2]"), {"pipe_partition_costs: must hold three numbers"}},
      {"free layers", with("\"pipe_partition_costs\": [0, 2, 1]"), {"layer (above 0)"}},
      {"negative cost", with("\"pipe_partition_costs\": [1, -2, 1]"), {"-2 is out of bounds"}},
      {"given counts", with("\"decoder_first_pipeline_num_layers\": 1"), {"pipe_partition_method"}},
  });
}

TEST(LayoutConfigBad, RanksAndBatch) {
  expect_refused({
      {"remainder",
       with("\"pipe_parallel_size\": 2,\n\"model_parallel_size\": 2"),
       {"a.json:3:23: pipe_parallel_size: 6 ranks are not a multiple of pipe_parallel_size 2 * model_parallel_size 2: "
        "take 4 or a multiple"},
       {},
       {.ranks = 6}},
      {"fewer ranks than stages", with("\"pipe_parallel_size\": 4"), {"2 ranks are not a multiple"}, {}, {.ranks = 2}},
      {"batch over data-parallel ranks",
       with("\"gradient_accumulation_steps\": 4"),
       {"a.json:3:32: gradient_accumulation_steps: train_batch_size 8 is not", "4 * 2 data-parallel ranks = 16"},
       {},
       {.ranks = 2}},
      {"batch not divisible by data-parallel ranks",
       with("\"model_parallel_size\": 2"),
       {"train_batch_size 8 is not a multiple of train_micro_batch_size_per_gpu 2 * 3 data-parallel ranks"},
       {},
       {.ranks = 6}},
      {"ramp and data-parallel ranks",
       with("\"rampup_batch_size\": [2, 2, 100]"),
       {"rampup_batch_size: ", "multiples of 4 (train_micro_batch_size_per_gpu * data-parallel ranks)"},
       {},
       {.ranks = 2}},
      {"data-parallel size as a key", with("\"data_parallel_size\": 2"), {"nearest key: global_num_gpus"}},
      {"ranks per node negative", with("\"ranks_per_node\": -1"), {"ranks_per_node: -1 is out of bounds"}},
      {"ranks per node by another name", with("\"gpus_per_node\": 8"), {"nearest key: ranks_per_node"}},
  });
}

TEST(LayoutConfigBad, Placement) {
  expect_refused({
      {"level", placement("\"gradients\": \"host\""), {"a.json:3:28: ", "replicated | pair | node | global"}},
      {"level as number", placement("\"optimizer\": 2"), {"placement.optimizer: must be string"}},
      {"unknown member", placement("\"master\": \"global\""), {"placement.master: unknown key"}},
      {"placement as a word", with("\"placement\": \"zero3\""), {"placement: must be an object"}},
      {"weights wider than gradients",
       placement("\"weights\": \"global\""),
       {"a.json:3:26: placement.weights: placement.weights global is wider than placement.gradients replicated"}},
      {"gradients wider than optimizer",
       placement("\"gradients\": \"node\", \"optimizer\": \"pair\""),
       {"placement.gradients: ", "wider than placement.optimizer pair", "widths nest"}},
      {"stage 3 with narrow gradients",
       with(std::string(kZero3) + ", \"placement\": {\"gradients\": \"pair\"}"),
       {"placement.gradients: placement.weights global is wider than placement.gradients pair"}},
      {"stage 2 with replicated optimizer",
       with("\"zero_stage\": 2, \"placement\": {\"optimizer\": \"replicated\"}"),
       {"placement.optimizer: placement.gradients global is wider"}},
      {"secondary of replicated weights",
       with("\"zero_stage\": 2, \"placement\": {\"secondary\": \"pair\"}"),
       {"placement.secondary: a secondary copy needs sharded weights"}},
      {"hpZ of replicated weights",
       with("\"zero_optimization\": {\"stage\": 1, \"zero_hpz_partition_size\": 8}"),
       {"zero_optimization.zero_hpz_partition_size: a secondary copy needs sharded weights"}},
      {"hpZ twice",
       with("\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 8}, \"placement\": {\"secondary\": "
            "\"pair\"}"),
       {"zero_hpz_partition_size: contradicts \"placement.secondary\""}},
      {"hpZ of none", with("\"zero_optimization\": {\"zero_hpz_partition_size\": 0}"), {"0 is out of bounds"}},
      {"secondary as wide as the weights",
       with(std::string(kZero3) + ", \"placement\": {\"secondary\": \"global\"}"),
       {"placement.secondary: the secondary copy must be narrower than placement.weights global"}},
      {"secondary wider than the weights",
       with(std::string(kZero3) + ", \"placement\": {\"weights\": \"pair\", \"secondary\": \"node\"}"),
       {"narrower than placement.weights pair"}},
      {"odd pairs",
       without("train_batch_size", "\"placement\": {\"optimizer\": \"pair\"}"),
       {"a.json:3:28: placement.optimizer: a pair needs an even number of data-parallel ranks; there are 3"},
       {},
       {.ranks = 3}},
      {"nodes do not hold equally many",
       without("train_batch_size", "\"placement\": {\"optimizer\": \"node\"},\n\"ranks_per_node\": 4"),
       {"a.json:4:19: ranks_per_node: placement.optimizer node: nodes of 4 ranks", "6 ranks of each"},
       {},
       {.ranks = 6}},
      {"tensor ranks across nodes",
       with("\"placement\": {\"optimizer\": \"node\"},\n\"ranks_per_node\": 3, \"model_parallel_size\": 2"),
       {"ranks_per_node: placement.optimizer node: ", "model_parallel_size 2"},
       {},
       {.ranks = 8}},
      {"hold", with("\"hold\": \"forever\""), {"a.json:3:9: hold: ", "auto | unit | micro_batch | step"}},
      {"hold twice", with("\"hold\": \"unit\", \"placement\": {\"hold\": \"unit\"}"), {"placement.hold: given twice"}},
      {"embedding", with("\"embedding_sync\": \"3d\""), {"embedding_sync: ", "fused | two_step"}},
  });
}

TEST(LayoutConfigBad, CommunicationWatchdogTrace) {
  expect_refused({
      {"algorithm", with("\"communication\": {\"all_reduce\": \"tree\"}"), {"auto | direct | ring | two_level"}},
      {"the library's", with("\"communication\": {\"all_gather\": \"library\"}"), {"auto | direct | ring | two_level"}},
      {"verb", with("\"communication\": {\"broadcast\": \"ring\"}"), {"communication.broadcast: unknown key"}},
      {"odd chunks", with("\"communication\": {\"chunk_bytes\": 1000}"), {"1000 is not a multiple of 64"}},
      {"tiny chunks",
       with("\"communication\": {\"chunk_bytes\": 8}"),
       {"communication.chunk_bytes: 8 is out of bounds"}},
      {"negative size", with("\"communication\": {\"small_bytes\": -1}"), {"-1 is out of bounds"}},
      {"communication as word", with("\"communication\": \"ring\""), {"communication: must be an object"}},
      {"watchdog", with("\"watchdog_seconds\": -5"), {"watchdog_seconds: -5 is out of bounds"}},
      {"watchdog text", with("\"watchdog_seconds\": \"10min\""), {"watchdog_seconds: must be number"}},
      {"two timeouts",
       with("\"watchdog_seconds\": 60, \"distributed_timeout_minutes\": 10"),
       {"distributed_timeout_minutes: contradicts \"watchdog_seconds\" at a.json:3:21"}},
      {"trace as path", with("\"trace\": \"trace.json\""), {"trace: must be boolean"}},
      {"no steps", with("\"trace_steps\": 0"), {"a.json:3:16: trace_steps: must be a number of steps"}},
      {"three steps", with("\"trace_steps\": [1, 2, 3]"), {"trace_steps: must be"}},
      {"fraction of a step", with("\"trace_steps\": [1.5, 2]"), {"trace_steps: must be"}},
      {"no integer at all", with("\"trace_steps\": [1e300, 2]"), {"trace_steps: must be"}},
      {"words", with("\"trace_steps\": \"all\""), {"trace_steps: must be"}},
      {"backwards", with("\"trace_steps\": \"9-5\""), {"trace_steps: ends at step 5 before it starts at 9"}},
      {"from nothing", with("\"trace_steps\": [0, 5]"), {"steps count from 1"}},
      {"link", with("\"link_gbps\": -1"), {"link_gbps: -1 is out of bounds"}},
      {"overlap", with("\"zero_optimization\": {\"overlap_comm\": 1}"), {"overlap_comm: must be boolean"}},
  });
}

// One layout can be wrong in many ways; nobody should mend it one message at a time.
TEST(LayoutConfigBad, AllAtOnce) {
  const std::string message = refusal(
      with("\"model_parallel_size\": 3,\n\"num_kv_heads\": 4,\n\"pipe_parallel_size\": 9,\n\"virtual_chunks\": 2,\n"
           "\"placement\": {\"weights\": \"node\", \"secondary\": \"global\"},\n\"trace_steps\": 0,\n"
           "\"communication\": {\"chunk_bytes\": 100}"),
      {}, {.ranks = 4});
  for (const char* fragment : {"must divide num_attention_heads 8", "must divide num_kv_heads 4", "9 pipeline stages",
                               "4 ranks are not a multiple of pipe_parallel_size 9 * model_parallel_size 3",
                               "wider than placement.gradients", "must be narrower", "trace_steps", "multiple of 64"})
    EXPECT_NE(message.find(fragment), std::string::npos) << fragment << "\n" << message;
}

TEST(LayoutConfig, TwoLevelsNeedNodesOfSeveralRanks) {
  const std::string nodes = "\"communication\": {\"all_reduce\": \"two_level\"}, \"ranks_per_node\": ";
  EXPECT_TRUE(noted(resolved(nodes + "1", 4), "communication.all_reduce", "two_level is auto"));
  EXPECT_FALSE(noted(resolved(nodes + "2", 4), "communication.all_reduce"));
}

TEST(LayoutConfigGood, DerivedRanks) {
  const LayoutConfig cube = layout("\"pipe_parallel_size\": 2, \"model_parallel_size\": 2", 8);
  EXPECT_EQ(std::tie(cube.pipeline, cube.data, cube.tensor), std::make_tuple(2, 2, 2));
  const ResolvedConfig four = resolved("\"model_parallel_size\": 1", 4);
  EXPECT_EQ(four.run.layout.data, 4);
  EXPECT_EQ(four.run.accumulation, 1);
  EXPECT_EQ(resolved("\"pipe_parallel_size\": 4", 4).run.accumulation, 4);  // fewer data-parallel ranks, more work each
  EXPECT_EQ(resolved("\"rampup_batch_size\": [4, 4, 100]", 2).run.data.ramp_start, 4);
  EXPECT_EQ(layout("\"num_kv_heads\": 4, \"model_parallel_size\": 4", 4).tensor, 4);
}

TEST(LayoutConfigGood, Defaults) {
  const LayoutConfig l = layout("\"seed\": 1");
  EXPECT_EQ(l.schedule_kind, ScheduleKind::k1f1b);
  EXPECT_EQ(l.virtual_chunks, 1);
  EXPECT_EQ(l.partition, PartitionMethod::kUniform);
  EXPECT_FALSE(l.hold_given || l.trace || l.costs_given || l.sequence_parallel);
  EXPECT_TRUE(l.overlap_communication);
  EXPECT_EQ(l.embedding_sync, EmbeddingSyncKind::kFused);
  EXPECT_EQ(l.watchdog_seconds, 600.0);
  EXPECT_EQ(l.ranks_per_node, 0);
  EXPECT_EQ(l.tuning.all_reduce, Algorithm::kAuto);
  EXPECT_EQ(std::tie(l.trace_first, l.trace_steps), std::make_tuple(0, 20));
  // The table repeats CommTuning's own defaults.
  EXPECT_EQ(l.tuning.chunk_bytes, CommTuning{}.chunk_bytes);
  EXPECT_EQ(l.tuning.small_bytes, CommTuning{}.small_bytes);
  EXPECT_EQ(l.watchdog_seconds, LayoutConfig{}.watchdog_seconds);
}

TEST(LayoutConfigGood, Schedules) {
  const auto kind = [](const std::string& s) {
    return layout("\"pipe_parallel_size\": 2, \"virtual_chunks\": " + std::string(s == "interleaved" ? "2" : "1") +
                      ", \"schedule\": \"" + s + "\"",
                  2)
        .schedule_kind;
  };
  EXPECT_EQ(kind("gpipe"), ScheduleKind::kGpipe);
  EXPECT_EQ(kind("GPipe"), ScheduleKind::kGpipe);
  EXPECT_EQ(kind("1F1B"), ScheduleKind::k1f1b);
  EXPECT_EQ(kind("interleaved"), ScheduleKind::kInterleaved);
  EXPECT_EQ(kind("zb-h1"), ScheduleKind::kZbH1);
  // One stage: any schedule is accepted and said to have no effect.
  EXPECT_TRUE(noted(resolved("\"schedule\": \"interleaved\""), "schedule", "no effect"));
  EXPECT_EQ(layout("\"schedule\": \"interleaved\", \"virtual_chunks\": 3").pipeline, 1);
  const std::string two = "\"pipe_parallel_size\": 2, \"schedule\": \"interleaved\", ";
  EXPECT_EQ(layout(two + "\"virtual_pipeline_model_parallel_size\": 2", 2).virtual_chunks, 2);
  EXPECT_EQ(layout(two + "\"num_virtual_stages_per_pipeline_rank\": 2", 2).virtual_chunks, 2);
  EXPECT_EQ(layout(two + "\"num_layers_per_virtual_pipeline_stage\": 1", 2).virtual_chunks, 2);
  EXPECT_EQ(layout("\"pipe-partition-method\": \"type:transformer|mlp\"").partition, PartitionMethod::kUniform);
  EXPECT_EQ(layout("\"pipe-partition-method\": \"parameters\"").partition, PartitionMethod::kParameters);
  const LayoutConfig timed = layout("\"pipe_partition_method\": \"time\", \"pipe_partition_costs\": [3, 1, 2.5]");
  EXPECT_TRUE(timed.costs_given);
  EXPECT_EQ(std::tie(timed.layer_ms, timed.embedding_ms, timed.head_ms), std::make_tuple(3.0, 1.0, 2.5));
}

TEST(LayoutConfigGood, Placements) {
  const PlacementLevels hpz =
      layout("\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 8}", 4).placement;
  EXPECT_EQ(hpz.weights, Level::kGlobal);
  EXPECT_EQ(hpz.secondary, Level::kNode);
  EXPECT_EQ(layout("\"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 2}", 4).placement.secondary,
            Level::kPair);
  EXPECT_EQ(layout("\"zero_optimization\": {\"zero_hpz_partition_size\": 1}").placement.secondary, Level::kReplicated);
  const PlacementLevels three =
      layout(
          "\"placement\": {\"weights\": \"pair\", \"gradients\": \"node\", \"optimizer\": \"global\"}, "
          "\"ranks_per_node\": 2",
          4)
          .placement;
  EXPECT_EQ(std::tie(three.weights, three.gradients, three.optimizer),
            std::make_tuple(Level::kPair, Level::kNode, Level::kGlobal));
  // An explicit level wins over the stage.
  EXPECT_EQ(layout("\"zero_stage\": 1, \"placement\": {\"optimizer\": \"replicated\"}").placement.optimizer,
            Level::kReplicated);
  // One data-parallel rank: any level is one rank wide.
  EXPECT_EQ(layout("\"placement\": {\"optimizer\": \"pair\"}", 1).data, 1);
  // Nodes that hold whole tensor groups and equally many of each data-parallel group.
  EXPECT_EQ(
      layout("\"placement\": {\"optimizer\": \"node\"}, \"ranks_per_node\": 4, \"model_parallel_size\": 2", 8).data, 4);
  EXPECT_TRUE(noted(resolved("\"hold\": \"step\""), "hold", "replicated"));
  const LayoutConfig held = layout("\"placement\": {\"hold\": \"micro-batch\"}, " + std::string(kZero3), 2);
  EXPECT_TRUE(held.hold_given);
  EXPECT_EQ(held.hold, Hold::kMicroBatch);
  EXPECT_EQ(layout("\"embedding_sync\": \"Two-Step\"").embedding_sync, EmbeddingSyncKind::kTwoStep);
}

TEST(LayoutConfigGood, CommunicationWatchdogTrace) {
  const LayoutConfig l = layout(
      "\"communication\": {\"all_reduce\": \"two-level\", \"reduce_scatter\": \"direct\", \"all_gather\": \"ring\", "
      "\"chunk_bytes\": 1e6, \"small_bytes\": 0}, \"distributed-timeout-minutes\": 2, \"link_gbps\": 10, "
      "\"overlap_grad_reduce\": false, \"ranks_per_node\": 2",
      4);
  EXPECT_EQ(l.tuning.all_reduce, Algorithm::kTwoLevel);
  EXPECT_EQ(l.tuning.reduce_scatter, Algorithm::kDirect);
  EXPECT_EQ(l.tuning.all_gather, Algorithm::kRing);
  EXPECT_EQ(l.tuning.chunk_bytes, 1000000);
  EXPECT_EQ(l.tuning.small_bytes, 0);
  EXPECT_EQ(l.watchdog_seconds, 120.0);
  EXPECT_EQ(l.link_gbps, 10.0);
  EXPECT_EQ(l.ranks_per_node, 2);
  EXPECT_FALSE(l.overlap_communication);
  EXPECT_EQ(layout("\"watchdog_seconds\": 60, \"distributed_timeout_minutes\": 1").watchdog_seconds, 60.0);
  const auto range = [](const std::string& value) {
    const LayoutConfig t = layout("\"trace\": true, \"trace_steps\": " + value);
    EXPECT_TRUE(t.trace);
    return std::pair(t.trace_first, t.trace_steps);
  };
  EXPECT_EQ(range("5"), (std::pair<int64_t, int64_t>(0, 5)));
  EXPECT_EQ(range("\"5\""), (std::pair<int64_t, int64_t>(0, 5)));
  EXPECT_EQ(range("[100, 110]"), (std::pair<int64_t, int64_t>(100, 11)));
  EXPECT_EQ(range("\"100-110\""), (std::pair<int64_t, int64_t>(100, 11)));
  EXPECT_EQ(range("\"7:7\""), (std::pair<int64_t, int64_t>(7, 1)));
  EXPECT_TRUE(noted(resolved("\"trace_steps\": 3"), "trace_steps", "without trace"));
  EXPECT_TRUE(noted(resolved("\"trace\": true, \"trace_steps\": [11, 12]"), "trace_steps", "train_iters is 10"));
  EXPECT_FALSE(noted(resolved("\"trace\": true, \"trace_steps\": [10, 12]"), "trace_steps", "train_iters"));
}

TEST(LayoutText, SaysWhatTheLayoutIs) {
  const auto text = [](const std::string& extra, int64_t ranks) { return layout_text(resolved(extra, ranks).run); };
  EXPECT_EQ(text("\"seed\": 1", 1), "1 rank; 4 micro-batches of 2 sequences");
  EXPECT_EQ(text("\"zero_stage\": 1, \"model_parallel_size\": 2, \"sequence_parallel\": true", 4),
            "4 ranks = 2 data (ZeRO-1) x 2 tensor (sequence parallel); 2 micro-batches of 2 sequences");
  EXPECT_EQ(text("\"pipe_parallel_size\": 2, \"schedule\": \"interleaved\", \"virtual_chunks\": 2, \"zero_stage\": 3, "
                 "\"hold\": \"step\", \"ranks_per_node\": 2, \"placement\": {\"secondary\": \"node\"}",
                 4),
            "4 ranks = 2 stages (interleaved, 2 chunks) x 2 data (ZeRO-3 + secondary node (hpZ)); 2 micro-batches of 2 "
            "sequences; gathered weights held for the step; embedding fused; nodes of 2");
  EXPECT_EQ(placement_text({Level::kPair, Level::kNode, Level::kGlobal}), "3-level partition (pair, node, global)");
  EXPECT_EQ(placement_text({Level::kNode, Level::kNode, Level::kNode}), "MiCS (node, node, node)");
  EXPECT_EQ(placement_text({Level::kReplicated, Level::kGlobal, Level::kGlobal}), "ZeRO-2");
  EXPECT_EQ(placement_text({Level::kReplicated, Level::kPair, Level::kNode}), "placement (replicated, pair, node)");
}

TEST(LayoutConfigGood, ChecksumsFollowTheMachines) {
  const auto checksums = [](const std::string& extra, int64_t machines) {
    ConfigOptions options;
    options.ranks = 4, options.machines = machines;
    const ResolvedConfig config = load_config_text({{"a.json", with(extra)}}, {}, options);
    return std::pair(config.run.layout.tuning.checksums, config.values.at("checksum"));
  };
  using Pair = std::pair<Checksums, nlohmann::json>;
  EXPECT_EQ(checksums("", 1), Pair(Checksums::kNone, false));
  EXPECT_EQ(checksums("", 2), Pair(Checksums::kBetweenNodes, "between_nodes"));
  EXPECT_EQ(checksums("", 0), Pair(Checksums::kNone, "auto"));
  EXPECT_EQ(checksums("\"ranks_per_node\": 2", 1), Pair(Checksums::kNone, false));
  EXPECT_EQ(checksums("\"ranks_per_node\": 2", 3), Pair(Checksums::kAll, true)) << "pretended nodes are no machines";
  EXPECT_EQ(checksums("\"checksum\": false", 2), Pair(Checksums::kNone, false));
  EXPECT_EQ(checksums("\"checksum\": true", 1), Pair(Checksums::kAll, true));
  EXPECT_EQ(checksums("\"checksum\": \"between-nodes\"", 1), Pair(Checksums::kBetweenNodes, "between_nodes"));
  expect_refused(
      {{"checksum of another kind",
        with("\"checksum\": \"crc\""),
        {"a.json:3:13: checksum: \"crc\" is not an allowed value (allowed: auto | between_nodes | true | false)"}}});
}

}  // namespace
}  // namespace thinwire::layout_config_test
