// Ranks send momenta: the engine's own step against a float64 Adam whose variance stands still, under several layouts,
// with skipped steps, and resumed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "engine/run/config/load_config.h"
#include "engine/run/train/bare_training.h"
#include "engine/run/train/job.h"
#include "engine/run/train/run_session.h"
#include "parallel/sites/unit_pieces.h"
#include "tests/mesh/mesh_harness.h"
#include "tests/support/local_world.h"

namespace thinwire::one_bit_adam_test {
namespace {

constexpr int kLength = 16, kVocab = 61, kWarmup = 3;
constexpr double kBeta1 = 0.9, kBeta2 = 0.99, kEps = 1e-8, kLr = 3e-3, kDecay = 0.1, kClip = 0.5;

std::vector<std::string> overrides_of(int samples, const std::vector<std::string>& more) {
  std::vector<std::string> o = {"num_layers=2",
                                "hidden_size=24",
                                "num_attention_heads=4",
                                "seq_length=16",
                                "max_position_embeddings=16",
                                "vocab_size=61",
                                "make_vocab_size_divisible_by=1",
                                "threads_per_rank=1",
                                "optimizer.params.lr=3e-3",
                                "optimizer.params.betas=[0.9,0.99]",
                                "weight_decay=0.1",
                                "gradient_clipping=0.5",
                                "lr_decay_style=constant",
                                "warmup=0",
                                "train_iters=20",
                                "run_dir=runs/one_bit_adam",
                                "watchdog_seconds=60",
                                "train_batch_size=" + std::to_string(samples),
                                "compression.sends=momentum",
                                "compression.dp.gradient.warmup_steps=3"};
  o.insert(o.end(), more.begin(), more.end());
  return o;
}

Batch batch_of(int64_t first, int64_t rows) {
  Batch b;
  b.first_sample = first, b.rows = rows;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t t = 0; t < kLength; ++t) {
      const auto token = [&](int64_t at) {
        return static_cast<int32_t>(((first + r) * 7 + at * at * 3 + at) % kVocab);
      };
      b.inputs.push_back(token(t)), b.targets.push_back(token(t + 1)), b.loss_mask.push_back(1.0f);
    }
    b.sample_ids.push_back(first + r);
  }
  return b;
}

// Keeps what a state visitor is shown, or gives it back.
class Memory final : public StateVisitor {
 public:
  bool filling = false;
  std::map<std::string, std::vector<char>> values;
  void tensor(const GlobalSlice& s) override {
    bytes(s.name + "/" + std::to_string(s.row) + "/" + std::to_string(s.col) + "/" + std::to_string(s.first),
          s.local.data, s.local.bytes());
  }
  void integer(const std::string& name, int64_t& value) override { bytes(name, &value, sizeof value); }
  void real(const std::string& name, double& value) override { bytes(name, &value, sizeof value); }
  void text(const std::string&, std::string&) override {}

 private:
  void bytes(const std::string& name, void* data, size_t count) {
    if (!filling) {
      values[name].assign(static_cast<char*>(data), static_cast<char*>(data) + count);
    } else {
      const std::vector<char>& stored = values.at(name);
      TW_CHECK(stored.size() == count, name);
      std::memcpy(data, stored.data(), count);
    }
  }
};

// Looks at what a rank would have sent, before the real transform.
class Recorder final : public SentValue {
 public:
  explicit Recorder(SentValue& real) : real_(real) {}
  std::map<int, std::vector<float>> gradients;  // by unit, of the step at hand
  int calls = 0;
  void transform(int unit, View gradient, int shares) override {
    const float* g = gradient.as<float>();
    EXPECT_TRUE(gradients.emplace(unit, std::vector<float>(g, g + gradient.count())).second) << "unit " << unit;
    real_.transform(unit, gradient, shares);
  }

 private:
  SentValue& real_;
};

// One rank of the engine, step by step.
struct Engine {
  Job job;
  RunConfig config;
  std::unique_ptr<Device> device = make_cpu_device();
  std::optional<Replica> replica;
  std::optional<BareTraining> training;

