// Keys of the layout, placement, and of how a run goes about its files.
#include "engine/run/config/enum_words.h"
#include "engine/run/config/key_table.h"

namespace thinwire {

KeyTopic layout_keys() {
  const KeysOf key{KeyScope::kLayout}, run{KeyScope::kRuntime};
  const EnumWords::List levels = EnumWords::of(Level()), algorithms = EnumWords::of(Algorithm());
  KeyTopic t;
  t.title = "Layout and placement";
  t.intro =
      "Ranks = pipe_parallel_size * model_parallel_size * context_parallel_size * data-parallel ranks; the launcher "
      "says how many there are, so the data-parallel ranks follow. None of these keys changes what is learned: a run "
      "may go on under another layout.";
  t.keys = {
      key("pipe_parallel_size", kIntKey, "1", "Pipeline stages; 0 is 1.",
          {.aliases = {"pipeline_model_parallel_size"}, .bounds = {0, 65536}, .unit = "stages"}),
      key("model_parallel_size", kIntKey, "1", "Tensor-parallel ranks.",
          {.aliases = {"tensor_model_parallel_size"}, .bounds = {1, 65536}, .unit = "ranks"}),
      key("context_parallel_size", kIntKey, "1",
          "Ranks that share every sequence of a micro-batch: each holds the activations of its tokens, and gets keys "
          "and values of the others for attention. To weights and gradients they are data-parallel ranks.",
          {.bounds = {1, 65536}, .unit = "ranks"}),
      key("cp_comm_type", kStringKey, "\"all_gather\"",
          "How context-parallel ranks do attention. all_gather (Llama 3): everybody gets all keys and values. a2a "
          "(DeepSpeed-Ulysses): everybody gets all tokens of a share of the heads; KV heads and sequence must divide. "
          "p2p (ring attention): keys and values go around, a rank's at a time.",
          {.allowed = EnumWords::of(SequenceWay()), .value_aliases = {{"allgather", "all_gather"}}}),
      key("sequence_chunk_size", kIntKey | kStringKey, "0",
          "Layers, head and loss take at most so many tokens of a sequence at a time, so that their working memory "
          "does not grow with its length, but for keys, values and the residual stream; 0: all; auto: as many as fit "
          "64 MiB (1 GiB on a GPU).",
          {.aliases = {"ds_sequence_parallel_fpdt_chunk_size"},
           .bounds = {0, 1e9},
           .allowed = {"auto"},
           .unit = "tokens"}),
      key("activation_offload", kStringKey, "\"none\"",
          "Where what layers hold of all tokens waits between its uses, chunk by chunk (sequence_chunk_size; 0: a "
          "sequence is one). disk: on a CPU a file of each rank under run_dir, without a name. host: of a GPU, "
          "page-locked "
          "memory of the host (a CPU has it there anyway).",
          {.allowed = {"none", "host", "disk"}}),
      key.word("ds_sequence_parallel_fpdt_offloading", kBoolKey, "DeepSpeed: true is activation_offload host."),
      key.word("ds_sequence_parallel_fpdt", kBoolKey,
               "DeepSpeed: true is sequence_chunk_size 65536, unless that is given."),
      key("global_num_gpus", kIntKey, "null",
          "Ranks that the configuration is meant for; --dry-run prices them unless --ranks says otherwise.",
          {.aliases = {"world_size"},
           .default_text = "the ranks started, --ranks, or what the batch keys say",
           .bounds = {1, 1e6},
           .unit = "ranks"}),
      key("sequence_parallel", kBoolKey, "false",
          "Norms, dropout and the residual stream are cut by rows over the tensor-parallel ranks; without effect on "
          "one."),
      key("scatter_gather_tensors_in_pipeline", kBoolKey, "true",
          "Without sequence parallelism all tensor-parallel ranks hold the same activation: each sends the next stage "
          "a part of its rows, and the ranks there hand each other what they received, as it came (codes, if the site "
          "is coded; sites tp.forward, tp.backward). false: each sends all of it."),
      key.word("no_scatter_gather_tensors_in_pipeline", kBoolKey,
               "Megatron: true is scatter_gather_tensors_in_pipeline false."),
      key("schedule", kStringKey, "\"1f1b\"",
          "Order of micro-batches on the stages; accepted and without effect on one stage.",
          {.allowed = EnumWords::of(ScheduleKind()), .value_aliases = {{"zb", "zb_h1"}, {"zero_bubble", "zb_h1"}}}),
      key("virtual_chunks", kIntKey, "1", "Chunks of layers per stage, for schedule interleaved (at least 2 there).",
          {.aliases = {"virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"},
           .bounds = {1, 65536},
           .unit = "chunks"}),
      key.word("num_layers_per_virtual_pipeline_stage", kIntKey,
               "Megatron: virtual_chunks is num_layers / pipe_parallel_size / this.",
               {.bounds = {1, 10000}, .unit = "layers"}),
      key("pipe_partition_method", kStringKey, "\"uniform\"",
          "How layers are cut into stages: equally many, equally many parameters (embedding and head counted), or "
          "equally long by pipe_partition_costs.",
          {.allowed = EnumWords::of(PartitionMethod()),
           .value_aliases = {{"type:transformer|mlp", "uniform"}, {"type:transformer", "uniform"}}}),
      key("pipe_partition_costs", kListKey | kRealKey, "null",
          "[layer, embedding, head]: what each costs per micro-batch.",
          {.default_text = "measured at the start with pipe_partition_method time", .bounds = {0, 1e12}, .unit = "ms"}),
      key("zero_optimization.stage", kIntKey, "0",
          "What is sharded over data-parallel ranks: 1 optimizer state, 2 and gradients, 3 and weights.",
          {.aliases = {"zero_stage"}, .bounds = {0, 3}}),
      key.word("use_distributed_optimizer", kBoolKey, "Megatron: true is zero_optimization.stage 1."),
      key("zero_optimization.reduce_bucket_size", kIntKey, "500000000",
          "Checked, without effect: gradients of half a block are reduced at a time, as soon as they are whole.",
          {.aliases = {"ddp_bucket_size", "zero_reduce_bucket_size"}, .bounds = {1, 1e15}, .unit = "elements"}),
      key("zero_optimization.allgather_bucket_size", kIntKey, "500000000",
          "Checked, without effect: weights of half a block are gathered at a time, ahead of their use.",
          {.aliases = {"zero_allgather_bucket_size"}, .bounds = {1, 1e15}, .unit = "elements"}),
      key("zero_optimization.overlap_comm", kBoolKey, "true",
          "Gradients are reduced while the backward pass runs, weights gathered ahead of their use; false: each is "
          "waited for where it is started, which changes no value.",
          {.aliases = {"overlap_grad_reduce"}}),
      key("placement.weights", kStringKey, "null",
          "Level of the machine over which weights are sharded; an explicit placement wins over "
          "zero_optimization.stage.",
          {.default_text = "global for ZeRO 3, else replicated", .allowed = levels}),
      key("placement.gradients", kStringKey, "null", "The same for gradients.",
          {.default_text = "global for ZeRO 2 and 3, else replicated", .allowed = levels}),
      key("placement.optimizer", kStringKey, "null", "The same for optimizer state.",
          {.default_text = "global for ZeRO 1 to 3, else replicated", .allowed = levels}),
      key("placement.secondary", kStringKey, "null",
          "Level of a second copy of sharded weights, for the backward pass (ZeRO++'s hpZ: node); narrower than "
          "placement.weights.",
          {.default_text = "none", .allowed = levels}),
      key.word("zero_optimization.zero_hpz_partition_size", kIntKey,
               "DeepSpeed: more than 1 is placement.secondary node (2: pair); how many ranks a node has is found, or "
               "ranks_per_node.",
               {.bounds = {1, 1e6}, .unit = "ranks"}),
      key("hold", kStringKey, "\"auto\"",
          "How long gathered weights stay where placement.weights shards them: one use, one pass of a micro-batch, the "
          "whole step; auto: step under a pipeline where half of the node's memory has room, else unit; the log and "
          "--dry-run name it.",
          {.aliases = {"placement.hold"}, .allowed = {"auto", "unit", "micro_batch", "step"}}),
      key("embedding_sync", kStringKey, "\"fused\"",
          "How the gradient of an embedding that the head shares is summed over first and last stage: one reduction "
          "over both stages' data-parallel ranks, or per stage and then between the two.",
          {.allowed = EnumWords::of(EmbeddingSyncKind())}),
      key("ranks_per_node", kIntKey, "0",
          "Take so many consecutive ranks for a node, whatever the machines say (to rehearse on one); 0: nodes as "
          "found, which --dry-run cannot know.",
          {.bounds = {0, 1e6}, .unit = "ranks"}),
      run("watchdog_seconds", kRealKey, "600",
          "A rank that waits so long for another reports who waits for whom and ends the job with code 71; 0: never. "
          "Below 20, a restart on other hosts may end so, too: its rank 0 first watches the old job's lease for 15 s.",
          {.bounds = {0, 1e9}, .unit = "s"}),
      run("start_timeout_s", kRealKey, "600",
          "A job whose ranks have not all met so long after its start (the launcher, first handshake, the "
          "configuration), "
          "or not all come to its last barrier, says who is missing and ends with code 71; 0: never.",
          {.bounds = {0, 1e9}, .unit = "s"}),
      run.word("distributed_timeout_minutes", kRealKey, "Megatron: watchdog_seconds / 60.",
               {.bounds = {0, 1e7}, .unit = "minutes"}),
      key("communication.all_reduce", kStringKey, "\"auto\"", "Algorithm of all-reduces; auto: by size and group.",
          {.allowed = algorithms}),
      key("communication.reduce_scatter", kStringKey, "\"auto\"", "The same for reduce-scatters.",
          {.allowed = algorithms}),
      key("communication.all_gather", kStringKey, "\"auto\"", "The same for all-gathers.", {.allowed = algorithms}),
      key("communication.chunk_bytes", kIntKey, "262144",
          "Pieces in which large messages travel: the sums of one overlap the wire of the next. Uncoded ones between "
          "two ranks on different nodes are twice as large.",
          {.bounds = {64, 1 << 30}, .unit = "bytes"}),
      key("communication.small_bytes", kIntKey, "8192",
          "Up to this size an all-reduce sends whole vectors: to all ranks, from 8 ranks on along a tree.",
          {.bounds = {0, 1 << 30}, .unit = "bytes"}),
      key("checksum", kStringKey | kBoolKey, "\"auto\"",
          "Which messages carry a CRC-32C that their receiver proves (4 bytes each): those between nodes, all, or "
          "none; a mismatch ends the job with code 71 and names sender, site and message. auto: between_nodes where "
          "several machines are, else false; --dry-run, which does not know them, takes it for false.",
          {.allowed = {"auto", "between_nodes"}}),
      run("link_gbps", kRealKey, "0",
          "Rate of a rank's link, from which --dry-run derives milliseconds per site; 0: bytes only.",
          {.bounds = {0, 1e6}, .unit = "Gbit/s"}),
      key("device", kStringKey, "\"cpu\"", "Where the step runs.", {.allowed = {"cpu", "cuda"}}),
      key("threads_per_rank", kIntKey, "0",
          "CPU threads of each rank; 0: cores of the node / ranks on it, at most OMP_NUM_THREADS where that is set.",
          {.bounds = {0, 65536}, .unit = "threads"}),
  };
  return t;
}

KeyTopic run_keys() {
  KeyTopic t;
  t.title = "Run, checkpoints, evaluation, log";
  t.keys = {
      key("run_dir", kStringKey, "null",
          "Everything that the run leaves behind; an interrupted run resumes from here by itself.",
          {.default_text = "runs/<name of the first configuration file>; without one save, or runs/<name of the "
                           "--args-file>, or runs/run",
           .unit = "path"}),
      key("save", kStringKey, "null", "Directory of checkpoints.",
          {.default_text = "<run_dir>/checkpoints", .unit = "path"}),
      key("load", kStringKey, "null",
          "Checkpoint or run directory to start from, where the run has no checkpoint of its own yet; the same path as "
          "save means to resume, which a run does by itself.",
          {.unit = "path"}),
      key("finetune", kBoolKey, "false",
          "Take only the weights from load, which must be of this model: step, data position and optimizer start "
          "anew."),
      key("no_load_optim", kBoolKey, "false",
          "Do not take the optimizer's state from load: moments, loss scale and schedules begin anew, steps and "
          "samples count on."),
      key("save_interval", kIntKey, "0",
          "Steps between checkpoints; 0: by save_interval_minutes and extra_save_iters alone. There is always one at "
          "the end and on signals.",
          {.aliases = {"checkpoint_factor"}, .bounds = {0, 1e12}, .unit = "steps"}),
      key("save_interval_minutes", kRealKey, "30",
          "Minutes from a checkpoint, or the start, to the next, whatever save_interval says; 0: not by the clock.",
          {.bounds = {0, 1e9}, .unit = "minutes"}),
      key("extra_save_iters", kListKey | kRealKey, "[]",
          "Steps behind which there is a checkpoint in any case; 0: of the weights that the run starts from.",
          {.bounds = {0, 1e12}, .unit = "steps"}),
      key("keep_last_n_checkpoints", kIntKey, "0",
          "Older checkpoints are removed; 0 keeps all, otherwise at least 2 verified ones stay.",
          {.bounds = {0, 1e9}, .unit = "checkpoints"}),
      key("async_save", kBoolKey, "true", "Checkpoints are written while training goes on."),
      key("eval_interval", kIntKey, "1000", "Steps between evaluations; 0: at the end alone.",
          {.bounds = {0, 1e12}, .unit = "steps"}),
      key("eval_iters", kIntKey, "100", "Batches per evaluation; 0 or -1: none.",
          {.bounds = {-1, 1e9}, .unit = "batches"}),
      key("log_interval", kIntKey, "10", "Steps between lines on the console (metrics.jsonl has every step).",
          {.bounds = {1, 1e12}, .unit = "steps"}),
      key("check_weight_hash_across_dp_replicas_interval", kIntKey, "0",
          "Steps between comparisons of the weights' hashes over all ranks that hold the same part of a tensor; a "
          "difference ends the run with exit code 70 and names tensor and ranks. 0: none.",
          {.bounds = {0, 1e12}, .unit = "steps"}),
      key("straggler_interval", kIntKey, "100",
          "Steps between comparisons of the ranks' medians of computing and of waiting; a rank that computes, or lets "
          "others wait, much longer than its like is named. 0: none.",
          {.bounds = {0, 1e9}, .unit = "steps"}),
      key("straggler_ratio", kRealKey, "1.5", "From how many times the median on a rank is named.",
          {.bounds = {1, 1e6, true}}),
      key("trace", kBoolKey, "false",
          "Write <run_dir>/trace.rank<k>.json for Perfetto or chrome://tracing: compute, every site, waits."),
      key("trace_steps", kIntKey | kStringKey | kListKey, "20",
          "What a trace shows: so many steps from the start (or resume) on, or [first, last], also \"first-last\".",
          {.unit = "steps"}),
      key("exit_interval", kIntKey, "0",
          "Save and leave with exit code 75 after each step that this divides; 0: never.",
          {.bounds = {0, 1e12}, .unit = "steps"}),
      key("exit_duration_in_mins", kRealKey, "0", "Save and leave with exit code 75 after this time; 0: no limit.",
          {.bounds = {0, 1e9}, .unit = "minutes"}),
      key("peak_theoretical_tflops", kRealKey, "0", "Denominator of MFU; 0: MFU is not reported.",
          {.bounds = {0, 1e9}, .unit = "TFLOP/s per rank"}),
      key("faults", kListKey, "[]", "Faults to inject, for tests of recovery; only with --allow-faults."),
  };
  return t;
}

}  // namespace thinwire
