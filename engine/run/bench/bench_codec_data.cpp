// Trains the whole model on one rank, then runs its first half forward, as the first of two pipeline stages.
#include "engine/run/bench/bench_codec_data.h"

#include <bit>
#include <map>
#include <memory>

#include "engine/base/core/philox.h"
#include "engine/run/bench/benches.h"
#include "engine/run/config/load_config.h"
#include "engine/run/train/bare_training.h"
#include "engine/run/train/gather_tensors.h"
#include "engine/run/train/rank_layout.h"
#include "engine/run/train/synthetic_batches.h"

namespace thinwire {
namespace {

constexpr int64_t kActivationBatches = 8;
using Values = std::map<std::string, std::vector<float>>;

RunConfig tiny(int ranks, std::vector<std::string> more) {
  std::vector<std::string> all = shape_overrides("tiny");
  for (const char* o : {"train_iters=1", "optimizer.params.lr=2e-3", "run_dir=runs/bench"}) all.emplace_back(o);
  all.insert(all.end(), more.begin(), more.end());
  ConfigOptions options;
  options.ranks = ranks;
  return load_config({}, all, options).run;
}

// A batch whose text can be learned: each token has eight successors, taken with chances 1/2, 1/4, ...
Batch chain_batch(int64_t index, const RunConfig& config) {
  const int64_t rows = config.data.micro_batch, length = config.data.seq_length;
  const auto vocab = static_cast<uint64_t>(config.model.vocab);
  Batch batch = synthetic_batch(index, rows, length, config.model.vocab);
  for (int64_t r = 0; r < rows; ++r) {
    int32_t token = batch.inputs[static_cast<size_t>(r * length)];
    for (int64_t t = 0; t < length; ++t) {
      const PhiloxBlock bits = philox(
          {3, 4}, {static_cast<uint32_t>(t), static_cast<uint32_t>(batch.sample_ids[static_cast<size_t>(r)]), 0, 0});
      const auto which = static_cast<uint32_t>(std::countr_zero(bits[0] | 128u));
      const size_t at = static_cast<size_t>(r * length + t);
      batch.inputs[at] = token;
      token = static_cast<int32_t>(philox({5, 6}, {static_cast<uint32_t>(token), which, 0, 0})[0] % vocab);
      batch.targets[at] = token;
    }
  }
  return batch;
}

DataSet joined(const std::string& name, const ParamList& params, const Values& values) {
  DataSet set;
  set.name = name;
  for (const ParamSpec& p : params) {
    const std::vector<float>& v = values.at(p.name);
    const auto count = static_cast<int64_t>(v.size());
    if (!p.is_vector && p.cols > 0)
      set.matrices.push_back({static_cast<int64_t>(set.values.size()), count / p.cols, p.cols});
    set.values.insert(set.values.end(), v.begin(), v.end());
  }
  return set;
}

DataSet activations(const Values& weights, int64_t first_batch) {
  const RunConfig config = tiny(2, {"pipe_parallel_size=2"});
  const std::unique_ptr<Device> device = make_cpu_device();
  Replica half(config, layout_of(config, 0), nullptr, device.get(), &cpu_ops(), false);
  for (const ParamSpec& p : half.store().params())
    half.store().set(half.device(), half.stream(), p.name, weights.at(p.name));
  half.weights_changed();
  DataSet set;
  set.name = "activation";
  int64_t rows = 0, cols = 0;
  for (int64_t i = 0; i < kActivationBatches; ++i) {
    const Batch batch = chain_batch(first_batch + i, config);
    const MicroBatch micro = half.upload(batch, counted_tokens(batch), false);
    half.stage().evaluate(half.exec(), micro);
    const View out = half.stage().output(0);
    std::vector<float> values(static_cast<size_t>(out.count()));
    half.read(out, values.data());
    set.values.insert(set.values.end(), values.begin(), values.end());
    rows += out.rows(), cols = out.cols();
  }
  set.matrices.push_back({0, rows, cols});
  return set;
}

}  // namespace

TrainedData train_for_data(int64_t steps) {
  const RunConfig config = tiny(1, {});
  const std::unique_ptr<Device> device = make_cpu_device();
  Replica replica(config, device.get(), &cpu_ops(), true);
  replica.set_fresh_weights();
  BareTraining training(replica);
  Values gradients;
  bool last = false;
  training.step.set_gradient_sink([&] {
    if (!last) return;
    std::vector<View> pieces;
    for (const OwnedPiece& piece : replica.store().owned()) pieces.push_back(piece.gradient);
    gradients = gather_tensors(replica, pieces);
  });
  int64_t next = 0;
  TrainedData data;
  for (int64_t i = 0; i < steps; ++i) {
    last = i + 1 == steps;
    const StepOutcome outcome =
        training.take_step(static_cast<int>(config.accumulation), [&] { return chain_batch(next++, config); });
    if (i == 0) data.first_loss = outcome.loss;
    data.last_loss = outcome.loss;
  }
  replica.traffic().drain();
  const Values weights = gather_tensors(replica, {});
  const ParamList params = list_parameters(config.model);
  data.steps = steps;
  data.parameters = count_parameters(params, false);
  data.sets.push_back(joined("gradient", params, gradients));
  data.sets.push_back(activations(weights, next));
  data.sets.push_back(joined("weight", params, weights));
  return data;
}

}  // namespace thinwire