  Engine(Transport& transport, const std::vector<std::string>& overrides) : job(transport) {
    ConfigOptions options;
    options.ranks = job.size();
    job.agree([&] { config = load_config({}, overrides, options).run; });
    job.form_mesh(config, "one-bit adam");
    replica.emplace(config, layout_of(config, job.rank(), job.nodes()), job.mesh(), device.get(), &cpu_ops(), true);
    replica->set_fresh_weights();
    training.emplace(*replica);
  }
  ~Engine() {
    if (std::uncaught_exceptions() > 0) return;
    replica->traffic().drain();
    job.control().barrier();
  }
  // batch: number of the batch that is trained on.
  StepOutcome run(int64_t batch) {
    const int64_t rows = config.data.micro_batch, dp = replica->layout().data_size(), d = replica->layout().data_rank();
    int64_t micro = 0;
    return training->take_step(static_cast<int>(config.accumulation), [&] {
      return batch_of(batch * config.data.global_batch + (micro++ * dp + d) * rows, rows);
    });
  }
  void poison() {
    const float nan = std::nanf("");  // in a tensor that passes add to: matrices are written anew
    replica->write(replica->store().gradient("final_norm.weight"), &nan, sizeof nan);
  }
  void visit(Memory& memory) {
    replica->visit(memory, false);
    TrainProgress& progress = training->progress;
    memory.integer("step", progress.step), memory.integer("updates", progress.updates);
  }
  Memory state() {
    replica->traffic().drain();
    Memory m;
    visit(m);
    return m;
  }
};

// The loop of the paper over everything that this rank holds (all data ranks hold the same), with error bounds.
//
// fp32 rounds: m by 6 u of its terms' sizes per step, shrinking with beta1; v by 5 u of itself per step (all terms
// are positive); the step by 10 u of itself; p by 3 u of itself and of its change. Gradients are the engine's own, so
// nothing else can differ.
struct FrozenAdam {
  struct Element {
    double p = 0.0, m = 0.0, v = 0.0, m_error = 0.0, bound = 0.0, decay = 0.0;
  };
  std::vector<Element> elements;
  double v_updates = 0.0;
  int64_t limited = 0;

  void apply(int64_t update, const std::vector<double>& gradient, const std::vector<double>& magnitude, double norm) {
    const double u = std::ldexp(1.0, -24), t = static_cast<double>(update);
    const bool frozen = update > kWarmup;
    const double clip = frozen ? 1.0 : std::min(1.0, kClip / (norm + 1e-6));
    if (!frozen) v_updates = t;
    const double c1 = 1.0 - std::pow(kBeta1, t), c2 = 1.0 - std::pow(kBeta2, v_updates);
    for (size_t i = 0; i < elements.size(); ++i) {
      Element& e = elements[i];
      const double g = clip * gradient[i];
      e.m_error = kBeta1 * e.m_error + 6.0 * u * (kBeta1 * std::abs(e.m) + clip * magnitude[i]);
      e.m = kBeta1 * e.m + (1.0 - kBeta1) * g;
      if (frozen && e.v == 0.0) e.m = 0.0;
      if (!frozen) e.v = kBeta2 * e.v + (1.0 - kBeta2) * g * g;
      const double root = std::sqrt(e.v / c2), limit = 10.0 * root;
      double step = e.m / c1;
      if (frozen && std::abs(step) > limit) step = std::copysign(limit, step), ++limited;
      step /= root + kEps;
      // A sum over ranks may cancel: then v is small beside the errors of its terms.
      const double v_error = 5.0 * u * v_updates + 12.0 * u * magnitude[i] / std::max(std::abs(g), 1e-300);
      const double change = kLr * (step + e.decay * kDecay * e.p);
      const double step_error = e.m_error / c1 / (root + kEps) + std::min(1.0, 10.0 * u + v_error) * std::abs(step);
      e.bound += kLr * std::min(step_error, 20.0) + 3.0 * u * (std::abs(e.p) + std::abs(change));
      e.p -= change;
    }
  }
};

// All units of a rank one behind the other, without padding.
std::vector<double> flat(const ParamStore& store, const std::map<int, std::vector<float>>& by_unit) {
  std::vector<double> all;
  for (const Segment& s : store.layout().by_param) {
    for (size_t u = 0; u < store.units().size(); ++u) {
      const Unit& unit = store.layout().units[u];
      if (s.count == 0 || s.offset < unit.first || s.offset >= unit.first + unit.count) continue;
      const auto first = by_unit.at(static_cast<int>(u)).begin() + (s.offset - unit.first);
      all.insert(all.end(), first, first + s.count);
    }
  }
  return all;
}

