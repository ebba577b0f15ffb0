// What tapes send is what the dry run counts, byte by byte, for layouts and presets; and every send meets its receive.
#include <gtest/gtest.h>

#include "engine/run/config/load_config.h"
#include "engine/run/config/named_shapes.h"
#include "engine/run/plan/tape_links.h"
#include "engine/run/train/step_rehearsal.h"

namespace thinwire::tape_test {
namespace {

RunConfig config_of(std::vector<std::string> more, int ranks, int per_node, const std::string& precision = "bfloat16") {
  std::vector<std::string> overrides = shape_overrides("tiny");
  overrides.insert(overrides.end(), more.begin(), more.end());
  overrides.push_back("precision=" + precision);
  ConfigOptions options;
  options.ranks = ranks;
  options.found_ranks_per_node = per_node;
  options.dry_run = true;
  return load_config({}, overrides, options).run;
}

// Bytes that the operations of a step send, by site: equal to Tape::counted where lengths are known.
std::vector<int64_t> sent_by(const Tape& tape, int step) {
  std::vector<int64_t> bytes(kSiteNames.size(), 0);
  int at = 0;
  for (const TapeEvent& event : tape.events) {
    if (event.kind == TapeKind::kStep) ++at;
    if (event.kind != TapeKind::kIssue || at != step) continue;
    const TapeOperation& operation = tape.operations[static_cast<size_t>(event.operation)];
    for (int i = operation.first; i < operation.first + operation.count; ++i) {
      const TapeInstruction& instruction = tape.code[static_cast<size_t>(i)];
      if (instruction.code != TapeCode::kSend) continue;
      // What an operation hands on in another group is that group's.
      for (int l = instruction.first; l < instruction.first + instruction.count; ++l) {
        const TapeLeg& leg = tape.legs[static_cast<size_t>(l)];
        const auto group = tape.sites.find(leg.channel / 2);
        bytes[static_cast<size_t>(group != tape.sites.end() ? group->second : operation.site)] += leg.bytes;
      }
    }
  }
  return bytes;
}

// Ranks share the cores of a node, however many it could hold.
TEST(Tape, ThreadsAreThoseOfARun) {
  Cluster cluster;
  cluster.ranks_per_node = 8, cluster.machine.cores = 16;
  EXPECT_EQ(threads_of(config_of({}, 2, 2), cluster), 8);
  EXPECT_EQ(threads_of(config_of({}, 8, 8), cluster), 2);
  cluster.nodes = 2;
  EXPECT_EQ(threads_of(config_of({}, 16, 8), cluster), 2);
  cluster.shared_cores = 4;
  EXPECT_EQ(threads_of(config_of({}, 2, 1), cluster), 2);
  EXPECT_EQ(threads_of(config_of({}, 16, 8), cluster), 1);
}

TEST(Tape, SendsWhatTheDryRunCounts) {
  struct Case {
    std::vector<std::string> keys;
    int ranks, per_node;
  };
  std::vector<Case> cases = {{{}, 2, 1},
                             {{}, 8, 2},
                             {{"zero_optimization.stage=1"}, 4, 2},
                             {{"zero_optimization.stage=2", "gradient_accumulation_steps=2"}, 3, 1},
                             {{"zero_optimization.stage=3", "gradient_accumulation_steps=2"}, 4, 4},
                             {{"model_parallel_size=2"}, 4, 2},
                             {{"model_parallel_size=4", "sequence_parallel=true"}, 4, 2},
                             {{"context_parallel_size=2"}, 4, 2},
                             {{"pipe_parallel_size=2", "gradient_accumulation_steps=3"}, 4, 1},
                             {{"pipe_parallel_size=4", "schedule=zb_h1", "gradient_accumulation_steps=4"}, 4, 4}};
  for (const char* preset : {"thinwire", "bf16_wire", "zeropp", "sdp4bit", "powersgd", "optimus_cc"}) {
    cases.push_back({{std::string("compression.preset=") + preset}, 2, 1});
    cases.push_back({{std::string("compression.preset=") + preset, "zero_optimization.stage=1"}, 4, 2});
  }
  cases.push_back({{"compression.preset=thinwire", "pipe_parallel_size=2", "gradient_accumulation_steps=2"}, 4, 2});
  for (const Case& c : cases) {
    const RunConfig config = config_of(c.keys, c.ranks, c.per_node);
    Cluster cluster;
    cluster.nodes = c.ranks / c.per_node, cluster.ranks_per_node = c.per_node;
    std::vector<Tape> tapes;
    for (int rank = 0; rank < c.ranks; ++rank) {
      tapes.push_back(record_tape(config, cluster, rank, 3));
      const Tape& tape = tapes.back();
      for (int step = 0; step < 3; ++step) {
        const std::vector<int64_t> sent = sent_by(tape, step);
        for (size_t site = 0; site < sent.size(); ++site) {
          const SitePrice& counted = tape.counted[static_cast<size_t>(step)][site];
          if (counted.exact)
            EXPECT_EQ(sent[site], counted.bytes)
                << (c.keys.empty() ? "" : c.keys[0]) << " rank " << rank << " step " << step << " " << kSiteNames[site];
          else
            EXPECT_LE(sent[site], counted.bytes) << c.keys[0];
        }
      }
      // A step in the middle is what the dry run prices: one step with the parameter all-gathers behind it.
      StepRehearsal dry(config, layout_of(config, rank, nodes_of(cluster, c.ranks)));
      const SitePrices& prices = dry.take_step(static_cast<int>(config.accumulation));
      for (size_t site = 0; site < prices.size(); ++site)
        EXPECT_EQ(tape.counted[1][site].bytes, prices[site].bytes)
            << (c.keys.empty() ? "" : c.keys[0]) << " " << kSiteNames[site];
    }
    Folding all;
    all.mesh = mesh_shape(config);
    EXPECT_EQ(link_tapes(tapes, all, cluster).unmatched, 0);  // and CHECKs that no send is left over
  }
}

// Seconds of packing, adding and handing over in three steps.
double work_of(const Tape& tape) {
  double seconds = 0.0;
  for (const TapeInstruction& i : tape.code)
    if (i.code == TapeCode::kWork) seconds += i.seconds;
  return seconds;
}

// No cache holds gradients and weights of a large model from one of their operations to the next; activations have just
// been computed.
TEST(Tape, GradientsAndWeightsComeFromMemory) {
  Cluster near, far;
  near.nodes = 2;
  near.machine.any_codec.encode = near.machine.any_codec.decode = 1e10;
  far = near;
  far.machine.from_memory = {.encode = 1e-9, .residual = 1e-9, .decode = 1e-9, .message = 1e-9};
  for (const char* preset : {"none", "bf16_wire", "thinwire"}) {
    const std::string compression = std::string("compression.preset=") + preset;
    const RunConfig data = config_of({compression, "zero_optimization.stage=1", "hidden_size=1024"}, 2, 1);
    const Tape beside = record_tape(data, near, 0, 3), tape = record_tape(data, far, 0, 3);
    EXPECT_EQ(sent_by(beside, 1), sent_by(tape, 1)) << preset;
    const double longer = (work_of(tape) - work_of(beside)) / 3.0;
    EXPECT_GT(longer, 0.0) << preset;
    if (std::string(preset) == "none") {
      const std::vector<int64_t> sent = sent_by(tape, 1);
      const double bytes = static_cast<double>(sent[static_cast<size_t>(Site::kDpGradient)] +
                                               sent[static_cast<size_t>(Site::kZeroParameter)]);
      EXPECT_GT(longer, 0.5e-9 * bytes);
      EXPECT_LT(longer, 2e-9 * bytes);  // read once where it is sent, written once where it comes
    }
    const RunConfig tensor = config_of({compression, "model_parallel_size=2"}, 2, 1);
    EXPECT_DOUBLE_EQ(work_of(record_tape(tensor, near, 0, 3)), work_of(record_tape(tensor, far, 0, 3))) << preset;
  }
}

// Seconds of compute in the middle one of three steps.
double computed_by(const Tape& tape) {
  double seconds = 0.0;
  int at = 0;
  for (const TapeEvent& event : tape.events) {
    if (event.kind == TapeKind::kStep) ++at;
    if (event.kind == TapeKind::kCompute && at == 1) seconds += event.seconds;
  }
  return seconds;
}

// Gradients that were summed are zeroed again by the optimizer's own pass where this rank owns them, else by the
// device: with ZeRO-1 what others own, with ZeRO-2 all that was added to. No op tells of it.
TEST(Tape, WhatTheDeviceFillsTakesTime) {
  constexpr double kRate = 1e6;  // bytes per second; all else takes no time
  Cluster cluster;
  cluster.nodes = 2;
  cluster.machine.flops = cluster.machine.bytes_per_second = 1e30;
  cluster.machine.passes["fill_constant"].alone.add(1.0, kRate);
  double filled[3] = {}, sent = 0.0;
  for (int stage = 0; stage < 3; ++stage) {
    const RunConfig config =
        config_of({"zero_optimization.stage=" + std::to_string(stage), "hidden_size=512"}, 2, 1, "float32");
    const Tape tape = record_tape(config, cluster, 0, 3);
    filled[stage] = kRate * computed_by(tape);
    // Of two ranks each sends the gradients that the other owns.
    if (stage > 0) sent = static_cast<double>(sent_by(tape, 1)[static_cast<size_t>(Site::kDpGradient)]);
  }
  EXPECT_LT(filled[0], 0.2 * sent);  // vectors and embeddings, by the optimizer
  EXPECT_NEAR(filled[1], sent, 0.2 * sent);
  EXPECT_NEAR(filled[2], 2.0 * sent, 0.4 * sent);
}

// Operations repeat, and what they send to whom is told once: a step more takes no legs more.
TEST(Tape, LegsAreToldOnce) {
  const RunConfig config = config_of({"model_parallel_size=2", "gradient_accumulation_steps=2"}, 4, 2);
  Cluster cluster;
  cluster.nodes = 2, cluster.ranks_per_node = 2;
  const Tape three = record_tape(config, cluster, 0, 3), four = record_tape(config, cluster, 0, 4);
  EXPECT_GT(four.code.size(), three.code.size());
  EXPECT_EQ(four.legs.size(), three.legs.size());
}

// Pieces told as one keep their bytes and their number of messages.
TEST(Tape, MergedPiecesSendTheSame) {
  const RunConfig config = config_of({"compression.preset=thinwire", "zero_optimization.stage=2"}, 4, 2);
  Cluster cluster;
  cluster.nodes = 2, cluster.ranks_per_node = 2;
  const Tape whole = record_tape(config, cluster, 1, 3), merged = record_tape(config, cluster, 1, 3, 1);
  EXPECT_EQ(sent_by(whole, 1), sent_by(merged, 1));
  EXPECT_LE(merged.code.size(), whole.code.size());
}

}  // namespace
}  // namespace thinwire::tape_test
