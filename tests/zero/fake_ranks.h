// A fake model on ranks as threads: it uses units as model/stage.cpp does, and knows what every weight and every sum of
// gradients must be. Sums are exact in fp32, so that all comparisons are of bits.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "engine/base/core/philox.h"
#include "model/param_store.h"
#include "model/params.h"
#include "model/unit_steps.h"
#include "optim/optimizer.h"
#include "parallel/sites/unit_traffic.h"
#include "tests/support/local_world.h"

namespace thinwire::zero_test {

struct Case {
  MeshShape shape;
  Placement placement;
  bool split_backward = false, sequence_parallel = false, tied = true, bf16 = false;
  bool linked = false;  // stages wait for each other as in a pipeline
  int micro_batches = 1, updates = 3, seed = 0;
};

inline std::string describe(const Case& c) {
  const Placement& p = c.placement;
  return "seed " + std::to_string(c.seed) + ": pp " + std::to_string(c.shape.pipeline) + " dp " +
         std::to_string(c.shape.data) + " tp " + std::to_string(c.shape.tensor) + " placement " +
         std::to_string(p.weights) + "|" + std::to_string(p.gradients) + "|" + std::to_string(p.optimizer) +
         " secondary " + std::to_string(p.secondary) + " hold " + std::to_string(static_cast<int>(p.hold)) +
         (p.embedding == EmbeddingSyncKind::kFused ? " fused" : " two-step") + " micro-batches " +
         std::to_string(c.micro_batches) + (c.split_backward ? " split" : "") + (c.tied ? " tied" : "") +
         (c.sequence_parallel ? " sp" : "") + (c.bf16 ? " bf16" : "");
}

inline ModelConfig model_of(const Case& c) {
  ModelConfig m;
  m.layers = 7, m.hidden = 40, m.heads = 4, m.kv_heads = 4, m.head_dim = 10, m.ffn = 109, m.vocab = 301,
  m.padded_vocab = 303, m.seq_length = 16, m.max_positions = 37, m.init_std = 0.3f, m.tied_head = c.tied;
  m.dtype = c.bf16 ? DType::bf16 : DType::f32;
  return m;
}

inline ModelShard shard_of(const Case& c, const Coordinates& at) {
  ModelShard s;
  s.whole = model_of(c);
  s.tensor_rank = at.tensor, s.tensor_size = c.shape.tensor;
  s.sequence_parallel = c.sequence_parallel && c.shape.tensor > 1;
  const int64_t first = s.whole.layers * at.pipeline / c.shape.pipeline,
                end = s.whole.layers * (at.pipeline + 1) / c.shape.pipeline;
  s.chunks = {{first, 1}, {first + 1, end - first - 1}};
  s.first = at.pipeline == 0, s.last = at.pipeline == c.shape.pipeline - 1;
  return s;
}

// A multiple of 1/256 below 1/4: sums of thousands are exact.
inline float gradient_at(const Case& c, int update, int holder, int micro, uint32_t tensor, int64_t element) {
  const uint32_t word =
      philox({static_cast<uint32_t>(c.seed), static_cast<uint32_t>(update)},
             {static_cast<uint32_t>(element), tensor, static_cast<uint32_t>(holder), static_cast<uint32_t>(micro)})[0];
  return static_cast<float>(static_cast<int>(word % 127) - 63) / 256.0f;
}

// Who adds a gradient of its own to an element: data ranks; tensor ranks where the tensor is partial; both ends of a
// tied embedding.
inline int holder_of(const ParamSpec& p, const Coordinates& at, bool head_end) {
  return at.data * 64 + (p.tp_partial ? at.tensor : 0) * 2 + (head_end ? 1 : 0);
}

inline constexpr float kRate = 0.0625f;

// Sums of gradients over all ranks in plain loops: made once, whichever rank asks first.
class Sums {
 public:
  explicit Sums(const Case& c) : case_(c) {}