std::vector<double> masters(Replica& replica) {
  std::map<int, std::vector<float>> by_unit;
  const ParamStore& store = replica.store();
  for (size_t u = 0; u < store.units().size(); ++u) {
    const Unit& unit = store.layout().units[u];
    for (const OwnedPiece& piece : store.owned()) {
      const int64_t at = unit.first - store.layout().units[static_cast<size_t>(piece.unit)].first - piece.range.first;
      if (unit.count == 0 || at < 0 || at + unit.count > piece.range.count) continue;
      const float* p = piece.master.as<float>() + at;
      by_unit[static_cast<int>(u)] = std::vector<float>(p, p + unit.count);
    }
  }
  return flat(store, by_unit);
}

void follow(int ranks, const std::vector<std::string>& more, int samples, bool moving_scale = false) {
  std::mutex mutex;
  std::vector<std::vector<double>> sent(static_cast<size_t>(ranks));
  run_local_ranks(ranks, [&](Transport& transport) {
    Engine engine(transport, overrides_of(samples, more));
    Replica& r = *engine.replica;
    Recorder recorder(*r.momentum());
    r.traffic().set_sent_value(&recorder);
    FrozenAdam reference;
    const std::vector<double> start = masters(r);
    bool clipped = false;
    for (size_t param = 0, i = 0; param < r.store().params().size(); ++param) {
      for (int64_t n = 0; n < r.store().layout().by_param[param].count; ++n, ++i)
        reference.elements.push_back({.p = start[i], .decay = r.store().params()[param].decay ? 1.0 : 0.0});
    }
    for (int64_t s = 1; s <= 9; ++s) {
      if (moving_scale && s == 6) {
        Memory scale;  // a smaller scale in mid-momentum: m is kept in units of its own
        engine.training->scaler.visit(scale);
        scale.filling = true;
        double half = engine.training->scaler.scale() / 4.0;
        for (auto& [name, bytes] : scale.values)
          if (name.ends_with("scale")) std::memcpy(bytes.data(), &half, sizeof half);
        engine.training->scaler.visit(scale);
        ASSERT_EQ(engine.training->scaler.scale(), half);
      }
      recorder.gradients.clear();
      const StepOutcome outcome = engine.run(s - 1);
      ASSERT_FALSE(outcome.skipped);
      {
        const std::lock_guard lock(mutex);
        sent[static_cast<size_t>(transport.rank())] = flat(r.store(), recorder.gradients);
      }
      engine.job.control().barrier();
      std::vector<double> gradient(start.size()), magnitude(start.size());
      double square = 0.0;
      for (size_t i = 0; i < start.size(); ++i) {
        for (const auto& g : sent) {
          gradient[i] += g[i] / outcome.loss_scale, magnitude[i] += std::abs(g[i]) / outcome.loss_scale;
        }
        square += gradient[i] * gradient[i];
      }
      clipped = clipped || (s <= kWarmup && std::sqrt(square) > 1.1 * kClip);
      reference.apply(s, gradient, magnitude, std::sqrt(square));
      engine.job.control().barrier();
      double momentum = 0.0;
      for (const auto& e : reference.elements) momentum += e.m * e.m;
      const double norm = std::sqrt(s <= kWarmup ? square : momentum);
      EXPECT_NEAR(outcome.grad_norm, norm, 1e-5 * norm) << "step " << s;
      const std::vector<double> now = masters(r);
      for (size_t i = 0; i < now.size(); ++i) {
        const auto& e = reference.elements[i];
        ASSERT_LE(std::abs(now[i] - e.p), e.bound)
            << "step " << s << ", element " << i << ", v " << e.v << ", m " << e.m;
      }
    }
    // The bounds are worth something: far smaller than what the elements have moved.
    double moved = 0.0, bounds = 0.0;
    for (size_t i = 0; i < start.size(); ++i)
      moved += std::abs(reference.elements[i].p - start[i]), bounds += reference.elements[i].bound;
    EXPECT_LT(bounds, 1e-2 * moved);
    // It is seldom the bound on steps that is tested.
    EXPECT_LT(reference.limited, static_cast<int64_t>(start.size()) * 6 / 5);
    EXPECT_TRUE(clipped);
    r.traffic().set_sent_value(r.momentum());
  });
}

TEST(OneBitAdam, TheStepIsAdamWithAFrozenVariance) {
  follow(1, {"train_micro_batch_size_per_gpu=4"}, 4);
  follow(2, {"train_micro_batch_size_per_gpu=2"}, 4);
  follow(4, {"train_micro_batch_size_per_gpu=1", "gradient_accumulation_steps=2"}, 8);
}

