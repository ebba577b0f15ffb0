// Measures and chooses on rank 0, and tells the others.
#include "engine/run/train/settle_layout.h"

#include <algorithm>
#include <cmath>

#include "engine/base/core/error.h"
#include "engine/base/core/log.h"
#include "engine/run/config/enum_words.h"
#include "engine/run/trace/memory_probe.h"
#include "engine/run/train/backend.h"
#include "engine/run/train/bare_training.h"
#include "engine/run/train/dry_run.h"
#include "engine/run/train/memory_check.h"
#include "engine/run/train/synthetic_batches.h"

namespace thinwire {
namespace {

// The fastest of a few steps of a model of so many layers, one micro-batch each, on one rank.
double time_of_layers(RunConfig run, int64_t layers) {
  run.model.layers = layers;
  run.layout = LayoutConfig();
  run.data.global_batch = run.data.micro_batch;
  run.accumulation = 1;
  run.cuda_graphs = false;
  const Backend backend = open_backend(run.device, 0);
  try {
    refuse_what_does_not_fit(run, 1, *backend.device, false);
  } catch (const Error& e) {
    throw_bad_config(
        "pipe_partition_method: time measures whole layers and sequences on one rank; give pipe_partition_costs, or "
        "say uniform: " +
        std::string(e.what()));
  }
  Replica replica(run, backend.device.get(), backend.ops, true);
  replica.set_fresh_weights();
  BareTraining training(replica);
  training.timer.wait_for(replica.exec().stream);
  const StepTimer& timer = training.timer;
  double best = 1e300;
  for (int64_t i = 0; i < 5; ++i) {
    training.timer.reset();
    training.take_step(1,
                       [&] { return synthetic_batch(i, run.data.micro_batch, run.data.seq_length, run.model.vocab); });
    best = std::min(best, timer.ms(StepPart::kForward) + timer.ms(StepPart::kBackward));
    if (best > 5000.0) break;  // the other ranks wait, and their watchdogs count
  }
  return best;
}

// Milliseconds of forward and backward of one micro-batch through one layer, and through what is left (embedding, head
// and loss), on this machine with one rank.
struct MeasuredCosts {
  double layer_ms = 0.0, rest_ms = 0.0;
};
MeasuredCosts measure_costs(const RunConfig& run) {
  // In turn, and again where a busy machine made one layer look as long as three: a layer that costs nothing would make
  // all partitions equal, and could not be given as pipe_partition_costs.
  double one = 1e300, three = 1e300;
  for (int round = 0; round < 3 && (round == 0 || three <= one); ++round) {
    one = std::min(one, time_of_layers(run, 1));
    three = std::min(three, time_of_layers(run, 3));
  }
  const double layer = three > one ? (three - one) / 2.0 : three / 3.0;
  return {layer, std::max(0.0, one - layer)};
}

// As stored and shared: two digits say as much as a measurement does.
double rounded(double ms) {
  if (!(ms > 0.0)) return 0.0;
  const double unit = std::pow(10.0, std::floor(std::log10(ms)) - 1.0);
  return std::round(ms / unit) * unit;
}

std::optional<std::array<double, 3>> settle_costs(RunConfig& run, Job& job,
                                                  const std::optional<std::array<double, 3>>& known) {
  LayoutConfig& layout = run.layout;
  if (layout.partition != PartitionMethod::kTime || layout.costs_given || layout.pipeline == 1) return std::nullopt;
  if (known) {
    layout.layer_ms = (*known)[0], layout.embedding_ms = (*known)[1], layout.head_ms = (*known)[2];
    return known;
  }
  const std::string text = job.control().made_by_first([&] {
    const MeasuredCosts costs = measure_costs(run);
    return std::to_string(rounded(costs.layer_ms)) + " " + std::to_string(rounded(costs.rest_ms));
  });
  const size_t space = text.find(' ');
  layout.layer_ms = std::stod(text.substr(0, space)), layout.embedding_ms = 0.0;
  layout.head_ms = std::stod(text.substr(space + 1));
  log_info("pipe_partition_method time: a layer takes " + text.substr(0, space) + " ms, the head " +
           text.substr(space + 1) + " ms; pipe_partition_costs=[" + text.substr(0, space) + ",0," +
           text.substr(space + 1) + "] repeats this partition");
  return std::array<double, 3>{layout.layer_ms, layout.embedding_ms, layout.head_ms};
}

void settle_hold(RunConfig& run, Job& job) {
  LayoutConfig& layout = run.layout;
  if (layout.hold_given || layout.placement.weights == Level::kReplicated) return;
  Hold hold = Hold::kUnit;
  double memory = static_cast<double>(memory_limit().bytes);
  if (run.device != "cpu") {
    std::string owner;
    job.agree([&] {
      const Backend backend = open_backend(run.device, job.local_rank());
      memory = static_cast<double>(backend.device->memory_total()) * job.local_size();
      owner = backend.device->memory_owner();
    });
    memory /= job.sharers(owner);
  }
  job.agree([&] {
    if (job.first()) hold = choose_hold(run, job.local_size(), memory);
  });
  layout.hold = static_cast<Hold>(job.control().agree_max(static_cast<int64_t>(hold)));
  log_info("hold: gathered weights stay for one " + word_of(layout.hold));
}

}  // namespace

std::optional<std::array<double, 3>> settle_layout(RunConfig& run, Job& job,
                                                   const std::optional<std::array<double, 3>>& known) {
  const auto costs = settle_costs(run, job, known);
  settle_hold(run, job);
  return costs;
}

}  // namespace thinwire