  // Of every element of the whole tensor; p: a rank's spec, which knows what is partial.
  const std::vector<float>& of(const ParamSpec& p, int update) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<float>& sums = sums_[{update, p.id, p.tp_partial}];
    if (sums.empty()) {
      sums.resize(static_cast<size_t>(p.count()));
      for (int64_t e = 0; e < p.count(); ++e) sums[static_cast<size_t>(e)] = static_cast<float>(sum(p, update, e));
    }
    return sums;
  }

 private:
  double sum(const ParamSpec& p, int update, int64_t element) const {
    double total = 0.0;
    for (int data = 0; data < case_.shape.data; ++data) {
      for (int tensor = 0; tensor < (p.tp_partial ? case_.shape.tensor : 1); ++tensor) {
        const int ends = p.unit == kEmbeddingUnit && case_.tied ? 2 : 1;
        for (int end = 0; end < ends; ++end) {
          for (int micro = 0; micro < case_.micro_batches; ++micro)
            total += gradient_at(case_, update, data * 64 + tensor * 2 + end, micro, p.id, element);
        }
      }
    }
    return total;
  }

  Case case_;
  std::mutex mutex_;
  std::map<std::tuple<int, uint32_t, bool>, std::vector<float>> sums_;
};

// The whole model in plain loops.
class Reference {
 public:
  explicit Reference(const Case& c) : params_(list_parameters(model_of(c))), device_(make_cpu_device()) {
    const auto stream = device_->make_stream();
    Exec exec = make_exec(cpu_ops(), *device_, *stream, 1);
    Arena arena(device_.get());
    ModelConfig m = model_of(c);
    m.dtype = DType::f32;
    ParamStore store(m, arena, false);
    store.initialize(exec, 5);
    for (const ParamSpec& p : params_) {
      const float* w = store.weight(p.name).as<float>();
      weights[p.name].assign(w, w + p.count());
    }
  }

  // local: this rank's specs, which know what is partial.
  void step(const ParamList& local, int update, Sums& sums) {
    for (const ParamSpec& p : local) {
      std::vector<float>& w = weights.at(p.name);
      const std::vector<float>& sum = sums.of(p, update);
      for (size_t e = 0; e < w.size(); ++e) w[e] -= kRate * sum[e];
    }
  }

  std::map<std::string, std::vector<float>> weights;

 private:
  ParamList params_;
  std::unique_ptr<Device> device_;
};

class UseRecorder final : public UnitEvents {
 public:
  void acquire(int unit, bool backward) override { uses.push_back({unit, backward}); }
  void release(int, bool) override {}
  void gradients_begin(int) override {}
  void gradients_complete(int) override {}
  std::vector<UnitUse> uses;
};

struct Node {
  enum Kind { kForward, kBackward, kInput, kWeight } kind;
  int chunk, micro;
  bool last = false;
};

inline std::vector<Node> pipeline_nodes(const Case& c) {
  std::vector<Node> nodes;
  for (int m = 0; m < c.micro_batches; ++m) {
    for (int chunk : {0, 1}) nodes.push_back({Node::kForward, chunk, m});
  }
  for (int m = 0; m < c.micro_batches; ++m) {
    for (int chunk : {1, 0}) nodes.push_back({Node::kBackward, chunk, m, m + 1 == c.micro_batches});
  }
  return nodes;
}

