// A step without memory, mathematics and peers: what a rank of a run would hold, and what it would send.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "engine/run/train/bare_training.h"
#include "engine/run/train/replica.h"
#include "parallel/collective/rehearsal.h"

namespace thinwire {

// The ticket of a rehearsed operation: tells when it is first waited for.
class WatchedTicket final : public Operation {
 public:
  explicit WatchedTicket(std::function<void()> waited) : waited_(std::move(waited)) {}
  State state() const override { return waited_ ? State::kIssued : State::kDone; }
  void wait_on(Stream&) override { wait_on_host(); }
  void wait_on_host() override {
    if (waited_) std::exchange(waited_, nullptr)();
  }

 private:
  std::function<void()> waited_;
};

// The replica is that of a run, on a device without memory, with ops that do nothing and channels that count: set-up
// and steps are the code of a run, so what it takes and sends is what a run takes and sends.
class StepRehearsal {
 public:
  // watch: told what operations do and when they are waited for. ops: of a kind with rehearsal_ops(). Both outlive
  // this.
  StepRehearsal(const RunConfig& config, const RankLayout& layout, RehearsalWatch* watch = nullptr,
                const OpTable& ops = rehearsal_ops());
  const Replica& replica() const { return *replica_; }
  Replica& replica() { return *replica_; }
  const SitePrices& prices() const { return prices_; }  // of the step under way
  // What this rank sends in one step of `micro_batches`, behind all warm-ups: with the parameter all-gathers behind it.
  const SitePrices& take_step(int micro_batches);
  // Steps one behind the other, as a run takes them: the parameter all-gathers of one lie in the next, and those of the
  // last behind it. Counted from zero each: counted(step) is called behind every step.
  using Counted = std::function<void(int step, const SitePrices& sent)>;
  void take_steps(int micro_batches, int steps, const NodeSink& nodes, const Counted& counted);

 private:
  void start_counting();

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Progress> progress_;
  SitePrices prices_;
  std::unique_ptr<Mesh> mesh_;  // nullptr: one rank
  std::unique_ptr<Device> device_;
  std::unique_ptr<Replica> replica_;
};

}  // namespace thinwire
