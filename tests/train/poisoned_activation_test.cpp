// Law 8 in the forward pass: activations that are not finite before a coded message. All ranks skip the step, also
// where the codec makes numbers of them, nothing of it is left in any state, and the run goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/ops/ops.h"
#include "engine/run/train/bare_training.h"
#include "engine/run/train/job.h"
#include "engine/run/train/synthetic_batches.h"
#include "tests/support/local_world.h"
#include "tests/train/small_run.h"

namespace thinwire::poisoned_activation_test {
namespace {

constexpr int kSteps = 5, kPoisoned = 3;

struct Case {
  const char* name;
  int ranks;
  std::vector<std::string> keys;
  // Only an element of what is sent: what the rank goes on with stays finite. Otherwise the embedding's output, and so
  // all that follows from it.
  bool sent_alone = false;
  bool laundered = false;  // the receiver decodes numbers: nobody but the packer knows
  bool residual = false;   // the sender keeps one
};

using State = std::map<std::string, std::string>;  // bits by name and place

// All that a checkpoint would hold of a rank.
class Collecting final : public StateVisitor {
 public:
  Collecting(Device& device, State& state) : device_(device), state_(state) {}
  void tensor(const GlobalSlice& s) override {
    std::string bytes(s.local.bytes(), '\0');
    device_.copy_at_rest(bytes.data(), s.local.data, bytes.size());
    state_[s.name + "@" + std::to_string(s.row) + "." + std::to_string(s.col) + "." + std::to_string(s.first)] = bytes;
  }
  void integer(const std::string& name, int64_t& value) override { state_[name] = std::to_string(value); }
  void real(const std::string& name, double& value) override { state_[name] = std::to_string(value); }
  void text(const std::string& name, std::string& value) override { state_[name] = value; }

 private:
  Device& device_;
  State& state_;
};

State state_of(Replica& replica) {
  replica.traffic().finish_param_sync();
  State state;
  Collecting visitor(replica.device(), state);
  replica.visit(visitor, false);
  return state;
}

bool holds_residual(const State& state) {
  return std::any_of(state.begin(), state.end(), [](const auto& entry) {
    return entry.first.find("residual") != std::string::npos &&
           entry.second.find_first_not_of('\0') != std::string::npos;
  });
}

void train(const Case& c, const RunConfig& config, float value, Transport& transport) {
  Job job(transport);
  job.form_mesh(config, "poisoned activation");
  const std::unique_ptr<Device> device = make_cpu_device();
  Replica replica(config, layout_of(config, job.rank(), job.nodes()), job.mesh(), device.get(), &cpu_ops(), true);
  replica.connect();
  replica.set_fresh_weights();
  BareTraining training(replica);
  const bool poisons = replica.layout().at.pipeline == 0 && replica.layout().at.tensor == 0;  // it adds positions
  const View positions = poisons ? replica.store().weight("embedding.position.weight") : View{};
  int now = 0, poisoned = 0;
  training.step.set_node_sink([&](const PlanNode& node, StepTimer::Clock::time_point, StepTimer::Clock::time_point) {
    if (!poisons || !c.sent_alone || now != kPoisoned || node.kind != NodeKind::kForward || node.micro != 0) return;
    replica.write(replica.stage(node.chunk).output(node.slot).element_range(5, 1), &value, sizeof value);
    ++poisoned;
  });
  int64_t next = 0;
  State before = state_of(replica);
  for (now = 1; now <= kSteps; ++now) {
    SCOPED_TRACE(std::string(c.name) + ", rank " + std::to_string(job.rank()) + ", step " + std::to_string(now));
    std::vector<float> kept;
    if (poisons && !c.sent_alone && now == kPoisoned) {
      kept.resize(static_cast<size_t>(positions.count()));
      replica.read(positions, kept.data());
      const std::vector<float> bad(kept.size(), value);
      replica.write(positions, bad.data(), positions.bytes());
      ++poisoned;
    }
    const StepOutcome outcome = training.take_step(static_cast<int>(config.accumulation), [&] {
      return synthetic_batch(next++, config.data.micro_batch, config.data.seq_length, config.model.vocab);
    });
    if (!kept.empty()) replica.write(positions, kept.data(), positions.bytes());  // what was poisoned is no state
    State after = state_of(replica);
    EXPECT_EQ(outcome.skipped, now == kPoisoned) << outcome.non_finite;
    if (now == kPoisoned) {
      EXPECT_TRUE(after == before) << "the skipped step left a trace";
      EXPECT_FALSE(outcome.non_finite.empty());
      EXPECT_TRUE(!c.residual || replica.layout().at.pipeline > 0 || holds_residual(before)) << "nothing to roll back";
      if (c.laundered) {
        EXPECT_TRUE(std::isfinite(outcome.loss) && std::isfinite(outcome.grad_norm)) << "not laundered";
        EXPECT_EQ(outcome.non_finite, "a coded message");
      }
    } else {
      EXPECT_TRUE(std::isfinite(outcome.loss) && std::isfinite(outcome.grad_norm));
      EXPECT_FALSE(after == before) << "nothing was updated";
    }
    before = std::move(after);
  }
  EXPECT_EQ(poisoned, poisons ? 1 : 0);
  EXPECT_EQ(training.progress.updates, kSteps - 1);
  EXPECT_EQ(training.progress.skipped, 1);
  job.control().barrier();
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      // So few bits that what is not finite comes out as zeros: the loss, the gradients and their norm stay finite.
      {.name = "zfp",
       .ranks = 2,
       .keys = {"pipe_parallel_size=2", "compression.pp.forward.codec=zfp", "compression.pp.forward.rate=2.5"},
       .sent_alone = true,
       .laundered = true},
      {.name = "block_int with a residual",
       .ranks = 2,
       .keys = {"pipe_parallel_size=2", "compression.pp.forward.codec=block_int", "compression.pp.forward.bits=4",
                "compression.pp.forward.residual=lazy"},
       .sent_alone = true,
       .residual = true},
      {.name = "entropy", .ranks = 2, .keys = {"pipe_parallel_size=2", "compression.pp.forward.codec=entropy"}},
      {.name = "tensor ranks",
       .ranks = 2,
       .keys = {"model_parallel_size=2", "compression.tp.forward.codec=block_int", "compression.tp.forward.bits=8"}},
      {.name = "stages of tensor ranks",
       .ranks = 4,
       .keys = {"pipe_parallel_size=2", "model_parallel_size=2", "sequence_parallel=true",
                "compression.tp.forward.codec=block_int", "compression.tp.forward.bits=8",
                "compression.pp.forward.codec=block_int", "compression.pp.forward.bits=8"}},
  };
  return all;
}

TEST(PoisonedActivation, IsSkippedByAllAndLeavesNoTrace) {
  for (const Case& c : cases()) {
    const RunConfig config =
        small_run({"num_layers=2", "train_batch_size=4", "precision=fp32", "pos_emb=learned", "norm=layernorm",
                   "lr_decay_style=constant", "watchdog_seconds=60", "run_dir=runs/poisoned_activation_test"},
                  c.keys);
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      SCOPED_TRACE(c.name);
      run_local_ranks(c.ranks, [&](Transport& transport) { train(c, config, value, transport); });
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace thinwire::poisoned_activation_test