// A random order that a pipeline could take, the same on all ranks of a stage.
inline std::vector<Node> random_nodes(const Case& c, int stage, int update) {
  if (c.linked) return pipeline_nodes(c);
  std::mt19937 random(static_cast<unsigned>(c.seed * 1000 + stage * 100 + update));
  const auto count = static_cast<size_t>(c.micro_batches);
  std::vector<int> forward(count), backward(count), weight(count);  // chunks done
  std::vector<Node> nodes;
  for (;;) {
    std::vector<Node> possible;
    for (int m = 0; m < c.micro_batches; ++m) {
      const size_t i = static_cast<size_t>(m);
      if (forward[i] < 2) possible.push_back({Node::kForward, forward[i], m});
      if (forward[i] == 2 && backward[i] < 2)
        possible.push_back({c.split_backward ? Node::kInput : Node::kBackward, 1 - backward[i], m});
      if (c.split_backward && weight[i] < backward[i]) possible.push_back({Node::kWeight, 1 - weight[i], m});
    }
    if (possible.empty()) break;
    const Node node = possible[random() % possible.size()];
    const size_t i = static_cast<size_t>(node.micro);
    ++(node.kind == Node::kForward ? forward : node.kind == Node::kWeight ? weight : backward)[i];
    nodes.push_back(node);
  }
  for (int chunk = 0; chunk < 2; ++chunk) {
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      if (node->chunk != chunk || node->kind == Node::kForward || node->kind == Node::kInput) continue;
      node->last = true;
      break;
    }
  }
  return nodes;
}

class FakeRank {
 public:
  FakeRank(const Case& c, Mesh& mesh, Sums& sums)
      : case_(c),
        sums_(sums),
        at_(mesh.at()),
        shard_(shard_of(c, mesh.at())),
        arena_(device_.get()),
        exec_(make_exec(cpu_ops(), *device_, *stream_, 1)),
        ports_(make_ports(mesh, c.placement, shard_.sequence_parallel, c.tied && c.shape.pipeline > 1)),
        store_(shard_, {c.placement, at_.data, shard_.first ? 0 : 1, c.split_backward}, arena_, true),
        reference_(c) {
    int64_t partial = 0;
    for (const UnitMemory& unit : store_.units()) {
      int64_t n = 0;
      for (const Range& r : unit.tp_partial) n += r.count;
      partial = std::max(partial, n);
    }
    View packed[2];
    for (View& p : packed) p = arena_.take(MemoryCategory::kWorkspace, DType::f32, {partial});
    traffic_ = std::make_unique<UnitTraffic>(store_.units(), c.placement, ports_, *device_, *stream_, packed);
    std::vector<OptimizerBuffers> pieces;
    for (const OwnedPiece& piece : store_.owned()) {
      OptimizerBuffers b;
      b.master = piece.master, b.gradient = piece.gradient, b.working = piece.working;
      b.spans = {{0, piece.range.count, 0.0f}};
      pieces.push_back(b);
    }
    OptimConfig config;
    config.kind = OptimizerKind::kSgd;
    optimizer_ = std::make_unique<Optimizer>(config, pieces);
    StepState state;
    state.lr = kRate;
    state_ = arena_.take(MemoryCategory::kWorkspace, DType::u8, {static_cast<int64_t>(sizeof state)});
    std::memcpy(state_.data, &state, sizeof state);
    store_.initialize(exec_, 5);
    traffic_->sync_raw_params();
    forget_gathered();
  }

  const std::vector<UnitMemory>& units() const { return store_.units(); }
  std::function<void(int)> before_node;  // tests of failures

  void run() {
    std::mt19937 random(static_cast<unsigned>(case_.seed));  // the same on all ranks
    for (int update = 0; update < case_.updates; ++update) {
      train(update, random() % 4 == 0);
      if (random() % 3 == 0) evaluate();
      if (random() % 3 == 0) traffic_->drain();
    }
    evaluate();
  }

  std::vector<UnitUse> uses_of(const std::vector<Node>& nodes) {
    UseRecorder recorder;
    for (const Node& node : nodes) walk(node, recorder, -1);
    return recorder.uses;
  }

  void train(int update, bool skip) {
    const std::vector<Node> nodes = random_nodes(case_, at_.pipeline, update);
    traffic_->begin(uses_of(nodes));
    for (const Node& node : nodes) {
      if (before_node) before_node(update);
      traffic_->set_last(node.last);
      if (case_.linked) receive_before(node);
      walk(node, *traffic_, update);
      if (case_.linked) send_behind(node);
      traffic_->set_node_end();
    }
    traffic_->finish_reductions();
    check_gradients(update);
    if (skip) {
      for (const View& memory : store_.gradient_memory()) std::memset(memory.data, 0, memory.bytes());
      return;
    }
    const auto update_piece = [&](size_t piece) { optimizer_->apply_piece(exec_, state_, piece); };
    updates_.local(update_piece);
    updates_.begin();
    traffic_->start_param_sync([&](int unit) { updates_.unit(unit, update_piece); });
    EXPECT_TRUE(updates_.complete());
    check_no_gradients();
    reference_.step(store_.params(), update, sums_);
    store_.bump_version();
    check_masters();
    forget_gathered();
  }

