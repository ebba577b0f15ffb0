// Units of a fake model travel as the placement says: weights are whole and current wherever they are used, gradients add
// up to the sum over all ranks, updates are those of one rank - bit for bit, because the sums are exact in fp32.
#include "parallel/zero/unit_traffic.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>

#include "engine/base/core/philox.h"
#include "model/param_store.h"
#include "model/params.h"
#include "optim/optimizer.h"

namespace thinwire {
namespace {

struct Case {
  MeshShape shape;
  Placement placement;
  bool split_backward = false, sequence_parallel = false, tied = true, bf16 = false;
  int micro_batches = 1, updates = 3, seed = 0;
};

std::string describe(const Case& c) {
  const Placement& p = c.placement;
  return "seed " + std::to_string(c.seed) + ": pp " + std::to_string(c.shape.pipeline) + " dp " +
         std::to_string(c.shape.data) + " tp " + std::to_string(c.shape.tensor) + " placement " +
         std::to_string(p.weights) + "|" + std::to_string(p.gradients) + "|" + std::to_string(p.optimizer) +
         " secondary " + std::to_string(p.secondary) + " hold " + std::to_string(static_cast<int>(p.hold)) +
         (p.embedding == EmbeddingSyncKind::kFused ? " fused" : " two-step") + " micro-batches " +
         std::to_string(c.micro_batches) + (c.split_backward ? " split" : "") + (c.tied ? " tied" : "") +
         (c.sequence_parallel ? " sp" : "") + (c.bf16 ? " bf16" : "");
}

ModelConfig model_of(const Case& c) {
  ModelConfig m;
  m.layers = 7, m.hidden = 40, m.heads = 4, m.kv_heads = 4, m.head_dim = 10, m.ffn = 109, m.vocab = 301,
  m.padded_vocab = 303, m.seq_length = 16, m.max_positions = 37, m.init_std = 0.3f, m.tied_head = c.tied;
  m.dtype = c.bf16 ? DType::bf16 : DType::f32;
  return m;
}

ModelShard shard_of(const Case& c, const Coordinates& at) {
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
float gradient_at(const Case& c, int update, int holder, int micro, uint32_t tensor, int64_t element) {
  const uint32_t word = philox({static_cast<uint32_t>(c.seed), static_cast<uint32_t>(update)},
                               {static_cast<uint32_t>(element), tensor, static_cast<uint32_t>(holder),
                                static_cast<uint32_t>(micro)})[0];
  return static_cast<float>(static_cast<int>(word % 127) - 63) / 256.0f;
}

// Who adds a gradient of its own to an element: data ranks; tensor ranks where the tensor is partial; both holders of a
// tied embedding.
int holder_of(const ParamSpec& p, const Coordinates& at, bool tied_end) {
  return at.data * 64 + (p.tp_partial ? at.tensor : 0) * 2 + (tied_end ? 1 : 0);
}

constexpr float kRate = 0.0625f;

// The whole model in plain loops.
class Reference {
 public:
  explicit Reference(const Case& c) : case_(c), params_(list_parameters(model_of(c))), device_(make_cpu_device()) {
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

  double sum(const ParamSpec& p, int update, int64_t element) const {
    double total = 0.0;
    for (int data = 0; data < case_.shape.data; ++data) {
      for (int tensor = 0; tensor < (p.tp_partial ? case_.shape.tensor : 1); ++tensor) {
        const bool tied = p.unit == kEmbeddingUnit && case_.tied && case_.shape.pipeline > 1;
        for (int end = 0; end < (tied ? 2 : 1); ++end) {
          for (int micro = 0; micro < case_.micro_batches; ++micro)
            total += gradient_at(case_, update, data * 64 + tensor * 2 + end, micro, p.id, element);
        }
      }
    }
    return total;
  }

  // local: this rank's specs, which know what is partial.
  void step(const ParamList& local, int update) {
    for (const ParamSpec& p : local) {
      std::vector<float>& w = weights.at(p.name);
      for (int64_t e = 0; e < p.count(); ++e)
        w[static_cast<size_t>(e)] -= kRate * static_cast<float>(sum(p, update, e));
    }
  }

  std::map<std::string, std::vector<float>> weights;

 private:
  Case case_;
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

// A random order that a pipeline could take, the same on all ranks of a stage.
std::vector<Node> random_nodes(const Case& c, int stage, int update) {
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
  FakeRank(const Case& c, Mesh& mesh)
      : case_(c),
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
    publish();
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
      walk(node, *traffic_, update);
      traffic_->set_node_end();
    }
    traffic_->finish_reductions();
    check_gradients(update);
    if (skip) {
      for (const View& memory : store_.gradient_memory()) std::memset(memory.data, 0, memory.bytes());
      return;
    }
    optimizer_->apply(exec_, state_);
    reference_.step(store_.params(), update);
    store_.bump_version();
    check_masters();
    publish();
  }

 private:
  void publish() {
    traffic_->publish_all();
    for (const UnitMemory& unit : store_.units()) {  // whatever was gathered is stale
      if (unit.count > 0 && case_.placement.weights > 1) std::memset(unit.full.data, 0xff, unit.full.bytes());
    }
  }

  void evaluate() {
    const std::vector<Node> nodes{{Node::kForward, 0, 0}, {Node::kForward, 1, 0}};
    traffic_->begin(uses_of(nodes));
    for (const Node& node : nodes) {
      walk(node, *traffic_, -1);
      traffic_->set_node_end();
    }
  }

  std::vector<int> units_of(int chunk) const {
    std::vector<int> units;
    if (chunk == 0 && shard_.first) units = {kEmbeddingUnit, position_unit(shard_.whole)};
    const LayerRange& range = shard_.chunks[static_cast<size_t>(chunk)];
    for (int64_t l = 0; l < range.count; ++l) units.push_back(block_unit(range.first + l));
    if (chunk == 1 && shard_.last) {
      units.push_back(head_unit(shard_.whole));
      if (case_.tied) units.push_back(kEmbeddingUnit);
    }
    return units;
  }

  // update < 0: only the uses (or an evaluation).
  void walk(const Node& node, UnitEvents& events, int update) {
    const bool checking = &events == traffic_.get(), backward = node.kind != Node::kForward;
    std::vector<int> units = units_of(node.chunk);
    if (backward) std::reverse(units.begin(), units.end());
    for (size_t i = 0; i < units.size(); ++i) {
      const int u = units[i];
      // Embeddings need no weights for their gradients, but the head's product does.
      const bool lookup = node.chunk == 0 && (u == kEmbeddingUnit || u == position_unit(shard_.whole));
      const bool writes = node.kind == Node::kBackward || node.kind == Node::kWeight;
      if (node.kind != Node::kWeight && !(backward && lookup)) {
        events.acquire(u, backward);
        if (checking) check_weights(u);
      }
      if (writes && update >= 0) {
        events.gradients_begin(u);
        add_gradients(u, update, node.micro, lookup);
      }
      if (node.kind != Node::kWeight && !(backward && lookup)) {
        if (checking) check_weights(u);
        events.release(u, backward);
      }
      // A table that both ends of one rank use is complete after the lookup.
      const bool more = u == kEmbeddingUnit && !lookup && shard_.first;
      if (writes && update >= 0 && !more) events.gradients_complete(u);
    }
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

  void add_gradients(int unit, int update, int micro, bool lookup) {
    const bool both = unit == kEmbeddingUnit && case_.tied && shard_.first && shard_.last;
    const bool tied_end = unit == kEmbeddingUnit && case_.tied && !shard_.first;
    if (both && !lookup) return;  // one share each, all of it at the lookup
    for_each_element(unit, [&](const ParamSpec& p, int64_t local, int64_t global) {
      store_.gradient(p.name).as<float>()[local] +=
          gradient_at(case_, update, holder_of(p, at_, tied_end), micro, p.id, global);
    });
  }

  void check_weights(int unit) const {
    for (const ParamSpec& p : store_.params()) {
      if (p.unit != unit) continue;
      const View view = store_.weight(p.name);
      const std::vector<float>& expected = reference_.weights.at(p.name);
      int64_t wrong = 0;
      for_each_run(p, 0, p.local_count(), [&](int64_t local, int64_t global, int64_t count) {
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
    double owned = 0.0, all = 0.0;
    int64_t wrong = 0;
    for_each_owned([&](const OwnedPiece& piece, const ParamSpec& p, int64_t at, int64_t global) {
      const float g = piece.gradient.as<float>()[at];
      wrong += g != static_cast<float>(reference_.sum(p, update, global));
      owned += std::fabs(g);
    });
    EXPECT_EQ(wrong, 0) << "gradients of update " << update;
    for (const View& memory : store_.gradient_memory()) {
      for (int64_t i = 0; i < memory.count(); ++i) all += std::fabs(memory.as<float>()[i]);
    }
    EXPECT_EQ(owned, all) << "gradients that nobody owns are left behind";
    if (wrong != 0 || owned != all) throw std::runtime_error("gradients are wrong");
  }

  void check_masters() {
    int64_t wrong = 0;
    for_each_owned([&](const OwnedPiece& piece, const ParamSpec& p, int64_t at, int64_t global) {
      wrong += piece.master.as<float>()[at] != reference_.weights.at(p.name)[static_cast<size_t>(global)];
    });
    EXPECT_EQ(wrong, 0) << "masters";
  }

  Case case_;
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
  View state_;
};

void run_case(const Case& c, const std::function<void(FakeRank&, Mesh&)>& body) {
  run_local_ranks(
      c.shape.ranks(),
      [&](Transport& transport) {
        Progress progress(transport);
        Mesh mesh(progress, c.shape, std::vector<int>(static_cast<size_t>(c.shape.ranks()), 0));
        FakeRank rank(c, mesh);
        body(rank, mesh);
      },
      static_cast<uint64_t>(c.seed));
}

Case random_case(int seed) {
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

TEST(UnitTraffic, AnyPlacementGivesTheBitsOfOneRank) {
  for (int seed = 1; seed <= 40; ++seed) {
    const Case c = random_case(seed);
    SCOPED_TRACE(describe(c));
    run_case(c, [](FakeRank& rank, Mesh&) { rank.run(); });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace thinwire
