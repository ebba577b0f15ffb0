// Keys of the layout, placement, compression, and of how a run goes about its files.
#include "engine/run/config/key_table.h"

namespace thinwire {

KeyTopic layout_keys() {
  const KeyScope layout = KeyScope::kLayout;
  const std::vector<std::string> levels = {"replicated", "pair", "node", "global"};
  KeyTopic t;
  t.title = "Layout and placement";
  t.intro =
      "Ranks = pipe_parallel_size * model_parallel_size * data-parallel ranks. This version trains on one rank; "
      "--dry-run prices more.";
  t.keys = {
      {.name = "pipe_parallel_size",
       .aliases = {"pipeline_model_parallel_size"},
       .types = kIntKey,
       .default_json = "1",
       .bounds = {0, 65536},
       .unit = "stages",
       .doc = "Pipeline stages; 0 is 1.",
       .scope = layout},
      {.name = "model_parallel_size",
       .aliases = {"tensor_model_parallel_size"},
       .types = kIntKey,
       .default_json = "1",
       .bounds = {1, 65536},
       .unit = "ranks",
       .doc = "Tensor-parallel ranks.",
       .scope = layout},
      {.name = "global_num_gpus",
       .aliases = {"world_size"},
       .types = kIntKey,
       .default_text = "the ranks started, --ranks, or what the batch keys say",
       .bounds = {1, 1e6},
       .unit = "ranks",
       .doc = "Ranks that the configuration is meant for; --dry-run prices them unless --ranks says otherwise.",
       .scope = layout},
      {.name = "sequence_parallel",
       .types = kBoolKey,
       .default_json = "false",
       .doc = "Norms and dropout are sharded over the tensor-parallel ranks; without effect on one.",
       .scope = layout},
      {.name = "schedule",
       .types = kStringKey,
       .default_json = "\"1f1b\"",
       .allowed = {"gpipe", "1f1b", "interleaved", "zb_h1"},
       .doc = "Order of micro-batches on the stages; accepted and without effect on one stage.",
       .scope = layout},
      {.name = "virtual_pipeline_model_parallel_size",
       .types = kIntKey,
       .default_json = "1",
       .bounds = {1, 65536},
       .unit = "chunks",
       .doc = "Chunks of layers per stage, for schedule interleaved.",
       .scope = layout},
      {.name = "zero_optimization.stage",
       .aliases = {"zero_stage"},
       .types = kIntKey,
       .default_json = "0",
       .bounds = {0, 3},
       .doc = "What is sharded over data-parallel ranks: 1 optimizer state, 2 and gradients, 3 and weights.",
       .scope = layout},
      {.name = "use_distributed_optimizer",
       .types = kBoolKey,
       .doc = "Megatron: true is zero_optimization.stage 1.",
       .scope = layout,
       .status = KeyStatus::kShorthand},
      {.name = "zero_optimization.reduce_bucket_size",
       .aliases = {"ddp_bucket_size", "zero_reduce_bucket_size"},
       .types = kIntKey,
       .default_json = "500000000",
       .bounds = {1, 1e15},
       .unit = "elements",
       .doc = "Gradients that are reduced at a time.",
       .scope = layout},
      {.name = "zero_optimization.allgather_bucket_size",
       .aliases = {"zero_allgather_bucket_size"},
       .types = kIntKey,
       .default_json = "500000000",
       .bounds = {1, 1e15},
       .unit = "elements",
       .doc = "Weights that are gathered at a time.",
       .scope = layout},
      {.name = "zero_optimization.overlap_comm",
       .aliases = {"overlap_grad_reduce"},
       .types = kBoolKey,
       .default_json = "false",
       .doc = "Gradients are reduced while the backward pass runs.",
       .scope = layout},
      {.name = "placement.weights",
       .types = kStringKey,
       .default_text = "global for ZeRO 3, else replicated",
       .allowed = levels,
       .doc = "Level of the machine over which weights are sharded; an explicit placement wins over "
              "zero_optimization.stage.",
       .scope = layout},
      {.name = "placement.gradients",
       .types = kStringKey,
       .default_text = "global for ZeRO 2 and 3, else replicated",
       .allowed = levels,
       .doc = "The same for gradients.",
       .scope = layout},
      {.name = "placement.optimizer",
       .types = kStringKey,
       .default_text = "global for ZeRO 1 to 3, else replicated",
       .allowed = levels,
       .doc = "The same for optimizer state.",
       .scope = layout},
      {.name = "placement.secondary",
       .types = kStringKey,
       .default_text = "none",
       .allowed = levels,
       .doc = "Level of a second copy of sharded weights, for the backward pass (ZeRO++'s hpZ: node).",
       .scope = layout},
      {.name = "device",
       .types = kStringKey,
       .default_json = "\"cpu\"",
       .allowed = {"cpu", "cuda"},
       .doc = "Where the step runs.",
       .scope = layout},
      {.name = "threads_per_rank",
       .types = kIntKey,
       .default_json = "0",
       .bounds = {0, 65536},
       .unit = "threads",
       .doc = "CPU threads of each rank; 0: cores of the node / ranks on it.",
       .scope = layout},
  };
  return t;
}

const std::vector<std::string>& compression_sites() {
  static const std::vector<std::string> sites = {"tp.forward",  "tp.backward", "pp.forward",
                                                 "pp.backward", "dp.gradient", "zero.parameter",
                                                 "embedding",   "sequence",    "outer"};
  return sites;
}

KeyTopic compression_keys() {
  const KeyScope layout = KeyScope::kLayout;
  KeyTopic t;
  t.title = "Compression";
  t.intro =
      "\"compression\": {\"preset\": NAME} or {\"<site>\": rule, ...}; site names are literal dotted keys. `control` "
      "(norms, losses, flags) "
      "is never coded. This version has no codec but identity.";
  t.keys = {{.name = "compression.preset",
             .types = kStringKey,
             .default_text = "none",
             .allowed = {"none", "identity"},
             .doc = "Name of a published system whose rules are meant; \"compression\": NAME means the same.",
             .scope = layout}};
  for (const std::string& site : compression_sites()) {
    const std::string prefix = "compression." + site + ".";
    t.keys.push_back({.name = prefix + "codec",
                      .types = kStringKey,
                      .default_text = "identity",
                      .allowed = {"identity"},
                      .doc = "How messages of the site " + site + " are coded.",
                      .scope = layout});
    t.keys.push_back({.name = prefix + "residual",
                      .types = kStringKey,
                      .default_text = "none",
                      .allowed = {"none"},
                      .doc = "What becomes of the coding error.",
                      .scope = layout});
    t.keys.push_back({.name = prefix + "select",
                      .types = kObjectKey,
                      .doc = "{stages, layers, tensor_classes, micro_batches}: the messages the rule is for.",
                      .scope = layout});
    t.keys.push_back({.name = prefix + "min_bytes",
                      .types = kIntKey,
                      .bounds = {0, 1e15},
                      .unit = "bytes",
                      .doc = "Smaller messages are sent as they are.",
                      .scope = layout});
    t.keys.push_back({.name = prefix + "warmup_steps",
                      .types = kIntKey,
                      .bounds = {0, 1e12},
                      .unit = "updates",
                      .doc = "Updates before the rule starts.",
                      .scope = layout});
    t.keys.push_back({.name = prefix + "algorithm",
                      .types = kStringKey,
                      .allowed = {"ring", "direct", "two_level"},
                      .doc = "Shape of the collective.",
                      .scope = layout});
  }
  return t;
}

KeyTopic run_keys() {
  KeyTopic t;
  t.title = "Run, checkpoints, evaluation, log";
  t.keys = {
      {.name = "run_dir",
       .types = kStringKey,
       .default_text = "runs/<name of the first configuration file>",
       .unit = "path",
       .doc = "Everything that the run leaves behind; an interrupted run resumes from here by itself."},
      {.name = "save",
       .types = kStringKey,
       .default_text = "<run_dir>/checkpoints",
       .unit = "path",
       .doc = "Directory of checkpoints."},
      {.name = "load",
       .types = kStringKey,
       .unit = "path",
       .doc = "Checkpoint or run directory to start from; the same path as save means to resume, which a run does by "
              "itself."},
      {.name = "finetune",
       .types = kBoolKey,
       .default_json = "false",
       .doc = "Take only the weights from load: step, data position and optimizer start anew."},
      {.name = "no_load_optim",
       .types = kBoolKey,
       .default_json = "false",
       .doc = "Do not take the optimizer's state from load."},
      {.name = "save_interval",
       .aliases = {"checkpoint_factor"},
       .types = kIntKey,
       .default_json = "0",
       .bounds = {0, 1e12},
       .unit = "updates",
       .doc = "Updates between checkpoints; 0: only at the end and on signals."},
      {.name = "keep_last_n_checkpoints",
       .types = kIntKey,
       .default_json = "0",
       .bounds = {0, 1e9},
       .unit = "checkpoints",
       .doc = "Older checkpoints are removed; 0 keeps all, otherwise at least 2 verified ones stay."},
      {.name = "async_save",
       .types = kBoolKey,
       .default_json = "true",
       .doc = "Checkpoints are written while training goes on."},
      {.name = "eval_interval",
       .types = kIntKey,
       .default_json = "1000",
       .bounds = {0, 1e12},
       .unit = "updates",
       .doc = "Updates between evaluations; 0: none."},
      {.name = "eval_iters",
       .types = kIntKey,
       .default_json = "100",
       .bounds = {0, 1e9},
       .unit = "batches",
       .doc = "Batches per evaluation; 0: none."},
      {.name = "log_interval",
       .types = kIntKey,
       .default_json = "10",
       .bounds = {1, 1e12},
       .unit = "updates",
       .doc = "Updates between lines on the console (metrics.jsonl has every update)."},
      {.name = "exit_duration_in_mins",
       .types = kRealKey,
       .default_json = "0",
       .bounds = {0, 1e9},
       .unit = "minutes",
       .doc = "Save and leave with exit code 75 after this time; 0: no limit."},
      {.name = "peak_theoretical_tflops",
       .types = kRealKey,
       .default_json = "0",
       .bounds = {0, 1e9},
       .unit = "TFLOP/s per rank",
       .doc = "Denominator of MFU; 0: MFU is not reported."},
      {.name = "faults",
       .types = kListKey,
       .default_json = "[]",
       .doc = "Faults to inject, for tests of recovery; only with --allow-faults."},
  };
  return t;
}

}  // namespace thinwire