 private:
  enum class Part { kAll, kMatrices, kVectors };

  void forget_gathered() {
    for (const UnitMemory& unit : store_.units()) {  // whatever was gathered is stale
      if (unit.count > 0 && case_.placement.weights > 1) std::memset(unit.full.data, 0xff, unit.full.bytes());
    }
  }

  void receive_before(const Node& node) {
    const bool forward = node.kind == Node::kForward;
    float value = 0.0f;
    const View message(&value, DType::f32, {1});
    if (forward && node.chunk == 0 && !shard_.first) ports_.pp.receive_forward(message, *stream_).wait(*stream_);
    if (!forward && node.chunk == 1 && !shard_.last) ports_.pp.receive_backward(message, *stream_).wait(*stream_);
  }
  void send_behind(const Node& node) {
    const bool forward = node.kind == Node::kForward;
    float value = 1.0f;
    const View message(&value, DType::f32, {1});
    if (forward && node.chunk == 1 && !shard_.last) ports_.pp.send_forward(message, *stream_).wait(*stream_);
    if (!forward && node.chunk == 0 && !shard_.first) ports_.pp.send_backward(message, *stream_).wait(*stream_);
  }

  void evaluate() {
    const std::vector<Node> nodes{{Node::kForward, 0, 0}, {Node::kForward, 1, 0}};
    traffic_->begin(uses_of(nodes));
    for (const Node& node : nodes) {
      walk(node, *traffic_, -1);
      traffic_->set_node_end();
    }
  }

  // Announces what model/stage.cpp announces for such a node, in its order. update < 0: without gradients.
  void walk(const Node& node, UnitEvents& events, int update) {
    const bool checking = &events == traffic_.get(), adds = update >= 0;
    const int head = head_unit(shard_.whole), positions = position_unit(shard_.whole);
    const bool first = node.chunk == 0 && shard_.first, last = node.chunk == 1 && shard_.last;
    const LayerRange& layers = shard_.chunks[static_cast<size_t>(node.chunk)];
    const auto with = [&](std::vector<int> units, const std::function<void()>& use) {
      const bool backward = node.kind != Node::kForward;
      for (int u : units) events.acquire(u, backward);
      for (int u : units) check_weights(u, checking);
      use();
      for (int u : units) check_weights(u, checking);
      for (int u : units) events.release(u, backward);
    };
    const auto add = [&](int unit, Part part, bool at_head = false) {
      if (!adds) return;
      events.gradients_begin(unit);
      add_gradients(unit, update, node.micro, part, at_head);
    };
    const auto complete = [&](int unit) {
      if (adds) events.gradients_complete(unit);
    };
    const auto head_is_complete = [&] {
      if (!last) return;
      complete(head);
      if (case_.tied && !shard_.first) complete(kEmbeddingUnit);
    };
    const auto embedding_is_complete = [&] {
      if (!first) return;
      complete(kEmbeddingUnit);
      complete(positions);
    };

    if (node.kind == Node::kForward) {
      if (first) with({kEmbeddingUnit, positions}, [] {});
      for (int64_t l = 0; l < layers.count; ++l) {
        with({attention_unit(layers.first + l)}, [] {});
        with({mlp_unit(layers.first + l)}, [] {});
      }
      if (last) {
        with(case_.tied ? std::vector<int>{head, kEmbeddingUnit} : std::vector<int>{head},
             [&] { add(case_.tied ? kEmbeddingUnit : head, Part::kMatrices, true); });
      }
      return;
    }
    if (node.kind == Node::kWeight) {
      head_is_complete();
    } else if (last) {
      with({head}, [&] { add(head, Part::kVectors); });
      if (node.kind == Node::kBackward) head_is_complete();
    }
    for (int64_t l = layers.count; l-- > 0;) {
      const std::array<int, 2> halves{mlp_unit(layers.first + l), attention_unit(layers.first + l)};
      const bool reads = node.kind != Node::kWeight;
      for (int u : halves)
        if (reads) events.acquire(u, true);
      for (int u : halves)
        if (adds) events.gradients_begin(u);
      for (int u : halves) {
        if (reads) check_weights(u, checking);
        if (adds)
          add_gradients(u, update, node.micro,
                        node.kind == Node::kWeight  ? Part::kMatrices
                        : node.kind == Node::kInput ? Part::kVectors
                                                    : Part::kAll,
                        false);
        if (reads) events.release(u, true);
        if (node.kind != Node::kInput) complete(u);
      }
    }
    if (first && node.kind != Node::kWeight) add(kEmbeddingUnit, Part::kAll), add(positions, Part::kAll);
    if (node.kind != Node::kInput) embedding_is_complete();
  }