TEST(OneBitAdam, MomentaDoNotDependOnTheLossScale) {
  const std::vector<std::string> fp16 = {"precision=fp16", "fp16.initial_scale_power=10", "fp16.loss_scale_window=100"};
  auto one = fp16, two = fp16;
  one.push_back("train_micro_batch_size_per_gpu=4"), two.push_back("train_micro_batch_size_per_gpu=2");
  follow(1, one, 4, true);
  follow(2, two, 4, true);
}

// Law 1 for the hook: each rank's share of the old momentum is right in every group, the tied embedding's too.
TEST(OneBitAdam, EveryLayoutTrainsAlike) {
  using mesh::Layout;
  constexpr int kSamples = 12, kSteps = 8;
  const std::vector<std::string> momentum = {"compression.sends=momentum", "compression.dp.gradient.warmup_steps=3"};
  const std::vector<Layout> layouts = {
      {.data = 2},
      {.data = 3, .accumulation = 2},
      {.data = 4},
      {.tensor = 2},
      {.data = 2, .tensor = 2, .sequence_parallel = true},
      {.pipeline = 2, .accumulation = 3},
      {.pipeline = 2, .data = 2, .embedding = "two_step", .accumulation = 3},
      {.pipeline = 2, .data = 2, .schedule = "zb_h1", .embedding = "fused", .accumulation = 3},
      {.pipeline = 3, .tensor = 2, .schedule = "gpipe", .accumulation = 4}};
  Layout alone;
  alone.more = momentum;
  const mesh::Curve one = mesh::run({}, alone, kSamples, kSteps), plain = mesh::run({}, {}, kSamples, kSteps);
  for (int s = 0; s < kWarmup; ++s) EXPECT_EQ(one.loss[static_cast<size_t>(s)], plain.loss[static_cast<size_t>(s)]);
  EXPECT_NE(one.loss.back(), plain.loss.back());
  for (Layout layout : layouts) {
    layout.more = momentum;
    const mesh::Curve many = mesh::run({}, layout, kSamples, kSteps);
    for (size_t s = 0; s < kSteps; ++s) {
      const int step = static_cast<int>(s) + 1;
      EXPECT_NEAR(many.loss[s], one.loss[s], mesh::tolerance({}, kSamples, step, false) * one.loss[s])
          << layout.name() << ", step " << step;
      EXPECT_NEAR(many.norm[s], one.norm[s], mesh::tolerance({}, kSamples, step, true) * one.norm[s])
          << layout.name() << ", step " << step;
    }
  }
}

// With signs. The harness holds replicas to equal bits and bytes to their price.
TEST(OneBitAdam, SignsOfMomentaTrain) {
  using mesh::Layout;
  constexpr int kSamples = 12, kSteps = 40;
  for (const int data : {2, 4}) {
    Layout layout{.data = data};
    const mesh::Curve plain = mesh::run({}, layout, kSamples, kSteps);
    layout.more = {"compression=one_bit_adam", "compression.dp.gradient.warmup_steps=8"};
    const mesh::Curve coded = mesh::run({}, layout, kSamples, kSteps);
    const double gained = plain.loss.front() - plain.loss.back();
    EXPECT_GT(gained, 0.5);
    for (size_t s = 0; s < 8; ++s) EXPECT_EQ(coded.loss[s], plain.loss[s]);
    EXPECT_LT(coded.loss.back(), coded.loss.front() - 0.7 * gained) << data << " ranks, plain " << plain.loss.back();
    RecordProperty("loss" + std::to_string(data), std::to_string(coded.loss.back()));
  }
}

