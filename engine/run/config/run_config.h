// The resolved configuration of a run: plain numbers that every module above reads. Built by config/resolve, never by
// hand.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "compression/rule.h"
#include "data/data_config.h"
#include "engine/base/core/key_spec.h"
#include "engine/base/core/sequence_cut.h"
#include "model/model_config.h"
#include "optim/optim_config.h"
#include "parallel/collective/communicator.h"
#include "parallel/schedule/partition.h"
#include "parallel/schedule/plan.h"
#include "parallel/zero/placement.h"

namespace thinwire {

struct LayoutConfig {
  int64_t pipeline = 1, tensor = 1, data = 1;       // ranks per dimension; data: replicas of the weights
  int64_t context = 1;                              // of these, how many share the sequences of a micro-batch
  SequenceWay sequence_way = SequenceWay::kGather;  // cp_comm_type
  bool sequence_parallel = false;
  bool scatter_in_pipeline = true;  // tensor ranks that hold the same activation send a part of it each
  ScheduleKind schedule_kind = ScheduleKind::k1f1b;
  int64_t virtual_chunks = 1;  // chunks of layers per stage, for schedule interleaved
  PartitionMethod partition = PartitionMethod::kUniform;
  // For kTime: measured once (unless given), then part of the configuration.
  bool costs_given = false;
  double layer_ms = 1.0, embedding_ms = 0.0, head_ms = 0.0;

  PlacementLevels placement;
  Hold hold = Hold::kUnit;
  bool hold_given = false;  // otherwise chosen by memory
  EmbeddingSyncKind embedding_sync = EmbeddingSyncKind::kFused;
  bool overlap_communication = true;  // false: every reduction and gather is waited for where it is started

  int64_t ranks_per_node = 0;  // 0: nodes as discovered; otherwise pretend that so many consecutive ranks are a node
  int64_t found_ranks_per_node = 0;  // ConfigOptions: on every node alike; 0: not known
  int64_t ranks_on_node() const { return ranks_per_node > 0 ? ranks_per_node : found_ranks_per_node; }
  double watchdog_seconds = 600.0, start_timeout_s = 600.0;
  double link_gbps = 0.0;  // --dry-run derives milliseconds from it; 0: bytes only
  CommTuning tuning;
  bool trace = false;
  int64_t trace_first = 0, trace_steps = 20;  // steps that a trace shows; first 0: from the start (or resume) on
};

// Losses that jump (spike_guard.h).
enum class SpikeAction : uint8_t { kOff, kWarn, kSkip };
struct SpikeConfig {
  SpikeAction action = SpikeAction::kWarn;
  int64_t window = 128;     // losses of applied steps that one is compared with, at least 8
  double threshold = 10.0;  // spreads above their median
  int64_t budget = 5;       // steps in a row that may be skipped; the next one is taken for a real shift
};

struct RunConfig {
  ModelConfig model;
  OptimConfig optim;
  DataConfig data;
  LayoutConfig layout;

  std::string run_dir;  // default runs/<name of the first config file>
  std::string device = "cpu";
  int64_t threads_per_rank = 0;  // 0: cores of the node / ranks on it
  uint64_t seed = 1234;
  bool deterministic = true;
  std::string product_table;  // file of measured algorithms; empty: none
  bool cuda_graphs = false;
  DType gradient_dtype = DType::f32;  // of the gradients that the optimizer reads

  int64_t train_iters = 0;
  SpikeConfig spike;
  std::set<int64_t> iterations_to_skip;  // steps, from 1 on, that read their batch and do nothing else
  int64_t straggler_interval = 100;      // steps between comparisons of the ranks' times; 0: none
  int64_t adapt_interval = 1000;         // compression.adapt: updates from a decision to the next trials; 0: never
  double straggler_ratio = 1.5;          // to the median, from which a rank is named
  int64_t accumulation = 1;              // micro-batches per step and rank (without ramp)
  int64_t eval_interval = 0, eval_iters = 0;
  int64_t log_interval = 10;
  int64_t weight_hash_interval = 0;       // 0: never
  int64_t save_interval = 0;              // 0: not by the step
  double save_interval_minutes = 30.0;    // 0: not by the clock
  std::vector<int64_t> extra_save_iters;  // steps behind which there is a save in any case
  int64_t keep_last = 0;  // keep_last_n_checkpoints; 0 keeps all, otherwise at least 2 verified ones stay
  bool async_save = true;
  std::string save_dir;   // default <run_dir>/checkpoints
  std::string load;       // explicit checkpoint or run directory to start from
  bool finetune = false;  // weights only: step, data position and optimizer start anew
  bool no_load_optim = false;
  std::string init_from_hf;   // directory with HF safetensors to start the weights from
  int64_t exit_interval = 0;  // 0: none
  double exit_duration_in_mins = 0.0;
  double peak_tflops = 0.0;  // denominator of MFU; 0: measured matrix-product peak is not claimed, MFU is null

  std::string tokenizer;  // as the `tokenize` program spells it: byte | bpe:FILE | sentencepiece:FILE
  CompressionConfig compression;
  std::string faults_json;  // only with --allow-faults
  std::string command_line;
};

}  // namespace thinwire