  template <typename F>
  void for_each_element(int unit, F&& element) const {
    for (const ParamSpec& p : store_.params()) {
      if (p.unit != unit) continue;
      for_each_run(p, 0, p.local_count(), [&](int64_t local, int64_t global, int64_t count) {
        for (int64_t i = 0; i < count; ++i) element(p, local + i, global + i);
      });
    }
  }

  void add_gradients(int unit, int update, int micro, Part part, bool at_head) {
    const bool head_end = at_head && unit == kEmbeddingUnit;
    const ParamSpec* of = nullptr;
    float* gradient = nullptr;
    for_each_element(unit, [&](const ParamSpec& p, int64_t local, int64_t global) {
      if (part != Part::kAll && p.is_vector != (part == Part::kVectors)) return;
      if (of != &p) of = &p, gradient = store_.gradient(p.name).as<float>();
      gradient[local] += gradient_at(case_, update, holder_of(p, at_, head_end), micro, p.id, global);
    });
  }

  void check_weights(int unit, bool really) const {
    if (!really) return;
    for (const ParamSpec& p : store_.params()) {
      if (p.unit != unit) continue;
      const View view = store_.weight(p.name);
      const std::vector<float>& expected = reference_.weights.at(p.name);
      int64_t wrong = 0;
      for_each_run(p, 0, p.local_count(), [&](int64_t local, int64_t global, int64_t count) {
        const float* run = expected.data() + global;
        const auto bytes = static_cast<size_t>(count) * sizeof *run;
        if (!case_.bf16 && std::memcmp(view.as<float>() + local, run, bytes) == 0) return;
        for (int64_t i = 0; i < count; ++i) {
          const float w = expected[static_cast<size_t>(global + i)];
          wrong += case_.bf16 ? view.as<Bf16>()[local + i].bits != to_bf16(w).bits
                              : std::memcmp(&view.as<float>()[local + i], &w, sizeof w) != 0;
        }
      });
      EXPECT_EQ(wrong, 0) << p.name << " of " << p.local_count();
      if (wrong != 0) throw std::runtime_error("weights are wrong");
    }
  }

  template <typename F>
  void for_each_owned(F&& element) const {
    for (const OwnedPiece& piece : store_.owned()) {
      const int64_t first = store_.layout().units[static_cast<size_t>(piece.unit)].first + piece.range.first;
      for (size_t i = 0; i < store_.params().size(); ++i) {
        const ParamSpec& p = store_.params()[i];
        const Segment& s = store_.layout().by_param[i];
        const int64_t a = std::max(first, s.offset), b = std::min(first + piece.range.count, s.offset + s.count);
        if (a >= b) continue;
        for_each_run(p, a - s.offset, b - a, [&](int64_t local, int64_t global, int64_t count) {
          for (int64_t e = 0; e < count; ++e) element(piece, p, s.offset + local + e - first, global + e);
        });
      }
    }
  }

