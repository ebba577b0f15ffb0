// A step without memory, mathematics and peers: what a rank of a run would hold, and what it would send.
#pragma once

#include <memory>

#include "engine/run/train/replica.h"

namespace thinwire {

// The replica is that of a run, on a device without memory, with ops that do nothing and channels that count: set-up
// and steps are the code of a run, so what it takes and sends is what a run takes and sends.
class StepRehearsal {
 public:
  StepRehearsal(const RunConfig& config, const RankLayout& layout);
  const Replica& replica() const { return *replica_; }
  // What this rank sends in one step of `micro_batches`, behind all warm-ups: with the parameter all-gathers behind it.
  const SitePrices& take_step(int micro_batches);

 private:
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Progress> progress_;
  SitePrices prices_;
  std::unique_ptr<Mesh> mesh_;  // nullptr: one rank
  std::unique_ptr<Device> device_;
  std::unique_ptr<Replica> replica_;
};

}  // namespace thinwire
