// Small ragged models of the three families, and one micro-batch through them: what the model laws share.
#pragma once

#include <cmath>
#include <memory>
#include <vector>

#include "engine/base/core/philox.h"
#include "model/stage.h"

namespace thinwire::testing {

inline ModelConfig small_model(int family) {
  ModelConfig m;
  m.layers = 3, m.hidden = 40, m.heads = 4, m.kv_heads = 4, m.head_dim = 10, m.ffn = 72, m.vocab = 61,
  m.padded_vocab = 64;
  m.seq_length = 19, m.max_positions = 32, m.activation = ActivationKind::kGeluTanh, m.init_std = 0.2f;
  if (family == 1) {  // GPT-NeoX
    m.positions = PositionKind::kRotary, m.rotary_fraction = 0.5f, m.parallel_residual = true, m.tied_head = false;
    m.activation = ActivationKind::kGeluExact;
  }
  if (family == 2) {  // Llama
    m.positions = PositionKind::kRotary, m.norm = NormKind::kRmsNorm, m.activation = ActivationKind::kSwiglu,
    m.kv_heads = 2, m.tied_head = false;
    m.bias_attention = m.bias_mlp = m.bias_norm = false;
  }
  return m;
}

// One rank's share of a model on the CPU, or on a device whose memory the host can touch as long as nothing is queued,
// with one micro-batch of synthetic tokens: the same on every rank.
struct RankBed {
  ModelConfig config;  // of the whole model
  ModelShard shard;
  BatchShape shape;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream = device->make_stream();
  Exec exec;
  Arena arena{device.get()};
  Ports ports;
  ParamStore store;
  RotaryTables rotary;
  StageScratch scratch;
  std::vector<std::unique_ptr<Stage>> stages;  // one per chunk
  View tokens, targets, weight, ids, scale, loss;

  RankBed(const ModelShard& share, Ports site_objects, UnitEvents& events, int threads, int64_t batch = 3,
          int slots = 1, const StorePlacement& where = {}, std::unique_ptr<Device> place = make_cpu_device(),
          const OpTable& ops = cpu_ops())
      : config(share.whole),
        shard(share),
        shape{batch, config.seq_length},
        device(std::move(place)),
        exec(make_exec(ops, *device, *stream, threads)),
        ports(std::move(site_objects)),
        store(shard, where, arena, true),
        rotary(make_rotary_tables(config, config.max_positions, arena, device.get(), stream.get())),
        scratch(take_stage_scratch(shard, shape, true, arena)) {
    for (int chunk = 0; chunk < static_cast<int>(shard.chunks.size()); ++chunk) {
      stages.push_back(
          std::make_unique<Stage>(shard, chunk, store, shape, slots, ports, &rotary, scratch, events, 7, arena));
    }
    const int64_t n = shape.tokens();
    tokens = arena.take(MemoryCategory::kData, DType::i32, {n});
    targets = arena.take(MemoryCategory::kData, DType::i32, {n});
    weight = arena.take(MemoryCategory::kData, DType::f32, {n});
    ids = arena.take(MemoryCategory::kData, DType::i64, {batch});
    scale = arena.take(MemoryCategory::kData, DType::f32, {1});
    loss = arena.take(MemoryCategory::kData, DType::f64, {1});
    store.initialize(exec, 99);
    disturb_vectors();
    stream->synchronize();
    scale.as<float>()[0] = 1.0f;
    fill(0, 1.0f / static_cast<float>(n));
  }

  // Samples first, first + 1, ... with the given weight per token.
  void fill(int64_t first, float row_weight) {
    for (int64_t b = 0; b < shape.batch; ++b) {
      ids.as<int64_t>()[b] = first + b;
      for (int64_t t = 0; t < shape.length; ++t) {
        const auto draw = [&](int64_t at) {
          return static_cast<int32_t>(
              philox({5, 6}, {static_cast<uint32_t>(at), static_cast<uint32_t>(first + b), 0, 0})[0] %
              static_cast<uint32_t>(config.vocab));
        };
        tokens.as<int32_t>()[b * shape.length + t] = draw(t);
        targets.as<int32_t>()[b * shape.length + t] = draw(t + 1);
        weight.as<float>()[b * shape.length + t] = row_weight;
      }
    }
  }

  // Biases start at zero and norm weights at one, where doubling or forgetting them would not show.
  void disturb_vectors() {
    for (const ParamSpec& p : list_parameters(config)) {
      if (!p.is_vector) continue;
      std::vector<float> values(static_cast<size_t>(p.cols));
      for (size_t i = 0; i < values.size(); ++i) {
        const float draw = uniform01(philox({8, 9}, {static_cast<uint32_t>(i), p.id, 0, 0})[0]) - 0.5f;
        values[i] = (p.init == InitKind::kOne ? 1.0f : 0.0f) + 0.3f * draw;
      }
      store.set(*device, *stream, p.name, values);
    }
    store.refresh_working(exec);
  }

  MicroBatch micro(bool training) {
    return {tokens, static_cast<const int64_t*>(ids.data), {targets, weight, training ? scale : View{}, loss}};
  }
  double take_loss() const {
    stream->synchronize();
    const double sum = loss.as<double>()[0];
    loss.as<double>()[0] = 0.0;
    return sum;
  }
  // All gradients, tensor after tensor.
  std::vector<float> gradients() const {
    stream->synchronize();
    std::vector<float> all;
    for (const ParamSpec& p : store.params()) {
      const View g = store.gradient(p.name);
      all.insert(all.end(), g.as<float>(), g.as<float>() + g.count());
    }
    return all;
  }
};

// One rank that holds everything.
struct Bed : RankBed {
  explicit Bed(const ModelConfig& c, int threads, int64_t batch = 3, std::unique_ptr<Device> place = make_cpu_device(),
               const OpTable& ops = cpu_ops())
      : RankBed(ModelShard::all_of(c), Ports(), nothing(), threads, batch, 1, {}, std::move(place), ops),
        stage(*stages[0]) {}

  double train_once() {
    stage.forward(exec, micro(true), 0);
    stage.backward(exec, 0);
    return take_loss();
  }
  double evaluate() {
    stage.evaluate(exec, micro(false));
    return take_loss();
  }

  Stage& stage;

 private:
  static UnitEvents& nothing() {
    static NoUnitEvents events;
    return events;
  }
};

}  // namespace thinwire::testing