  void check_gradients(int update) {
    const ParamSpec* of = nullptr;
    const float* expected = nullptr;
    int64_t wrong = 0;
    for_each_owned([&](const OwnedPiece& piece, const ParamSpec& p, int64_t at, int64_t global) {
      if (of != &p) of = &p, expected = sums_.of(p, update).data();
      wrong += piece.gradient.as<float>()[at] != expected[global];
    });
    EXPECT_EQ(wrong, 0) << "gradients of update " << update;
    if (wrong != 0) throw std::runtime_error("gradients are wrong");
  }

  // The optimizer has zeroed the gradients that it owns, the parameter all-gathers the rest.
  void check_no_gradients() {
    int64_t left = 0;
    for (const View& memory : store_.gradient_memory()) {
      for (int64_t i = 0; i < memory.count(); ++i) left += memory.as<float>()[i] != 0.0f;
    }
    EXPECT_EQ(left, 0) << "gradients are left behind";
  }

  void check_masters() {
    int64_t wrong = 0;
    for_each_owned([&](const OwnedPiece& piece, const ParamSpec& p, int64_t at, int64_t global) {
      wrong += piece.master.as<float>()[at] != reference_.weights.at(p.name)[static_cast<size_t>(global)];
    });
    EXPECT_EQ(wrong, 0) << "masters";
  }

  Case case_;
  Sums& sums_;
  Coordinates at_;
  ModelShard shard_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->make_stream();
  Arena arena_;
  Exec exec_;
  Ports ports_;
  ParamStore store_;
  Reference reference_;
  std::unique_ptr<UnitTraffic> traffic_;
  std::unique_ptr<Optimizer> optimizer_;
  UnitSteps updates_{store_};
  View state_;
};

inline void run_case(const Case& c, const std::function<void(FakeRank&, Mesh&)>& body) {
  Sums sums(c);
  run_local_ranks(
      c.shape.ranks(),
      [&](Transport& transport) {
        ProgressOptions options;
        options.watchdog_seconds = 60.0;  // a deadlock fails and does not hang
        Progress progress(transport, options);
        Mesh mesh(progress, c.shape, std::vector<int>(static_cast<size_t>(c.shape.ranks()), 0));
        FakeRank rank(c, mesh, sums);
        body(rank, mesh);
      },
      static_cast<uint64_t>(c.seed));
}

inline Case random_case(int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto pick = [&](std::vector<int> of) { return of[random() % of.size()]; };
  const auto divisor = [&](int n, int multiple_of) {
    std::vector<int> found;
    for (int d = multiple_of; d <= n; d += multiple_of) {
      if (n % d == 0) found.push_back(d);
    }
    return pick(found);
  };
  Case c;
  c.seed = seed;
  c.shape = {pick({1, 2, 2, 3}), pick({1, 2, 3, 4, 4, 6}), 1};
  if (c.shape.pipeline * c.shape.data <= 6) c.shape.tensor = pick({1, 2});
  Placement& p = c.placement;
  p.replicas = c.shape.data;
  p.optimizer = divisor(p.replicas, 1), p.gradients = divisor(p.optimizer, 1), p.weights = divisor(p.gradients, 1);
  if (random() % 2 != 0) p.weights = p.gradients = p.optimizer = p.replicas;
  if (p.weights > 1 && random() % 2 != 0) p.secondary = p.weights % 2 == 0 && p.weights > 2 ? pick({1, 2}) : 1;
  p.hold = static_cast<Hold>(random() % 3);
  p.embedding = random() % 2 != 0 ? EmbeddingSyncKind::kFused : EmbeddingSyncKind::kTwoStep;
  c.split_backward = random() % 3 == 0, c.sequence_parallel = random() % 2 != 0, c.tied = random() % 3 != 0;
  c.bf16 = random() % 2 != 0;
  c.micro_batches = pick({1, 2, 3});
  return c;
}

}  // namespace thinwire::zero_test
