// Bad compression rules: each refused at its place, with the reason. Messages are compared whole.
#include <gtest/gtest.h>

#include "tests/config/config_test_support.h"

namespace thinwire::bad_compression_test {
namespace {

// "compression": {"<site>": {...}} on line 3; the site's name is 1 character behind column 17.
std::string rule(const std::string& site, const std::string& fields, const std::string& also = "") {
  return with(also + "\"compression\": {\"" + site + "\":\n{" + fields + "}}");
}

struct Refused {
  const char* name;
  std::string text;
  std::string line;  // the whole line of the message
  ConfigOptions options = {};
  std::vector<std::string> overrides = {};
};

void expect_lines(const std::vector<Refused>& table) {
  for (const Refused& bad : table) {
    SCOPED_TRACE(bad.name);
    const std::string message = refusal(bad.text, bad.overrides, bad.options);
    EXPECT_NE((message + "\n").find("\n" + bad.line + "\n"), std::string::npos) << "wanted:\n"
                                                                                << bad.line << "\ngot:\n"
                                                                                << message;
  }
}

const ConfigOptions kTwo{.ranks = 2}, kFour{.ranks = 4};
const char* const kStages = "\"pipe_parallel_size\": 2,\n";

// What is summed already is coded again by codecs that need nobody else.
TEST(BadCompression, Sums) {
  expect_lines({
      {"rounds", rule("dp.gradient", "\"codec\": \"block_int\", \"sum\": {\"codec\": \"low_rank\"}"),
       "a.json:4:41: compression.dp.gradient.sum.codec: low_rank adds up over ranks in rounds of its own: it cannot "
       "code a "
       "sum on its way back; block_int can",
       kTwo},
      {"a sketch of sums", rule("embedding", "\"codec\": \"cast\", \"sum\": {\"codec\": \"sketch\"}", kStages),
       "a.json:5:36: compression.embedding.sum.codec: sketch adds up over ranks in rounds of its own: it cannot code a "
       "sum on its way back; block_int can",
       kFour},
      {"the hop between nodes alone",
       rule("dp.gradient", "\"algorithm\": \"two_level\", \"sum\": {\"codec\": \"block_int\"}",
            "\"ranks_per_node\": 2,\n"),
       "a.json:5:45: compression.dp.gradient.sum.codec: codec identity leaves all hops as they are, those of sums, "
       "too; say another codec",
       kFour},
  });
}

TEST(BadCompression, Residuals) {
  const std::string replay =
      ": what a layer sends must come out the same when it is computed again (recompute), and a residual moves on; say "
      "none";
  expect_lines({
      {"tp.forward", rule("tp.forward", "\"codec\": \"block_int\", \"residual\": \"error_feedback\""),
       "a.json:4:36: compression.tp.forward.residual: residual error_feedback cannot be at tp.forward" + replay},
      {"tp.backward", rule("tp.backward", "\"codec\": \"block_int\", \"residual\": \"ema\""),
       "a.json:4:36: compression.tp.backward.residual: residual ema cannot be at tp.backward" + replay},
      {"sequence", rule("sequence.forward", "\"codec\": \"block_int\", \"residual\": \"lazy\""),
       "a.json:4:36: compression.sequence.forward.residual: residual lazy cannot be at sequence.forward" + replay},
      {"chance at tp.forward", rule("tp.forward", "\"codec\": \"block_int\", \"rounding\": \"stochastic\""),
       "a.json:4:36: compression.tp.forward.rounding: rounding stochastic cannot be at tp.forward: what a layer sends "
       "must come out the same when it is computed or gathered again (recompute, sequence parallelism), and chance "
       "moves "
       "on; say nearest"},
      {"a random choice at sequence", rule("sequence.forward", "\"codec\": \"random_k\""),
       "a.json:4:11: compression.sequence.forward.codec: random_k cannot be at sequence.forward: what a layer sends "
       "must come out the "
       "same when it is computed or gathered again (recompute, sequence parallelism), and chance moves on; top_k can"},
      {"around identity", rule("dp.gradient", "\"residual\": \"error_feedback\""),
       "a.json:4:14: compression.dp.gradient.residual: residual error_feedback around codec identity, which loses "
       "nothing: "
       "there is no error to keep; say none"},
      {"around mpc", rule("dp.gradient", "\"codec\": \"mpc\", \"residual\": \"ema\""),
       "a.json:4:30: compression.dp.gradient.residual: residual ema around codec mpc, which loses nothing: there is no "
       "error "
       "to keep; say none"},
      {"value difference of gradients",
       rule("dp.gradient", "\"codec\": \"block_int\", \"residual\": \"value_difference\""),
       "a.json:4:36: compression.dp.gradient.residual: residual value_difference is for zero.parameter alone: only "
       "weights "
       "have a copy at the receivers to take a difference to"},
      {"a codec of long frames where tensor ranks share tensors",
       rule("zero.parameter", "\"codec\": \"ecsq\", \"rate\": 2.5",
            "\"model_parallel_size\": 2, \"zero_optimization\": {\"stage\": 1},\n"),
       "a.json:5:11: compression.zero.parameter.codec: codec ecsq codes a tensor together with its neighbours, and "
       "tensor-parallel ranks hold some tensors whole among neighbours that differ: their copies would drift apart; "
       "take block_int or lloyd_max with a block that divides 4096",
       kFour},
      {"value difference without a copy",
       rule("zero.parameter", "\"codec\": \"block_int\", \"residual\": \"value_difference\"",
            "\"zero_optimization\": {\"stage\": 3},\n"),
       "a.json:5:36: compression.zero.parameter.residual: residual value_difference needs weights that stay: "
       "placement.weights shards them, so gathered ones lie where another layer's were and there is nothing to add a "
       "difference to; say weights replicated, or residual none",
       kFour},
      {"error feedback of weights",
       rule("zero.parameter", "\"codec\": \"block_int\", \"residual\": \"error_feedback\""),
       "a.json:4:36: compression.zero.parameter.residual: residual error_feedback cannot be at zero.parameter: the "
       "error of "
       "old weights is none of the new ones, and the master weights are exact anyway; say none or value_difference"},
      {"lazy gradients", rule("dp.gradient", "\"codec\": \"low_rank\", \"residual\": \"lazy\""),
       "a.json:4:35: compression.dp.gradient.residual: residual lazy is for pp.forward and pp.backward, from one "
       "micro-batch "
       "to the next; here say error_feedback"},
      {"average around low rank", rule("dp.gradient", "\"codec\": \"low_rank\", \"residual\": \"ema\""),
       "a.json:4:35: compression.dp.gradient.residual: residual ema cannot be around codec low_rank; say "
       "error_feedback or "
       "none"},
      {"a transform of plain sums", rule("dp.gradient", "\"sum\": {\"hadamard\": true}"),
       "a.json:4:22: compression.dp.gradient.sum.hadamard: hadamard in front of codec identity: the transform rounds, "
       "and the codec is there to lose nothing; remove \"hadamard\""},
      {"residual of the sums",
       rule("tp.forward", "\"codec\": \"block_int\", \"sum\": {\"residual\": \"error_feedback\"}"),
       "a.json:4:44: compression.tp.forward.sum.residual: residual error_feedback cannot be at tp.forward" + replay},
  });
}

TEST(BadCompression, CodecsAtSites) {
  expect_lines({
      {"low-rank weights", rule("zero.parameter", "\"codec\": \"low_rank\""),
       "a.json:4:11: compression.zero.parameter.codec: low_rank cannot be at zero.parameter: weights, and their "
       "differences, "
       "are of full rank; block_int can"},
      {"low-rank activations", rule("tp.forward", "\"codec\": \"low_rank\""),
       "a.json:4:11: compression.tp.forward.codec: low_rank cannot be at tp.forward: activations are of full rank, and "
       "its "
       "warm start could not be replayed under recompute; block_int can"},
      {"sketch between stages", rule("pp.backward", "\"codec\": \"sketch\"", kStages),
       "a.json:5:11: compression.pp.backward.codec: sketch cannot be at pp.backward: it adds up sparse contributions "
       "of "
       "several ranks, which only gradients are; block_int can"},
      {"sketch of weights", rule("zero.parameter", "\"codec\": \"sketch\""),
       "a.json:4:11: compression.zero.parameter.codec: sketch cannot be at zero.parameter: it adds up sparse "
       "contributions "
       "of several ranks, which only gradients are; block_int can"},
      {"sketch of differences of weights",
       rule("zero.parameter", "\"codec\": \"sketch\", \"residual\": \"value_difference\""),
       "a.json:4:11: compression.zero.parameter.codec: sketch cannot be at zero.parameter: it adds up sparse "
       "contributions of several ranks, which only gradients are; block_int can"},
      {"some of the weights", rule("zero.parameter", "\"codec\": \"top_k\""),
       "a.json:4:11: compression.zero.parameter.codec: top_k at zero.parameter needs residual value_difference: "
       "weights that "
       "are not sent would be zero"},
      {"signs of the weights", rule("zero.parameter", "\"codec\": \"one_bit\""),
       "a.json:4:11: compression.zero.parameter.codec: one_bit at zero.parameter needs residual value_difference: "
       "weights "
       "that are not sent would be replaced by their signs"},
      {"hadamard and low rank", rule("dp.gradient", "\"codec\": \"low_rank\", \"hadamard\": true"),
       "a.json:4:35: compression.dp.gradient.hadamard: hadamard cannot be in front of codec low_rank: it would mix the "
       "columns of matrices"},
      {"control", rule("control", "\"codec\": \"cast\""),
       "a.json:4:1: compression.control: not supported: control messages (norms, losses, flags) are never coded"},
      {"sums between stages", rule("pp.forward", "\"codec\": \"cast\", \"sum\": {\"codec\": \"cast\"}", kStages),
       "a.json:5:36: compression.pp.forward.sum.codec: pp.forward is sent from one stage to one other: there is no sum "
       "on "
       "its way back"},
      {"sums of weights", rule("zero.parameter", "\"codec\": \"cast\", \"sum\": \"cast\""),
       "a.json:4:26: compression.zero.parameter.sum: zero.parameter carries no sums: everything is coded once, where "
       "it "
       "comes from"},
  });
}

TEST(BadCompression, ParametersAreTheCodecsBusiness) {
  const auto names = [](const std::string& fields, const std::vector<std::string>& fragments) {
    return BadConfig{"", rule("dp.gradient", fields), fragments};
  };
  expect_refused({
      names("\"codec\": \"block_int\", \"bits\": 5", {"a.json:4:32: compression.dp.gradient.bits: ", "8, 6, 4 or 2"}),
      names("\"codec\": \"block_int\", \"block\": 1", {"a.json:4:33: compression.dp.gradient.block: ", "block is 1"}),
      names("\"codec\": \"block_int\", \"asymmetric\": true, \"scale\": \"e8m0\"",
            {"a.json:4:", "compression.dp.gradient.", "e8m0"}),
      names("\"codec\": \"cast\", \"format\": \"mxfp4\"",
            {"a.json:4:29: compression.dp.gradient.format: ", "bf16, fp16, e4m3 or e5m2"}),
      names("\"codec\": \"chunked_top_k\", \"keep\": 100, \"block\": 64",
            {"compression.dp.gradient.", "keep is from 1 to"}),
      names("\"codec\": \"ecsq\", \"light\": true, \"rate\": 4.5",
            {"a.json:4:28: compression.dp.gradient.light: ", "rate is 4.5", "say a rate of 4 at most"}),
      names("\"codec\": \"sketch\", \"density\": 0.5, \"ratio\": 8, \"compact\": false",
            {"compression.dp.gradient.", "density 0.5 x ratio 8"}),
      names("\"codec\": \"zfp\", \"hadamard\": true", {"a.json:4:30: compression.dp.gradient.hadamard: "}),
      names("\"codec\": \"mpc\", \"hadamard\": true", {"a.json:4:30: compression.dp.gradient.hadamard: "}),
      names("\"codec\": \"top_k\", \"hadamard\": true", {"a.json:4:32: compression.dp.gradient.hadamard: "}),
      names("\"codec\": \"zfp\", \"rate\": 4, \"residual\": \"error_feedback\"",
            {"compression.dp.gradient.residual: ", "would grow", "zfp: rate 8 or more"}),
      names("\"codec\": \"block_int\", \"bits\": 4, \"block\": 512, \"asymmetric\": true, \"residual\": "
            "\"error_feedback\"",
            {"compression.dp.gradient.residual: ", "would grow", "shorter blocks"}),
      names("\"codec\": \"block_int\", \"bits\": 2, \"rounding\": \"stochastic\", \"residual\": \"error_feedback\"",
            {"compression.dp.gradient.", "nearest"}),
      // Bounds of the table.
      names("\"codec\": \"zfp\", \"rate\": 40", {"a.json:4:26: ", "40 is out of bounds (at least 1, at most 32)"}),
      names("\"codec\": \"top_k\", \"density\": 0", {"a.json:4:31: ", "0 is out of bounds (above 0, at most 1)"}),
      names("\"codec\": \"low_rank\", \"rank\": 0", {"0 is out of bounds (at least 1, at most 65536)"}),
      names("\"codec\": \"low_rank\", \"sides\": 3", {"3 is out of bounds (at least 1, at most 2)"}),
      names("\"codec\": \"mpc\", \"dimension\": 33", {"33 is out of bounds"}),
      names("\"residual\": \"ema\", \"beta\": 1", {"1 is out of bounds (at least 0, below 1)"}),
      names("\"codec\": \"block_int\", \"bits\": \"4\"", {"must be integer, not a string \"4\": drop the quotes"}),
      names("\"codec\": \"blockint\"",
            {"\"blockint\" is not an allowed value, nearest: block_int (allowed: identity | cast"}),
      names("\"codec\": \"block_int\", \"residual\": \"errorfeedback\"", {"\"errorfeedback\" is not an allowed value"}),
  });
}

TEST(BadCompression, Selections) {
  const std::string cast = "\"codec\": \"cast\", ";
  expect_lines({
      {"stage", rule("dp.gradient", cast + "\"select\": {\"stages\": [0, 2]}", kStages),
       "a.json:5:40: compression.dp.gradient.select.stages: stage 2 does not exist: pipe_parallel_size is 2, stages "
       "count "
       "from 0",
       kTwo},
      {"negative stage", rule("dp.gradient", cast + "\"select\": {\"stages\": [-1]}"),
       "a.json:4:41: compression.dp.gradient.select.stages: -1 is out of bounds (at least 0, at most 65535)"},
      {"half a stage", rule("dp.gradient", cast + "\"select\": {\"stages\": [0.5]}"),
       "a.json:4:40: compression.dp.gradient.select.stages: holds 0.5, which is no whole number"},
      {"layer", rule("dp.gradient", cast + "\"select\": {\"layers\": [4]}"),
       "a.json:4:40: compression.dp.gradient.select.layers: layer 4 does not exist: num_layers is 4, layers count from "
       "0"},
      {"class", rule("dp.gradient", cast + "\"select\": {\"tensor_classes\": [\"mlp\", \"qkv\"]}"),
       "a.json:4:48: compression.dp.gradient.select.tensor_classes: \"qkv\" is no class of tensors (allowed: embedding "
       "| "
       "attention | mlp | norm | bias | head)"},
      {"epilogue of gradients", rule("dp.gradient", cast + "\"select\": {\"micro_batches\": \"epilogue\"}"),
       "a.json:4:47: compression.dp.gradient.select.micro_batches: epilogue is for pp.forward and pp.backward, "
       "critical for dp.gradient, too: dp.gradient has no message on the plan of that kind; say all"},
      {"critical gradients without times", rule("dp.gradient", cast + "\"select\": {\"micro_batches\": \"critical\"}"),
       "a.json:4:47: compression.dp.gradient.select.micro_batches: critical at dp.gradient needs stated times: give "
       "link_gbps and pipe_partition_costs (of a layer, embedding and head; measured ones would not decide the same in "
       "every run)"},
      {"three sensitivities", with("\"compression\": {\n\"sensitivities\": [1, 2, 3]}"),
       "a.json:4:18: compression.sensitivities: must hold four numbers: embedding, attention, mlp, the rest"},
      {"a negative sensitivity", with("\"compression\": {\n\"sensitivities\": [1, -0.26, 3, 1]}"),
       "a.json:4:22: compression.sensitivities: -0.26 is out of bounds (at least 0, at most 1000000000000)"},
      {"epilogue forward", rule("pp.forward", cast + "\"select\": {\"micro_batches\": \"epilogue\"}", kStages),
       "a.json:5:47: compression.pp.forward.select.micro_batches: epilogue means gradients sent by stages that have no "
       "forward left, so there are none at pp.forward; say critical or all",
       kTwo},
      {"layers between stages", rule("pp.forward", cast + "\"select\": {\"layers\": [1]}", kStages),
       "a.json:5:40: compression.pp.forward.select.layers: messages between stages are activations of no one tensor; "
       "say "
       "select.stages, which names senders",
       kTwo},
      {"classes between stages", rule("pp.backward", cast + "\"select\": {\"tensor_classes\": [\"mlp\"]}", kStages),
       "a.json:5:48: compression.pp.backward.select.tensor_classes: messages between stages are activations of no one "
       "tensor; leave it out",
       kTwo},
      {"low-rank vectors",
       rule("dp.gradient", "\"codec\": \"low_rank\", \"select\": {\"tensor_classes\": [\"norm\", \"bias\"]}"),
       "a.json:4:52: compression.dp.gradient.select.tensor_classes: leaves nothing: low_rank codes matrices, and norms "
       "and "
       "biases are vectors"},
      {"layers of the embedding",
       rule("dp.gradient", cast + "\"select\": {\"layers\": [1], \"tensor_classes\": [\"embedding\"]}"),
       "a.json:4:40: compression.dp.gradient.select.layers: leaves nothing: layers are blocks, and no block has "
       "tensors of "
       "class embedding or head"},
      {"classes at tp", rule("tp.forward", cast + "\"select\": {\"tensor_classes\": [\"mlp\"]}"),
       "a.json:4:48: compression.tp.forward.select.tensor_classes: all messages of a layer at tp.forward are coded "
       "alike; "
       "say select.layers"},
      {"classes of weights", rule("zero.parameter", cast + "\"select\": {\"tensor_classes\": [\"mlp\"]}"),
       "a.json:4:48: compression.zero.parameter.select.tensor_classes: weights are gathered unit by unit, all tensors "
       "of a "
       "block together; say select.layers"},
      {"stages of the embedding", rule("embedding", cast + "\"select\": {\"stages\": [0]}", kStages),
       "a.json:5:40: compression.embedding.select.stages: first and last stage sum the embedding together, so both "
       "code "
       "it; leave it out",
       kTwo},
      {"attention at the embedding",
       rule("embedding", cast + "\"select\": {\"tensor_classes\": [\"attention\"]}", kStages),
       "a.json:5:48: compression.embedding.select.tensor_classes: leaves nothing: the site embedding carries class "
       "embedding alone",
       kTwo},
      {"layers at the embedding", rule("embedding", cast + "\"select\": {\"layers\": [0]}", kStages),
       "a.json:5:40: compression.embedding.select.layers: leaves nothing: layers are blocks, and the embedding is none",
       kTwo},
      {"unknown field", rule("pp.forward", "\"select\": {\"stage\": [0]}"),
       "a.json:4:13: compression.pp.forward.select.stage: unknown key (nearest key: "
       "compression.pp.forward.select.stages)"},
      {"word for select", rule("pp.forward", "\"select\": \"epilogue\""),
       "a.json:4:12: compression.pp.forward.select: must be an object { ... }, not a string"},
  });
}

TEST(BadCompression, Algorithms) {
  const std::string cast = "\"codec\": \"cast\", ";
  expect_lines({
      {"between stages", rule("pp.forward", cast + "\"algorithm\": \"ring\"", kStages),
       "a.json:5:32: compression.pp.forward.algorithm: ring is a shape of collectives; pp.forward is sent from one "
       "stage to "
       "one other",
       kTwo},
      {"ring of weights", rule("zero.parameter", cast + "\"algorithm\": \"ring\""),
       "a.json:4:32: compression.zero.parameter.algorithm: ring codes partial sums again at every hop; zero.parameter "
       "carries no sums"},
      {"nodes unknown", rule("dp.gradient", cast + "\"algorithm\": \"two_level\""),
       "a.json:4:32: compression.dp.gradient.algorithm: two_level needs to know which ranks share a node, to say what "
       "travels "
       "where: give ranks_per_node",
       kFour},
      {"nodes uneven", rule("dp.gradient", cast + "\"algorithm\": \"two_level\"", "\"ranks_per_node\": 3,\n"),
       "a.json:5:32: compression.dp.gradient.algorithm: two_level: nodes of 3 ranks do not hold equally many of the 4 "
       "ranks "
       "of each data-parallel group",
       kFour},
      {"rounds", rule("dp.gradient", "\"codec\": \"low_rank\", \"algorithm\": \"ring\""),
       "a.json:4:36: compression.dp.gradient.algorithm: codec low_rank adds up its payloads by plain reductions "
       "(communication.all_reduce says how); leave algorithm out"},
      {"word", rule("outer", "\"algorithm\": \"tree\""),
       "a.json:4:15: compression.outer.algorithm: \"tree\" is not an allowed value (allowed: direct | ring | "
       "two_level)"},
  });
}

TEST(BadCompression, PresetsAndWhatTheyMean) {
  const std::string sharded = "\"placement\": {\"weights\": \"global\"}";
  expect_lines({
      {"preset misspelled", with("\"compression\": {\"preset\": \"zero++\"}"),
       "a.json:3:27: compression.preset: \"zero++\" is not an allowed value, nearest: zeropp (allowed: none | "
       "bf16_wire "
       "| identity | loco | loco_bf16_weights | mzhybrid | mzhybrid_ring | naive_mpc | naive_zfp | one_bit_adam | "
       "one_bit_adam_20 | optimus_cc | optimus_cc_cb | optimus_cc_cb_fe | optimus_cc_cb_fe_sc | "
       "optimus_cc_cb_fe_sc_16 | optimus_cc_cb_no_lep | optimus_cc_emb | powersgd | powersgd_16 | powersgd_32 | "
       "sdp4bit | tagc | thinwire | zero_topo | zeropp | zhybrid | zhybrid_ring)"},
      {"momentum of a sharded optimizer",
       with("\"compression\": \"one_bit_adam\", \"placement\": {\"optimizer\": \"global\"}"),
       "a.json:3:16: compression: momentum instead of gradients needs the whole momentum on every rank: "
       "placement.optimizer "
       "replicated (zero_optimization.stage 0)",
       kFour},
      {"momentum of SGD", with("\"compression\": {\"sends\": \"momentum\"}, \"optimizer\": \"sgd\""),
       "a.json:3:26: compression.sends: momentum instead of gradients is for optimizer.type adam"},
      {"DeepSpeed's qwZ", with("\"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": true}"),
       "a.json:3:61: zero_optimization.zero_quantized_weights: not supported: say \"compression\": \"zeropp\", or a "
       "rule for "
       "weights alone: {\"zero.parameter\": {\"codec\": \"block_int\", \"bits\": 8}}"},
      {"DeepSpeed's qgZ", with("\"zero_optimization\": {\"zero_quantized_gradients\": true}"),
       "a.json:3:51: zero_optimization.zero_quantized_gradients: not supported: say \"compression\": \"zeropp\", or a "
       "rule for "
       "gradients alone: {\"dp.gradient\": {\"codec\": \"block_int\", \"bits\": 4}}"},
      {"DeepSpeed's LoCo",
       with("\"zero_optimization\": {\"zeropp_loco_param\": {\"err_beta\": 0.8, \"reset_T\": 1024}}"),
       "a.json:3:44: zero_optimization.zeropp_loco_param: not supported: say \"compression\": \"loco\", or residual "
       "ema with "
       "beta and reset_every in the rule of dp.gradient"},
      {"DeepSpeed's wire", with("\"communication_data_type\": \"bf16\""),
       "a.json:3:28: communication_data_type: not supported: gradients are summed in fp32; for a narrower wire say "
       "grad_reduce_in_bf16, or \"compression\": \"bf16_wire\" for every site"},
      {"DeepSpeed's 1-bit Adam",
       with("\"optimizer\": {\"type\": \"OneBitAdam\", \"params\": {\"freeze_step\": 100, \"comm_backend_name\": "
            "\"nccl\"}}"),
       "a.json:3:23: optimizer.type: \"OneBitAdam\" is a preset here: say adam and \"compression\": \"one_bit_adam\" "
       "(allowed: "
       "adam | sgd)"},
      {"its parameters", with("\"optimizer\": {\"type\": \"adam\", \"params\": {\"freeze_step\": 100}}"),
       "a.json:3:57: optimizer.params.freeze_step: not supported: say optimizer.type adam and \"compression\": "
       "\"one_bit_adam\""},
      {"other systems' words", rule("dp.gradient", "\"codec\": \"block_int\", \"group_size\": 128"),
       "a.json:4:24: compression.dp.gradient.group_size: unknown key (nearest key: compression.dp.gradient.block)"},
      {"dtype", rule("dp.gradient", "\"codec\": \"cast\", \"dtype\": \"bf16\""),
       "a.json:4:19: compression.dp.gradient.dtype: unknown key (nearest key: compression.dp.gradient.format)"},
  });
}

TEST(BadCompression, AllAtOnce) {
  const std::string message =
      refusal(with("\"compression\": {\"dp.gradient\": {\"codec\": \"block_int\", \"bits\": 5},\n"
                   "\"tp.forward\": {\"codec\": \"sketch\"}, \"zero.parameter\": {\"codec\": \"top_k\", \"sum\": "
                   "{\"codec\": \"cast\"}}}"));
  for (const char* key : {"compression.dp.gradient.bits", "compression.tp.forward.codec",
                          "compression.zero.parameter.codec", "compression.zero.parameter.sum.codec"})
    EXPECT_NE(message.find(std::string(key) + ": "), std::string::npos) << key << "\n" << message;
  EXPECT_NE(message.find("4 problems"), std::string::npos) << message;
}

TEST(BadCompression, AFieldThatIsRefusedIsNotMissing) {
  const std::string message = refusal(rule("dp.gradient", "\"codec\": \"ecsq\", \"rate\": [[10, 3]]"));
  EXPECT_NE(message.find("1 problem"), std::string::npos) << message;
  EXPECT_EQ(message.find("must be given"), std::string::npos) << message;
}

// A preset under a layout that somebody forced upon it: the message is at the preset, and names the rule.
TEST(BadCompression, PresetUnderAForeignLayout) {
  const std::string message = refusal(
      with("\"compression\": {\"preset\": \"thinwire\",\n\"zero.parameter\": {\"residual\": \"value_difference\"}}, "
           "\"zero_optimization\": {\"stage\": 3}"),
      {}, kFour);
  EXPECT_NE(message.find("a.json:4:32: compression.zero.parameter.residual: residual value_difference needs weights"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace thinwire::bad_compression_test