// A parameter whose gradient is always zero (here rows of words that never occur, and padding) needs a hand-made mask
// in the published code: its variance is zero, and the sign of a zero moves it by scale / eps.
TEST(OneBitAdam, ParametersWithoutGradientsStayPut_exp_avg_mask) {
  run_local_ranks(2, [&](Transport& transport) {
    Engine engine(transport, overrides_of(4, {"train_micro_batch_size_per_gpu=2", "compression.preset=one_bit_adam",
                                              "no_weight_tying=true", "vocab_size=90", "weight_decay=0"}));
    Replica& r = *engine.replica;
    const ParamStore& store = r.store();
    const std::string name = store.params().front().name;
    const View table = store.weight(name);
    ASSERT_EQ(table.rows(), 90);
    std::vector<float> before(table.as<float>(), table.as<float>() + table.count());
    for (int64_t s = 0; s < 10; ++s) ASSERT_FALSE(engine.run(s).skipped);
    EXPECT_TRUE(r.momentum()->active());
    for (int64_t i = kVocab * table.cols(); i < table.count(); ++i)
      ASSERT_EQ(table.as<float>()[i], before[static_cast<size_t>(i)]) << name << " " << i;
    // Padding behind tensors, too: it is zero, and stays zero. No residual keeps signs of it.
    const Memory memory = engine.state();
    int kept = 0;
    for (size_t u = 0; u < store.units().size(); ++u) {
      const Unit& unit = store.layout().units[u];
      std::vector<char> used(static_cast<size_t>(unit.count), 0);
      for (const Segment& s : unit.segments) std::fill_n(used.begin() + (s.offset - unit.first), s.count, 1);
      for (int64_t i = 0; i < unit.count; ++i) {
        if (used[static_cast<size_t>(i)]) continue;
        ASSERT_EQ(store.units()[u].full.as<float>()[i], 0.0f) << "unit " << u << " at " << i;
      }
      const std::string message = "/" + std::to_string(static_cast<int>(u) * kMostPieces);
      for (const auto& [state, bytes] : memory.values) {
        if (state.find(message + "/first/residual") == std::string::npos &&
            state.find(message + "/sums/residual") == std::string::npos)
          continue;
        std::vector<float> residual(static_cast<size_t>(unit.count));
        ASSERT_EQ(bytes.size(), residual.size() * sizeof(float)) << state;
        std::memcpy(residual.data(), bytes.data(), bytes.size());
        for (size_t i = 0; i < residual.size(); ++i) {
          ASSERT_TRUE(used[i] || residual[i] == 0.0f) << state << " at " << i << ": " << residual[i];
          kept += residual[i] != 0.0f ? 1 : 0;
        }
      }
    }
    EXPECT_GT(kept, 0);
  });
}

TEST(OneBitAdam, ASkippedStepLeavesNoTrace) {
  for (const int64_t bad : {1, 3, 5}) {  // in the warm-up, at the first momentum, behind it
    run_local_ranks(2, [&](Transport& transport) {
      const auto overrides = overrides_of(4, {"train_micro_batch_size_per_gpu=2", "compression.preset=one_bit_adam"});
      std::vector<double> losses;
      std::map<std::string, std::vector<char>> end;
      {
        Engine engine(transport, overrides);
        for (int64_t s = 0; s < 8; ++s) losses.push_back(engine.run(s).loss);
        end = engine.state().values;
      }
      Engine engine(transport, overrides);
      for (int64_t s = 0; s < 8; ++s) {
        if (s == bad) {
          Memory before = engine.state();
          if (transport.rank() == 1) engine.poison();
          ASSERT_TRUE(engine.run(77).skipped);
          Memory after = engine.state();
          before.values.erase("step"), after.values.erase("step");
          EXPECT_EQ(before.values, after.values);
        }
        EXPECT_EQ(engine.run(s).loss, losses[static_cast<size_t>(s)]) << "bad " << bad << ", step " << s;
      }
      Memory last = engine.state();
      last.values.erase("step"), end.erase("step");
      EXPECT_EQ(last.values, end);
    });
  }
}

// Law 7: from the warm-up, at its end, behind it; one rank, too. Padding is in no checkpoint: a momentum that signs had
// left there would change the scale of the next message.
TEST(OneBitAdam, ResumesBitForBit) {
  for (const int ranks : {1, 2}) {
    for (const int64_t at : {2, 3, 5}) {
      run_local_ranks(ranks, [&](Transport& transport) {
        const auto overrides = overrides_of(
            4, {"train_micro_batch_size_per_gpu=" + std::to_string(4 / ranks), "compression.preset=one_bit_adam"});
        std::vector<double> losses;
        Memory end, middle;
        {
          Engine engine(transport, overrides);
          for (int64_t s = 0; s < 8; ++s) {
            if (s == at) middle = engine.state();
            losses.push_back(engine.run(s).loss);
          }
          end = engine.state();
        }
        EXPECT_TRUE(end.values.contains("adam_v/updates"));
        Engine engine(transport, overrides);
        middle.filling = true;
        engine.visit(middle);
        engine.replica->weights_changed();
        for (int64_t s = at; s < 8; ++s)
          EXPECT_EQ(engine.run(s).loss, losses[static_cast<size_t>(s)]) << ranks << " " << at;
        EXPECT_EQ(engine.state().values, end.values);
      });
    }
  }
}

// The corrections that the step at hand was made with.
void expect_corrections(Engine& engine, double m_updates, double v_updates) {
  StepState state;
  engine.replica->read(engine.replica->buffers().state, &state);
  EXPECT_EQ(state.bias_correction1, static_cast<float>(1.0 - std::pow(kBeta1, m_updates)));
  EXPECT_EQ(state.bias_correction2, static_cast<float>(1.0 - std::pow(kBeta2, v_updates)))
      << "v has seen " << v_updates;
}

// The correction of v counts the steps that v has seen, whatever the warm-up says after a resume: from a shorter one
// of 3, say, to one of 8, under which v follows for three more.
TEST(OneBitAdam, AVarianceThatFollowsAgainIsCorrectedByWhatItHasSeen) {
  run_local_ranks(1, [&](Transport& transport) {
    Memory middle;
    {
      Engine engine(transport, overrides_of(4, {"train_micro_batch_size_per_gpu=4"}));
      for (int64_t s = 0; s < 5; ++s) {
        engine.run(s);
        expect_corrections(engine, static_cast<double>(s + 1), std::min<double>(static_cast<double>(s + 1), kWarmup));
      }
      middle = engine.state();
    }
    Engine engine(transport,
                  overrides_of(4, {"train_micro_batch_size_per_gpu=4", "compression.dp.gradient.warmup_steps=8"}));
    middle.filling = true;
    engine.visit(middle);
    engine.replica->weights_changed();
    const double seen[] = {4, 5, 6, 6, 6};
    for (int64_t s = 5; s < 10; ++s) {
      engine.run(s);
      expect_corrections(engine, static_cast<double>(s + 1), seen[s - 5]);
    }
  });
}

// Moments that begin in the middle of a run (no_load_optim) are corrected by their own age.
TEST(OneBitAdam, MomentsThatBeginLateAreCorrectedByTheirAge) {
  run_local_ranks(1, [&](Transport& transport) {
    Engine engine(transport,
                  overrides_of(4, {"train_micro_batch_size_per_gpu=4", "compression.dp.gradient.warmup_steps=503"}));
    engine.training->progress.updates = 500;
    const double seen[] = {1, 2, 3, 3, 3};
    for (int64_t s = 0; s < 5; ++s) {
      engine.run(s);
      expect_corrections(engine, static_cast<double>(s + 1), seen[s]);
    }
  });
}

// Such a checkpoint cannot say how many steps its moments have seen. It is refused by its path, with the way out.
TEST(OneBitAdam, MomentsOfUnknownAgeAreRefused) {
  VerifiedCheckpoint found;
  found.path = "runs/old/checkpoints/step_000040";
  found.manifest.integers = {{"progress/updates", 40}};
  refuse_uncounted_moments(found);  // no moments: nothing to refuse
  found.manifest.tensors.emplace_back().name = "adam_m/final_norm.weight";
  try {
    refuse_uncounted_moments(found);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kBadConfig);
    EXPECT_NE(std::string(e.what()).find(found.path + " no_load_optim=true"), std::string::npos) << e.what();
  }
  found.manifest.integers["adam_m/updates"] = 7, found.manifest.integers["adam_v/updates"] = 5;
  refuse_uncounted_moments(found);
}

// A variance is learned in one step at least.
TEST(OneBitAdam, TheFirstUpdateIsAlwaysPlain) {
  run_local_ranks(1, [&](Transport& transport) {
    Engine engine(transport,
                  overrides_of(4, {"train_micro_batch_size_per_gpu=4", "compression.dp.gradient.warmup_steps=0"}));
    engine.run(0);
    EXPECT_FALSE(engine.replica->momentum()->active());
    engine.run(1);
    EXPECT_TRUE(engine.replica->momentum()->active());
    EXPECT_EQ(engine.replica->optimizer().moment_steps().v, 1);
  });
}

// What a rank owes of gradients is no part of momenta: the plain update leaves no residual.
TEST(OneBitAdam, NothingIsCodedBeforeMomentaAre) {
  run_local_ranks(2, [&](Transport& transport) {
    Engine engine(transport, overrides_of(4, {"train_micro_batch_size_per_gpu=2", "compression.preset=one_bit_adam",
                                              "compression.dp.gradient.warmup_steps=0"}));
    const auto owes = [&] {
      const Memory memory = engine.state();
      bool any = false;
      for (const auto& [name, bytes] : memory.values)
        any = any || (name.find("/residual") != std::string::npos &&
                      std::any_of(bytes.begin(), bytes.end(), [](char byte) { return byte != 0; }));
      return any;
    };
    engine.run(0);
    EXPECT_FALSE(owes());
    engine.run(1);
    EXPECT_TRUE(owes());
  });
}

}  // namespace
}  // namespace thinwire::one_bit_adam_test
